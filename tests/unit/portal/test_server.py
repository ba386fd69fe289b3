"""Connections that are held open keep no visitor out: deadlines, and limits per address."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penstock.io.http_protocol import RequestStage
from penstock.model import limits
from penstock.model.clock import SystemClock
from penstock.portal import server as portal_server
from penstock.portal.application import PortalApplication
from penstock.portal.server import (
    CONNECTIONS_PER_ADDRESS_MAX,
    ConnectionLimits,
    PortalServer,
    _config,
)
from penstock.service.certificates import prepare_certificates
from penstock.service.config.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.portal.settings import PortalSettings

WAIT_S = 30
Ask = Callable[..., Any]


class Held:
    """A connection without a socket."""

    def __init__(self, key: str = "192.0.2.1") -> None:
        self.key = key
        self.is_busy = False
        self.is_open = True

    def abort(self) -> None:
        self.is_open = False


def admit(limits: ConnectionLimits, connection: Any) -> bool:
    return limits.admit(connection)


def test_new_connection_takes_the_place_of_the_oldest_that_is_not_busy() -> None:
    limits = ConnectionLimits(per_address=3)
    held = [Held() for _ in range(3)]
    assert all(admit(limits, each) for each in held)
    held[0].is_busy = True
    assert admit(limits, Held())
    assert [each.is_open for each in held] == [True, False, True]
    assert admit(limits, Held("192.0.2.2"))  # another address is not touched
    assert [each.is_open for each in held] == [True, False, True]


def test_connections_above_the_limits_are_few_and_their_oldest_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(portal_server, "SURPLUS_MAX", 2)
    limits = ConnectionLimits(per_address=2)
    busy = [Held(), Held()]
    for each in busy:
        assert admit(limits, each)
        each.is_busy = True
    surplus = [Held() for _ in range(4)]
    assert not any(admit(limits, each) for each in surplus)
    assert [each.is_open for each in surplus] == [False, False, True, True]
    assert all(each.is_open for each in busy)
    for each in (*busy, *surplus):
        limits.leave(each)  # type: ignore[arg-type]
    assert admit(limits, Held())


def test_full_server_takes_the_place_from_the_address_with_the_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(portal_server, "CONNECTIONS_MAX", 5)
    limits = ConnectionLimits(per_address=4)
    many = [Held("192.0.2.1") for _ in range(4)]
    one = Held("192.0.2.2")
    assert all(admit(limits, each) for each in (*many, one))
    assert admit(limits, Held("192.0.2.3"))
    assert [each.is_open for each in many] == [False, True, True, True]
    assert one.is_open


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[PortalSettings], Any]]:
    """`await serve(settings)`: the portal on a free port; the port."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(settings: PortalSettings) -> int:
            application = PortalApplication(settings, SystemClock())
            stack.callback(application.close)
            listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
            running = PortalServer(_config(application, settings), ConnectionLimits())
            task = asyncio.create_task(running._serve([listening]))

            async def stop() -> None:
                running.stop()
                await task

            stack.push_async_callback(stop)
            return int(listening.getsockname()[1])

        yield start


async def ask(port: int, path: str, tls: ssl.SSLContext | None = None) -> bytes:
    """The whole answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), WAIT_S)
    writer.close()
    return answer


@contextlib.asynccontextmanager
async def half_open(
    port: int, count: int, said: bytes
) -> AsyncIterator[list[asyncio.StreamReader]]:
    made = []
    try:
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            made.append((reader, writer))
            writer.write(said)
        yield [reader for reader, _ in made]
    finally:
        for _, writer in made:
            writer.close()


async def test_five_hundred_half_open_connections_keep_no_visitor_out(
    serve: Any, settings: PortalSettings
) -> None:
    """All from the visitor's own address, and without waiting for a deadline."""
    port = await serve(settings)
    async with half_open(port, 510, b"GET / HTTP/1.1\r\nHost: localhost\r\n") as readers:
        assert (await ask(port, "/signin")).startswith(b"HTTP/1.1 200")
        assert (await ask(port, "/alive")).startswith(b"HTTP/1.1 200")
        closed = 0
        for reader in readers[: 510 - CONNECTIONS_PER_ADDRESS_MAX]:
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
            closed += 1
        assert closed == 510 - CONNECTIONS_PER_ADDRESS_MAX


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        (RequestStage.HEAD, b""),
        (RequestStage.HEAD, b"GET / HTTP/1.1\r\nHost: localhost\r\n"),
        (
            RequestStage.BODY,
            b"POST /signin HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx",
        ),
    ],
    ids=["silent", "head", "body"],
)
async def test_head_and_body_have_a_deadline(
    serve: Any,
    settings: PortalSettings,
    monkeypatch: pytest.MonkeyPatch,
    stage: RequestStage,
    said: bytes,
) -> None:
    if stage is RequestStage.HEAD:
        monkeypatch.setattr(limits, "HTTP_HEAD_DEADLINE_S", 0.05)
    else:
        monkeypatch.setattr(limits, "HTTP_UNAUTHENTICATED_BODY_DEADLINE_S", 0.05)
    port = await serve(settings)
    async with half_open(port, 1, said) as (reader,):
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), WAIT_S) == b""


async def test_head_that_is_too_large_is_refused(serve: Any, settings: PortalSettings) -> None:
    port = await serve(settings)
    for said in (
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 200,
        b"GET / HTTP/1.1\r\nx: " + b"y" * 99_000,
    ):
        async with half_open(port, 1, said) as (reader,):
            with contextlib.suppress(ConnectionError):
                answer = await asyncio.wait_for(reader.read(), WAIT_S)
                assert answer == b"" or answer.startswith(b"HTTP/1.1 400")


async def test_above_the_limits_alive_is_answered_and_the_rest_is_refused(
    serve: Any, settings: PortalSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ConnectionLimits, "_close_one", lambda *_: False)  # all are busy
    monkeypatch.setattr(portal_server, "CONNECTIONS_MAX", 3)
    port = await serve(settings)
    async with half_open(port, 3, b""):
        assert (await ask(port, "/alive")).startswith(b"HTTP/1.1 200")
        assert (await ask(port, "/signin")).startswith(b"HTTP/1.1 503")
    assert (await ask(port, "/alive")).startswith(b"HTTP/1.1 200")


async def test_handshakes_are_counted_and_have_a_deadline(
    serve: Any, settings: PortalSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = prepare_certificates(tmp_path / "tls", Settings(), now_ms=1_700_000_000_000)
    settings = msgspec.structs.replace(
        settings, certificate_file=str(made.certificate_file), key_file=str(made.key_file)
    )
    port = await serve(settings)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    async with half_open(port, CONNECTIONS_PER_ADDRESS_MAX + 10, b"\x16") as readers:
        assert (await ask(port, "/signin", tls)).startswith(b"HTTP/1.1 200")
        for reader in readers[:10]:  # the oldest ones made room
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
    monkeypatch.setattr(portal_server, "TLS_DEADLINE_S", 0.05)
    async with half_open(port, 1, b"\x16") as (reader,):
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
