"""Kernels: the only place of per-event work (ARCHITECTURE.md).

Leaf functions over bytes. They import nothing of Penstock, keep no state and read no clock, so a
compiled twin can take over each signature; what stands in `_pure` is the specification. `Gatherer`
and `AvroRows` alone hold something, the rows that they were given and nobody took; and `Intake`,
what a socket read.

A publication comes in as one AMQP message per transfer, is split into `sections` (a run of data
sections, one canonical message each, see `penstock.model.events`), is stored like that, and goes
out again as one transfer per event, with the service's own annotations in front.
"""

from __future__ import annotations

import os

from penstock.kernels._pure.arrow_columns import ArrowColumns, MapColumn, TextColumn
from penstock.kernels._pure.columns import Columns
from penstock.kernels._pure.publications import Publication, RefusedEvent
from penstock.kernels._pure.transfer_frames import FramedDeliveries, StoredEvents
from penstock.kernels._pure.values import KernelError, KeyConflict, KeyTooLong

# Compiled where the installation could build it; PENSTOCK_KERNEL=pure asks for the other twin.
KERNEL = "pure"
if os.environ.get("PENSTOCK_KERNEL") != "pure":
    try:
        from penstock.kernels._arrow_columns import ArrowColumnBuilder
        from penstock.kernels._avro_records import AvroRecordWriter
        from penstock.kernels._publications import (
            append_bodies,
            append_event,
            count_metered_events,
            decode_events,
            frame_events,
            frame_run,
            split_batch,
            split_singles,
        )
        from penstock.kernels._receive_buffer import ReceiveBuffer
    except ImportError:
        pass
    else:
        KERNEL = "compiled"
if KERNEL == "pure":
    from penstock.kernels._pure.arrow_columns import ArrowColumnBuilder
    from penstock.kernels._pure.avro_records import AvroRecordWriter
    from penstock.kernels._pure.columns import decode_events
    from penstock.kernels._pure.producer_batch import append_bodies, append_event
    from penstock.kernels._pure.publications import split_batch, split_singles
    from penstock.kernels._pure.receive_buffer import ReceiveBuffer
    from penstock.kernels._pure.steps import count_metered_events
    from penstock.kernels._pure.transfer_frames import frame_events, frame_run

__all__ = [
    "KERNEL",
    "ArrowColumnBuilder",
    "ArrowColumns",
    "AvroRecordWriter",
    "Columns",
    "FramedDeliveries",
    "KernelError",
    "KeyConflict",
    "KeyTooLong",
    "MapColumn",
    "Publication",
    "ReceiveBuffer",
    "RefusedEvent",
    "StoredEvents",
    "TextColumn",
    "append_bodies",
    "append_event",
    "count_metered_events",
    "decode_events",
    "frame_events",
    "frame_run",
    "split_batch",
    "split_singles",
]
