"""Listening sockets: who gets through to the protocol, and when."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from penstock.gateway.guard import AddressLimits, ConnectionSlot, Guard
from penstock.gateway.listener import Listeners
from penstock.model import limits

DEADLINE_S = 10.0


class Echo(asyncio.Protocol):
    """Says hello and repeats what it hears."""

    def __init__(self, house: House, slot: ConnectionSlot) -> None:
        self._house = house
        self.slot = slot

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._house.connected.append(self)
        transport.write(b"hello")

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.slot.release()
        self._house.lost.set()


class House:
    def __init__(self, **bounds: int) -> None:
        loop = asyncio.get_running_loop()
        self.connected: list[Echo] = []
        self.lost = asyncio.Event()
        monotonic_ms = lambda: int(loop.time() * 1000)  # noqa: E731
        self.addresses = AddressLimits(monotonic_ms)
        for name, bound in bounds.items():
            setattr(self.addresses, f"{name}_max", bound)
        self.guard = Guard(loop, addresses=self.addresses)
        self.listeners = Listeners(loop, self.guard, lambda slot: Echo(self, slot))
        self.entered = asyncio.Event()
        self.port = 0
        self._guests: list[asyncio.StreamWriter] = []
        self._admit = self.guard.admit
        self.guard.admit = self._watched  # type: ignore[method-assign]  # to be notified

    def _watched(self, host: str) -> ConnectionSlot | None:
        self.entered.set()
        return self._admit(host)

    async def opened(self, tls: ssl.SSLContext | None = None) -> House:
        self.port = await self.listeners.open("127.0.0.1", 0, tls)
        return self

    async def come(
        self, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(host, self.port, ssl=tls)
        self._guests.append(writer)
        return reader, writer

    async def close(self) -> None:
        await self.listeners.close()
        for writer in self._guests:
            writer.transport.abort()
        for echo in self.connected:
            echo.transport.abort()
        for _ in range(10):
            await asyncio.sleep(0)


MakeHouse = Callable[..., Awaitable[House]]


@pytest.fixture
async def make_house() -> AsyncIterator[MakeHouse]:
    houses: list[House] = []

    async def make(tls: ssl.SSLContext | None = None, **bounds: int) -> House:
        houses.append(await House(**bounds).opened(tls))
        return houses[-1]

    yield make
    for house in houses:
        await house.close()


@pytest.fixture
async def house(make_house: MakeHouse) -> House:
    return await make_house()


async def hear(reader: asyncio.StreamReader, size: int = 5) -> bytes:
    """b"" when the other side is gone."""
    async with asyncio.timeout(DEADLINE_S):
        try:
            return await reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""


async def test_connection_reaches_its_protocol_and_leaves_its_place(house: House) -> None:
    reader, writer = await house.come()
    assert await hear(reader) == b"hello"
    writer.write(b"again")
    assert await hear(reader) == b"again"
    assert len(house.addresses.unauthenticated) == 1
    writer.close()
    await asyncio.wait_for(house.lost.wait(), DEADLINE_S)
    assert len(house.addresses.unauthenticated) == 0


async def test_many_at_once_all_get_through(house: House) -> None:
    met = await asyncio.gather(*(house.come() for _ in range(100)))
    assert [await hear(reader) for reader, _ in met] == [b"hello"] * 100


async def test_address_with_all_its_places_taken_is_turned_away(make_house: MakeHouse) -> None:
    house = await make_house(connections=1)
    first, _ = await house.come()
    assert await hear(first) == b"hello"
    second, _ = await house.come()
    assert await hear(second) == b""


async def test_evicted_stranger_is_cut_off(make_house: MakeHouse) -> None:
    house = await make_house(unauthenticated=1)
    first, _ = await house.come()
    assert await hear(first) == b"hello"
    second, _ = await house.come()
    assert await hear(second) == b"hello"
    assert await hear(first) == b""


async def test_held_connection_is_not_read_before_its_time(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is cut off by who comes later, when there are too many."""
    holding: asyncio.Queue[float] = asyncio.Queue()
    go_on = asyncio.Event()

    async def sleep(seconds: float) -> None:
        if seconds:
            holding.put_nowait(seconds)
            await go_on.wait()

    monkeypatch.setattr(asyncio, "sleep", sleep)
    for _ in range(1000):
        slot = house.guard.admit("127.0.0.1")
        assert slot is not None
        slot.release()
    reader, writer = await house.come()
    held_s = await asyncio.wait_for(holding.get(), DEADLINE_S)
    assert 0.5 < held_s <= limits.HOLD_MS_MAX / 1000
    assert house.connected == []
    _, gone = await house.come()
    await asyncio.wait_for(holding.get(), DEADLINE_S)
    gone.transport.abort()  # it is not let in any more
    go_on.set()
    assert await hear(reader) == b"hello"
    writer.close()
    await asyncio.wait_for(house.lost.wait(), DEADLINE_S)
    assert len(house.connected) == 1
    go_on.clear()
    reader, _ = await house.come()
    await asyncio.wait_for(holding.get(), DEADLINE_S)
    while house.addresses.unauthenticated:
        house.addresses.evict_oldest()
    assert await hear(reader) == b""


