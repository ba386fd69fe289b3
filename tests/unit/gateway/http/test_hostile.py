"""Whatever a client sends, it gets an answer that says why, and never one that is our fault."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.gateway.http.server import HttpServer

if TYPE_CHECKING:
    from tests.unit.gateway.http.conftest import World

METHODS = st.sampled_from(["POST", "GET", "PUT", "DELETE", "HEAD", "PATCH", "BREW"])
PIECES = st.sampled_from(
    [
        *("events", "plant/line", "messages", "partitions", "publishers", "0", "9", "dev", ""),
        *("..", "%", "%00", "%2F", "revokedpublishers", "$management", "x" * 300, "%C3%A9"),
    ]
)
PATHS = st.lists(PIECES, max_size=6).map(lambda pieces: "/" + "/".join(pieces))
GOOD_PATHS = st.sampled_from(
    ["/events/messages", "/events/publishers/dev/messages", "/events/partitions/1/messages"]
)
HEADER_TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=40)
JSON_PIECES = st.lists(
    st.sampled_from(
        [
            *("{", "}", "[", "]", ":", ",", '"Body"', '"x"', "1", "1e400", "NaN", "null", "true"),
            *('"IsBodyBase64"', '"UserProperties"', '"BrokerProperties"', '"PartitionKey"'),
            '"\\ud8"',
        ]
    ),
    max_size=25,
).map("".join)
BROKER_PROPERTIES = st.one_of(st.none(), JSON_PIECES, HEADER_TEXT)
CONTENT_TYPES = st.sampled_from(
    ["application/vnd.microsoft.servicebus.json", "application/json", "", "\xff"]
)
BODIES = st.one_of(st.binary(max_size=80), JSON_PIECES.map(str.encode))
NAMES = st.sampled_from(["X-Own", "Accept", "Expect", "Content-Encoding", "Transfer-Encoding", "é"])
LENGTHS = st.sampled_from(["", "5", "0", "99999999999", "x", None])
QUERIES = st.sampled_from(["", "timeout=60", "timeout=x", "timeout=1&timeout=2", "%zz=%", "a;b"])


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    METHODS,
    PATHS | GOOD_PATHS,
    st.dictionaries(NAMES, HEADER_TEXT, max_size=3),
    BROKER_PROPERTIES,
    CONTENT_TYPES,
    BODIES,
    LENGTHS,
    QUERIES,
)
def test_no_request_is_our_fault(
    make_world: Callable[..., World],
    method: str,
    path: str,
    headers: dict[str, str],
    broker_properties: str | None,
    content_type: str,
    body: bytes,
    length: str | None,
    query: str,
) -> None:
    world = make_world()
    if broker_properties is not None:
        headers = headers | {"BrokerProperties": broker_properties}
    calling = world.call(
        path,
        body,
        method=method,
        token=world.token("https://localhost/"),
        headers=headers | {"Content-Type": content_type},
        length=length,
        query=query,
    )
    response = asyncio.run(calling)
    assert response.status in (200, 201, 400, 401, 404, 405, 409, 411, 413)
    stored = len(world.stored()) + len(world.stored("hub1"))
    assert bool(stored) == (method == "POST" and response.status == 201)
    if response.status >= 400:
        assert response.detail


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=120))
def test_no_token_is_our_fault(make_world: Callable[..., World], text: str) -> None:
    world = make_world()
    for token in (text, f"SharedAccessSignature {text}", f"{world.token()[:-3]}{text}"):
        response = asyncio.run(world.call(token=token))
        assert response.status in (201, 401)


class _Nowhere:
    """A transport that takes everything and shows nothing."""

    def __init__(self) -> None:
        self.closed = False

    def __getattr__(self, name: str) -> Any:
        return lambda *args: None

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed


STREAM = st.lists(
    st.one_of(
        st.sampled_from(
            [b"POST / HTTP/1.1\r\n", b"Host: h\r\n", b"\r\n", b"Content-Length: 3\r\n"]
        ),
        st.sampled_from([b"Transfer-Encoding: chunked\r\n", b"3\r\nabc\r\n", b"0\r\n\r\n", b"abc"]),
        st.sampled_from([b"Upgrade: websocket\r\nConnection: Upgrade\r\n", b"Upgrade: h2c\r\n"]),
        st.sampled_from(
            [b"GET * HTTP/1.0\r\n", b"CONNECT h:1 HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n"]
        ),
        st.binary(max_size=20),
    ),
    max_size=12,
)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(STREAM)
def test_no_bytes_break_a_connection_but_their_own(stream: list[bytes]) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def run() -> None:
        door = HttpServer(app, asyncio.get_running_loop())
        connection: Any = door.connection()
        transport = _Nowhere()
        connection.connection_made(transport)
        for data in stream:
            if data and not transport.closed:
                connection.data_received(data)
            await asyncio.sleep(0)
        connection.connection_lost(None)
        await door.close(grace_s=1)

    asyncio.run(run())
