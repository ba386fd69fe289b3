"""The compiled twin has the pure one's signatures."""

from penstock.kernels._pure.arrow_columns import Gatherer as Gatherer
