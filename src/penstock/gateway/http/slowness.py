"""Refusals that are not given at once: to tokens that fail (design.md 7), and to peers that nobody
knows and that only ask for what is not there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.auth.backoff import Backoff, policy_of
from penstock.gateway.admission import PLACE, Place
from penstock.model import limits, names

log = logging.getLogger("penstock.http")

_UNAUTHORIZED = 401
_CLOSE = (b"connection", b"close")


class SlowRefusals:
    """Between the server and an application: sees each answer's status. One that is no refusal
    makes its connection a known one, and is never kept waiting."""

    def __init__(self, app: ASGIApp, backoff: Backoff) -> None:
        self._app = app
        self._backoff = backoff

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        place: Place | None = scope["state"].get(PLACE)
        if scope["type"] != "http" or place is None:
            return self._app(scope, receive, send)

        def judged(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                status = message["status"]
                if status < 400:
                    place.known()
                elif status < 500:
                    return self._refuse(scope, place, message, send)
            return send(message)

        return self._app(scope, receive, judged)

    async def _refuse(self, scope: Scope, place: Place, message: Message, send: Send) -> None:
        delay_ms = 0
        if message["status"] == _UNAUTHORIZED:
            delay_ms = self._failed(scope, place)
        elif place.is_stranger and place.refusals >= limits.HTTP_REFUSALS_FREE:
            delay_ms = limits.HTTP_REFUSAL_MS
        if delay_ms:  # as many wait as there are connections, one of each
            await asyncio.sleep(delay_ms / 1000)
        place.refusals += 1
        if place.is_stranger and place.refusals >= limits.HTTP_REFUSALS_MAX:
            message = {**message, "headers": [*message.get("headers", ()), _CLOSE]}
        await send(message)

    def _failed(self, scope: Scope, place: Place) -> int:
        token = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        policy = policy_of(token.decode("latin-1"))
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        delay_ms = self._backoff.failed(policy, place.address, now_ms=now_ms)
        log.warning(
            "token refused: address=%s policy=%s wait_ms=%d",
            place.address,
            names.shown(policy) or "-",
            delay_ms,
        )
        return delay_ms
