"""How much one round of commits takes."""

from __future__ import annotations

from penstock.log.committer import (
    QUICK_FLUSH_S,
    ROUND_BYTES_MAX,
    ROUND_BYTES_MIN,
    SLOW_FLUSH_S,
    next_round_bytes,
)


def test_rounds_grow_where_flushes_are_slow_and_shrink_where_they_are_quick() -> None:
    size = ROUND_BYTES_MIN
    for _ in range(10):
        size = next_round_bytes(size, 2 * SLOW_FLUSH_S)
    assert size == ROUND_BYTES_MAX
    assert next_round_bytes(size, (SLOW_FLUSH_S + QUICK_FLUSH_S) / 2) == size
    for _ in range(10):
        size = next_round_bytes(size, QUICK_FLUSH_S / 2)
    assert size == ROUND_BYTES_MIN
