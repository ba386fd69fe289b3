"""A raw client of RabbitMQ's stream protocol: publish with confirmations, read from the first.

A frame holds one message, or a hundred as its own clients do by default; each is stored and
confirmed by itself. Chunks that are delivered are counted by their headers.

    <size u32> <key u16> <version u16> [<correlation u32>] <content>
"""

from __future__ import annotations

import asyncio
import itertools
import struct
import time
from collections import deque
from enum import IntEnum

from penstock.client.load.measurements import LoadResult
from penstock.client.transfer_frames import data_section

WINDOW = 10_000  # as the Java client's default of unconfirmed messages
_CREDIT = 10  # chunks
_REPLY_S = 10.0
_RESPONSE = 0x8000
_OK = 1
_CHUNK = struct.Struct(">bbHI")  # magic, type, entries, records
_NOT_THERE = 2


class Key(IntEnum):
    """The commands that are needed here."""

    DECLARE_PUBLISHER = 1
    PUBLISH = 2
    PUBLISH_CONFIRM = 3
    PUBLISH_ERROR = 4
    SUBSCRIBE = 7
    DELIVER = 8
    CREDIT = 9
    CREATE = 13
    DELETE = 14
    PEER_PROPERTIES = 17
    SASL_HANDSHAKE = 18
    SASL_AUTHENTICATE = 19
    TUNE = 20
    OPEN = 21


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def _frame(key: Key, content: bytes) -> bytes:
    return struct.pack(">IHH", 4 + len(content), key, 1) + content


class StreamConnection(asyncio.Protocol):
    """Logs in as guest; then requests, and whatever the subclass makes of the data path."""

    def __init__(self) -> None:
        self._socket: asyncio.Transport | None = None
        self._pending = b""
        self._answers: dict[int, asyncio.Future[int]] = {}
        self._numbers = itertools.count(1)
        self._tuned: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = transport  # type: ignore[assignment]  # a stream transport

    def data_received(self, data: bytes) -> None:
        buffer = self._pending + data if self._pending else data
        position = 0
        while position + 8 <= len(buffer):
            size, key, _ = struct.unpack_from(">IHH", buffer, position)
            if position + 4 + size > len(buffer):
                break
            self._on_frame(key, buffer, position + 8)
            position += 4 + size
        self._pending = buffer[position:]
        self.after_read()

    def write(self, data: bytes) -> None:
        assert self._socket is not None
        self._socket.write(data)

    def close(self) -> None:
        assert self._socket is not None
        self._socket.close()

    async def log_in(self) -> None:
        await self.ask(Key.PEER_PROPERTIES, struct.pack(">i", 0))
        await self.ask(Key.SASL_HANDSHAKE, b"")
        secret = b"\0guest\0guest"
        await self.ask(
            Key.SASL_AUTHENTICATE, _text("PLAIN") + struct.pack(">i", len(secret)) + secret
        )
        async with asyncio.timeout(_REPLY_S):
            await self._tuned
        await self.ask(Key.OPEN, _text("/"))

    async def ask(self, key: Key, content: bytes, *, accept: tuple[int, ...] = (_OK,)) -> None:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self.write(_frame(key, struct.pack(">I", number) + content))
        async with asyncio.timeout(_REPLY_S):
            code = await answer
        if code not in accept:
            raise RuntimeError(f"RabbitMQ answered {key.name} with code {code}")

    def _on_frame(self, key: int, buffer: bytes, position: int) -> None:
        if key & _RESPONSE:
            number, code = struct.unpack_from(">IH", buffer, position)
            answer = self._answers.pop(number, None)
            if answer is not None:
                answer.set_result(code)
        elif key == Key.TUNE:
            frame_max, heartbeat = struct.unpack_from(">II", buffer, position)
            self.write(_frame(Key.TUNE, struct.pack(">II", frame_max, heartbeat)))
            self._tuned.set_result(None)
        else:
            self.on_data(key, buffer, position)

    def on_data(self, key: int, buffer: bytes, position: int) -> None:
        """A frame of the data path; its content begins at `position`."""

    def after_read(self) -> None:
        """Everything of one read was told."""


class StreamPublisher(StreamConnection):
    """Keeps WINDOW messages unconfirmed."""

    def __init__(self, size: int, batch: int, result: LoadResult) -> None:
        super().__init__()
        body = data_section(b"x" * size)
        # Without a publisher's name ids are not compared: they may repeat.
        messages = b"".join(struct.pack(">QI", number, len(body)) + body for number in range(batch))
        self._frame = _frame(Key.PUBLISH, struct.pack(">bI", 0, batch) + messages)
        self._batch = batch
        self._size = size
        self._outstanding: deque[tuple[int, float]] = deque()
        self._count = 0
        self._is_running = False
        self.result = result
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def prepare(self, stream: str) -> None:
        await self.ask(Key.DECLARE_PUBLISHER, struct.pack(">b", 0) + _text("") + _text(stream))

    def start(self) -> None:
        self._is_running = True
        self._fill()

    def stop(self) -> None:
        self._is_running = False
        self._finish_if_idle()

    def _fill(self) -> None:
        count = (WINDOW - self._count) // self._batch
        if count > 0:
            self.write(self._frame * count)
            self._outstanding.append((count * self._batch, time.perf_counter()))
            self._count += count * self._batch

    def on_data(self, key: int, buffer: bytes, position: int) -> None:
        """Confirmations come in the order of publishing, each with a count of its ids."""
        (count,) = struct.unpack_from(">I", buffer, position + 1)
        if key == Key.PUBLISH_ERROR:
            self.result.errors += count
        elif key != Key.PUBLISH_CONFIRM:
            return
        else:
            self.result.events += count
            self.result.payload_bytes += count * self._size
        self._count -= count
        now_s = time.perf_counter()
        while count and self._outstanding:
            sent, at_s = self._outstanding.popleft()
            taken = min(sent, count)
            self.result.latencies.add((now_s - at_s) * 1000, taken)
            count -= taken
            if taken < sent:
                self._outstanding.appendleft((sent - taken, at_s))

    def after_read(self) -> None:
        if self._is_running:
            self._fill()
        else:
            self._finish_if_idle()

    def _finish_if_idle(self) -> None:
        if self.result.events and self._count == 0 and not self.finished.done():
            self.finished.set_result(None)


class StreamReader(StreamConnection):
    """Reads from the first message on; credit is given chunk by chunk."""

    def __init__(self, events_max: int) -> None:
        super().__init__()
        self._events_max = events_max
        self.events = 0
        self.last_s = 0.0
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def subscribe(self, stream: str) -> None:
        first = struct.pack(">H", 1)
        content = struct.pack(">b", 0) + _text(stream) + first
        await self.ask(Key.SUBSCRIBE, content + struct.pack(">HI", _CREDIT, 0))

    def on_data(self, key: int, buffer: bytes, position: int) -> None:
        if key != Key.DELIVER:
            return
        self.events += _CHUNK.unpack_from(buffer, position + 1)[3]
        self.last_s = time.perf_counter()
        self.write(_frame(Key.CREDIT, struct.pack(">bH", 0, 1)))
        if self.events >= self._events_max and not self.finished.done():
            self.finished.set_result(None)


async def make_stream(connection: StreamConnection, stream: str) -> None:
    """A new, empty one."""
    await connection.ask(Key.DELETE, _text(stream), accept=(_OK, _NOT_THERE))
    await connection.ask(Key.CREATE, _text(stream) + struct.pack(">i", 0))
