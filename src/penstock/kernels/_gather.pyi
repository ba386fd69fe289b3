"""The compiled twin has the pure one's signatures."""

from penstock.kernels._pure.gathering import Gatherer as Gatherer
