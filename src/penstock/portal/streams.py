"""Server-sent events: a response that lasts until its source ends or the client disconnects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send


class ServerSentEvents(Response):
    """Cancels its source once, and waits until that has closed its readers. (Starlette's streaming
    response cancels again at every await: readers would stay connected.)"""

    def __init__(self, source: AsyncGenerator[bytes, None]) -> None:
        super().__init__(media_type="text/event-stream", headers={"x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        sending = asyncio.create_task(self._forward(send))
        leaving = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sending.cancel()
            leaving.cancel()
            await asyncio.wait((sending, leaving))
        if not sending.cancelled() and (error := sending.exception()) is not None:
            raise error

    async def _forward(self, send: Send) -> None:
        async with aclosing(self._source) as source:
            async for part in source:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def encode_server_sent_event(kind: str, data: dict[str, object]) -> bytes:
    """One event of the stream. JSON has no line breaks of its own, so nobody's text ends it."""
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode("utf-8", "replace")
