"""HTTP connections and their places, pipelines, and peers that take nothing of their answers."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

import pytest

from penstock.gateway.guard import ConnectionSlot, Guard
from penstock.gateway.http.server import HttpServer
from penstock.gateway.transport import ClosingTransport
from penstock.model import limits
from penstock.model.clock import ManualClock

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


class Transport:
    """What a connection writes to; over TLS if told."""

    def __init__(self, *, secure: bool = False) -> None:
        self.written = b""
        self.is_reading = True
        self.closes = 0
        self.gone = asyncio.Event()
        self.protocol: Any = None
        self._secure = secure

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closes += 1
        self.abort()

    def abort(self) -> None:
        if not self.gone.is_set():
            self.gone.set()
            if self.protocol is not None:
                self.protocol.connection_lost(None)

    def is_closing(self) -> bool:
        return self.gone.is_set()

    def get_extra_info(self, name: str) -> Any:
        return object() if self._secure and name == "ssl_object" else None

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True


class Door:
    """Answers when it is told to; begins its answer at once if it `streams`."""

    def __init__(self, status: int = 200, *, streams: bool = False) -> None:
        self.answers = asyncio.Event()
        self.called = 0
        clock, loop = ManualClock(), asyncio.get_running_loop()
        self.guard = Guard(
            loop,
            clock=clock,
        )
        self._status = status
        self._streams = streams
        self._door = HttpServer(self._app, loop, guard=self.guard)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.called += 1
        if not self._streams:
            await self.answers.wait()
        head = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": self._status, "headers": head})
        await self.answers.wait()
        await send({"type": "http.response.body", "body": b""})

    def connect(self, *, secure: bool = False) -> tuple[Transport, ConnectionSlot]:
        slot = self.guard.admit("192.0.2.1")
        assert slot is not None
        transport = Transport(secure=secure)
        transport.protocol = self._door.connection(slot)
        transport.protocol.connection_made(transport)
        return transport, slot


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_pipeline_is_bounded() -> None:
    door = Door()
    transport, _ = door.connect()
    transport.protocol.data_received(GET * (limits.HTTP_PIPELINED_MAX + 1))
    await turns()
    assert not transport.gone.is_set()
    transport.protocol.data_received(GET)
    assert transport.gone.is_set()
    await turns()
    assert transport.written == b""
    assert door.called == 1


async def test_an_answer_that_exceeds_the_budget_is_finished_and_ends_the_connection() -> None:
    """`/metrics` of thousands of hubs costs more than an unauthenticated connection may."""
    door = Door(streams=True)
    transport, slot = door.connect()
    transport.protocol.data_received(GET * 2)
    await turns()
    slot.budget.charge(limits.WORK_UNAUTHENTICATED_US_MAX + 1, 0)
    assert not transport.gone.is_set()
    transport.protocol.data_received(GET)  # is not read any more
    door.answers.set()
    await turns()
    assert transport.written.count(b"HTTP/1.1 200 OK") == 1
    assert transport.gone.is_set()
    assert door.called == 1
    assert slot.is_suspect


@pytest.mark.parametrize("sent", [b"", GET[:-2], GET], ids=["nothing", "a head", "a request"])
async def test_a_request_that_exceeds_the_budget_before_its_answer_is_cut_off(sent: bytes) -> None:
    door = Door()
    transport, slot = door.connect()
    transport.protocol.data_received(sent)
    await turns()
    slot.budget.charge(limits.WORK_UNAUTHENTICATED_US_MAX + 1, 0)
    assert transport.gone.is_set()


async def test_pipeline_within_the_bound_is_answered() -> None:
    door = Door()
    door.answers.set()
    transport, _ = door.connect()
    transport.protocol.data_received(GET * limits.HTTP_PIPELINED_MAX)
    await turns(200)
    assert transport.written.count(b"HTTP/1.1 200 ") == limits.HTTP_PIPELINED_MAX
    transport.close()


# --- one answer for each request, whatever the parser makes of it -------------------------------

CHUNKED = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_body_that_cannot_be_read_has_one_answer() -> None:
    door = Door()
    transport, _ = door.connect()
    transport.protocol.data_received(CHUNKED + b"no length\r\n" + GET)
    door.answers.set()
    await turns()
    assert transport.written.startswith(b"HTTP/1.1 400 ")
    assert transport.written.count(b"HTTP/1.1 ") == 1
    assert transport.gone.is_set()
    assert door.called == 1


async def test_body_that_goes_wrong_after_its_answer_has_no_second_one() -> None:
    door = Door()
    door.answers.set()
    transport, _ = door.connect()
    transport.protocol.data_received(CHUNKED)
    await turns()
    assert transport.written.startswith(b"HTTP/1.1 200 ")
    transport.protocol.data_received(b"no length\r\n" + GET)
    await turns()
    assert transport.written.count(b"HTTP/1.1 ") == 1
    assert transport.gone.is_set()


@pytest.mark.parametrize("bad", [b"nonsense\r\n\r\n", CHUNKED + b"no length\r\n"])
@pytest.mark.parametrize("whole", [1, 3])
async def test_requests_before_a_bad_one_are_answered_and_end_the_connection(
    bad: bytes, whole: int
) -> None:
    door = Door()
    transport, _ = door.connect()
    transport.protocol.data_received(GET * whole + bad)
    transport.protocol.data_received(GET)
    await turns()
    assert not transport.gone.is_set()
    door.answers.set()
    await turns(100)
    assert transport.written.count(b"HTTP/1.1 200 ") == whole
    assert transport.written.count(b"HTTP/1.1 ") == whole
    assert transport.gone.is_set()
    assert door.called == whole


@pytest.mark.parametrize("hosts", [b"", b"Host: a\r\nHost: b\r\n"])
async def test_request_has_one_host(hosts: bytes) -> None:
    door = Door()
    transport, _ = door.connect()
    transport.protocol.data_received(b"GET / HTTP/1.1\r\n" + hosts + b"\r\n")
    assert transport.written.startswith(b"HTTP/1.1 400 ")
    assert transport.gone.is_set()
    await turns()
    assert door.called == 0


async def test_upgrade_with_a_body_or_behind_others_is_refused() -> None:
    head = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    transport, _ = Door().connect()
    transport.protocol.data_received(head + b"Content-Length: 9\r\n\r\n")
    assert transport.written.startswith(b"HTTP/1.1 400 ")
    assert transport.gone.is_set()
    door = Door()
    transport, _ = door.connect()
    transport.protocol.data_received(GET + head + b"\r\n")
    door.answers.set()
    await turns()
    assert transport.written.startswith(b"HTTP/1.1 200 ")
    assert transport.written.count(b"HTTP/1.1 ") == 1
    assert transport.gone.is_set()


async def test_peer_that_takes_nothing_of_its_answer_is_cut_off_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "HTTP_WRITE_DEADLINE_S", 0.01)
    transport, _ = Door().connect()
    transport.protocol.pause_writing()
    await asyncio.wait_for(transport.gone.wait(), 10)


async def test_peer_that_reads_again_is_not_cut_off() -> None:
    transport, _ = Door().connect()
    transport.protocol.pause_writing()
    timer = transport.protocol._write_timer
    transport.protocol.resume_writing()
    assert timer.cancelled()
    transport.protocol.pause_writing()
    timer = transport.protocol._write_timer
    transport.close()
    assert timer.cancelled()


async def test_place_is_left_when_the_connection_is_lost() -> None:
    door = Door()
    transport, slot = door.connect()
    assert len(door.guard.addresses.unauthenticated) == 1
    transport.close()
    assert len(door.guard.addresses.unauthenticated) == 0
    slot.release()


@pytest.mark.parametrize("status", [200, 404, 401])
async def test_no_status_authenticates_a_connection(status: int) -> None:
    """A 200 that needs no token did before (docs/explanation/security.md)."""
    door = Door(status)
    door.answers.set()
    transport, slot = door.connect()
    transport.protocol.data_received(GET)
    await turns()
    assert b"HTTP/1.1" in transport.written
    assert not slot.is_authenticated
    transport.close()


@pytest.mark.parametrize("authenticated", [True, False])
async def test_heads_that_an_unauthenticated_peer_makes_us_keep_are_bounded(
    authenticated: bool,
) -> None:
    door = Door()
    transport, slot = door.connect()
    if authenticated:
        slot.authenticate()
    head = GET[:-2] + b"X: " + b"x" * 30_000 + b"\r\n\r\n"
    for _ in range(3):
        transport.protocol.data_received(head)
    assert not transport.gone.is_set()
    transport.protocol.data_received(head)
    assert transport.gone.is_set() is not authenticated
    transport.close()


# --- closing ------------------------------------------------------------------------------------


def polite(transport: Transport, slot: ConnectionSlot | None) -> ClosingTransport:
    inner: Any = transport
    return ClosingTransport(inner, slot, asyncio.get_running_loop())


async def test_strangers_tls_connection_is_not_read_after_goodbye() -> None:
    """uvloop would go on reading until the peer says goodbye too."""
    door = Door()
    _, slot = door.connect()
    transport = Transport(secure=True)
    connection = polite(transport, slot)
    connection.write(b"no")
    connection.close()
    assert transport.written == b"no"
    assert transport.closes == 0
    assert not transport.is_reading
    assert connection.is_closing()
    connection.resume_reading()
    assert not transport.is_reading
    await asyncio.wait_for(transport.gone.wait(), 10)


@pytest.mark.parametrize("secure", [True, False])
async def test_known_peers_connection_is_closed_as_tls_wants_it(secure: bool) -> None:
    _, slot = Door().connect()
    slot.authenticate()
    transport = Transport(secure=secure)
    polite(transport, slot).close()
    assert transport.closes == 1


async def test_plain_connections_are_closed_at_once() -> None:
    _, slot = Door().connect()
    transport = Transport()
    polite(transport, slot).close()
    assert transport.closes == 1


async def test_peer_that_misbehaved_is_treated_as_a_stranger() -> None:
    _, slot = Door().connect()
    slot.authenticate()
    slot.penalize()
    transport = Transport(secure=True)
    polite(transport, slot).close()
    assert transport.closes == 0
    await asyncio.wait_for(transport.gone.wait(), 10)


async def test_connection_that_is_lost_keeps_nothing_of_its_transport() -> None:
    """256 KB each under TLS, until somebody collects the cycle."""
    transport, slot = Door().connect(secure=True)
    protocol, gone = transport.protocol, weakref.ref(transport)
    transport.close()
    transport.protocol = None
    del transport
    assert gone() is None
    protocol.transport.write(b"into the void")
    assert protocol.transport.is_closing()
    slot.evict()
