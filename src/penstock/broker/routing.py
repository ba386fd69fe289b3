"""Which partition a publication goes to that names none: by its key (`model.partition_key`), or
each in its turn."""

from __future__ import annotations

from collections.abc import Callable


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
