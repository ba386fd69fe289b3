"""The compiled implementation has the pure one's signatures."""

from penstock.kernels._pure.columns import decode_events as decode_events
