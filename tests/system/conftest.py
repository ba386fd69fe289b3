"""Peers that misbehave, over real sockets, against `penstock serve`: a victim, its health, a kit.
At the end a forker of `penstock` for the tests of the command line.

Every attack comes from a loopback address of its own (127.0.0.0/8 is all ours), so that one test's
misdeeds are not held against the next, and the normal client beside it stays at 127.0.0.1.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import resource
import select
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.support.amqp_frames import frame

from penstock.amqp.connection import ConnectionConfig, ConnectionEngine
from penstock.amqp.events import (
    DispositionReceived,
    Event,
    SaslMechanismsReceived,
    TransfersReceived,
)
from penstock.amqp.frames import AMQP_HEADER, SASL_HEADER, encode_frame, parse_frame_header
from penstock.amqp.link import Link, LinkRole
from penstock.amqp.message import DataBody, Message, decode_message, encode_message
from penstock.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Flow,
    Open,
    Performative,
    SaslInit,
    Source,
    Target,
    decode_performative,
    encode_performative,
)

POLICY = "RootManageSharedAccessKey"
DEADLINE_S = 60.0  # a loaded machine
BEGIN = Begin(next_outgoing_id=0, incoming_window=2**31, outgoing_window=2**31)


class Normal:
    """A client that does what clients do, blocking; let in by SASL PLAIN."""

    def __init__(self, raw: socket.socket, key: str) -> None:
        self.raw = raw
        self.events: list[Event] = []
        self._response = f"\0{POLICY}\0{key}".encode()
        self.engine = ConnectionEngine(
            ConnectionConfig(container_id="normal", hostname="localhost", server=False), now_ms=0
        )
        self.engine.start()
        self.until(lambda: self.engine.sasl_state.name == "DONE")
        self.engine.send_open()
        self.session = self.engine.begin()
        self.until(lambda: self.session.is_mapped)

    def attach(self, address: str, role: LinkRole) -> Link:
        link = self.session.new_link(os.urandom(8).hex(), role)
        link.request(source=Source(address=address), target=Target(address=address))
        self.until(lambda: link.is_attached)
        return link

    def publish(self, count: int, *, partition: int = 0, size: int = 100) -> None:
        """So many events, each acknowledged."""
        self.publish_bodies([bytes(size)] * count, partition=partition)

    def publish_bodies(self, bodies: list[bytes], *, partition: int = 0) -> None:
        """Until each of them is acknowledged."""
        link = self.attach(f"events/Partitions/{partition}", LinkRole.SENDER)
        before = self._accepted()
        for body in bodies:
            self.until(lambda: link.credit > 0)
            event = encode_message(Message(body=DataBody([body])))
            assert link.send(event, settled=False) is not None
        self.until(lambda: self._accepted() - before >= len(bodies))
        link.detach()
        self.until(lambda: not link.is_attached)

    def read(self, count: int, *, partition: int = 0) -> list[bytes]:
        """The bodies of the first so many events of the partition."""
        self.events.clear()
        link = self.attach(
            f"events/ConsumerGroups/$Default/Partitions/{partition}", LinkRole.RECEIVER
        )
        link.grant(count)
        self.until(lambda: self._received() >= count)
        found = [each for each in self.events if isinstance(each, TransfersReceived)]
        self.events.clear()
        link.detach()
        self.until(lambda: not link.is_attached)
        return [body for each in found for body in _bodies(each)]

    def until(self, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            outgoing = self.engine.bytes_to_send(now_ms=0)
            if outgoing:
                self.raw.sendall(outgoing)
            if reached():
                return
            self.raw.settimeout(max(0.1, deadline - time.monotonic()))
            incoming = self.raw.recv(262_144)
            assert incoming, "the service hung up on a normal client"
            for event in self.engine.receive_data(incoming, now_ms=0):
                self.events.append(event)
                if isinstance(event, SaslMechanismsReceived):
                    self.engine.init_sasl("PLAIN", self._response)

    def close(self) -> None:
        self.raw.close()

    def _accepted(self) -> int:
        return sum(
            (each.disposition.last or each.disposition.first) - each.disposition.first + 1
            for each in self.events
            if isinstance(each, DispositionReceived)
            and isinstance(each.disposition.state, Accepted)
        )

    def _received(self) -> int:
        return sum(e.count for e in self.events if isinstance(e, TransfersReceived))


def _bodies(event: TransfersReceived) -> Iterator[bytes]:
    for start, end in zip(event.bounds[::2], event.bounds[1::2], strict=True):
        body = decode_message(event.data[start:end]).body
        assert isinstance(body, DataBody)
        yield b"".join(body.chunks)


class Hostile:
    """One socket from the attacker's address; `heard` is what it was told until it was cut off."""

    def __init__(self, raw: socket.socket) -> None:
        self.raw = raw
        self.heard = b""

    def say(self, data: bytes) -> bool:
        """False when the other side is gone."""
        self.raw.settimeout(DEADLINE_S)
        try:
            self.raw.sendall(data)
        except OSError:
            return False
        return True

    def flood(self, block: bytes, *, bytes_max: int, seconds: float = 2.0) -> int:
        """Send as much as is taken, reading nothing; how much that was."""
        self.raw.settimeout(0.2)
        sent, end = 0, time.monotonic() + seconds
        with contextlib.suppress(OSError):
            while sent < bytes_max and time.monotonic() < end:
                with contextlib.suppress(TimeoutError):
                    sent += self.raw.send(block)
        return sent

    def hear(self, deadline_s: float = DEADLINE_S) -> bytes:
        """The next bytes; b"" when the other side is gone."""
        self.raw.settimeout(deadline_s)
        try:
            data = self.raw.recv(65536)
        except (ConnectionError, ssl.SSLError):
            return b""
        self.heard += data
        return data

    def is_cut_off(self, deadline_s: float = DEADLINE_S) -> bool:
        """Whether the other side ends it in time, whatever it says before."""
        end = time.monotonic() + deadline_s
        try:
            while self.hear(max(0.05, end - time.monotonic())):
                if time.monotonic() > end:
                    return False
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        self.raw.close()


