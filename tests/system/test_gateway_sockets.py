"""The AMQP door over real sockets: TCP, TLS and WebSocket, on the loop that `serve` uses.

One service for the whole file, with short deadlines, in a thread of its own; clients block, each
with a time-out.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import resource
import socket
import ssl
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import uvloop
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from penstock.amqp.connection import ConnectionConfig, ConnectionEngine
from penstock.amqp.events import (
    CloseReceived,
    DispositionReceived,
    Event,
    SaslMechanismsReceived,
    TransfersReceived,
)
from penstock.amqp.frames import AMQP_HEADER, SASL_HEADER
from penstock.amqp.link import Link, LinkRole
from penstock.amqp.message import DataBody, Message, decode_message, encode_message
from penstock.amqp.performatives import Accepted, Source, Target
from penstock.gateway.amqp.lifecycle import Deadlines
from penstock.model.connection_string import Endpoint, parse_connection_string
from penstock.service import wiring
from penstock.service.config.settings import Settings
from penstock.service.runtime_description import RuntimeDescription

TIMEOUT_S = 10.0
HEADER_MS = 400
PATH = "/$servicebus/websocket"
READER = "events/ConsumerGroups/$Default/Partitions/0"


class Service:
    """Penstock in a thread, on uvloop as `serve` runs it."""

    def __init__(self, data: Path) -> None:
        self.facts: RuntimeDescription
        self._loop = uvloop.new_event_loop()
        self._started = threading.Event()
        self._stop = asyncio.Event()
        self._settings = Settings(
            data=data, amqp_port=0, amqps_port=0, https_port=0, admin_port=0, flush="os"
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._started.wait(30)
        self.endpoint: Endpoint = parse_connection_string(self.facts.connection_string)
        self.tls = ssl.create_default_context(cafile=self.facts.ca_file)
        # The client of `websockets` reads in one thread and writes in another. With TLS 1.3 the
        # service's session tickets arrive while the request is written, and Python 3.11 does not
        # lock the SSL object: now and then the request was lost.
        self.websocket_tls = ssl.create_default_context(cafile=self.facts.ca_file)
        self.websocket_tls.maximum_version = ssl.TLSVersion.TLSv1_2

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        deadlines = Deadlines(header_ms=HEADER_MS, open_ms=2 * HEADER_MS)
        service = wiring.Penstock(self._settings, deadlines=deadlines)
        self.facts = await service.start()
        self._started.set()
        await self._stop.wait()
        await service.stop()

    def ask_to_stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)

    def stop(self) -> None:
        self.ask_to_stop()
        self._thread.join(30)
        assert not self._thread.is_alive()

    # --- ways in

    def tcp(self) -> Pipe:
        assert self.facts.amqp is not None
        return SocketPipe(dial(self.facts.amqp))

    def secure(self) -> Pipe:
        raw = dial(self.facts.amqps)
        return SocketPipe(self.tls.wrap_socket(raw, server_hostname="localhost"))

    def websocket(
        self, path: str = PATH, protocol: str | None = "AMQPWSB10"
    ) -> contextlib.AbstractContextManager[ClientConnection]:
        try:
            return connect(
                f"wss://{urlsplit(self.facts.https).netloc}{path}",
                ssl=self.websocket_tls,
                subprotocols=None if protocol is None else [Subprotocol(protocol)],
                open_timeout=TIMEOUT_S,
                close_timeout=TIMEOUT_S,
                max_size=None,
                proxy=None,
            )
        except TimeoutError as error:
            raise AssertionError(f"no answer to the upgrade\n{self.describe()}") from error

    def describe(self) -> str:
        """What the event loop does, and what its tasks wait for."""
        text = io.StringIO()
        assert self._thread.ident is not None
        traceback.print_stack(sys._current_frames()[self._thread.ident], file=text)
        for task in asyncio.all_tasks(self._loop):
            task.print_stack(limit=4, file=text)
        return text.getvalue()

    def https(self) -> ssl.SSLSocket:
        raw = dial(urlsplit(self.facts.https).netloc)
        return self.tls.wrap_socket(raw, server_hostname="localhost")

    def talk(self, pipe: Pipe) -> Talk:
        return Talk(pipe, self.endpoint)


def dial(authority: str) -> socket.socket:
    host, _, port = authority.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=TIMEOUT_S)


class Pipe:
    """Bytes to and fro; b"" when the other side is gone."""

    def send(self, data: bytes) -> None:
        raise NotImplementedError

    def receive(self) -> bytes:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class SocketPipe(Pipe):
    def __init__(self, raw: socket.socket) -> None:
        self.raw = raw

    def send(self, data: bytes) -> None:
        self.raw.sendall(data)

    def receive(self) -> bytes:
        try:
            return self.raw.recv(65536)
        except (ConnectionResetError, ssl.SSLEOFError):
            return b""

    def close(self) -> None:
        self.raw.close()


class WebSocketPipe(Pipe):
    """`chunk` bytes per message, so that frames do not end where messages do."""

    def __init__(self, ws: ClientConnection, chunk: int = 2**20) -> None:
        self._ws = ws
        self._chunk = chunk

    def send(self, data: bytes) -> None:
        for at in range(0, len(data), self._chunk):
            self._ws.send(data[at : at + self._chunk])

    def receive(self) -> bytes:
        try:
            data = self._ws.recv(timeout=TIMEOUT_S)
        except ConnectionClosed:
            return b""
        assert isinstance(data, bytes)
        return data

    def close(self) -> None:
        self._ws.close()


class Talk:
    """A client that blocks: the engine over a pipe, let in by SASL PLAIN."""

    def __init__(self, pipe: Pipe, endpoint: Endpoint) -> None:
        assert endpoint.key_name is not None
        assert endpoint.key is not None
        self.pipe = pipe
        self.events: list[Event] = []
        self._response = f"\0{endpoint.key_name}\0{endpoint.key.reveal()}".encode()
        self.engine = ConnectionEngine(
            ConnectionConfig(container_id="talk", hostname="localhost", server=False),
            now_ms=0,
        )
        self.engine.start()
        self._until(lambda: self.engine.sasl_state.name == "DONE")
        self.engine.send_open()
        self.session = self.engine.begin()
        self._until(lambda: self.session.is_mapped)

    def attach(self, address: str, role: LinkRole) -> Link:
        link = self.session.new_link(f"link-{os.urandom(4).hex()}", role)
        link.request(source=Source(address=address), target=Target(address=address))
        self._until(lambda: link.is_attached)
        return link

    def publish(self, body: bytes) -> None:
        link = self.attach("events/Partitions/0", LinkRole.SENDER)
        self._until(lambda: link.credit > 0)
        link.send(encode_message(Message(body=DataBody([body]))), settled=False)
        before = len(self._outcomes())
        self._until(lambda: len(self._outcomes()) > before)
        assert isinstance(self._outcomes()[-1].disposition.state, Accepted)

    def read_until(self, body: bytes) -> None:
        link = self.attach(READER, LinkRole.RECEIVER)
        link.grant(100_000)
        self._until(lambda: body in self._bodies())

    def converse(self) -> None:
        """Publish something and read it back."""
        body = os.urandom(16).hex().encode()
        self.publish(body)
        self.read_until(body)

    def wait_for_close(self) -> CloseReceived:
        self._until(lambda: any(isinstance(event, CloseReceived) for event in self.events))
        return next(event for event in self.events if isinstance(event, CloseReceived))

    def close(self) -> None:
        self.engine.close()
        with contextlib.suppress(OSError):
            self._until(lambda: self.engine.is_over)
        self.pipe.close()

    def _outcomes(self) -> list[DispositionReceived]:
        return [event for event in self.events if isinstance(event, DispositionReceived)]

    def _bodies(self) -> list[bytes]:
        return [
            b"".join(body.chunks)
            for event in self.events
            if isinstance(event, TransfersReceived)
            for i in range(0, len(event.bounds), 2)
            if isinstance(
                body := decode_message(event.data[event.bounds[i] : event.bounds[i + 1]]).body,
                DataBody,
            )
        ]

    def _until(self, reached: Callable[[], bool]) -> None:
        while True:
            outgoing = self.engine.bytes_to_send(now_ms=0)
            if outgoing:
                self.pipe.send(outgoing)
            if reached():
                return
            incoming = self.pipe.receive()
            if not incoming:
                raise ConnectionResetError("the service hung up")
            for event in self.engine.receive_data(incoming, now_ms=0):
                self.events.append(event)
                if isinstance(event, SaslMechanismsReceived):
                    self.engine.init_sasl("PLAIN", self._response)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    running = Service(tmp_path_factory.mktemp("gateway") / "data")
    yield running
    running.stop()


# --- the same conversation by every way ---------------------------------------------------------


@pytest.mark.parametrize("way", ["tcp", "secure"])
def test_sockets_carry_a_conversation(service: Service, way: str) -> None:
    talk = service.talk(getattr(service, way)())
    talk.converse()
    talk.close()


@pytest.mark.parametrize(
    ("path", "protocol"),
    [
        (PATH, "AMQPWSB10"),
        (PATH, "amqp"),
        (f"{PATH}/", "amqp"),
        (f"{PATH}?iothub-no-client-cert=true", "AMQPWSB10"),
        (PATH, None),
    ],
)
def test_websocket_carries_a_conversation(
    service: Service, path: str, protocol: str | None
) -> None:
    with service.websocket(path, protocol) as ws:
        assert ws.subprotocol == protocol  # the one offered is echoed
        assert ws.protocol.extensions == []  # permessage-deflate was offered and is declined
        talk = service.talk(WebSocketPipe(ws))
        talk.converse()
        talk.close()


def test_frames_need_not_end_where_websocket_messages_do(service: Service) -> None:
    with service.websocket() as ws:
        talk = service.talk(WebSocketPipe(ws, chunk=7))
        talk.converse()
        talk.close()


# --- upgrades -----------------------------------------------------------------------------------


def upgrade(service: Service, target: str, **headers: str) -> str:
    """The answer's head to an upgrade request written by hand."""
    lines = {
        "Host": "localhost",
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Protocol": "AMQPWSB10",
        **headers,
    }
    with service.https() as secure:
        head = f"GET {target} HTTP/1.1\r\n"
        secure.sendall(
            (head + "".join(f"{k}: {v}\r\n" for k, v in lines.items()) + "\r\n").encode()
        )
        answer = b""
        while b"\r\n\r\n" not in answer:
            chunk = secure.recv(4096)
            if not chunk:
                break
            answer += chunk
    return answer.decode("latin-1")


