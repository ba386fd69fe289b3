"""How long the disk's flushes took: one number for each round of commits, for `/metrics`."""

from __future__ import annotations

from bisect import bisect_left

# Seconds. An SSD's flush takes parts of a millisecond, a disk's tens, an ill one's seconds.
FLUSH_BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class FlushLatencies:
    """A histogram. Told by the committer's thread alone, read by any."""

    def __init__(self) -> None:
        self._counts = [0] * (len(FLUSH_BOUNDS_S) + 1)
        self._total_s = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(FLUSH_BOUNDS_S, seconds)] += 1
        self._total_s += seconds

    @property
    def counts(self) -> list[int]:
        """By FLUSH_BOUNDS_S, as they are now; the last one is everything beyond."""
        return self._counts.copy()

    @property
    def total_s(self) -> float:
        return self._total_s