class Attacker:
    """One address, and sockets from it."""

    def __init__(self, victim: Victim, address: str) -> None:
        self.victim = victim
        self.address = address
        self._sockets: list[Hostile] = []

    def dial(self, door: str = "amqp") -> Hostile:
        """A bare socket: to `amqp`, `amqps`, `https` or `admin`."""
        raw = socket.create_connection(
            ("127.0.0.1", self.victim.port(door)),
            timeout=DEADLINE_S,
            source_address=(self.address, 0),
        )
        return self._keep(raw)

    def secure(self, door: str = "amqps", context: ssl.SSLContext | None = None) -> Hostile:
        bare = self.dial(door)
        self._sockets.remove(bare)
        context = context or self.victim.tls
        return self._keep(context.wrap_socket(bare.raw, server_hostname="localhost"))

    def known(self, *frames: bytes) -> Hostile:
        """With a good key, opened, one session; the frames follow at once."""
        hostile = self.dial()
        hostile.say(self.victim.introduction() + b"".join(frames))
        return hostile

    def stranger(self, *frames: bytes) -> Hostile:
        """Opened, one session, and nobody."""
        hostile = self.dial()
        hostile.say(self.victim.introduction(known=False) + b"".join(frames))
        return hostile

    def close(self) -> None:
        for each in self._sockets:
            each.close()
        self._sockets.clear()

    def _keep(self, raw: socket.socket) -> Hostile:
        hostile = Hostile(raw)
        self._sockets.append(hostile)
        return hostile


