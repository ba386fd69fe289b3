"""Which partition a publication goes to: by partition key, or each in its turn.

The key's hash is Jenkins' lookup3 (`hashlittle2`) over the key's UTF-8 bytes, folded to 16 bits,
in the form of the JavaScript and .NET SDKs (protocol.md 8).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

_MASK = 0xFFFFFFFF
_SEED = 0xDEADBEEF
_BLOCK_BYTES = 12

# Devices publish under few keys again and again: a hit costs 0.1 µs, the hash of a GUID 9 µs.
# At 128 characters a key (model.limits) a full cache holds about 2 MB.
_KEYS_CACHED = 4096


def partition_for_key(key: str, partition_count: int) -> int:
    """The index of the partition that keeps the order of all events with this key."""
    # protocol.md 8.1 step 4: |h mod n| with a truncating remainder is |h| mod n.
    return abs(hash16(key)) % partition_count


@lru_cache(maxsize=_KEYS_CACHED)
def hash16(key: str) -> int:
    """The key's hash as the SDKs show it: signed, 16 bits."""
    b, c = _hashlittle2(key.encode("utf-8", "surrogatepass"))
    folded = (b ^ c) & 0xFFFF
    return folded - 0x10000 if folded & 0x8000 else folded


def _hashlittle2(data: bytes) -> tuple[int, int]:
    """lookup3's two words, both seeds zero (protocol.md 8.1 step 2)."""
    length = len(data)
    a = b = c = (_SEED + length) & _MASK
    if length == 0:
        return b, c
    start = 0
    while length - start > _BLOCK_BYTES:
        a, b, c = _mix(*_added(a, b, c, data[start : start + _BLOCK_BYTES]))
        start += _BLOCK_BYTES
    return _final(*_added(a, b, c, data[start:]))


def _added(a: int, b: int, c: int, block: bytes) -> tuple[int, int, int]:
    """Up to twelve bytes added as three unsigned little-endian words; missing ones are zero."""
    word = int.from_bytes
    return (
        (a + word(block[0:4], "little")) & _MASK,
        (b + word(block[4:8], "little")) & _MASK,
        (c + word(block[8:12], "little")) & _MASK,
    )


def _rotated(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _MASK


def _mix(a: int, b: int, c: int) -> tuple[int, int, int]:
    a = ((a - c) & _MASK) ^ _rotated(c, 4)
    c = (c + b) & _MASK
    b = ((b - a) & _MASK) ^ _rotated(a, 6)
    a = (a + c) & _MASK
    c = ((c - b) & _MASK) ^ _rotated(b, 8)
    b = (b + a) & _MASK
    a = ((a - c) & _MASK) ^ _rotated(c, 16)
    c = (c + b) & _MASK
    b = ((b - a) & _MASK) ^ _rotated(a, 19)
    a = (a + c) & _MASK
    c = ((c - b) & _MASK) ^ _rotated(b, 4)
    b = (b + a) & _MASK
    return a, b, c


def _final(a: int, b: int, c: int) -> tuple[int, int]:
    c = ((c ^ b) - _rotated(b, 14)) & _MASK
    a = ((a ^ c) - _rotated(c, 11)) & _MASK
    b = ((b ^ a) - _rotated(a, 25)) & _MASK
    c = ((c ^ b) - _rotated(b, 16)) & _MASK
    a = ((a ^ c) - _rotated(c, 4)) & _MASK
    b = ((b ^ a) - _rotated(a, 14)) & _MASK
    c = ((c ^ b) - _rotated(b, 24)) & _MASK
    return b, c


class RoundRobin:
    """Partitions in turn for publications that name neither key nor partition."""

    __slots__ = ("_has_failed", "_next", "_partition_count")

    def __init__(self, partition_count: int, has_failed: Callable[[int], bool]) -> None:
        assert partition_count > 0
        self._partition_count = partition_count
        self._has_failed = has_failed
        self._next = 0

    def next(self) -> int:
        """The next partition that still takes events; the next one of all if none does, so that
        its own log says why."""
        first = self._turn()
        index = first
        while self._has_failed(index):
            index = self._turn()
            if index == first:
                break
        return index

    def _turn(self) -> int:
        index = self._next
        self._next = index + 1 if index + 1 < self._partition_count else 0
        return index
