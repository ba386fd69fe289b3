"""Ownership and checkpoints that the service stores (docs/reference/checkpoints.md): JSON over
HTTPS.

    GET  /$penstock/checkpoints/HUB/GROUP/ownership      {"ownerships": [...]}
    POST /$penstock/checkpoints/HUB/GROUP/ownership      {"claims": [...]} -> those that won
    GET  /$penstock/checkpoints/HUB/GROUP/checkpoints    {"checkpoints": [...]}
    POST /$penstock/checkpoints/HUB/GROUP/checkpoints    {"checkpoints": [...]} -> 204

Names are escaped, slashes too. The Listen right on the hub is needed. No hub's name begins with
`$`, so no other request has these paths.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from penstock.broker.hub import HubRuntime
from penstock.gateway.http.endpoint import DataPlaneEndpoint, check_method
from penstock.gateway.http.message_encoder import decode_json
from penstock.gateway.http.request import HttpRequest
from penstock.gateway.http.responses import HttpResponse
from penstock.gateway.http.routes import HttpOperation, RequestTarget, build_target, split_path
from penstock.model import limits
from penstock.model.checkpoints import (
    Checkpoint,
    CheckpointList,
    Claim,
    ClaimList,
    Ownership,
    OwnershipList,
)
from penstock.model.entities import Right
from penstock.model.errors import (
    ArgumentError,
    ArgumentOutOfRange,
    NotFound,
    OperationTimedOut,
    ServerBusy,
)

PREFIX = "/$penstock/checkpoints/"
_SEGMENTS = 5  # $penstock, checkpoints, hub, group, what
_JSON = (b"content-type", b"application/json")
_METHODS = ("GET", "POST")
_SEQUENCE_NUMBER_MAX = 2**63 - 1

_CLAIMS = msgspec.json.Decoder(ClaimList)
_CHECKPOINTS = msgspec.json.Decoder(CheckpointList)


class CheckpointService(Protocol):
    """Stores the records by hub id and group name."""

    def ownerships(self, hub_id: str, group: str) -> list[Ownership]: ...
    def checkpoints(self, hub_id: str, group: str) -> list[Checkpoint]: ...
    async def claim(self, hub_id: str, group: str, claims: Sequence[Claim]) -> list[Ownership]: ...
    async def save(self, hub_id: str, group: str, checkpoints: Sequence[Checkpoint]) -> None: ...


class _CheckpointRequest(msgspec.Struct, frozen=True):
    target: RequestTarget
    group: str
    what: str  # ownership, checkpoints


class CheckpointEndpoint(DataPlaneEndpoint):
    """Serves the paths below PREFIX."""

    def __init__(self, *, store: CheckpointService, **options: Any) -> None:
        super().__init__(**options)
        self._store = store
        self._pending_bytes = 0  # of bodies that are being read

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        try:
            async with asyncio.timeout(self._deadline_s):
                return await self._answer_in_time(request)
        except TimeoutError:
            raise OperationTimedOut(
                f"The request was not done within {self._deadline_s:g} seconds."
            ) from None

    async def _answer_in_time(self, exchange: HttpRequest) -> HttpResponse:
        request = _parse(exchange.raw_path)
        exchange.check_headers()
        check_method(exchange.method, _METHODS)
        grant = self._authorize(exchange, request.target, Right.LISTEN)
        hub = self._broker.hub(grant.namespace, request.target.hub)
        group = hub.group(request.group)
        if exchange.method == "GET":
            return self._list(hub, group, request.what)
        body = await self._body(exchange)
        hub.group(request.group)  # it may have been deleted while the body arrived
        if request.what == "checkpoints":
            return await self._save(hub, group, body)
        return await self._claim(hub, group, body)

    def _list(self, hub: HubRuntime, group: str, what: str) -> HttpResponse:
        if what == "checkpoints":
            return _json_response(CheckpointList(self._store.checkpoints(hub.entity.id, group)))
        return _json_response(OwnershipList(self._store.ownerships(hub.entity.id, group)))

    async def _claim(self, hub: HubRuntime, group: str, body: bytes) -> HttpResponse:
        claims = decode_json(_CLAIMS, body, "The body").claims
        _check_count(len(claims))
        for claim in claims:
            hub.partition_index(claim.partition_id)
            _check_text("owner_id", claim.owner_id, least=0)
            if claim.etag is not None:
                _check_text("etag", claim.etag)
        return _json_response(OwnershipList(await self._store.claim(hub.entity.id, group, claims)))

    async def _save(self, hub: HubRuntime, group: str, body: bytes) -> HttpResponse:
        checkpoints = decode_json(_CHECKPOINTS, body, "The body").checkpoints
        _check_count(len(checkpoints))
        for checkpoint in checkpoints:
            hub.partition_index(checkpoint.partition_id)
            _check_text("offset", checkpoint.offset)
            if not -1 <= checkpoint.sequence_number <= _SEQUENCE_NUMBER_MAX:
                raise ArgumentOutOfRange(
                    f"The sequence number {checkpoint.sequence_number} is out of range: "
                    f"-1 to {_SEQUENCE_NUMBER_MAX} are allowed."
                )
        await self._store.save(hub.entity.id, group, checkpoints)
        return HttpResponse(204)

    async def _body(self, exchange: HttpRequest) -> bytes:
        bytes_max = limits.CHECKPOINT_BODY_BYTES_MAX
        size = exchange.check_length(bytes_max)
        if self._pending_bytes + size > limits.CHECKPOINT_HELD_BYTES_MAX:
            raise ServerBusy(
                "The server is busy: too many checkpoints are on their way. Please wait 4 seconds "
                "and try again."
            )
        self._pending_bytes += size
        try:
            return await exchange.body(bytes_max)
        finally:
            self._pending_bytes -= size


def _json_response(content: msgspec.Struct) -> HttpResponse:
    return HttpResponse(200, [_JSON], msgspec.json.encode(content))


def _parse(raw_path: bytes) -> _CheckpointRequest:
    segments = split_path(raw_path, _SEGMENTS)
    what = segments[-1].lower()
    if len(segments) != _SEGMENTS or what not in ("ownership", "checkpoints"):
        raise NotFound(
            f"There is nothing at this path. '{PREFIX}HUB/GROUP/ownership' and "
            f"'{PREFIX}HUB/GROUP/checkpoints' are, names escaped."
        )
    hub, group = segments[2], segments[3]
    if not group:
        raise ArgumentError("The path has no consumer group.")
    return _CheckpointRequest(build_target(HttpOperation.CHECKPOINTS, [hub]), group, what)


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
