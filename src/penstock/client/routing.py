"""Which partition a key belongs to, as the service and the other SDKs' buffered producers find it
(protocol.md 8): Jenkins' lookup3 over the key's UTF-8 bytes, folded to 16 bits."""

from __future__ import annotations

from functools import lru_cache
from struct import iter_unpack

_MASK = 0xFFFFFFFF
# (target, subtracted, rotated by): each round also adds two words, see `_mix`.
_MIX = ((0, 2, 4), (1, 0, 6), (2, 1, 8), (0, 2, 16), (1, 0, 19), (2, 1, 4))
_FINAL = ((2, 1, 14), (0, 2, 11), (1, 0, 25), (2, 1, 16), (0, 2, 4), (1, 0, 14), (2, 1, 24))


@lru_cache(maxsize=4096)
def partition_for_key(key: str, partition_count: int) -> int:
    """The index of the partition that keeps the order of all events with this key."""
    data = key.encode("utf-8", "surrogatepass")
    words = [(0xDEADBEEF + len(data)) & _MASK] * 3
    blocks = list(iter_unpack("<3I", data + bytes(-len(data) % 12)))
    for number, block in enumerate(blocks, 1):
        words = [(word + added) & _MASK for word, added in zip(words, block, strict=True)]
        (_mix if number < len(blocks) else _finish)(words)
    folded = (words[1] ^ words[2]) & 0xFFFF
    return abs(folded - 0x10000 if folded & 0x8000 else folded) % partition_count


def _mix(words: list[int]) -> None:
    for target, other, bits in _MIX:
        words[target] = ((words[target] - words[other]) & _MASK) ^ _rotated(words[other], bits)
        words[other] = (words[other] + words[3 - target - other]) & _MASK


def _finish(words: list[int]) -> None:
    for target, other, bits in _FINAL:
        words[target] = ((words[target] ^ words[other]) - _rotated(words[other], bits)) & _MASK


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & _MASK
