"""Turns over TLS sockets and WebSockets: unauthenticated work is done in bounded pieces,
and clients are served in between."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, cast

import pytest
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from tests.unit.gateway.http.test_websockets import BINARY, UPGRADE, frame
from tests.unit.gateway.test_listener import tls_context

from penstock.amqp.frames import AMQP_HEADER, EMPTY_FRAME, SASL_FRAME, SASL_HEADER, encode_frame
from penstock.amqp.performatives import Begin, Open, SaslInit, encode_performative
from penstock.gateway.amqp.context import AmqpContext
from penstock.gateway.amqp.input_buffer import FRAMES_AT_ONCE
from penstock.gateway.amqp.server import AmqpServer
from penstock.gateway.amqp.websocket import PATHS, WebSocketEndpoint
from penstock.gateway.guard import Guard
from penstock.gateway.http.server import HttpServer
from penstock.model import limits

if TYPE_CHECKING:
    from tests.unit.gateway.amqp.conftest import World

__all__ = ["tls_context"]

DEADLINE_S = 20
PIECE_US = 5_000  # of each measured piece of work
OPEN = encode_frame(0, encode_performative(Open(container_id="x")))
BEGIN = encode_frame(
    1, encode_performative(Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9))
)
PLAIN = encode_frame(
    0,
    encode_performative(SaslInit(mechanism="PLAIN", initial_response=b"\0sender\0sender-key")),
    frame_type=SASL_FRAME,
)


class Server:
    """An AMQP listener over TLS, or over WebSockets below TLS. Its clock stands still."""

    def __init__(self, world: World, tls: ssl.SSLContext) -> None:
        loop, ids = asyncio.get_running_loop(), itertools.count(1)
        self.clock = world.clock
        self.guard = Guard(loop, clock=world.clock)
        context = AmqpContext(
            broker=world.broker,
            clock=world.clock,
            authorities=world.context.authorities,
            reads=cast(Executor, None),
            new_id=lambda: f"{next(ids):032x}",
            loop=loop,
            guard=self.guard,
        )
        self.door = AmqpServer(context)
        websockets = Starlette(
            routes=[WebSocketRoute(path, WebSocketEndpoint(self.door)) for path in PATHS]
        )
        self._http = HttpServer(websockets, loop, guard=self.guard)
        self._tls = tls
        self._over_websocket = False
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self, kind: str) -> None:
        self._over_websocket = kind == "websocket"
        listening = self._http if self._over_websocket else self.door
        self.port = await listening.listen("127.0.0.1", 0, self._tls)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=client)
        self._writers.append(writer)
        if self._over_websocket:
            writer.write(UPGRADE.replace(b"/there", PATHS[0].encode()))
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        return reader, writer

    def say(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(frame(BINARY, data) if self._over_websocket else data)

    def frames(self) -> int:
        """Of the connection that came last."""
        newest = max(self.door.connections, key=lambda connection: connection.id)
        return newest.engine.frames_received

    def run_turn(self, milliseconds: int) -> None:
        """The queue's share of that time is spent."""
        self.clock.advance(milliseconds)
        self.guard.work._run()

    async def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        await self.door.close(grace_s=DEADLINE_S)
        await self._http.close(grace_s=DEADLINE_S)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not is_so():  # noqa: ASYNC110 - nothing notifies of it
            await asyncio.sleep(0)


@pytest.fixture
async def server(world: World, tls_context: ssl.SSLContext) -> AsyncIterator[Server]:
    server = Server(world, tls_context)
    yield server
    server.clock.step_us = 0
    await server.close()


@pytest.mark.parametrize("kind", ["tls", "websocket"])
async def test_unauthenticated_frames_are_handled_in_bounded_turns(
    server: Server, kind: str
) -> None:
    await server.open(kind)
    reader, client = await server.connect()
    server.say(client, SASL_HEADER + PLAIN + AMQP_HEADER + OPEN)
    await until(lambda: any(each.links.is_authenticated for each in server.door.connections))
    _, hostile = await server.connect()
    server.say(hostile, AMQP_HEADER + OPEN)
    await until(lambda: len(server.door.connections) == 2 and server.frames() == 1)

    server.clock.step_us = PIECE_US
    count = 20 * FRAMES_AT_ONCE
    server.say(hostile, EMPTY_FRAME * count)
    await until(lambda: server.guard.work.waiting == 1)
    burst = limits.WORK_QUEUE_BURST_US // PIECE_US
    assert server.frames() <= 1 + (burst + 1) * FRAMES_AT_ONCE

    # A client is served while the other one waits.
    server.say(client, BEGIN)
    async with asyncio.timeout(DEADLINE_S):
        await reader.readuntil(b"\x00\x53\x11")
    assert server.guard.work.waiting == 1

    while server.frames() <= count:
        await until(lambda: server.guard.work.waiting == 1)
        before = server.frames()
        server.run_turn(PIECE_US * 100 // limits.WORK_QUEUE_PERCENT // 1000)
        assert server.frames() - before <= FRAMES_AT_ONCE
        await until(lambda: server.guard.work.waiting == 1 or server.frames() > count)


async def test_tls_handshakes_wait_for_their_turn(server: Server) -> None:
    await server.open("tls")
    server.guard.work.spend(limits.WORK_QUEUE_BURST_US)
    coming = [asyncio.create_task(server.connect()) for _ in range(3)]
    await until(lambda: server.guard.work.waiting == 3)
    assert not server.door.connections
    share_ms = limits.TLS_HANDSHAKE_US * 100 // limits.WORK_QUEUE_PERCENT // 1000
    for begun in (1, 2, 3):
        server.run_turn(share_ms)
        assert server.guard.work.waiting == 3 - begun
        await until(lambda begun=begun: len(server.door.connections) == begun)  # type: ignore[misc]  # a lambda's default has no type
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*coming)
