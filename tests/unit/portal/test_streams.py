"""Streams end cleanly, however they end; shared answers are asked for once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from decimal import Decimal
from typing import Any

import pytest

from penstock.management.client import ManagementClient
from penstock.model.clock import ManualClock
from penstock.model.errors import ConfigurationError, NotFound
from penstock.model.usage import PriceList
from penstock.portal.service_client import TTL_MS, PortalServiceClient
from penstock.portal.settings import PortalSettings, from_environ, to_environ
from penstock.portal.streams import ServerSentEvents, encode_server_sent_event


class Source:
    """Sends twice, then waits; closing it takes several turns of the loop."""

    def __init__(self, *, endless: bool) -> None:
        self.endless = endless
        self.is_closed = False

    async def lines(self) -> AsyncGenerator[bytes, None]:
        try:
            yield b"one"
            yield b"two"
            if self.endless:
                await asyncio.Event().wait()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            self.is_closed = True


async def streamed(source: Source, *, leave: bool) -> list[bytes]:
    sent: list[bytes] = []
    both = asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        if sent.count(b"two"):
            both.set()

    async def receive() -> dict[str, str]:
        if leave:
            await both.wait()
        else:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async with asyncio.timeout(10):
        await ServerSentEvents(source.lines())({"type": "http"}, receive, send)
    return sent


async def test_visitor_who_leaves_closes_the_source_to_its_end() -> None:
    source = Source(endless=True)
    assert (await streamed(source, leave=True))[:3] == [b"", b"one", b"two"]
    assert source.is_closed


async def test_source_that_ends_ends_the_answer() -> None:
    source = Source(endless=False)
    assert await streamed(source, leave=False) == [b"", b"one", b"two", b""]
    assert source.is_closed


def test_text_cannot_end_an_event_of_the_stream() -> None:
    made = encode_server_sent_event("rows", {"text": "a\n\nevent: forged\r\ndata: 1\u2028"})
    assert made.count(b"\n") == 3
    assert made.endswith(b"\n\n")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def backend(clock: ManualClock) -> Iterator[PortalServiceClient]:
    settings = PortalSettings(admin_url="http://127.0.0.1:9", token_file="/t", secret="s")
    backend = PortalServiceClient(settings, clock)
    yield backend
    backend.close()


async def test_ten_tabs_ask_once_until_the_answer_is_old(
    backend: PortalServiceClient, clock: ManualClock
) -> None:
    asked: list[str | None] = []

    def work(client: ManagementClient) -> int:
        asked.append(client.on_behalf_of)
        return len(asked)

    assert await asyncio.gather(*(backend.get_shared("key", work) for _ in range(10))) == [1] * 10
    clock.advance(TTL_MS)
    assert await backend.get_shared("key", work) == 2
    backend.forget("key")
    assert await backend.get_shared("key", work) == 3
    assert set(asked) == {"viewer portal"}


async def test_failure_is_not_kept(backend: PortalServiceClient) -> None:
    answers: Iterator[str | NotFound] = iter([NotFound("not yet"), "there"])

    def work(client: ManagementClient) -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(NotFound):
        await backend.get_shared("key", work)
    assert await backend.get_shared("key", work) == "there"


def test_settings_come_from_the_environment_and_show_no_secret() -> None:
    settings = PortalSettings(
        admin_url="http://localhost:1",
        token_file="/data/portal.token",
        secret="hunter3",
        sockets=(5, 6),
        prices=PriceList(currency="EUR", egress_gb=Decimal("0.123456789")),
    )
    assert from_environ(to_environ(settings)) == settings
    assert "hunter" not in repr(settings)
    with pytest.raises(ConfigurationError, match="penstock serve"):
        from_environ({})
