"""`Intake`, the specification: memory that a socket fills, and what then came out of it."""

from __future__ import annotations


class ReceiveBuffer:
    """A socket's reads, each behind what was left over from the one before.

    `room` gives the memory for a read, `take` what is there when so much was read. The view that
    `room` gave is not written to after that.
    """

    def __init__(self, size: int) -> None:
        """`size`: of the largest read."""
        if size < 1:
            raise ValueError(f"an intake of {size} bytes: it has at least one")
        self._size = size
        self._front = b""
        self._memory = bytearray(size)

    def room(self, front: bytes) -> memoryview:
        """Where the next read goes; `front` will stand before it."""
        self._front = front
        return memoryview(self._memory)

    def take(self, count: int) -> bytes:
        """The front and the `count` bytes read behind it."""
        if not 0 <= count <= self._size:
            raise ValueError(f"{count} bytes of an intake of {self._size}")
        front, self._front = self._front, b""
        return front + memoryview(self._memory)[:count]