async def test_closing_cuts_off_who_is_not_through_yet(
    make_house: MakeHouse, tls_context: ssl.SSLContext
) -> None:
    house = await make_house(tls_context)
    reader, _ = await house.come()  # and not a word of TLS
    await asyncio.wait_for(house.entered.wait(), DEADLINE_S)
    await house.listeners.close()
    assert await hear(reader) == b""
    assert len(house.addresses.unauthenticated) == 0
    with pytest.raises(ConnectionRefusedError):
        await house.come()


async def test_tls_carries_the_protocol_and_garbage_ends_at_once(
    make_house: MakeHouse, tls_context: ssl.SSLContext
) -> None:
    house = await make_house(tls_context)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    reader, _ = await house.come(tls=client)
    assert await hear(reader) == b"hello"
    bad, other = await house.come()
    other.write(b"GET / HTTP/1.1\r\n\r\n")
    while await hear(bad, 1):
        pass
    assert len(house.connected) == 1


async def test_listening_goes_on_when_sockets_run_out(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stranger, _ = await house.come()
    assert await hear(stranger) == b"hello"
    accept = house.listeners._next
    failures = [OSError(errno.EMFILE, "Too many open files"), ConnectionAbortedError()]

    def exhausted(listening: socket.socket) -> Any:
        if failures:
            raise failures.pop()
        return accept(listening)

    monkeypatch.setattr(house.listeners, "_next", exhausted)
    one, two = await asyncio.gather(house.come(), house.come())
    assert [await hear(one[0]), await hear(two[0])] == [b"hello", b"hello"]
    third = await house.come()
    assert await hear(third[0]) == b"hello"
    assert await hear(stranger) == b""  # it made room
    assert "accept failed reason=Too many open files" in caplog.text


async def test_port_that_is_taken_raises_and_leaves_nothing_open(house: House) -> None:
    with pytest.raises(OSError, match="in use") as refused:
        await house.listeners.open("127.0.0.1", house.port, None)
    assert refused.value.errno == errno.EADDRINUSE


async def test_host_name_is_listened_on_at_each_of_its_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = House()
    loop = asyncio.get_running_loop()
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.2", 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    ]

    async def getaddrinfo(*args: object, **fields: object) -> object:
        return found

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    house.port = await house.listeners.open("both", 0, None)
    monkeypatch.undo()
    for host in ("127.0.0.1", "127.0.0.2"):
        reader, _ = await house.come(host)
        assert await hear(reader) == b"hello"
    await house.close()


@pytest.fixture(scope="module")
def tls_context(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    from penstock.service.certificates import development_certificates, server_context

    folder = tmp_path_factory.mktemp("tls")
    files = development_certificates(folder, ["localhost", "127.0.0.1"], now_ms=1_790_000_000_000)
    return server_context(files)


async def test_closing_ends_nobody_behind_the_back_of_its_protocol() -> None:
    """The handshake is through, its task has not heard of it yet: cancelled now, the socket would
    be gone, and its protocol would wait for ever."""
    house = await House().opened()
    closing: list[asyncio.Task[None]] = []

    class Closing(Echo):
        def connection_made(self, transport: Any) -> None:
            self.slot.accepted(transport)
            super().connection_made(transport)
            closing.append(asyncio.ensure_future(house.listeners.close()))

    house.listeners._make = lambda slot: Closing(house, slot)
    reader, _ = await house.come()
    assert await hear(reader) == b"hello"
    await asyncio.wait_for(closing[0], DEADLINE_S)
    house.connected[0].transport.abort()
    await asyncio.wait_for(house.lost.wait(), DEADLINE_S)
    await house.close()