def test_upgrade_in_absolute_form_without_a_port_is_taken(service: Service) -> None:
    """As the Java SDK writes it (protocol.md 1.2)."""
    answer = upgrade(service, f"https://localhost{PATH}")
    status, _, rest = answer.partition("\r\n")
    assert status == "HTTP/1.1 101 Switching Protocols"
    assert "sec-websocket-protocol: amqpwsb10" in rest.lower()


def test_foreign_subprotocol_is_refused(service: Service) -> None:
    with pytest.raises(InvalidStatus) as refused, service.websocket(PATH, "mqtt"):
        pass
    assert refused.value.response.status_code == 403


def test_upgrade_elsewhere_is_refused(service: Service) -> None:
    for path in ("/", f"{PATH}/deeper", "/$servicebus"):
        with pytest.raises(InvalidHandshake), service.websocket(path):
            pass


# --- what must not be said ----------------------------------------------------------------------


def closing_code(ws: ClientConnection) -> int | None:
    with pytest.raises(ConnectionClosed):
        while True:
            ws.recv(timeout=TIMEOUT_S)
    return ws.protocol.close_code


def test_text_message_closes_the_websocket(service: Service) -> None:
    with service.websocket() as ws:
        ws.send("AMQP")
        assert closing_code(ws) == 1003


