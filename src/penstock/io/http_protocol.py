"""uvicorn's HTTP/1.1 protocol with bounds: deadlines for heads, bodies and answers, a size and a
number of headers, a length of pipelines. The gateway and the portal serve with it."""

from __future__ import annotations

import asyncio
from enum import IntEnum

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.model import limits


class RequestStage(IntEnum):
    """Which part of a request is being read."""

    NOTHING = 0  # between requests
    HEAD = 1
    BODY = 2


class BoundedHttpProtocol(HttpToolsProtocol):
    """A connection that exceeds a bound is closed; a head that does is answered with 400 first."""

    stage = RequestStage.HEAD  # a new connection has to send a request
    head_bytes = 0  # of the current request, trailers included
    _request = 0
    _watched = (0, RequestStage.NOTHING)  # what `_read_timer` is for
    _read_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.watch_stage()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.stage is RequestStage.HEAD:
            self.head_bytes += len(data)
            if self.head_bytes > limits.HTTP_HEAD_BYTES_MAX:
                self.transport.abort()  # one header without an end: the parser would gather it
        # A request that came whole, as nearly all do, needs no timer.
        if self.stage or self._read_timer is not None:
            self.watch_stage()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.stage = RequestStage.HEAD
        self.head_bytes = 0
        self._request += 1

    def on_header(self, name: bytes, value: bytes) -> None:
        """Trailers count, and are ignored. Raises ValueError: the parser stops, and the answer is
        400."""
        self.head_bytes += len(name) + len(value)
        if self.stage is RequestStage.HEAD:
            super().on_header(name, value)
        if (
            len(self.headers) > limits.HTTP_HEADERS_MAX
            or self.head_bytes > limits.HTTP_HEAD_BYTES_MAX
        ):
            raise ValueError("the request's head is too large")

    def on_headers_complete(self) -> None:
        self.stage = RequestStage.BODY
        if len(self.pipeline) >= limits.HTTP_PIPELINED_MAX:
            self.refuse_pipeline()
        super().on_headers_complete()

    def refuse_pipeline(self) -> None:
        self.transport.close()  # without waiting for the answers to all of them
        raise ValueError("too many requests came before the first was answered")

    def on_message_complete(self) -> None:
        self.stage = RequestStage.NOTHING
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self.stage = RequestStage.NOTHING
        self.watch_stage()
        self._stop_write_timer()
        super().connection_lost(exc)
        self.pipeline.clear()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(limits.HTTP_WRITE_DEADLINE_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_timer()

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def watch_stage(self) -> None:
        """One timer for each head and body, which no single byte starts again."""
        now = (self._request, self.stage)
        if now == self._watched:
            return
        self._watched = now
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None
        if self.stage is not RequestStage.NOTHING:
            is_head = self.stage is RequestStage.HEAD
            body_s = limits.HTTP_UNAUTHENTICATED_BODY_DEADLINE_S
            deadline_s = limits.HTTP_HEAD_DEADLINE_S if is_head else body_s
            self._read_timer = self.loop.call_later(deadline_s, self.on_read_deadline)

    def on_read_deadline(self) -> None:
        """The head or the body has not come in time."""
        self.transport.abort()

    def extend_body_deadline(self, deadline_s: float) -> None:
        """In `on_read_deadline`: the body may take `deadline_s` in all."""
        more_s = deadline_s - limits.HTTP_UNAUTHENTICATED_BODY_DEADLINE_S
        self._read_timer = self.loop.call_later(more_s, self.transport.abort)
