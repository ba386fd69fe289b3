"""What a gateway needs of a socket, and closing a TLS socket whose peer may continue to send.

asyncio and uvloop read and decrypt what arrives until the peer has closed as well, for up to half a
minute. An unauthenticated peer could keep the event loop busy with a connection that is over. So
for such a peer nothing more is read, and what was written has a short time to arrive.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from penstock.gateway.guard import ConnectionSlot

_DRAIN_S = 0.5


class Transport(Protocol):
    """TCP, TLS and WebSockets provide it. `close` writes what is queued first, however long the
    peer takes; `abort` does not."""

    peer: str

    def is_closing(self) -> bool: ...
    def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class ClosingTransport:
    """Wraps a transport of asyncio or uvloop; only closing differs."""

    def __init__(
        self, inner: asyncio.Transport, slot: ConnectionSlot | None, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.peer = _format_peer(inner.get_extra_info("peername"))
        self._inner = inner
        self._slot = slot
        self._loop = loop
        self._is_closing = False
        self.write = inner.write  # called most often, so without another call in between

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def abort(self) -> None:
        self._inner.abort()

    def is_closing(self) -> bool:
        return self._is_closing or self._inner.is_closing()

    def pause_reading(self) -> None:
        if not self.is_closing():
            self._inner.pause_reading()

    def resume_reading(self) -> None:
        if not self.is_closing():
            self._inner.resume_reading()

    def forget(self) -> None:
        """The connection is lost: drop the inner transport. It keeps its buffers (256 KB under TLS)
        and its protocol, which refers to this object; connections that come and go would fill the
        memory until the garbage collector runs."""
        self._is_closing = True
        self._inner = _CLOSED
        self.write = _CLOSED.write

    def close(self) -> None:
        slot, inner = self._slot, self._inner
        is_tls = inner.get_extra_info("ssl_object") is not None
        if slot is None or not slot.is_suspect or not is_tls:
            inner.close()
        elif not self.is_closing():
            self._is_closing = True
            inner.pause_reading()
            self._loop.call_later(_DRAIN_S, inner.abort)


class _ClosedTransport(asyncio.Transport):
    """Replaces a transport whose connection is lost."""

    def is_closing(self) -> bool:
        return True

    def close(self) -> None: ...

    def abort(self) -> None: ...

    def write(self, data: object) -> None: ...


_CLOSED = _ClosedTransport()


def _format_peer(peername: object) -> str:
    if isinstance(peername, tuple) and len(peername) >= 2:
        host = f"[{peername[0]}]" if ":" in str(peername[0]) else peername[0]
        return f"{host}:{peername[1]}"
    return "-"
