"""The compiled implementation has the pure one's signatures."""

from penstock.kernels._pure.arrow_columns import ArrowColumnBuilder as ArrowColumnBuilder
