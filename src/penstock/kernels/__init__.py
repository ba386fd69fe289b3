"""Kernels: the only place of per-event work (design.md 5).

Leaf functions over bytes. They import nothing of Penstock, keep no state and read no clock, so a
compiled twin can take over each signature; what stands in `_pure` is the specification.

A publication comes in as one AMQP message per transfer, is split into `sections` (a run of data
sections, one canonical message each, see `penstock.model.events`), is stored like that, and goes
out again as one transfer per event, with the service's own annotations in front.
"""

from __future__ import annotations

from penstock.kernels._pure.columns import Columns, decode_events
from penstock.kernels._pure.framing import Framed, frame_events
from penstock.kernels._pure.splitting import Publication, Refusal, split_batch, split_singles
from penstock.kernels._pure.values import KernelError, KeyConflict

KERNEL = "pure"

__all__ = [
    "KERNEL",
    "Columns",
    "Framed",
    "KernelError",
    "KeyConflict",
    "Publication",
    "Refusal",
    "decode_events",
    "frame_events",
    "split_batch",
    "split_singles",
]
