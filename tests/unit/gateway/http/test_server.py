"""Connections: bytes of requests in, in any pieces, ASGI calls and bounded patience out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.gateway.guard import Guard
from penstock.gateway.http.server import HttpServer, PublicApplication
from penstock.model import limits
from penstock.model.clock import ManualClock

POST = b"POST /a%2Fb/messages?x=1 HTTP/1.1\r\nHost: h\r\nX-Own: 1\r\nContent-Length: 5\r\n\r\nhello"
CREATED = b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n"


class Transport:
    """What a connection writes to; `gone` is set when it ends."""

    def __init__(self) -> None:
        self.written = b""
        self.gone = asyncio.Event()
        self.protocol: Any = None

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        if not self.gone.is_set():
            self.gone.set()
            self.protocol.connection_lost(None)

    abort = close

    def is_closing(self) -> bool:
        return self.gone.is_set()

    def get_extra_info(self, name: str) -> Any:
        return None

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Door:
    """An HttpDoor over an application that records its calls and creates everything."""

    def __init__(self) -> None:
        self.scopes: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        clock, loop = ManualClock(), asyncio.get_running_loop()
        # Work takes no time: no request waits for its turn, however busy the machine is.
        guard = Guard(loop, clock=clock)
        self.door = HttpServer(self._app, loop, guard=guard)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(dict(scope))
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            more = message["more_body"]
        self.bodies.append(body)
        await send(
            {"type": "http.response.start", "status": 201, "headers": [(b"content-length", b"0")]}
        )
        await send({"type": "http.response.body", "body": b""})

    def connect(self) -> Transport:
        transport = Transport()
        transport.protocol = self.door.connection()
        transport.protocol.connection_made(transport)
        return transport


async def turns(count: int = 12) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def timers(transport: Transport) -> asyncio.TimerHandle | None:
    timer: asyncio.TimerHandle | None = transport.protocol._read_timer
    return timer


async def test_request_is_handed_on_with_its_names_as_written() -> None:
    door = Door()
    transport = door.connect()
    transport.protocol.data_received(POST)
    await turns()
    (scope,) = door.scopes
    assert scope["raw_path"] == b"/a%2Fb/messages"
    assert scope["query_string"] == b"x=1"
    assert scope["headers"] == [(b"host", b"h"), (b"x-own", b"1"), (b"content-length", b"5")]
    assert scope["penstock.header_names"] == [b"Host", b"X-Own", b"Content-Length"]
    assert door.bodies == [b"hello"]
    assert transport.written == CREATED
    transport.close()


async def test_requests_survive_being_cut_anywhere() -> None:
    for cut in range(1, len(POST)):
        door = Door()
        transport = door.connect()
        transport.protocol.data_received(POST[:cut])
        transport.protocol.data_received(POST[cut:])
        await turns()
        assert door.bodies == [b"hello"]
        assert door.scopes[0]["penstock.header_names"] == [b"Host", b"X-Own", b"Content-Length"]
        assert timers(transport) is None
        transport.close()


async def test_requests_in_a_row_are_answered_in_a_row() -> None:
    door = Door()
    transport = door.connect()
    transport.protocol.data_received(POST * 3 + POST[:20])
    await turns(40)
    assert door.bodies == [b"hello"] * 3
    assert transport.written == CREATED * 3
    assert timers(transport) is not None  # a fourth one has begun
    transport.protocol.data_received(POST[20:])
    await turns()
    assert timers(transport) is None
    assert len(door.bodies) == 4
    transport.close()


async def test_absolute_target_is_its_path() -> None:
    door = Door()
    transport = door.connect()
    target = b"POST https://h/a%2Fb/messages?x=1 "
    transport.protocol.data_received(POST.replace(b"POST /a%2Fb/messages?x=1 ", target))
    await turns()
    assert door.scopes[0]["raw_path"] == b"/a%2Fb/messages"
    transport.close()


async def test_trailers_are_no_headers() -> None:
    door = Door()
    transport = door.connect()
    transport.protocol.data_received(
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTrailer: Authorization\r\n"
        b"\r\n5\r\nhello\r\n0\r\nAuthorization: late\r\n\r\n"
    )
    await turns()
    assert door.bodies == [b"hello"]
    names = [name for name, _ in door.scopes[0]["headers"]]
    assert names == [b"host", b"transfer-encoding", b"trailer"]
    transport.close()


# --- what is too much ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        b"".join(b"H%d: x\r\n" % number for number in range(limits.HTTP_HEADERS_MAX + 1)),
        b"".join(b"H%d: %s\r\n" % (number, b"x" * 1000) for number in range(70)),
    ],
    ids=["too many", "too long"],
)
async def test_head_that_is_too_large_reaches_no_application(
    head: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    door = Door()
    transport = door.connect()
    transport.protocol.data_received(POST.replace(b"X-Own: 1\r\n", head))
    await turns()
    assert door.scopes == []
    assert transport.written.startswith(b"HTTP/1.1 400 ")
    assert transport.gone.is_set()


@pytest.mark.parametrize("start", [b"POST /", b"POST / HTTP/1.1\r\nHost: h\r\nX-Own: "])
async def test_head_without_an_end_ends_the_connection(start: bytes) -> None:
    door = Door()
    transport = door.connect()
    transport.protocol.data_received(start)
    sent = len(start)
    while not transport.gone.is_set():
        transport.protocol.data_received(b"x" * 4096)
        sent += 4096
        assert sent < 2 * limits.HTTP_HEAD_BYTES_MAX
    assert door.scopes == []


async def test_trailers_without_an_end_end_the_connection() -> None:
    door = Door()
    transport = door.connect()
    transport.protocol.data_received(
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    )
    for number in range(100):
        if transport.gone.is_set():
            break
        transport.protocol.data_received(b"T%d: %s\r\n" % (number, b"x" * 1000))
    assert transport.gone.is_set()


@pytest.mark.parametrize(
    "request_",
    [
        b"nonsense\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nA b: c\r\n\r\n",
    ],
)
async def test_request_with_two_readings_is_refused(request_: bytes) -> None:
    door = Door()
    transport = door.connect()
    transport.protocol.data_received(request_)
    await turns()
    assert door.bodies == []
    assert transport.written.startswith(b"HTTP/1.1 400 ")
    assert transport.gone.is_set()


async def test_listener_has_so_many_connections_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "HTTP_CONNECTIONS_MAX", 2)
    door = Door()
    first, second, third = (door.connect() for _ in range(3))
    assert [each.gone.is_set() for each in (first, second, third)] == [False, False, True]
    first.close()
    assert not door.connect().gone.is_set()


# --- patience -----------------------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def shorten(stage: str) -> None:
        if stage == "HEAD":
            monkeypatch.setattr(limits, "HTTP_HEAD_DEADLINE_S", 0.01)
        else:
            monkeypatch.setattr(limits, "HTTP_UNAUTHENTICATED_BODY_DEADLINE_S", 0.01)

    return shorten


@pytest.mark.parametrize("start", [b"", b"P", POST[:40]])
async def test_head_that_does_not_end_in_time_ends_the_connection(
    start: bytes, impatient: Callable[[str], None]
) -> None:
    impatient("HEAD")
    transport = Door().connect()
    if start:
        transport.protocol.data_received(start)
    await asyncio.wait_for(transport.gone.wait(), 10)


async def test_body_that_does_not_end_in_time_ends_the_connection(
    impatient: Callable[[str], None],
) -> None:
    """Also where the application has long answered, as it does without a good token."""
    impatient("BODY")
    transport = Door().connect()
    transport.protocol.data_received(POST[:-1])
    await asyncio.wait_for(transport.gone.wait(), 10)


async def test_body_has_less_time_before_a_token_is_verified() -> None:
    transport, stranger = Door().connect(), Door().connect()
    for each in (transport, stranger):
        each.protocol.data_received(POST[:-1])
        timer = timers(each)
        assert timer is not None
        waits_s = timer.when() - asyncio.get_running_loop().time()
        assert 25 < waits_s <= limits.HTTP_UNAUTHENTICATED_BODY_DEADLINE_S
        timer.cancel()
    transport.protocol._slot.authenticate()
    for each in (transport, stranger):
        each.protocol.on_read_deadline()
    assert stranger.gone.is_set()
    assert not transport.gone.is_set()
    extended = timers(transport)
    assert extended is not None
    left_s = extended.when() - asyncio.get_running_loop().time()
    assert left_s > limits.HTTP_REQUEST_DEADLINE_S_MAX - 30
    transport.protocol.data_received(POST[-1:])
    assert extended.cancelled()
    transport.close()


async def test_timer_of_one_request_is_not_that_of_the_next() -> None:
    transport = Door().connect()
    transport.protocol.data_received(POST[:-1])
    first = timers(transport)
    transport.protocol.data_received(POST[-1:] + POST[:-1])
    second = timers(transport)
    assert first is not None
    assert first.cancelled()
    assert second is not None
    assert not second.cancelled()
    transport.close()
    assert second.cancelled()


# --- stopping -----------------------------------------------------------------------------------


async def test_stopping_lets_running_requests_end() -> None:
    door = Door()
    idle, busy = door.connect(), door.connect()
    idle.protocol.data_received(POST)
    await turns()
    busy.protocol.data_received(POST[:-1])
    await turns()
    closing = asyncio.create_task(door.door.close(grace_s=10))
    await turns()
    assert idle.gone.is_set()
    assert not busy.gone.is_set()
    busy.protocol.data_received(POST[-1:])
    await closing
    assert busy.written.startswith(b"HTTP/1.1 201 Created")
    assert b"connection: close" in busy.written
    assert busy.gone.is_set()


async def test_stopping_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    door = Door()
    transport = door.connect()
    transport.protocol.data_received(POST[:-1])
    await turns()
    await door.door.close(grace_s=0.01)
    assert transport.gone.is_set()
    assert door.bodies == []


# --- the port's application ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    ["/$servicebus/websocket", "wss://h:443/$servicebus/websocket", "https://h/x", "ws://h"],
)
async def test_websocket_target_is_its_path(target: str) -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["path"])
        assert scope["raw_path"] == scope["path"].encode()

    public = PublicApplication(publishing=app, websocket=app)
    scope = {"type": "websocket", "path": target, "raw_path": target.encode()}
    await public(scope, None, None)  # type: ignore[arg-type]  # unused
    assert seen == [
        "/" + target.partition("://")[2].partition("/")[2] if "://" in target else target
    ]


async def test_port_serves_each_kind_by_its_own_application() -> None:
    called: list[str] = []

    def app(name: str) -> Any:
        async def call(scope: Any, receive: Any, send: Any) -> None:
            called.append(name)

        return call

    public = PublicApplication(
        publishing=app("publish"),
        websocket=app("websocket"),
        prefixes={"/subscriptions/": app("management")},
    )
    for kind, path in (
        ("http", "/events/messages"),
        ("websocket", "/$servicebus/websocket"),
        ("http", "/Subscriptions/1/x"),
        ("websocket", "/subscriptions/1"),
        ("http", "/subscriptions"),
    ):
        await public({"type": kind, "path": path}, None, None)  # type: ignore[arg-type]  # unused
    assert called == ["publish", "websocket", "management", "websocket", "publish"]
