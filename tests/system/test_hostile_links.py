"""Peers with a good key that ask for too much: links, sessions, ranges, credit, time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.amqp.frames import AMQP_HEADER, EMPTY_FRAME, SASL_HEADER
from penstock.amqp.performatives import Close, Detach, Disposition, Flow, Transfer
from penstock.model import limits

if TYPE_CHECKING:
    from tests.system.conftest import Attacker, Hostile, Kit, Victim

READER = "events/ConsumerGroups/$Default/Partitions/3"
CLOSE = b"\x00\x53\x18"
BLOCK_BYTES = 64 * 1024


def closes(hostile: Hostile, condition: bytes) -> bool:
    return hostile.is_cut_off() and CLOSE in hostile.heard and condition in hostile.heard


# --- numbers ------------------------------------------------------------------------------------


def test_thousand_links_on_one_session_end_the_connection(
    victim: Victim, attacker: Attacker, kit: Kit
) -> None:
    """handle-max 255 was announced (protocol.md 13)."""
    with victim.survives(growth_mb=20):
        hostile = attacker.known(*(kit.sender(handle) for handle in range(257)))
        assert closes(hostile, b"amqp:connection:framing-error")
        assert attacker.known(*(kit.sender(handle) for handle in range(1000))).is_cut_off()


def test_links_of_one_connection_are_bounded(impatient: Victim, bold: Attacker, kit: Kit) -> None:
    """However many sessions they are spread over."""
    with impatient.survives(growth_mb=30):
        hostile = bold.known()
        for channel in range(1, 5):
            hostile.say(kit.frame(kit.begin, channel=channel))
            links = [kit.sender(handle, "$cbs", channel=channel) for handle in range(256)]
            hostile.say(b"".join(links))
        hostile.say(kit.sender(0, "$cbs"))
        assert closes(hostile, b"amqp:resource-limit-exceeded")


def test_thousands_of_sessions_end_the_connection(
    victim: Victim, attacker: Attacker, kit: Kit
) -> None:
    with victim.survives(growth_mb=20):
        hostile = attacker.known()
        sessions = limits.SESSIONS_PER_CONNECTION_MAX
        hostile.say(b"".join(kit.frame(kit.begin, channel=n) for n in range(1, sessions + 1)))
        assert closes(hostile, b"amqp:resource-limit-exceeded")
        many = attacker.known(*(kit.frame(kit.begin, channel=n) for n in range(1, 4000)))
        assert many.is_cut_off()


def test_channel_above_the_announced_ends_the_connection(
    victim: Victim, attacker: Attacker, kit: Kit
) -> None:
    hostile = attacker.known(kit.frame(kit.begin, channel=65_000))
    assert closes(hostile, b"amqp:connection:framing-error")


def test_absurd_ranges_and_numbers_are_borne(victim: Victim, attacker: Attacker, kit: Kit) -> None:
    """Never walked, whatever they span; a peer that asks is answered."""
    most = 2**32 - 1
    with victim.survives(growth_mb=10):
        hostile = attacker.known(
            kit.sender(0),
            kit.receiver(1, READER),
            kit.frame(Disposition(role=True, first=0, last=most, settled=False)),
            kit.frame(Disposition(role=False, first=most, last=0, settled=True)),
            kit.frame(
                Flow(
                    next_incoming_id=most,
                    incoming_window=most,
                    next_outgoing_id=most,
                    outgoing_window=most,
                    handle=1,
                    delivery_count=most,
                    link_credit=most,
                    available=most,
                    drain=True,
                    echo=True,
                )
            ),
            kit.frame(Disposition(role=True, first=7, last=7, settled=False)),
            kit.frame(Detach(handle=0, closed=True)),
            kit.frame(Close()),
        )
        assert hostile.is_cut_off()
        assert CLOSE in hostile.heard
        assert b"amqp:" not in hostile.heard.partition(b"events/Consumer")[2]  # no complaint


def test_deliveries_that_never_end_are_bounded(
    victim: Victim, attacker: Attacker, kit: Kit
) -> None:
    """Many links, each with an event of which another piece is always to come."""
    with victim.survives(growth_mb=40):
        hostile = attacker.known(*(kit.sender(handle) for handle in range(70)))
        for number in range(70):  # the last piece of all is the one too many: 16 MB
            piece = Transfer(handle=number, delivery_id=number, delivery_tag=b"1", more=True)
            hostile.say(kit.frame(piece, bytes(60_000)) * 4)
        assert closes(hostile, b"amqp:resource-limit-exceeded")


# --- work ---------------------------------------------------------------------------------------


def floods(kit: Kit) -> dict[str, tuple[bytes, bytes]]:
    """What is said first, and then again and again."""
    piece = Transfer(handle=0, delivery_id=0, delivery_tag=b"1", more=True)
    bad = Transfer(handle=0, delivery_id=0, delivery_tag=b"1", message_format=0x80013700)
    return {
        "empty frames": (b"", EMPTY_FRAME),
        "flows": (b"", kit.flow()),
        "flows that ask for an answer": (
            b"",
            kit.frame(
                Flow(
                    next_incoming_id=1,
                    incoming_window=9,
                    next_outgoing_id=0,
                    outgoing_window=9,
                    echo=True,
                )
            ),
        ),
        "dispositions": (b"", kit.frame(Disposition(role=True, first=0, last=2**32 - 1))),
        "pieces of an event": (kit.sender(0), kit.frame(piece)),
        "events to be refused": (kit.sender(0), kit.frame(bad, b"\x00\x53\x99\x45")),
    }


def test_flood_that_nothing_comes_of_slows_down_its_sender_alone(
    victim: Victim, attacker: Attacker, kit: Kit
) -> None:
    """The peer's own buffers fill, ours do not: it is not read. Nobody reads the answers."""

    def attack(first: bytes, again: bytes) -> int:
        block = again * (BLOCK_BYTES // len(again))
        return attacker.known(first).flood(block, bytes_max=64 * limits.MB)

    with victim.survives(growth_mb=60):
        words = floods(kit)
        taken = kit.together(*(lambda said=said: attack(*said) for said in words.values()))
        # What two sockets hold at most (tcp_wmem, tcp_rmem), and what was done before it rested.
        assert max(taken) < 24 * limits.MB, dict(zip(words, taken, strict=True))


# --- readers ------------------------------------------------------------------------------------


def test_readers_that_never_read_cost_their_buffers_and_no_more(
    victim: Victim, attacker: Attacker, kit: Kit
) -> None:
    """Endless credit over a backlog of 20 MB; then none of them takes a byte."""
    writer = victim.normal()
    writer.publish(100, partition=3, size=200_000)
    with victim.survives(growth_mb=40):
        for _ in range(limits.SHARED_READERS_MAX):
            hostile = attacker.known(kit.receiver(0, READER), kit.flow(handle=0, credit=2**31 - 1))
            assert hostile.raw.recv(4)  # the attach is answered; that is all that is ever read
    writer.close()


def test_reader_that_never_grants_again_keeps_nobody_from_reading(
    victim: Victim, attacker: Attacker, kit: Kit
) -> None:
    reader = "events/ConsumerGroups/$Default/Partitions/0"
    with victim.survives(growth_mb=20):
        for _ in range(3):
            hostile = attacker.known(kit.receiver(0, reader), kit.flow(handle=0, credit=1))
            assert hostile.hear()
        client = victim.normal()
        client.publish(300)
        client.read(300)
        client.close()


# --- time ---------------------------------------------------------------------------------------


def test_connections_that_dawdle_end_at_their_deadlines(bold: Attacker, kit: Kit) -> None:
    """Silent, half a header, a byte now and then, SASL and no more, at every door."""
    greetings = {
        "amqp": (b"", b"AMQ", SASL_HEADER, AMQP_HEADER, SASL_HEADER + b"\x00\x00\x00\x20\x02"),
        "amqps": (b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
        "https": (b"", b"\x16"),
        "admin": (b"", b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "),
    }
    crowd = []
    for door, words in greetings.items():
        for said in words:
            for _ in range(5):
                hostile = bold.dial(door)
                if said:
                    hostile.say(said)
                crowd.append(hostile)
    slow = [bold.dial() for _ in range(5)]
    for byte in SASL_HEADER[:-1]:  # one byte at a time does not move the deadline
        for hostile in slow:
            hostile.say(bytes((byte,)))
    assert kit.all_cut_off(crowd + slow)
    assert all(b"HTTP" not in hostile.heard for hostile in crowd)