def test_websocket_message_above_two_megabytes_closes(service: Service) -> None:
    with service.websocket() as ws:
        with contextlib.suppress(ConnectionClosed):
            ws.send(SASL_HEADER + bytes(2 * 1024 * 1024))
        assert closing_code(ws) == 1009


@pytest.mark.parametrize("way", ["tcp", "secure"])
def test_garbage_closes_at_once(service: Service, way: str) -> None:
    """The header that we do speak is the answer to garbage; at the deadline there is none."""
    with contextlib.closing(getattr(service, way)()) as pipe:
        pipe.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert pipe.receive() == SASL_HEADER
        assert pipe.receive() == b""


@pytest.mark.parametrize("way", ["tcp", "secure"])
@pytest.mark.parametrize("said", [b"", b"AMQP", SASL_HEADER])
def test_half_open_connection_is_closed_at_its_deadline(
    service: Service, way: str, said: bytes
) -> None:
    with contextlib.closing(getattr(service, way)()) as pipe:
        started = time.monotonic()
        pipe.send(said)
        while pipe.receive():
            pass
    assert HEADER_MS / 1000 - 0.1 < time.monotonic() - started < TIMEOUT_S / 2


def test_half_open_websocket_is_closed_at_its_deadline(service: Service) -> None:
    with service.websocket() as ws:
        assert closing_code(ws) == 1000


