"""Closing a TLS connection whose peer may go on sending.

asyncio and uvloop read and decrypt whatever comes until the peer has said goodbye as well, for up
to half a minute: right for a client, but a stranger could keep the loop busy with a connection that
is over. What was written to a stranger is given a moment to arrive; nothing of it is read.
"""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.gateway.guard import ConnectionSlot

_MOMENT_S = 0.5


class ClosingTransport:
    """A transport that closes as said above; otherwise the one that it is made of."""

    def __init__(
        self, inner: asyncio.Transport, slot: ConnectionSlot | None, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._inner = inner
        self._slot = slot
        self._loop = loop
        self._is_dismissed = False
        self.write = inner.write  # the way that is taken most

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def is_closing(self) -> bool:
        return self._is_dismissed or self._inner.is_closing()

    def pause_reading(self) -> None:
        if not self.is_closing():
            self._inner.pause_reading()

    def resume_reading(self) -> None:
        if not self.is_closing():
            self._inner.resume_reading()

    def forget(self) -> None:
        """The connection is lost. A transport that is kept keeps its buffers (256 KB under TLS),
        and its protocol, which keeps it: who comes and goes would fill the memory until somebody
        collects the cycles."""
        self._is_dismissed = True
        self._inner = _GONE
        self.write = _GONE.write

    def close(self) -> None:
        slot, inner = self._slot, self._inner
        is_tls = inner.get_extra_info("ssl_object") is not None
        if slot is None or not slot.is_suspect or not is_tls:
            inner.close()
        elif not self.is_closing():
            self._is_dismissed = True
            inner.pause_reading()
            self._loop.call_later(_MOMENT_S, inner.abort)


class _ClosedTransport(asyncio.Transport):
    """What is left of a transport."""

    def is_closing(self) -> bool:
        return True

    def close(self) -> None: ...

    def abort(self) -> None: ...

    def write(self, data: object) -> None: ...


_GONE = _ClosedTransport()
