"""Whether a connection's socket is read: memory is bounded by not listening for a while."""

from __future__ import annotations

from typing import Protocol

from penstock.gateway.amqp.context import PendingBytes
from penstock.model import limits


class PausableTransport(Protocol):
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class ReadBackpressure:
    """Reading pauses while too much of this peer waits for the disk, while the peer does not take
    our answers (they would pile up), while it waits for its turn in the work queue, and
    once the service stops."""

    def __init__(self, transport: PausableTransport, held: PendingBytes) -> None:
        self.bytes = 0  # of this connection, waiting for the disk
        self._transport = transport
        self._held = held
        self._is_full = False
        self._is_unheard = False
        self._is_waiting = False
        self._is_stopped = False
        self._is_over = False
        self._paused = False

    def hold(self, size: int) -> None:
        """Bytes that wait for the disk from now on."""
        self.bytes += size
        self._held.add(size)
        if self._held.is_full or self.bytes > limits.UNSETTLED_BYTES_PER_CONNECTION_MAX:
            self._is_full = True
            self._apply()

    def release(self, size: int) -> None:
        """They are on disk, or never will be. Half the limit must be free before reading goes on,
        so that it does not stop and go with every publication."""
        self.bytes -= size
        assert self.bytes >= 0
        self._held.remove(size)
        if self._is_full and self.bytes * 2 <= limits.UNSETTLED_BYTES_PER_CONNECTION_MAX:
            self._is_full = False
            self._apply()

    def peer_stopped_reading(self) -> None:
        self._is_unheard = True
        self._apply()

    def peer_reads_again(self) -> None:
        self._is_unheard = False
        self._apply()

    def pause_for_work(self) -> None:
        self._is_waiting = True
        self._apply()

    def resume_work(self) -> None:
        self._is_waiting = False
        self._apply()

    def stop(self) -> None:
        """Nothing new is taken; what was taken is still acknowledged."""
        self._is_stopped = True
        self._apply()

    def end(self) -> None:
        """Our close is out: the peer's own is awaited, anything else is thrown away unread."""
        self._is_over = True
        self._apply()

    def _apply(self) -> None:
        wanted = not self._is_over and (
            self._is_full or self._is_unheard or self._is_waiting or self._is_stopped
        )
        if wanted == self._paused:
            return
        self._paused = wanted
        if wanted:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()
