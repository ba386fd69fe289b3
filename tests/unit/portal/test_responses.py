"""Streams end cleanly, however they end; shared answers are asked for once."""

from __future__ import annotations

import asyncio
import csv
import gzip
import io
from collections.abc import AsyncGenerator, Iterator
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from penstock.amqp.encoder import encode
from penstock.formats.event_view import EventView
from penstock.kernels import Columns
from penstock.management.client import ManagementClient
from penstock.model.clock import ManualClock
from penstock.model.errors import ArgumentError, ConfigurationError, NotFound
from penstock.model.usage import PriceList
from penstock.portal.pages.events import compile_search
from penstock.portal.responses import (
    ServerSentEvents,
    download_response,
    encode_server_sent_event,
)
from penstock.portal.service_client import TTL_MS, PortalServiceClient
from penstock.portal.settings import PortalSettings, from_environ, to_environ


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

    assert await asyncio.gather(*(backend.read(work) for _ in range(10))) == [1] * 10
    clock.advance(TTL_MS)
    assert await backend.read(work) == 2
    backend._shared.clear()
    assert await backend.read(work) == 3
    assert set(asked) == {"viewer portal"}


async def test_failure_is_not_kept(backend: PortalServiceClient) -> None:
    answers: Iterator[str | NotFound] = iter([NotFound("not yet"), "there"])

    def work(client: ManagementClient) -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(NotFound):
        await backend.read(work)
    assert await backend.read(work) == "there"


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


HOSTILE = (
    "=cmd|'/c calc'!A1",
    " +1",
    "@SUM(A1)",
    "\t=1",
    "\uff1d1",
    'a"b,c\r\nd',
    "\x1b[31mred\x7f\x9b",
    "\u202eturned\u200b",
    "tag\U000e0041",
    "\x00",
)


def view(body: bytes, **properties: object) -> EventView:
    encoded = encode(properties) if properties else b""
    columns = Columns([1], ["10"], [0], [None], [body], [encoded], [b""], [b""], b"\x75")
    return EventView(columns, "0", 0)


def test_csv_has_no_formula_and_keeps_its_cells() -> None:
    events = [view(text.encode(), **{"=1": text}) for text in HOSTILE] + [view(b"\xff\xfe")]
    written = bytes(download_response(events, "h", "csv").body).decode("utf-8-sig")
    read = list(csv.DictReader(io.StringIO(written, newline="")))
    assert len(read) == len(events)
    for cell in (cell for row in read for cell in row.values()):
        assert not cell.lstrip().startswith(("=", "+", "-", "@", "\uff1d")), cell
        assert all(c.isprintable() or c in "\r\n\t" for c in cell)
    assert read[0]["body"] == "'" + HOSTILE[0]
    assert read[5]["body"] == HOSTILE[5]
    assert read[-1]["body_base64"] == "//4="


def test_avro_file_is_read_by_another_library() -> None:
    event = view(b"one", a=1, b="x", c=1.5, d=b"\x00")
    records: list[Any] = list(
        fastavro.reader(io.BytesIO(download_response([event], "h", "avro").body))
    )
    assert records[0]["Body"] == b"one"
    assert records[0]["Properties"] == {"a": 1, "b": "x", "c": 1.5, "d": b"\x00"}
    assert list(fastavro.reader(io.BytesIO(download_response([], "h", "avro").body))) == []


def test_file_is_named_after_the_hub_and_nothing_else() -> None:
    response = download_response([], 'a/b"\r\nx: \u00e9', "csv")
    assert response.headers["content-disposition"] == 'attachment; filename="a-b---x---.csv"'
    unknown = download_response([], "h", "exe")
    assert unknown.headers["content-disposition"].endswith('h.jsonl"')


def test_search_needs_all_that_it_names() -> None:
    is_match = compile_search("needle", "json.word == needle")
    assert is_match is not None
    assert is_match(view(gzip.compress(b'{"word": "needle"}')))
    assert not is_match(view(b'{"word": "other"}', kind="needle"))
    assert compile_search("", "  ") is None
    for text, expression in (("x" * 1001, ""), ("", "x" * 1001), ("", "matches(body, 'a')")):
        with pytest.raises(ArgumentError):
            compile_search(text, expression)
