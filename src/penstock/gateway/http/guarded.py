"""The guard in front of an ASGI application: unauthenticated requests wait for their turn, and
refusals are delayed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.gateway.guard import SLOT, ConnectionSlot, Guard, policy_of
from penstock.model import limits, names

_UNAUTHORIZED = 401
_CLOSE = (b"connection", b"close")


class GuardedApplication:
    """A request on an unauthenticated connection waits for its turn, and its work is measured. An
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
            if message["type"] == "http.response.start":
                if 400 <= message["status"] < 500:
                    return self._refuse(scope, slot, message, send)
                if slot.budget.is_nearly_spent:
                    message = _ending(message)
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
        token = _header(scope["headers"], b"authorization")
        if message["status"] == _UNAUTHORIZED and _was_verified(token, message):
            delay_ms = self._fail(token, slot)
            if delay_ms:  # bounded: one request per connection waits
                await asyncio.sleep(delay_ms / 1000)
        slot.refused_requests += 1
        if slot.budget.is_nearly_spent or (
            not slot.is_authenticated and slot.refused_requests >= limits.HTTP_REFUSALS_MAX
        ):
            message = _ending(message)
        await send(message)

    def _fail(self, token: str, slot: ConnectionSlot) -> int:
        now_ms = self._guard.monotonic_ms()
        return self._guard.auth_delay.fail(policy_of(token), slot.address, now_ms=now_ms)


def _ending(answer: Message) -> Message:
    """The start of a response after which the connection is closed."""
    return {**answer, "headers": [*answer.get("headers", ()), _CLOSE]}


def _was_verified(token: str, answer: Message) -> bool:
    """Whether a refused token may have been a guess at a key. A token of another scheme than the
    response asks for, such as a JWT on the data plane, was not verified. A missing token counts as
    a guess without a policy."""
    challenge = _header(answer.get("headers", ()), b"www-authenticate")
    return not token or not challenge or _scheme(token) == _scheme(challenge)


def _scheme(text: str) -> str:
    return text.strip().partition(" ")[0].lower()


def _header(headers: Iterable[tuple[bytes, bytes]], header: bytes) -> str:
    return next((value.decode("latin-1") for name, value in headers if name == header), "")