class Victim:
    """A running service, and how it is."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.tls = ssl.create_default_context(cafile=server["ca_file"])
        self.key: str = server.key
        self._addresses = itertools.count(2)

    def port(self, door: str) -> int:
        port: int = self._server.port(door)
        return port

    @property
    def log(self) -> str:
        text: str = self._server.log.read_text()
        return text

    def rss_mb(self) -> float:
        pages = int(Path(f"/proc/{self._server.process.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 1_048_576

    def normal(self) -> Normal:
        raw = socket.create_connection(("127.0.0.1", self.port("amqp")), timeout=DEADLINE_S)
        return Normal(raw, self.key)

    def attacker(self) -> Attacker:
        number = next(self._addresses)
        return Attacker(self, f"127.66.{number // 250}.{number % 250 + 1}")

    def introduction(self, *, known: bool = True) -> bytes:
        """SASL, open, begin, all at once."""
        init = SaslInit(mechanism="ANONYMOUS", hostname="localhost")
        if known:
            response = f"\0{POLICY}\0{self.key}".encode()
            init = SaslInit(mechanism="PLAIN", initial_response=response, hostname="localhost")
        sasl = encode_frame(0, encode_performative(init), frame_type=1)
        opened = frame(Open(container_id="hostile", hostname="localhost"))
        return SASL_HEADER + sasl + AMQP_HEADER + opened + frame(BEGIN)

    @contextlib.contextmanager
    def survives(self, *, growth_mb: float) -> Iterator[None]:
        """What happens within costs the attacker its connections and nobody else anything: the
        process lives, its memory grows less than stated, a client that was there before goes on
        during and after it, and new ones come in."""
        with contextlib.closing(self.normal()) as client:
            client.publish(50)
            before = self.rss_mb()
            yield
            client.publish(100)
            grown = self.rss_mb() - before
            assert self._server.process.poll() is None
            assert grown < growth_mb, f"memory grew by {grown:.1f} MB"
        with contextlib.closing(self.normal()) as newcomer:
            newcomer.publish(10)
        assert "Traceback" not in self.log


class Kit:
    """Frames, for tests (which cannot import this file)."""

    frame = staticmethod(frame)
    begin = BEGIN

    @staticmethod
    def sender(handle: int, address: str = "events/Partitions/1", *, channel: int = 0) -> bytes:
        return frame(
            Attach(
                name=f"sender-{handle}",
                handle=handle,
                role=False,
                source=Source(address="here"),
                target=Target(address=address),
                initial_delivery_count=0,
            ),
            channel=channel,
        )

    @staticmethod
    def receiver(handle: int, address: str, *, channel: int = 0) -> bytes:
        return frame(
            Attach(
                name=f"receiver-{os.urandom(4).hex()}",
                handle=handle,
                role=True,
                source=Source(address=address),
                target=Target(address="here"),
            ),
            channel=channel,
        )

    @staticmethod
    def flow(*, handle: int | None = None, credit: int | None = None, window: int = 2**31) -> bytes:
        return frame(
            Flow(
                next_incoming_id=1,
                incoming_window=window,
                next_outgoing_id=0,
                outgoing_window=2**31,
                handle=handle,
                link_credit=credit,
            )
        )

    @staticmethod
    def frames(heard: bytes) -> list[tuple[Performative, bytes]]:
        """The whole AMQP and SASL frames of what was heard: what each says, and its payload."""
        found, position = [], 0
        while len(heard) - position >= 8:
            if heard.startswith(b"AMQP", position):
                position += 8
                continue
            size, body, _, _ = parse_frame_header(heard, position, frame_bytes_max=2**20)
            end = position + size
            if end > len(heard):
                break
            if body < end:
                performative, payload = decode_performative(heard, body, end)
                found.append((performative, heard[payload:end]))
            position = end
        return found

    @staticmethod
    def all_cut_off(crowd: Iterable[Hostile], deadline_s: float = DEADLINE_S) -> bool:
        """Whether every one of them is ended in time; waited for together."""
        waiting = {each.raw: each for each in crowd}
        end = time.monotonic() + deadline_s
        while waiting and time.monotonic() < end:
            ready, _, _ = select.select(list(waiting), [], [], end - time.monotonic())
            for raw in ready:
                with contextlib.suppress(TimeoutError):  # half a TLS record
                    if not waiting[raw].hear(0.1):
                        del waiting[raw]
        return not waiting

    @staticmethod
    def together(*works: Callable[[], int]) -> list[int]:
        """What each of them gave, all done at once."""
        with ThreadPoolExecutor(len(works)) as pool:
            return [each.result() for each in [pool.submit(work) for work in works]]


@pytest.fixture(scope="session")
def victim(start_session_server: Callable[..., Any]) -> Victim:
    return Victim(start_session_server("--hub=events:4", "--flush=os", "--log-level=warning"))


@pytest.fixture
def besieged(start_server: Callable[..., Any]) -> Victim:
    """One with nothing in it yet, which flushes to disk as users have it."""
    return Victim(start_server("--hub=events:4", "--log-level=warning"))


IMPATIENT = """
from penstock.model import limits

limits.HEADER_DEADLINE_MS, limits.OPEN_DEADLINE_MS = 2000, 3000
limits.TLS_DEADLINE_S = limits.HTTP_HEAD_DEADLINE_S = 3
limits.EFFORT_UNITS_ALL_PER_S = 100_000

from penstock.cli import main

main()
"""


@pytest.fixture(scope="session")
def impatient(start_session_server: Callable[..., Any]) -> Victim:
    """One whose deadlines are short, and which lets peers rest only briefly: for tests that would
    wait for that. Clients that have to be let in on a busy machine are not for it."""
    program = (sys.executable, "-c", IMPATIENT)
    options = ("--hub=events:4", "--flush=os", "--log-level=warning")
    return Victim(start_session_server(*options, program=program))


@pytest.fixture
def attacker(victim: Victim) -> Iterator[Attacker]:
    attacker = victim.attacker()
    yield attacker
    attacker.close()


@pytest.fixture
def bold(impatient: Victim) -> Iterator[Attacker]:
    """An attacker of the impatient one."""
    attacker = impatient.attacker()
    yield attacker
    attacker.close()


@pytest.fixture(scope="session")
def kit() -> Kit:
    return Kit()


class Forker:
    """`penstock`, forked from a process that has it loaded (forking.py)."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("forking.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, words: tuple[str, ...], **job: Any) -> int:
        """The command's exit code."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(json.dumps({"words": words, **job}) + "\n")
        stdin.flush()
        ready, _, _ = select.select([stdout], [], [], 1.5 * DEADLINE_S)
        assert ready, f"penstock {' '.join(words)} did not end"
        return int(stdout.readline())

    def close(self) -> None:
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()


@pytest.fixture(scope="session")
def forker() -> Iterator[Forker]:
    forker = Forker()
    yield forker
    forker.close()
