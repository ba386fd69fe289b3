"""The guard before HTTP applications: turns, delays, and what authenticates a connection."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.auth.sas import sign
from penstock.gateway.guard import SLOT, ConnectionSlot, Guard
from penstock.gateway.http import guarded
from penstock.gateway.http.guarded import GuardedApplication
from penstock.model import limits, names
from penstock.model.clock import ManualClock
from penstock.model.entities import Secret

FREE = limits.BACKOFF_FREE_FAILURES


class Door:
    """Answers each request with the status that it asks for; keeps what was waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waited: list[float] = []
        self.challenge = b"SharedAccessSignature"  # what the endpoint accepts
        self.clock = ManualClock()
        self.guard = Guard(
            asyncio.get_running_loop(),
            clock=self.clock,
        )
        self._app = GuardedApplication(self._answer, self.guard)
        monkeypatch.setattr(guarded, "asyncio", SimpleNamespace(sleep=self._sleep))

    async def _sleep(self, seconds: float) -> None:
        self.waited.append(seconds)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["wanted"] < 400 and scope["is_verified"]:
            scope[names.AUTHENTICATE]()
        headers = [(b"a", b"b")]
        if scope["wanted"] == 401:
            headers.append((b"www-authenticate", self.challenge))
        await send({"type": "http.response.start", "status": scope["wanted"], "headers": headers})
        await send({"type": "http.response.body", "body": b"x"})

    def connect(self, host: str = "192.0.2.1") -> ConnectionSlot:
        slot = self.guard.admit(host)
        assert slot is not None
        return slot

    async def ask(
        self, status: int, slot: ConnectionSlot, token: str = "", kind: str = "http"
    ) -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": kind,
            "wanted": status,
            "is_verified": bool(token),
            "headers": [(b"host", b"h"), (b"authorization", token.encode())],
            "state": {SLOT: slot},
        }
        await self._app(scope, None, send)  # type: ignore[arg-type]  # nothing is received
        assert [message["type"] for message in sent] == [
            "http.response.start",
            "http.response.body",
        ]
        return sent


@pytest.fixture
async def door(monkeypatch: pytest.MonkeyPatch) -> Door:
    return Door(monkeypatch)


def token(policy: str) -> str:
    return sign("sb://h/hub", policy, Secret("guess"), expires_s=2_000_000_000)


async def test_refused_tokens_wait_longer_and_longer(door: Door) -> None:
    slot = door.connect()
    for _ in range(FREE + 3):
        await door.ask(401, slot, token("root"))
    assert door.waited == [0.05, 0.1, 0.2]


async def test_a_good_token_never_waits_and_authenticates_its_connection(door: Door) -> None:
    for _ in range(30):
        await door.ask(401, door.connect(), token("root"))
    door.waited.clear()
    slot = door.connect()
    await door.ask(200, slot)  # without a token: as /metadata/endpoints
    assert not slot.is_authenticated
    await door.ask(201, slot, token("root"))
    assert door.waited == []
    assert slot.is_authenticated


async def test_a_refused_token_of_an_authenticated_connection_waits_as_well(door: Door) -> None:
    slot = door.connect()
    await door.ask(200, slot, token("root"))
    for _ in range(FREE + 1):
        await door.ask(401, slot, token("root"))
    assert door.waited == [0.05]


async def test_policies_and_addresses_wait_apart(door: Door) -> None:
    for _ in range(FREE):
        await door.ask(401, door.connect(), token("root"))
    await door.ask(401, door.connect(), token("other"))
    await door.ask(401, door.connect("192.0.2.2"), token("root"))
    assert door.waited == []
    await door.ask(401, door.connect(), token("root"))
    assert door.waited == [0.05]


async def test_requests_without_a_token_count_as_one_policy(door: Door) -> None:
    for _ in range(FREE + 1):
        await door.ask(401, door.connect())
    assert door.waited == [0.05]


async def test_a_token_type_that_is_not_supported_is_no_guess(door: Door) -> None:
    """DefaultAzureCredential sends a JWT to the data plane, where only SAS tokens are verified."""
    for _ in range(30):
        await door.ask(401, door.connect(), "Bearer a.b.c")
    await door.ask(401, door.connect(), token("root"))  # nothing was counted before
    assert door.waited == []
    for _ in range(FREE):
        await door.ask(401, door.connect(), token("root").replace("Shared", "  sHARED", 1))
    assert door.waited == [0.05]


async def test_a_bearer_token_is_a_guess_where_bearer_tokens_are_verified(door: Door) -> None:
    door.challenge = b'Bearer authorization_uri="https://localhost"'
    for _ in range(FREE + 1):
        await door.ask(401, door.connect(), "bearer a.b.c")
    assert door.waited == [0.05]


async def test_unauthenticated_requests_wait_for_their_turn(door: Door) -> None:
    """And are answered in it, at the pace of the work that they cost."""
    door.clock.step_us = 8000  # each step of a request
    slots = [door.connect() for _ in range(10)]
    asked = [asyncio.create_task(door.ask(404, slot)) for slot in slots]
    for _ in range(10):
        await asyncio.sleep(0)
    assert 0 < sum(task.done() for task in asked) < 10
    known = door.connect()
    known.authenticate()
    await door.ask(201, known)
    for _ in range(100):
        door.clock.advance(100)
        door.guard.work._run()
        await asyncio.sleep(0)
    assert all(task.done() for task in asked)


async def test_known_client_is_told_at_once_what_is_wrong(door: Door) -> None:
    slot = door.connect()
    await door.ask(201, slot, token("root"))
    for _ in range(100):
        answer = await door.ask(413, slot)
        assert answer[0]["headers"] == [(b"a", b"b")]
    assert door.waited == []


async def test_servers_own_troubles_are_told_at_once(door: Door) -> None:
    slot = door.connect()
    for _ in range(100):
        await door.ask(503, slot)
    assert door.waited == []
    assert not slot.is_authenticated


async def test_connection_of_a_stranger_ends_after_so_many_refusals(door: Door) -> None:
    slot = door.connect()
    for _ in range(limits.HTTP_REFUSALS_MAX - 1):
        answer = await door.ask(404, slot)
        assert answer[0]["headers"] == [(b"a", b"b")]
    last = await door.ask(404, slot)
    assert last[0]["headers"] == [(b"a", b"b"), (b"connection", b"close")]


async def test_a_connection_that_has_cost_half_of_its_budget_ends_after_its_answer(
    door: Door,
) -> None:
    """A scraper of /metrics or /health that keeps its connection is not cut off in an answer."""
    slot, authenticated = door.connect(), door.connect()
    authenticated.authenticate()
    answer = await door.ask(200, slot)
    assert answer[0]["headers"] == [(b"a", b"b")]
    for each in (slot, authenticated):
        each.budget.charge(limits.WORK_UNAUTHENTICATED_US_MAX // 2 + 1, 0)
    answer = await door.ask(200, slot)
    assert answer[0]["headers"] == [(b"a", b"b"), (b"connection", b"close")]
    answer = await door.ask(200, authenticated)
    assert answer[0]["headers"] == [(b"a", b"b")]


async def test_websockets_pass(door: Door) -> None:
    for _ in range(100):
        await door.ask(401, door.connect(), kind="websocket")
    assert door.waited == []
