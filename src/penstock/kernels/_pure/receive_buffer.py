"""`ReceiveBuffer`: memory that a socket fills."""

from __future__ import annotations


class ReceiveBuffer:
    """The reads of a socket, each after what remained unparsed of the read before.

    For each read, call `room`, let the socket fill the view, then call `take`. The caller must not
    write to the view afterwards: compiled, `take` returns that memory.
    """

    def __init__(self, size: int) -> None:
        """`size` is the largest number of bytes of one read."""
        if size < 1:
            raise ValueError(f"an intake of {size} bytes: it has at least one")
        self._size = size
        self._front = b""
        self._memory = bytearray(size)

    def room(self, front: bytes) -> memoryview:
        """A view for the next read; `take` returns `front` before the bytes read."""
        self._front = front
        return memoryview(self._memory)

    def take(self, count: int) -> bytes:
        """The `front` of the last `room` and the `count` bytes that were read."""
        if not 0 <= count <= self._size:
            raise ValueError(f"{count} bytes of an intake of {self._size}")
        front, self._front = self._front, b""
        return front + memoryview(self._memory)[:count]
