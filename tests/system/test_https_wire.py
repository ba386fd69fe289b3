"""HTTPS publishing as clients write it on the wire: any spelling, any length, any order; and after
each answer the connection goes on, or says that it will not."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import pytest

from penstock.auth.sas import sign
from penstock.model.entities import Secret

if TYPE_CHECKING:
    from tests.conftest import Server, ServerFactory

BATCH = "application/vnd.microsoft.servicebus.json"
DEADLINE_S = 30.0
HUBS = ("events:4", "plant/line:2", "a.b_c-d:2")
MANY = b"x" * 200_000
KEPT, CLOSED = True, False


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """One TLS connection, and bytes as they are."""

    def __init__(self, server: Server) -> None:
        port = server.port("https")
        tls = ssl.create_default_context(cafile=server["ca_file"])
        raw = socket.create_connection(("localhost", port), timeout=DEADLINE_S)
        self._socket = tls.wrap_socket(raw, server_hostname="localhost")
        self._heard = b""
        self.host = f"localhost:{port}"
        expires_s = int(time.time()) + 3600
        policy, key = "RootManageSharedAccessKey", Secret(server.key)
        self.token = sign(f"https://{self.host}/", policy, key, expires_s=expires_s)

    def say(self, data: bytes) -> None:
        self._socket.sendall(data)

    def request(
        self,
        path: str = "/events/messages",
        body: bytes | None = b"x",
        *,
        method: str = "POST",
        version: str = "1.1",
        headers: Mapping[str, str | None] | None = None,
    ) -> bytes:
        """A header that is None is left out; a `body` of None says nothing of a length."""
        fields: dict[str, str | None] = {"Host": self.host, "Authorization": self.token}
        if body is not None:
            fields["Content-Length"] = str(len(body))
        fields |= dict(headers or {})
        lines = [f"{name}: {value}" for name, value in fields.items() if value is not None]
        head = "\r\n".join([f"{method} {path} HTTP/{version}", *lines, "", ""])
        return head.encode() + (body or b"")

    def hear(self, *, is_head: bool = False) -> Answer:
        while b"\r\n\r\n" not in self._heard:
            self._more()
        head, _, self._heard = self._heard.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        length = 0 if is_head else int(headers.get("content-length", "0"))
        while len(self._heard) < length:
            self._more()
        body, self._heard = self._heard[:length], self._heard[length:]
        return Answer(int(first.split()[1]), headers, body)

    def _more(self) -> None:
        data = self._socket.recv(65_536)
        assert data, "the service hung up before it had answered"
        self._heard += data

    def is_over(self) -> bool:
        """Whether the service has ended it, and said nothing more."""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            return self._socket.recv(1) == b"" and self._heard == b""
        return True

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(scope="module")
def server(start_session_server: ServerFactory) -> Iterator[Server]:
    hubs = [word for hub in HUBS for word in ("--hub", hub)]
    server = start_session_server("--flush", "os", "--log-level", "error", *hubs)
    yield server
    server.stop()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    client = Client(server)
    yield client
    client.close()


def chunks(*pieces: bytes, trailer: bytes = b"") -> bytes:
    written = b"".join(b"%x;of=us\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return written + b"0\r\n" + trailer + b"\r\n"


# --- one request and the next ---------------------------------------------------------------------

PATHS = [
    *("/events/messages?timeout=60&api-version=2014-01", "/events/messages?Timeout=60"),
    *("/EVENTS/Messages", "/events/messages/", "/%65vents/%6dessages", "/a.b_c-d/messages"),
    *("/plant/line/messages", "/plant%2Fline/messages", "/plant/line/partitions/1/messages"),
    *("/events/partitions/3/messages", "/events/publishers/dev/messages"),
    *("/events/publisher/dev/messages", "/events/publishers/a%20b%2Fc/messages"),
    *("/events/publishers/gr%C3%B6%C3%9Fe/messages", "/events/publishers/a+b/messages"),
    "https://localhost/events/messages",
]
HEADERS: list[dict[str, str | None]] = [
    {"Content-Type": None},
    {"Content-Type": "application/atom+xml;type=entry;charset=utf-8"},
    {"content-type": "text/plain", "x-lower": "case"},
    {"BrokerProperties": '{"PartitionKey": "key", "MessageId": "1", "TimeToLive": 60}'},
    {"brokerproperties": "{}"},
    {"Temperature": "21", "Alert": '"hot"', "Name": "größe"},
    {"Connection": "keep-alive", "x-ms-retrypolicy": "NoRetry"},
    {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABk"},
]
REFUSED = [
    ("/events/messages?timeout=soon", {}, b"x", 400, KEPT),
    ("/events/partitions/4/messages", {}, b"x", 400, KEPT),
    ("/events/partitions/x/messages", {}, b"x", 400, KEPT),
    ("/events/messages", {"BrokerProperties": "{"}, b"x", 400, KEPT),
    ("/events/messages", {"BrokerProperties": '{"PartitionKey": 5}'}, b"x", 400, KEPT),
    (
        "/events/publishers/dev/messages",
        {"BrokerProperties": '{"PartitionKey":"x"}'},
        b"x",
        400,
        KEPT,
    ),
    ("/events/messages", {"Content-Type": BATCH}, b"[]", 400, KEPT),
    ("/events/messages", {"Content-Type": BATCH}, b"", 400, KEPT),
    ("/events/messages", {"Content-Type": BATCH}, b'{"Body": "x"}', 400, KEPT),
    ("/events/messages", {"Content-Type": BATCH}, b'[{"body": "x"}]', 400, KEPT),
    ("/events/messages", {"Content-Type": BATCH}, b'[{"Body": 1}]', 400, KEPT),
    ("/events/messages", {"Authorization": None}, b"x", 401, KEPT),
    ("/events/messages", {"Authorization": "Bearer x"}, b"x", 401, KEPT),
    ("/events/messages", {"Authorization": None}, MANY, 401, CLOSED),
    ("/nothing/messages", {}, b"x", 404, KEPT),
    ("/nothing/messages", {}, MANY, 404, CLOSED),
    ("/events", {}, b"x", 404, KEPT),
    ("/", {}, b"x", 404, KEPT),
    ("/events/messages", {}, None, 411, KEPT),
    ("/events/messages", {}, b"x" * 262_144, 413, KEPT),  # as long as allowed: with its envelope
    ("/events/messages", {}, b"x" * 262_145, 413, CLOSED),
    ("/events/messages", {}, b"x" * 900_000, 413, CLOSED),
]


def created(client: Client, request: bytes) -> None:
    client.say(request)
    answer = client.hear()
    assert (answer.status, answer.body) == (201, b""), answer


@pytest.mark.parametrize("path", PATHS)
def test_path_in_any_spelling_is_taken(client: Client, path: str) -> None:
    created(client, client.request(path))
    created(client, client.request())


@pytest.mark.parametrize("headers", HEADERS)
def test_headers_of_any_client_are_taken(client: Client, headers: dict[str, str | None]) -> None:
    created(client, client.request(headers=headers))
    created(client, client.request())


@pytest.mark.parametrize(("path", "headers", "body", "status", "kept"), REFUSED)
def test_refusal_is_answered_and_the_connection_goes_on_or_says_that_it_will_not(
    client: Client,
    path: str,
    headers: dict[str, str | None],
    body: bytes | None,
    status: int,
    kept: bool,
) -> None:
    with contextlib.suppress(OSError):  # it may have heard enough
        client.say(client.request(path, body, headers=headers))
    answer = client.hear()
    assert answer.status == status
    assert answer.body.startswith(b"<Error><Code>%d</Code><Detail>" % status)
    assert answer.headers.get("connection") == (None if kept else "close")
    if kept:
        created(client, client.request())
    else:
        assert client.is_over()


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_other_method_is_told_which_is_allowed(client: Client, method: str) -> None:
    client.say(client.request(method=method, body=b""))
    answer = client.hear(is_head=method == "HEAD")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    created(client, client.request())


@pytest.mark.parametrize("keeps", [{}, {"Connection": "keep-alive"}])
def test_http_1_0_is_answered_and_closed(client: Client, keeps: dict[str, str | None]) -> None:
    created(client, client.request(version="1.0", headers=keeps))
    assert client.is_over()


# --- bodies ---------------------------------------------------------------------------------------


def test_body_in_chunks_is_taken_with_extensions_and_trailers(client: Client) -> None:
    head = client.request(body=None, headers={"Transfer-Encoding": "chunked"})
    created(client, head + chunks(b"one", b"two" * 30_000))
    created(client, head + chunks(b"three", trailer=b"X-Sum: 1\r\n"))
    batch = {"Transfer-Encoding": "chunked", "Content-Type": BATCH}
    created(client, client.request(body=None, headers=batch) + chunks(b'[{"Bo', b'dy":""}]'))
    created(client, client.request())


def test_body_in_chunks_is_not_read_past_the_limit(client: Client) -> None:
    client.say(client.request(body=None, headers={"Transfer-Encoding": "chunked"}))
    with contextlib.suppress(OSError):
        for _ in range(5):  # much more, and a client that does not listen may never hear it
            client.say(b"%x\r\n%b\r\n" % (len(MANY), MANY))
    answer = client.hear()
    assert (answer.status, answer.headers["connection"]) == (413, "close")
    assert client.is_over()


def test_batch_is_measured_as_the_events_that_it_makes(client: Client) -> None:
    headers: dict[str, str | None] = {"Content-Type": BATCH}
    fits = json.dumps([{"Body": "x" * 1000}] * 256).encode()
    created(client, client.request(body=fits, headers=headers))
    client.say(
        client.request(body=json.dumps([{"Body": "x" * 1000}] * 260).encode(), headers=headers)
    )
    assert client.hear().status == 413
    client.say(client.request(body=json.dumps([{"Body": "x" * 262_140}]).encode(), headers=headers))
    assert client.hear().status == 413
    created(client, client.request())


def test_client_that_asks_before_it_sends_is_told_to_go_on_or_why_not(server: Server) -> None:
    asks = {"Expect": "100-continue", "Content-Length": "100000"}
    for path, status in (("/events/messages", 100), ("/nothing/messages", 404)):
        client = Client(server)
        client.say(client.request(path, None, headers=asks))
        answer = client.hear()
        assert answer.status == status
        if status == 100:
            created(client, b"x" * 100_000)
            created(client, client.request())
        else:
            assert answer.headers["connection"] == "close"
        client.close()


def test_client_that_does_not_wait_for_leave_is_answered(client: Client) -> None:
    client.say(client.request(headers={"Expect": "100-continue"}))
    answer = client.hear()
    if answer.status == 100:
        answer = client.hear()
    assert answer.status == 201
    created(client, client.request())


def test_body_that_does_not_come_is_given_up_after_its_timeout(client: Client) -> None:
    headers: dict[str, str | None] = {"Content-Length": "100"}
    client.say(client.request("/events/messages?timeout=1", None, headers=headers) + b"x" * 10)
    answer = client.hear()
    assert answer.status == 408
    assert b"nothing was stored" in answer.body


# --- many at once ---------------------------------------------------------------------------------


def test_requests_sent_ahead_are_answered_in_their_order(client: Client) -> None:
    paths = ["/events/messages", "/nothing/messages", "/events/partitions/9/messages"] * 2
    client.say(b"".join(client.request(path) for path in paths))
    assert [client.hear().status for _ in paths] == [201, 404, 400] * 2


def test_request_in_single_bytes_is_taken(client: Client) -> None:
    for byte in client.request():
        client.say(bytes((byte,)))
    assert client.hear().status == 201


def test_32_connections_publish_at_once(server: Server) -> None:
    def publish(_: int) -> int:
        client = Client(server)
        request = client.request(body=b"x" * 1024)
        for _ in range(20):
            created(client, request)
        client.close()
        return 20

    with ThreadPoolExecutor(32) as pool:
        assert sum(pool.map(publish, range(32))) == 640
