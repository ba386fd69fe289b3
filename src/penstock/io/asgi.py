"""One ASGI request: headers, query, bounded body, response."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Receive, Scope, Send

from penstock.model import names
from penstock.model.errors import ArgumentError, MessageTooLarge, OperationTimedOut, PenstockError

Headers = Iterable[tuple[str, str]]
_QUERY_FIELDS_MAX = 32


class ClientDisconnected(Exception):
    """The client closed the connection, so that no response can be sent."""


def get_header(scope: Scope, name: bytes) -> str:
    """The value of the header, empty without one. Raises ArgumentError where it is repeated."""
    values = [value for key, value in scope["headers"] if key == name]
    if len(values) > 1:
        raise ArgumentError(f"The header {name.decode()} is there {len(values)} times.")
    return values[0].decode("latin-1") if values else ""


def authenticate(scope: Scope) -> None:
    """Tell the listener that the client is authenticated; it limits other clients more."""
    notify = scope.get(names.AUTHENTICATE)
    if notify is not None:
        notify()


def parse_query(scope: Scope) -> dict[str, str]:
    """The fields of the query by name in lower case; the last one of each name counts. Raises
    ArgumentError."""
    try:
        text = scope["query_string"].decode("ascii")
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_QUERY_FIELDS_MAX)
    except ValueError:
        raise ArgumentError(
            f"The query is not escaped text of at most {_QUERY_FIELDS_MAX} fields."
        ) from None
    return {name.lower(): value for name, value in pairs}


async def read_request_body(
    scope: Scope, receive: Receive, *, bytes_max: int, deadline_s: float
) -> bytes:
    """The whole body. Raises MessageTooLarge before more than `bytes_max` are held in memory,
    OperationTimedOut, ClientDisconnected."""
    declared = get_header(scope, b"content-length")
    if declared.isdigit() and len(declared) < 16 and int(declared) > bytes_max:
        raise _too_large(int(declared), bytes_max)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(deadline_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnected
                chunk = message.get("body", b"")
                size += len(chunk)
                if size > bytes_max:
                    raise _too_large(size, bytes_max)
                chunks.append(chunk)
                if not message.get("more_body"):
                    return b"".join(chunks)
    except TimeoutError:
        raise OperationTimedOut(
            f"The request's body was not complete within {deadline_s:g} seconds."
        ) from None


async def send_response(
    send: Send, status: int, body: bytes, *, content_type: str, headers: Headers = ()
) -> None:
    pairs = [*headers, ("content-length", str(len(body)))]
    if body:
        pairs.append(("content-type", content_type))
    encoded = [(name.encode(), value.encode("latin-1")) for name, value in pairs]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})


async def send_json(send: Send, status: int, shape: object, *, headers: Headers = ()) -> None:
    body = msgspec.json.encode(shape)
    content_type = "application/json; charset=utf-8"
    await send_response(send, status, body, content_type=content_type, headers=headers)


def _too_large(size: int, most: int) -> PenstockError:
    return MessageTooLarge(f"The body has {size} bytes or more: at most {most} are allowed.")
