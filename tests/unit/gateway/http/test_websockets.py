"""WebSockets: messages become one stream; what a peer may make the server do and keep."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.gateway.guard import ConnectionSlot, Guard
from penstock.gateway.http import websocket_protocol
from penstock.gateway.http.server import HttpServer
from penstock.model import limits
from penstock.model.clock import ManualClock

UPGRADE = (
    b"GET /there HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
BINARY, CONTINUED, TEXT, CLOSE, PING, PONG = 2, 0, 1, 8, 9, 10


def frame(opcode: int, data: bytes = b"", *, fin: bool = True) -> bytes:
    """As clients write them, masked with nothing."""
    head = bytes((opcode | (0x80 if fin else 0),))
    if len(data) < 126:
        head += bytes((0x80 | len(data),))
    else:
        head += b"\xff" + struct.pack(">Q", len(data))
    return head + bytes(4) + data


class Transport:
    """What the connection writes to and is read by."""

    def __init__(self) -> None:
        self.written = b""
        self.is_reading = True
        self.gone = False
        self.over = asyncio.Event()
        self.drains = True  # the peer reads what is written to it
        self.protocol: Any = None

    def write(self, data: bytes) -> None:
        self.written += data

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def is_closing(self) -> bool:
        return self.gone

    def get_extra_info(self, name: str) -> Any:
        return None

    def close(self) -> None:
        if self.drains:
            self.abort()

    def abort(self) -> None:
        if not self.gone:
            self.gone = True
            self.over.set()
            self.protocol.connection_lost(None)


class Talk:
    """One upgraded connection, and what the application heard. It hears while `listens`, or
    `leaves` at once."""

    def __init__(self, *, leaves: bool = False) -> None:
        self.leaves = leaves
        self.clock, loop = ManualClock(), asyncio.get_running_loop()
        self.guard = Guard(
            loop,
            clock=self.clock,
        )
        slot = self.guard.admit("192.0.2.1")
        assert slot is not None
        self.slot: ConnectionSlot = slot
        self.heard: list[dict[str, Any]] = []
        self.listens = asyncio.Event()
        self.listens.set()
        door = HttpServer(self._app, loop, guard=self.guard)
        self.transport = Transport()
        self.transport.protocol = door.connection(self.slot)
        self.transport.protocol.connection_made(self.transport)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        if self.leaves:
            await send({"type": "websocket.close", "code": 1003})
            return
        while not self.heard or self.heard[-1]["type"] != "websocket.disconnect":
            await self.listens.wait()
            self.heard.append(await receive())

    async def upgraded(self) -> Talk:
        await self.say(UPGRADE)
        assert self.transport.written.startswith(b"HTTP/1.1 101 ")
        self.transport.written = b""
        return self

    async def say(self, data: bytes) -> None:
        self.transport.protocol.data_received(data)
        await self.turns()

    async def turns(self, count: int = 10) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    @property
    def messages(self) -> list[bytes]:
        return [each["bytes"] for each in self.heard if "bytes" in each]

    @property
    def websocket(self) -> Any:
        return self.transport.protocol


@pytest.fixture
async def talk() -> AsyncIterator[Talk]:
    talk = await Talk().upgraded()
    yield talk
    talk.listens.set()
    talk.transport.close()
    await talk.turns()


# --- one stream ---------------------------------------------------------------------------------


async def test_messages_of_one_read_become_one(talk: Talk) -> None:
    await talk.say(frame(BINARY, b"ab") + frame(BINARY, b"") + frame(BINARY, b"c"))
    assert talk.messages == [b"abc"]


async def test_fragments_are_joined_across_reads(talk: Talk) -> None:
    await talk.say(frame(BINARY, b"whole") + frame(BINARY, b"a", fin=False))
    await talk.say(frame(CONTINUED, b"b", fin=False) + frame(PING))
    await talk.say(frame(CONTINUED, b"c") + frame(BINARY, b"d"))
    assert talk.messages == [b"whole", b"abcd"]


async def test_bytes_survive_being_cut_anywhere() -> None:
    stream = frame(BINARY, b"one") + frame(PING, b"?") + frame(BINARY, b"two" * 50)
    for cut in range(len(stream)):
        talk = await Talk().upgraded()
        await talk.say(stream[:cut])
        await talk.say(stream[cut:])
        assert b"".join(talk.messages) == b"one" + b"two" * 50
        talk.transport.close()
        await talk.turns()


async def test_what_came_before_the_close_is_heard_before_it(talk: Talk) -> None:
    await talk.say(frame(BINARY, b"last words") + frame(CLOSE, b"\x03\xe8"))
    assert [each["type"] for each in talk.heard] == ["websocket.receive", "websocket.disconnect"]
    assert talk.messages == [b"last words"]


async def test_text_is_handed_on_in_its_place(talk: Talk) -> None:
    await talk.say(frame(BINARY, b"first") + frame(TEXT, b"second") + frame(BINARY, b"third"))
    assert [each.get("bytes") or each.get("text") for each in talk.heard] == [
        b"first",
        "second",
        b"third",
    ]


async def test_large_messages_pass(talk: Talk) -> None:
    talk.slot.authenticate()
    body = bytes(range(256)) * 4096
    await talk.say(frame(BINARY, body))
    assert b"".join(talk.messages) == body


async def test_much_is_parsed_only_as_fast_as_it_is_taken(talk: Talk) -> None:
    talk.slot.authenticate()
    talk.listens.clear()
    await talk.turns()
    await talk.say(frame(BINARY, b"x" * 100) * 1000)
    assert not talk.transport.is_reading
    assert talk.websocket.queue.qsize() <= 1
    assert len(b"".join(talk.messages)) <= 2 * 8 * limits.KB
    talk.listens.set()
    await talk.turns(200)
    assert b"".join(talk.messages) == b"x" * 100_000
    assert talk.transport.is_reading


# --- what a peer may make us keep ---------------------------------------------------------------


async def test_pings_are_answered(talk: Talk) -> None:
    await talk.say(frame(PING, b"one") + frame(PING, b"two"))
    assert talk.transport.written == b"\x8a\x03one\x8a\x03two"


async def test_peer_that_does_not_read_gets_one_pong_for_all_pings(talk: Talk) -> None:
    talk.websocket.pause_writing()
    for number in range(50):
        await talk.say(frame(PING, b"%d" % number))
    assert talk.transport.written == b""
    talk.websocket.resume_writing()
    assert talk.transport.written == b"\x8a\x0249"
    await talk.say(frame(PING, b"x"))
    assert talk.transport.written == b"\x8a\x0249\x8a\x01x"


async def test_fragments_of_one_message_are_bounded_in_number(talk: Talk) -> None:
    talk.slot.authenticate()
    await talk.say(frame(BINARY, fin=False))
    for _ in range(limits.WEBSOCKET_FRAGMENTS_MAX):
        if talk.transport.gone:
            break
        await talk.say(frame(CONTINUED, fin=False) * 2)
    assert talk.transport.gone


async def test_message_above_the_limit_ends_the_connection(talk: Talk) -> None:
    talk.slot.authenticate()
    head = b"\x82\xff" + struct.pack(">Q", limits.WEBSOCKET_MESSAGE_BYTES_MAX + 1) + bytes(4)
    await talk.say(head)
    assert talk.transport.gone
    assert b"\x03\xf1" in talk.transport.written  # 1009: too big


async def test_stranger_has_a_budget_of_bytes(talk: Talk) -> None:
    body = frame(BINARY, b"x" * 60_000)
    for _ in range(10):
        if not talk.transport.gone:
            await talk.say(body)
    assert talk.transport.gone
    assert len(b"".join(talk.messages)) < 400_000


async def test_known_peer_has_none(talk: Talk) -> None:
    talk.slot.authenticate()
    for _ in range(10):
        await talk.say(frame(BINARY, b"x" * 60_000))
    assert len(b"".join(talk.messages)) == 600_000
    assert not talk.transport.gone


# --- measured work ------------------------------------------------------------------------------


async def let_work(talk: Talk) -> None:
    """Time passes until nothing waits for its turn."""
    for _ in range(100):
        talk.clock.advance(100)
        talk.guard.work._run()
        await talk.turns()
        if not talk.guard.work.waiting:
            return


@pytest.mark.parametrize(
    "spoken",
    [frame(PING), frame(PONG), frame(BINARY), frame(BINARY, b"x"), frame(TEXT, b"x")],
    ids=["ping", "pong", "empty", "tiny", "text"],
)
async def test_frames_of_an_unauthenticated_peer_wait_for_their_turn(
    talk: Talk, spoken: bytes
) -> None:
    talk.clock.step_us = 5000  # a kilobyte of frames takes so long
    await talk.say(spoken * 1000)
    await talk.turns(50)
    assert not talk.transport.is_reading
    assert talk.guard.work.waiting == 1
    await let_work(talk)
    assert talk.transport.is_reading


async def test_peer_that_goes_on_is_dropped(talk: Talk) -> None:
    talk.clock.step_us = 60_000
    await talk.say(frame(PING) * 1000)
    await let_work(talk)
    assert talk.transport.gone


async def test_messages_of_the_size_of_frames_never_wait(talk: Talk) -> None:
    """Some clients write each AMQP frame as a message of its own."""
    talk.slot.authenticate()
    talk.clock.step_us = 1000
    for _ in range(20):
        await talk.say(frame(BINARY, b"\x00\x00\x00\x08\x02\x00\x00\x00") * 500)
        await talk.turns(50)
        talk.slot.budget.pay(100, 10_000)  # as AMQP does for what is published
    assert talk.transport.is_reading
    assert len(b"".join(talk.messages)) == 20 * 500 * 8


async def test_connection_that_ends_while_it_waits_leaves_nothing_behind(talk: Talk) -> None:
    talk.clock.step_us = 5000
    await talk.say(frame(PING) * 1000)
    assert talk.guard.work.waiting == 1
    talk.transport.close()
    await talk.turns()
    assert talk.guard.work.waiting == 0
    assert len(talk.guard.addresses.unauthenticated) == 0


# --- the end ------------------------------------------------------------------------------------


@pytest.mark.parametrize("drains", [True, False])
async def test_peer_that_does_not_answer_our_close_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, drains: bool
) -> None:
    """Also one that does not read, whose socket would never drain."""
    monkeypatch.setattr(websocket_protocol, "_CLOSE_GRACE_S", 0.01)
    talk = Talk(leaves=True)
    talk.transport.drains = drains
    await talk.say(UPGRADE)
    assert talk.transport.written.endswith(b"\x88\x02\x03\xeb")
    await asyncio.wait_for(talk.transport.over.wait(), 30)
    assert len(talk.guard.addresses.unauthenticated) == 0


async def test_peer_that_answers_our_close_is_let_go_at_once() -> None:
    talk = Talk(leaves=True)
    await talk.say(UPGRADE)
    await talk.say(frame(CLOSE, b"\x03\xeb"))
    assert talk.transport.gone
    assert talk.websocket._end_timer.cancelled()
