"""Kernels: all per-event work over bytes.

A kernel exists in two implementations with the same signature. `_pure/NAME.py` is pure Python and
the specification; `_NAME.pyx` is compiled where the installation could build it. The contract:

- Same results. Both implementations return the same value, or raise the same error with the same
  text, for every input. A compiled kernel handles the common forms in C and calls the pure-Python
  implementation for all others, so only that one decides what is rejected and why. The tests
  compare both on random and damaged input (`tests/unit/kernels/test_implementations*.py`).
- Errors. A kernel raises KernelError, a ValueError, for bytes that are not valid, with the position
  in the text. It never reads outside of the bytes that it is given, whatever they contain. Wrong
  arguments raise ValueError or TypeError; what a callback raises passes through.
- No side effects. A function keeps no state, reads no clock, does no I/O and imports nothing of
  Penstock outside of this package. `ArrowColumnBuilder`, `AvroRecordWriter` and `ReceiveBuffer`
  hold bytes until these are taken; one thread at a time may use an instance. After an error the
  first two hold what was added before the message that caused it.
- No copies. Compiled, `split_batch` returns a canonical batch as one slice of the bytes that
  arrived, without an object per event, and the three classes return the memory that they have
  written to.

A publication arrives as one AMQP message per transfer. It is split into `sections`: consecutive
data sections with one canonical message each (see `penstock.model.events`), which are stored as
they are. Each event is delivered as one transfer, with the service's annotations before its own.
"""

from __future__ import annotations

import os

from penstock.kernels._pure.arrow_columns import ArrowColumns, MapColumn, TextColumn
from penstock.kernels._pure.avro_records import _usual_time as format_capture_time
from penstock.kernels._pure.avro_records import encode_bytes as encode_avro_bytes
from penstock.kernels._pure.avro_records import encode_long as encode_avro_long
from penstock.kernels._pure.columns import Columns
from penstock.kernels._pure.publications import Publication, RefusedEvent
from penstock.kernels._pure.transfer_frames import FramedDeliveries, StoredEvents
from penstock.kernels._pure.values import KernelError, KeyConflict, KeyTooLong, encode_map

# The implementation in use. PENSTOCK_KERNEL=pure selects pure Python although the other is built.
KERNEL = "pure"
if os.environ.get("PENSTOCK_KERNEL") != "pure":
    try:
        from penstock.kernels._arrow_columns import ArrowColumnBuilder
        from penstock.kernels._avro_records import AvroRecordWriter
        from penstock.kernels._columns import decode_events
        from penstock.kernels._producer_batch import append_bodies, append_event
        from penstock.kernels._publications import count_metered_events, split_batch, split_singles
        from penstock.kernels._receive_buffer import ReceiveBuffer
        from penstock.kernels._transfer_frames import frame_events, frame_run
    except ImportError:
        pass
    else:
        KERNEL = "compiled"
if KERNEL == "pure":
    from penstock.kernels._pure.arrow_columns import ArrowColumnBuilder
    from penstock.kernels._pure.avro_records import AvroRecordWriter
    from penstock.kernels._pure.columns import decode_events
    from penstock.kernels._pure.producer_batch import append_bodies, append_event
    from penstock.kernels._pure.publications import count_metered_events, split_batch, split_singles
    from penstock.kernels._pure.receive_buffer import ReceiveBuffer
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
    "encode_avro_bytes",
    "encode_avro_long",
    "encode_map",
    "format_capture_time",
    "frame_events",
    "frame_run",
    "split_batch",
    "split_singles",
]
