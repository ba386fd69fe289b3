"""Sixty-four connections that misbehave at once, each in a way of its own, beside a client that
does not: whatever that one was told is stored can be read, and memory stays what it was.

`benchmarks/scenarios/hostile_clients.py` measures what they cost it; no time is asserted here.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.amqp.frames import AMQP_HEADER, EMPTY_FRAME, SASL_HEADER, encode_frame
from penstock.amqp.performatives import Begin, Disposition, End, SaslInit, Transfer
from penstock.amqp.performatives import encode_performative as encoded

if TYPE_CHECKING:
    from tests.system.conftest import Attacker, Hostile, Kit, Victim

CONNECTIONS = 64
EVENTS, ROUNDS = 100, 5
BLOCK_BYTES = 64 * 1024
FLOOD_BYTES = 64 * 1024  # of one connection; then it stays for a while, and comes again
STAY_S = 20.0  # so that they do not take the machine from the others that run here
UPGRADE = (
    b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
TOKEN = "SharedAccessSignature sr=localhost&sig=AAAA&se=9999999999&skn=RootManageSharedAccessKey"
REFUSED = (
    "POST /events/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
    f"Authorization: {TOKEN}\r\n\r\nx"
).encode()

Attack = Callable[["Attacker"], "tuple[Hostile, bytes]"]  # what was begun, what is said again


def attacks(kit: Kit) -> dict[str, Attack]:
    """Each comes, says its first words, and gives the words that follow."""

    def stranger(said: bytes, again: bytes = b"", door: str = "amqp") -> Attack:
        def come(attacker: Attacker) -> tuple[Hostile, bytes]:
            hostile = attacker.dial(door)
            hostile.say(said)
            return hostile, again

        return come

    def secure(said: bytes, again: bytes = b"", door: str = "https") -> Attack:
        def come(attacker: Attacker) -> tuple[Hostile, bytes]:
            hostile = attacker.secure(door)
            hostile.say(said)
            return hostile, again

        return come

    def known(said: bytes, again: bytes = b"") -> Attack:
        return lambda attacker: (attacker.known(said), again)

    guess = SaslInit(mechanism="PLAIN", initial_response=b"\0policy\0guess", hostname="localhost")
    lists = b"\xd0\x00\x00\x00\x08\x00\x00\x00\x01" * 500
    reader = kit.receiver(0, "events/ConsumerGroups/$Default/Partitions/0")
    begin = Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9)
    churn = kit.frame(begin, channel=1) + kit.sender(0, channel=1) + kit.frame(End(), channel=1)
    piece = Transfer(handle=0, delivery_id=0, delivery_tag=b"1", more=True)
    bad = Transfer(handle=0, delivery_id=0, delivery_tag=b"1", message_format=0x80013700)
    return {
        "garbage": stranger(os.urandom(512)),
        "frame bomb": stranger(SASL_HEADER + b"\xff\xff\xff\xff\x02\x01\x00\x00" + bytes(1000)),
        "nesting bomb": stranger(
            SASL_HEADER + encode_frame(0, b"\x00\x53\x41" + lists, frame_type=1)
        ),
        "silence": stranger(b""),
        "half a header": stranger(AMQP_HEADER[:5]),
        "bad password": stranger(SASL_HEADER + encode_frame(0, encoded(guess), frame_type=1)),
        "half a handshake": stranger(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", door="amqps"),
        "whole handshake": secure(b"", door="amqps"),
        "empty frames": known(b"", EMPTY_FRAME),
        "flows": known(b"", kit.flow()),
        "dispositions": known(b"", kit.frame(Disposition(role=True, first=0, last=2**32 - 1))),
        "links": known(b"", churn),
        "pieces": known(kit.sender(0), kit.frame(piece)),
        "events to be refused": known(kit.sender(0), kit.frame(bad, b"\x00\x53\x99\x45")),
        "reader": known(reader + kit.flow(handle=0, credit=2**31 - 1)),
        "pings": secure(UPGRADE, b"\x89\x80\x00\x00\x00\x00"),
        "fragments": secure(UPGRADE + b"\x02\x80" + bytes(4), b"\x00\x80\x00\x00\x00\x00"),
        "bad requests": secure(b"nonsense\r\n\r\n"),
        "requests for nothing": secure(b"", b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        "bad tokens": secure(b"", REFUSED),
    }


class Crowd:
    """Every thread is one connection: thrown out, or done, it comes again."""

    def __init__(self, victim: Victim, kit: Kit) -> None:
        ways = list(attacks(kit).values())
        self._over = threading.Event()
        self._there = [threading.Event() for _ in range(CONNECTIONS)]
        self._attackers = [victim.attacker() for _ in range(8)]
        self._threads = [
            threading.Thread(target=self._attack, args=(ways[n % len(ways)], n), daemon=True)
            for n in range(CONNECTIONS)
        ]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()
        for there in self._there:
            assert there.wait(60), "the peers that misbehave did not all come"

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        for attacker in self._attackers:
            attacker.close()

    def _attack(self, way: Attack, number: int) -> None:
        attacker = self._attackers[number % len(self._attackers)]
        while not self._over.is_set():
            with contextlib.suppress(OSError, ssl.SSLError):
                hostile, again = way(attacker)
                self._there[number].set()
                if again:
                    block = again * (BLOCK_BYTES // len(again))
                    hostile.flood(block, bytes_max=FLOOD_BYTES, seconds=1.0)
                self._over.wait(STAY_S)
                hostile.close()


def test_crowd_costs_a_normal_client_nothing_that_it_was_promised(
    besieged: Victim, kit: Kit
) -> None:
    bodies = [b"%d" % number for number in range(EVENTS * ROUNDS)]
    with besieged.survives(growth_mb=100):
        before = 50  # what `survives` publishes first
        with Crowd(besieged, kit), contextlib.closing(besieged.normal()) as client:
            for start in range(0, len(bodies), EVENTS):
                client.publish_bodies(bodies[start : start + EVENTS])
            assert client.read(before + len(bodies))[before:] == bodies
