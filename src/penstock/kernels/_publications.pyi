"""The compiled implementation has the pure one's signatures."""

from penstock.kernels._pure.publications import count_metered_events as count_metered_events
from penstock.kernels._pure.publications import split_batch as split_batch
from penstock.kernels._pure.publications import split_singles as split_singles
