"""The numbers of an idempotent producer (protocol.md 4.7), and the annotations that contain them.

Every number has its full width, so that the size of a batch does not depend on its numbers:

    00 53 72 c1 <size> <count>  <id: 81 u64> <epoch: 61 u16> <number: 71 u32>  [<partition key>]
"""

from __future__ import annotations

import struct
from functools import lru_cache

import msgspec

from penstock.amqp.encoder import encode
from penstock.amqp.types import Symbol

PRODUCER_ID = "com.microsoft:producer-id"
PRODUCER_EPOCH = "com.microsoft:producer-epoch"
PRODUCER_SEQUENCE = "com.microsoft:producer-sequence-number"
PARTITION_KEY = "x-opt-partition-key"
_ANNOTATIONS = b"\x00\x53\x72"
_CYCLE = 2**31  # AMQP int; after the highest comes 0
_ID, _EPOCH, _NUMBER = struct.Struct(">q"), struct.Struct(">h"), struct.Struct(">i")


class ProducerState(msgspec.Struct):
    """`published` is the last number that was sent to the service."""

    id: int
    epoch: int
    published: int

    def after(self, count: int) -> int:
        """The number of the last of `count` more events."""
        return (self.published + count) % _CYCLE


@lru_cache(maxsize=4096)
def annotations_section(partition_key: str | None, *, stamped: bool = False) -> bytes:
    """The encoded message-annotations section; empty without key and numbers."""
    pairs: list[bytes] = []
    if stamped:
        for name, blank in ((PRODUCER_ID, "81" + "00" * 8), (PRODUCER_EPOCH, "610000")):
            pairs += encode(Symbol(name)), bytes.fromhex(blank)
        pairs += encode(Symbol(PRODUCER_SEQUENCE)), bytes.fromhex("71" + "00" * 4)
    if partition_key is not None:
        pairs += encode(Symbol(PARTITION_KEY)), encode(partition_key)
    if not pairs:
        return b""
    body = b"".join(pairs)
    if len(body) < 255:
        return _ANNOTATIONS + bytes((0xC1, len(body) + 1, len(pairs))) + body
    return _ANNOTATIONS + struct.pack(">BII", 0xD1, len(body) + 4, len(pairs)) + body


def write_stamp(data: bytearray, start: int, producer: ProducerState, number: int) -> None:
    """Write the numbers into the section at `start`, which `annotations_section` built."""
    position = start + (6 if data[start + 3] == 0xC1 else 12) + 2 + len(PRODUCER_ID) + 1
    _ID.pack_into(data, position, producer.id)
    position += _ID.size + 2 + len(PRODUCER_EPOCH) + 1
    _EPOCH.pack_into(data, position, producer.epoch)
    position += _EPOCH.size + 2 + len(PRODUCER_SEQUENCE) + 1
    _NUMBER.pack_into(data, position, number % _CYCLE)
