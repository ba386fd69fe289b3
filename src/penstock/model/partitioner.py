"""Which partition a key belongs to: the service's own choice, and a client's that chooses for it.

The key's hash is Jenkins' lookup3 (`hashlittle2`) over the key's UTF-8 bytes, folded to 16 bits,
in the form of the JavaScript and .NET SDKs (protocol.md 8).
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

_MASK = 0xFFFFFFFF
_SEED = 0xDEADBEEF
_BLOCK = Struct("<3I")

# Devices publish under the same keys again and again: a hit costs 0.1 µs, the hash of a GUID 7.
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
    """lookup3's two words, both seeds zero (protocol.md 8.1 step 2).

    The rotations are written out: as calls they would double the time of a key not seen before.
    """
    a = b = c = (_SEED + len(data)) & _MASK
    if not data:
        return b, c
    # Unsigned little-endian words; the last block of one to twelve bytes is filled up with zeros.
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
