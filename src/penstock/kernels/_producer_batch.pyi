"""The compiled implementation has the pure one's signatures."""

from penstock.kernels._pure.producer_batch import append_bodies as append_bodies
from penstock.kernels._pure.producer_batch import append_event as append_event
