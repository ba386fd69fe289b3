"""Leases and checkpoints that the service keeps (docs/checkpoints.md): JSON over HTTPS.

    GET  /$penstock/checkpoints/HUB/GROUP/ownership      {"ownerships": [...]}
    POST /$penstock/checkpoints/HUB/GROUP/ownership      {"claims": [...]} -> those that won
    GET  /$penstock/checkpoints/HUB/GROUP/checkpoints    {"checkpoints": [...]}
    POST /$penstock/checkpoints/HUB/GROUP/checkpoints    {"checkpoints": [...]} -> 204

Names are escaped, slashes too. The right to listen to the hub is needed. No hub's name begins with
a `$`, so the paths are nobody else's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar
from urllib.parse import quote, unquote_to_bytes

import msgspec
from starlette.types import Receive, Scope, Send

from penstock.auth import Authority
from penstock.broker import Broker, HubRuntime
from penstock.catalog.api import Catalog
from penstock.gateway.http import responses
from penstock.gateway.http.authorization import TokenCache
from penstock.gateway.http.request import ClientDisconnected, HttpRequest, body_too_large
from penstock.gateway.http.responses import HttpResponse, MethodNotAllowed
from penstock.gateway.http.routes import HttpOperation, RequestTarget
from penstock.gateway.refusal_log import RefusalLog
from penstock.model import limits, names
from penstock.model.checkpoints import (
    Checkpoint,
    CheckpointList,
    Claim,
    ClaimList,
    Ownership,
    OwnershipList,
)
from penstock.model.clock import Clock
from penstock.model.entities import Right
from penstock.model.errors import (
    ArgumentError,
    ArgumentOutOfRange,
    InternalError,
    NotFound,
    OperationTimedOut,
    PenstockError,
    ServerBusy,
)

log = logging.getLogger("penstock.http")

PREFIX = "/$penstock/checkpoints/"
_SEGMENTS = 5  # $penstock, checkpoints, hub, group, what
_JSON = (b"content-type", b"application/json")
_METHODS = ("GET", "POST")
_INTERNAL = (
    "The service was unable to process the request; please retry the operation. "
    "The operator finds the reason in the log."
)
_SEQUENCE_NUMBER_MAX = 2**63 - 1

T = TypeVar("T")


class CheckpointService(Protocol):
    """Where the records are kept, by the hub's id and the group's name."""

    def ownerships(self, hub_id: str, group: str) -> list[Ownership]: ...
    def checkpoints(self, hub_id: str, group: str) -> list[Checkpoint]: ...
    async def claim(self, hub_id: str, group: str, claims: Sequence[Claim]) -> list[Ownership]: ...
    async def save(self, hub_id: str, group: str, checkpoints: Sequence[Checkpoint]) -> None: ...


class _CheckpointRequest(msgspec.Struct, frozen=True):
    target: RequestTarget
    group: str
    what: str  # ownership, checkpoints


class CheckpointEndpoint:
    """An ASGI application for the paths below PREFIX."""

    def __init__(
        self,
        *,
        broker: Broker,
        catalog: Catalog,
        keeper: CheckpointService,
        clock: Clock,
        authorities: Callable[[], Sequence[Authority]],
        new_id: Callable[[], str],
        refusal_log: RefusalLog | None = None,
        deadline_s: float = limits.HTTP_REQUEST_DEADLINE_S,
    ) -> None:
        self._broker = broker
        self._keeper = keeper
        self._clock = clock
        self._new_id = new_id
        self._refusal_log = refusal_log or RefusalLog(clock.monotonic_ms)
        self._deadline_s = deadline_s
        self._tokens = TokenCache(authorities, clock)
        self._unsubscribe = catalog.subscribe(self._tokens.on_change)
        self._held_bytes = 0

    def close(self) -> None:
        """Stop following the catalog."""
        self._unsubscribe()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = HttpRequest(scope, receive, send)
        try:
            async with asyncio.timeout(self._deadline_s):
                answer = await self._answer(exchange)
        except ClientDisconnected:
            return
        except TimeoutError:
            late = f"The request was not done within {self._deadline_s:g} seconds."
            answer = self._refusal(exchange, OperationTimedOut(late))
        except PenstockError as error:
            answer = self._refusal(exchange, error)
        except Exception:  # noqa: BLE001 - one request's fault, whatever it is
            answer = self._refusal(exchange, InternalError(_INTERNAL), unexpected=True)
        await exchange.answer(answer)

    async def _answer(self, exchange: HttpRequest) -> HttpResponse:
        """The order matters: form, then the token, then existence, and only then the body."""
        request = _parse(exchange.raw_path)
        exchange.check_headers()
        if exchange.method not in _METHODS:
            raise MethodNotAllowed(
                f"The method {names.quote_text(exchange.method)} is not supported here: "
                f"{', '.join(_METHODS)} is.",
                ", ".join(_METHODS).encode(),
            )
        grant = self._tokens.grant(exchange.headers, request.target, Right.LISTEN)
        exchange.authenticate()
        hub = self._broker.hub(grant.namespace, request.target.hub)
        group = hub.group(request.group)
        if exchange.method == "GET":
            return self._list(hub, group, request.what)
        body = await self._body(exchange)
        hub.group(request.group)  # it may have been deleted while the body came
        if request.what == "checkpoints":
            return await self._save(hub, group, body)
        return await self._claim(hub, group, body)

    def _list(self, hub: HubRuntime, group: str, what: str) -> HttpResponse:
        if what == "checkpoints":
            return self._json(CheckpointList(self._keeper.checkpoints(hub.entity.id, group)))
        return self._json(OwnershipList(self._keeper.ownerships(hub.entity.id, group)))

    async def _claim(self, hub: HubRuntime, group: str, body: bytes) -> HttpResponse:
        claims = _decode_body(body, ClaimList).claims
        _check_count(len(claims))
        for claim in claims:
            hub.partition_index(claim.partition_id)
            _check_text("owner_id", claim.owner_id, least=0)
            if claim.etag is not None:
                _check_text("etag", claim.etag)
        return self._json(OwnershipList(await self._keeper.claim(hub.entity.id, group, claims)))

    async def _save(self, hub: HubRuntime, group: str, body: bytes) -> HttpResponse:
        checkpoints = _decode_body(body, CheckpointList).checkpoints
        _check_count(len(checkpoints))
        for each in checkpoints:
            hub.partition_index(each.partition_id)
            _check_text("offset", each.offset)
            if not -1 <= each.sequence_number <= _SEQUENCE_NUMBER_MAX:
                raise ArgumentOutOfRange(
                    f"The sequence number {each.sequence_number} is out of range: "
                    f"-1 to {_SEQUENCE_NUMBER_MAX} are allowed."
                )
        await self._keeper.save(hub.entity.id, group, checkpoints)
        return responses.empty_response(204, self._date())

    async def _body(self, exchange: HttpRequest) -> bytes:
        declared = exchange.declared_length()
        bytes_max = limits.CHECKPOINT_BODY_BYTES_MAX
        if declared is not None and declared > bytes_max:
            raise body_too_large(declared, bytes_max)
        held = bytes_max if declared is None else declared
        if self._held_bytes + held > limits.CHECKPOINT_HELD_BYTES_MAX:
            raise ServerBusy(
                "The server is busy: too many checkpoints are on their way. Please wait 4 seconds "
                "and try again."
            )
        self._held_bytes += held
        try:
            return await exchange.body(bytes_max)
        finally:
            self._held_bytes -= held

    def _json(self, content: msgspec.Struct) -> HttpResponse:
        return responses.body_response(200, _JSON, msgspec.json.encode(content), self._date())

    def _date(self) -> bytes:
        return responses.http_date(self._clock.now_ms())

    def _refusal(
        self, exchange: HttpRequest, error: PenstockError, *, unexpected: bool = False
    ) -> HttpResponse:
        tracking_id = self._new_id()
        host = exchange.headers.get(b"host", b"").decode("latin-1")
        path = exchange.raw_path.decode("latin-1").removeprefix("/")
        tracker = names.quote_text(f"{host}:{path}", most=200)
        if error.http_status == 500:
            log.error(
                "request failed id=%s peer=%s resource=%s text=%s",
                tracking_id,
                exchange.peer,
                tracker,
                error,
                exc_info=unexpected,
            )
        exchange.log_refusal(self._refusal_log, error, tracking_id)
        return responses.error_response(
            error,
            tracking_id=tracking_id,
            tracker=tracker,
            now_ms=self._clock.now_ms(),
            date=self._date(),
        )


def _parse(raw_path: bytes) -> _CheckpointRequest:
    """Divided before it is unescaped: an escaped slash belongs to a name."""
    if len(raw_path) > limits.HTTP_PATH_BYTES_MAX:
        raise ArgumentError(
            f"The path has {len(raw_path)} bytes: at most {limits.HTTP_PATH_BYTES_MAX} are allowed."
        )
    parts = raw_path.removeprefix(b"/").removesuffix(b"/").split(b"/", _SEGMENTS)
    try:
        segments = [unquote_to_bytes(part).decode() for part in parts]
    except UnicodeDecodeError:
        raise ArgumentError("The path is not escaped UTF-8.") from None
    what = segments[-1].lower()
    if len(segments) != _SEGMENTS or what not in ("ownership", "checkpoints"):
        raise NotFound(
            f"There is nothing at this path. '{PREFIX}HUB/GROUP/ownership' and "
            f"'{PREFIX}HUB/GROUP/checkpoints' are, names escaped."
        )
    hub, group = segments[2], segments[3]
    path = tuple(hub.split("/"))
    if not all(path) or len(hub) > limits.HUB_NAME_MAX or not group:
        raise ArgumentError(f"'{names.quote_text(hub)}' cannot be the name of an event hub.")
    uri = "/" + "/".join(quote(segment, safe="") for segment in path)
    return _CheckpointRequest(RequestTarget(HttpOperation.CHECKPOINTS, hub, path, uri), group, what)


def _decode_body(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise ArgumentError(
            f"The body is not what is expected here: {names.quote_text(str(error), most=200)}."
        ) from None
    except RecursionError:
        raise ArgumentError("The body is nested too deeply.") from None


def _check_count(count: int) -> None:
    if count > limits.CHECKPOINT_RECORDS_MAX:
        raise ArgumentOutOfRange(
            f"The request has {count} records: at most {limits.CHECKPOINT_RECORDS_MAX} are allowed."
        )


def _check_text(what: str, text: str, *, least: int = 1) -> None:
    if not least <= len(text) <= limits.CHECKPOINT_TEXT_MAX or "\0" in text:
        raise ArgumentOutOfRange(
            f"The {what} has {len(text)} characters: {least} to {limits.CHECKPOINT_TEXT_MAX} are "
            "allowed, and no NUL."
        )
