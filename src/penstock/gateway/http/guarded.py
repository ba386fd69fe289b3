"""The guard before an ASGI application: turns of unauthenticated requests, delayed refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.gateway.guard import SLOT, ConnectionSlot, Guard, policy_of
from penstock.model import limits, names

_UNAUTHORIZED = 401
_CLOSE = (b"connection", b"close")


class GuardedApplication:
    """A request of an unauthenticated connection waits for its turn, and its work is measured. An
    application that has verified a token calls `scope[names.AUTHENTICATE]`."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        slot: ConnectionSlot = scope["state"][SLOT]
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        scope[names.AUTHENTICATE] = slot.authenticate

        def guarded_send(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start" and 400 <= message["status"] < 500:
                return self._refuse(scope, slot, message, send)
            return send(message)

        if slot.is_authenticated:
            return self._app(scope, receive, guarded_send)
        return self._in_turn(slot, scope, receive, guarded_send)

    async def _in_turn(
        self, slot: ConnectionSlot, scope: Scope, receive: Receive, send: Send
    ) -> None:
        await slot.budget.turn()
        await slot.budget.measured(self._app(scope, receive, send))

    async def _refuse(
        self, scope: Scope, slot: ConnectionSlot, message: Message, send: Send
    ) -> None:
        if message["status"] == _UNAUTHORIZED:
            delay_ms = self._fail(scope, slot)
            if delay_ms:  # as many wait as there are connections, one of each
                await asyncio.sleep(delay_ms / 1000)
        slot.refused_requests += 1
        if not slot.is_authenticated and slot.refused_requests >= limits.HTTP_REFUSALS_MAX:
            message = {**message, "headers": [*message.get("headers", ()), _CLOSE]}
        await send(message)

    def _fail(self, scope: Scope, slot: ConnectionSlot) -> int:
        token = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        policy = policy_of(token.decode("latin-1"))
        now_ms = self._guard.monotonic_ms()
        return self._guard.auth_delay.fail(policy, slot.address, now_ms=now_ms)
