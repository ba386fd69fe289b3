"""Events as an Avro file of the Event Hubs Capture schema, for download."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence

from penstock.capture.container import SYNC_BYTES, encode_block_header, encode_header, encode_long
from penstock.client import EventData
from penstock.client.values import to_avro_union

# Given fields of their own in the record.
_KEY = "x-opt-partition-key"
_OWN = ("x-opt-sequence-number", "x-opt-offset", "x-opt-enqueued-time")


def container(events: Sequence[EventData]) -> bytes:
    """One block; the header alone when there are no events."""
    sync = os.urandom(SYNC_BYTES)
    out = bytearray(encode_header(sync, deflate=False))
    if events:
        records = b"".join(_record(event) for event in events)
        out += encode_block_header(len(events), len(records)) + records + sync
    return bytes(out)


def _record(event: EventData) -> bytes:
    when = event.enqueued_time
    system = {k: v for k, v in event.system_properties.items() if str(k) not in _OWN}
    if _KEY in system:
        system[_KEY] = event.partition_key  # which may be masked
    text = "" if when is None else when.strftime("%m/%d/%Y %I:%M:%S %p")
    return b"".join(
        (
            encode_long(event.sequence_number or 0),
            _sized((event.offset or "").encode()),
            _sized(text.encode()),
            _map(system),
            _map(event.properties),
            b"\x02" + _sized(event.body),
        )
    )


def _map(values: Mapping[str, object]) -> bytes:
    if not values:
        return encode_long(0)
    pairs = b"".join(_sized(str(name).encode()) + _union(value) for name, value in values.items())
    return encode_long(len(values)) + pairs + encode_long(0)


def _union(value: object) -> bytes:
    plain = to_avro_union(value)
    if isinstance(plain, int):
        return encode_long(0) + encode_long(plain)
    if isinstance(plain, float):
        return encode_long(1) + struct.pack("<d", plain)
    if isinstance(plain, str):
        return encode_long(2) + _sized(plain.encode("utf-8", "replace"))
    return encode_long(3) + _sized(plain)


def _sized(content: bytes) -> bytes:
    return encode_long(len(content)) + content
