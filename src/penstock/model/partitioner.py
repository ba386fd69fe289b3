"""The partition of a publication that names none: by its partition key, else round robin.

The hash of a key is Jenkins' lookup3 (`hashlittle2`) over the key's UTF-8 bytes, folded to 16 bits,
in the form of the JavaScript and .NET SDKs (protocol.md 8). Clients that choose the partition
themselves use it too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from struct import Struct

_MASK = 0xFFFFFFFF
_SEED = 0xDEADBEEF
_BLOCK = Struct("<3I")

# Devices publish under the same keys repeatedly: a hit costs 0.1 µs, the hash of a GUID 7 µs.
# At 128 characters per key (model.limits) a full cache takes about 2 MB.
_KEYS_CACHED = 4096


def partition_for_key(key: str, partition_count: int) -> int:
    """Index of the partition that stores all events with this key."""
    # protocol.md 8.1 step 4: |h mod n| with a truncating remainder is |h| mod n.
    return abs(hash16(key)) % partition_count


class RoundRobin:
    """Chooses partitions in turn for publications that name neither key nor partition."""

    __slots__ = ("_has_failed", "_next", "_partition_count")

    def __init__(self, partition_count: int, has_failed: Callable[[int], bool]) -> None:
        self._partition_count = partition_count
        self._has_failed = has_failed
        self._next = 0

    def next(self) -> int:
        """The next partition that has not failed. If all have, the next one of all: its log then
        reports why it refuses the batch."""
        for _ in range(self._partition_count):
            index = self._advance()
            if not self._has_failed(index):
                return index
        return self._advance()

    def _advance(self) -> int:
        index = self._next
        self._next = index + 1 if index + 1 < self._partition_count else 0
        return index


@lru_cache(maxsize=_KEYS_CACHED)
def hash16(key: str) -> int:
    """The hash of the key as the SDKs compute it: signed, 16 bits."""
    b, c = _hashlittle2(key.encode("utf-8", "surrogatepass"))
    folded = (b ^ c) & 0xFFFF
    return folded - 0x10000 if folded & 0x8000 else folded


def _hashlittle2(data: bytes) -> tuple[int, int]:
    """The two words of lookup3, both seeds zero (protocol.md 8.1 step 2).

    The rotations are inline: as calls they would double the time of an uncached key.
    """
    a = b = c = (_SEED + len(data)) & _MASK
    if not data:
        return b, c
    # Unsigned little-endian words; the last block, of 1 to 12 bytes, is padded with zeros.
    blocks = list(_BLOCK.iter_unpack(data + bytes(-len(data) % _BLOCK.size)))
    last = blocks.pop()
    for x, y, z in blocks:
        a, b, c = (a + x) & _MASK, (b + y) & _MASK, (c + z) & _MASK
        a = ((a - c) & _MASK) ^ ((c << 4) & _MASK | c >> 28)
        c = (c + b) & _MASK
        b = ((b - a) & _MASK) ^ ((a << 6) & _MASK | a >> 26)
        a = (a + c) & _MASK
        c = ((c - b) & _MASK) ^ ((b << 8) & _MASK | b >> 24)
        b = (b + a) & _MASK
        a = ((a - c) & _MASK) ^ ((c << 16) & _MASK | c >> 16)
        c = (c + b) & _MASK
        b = ((b - a) & _MASK) ^ ((a << 19) & _MASK | a >> 13)
        a = (a + c) & _MASK
        c = ((c - b) & _MASK) ^ ((b << 4) & _MASK | b >> 28)
        b = (b + a) & _MASK
    a, b, c = (a + last[0]) & _MASK, (b + last[1]) & _MASK, (c + last[2]) & _MASK
    c = ((c ^ b) - ((b << 14) & _MASK | b >> 18)) & _MASK
    a = ((a ^ c) - ((c << 11) & _MASK | c >> 21)) & _MASK
    b = ((b ^ a) - ((a << 25) & _MASK | a >> 7)) & _MASK
    c = ((c ^ b) - ((b << 16) & _MASK | b >> 16)) & _MASK
    a = ((a ^ c) - ((c << 4) & _MASK | c >> 28)) & _MASK
    b = ((b ^ a) - ((a << 14) & _MASK | a >> 18)) & _MASK
    c = ((c ^ b) - ((b << 24) & _MASK | b >> 8)) & _MASK
    return b, c
