"""Responses that are not pages: downloads, streams of server-sent events, static files."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path

from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from penstock.capture.container import SYNC_BYTES, encode_block_header, encode_header
from penstock.formats.avro import encode_capture_records
from penstock.formats.event_record import to_csv, to_json_lines
from penstock.formats.event_view import EventView
from penstock.portal.assets import asset, static_files
from penstock.portal.page_request import PageRequest

DOWNLOAD_FORMATS = {"jsonl": "JSON lines", "csv": "CSV", "avro": "Avro"}


def download_response(events: Sequence[EventView], hub: str, kind: str) -> Response:
    """A file named after the hub; JSON lines unless `kind` is another format."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in hub)
    if kind == "avro":
        content, media_type = _encode_avro(events), "application/octet-stream"
    elif kind == "csv":
        content = to_csv((event.columns, event.partition, event.row) for event in events)
        media_type = "text/csv; charset=utf-8"
    else:
        kind, media_type = "jsonl", "application/x-ndjson"
        content = b"".join(
            to_json_lines(event.columns, event.partition, [event.row]) for event in events
        )
    return attachment(f"{name}.{kind}", content, media_type)


def _encode_avro(events: Sequence[EventView]) -> bytes:
    """An Avro file with one block; the header alone if there are no events."""
    sync = os.urandom(SYNC_BYTES)
    header = encode_header(sync, deflate=False)
    if not events:
        return header
    records = b"".join(
        encode_capture_records(event.columns, event.partition, [event.row]) for event in events
    )
    return header + encode_block_header(len(events), len(records)) + records + sync


def attachment(name: str, content: bytes, media_type: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=media_type, headers=headers)


class ServerSentEvents(Response):
    """A response without an end: it lasts until the source ends or the visitor leaves.

    It cancels its source once and waits until the source has closed its readers. Starlette's own
    streaming response cancels again at every await, so readers would stay connected.
    """

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
    """One event of the stream. JSON has no line breaks, so no text can end the event."""
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode("utf-8", "replace")


# --- static files ---------------------------------------------------------------------------------


# Not from the machine's tables, which may be wrong.
_STATIC_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


async def static_file(visit: PageRequest) -> Response:
    name = visit.words["name"]
    content = static_files().get(name)
    if content is None:
        return PlainTextResponse("There is no such file.\n", 404)
    # A year, if the address names this content: another content has another address.
    is_current = visit.address_path == asset(name)
    lifetime = "max-age=31536000, immutable" if is_current else "no-cache"
    headers = {"cache-control": f"private, {lifetime}"}
    return Response(content, media_type=_STATIC_TYPES[Path(name).suffix], headers=headers)


async def health(visit: PageRequest) -> Response:
    """`/alive`: the service checks with it that the portal answers."""
    return PlainTextResponse("ok\n")
