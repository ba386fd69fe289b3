"""What a reader received and nobody took yet: rows in order, counted in events and bytes."""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import Any

from penstock.kernels import Columns

EMPTY = Columns([], [], [], [], [], [], [], [], b"")
_FIELDS = Columns.__struct_fields__
assert _FIELDS[-1] == "body_kinds"  # the only one that is no list


class Inbox:
    """Chunks of columns; `take` gives rows, splitting and joining chunks as needed."""

    def __init__(self) -> None:
        self._chunks: deque[tuple[Columns, int]] = deque()  # with their bytes
        self._taken = 0  # rows of the first chunk
        self.events = 0
        self.bytes = 0

    def __bool__(self) -> bool:
        return self.events > 0

    def add(self, columns: Columns, size: int) -> None:
        count = len(columns.bodies)
        if count:
            self._chunks.append((columns, size))
            self.events += count
            self.bytes += size

    def clear(self) -> None:
        self._chunks.clear()
        self._taken = self.events = self.bytes = 0

    def take(self, events_max: int) -> Columns:
        """The next rows, all of them or `events_max`."""
        parts: list[Columns] = []
        room = events_max
        while self._chunks and room > 0:
            columns, size = self._chunks[0]
            count = len(columns.bodies) - self._taken
            if count <= room and self._taken == 0:
                parts.append(columns)
            else:
                parts.append(rows(columns, self._taken, self._taken + min(count, room)))
            taken = min(count, room)
            room -= taken
            self.events -= taken
            if taken < count:
                self._taken += taken
            else:
                self._chunks.popleft()
                self._taken = 0
                self.bytes -= size
        return joined(parts)


def rows(columns: Columns, start: int, stop: int) -> Columns:
    """Some rows of the columns."""
    return Columns(*(getattr(columns, name)[start:stop] for name in _FIELDS))


def joined(parts: list[Columns]) -> Columns:
    """The rows of all parts."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return EMPTY
    kinds = b"".join([part.body_kinds for part in parts])
    lists: list[Any] = [
        list(chain.from_iterable([getattr(part, name) for part in parts])) for name in _FIELDS[:-1]
    ]
    return Columns(*lists, kinds)  # type: ignore[call-arg]  # as many lists as it has
