"""When a connection's socket is not read: memory is bounded by making the peer wait."""

from __future__ import annotations

import asyncio
from enum import IntEnum

from penstock.gateway.transport import Transport
from penstock.model import limits


class PauseReason(IntEnum):
    DISK = 0  # too many received bytes wait for the disk
    PEER = 1  # the peer does not read what we write, so answers would accumulate
    WORK = 2  # the connection waits for its turn in the work queue
    ATTACH = 3  # deliveries arrived on a link whose attach is not decided
    SHUTDOWN = 4  # the service stops; what was received is still acknowledged


class PendingBytes:
    """Bytes of all connections that wait for the disk. One slow disk must not fill the memory, and
    a stopping service waits until none are left."""

    def __init__(self, limit: int = limits.UNSETTLED_BYTES_MAX) -> None:
        self.limit = limit
        self.total = 0
        self.nothing = asyncio.Event()
        self.nothing.set()

    @property
    def is_full(self) -> bool:
        return self.total > self.limit

    def add(self, size: int) -> None:
        self.total += size
        self.nothing.clear()

    def remove(self, size: int) -> None:
        self.total -= size
        assert self.total >= 0
        if self.total == 0:
            self.nothing.set()


class ReadBackpressure:
    """Invariant: until `end`, the socket is read if and only if `reasons` is empty."""

    def __init__(self, transport: Transport, pending: PendingBytes) -> None:
        self.bytes = 0  # of this connection, waiting for the disk
        self.reasons: set[PauseReason] = set()
        self._transport = transport
        self._pending = pending
        self._is_ended = False

    def hold(self, size: int) -> None:
        """These bytes wait for the disk from now on."""
        self.bytes += size
        self._pending.add(size)
        if self._pending.is_full or self.bytes > limits.UNSETTLED_BYTES_PER_CONNECTION_MAX:
            self.pause(PauseReason.DISK)

    def release(self, size: int) -> None:
        """They are on disk, or never will be. Half the limit must be free before reading continues,
        so that it does not stop and start with every publication."""
        self.bytes -= size
        assert self.bytes >= 0
        self._pending.remove(size)
        if self.bytes * 2 <= limits.UNSETTLED_BYTES_PER_CONNECTION_MAX:
            self.resume(PauseReason.DISK)

    def pause(self, reason: PauseReason) -> None:
        if not self.reasons and not self._is_ended:
            self._transport.pause_reading()
        self.reasons.add(reason)

    def resume(self, reason: PauseReason) -> None:
        if reason in self.reasons:
            self.reasons.remove(reason)
            if not self.reasons and not self._is_ended:
                self._transport.resume_reading()

    def end(self) -> None:
        """Our close was sent: read whatever the reasons. The engine discards everything but the
        peer's close."""
        if self.reasons and not self._is_ended:
            self._transport.resume_reading()
        self._is_ended = True
