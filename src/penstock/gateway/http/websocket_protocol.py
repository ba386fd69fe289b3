"""WebSockets with limits that the library lacks: how much work and memory a peer may cost.

Messages are parts of one byte stream, as AMQP uses them (protocol.md 1.2): those of one read are
joined. The library parses everything that it is given, so it gets small pieces, and the next piece
only after the application has taken the result of the last one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from penstock.gateway.guard import SLOT, ConnectionSlot
from penstock.gateway.transport import ClosingTransport
from penstock.model import limits

_PIECE_BYTES = 8 * limits.KB
_PIECE_BYTES_WAITING = 1 * limits.KB  # for a peer without a budget: 170 empty frames
_CLOSE_GRACE_S = 2.0  # for the peer to answer our close, then for the socket to drain; as over TCP


class LimitedWebSocketProtocol(WebSocketsSansIOProtocol):
    """Takes over the slot of the HTTP connection that was upgraded."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self.close_timeout = _CLOSE_GRACE_S
        self._slot: ConnectionSlot = self.app_state[SLOT]
        self._is_waiting = False  # for its turn
        self._bytes = 0
        self._unfed: deque[bytes] = deque()
        self._gathered: list[bytes] = []
        self._pong = b""
        self._end_timer: asyncio.TimerHandle | None = None

    async def run_asgi(self) -> None:
        """After the application has ended, the socket is aborted soon, whatever the peer does."""
        await super().run_asgi()
        if not self.disconnected:
            self._end_timer = self.loop.call_later(2 * _CLOSE_GRACE_S, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        self._bytes += len(data)
        size = _PIECE_BYTES if self._slot.budget.is_within else _PIECE_BYTES_WAITING
        self._unfed.extend(data[start : start + size] for start in range(0, len(data), size))
        self._feed()
        bytes_max = limits.UNAUTHENTICATED_BYTES_MAX + limits.HTTP_HEAD_BYTES_MAX
        # After our close the peer has until its deadline to read the reason.
        if not self._slot.is_authenticated and self._bytes > bytes_max and not self.close_sent:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unfed.clear()
        if self._end_timer is not None:
            self._end_timer.cancel()
        self._slot.release()
        super().connection_lost(exc)
        if isinstance(self.transport, ClosingTransport):
            self.transport.forget()

    def resume_writing(self) -> None:
        super().resume_writing()
        pong, self._pong = self._pong, b""
        if pong:
            self.transport.write(pong)

    async def receive(self) -> Any:
        message = await self.queue.get()
        if self.queue.empty():  # parse the next piece after this one is taken
            self.loop.call_soon(self._feed)
        return message

    # --- input in pieces ------------------------------------------------------------------------

    def _feed(self) -> None:
        budget = self._slot.budget
        while self._unfed and self._may_feed():
            if not budget.may_work():
                self._is_waiting = True
                budget.wait(self._resume)
                break
            started = budget.start()
            super().data_received(self._unfed.popleft())
            self._hand_over()
            budget.stop(started)
        must_pause = bool(self._unfed) or not self._may_feed()
        if must_pause != self.read_paused and not self.transport.is_closing():
            self.read_paused = must_pause
            (self.transport.pause_reading if must_pause else self.transport.resume_reading)()

    def _may_feed(self) -> bool:
        # After our close everything is discarded until the peer's close arrives.
        taken = self.queue.empty() or self.close_sent
        return taken and not self._is_waiting and not self.transport.is_closing()

    def _resume(self) -> None:
        self._is_waiting = False
        self._feed()

    # --- called by the library ------------------------------------------------------------------

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= limits.WEBSOCKET_FRAGMENTS_MAX:
            self.transport.abort()
            return
        super().handle_cont(event)

    def handle_text(self, event: Frame) -> None:
        self._hand_over()
        super().handle_text(event)

    def handle_ping(self) -> None:
        """While the peer does not read, only the newest pong is kept, which answers all pings (RFC
        6455 5.5.3); otherwise pongs would fill the memory."""
        pong = b"".join(self.conn.data_to_send())
        if self.writable.is_set():
            self.transport.write(pong)
        else:
            self._pong = pong

    def handle_close(self, event: Frame) -> None:
        self._hand_over()
        super().handle_close(event)

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type != "bytes":
            super().send_receive_event_to_app()
            return
        self._gathered += self.frames
        self.frames = []

    def _hand_over(self) -> None:
        frames, self._gathered = self._gathered, []
        if frames and not self.close_sent:
            self.queue.put_nowait({"type": "websocket.receive", "bytes": b"".join(frames)})
