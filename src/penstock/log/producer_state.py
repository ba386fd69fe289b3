"""The newest stamp of each idempotent producer of a partition (protocol.md 4.7), bounded.

The file `<base offset>.producers` has a checksum (checksummed_file.py). Its body:

    byte  0  through  u64   the stamps of all records before this offset are included
          8  stamps   n x (id i64, first number i32, last number i32, epoch i16), oldest first
"""

from __future__ import annotations

import struct

from penstock.log.checksummed_file import add_checksum, remove_checksum
from penstock.model import limits
from penstock.model.events import ProducerStamp

PRODUCERS_MAGIC = b"PNSTKPRD"

_HEAD = struct.Struct("<Q")
_STAMP = struct.Struct("<qiih")
PRODUCERS_FILE_BYTES_MAX = 64 + _STAMP.size * limits.PRODUCERS_PER_PARTITION_MAX


class ProducerStates:
    """The newest stamp of each producer, up to a maximum; then the least recent one is dropped."""

    __slots__ = ("_stamps",)

    def __init__(self, stamps: dict[int, ProducerStamp] | None = None) -> None:
        self._stamps: dict[int, ProducerStamp] = {} if stamps is None else stamps

    def __len__(self) -> int:
        return len(self._stamps)

    def get(self, producer_id: int) -> ProducerStamp | None:
        return self._stamps.get(producer_id)

    def note(self, stamp: ProducerStamp) -> None:
        """Store a newer stamp. The dict keeps the order: inserting again moves it to the end."""
        self._stamps.pop(stamp.id, None)
        self._stamps[stamp.id] = stamp
        if len(self._stamps) > limits.PRODUCERS_PER_PARTITION_MAX:
            del self._stamps[next(iter(self._stamps))]
        assert len(self._stamps) <= limits.PRODUCERS_PER_PARTITION_MAX

    def copy(self) -> ProducerStates:
        return ProducerStates(dict(self._stamps))

    def encode(self, through: int) -> bytes:
        stamps = [
            _STAMP.pack(stamp.id, stamp.first_sequence, stamp.last_sequence, stamp.epoch)
            for stamp in self._stamps.values()
        ]
        return add_checksum(PRODUCERS_MAGIC, _HEAD.pack(through) + b"".join(stamps))


def decode_producers(content: bytes) -> tuple[ProducerStates, int] | None:
    """The stamps and the offset that they cover; None if the file is damaged."""
    body = remove_checksum(PRODUCERS_MAGIC, content)
    if body is None or len(body) < _HEAD.size or (len(body) - _HEAD.size) % _STAMP.size:
        return None
    producers = ProducerStates()
    for producer_id, first, last, epoch in _STAMP.iter_unpack(body[_HEAD.size :]):
        producers.note(ProducerStamp(producer_id, epoch, first, last))
    return producers, _HEAD.unpack_from(body)[0]