def test_garbage_of_many_does_not_disturb_a_client(service: Service) -> None:
    talk = service.talk(service.secure())
    crowd = [dial(str(service.facts.amqp)) for _ in range(64)]
    try:
        for n, one in enumerate(crowd):
            one.sendall((os.urandom(4096), SASL_HEADER, AMQP_HEADER + b"\xff" * 64, b"\x00")[n % 4])
        for _ in range(3):
            talk.converse()
    finally:
        for one in crowd:
            one.close()
    talk.close()


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_frame_header_of_four_gigabytes_takes_no_memory(service: Service) -> None:
    crowd = [dial(str(service.facts.amqp)) for _ in range(100)]
    before = rss_bytes()
    for one in crowd:
        one.sendall(SASL_HEADER + b"\xff\xff\xff\xff\x02\x01\x00\x00" + bytes(1000))
    for one in crowd:
        with contextlib.suppress(ConnectionResetError):
            while one.recv(4096):
                pass
        one.close()
    assert rss_bytes() - before < 10 * 1024 * 1024


def test_reader_that_grants_everything_and_reads_nothing_takes_little(service: Service) -> None:
    """Credit 2**32 - 1 over a backlog of many megabytes: the socket's buffer and no more (H.2)."""
    writer = service.talk(service.tcp())
    for _ in range(60):
        writer.publish(os.urandom(200_000))
    greedy = [service.talk(service.tcp()) for _ in range(5)]
    before = rss_bytes()
    for talk in greedy:
        link = talk.attach(READER, LinkRole.RECEIVER)
        link.grant(2**32 - 1)
        talk.pipe.send(talk.engine.bytes_to_send(now_ms=0))
    for _ in range(5):
        writer.publish(b"still served")
    assert rss_bytes() - before < 40 * 1024 * 1024
    for talk in greedy:
        talk.pipe.close()
    writer.close()


# --- the service stops --------------------------------------------------------------------------


@pytest.fixture
def brief(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    """A service of the test's own, to be stopped."""
    monkeypatch.setattr(wiring, "_GRACE_S", 1.0)
    return Service(tmp_path / "data")


def goodbyes(service: Service, pipes: list[Pipe]) -> list[str]:
    """What each client is told when the service stops, which it does in time."""
    talks = [service.talk(pipe) for pipe in pipes]
    service.ask_to_stop()
    try:
        errors = [talk.wait_for_close().error for talk in talks]
    finally:
        for talk in talks:
            talk.close()
        service.stop()
    return [error.condition for error in errors if error is not None]


def test_stopping_says_goodbye_over_tcp_and_tls(brief: Service) -> None:
    with contextlib.closing(dial(str(brief.facts.amqp))):  # one that never says a word
        pipes = [brief.tcp(), brief.secure()]
        assert goodbyes(brief, pipes) == ["amqp:connection:forced"] * 2


def test_stopping_says_goodbye_over_websocket(brief: Service) -> None:
    with brief.websocket() as ws:
        assert goodbyes(brief, [WebSocketPipe(ws)]) == ["amqp:connection:forced"]
