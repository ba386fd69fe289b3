"""One request and its response: headers, a bounded body, a deadline."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from urllib.parse import parse_qsl

from starlette.types import Message, Receive, Scope, Send

from penstock.gateway.guard import network_of, policy_of
from penstock.gateway.http.responses import CLOSE, SERVER, HttpResponse, LengthRequired
from penstock.gateway.refusal_log import RefusalLog
from penstock.model import limits, names
from penstock.model.errors import ArgumentError, MessageTooLarge, PenstockError

ORIGINAL_NAMES = "penstock.header_names"  # in the scope: header names as the client wrote them

_SERVER_FAULT = 500  # and above: not the client's
_ONLY_ONCE = (b"host", b"authorization", b"content-type", b"content-length", b"brokerproperties")
_QUERY_PAIRS_MAX = 32
_QUERIES_CACHED = 256
_QUERY_CACHED_BYTES_MAX = 256

# The server has read and discarded this much by the time the refusal of a small body is written.
_UNREAD_BYTES_KEPT_ALIVE = 64 * limits.KB


class ClientDisconnected(Exception):
    """The client disconnected before the response."""


class RequestDeadline:
    """Cancels the task that created it when the time is up. Like `asyncio.timeout`, at a third of
    its cost."""

    __slots__ = ("_task", "_timer", "has_passed")

    def __init__(self, seconds: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._timer = task.get_loop().call_later(seconds, self._pass)
        self.has_passed = False

    def _pass(self) -> None:
        self.has_passed = True
        self._task.cancel()

    def end(self) -> None:
        """The task does not wait any more."""
        self._timer.cancel()
        if self.has_passed:
            self._task.uncancel()


def log_refusal(
    refusal_log: RefusalLog,
    scope: Scope,
    error: PenstockError,
    tracking_id: str,
    *,
    names_entity: bool = True,
) -> None:
    """Write one log line with the id that the client sees. Errors of the service are logged where
    they happen."""
    if error.http_status >= _SERVER_FAULT:
        return
    client = scope.get("client")
    token = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    refusal_log.record(
        scope["method"].lower(),
        error,
        address="-" if client is None else network_of(str(client[0])),
        peer="-" if client is None else f"{client[0]}:{client[1]}",
        tracking_id=tracking_id,
        policy=policy_of(token.decode("latin-1")),
        path=_entity_path(scope["path"]) if names_entity else (),
    )


def _entity_path(path: str) -> list[str]:
    """Hub, group, partition and publisher of any path of the data plane, as segments."""
    segments = path[: limits.HTTP_PATH_BYTES_MAX].strip("/").split("/")
    if segments[:2] == ["$penstock", "checkpoints"]:
        return [*segments[2:3], "consumergroups", *segments[3:4]]
    return segments[:-1] if segments[-1].casefold() == "messages" else segments


class HttpRequest:
    """A request over ASGI. `headers` has lower-case names and the last value of each."""

    __slots__ = ("_read", "_receive", "_send", "_started", "headers", "method", "scope")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self._receive = receive
        self._send = send
        self._started = False  # the body was requested, so `Expect: 100-continue` is answered
        self._read = False  # the whole body was read
        self.method: str = scope["method"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])

    @property
    def raw_path(self) -> bytes:
        raw: bytes | None = self.scope.get("raw_path")
        return self.scope["path"].encode() if raw is None else raw

    def authenticate(self) -> None:
        """A token of the client was verified."""
        notify = self.scope.get(names.AUTHENTICATE)
        if notify is not None:
            notify()

    @property
    def peer(self) -> str:
        client = self.scope.get("client")
        return "-" if client is None else f"{client[0]}:{client[1]}"

    @property
    def address(self) -> str:
        client = self.scope.get("client")
        return "-" if client is None else str(client[0])

    def header_pairs(self) -> list[tuple[bytes, bytes]]:
        """All headers in order, with names as the client wrote them if the server kept them."""
        pairs: list[tuple[bytes, bytes]] = self.scope["headers"]
        written: list[bytes] | None = self.scope.get(ORIGINAL_NAMES)
        if written is None or len(written) != len(pairs):
            return pairs
        return [(name, pair[1]) for name, pair in zip(written, pairs, strict=True)]

    def check_headers(self) -> None:
        """Raises ArgumentError for a repeated header: programs differ in which one they use."""
        if len(self.headers) == len(self.scope["headers"]):
            return
        all_names = [pair[0] for pair in self.scope["headers"]]
        for name in _ONLY_ONCE:
            if all_names.count(name) > 1:
                raise ArgumentError(f"The header {name.decode()} comes more than once.")

    def deadline_s(self) -> float | None:
        """The query's `timeout`, if there is one. Raises ArgumentError."""
        query: bytes = self.scope.get("query_string", b"")
        if not query:
            return None
        return (_timeout_cached if len(query) <= _QUERY_CACHED_BYTES_MAX else _timeout_s)(query)

    def check_length(self, bytes_max: int) -> int:
        """The declared length of the body, or `bytes_max` for one in chunks. Raises ArgumentError,
        MessageTooLarge, and LengthRequired without any length."""
        text = self.headers.get(b"content-length")
        if text is None:
            coding = self.headers.get(b"transfer-encoding")
            if coding is None:
                raise LengthRequired("The request needs a Content-Length.")
            if coding.strip().lower() != b"chunked":  # the body must be stored as it was meant
                raise ArgumentError(
                    f"The Transfer-Encoding '{_quote_bytes(coding)}' is not supported: chunked is."
                )
            return bytes_max
        if not text.isdigit() or len(text) > 18:
            raise ArgumentError(f"The Content-Length '{_quote_bytes(text)}' is not a length.")
        if int(text) > bytes_max:
            raise body_too_large(int(text), bytes_max)
        return int(text)

    async def body(self, bytes_max: int) -> bytes:
        """Read the whole body. Raises MessageTooLarge (early), ClientDisconnected."""
        self._started = True
        message = await self._receive()
        body: bytes = message.get("body", b"")
        if message.get("more_body", False):
            body = await self._read_chunks(body, bytes_max)
        elif message["type"] == "http.disconnect":
            raise ClientDisconnected
        self._read = True
        if len(body) > bytes_max:
            raise body_too_large(len(body), bytes_max)
        return body

    async def _read_chunks(self, first: bytes, bytes_max: int) -> bytes:
        chunks, size, more = [first], len(first), True
        while more:
            if size > bytes_max:
                raise body_too_large(None, bytes_max)
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            more = message.get("more_body", False)
        return b"".join(chunks)

    async def answer(self, answer: HttpResponse, date: bytes) -> None:
        """Send the response; `date` is its Date header. A client that still sends a refused body
        gets the response at once and a short time to notice it; then the connection is closed."""
        lingers = not self._read and self._has_much_to_come()
        length = (b"content-length", b"%d" % len(answer.body))
        headers = [*answer.headers, length, SERVER, (b"date", date)]
        if lingers:
            headers.append(CLOSE)
        start: Message = {"type": "http.response.start", "status": answer.status}
        start["headers"] = headers
        await self._send(start)
        if lingers and not self._waits_for_continue():
            await self._send({"type": "http.response.body", "body": answer.body, "more_body": True})
            await self._discard()
            await self._send({"type": "http.response.body", "body": b""})
        else:
            await self._send({"type": "http.response.body", "body": answer.body})

    def _has_much_to_come(self) -> bool:
        text = self.headers.get(b"content-length")
        if text is None:
            return b"transfer-encoding" in self.headers
        is_small = text.isdigit() and len(text) < 10 and int(text) <= _UNREAD_BYTES_KEPT_ALIVE
        return not is_small or self._waits_for_continue()

    def _waits_for_continue(self) -> bool:
        """The client waits for `100 Continue` (RFC 9110 10.1.1) or sends the body anyway, so it is
        unknown what comes next on this connection."""
        return not self._started and b"expect" in self.headers

    async def _discard(self) -> None:
        """Closing with unread bytes would reset the connection before the response arrives."""
        size = 0
        try:
            async with asyncio.timeout(limits.HTTP_DISCARD_DEADLINE_S):
                while size <= limits.HTTP_DISCARDED_BYTES_MAX:
                    message = await self._receive()
                    size += len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return
        except TimeoutError:
            return


def body_too_large(size: int | None, bytes_max: int) -> MessageTooLarge:
    seen = f"more than {bytes_max}" if size is None else str(size)
    return MessageTooLarge(
        f"The request's body has {seen} bytes, which exceeds the limit ({bytes_max} bytes)."
    )


def _timeout_s(query: bytes) -> float | None:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=_QUERY_PAIRS_MAX)
    except ValueError:
        raise ArgumentError(
            f"The query has too many parameters: at most {_QUERY_PAIRS_MAX} are allowed."
        ) from None
    for name, value in pairs:
        if name.lower() == b"timeout":
            if not value.isdigit() or len(value) > 9 or int(value) == 0:
                raise ArgumentError(
                    f"The timeout '{_quote_bytes(value)}' is not a whole number of seconds above 0."
                )
            return min(int(value), limits.HTTP_REQUEST_DEADLINE_S_MAX)
    return None


_timeout_cached = lru_cache(maxsize=_QUERIES_CACHED)(_timeout_s)


def _quote_bytes(text: bytes) -> str:
    return names.quote_text(text.decode("latin-1"))
