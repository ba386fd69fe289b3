"""Refusals over HTTP: which wait, for how long, and what makes a connection a known one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.auth import sign
from penstock.auth.backoff import Backoff
from penstock.gateway.admission import PLACE, Admission, Place
from penstock.gateway.http import slowness
from penstock.gateway.http.slowness import SlowRefusals
from penstock.model import limits
from penstock.model.clock import ManualClock
from penstock.model.entities import Secret

FREE = limits.BACKOFF_FREE_FAILURES


class Door:
    """Answers each request with the status that it asks for; keeps what was waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waited: list[float] = []
        self.admission = Admission(ManualClock().monotonic_ms)
        self.backoff = Backoff()
        self._app = SlowRefusals(self._answer, self.backoff)
        here = SimpleNamespace(sleep=self._sleep, get_running_loop=asyncio.get_running_loop)
        monkeypatch.setattr(slowness, "asyncio", here)

    async def _sleep(self, seconds: float) -> None:
        self.waited.append(seconds)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        head = {"type": "http.response.start", "status": scope["wanted"], "headers": [(b"a", b"b")]}
        await send(head)
        await send({"type": "http.response.body", "body": b"x"})

    def place(self, host: str = "192.0.2.1") -> Place:
        place = self.admission.enter(host)
        assert place is not None
        return place

    async def ask(
        self, status: int, place: Place | None, token: str = "", kind: str = "http"
    ) -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": kind,
            "wanted": status,
            "headers": [(b"host", b"h"), (b"authorization", token.encode())],
            "state": {PLACE: place},
        }
        await self._app(scope, None, send)  # type: ignore[arg-type]  # nothing is received
        assert [message["type"] for message in sent] == [
            "http.response.start",
            "http.response.body",
        ]
        return sent


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Door:
    return Door(monkeypatch)


def token(policy: str) -> str:
    return sign("sb://h/hub", policy, Secret("guess"), expires_s=2_000_000_000)


async def test_refused_tokens_wait_longer_and_longer(door: Door) -> None:
    place = door.place()
    for _ in range(FREE + 3):
        await door.ask(401, place, token("root"))
    assert door.waited == [0.05, 0.1, 0.2]


async def test_good_token_never_waits_and_makes_its_connection_known(door: Door) -> None:
    for _ in range(30):
        await door.ask(401, door.place(), token("root"))
    door.waited.clear()
    place = door.place()
    assert place.is_stranger
    await door.ask(201, place, token("root"))
    assert door.waited == []
    assert not place.is_stranger


async def test_refused_token_of_a_known_connection_waits_as_well(door: Door) -> None:
    place = door.place()
    await door.ask(200, place)
    for _ in range(FREE + 1):
        await door.ask(401, place, token("root"))
    assert door.waited == [0.05]


async def test_policies_and_addresses_wait_apart(door: Door) -> None:
    for _ in range(FREE):
        await door.ask(401, door.place(), token("root"))
    await door.ask(401, door.place(), token("other"))
    await door.ask(401, door.place("192.0.2.2"), token("root"))
    assert door.waited == []
    await door.ask(401, door.place(), token("root"))
    assert door.waited == [0.05]


async def test_requests_without_a_token_count_as_one_policy(door: Door) -> None:
    for _ in range(FREE + 1):
        await door.ask(401, door.place())
    assert door.waited == [0.05]


async def test_stranger_that_asks_for_what_is_not_there_waits_after_a_few(door: Door) -> None:
    place = door.place()
    for _ in range(limits.HTTP_REFUSALS_FREE + 2):
        await door.ask(404, place)
    assert door.waited == [limits.HTTP_REFUSAL_MS / 1000] * 2


async def test_known_client_is_told_at_once_what_is_wrong(door: Door) -> None:
    place = door.place()
    await door.ask(201, place)
    for _ in range(100):
        answer = await door.ask(413, place)
        assert answer[0]["headers"] == [(b"a", b"b")]
    assert door.waited == []


async def test_servers_own_troubles_are_told_at_once(door: Door) -> None:
    place = door.place()
    for _ in range(100):
        await door.ask(503, place)
    assert door.waited == []
    assert place.is_stranger


async def test_connection_of_a_stranger_ends_after_so_many_refusals(door: Door) -> None:
    place = door.place()
    for _ in range(limits.HTTP_REFUSALS_MAX - 1):
        answer = await door.ask(404, place)
        assert answer[0]["headers"] == [(b"a", b"b")]
    last = await door.ask(404, place)
    assert last[0]["headers"] == [(b"a", b"b"), (b"connection", b"close")]


async def test_websockets_and_connections_without_a_place_pass(door: Door) -> None:
    for _ in range(100):
        await door.ask(401, door.place(), kind="websocket")
        await door.ask(401, None)
    assert door.waited == []


async def test_each_failure_is_written_down_without_the_token(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    await door.ask(401, door.place(), token("root"))
    assert "token refused: address=192.0.2.1 policy=root wait_ms=0" in caplog.text
    assert "sig=" not in caplog.text
