"""HTTP and WebSocket tricks at the HTTPS and the administration port."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

import pytest

from penstock.amqp.frames import AMQP_HEADER, SASL_HEADER
from penstock.model import limits

if TYPE_CHECKING:
    from tests.system.conftest import Attacker, Hostile, Kit, Victim

LISTENERS = ["https", "admin"]
UPGRADE = (
    b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


def dial(attacker: Attacker, listener: str) -> Hostile:
    return attacker.dial(listener) if listener == "admin" else attacker.secure(listener)


# --- two readings of one request ----------------------------------------------------------------

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
TWO_READINGS = {
    "length and chunks": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 4\r\nContent-Length: 0\r\n\r\nabcd",
    "two lengths in one": b"Content-Length: 4, 0\r\n\r\nabcd",
    "negative length": b"Content-Length: -4\r\n\r\nabcd",
    "signed length": b"Content-Length: +4\r\n\r\nabcd",
    "hexadecimal length": b"Content-Length: 0x4\r\n\r\nabcd",
    "length of twenty digits": b"Content-Length: 99999999999999999999\r\n\r\nabcd",
    "space before the colon": b"Content-Length : 4\r\n\r\nabcd",
    "folded header": b"X-One: a\r\n b\r\nContent-Length: 0\r\n\r\n",
    "bare line feeds in chunks": b"Transfer-Encoding: chunked\r\n\r\n1\nx\n0\n\n",
    "unknown coding": b"Transfer-Encoding: gzip, chunked, identity\r\n\r\n0\r\n\r\n",
    "chunk without an end": b"Transfer-Encoding: chunked\r\n\r\n5\r\nabc\r\n0\r\n\r\n",
    "chunk of a size beyond 64 bits": b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
    "chunk size that is none": b"Transfer-Encoding: chunked\r\n\r\nxyz\r\nabc\r\n",
    "null in a header": b"X-Null: a\x00b\r\n\r\n",
    "return in a header": b"X-Return: a\rb\r\n\r\n",
    "nameless header": b": x\r\n\r\n",
}


@pytest.mark.parametrize("listener", LISTENERS)
def test_request_with_two_readings_ends_its_connection(
    victim: Victim, attacker: Attacker, kit: Kit, listener: str
) -> None:
    """Whatever a proxy before us made of it, the second request is never answered."""
    start = b"POST /events/messages HTTP/1.1\r\nHost: localhost\r\n"
    crowd = {name: dial(attacker, listener) for name in TWO_READINGS}
    for name, hostile in crowd.items():
        hostile.say(start + TWO_READINGS[name] + SMUGGLED)
    assert kit.all_cut_off(crowd.values())
    for name, hostile in crowd.items():
        assert hostile.heard.count(b"HTTP/1.1 ") <= 1, name
        assert hostile.heard == b"" or hostile.heard.startswith(b"HTTP/1.1 4"), name


NO_REQUESTS = [
    b"nonsense\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",  # no Host
    b"GET  / HTTP/1.1\r\n\r\n",
    b"G\x00T / HTTP/1.1\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    SASL_HEADER,
    b"\xff" * 200,
]


@pytest.mark.parametrize("listener", LISTENERS)
def test_what_is_no_request_ends_its_connection(
    victim: Victim, attacker: Attacker, kit: Kit, listener: str
) -> None:
    crowd = {said: dial(attacker, listener) for said in NO_REQUESTS}
    for said, hostile in crowd.items():
        hostile.say(said)
    assert kit.all_cut_off(crowd.values())
    for said, hostile in crowd.items():
        assert hostile.heard.startswith(b"HTTP/1.1 400 "), said
        assert hostile.heard.count(b"HTTP/1.1 ") == 1, said


# --- too much of it -----------------------------------------------------------------------------

TOO_MUCH = {
    "endless path": (b"GET /", b"x" * 4096),
    "endless header": (b"GET / HTTP/1.1\r\nX-Long: ", b"x" * 4096),
    "endless name": (b"GET / HTTP/1.1\r\n", b"x" * 4096),
    "many headers": (b"GET / HTTP/1.1\r\n", b"X-H: 1\r\n" * 200),
    "endless trailers": (
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
        b"X-T: " + b"x" * 4000 + b"\r\n",
    ),
    "many requests at once": (b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100),
}


@pytest.mark.parametrize("listener", LISTENERS)
def test_too_much_of_anything_ends_its_connection(
    victim: Victim, attacker: Attacker, kit: Kit, listener: str
) -> None:
    with victim.survives(growth_mb=30):
        crowd = {name: dial(attacker, listener) for name in TOO_MUCH}
        for name, hostile in crowd.items():
            start, again = TOO_MUCH[name]
            hostile.say(start)
            for _ in range(64):
                if not hostile.say(again):
                    break
        assert kit.all_cut_off(crowd.values())


def pour(hostile: Hostile) -> int:
    return hostile.flood(os.urandom(65_536), bytes_max=16 * limits.MB, seconds=0.4)


def test_body_of_a_stranger_is_not_kept(victim: Victim, attacker: Attacker, kit: Kit) -> None:
    """It says that two gigabytes follow, and begins."""
    with victim.survives(growth_mb=20):
        crowd = [attacker.secure("https") for _ in range(5)]
        for hostile in crowd:
            hostile.say(
                b"POST /events/messages HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Length: 2000000000\r\n\r\n"
            )
        kit.together(*(lambda each=each: pour(each) for each in crowd))
        assert kit.all_cut_off(crowd)
        for hostile in crowd:
            assert hostile.heard == b"" or hostile.heard.startswith(b"HTTP/1.1 401 ")


def test_peers_that_do_not_read_their_answers_cost_a_buffer_each(
    victim: Victim, attacker: Attacker
) -> None:
    """The longest answer there is, asked for again and again, and nothing of it is read."""
    request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with victim.survives(growth_mb=20):
        for _ in range(5):
            hostile = attacker.dial("admin")
            hostile.flood(request, bytes_max=200 * len(request), seconds=0.3)


def test_compressed_bodies_are_stored_as_they_are(victim: Victim, attacker: Attacker) -> None:
    """Bodies are never decompressed (docs/explanation/security.md), so a bomb stays small."""
    with victim.survives(growth_mb=10):
        hostile = attacker.secure("https")
        hostile.say(
            b"POST /events/messages HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\n"
            b"Content-Length: 4\r\n\r\n\x1f\x8b\x08\x00"
        )
        assert hostile.hear().startswith(b"HTTP/1.1 401 ")  # without a token, as any other


# --- WebSockets ---------------------------------------------------------------------------------


def frame(opcode: int, data: bytes = b"", *, fin: bool = True) -> bytes:
    head = bytes((opcode | (0x80 if fin else 0),))
    if len(data) < 126:
        head += bytes((0x80 | len(data),))
    else:
        head += b"\xff" + struct.pack(">Q", len(data))
    return head + bytes(4) + data


def websocket(attacker: Attacker, *headers: bytes) -> Hostile:
    hostile = attacker.secure("https")
    hostile.say(UPGRADE + b"".join(header + b"\r\n" for header in headers) + b"\r\n")
    while b"\r\n\r\n" not in hostile.heard:
        assert hostile.hear()
    return hostile


def test_compression_is_declined(victim: Victim, attacker: Attacker) -> None:
    offer = b"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"
    hostile = websocket(attacker, offer)
    assert hostile.heard.startswith(b"HTTP/1.1 101 ")
    assert b"deflate" not in hostile.heard
    hostile.say(b"\xc2\x84" + bytes(4) + b"\x4b\x4c\x04\x00")  # a compressed frame all the same
    assert hostile.is_cut_off()


BAD_FRAMES = {
    "endless": b"\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff" + bytes(4),  # 2**64 - 1 bytes
    "too long": b"\x82\xff" + struct.pack(">Q", limits.WEBSOCKET_MESSAGE_BYTES_MAX + 1) + bytes(4),
    "no mask": b"\x82\x04abcd",
    "opcode": b"\x83\x80" + bytes(4),
    "continuation": b"\x80\x80" + bytes(4),
    "long ping": b"\x89\xfe\x01\x00" + bytes(260),
    "ping in pieces": b"\x09\x80" + bytes(4),
    "text": frame(1, b"AMQP"),
    "garbage": frame(2, b"GET / HTTP/1.1\r\n"),
}


def test_bad_websocket_frame_ends_its_connection(
    victim: Victim, attacker: Attacker, kit: Kit
) -> None:
    """Also when the peer does not answer the close."""
    crowd = [websocket(attacker, b"Sec-WebSocket-Protocol: AMQPWSB10") for _ in BAD_FRAMES]
    for hostile, said in zip(crowd, BAD_FRAMES.values(), strict=True):
        hostile.say(said)
    assert kit.all_cut_off(crowd)


FLOODS = {
    "pings": frame(9),
    "pings with content": frame(9, b"x" * 125),
    "pongs": frame(10),
    "empty messages": frame(2),
    "empty fragments": frame(0, fin=False),
    "fragments of a byte": frame(0, b"x", fin=False),
    "messages of a byte": frame(2, b"A"),
}


def test_flood_of_websocket_frames_slows_down_its_sender_alone(
    victim: Victim, attacker: Attacker, kit: Kit
) -> None:
    """A stranger's, who reads nothing: neither frames nor answers to them pile up."""

    def attack(name: str) -> int:
        hostile = websocket(attacker, b"Sec-WebSocket-Protocol: AMQPWSB10")
        if "ragments" in name:
            hostile.say(frame(2, SASL_HEADER, fin=False))
        block = FLOODS[name] * (65_536 // len(FLOODS[name]))
        return hostile.flood(block, bytes_max=64 * limits.MB)

    with victim.survives(growth_mb=60):
        names = [*FLOODS] * 2
        taken = kit.together(*(lambda name=name: attack(name) for name in names))
        assert max(taken) < 24 * limits.MB, dict(zip(names, taken, strict=True))


def test_upgrades_that_are_left_alone_end_at_their_deadline(bold: Attacker, kit: Kit) -> None:
    crowd = [websocket(bold) for _ in range(8)]
    for number, hostile in enumerate(crowd):
        hostile.say((frame(2, AMQP_HEADER), frame(2, b"AMQP"), frame(2), b"")[number % 4])
    assert kit.all_cut_off(crowd)


def test_head_of_an_upgrade_is_bounded_as_any_other(victim: Victim, attacker: Attacker) -> None:
    hostile = attacker.secure("https")
    hostile.say(UPGRADE + b"X: 1\r\n" * 200 + b"\r\n")
    assert hostile.is_cut_off()
    assert b" 101 " not in hostile.heard
