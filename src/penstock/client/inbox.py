"""What a reader received and nobody took yet: messages as they came, in order, counted in events
and bytes. They are opened when they are taken."""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import Any

import msgspec

from penstock.kernels import Columns

EMPTY = Columns([], [], [], [], [], [], [], [], b"")
_FIELDS = Columns.__struct_fields__
assert _FIELDS[-1] == "body_kinds"  # the only one that is no list


class MessageChunk(msgspec.Struct, frozen=True):
    """Delivered messages: message i is data[bounds[2 * i]:bounds[2 * i + 1]]. `first` and `last`
    are the sequence numbers of the first and the last."""

    data: bytes
    bounds: list[int]
    first: int
    last: int

    @property
    def count(self) -> int:
        return len(self.bounds) >> 1

    @property
    def size(self) -> int:
        """Bytes of the messages, with what lies between them."""
        return self.bounds[-1] - self.bounds[0]

    def __repr__(self) -> str:
        return f"<Chunk {self.count} events, {self.first} to {self.last}>"


class ReceiveQueue:
    """Chunks; `take` gives messages, splitting chunks as needed."""

    def __init__(self) -> None:
        self._chunks: deque[MessageChunk] = deque()
        self._taken = 0  # messages of the first chunk
        self.events = 0
        self.bytes = 0

    def __bool__(self) -> bool:
        return self.events > 0

    def add(self, chunk: MessageChunk) -> None:
        self._chunks.append(chunk)
        self.events += chunk.count
        self.bytes += chunk.size

    def clear(self) -> None:
        self._chunks.clear()
        self._taken = self.events = self.bytes = 0

    def take_chunks(self) -> list[MessageChunk]:
        """All that are there. Whoever takes parts of chunks must not take whole ones."""
        assert self._taken == 0
        chunks = list(self._chunks)
        self.clear()
        return chunks

    def take(self, events_max: int) -> list[tuple[bytes, list[int]]]:
        """Data and bounds of the next messages, all of them or `events_max`."""
        parts: list[tuple[bytes, list[int]]] = []
        room = events_max
        while self._chunks and room > 0:
            chunk, start = self._chunks[0], self._taken
            taken = min(chunk.count - start, room)
            whole = taken == chunk.count
            bounds = chunk.bounds if whole else chunk.bounds[2 * start : 2 * (start + taken)]
            parts.append((chunk.data, bounds))
            room -= taken
            self.events -= taken
            self._taken += taken
            if self._taken == chunk.count:
                self._chunks.popleft()
                self._taken = 0
                self.bytes -= chunk.size
        return parts


def slice_columns(columns: Columns, start: int, stop: int) -> Columns:
    """Some rows of the columns."""
    return Columns(*(getattr(columns, name)[start:stop] for name in _FIELDS))


def join_columns(parts: list[Columns]) -> Columns:
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
