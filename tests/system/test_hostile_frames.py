"""Bombs: frames, values and counts that promise more than they are, before and behind SASL."""

from __future__ import annotations

import random
import struct
from typing import TYPE_CHECKING

import pytest

from penstock.amqp.frames import AMQP_HEADER, SASL_HEADER, encode_frame
from penstock.amqp.message import DataBody, Message, encode_message
from penstock.amqp.performatives import Transfer

if TYPE_CHECKING:
    from tests.system.conftest import Attacker, Kit, Victim

# doff, type and channel of a usual frame of either kind
SASL, AMQP = b"\x02\x01\x00\x00", b"\x02\x00\x00\x00"
BAD_FRAMES = {
    "four gigabytes": b"\xff\xff\xff\xff" + SASL,
    "half of it": b"\x80\x00\x00\x00" + SASL,
    "one byte above the limit": struct.pack(">I", 8193) + SASL,
    "no bytes": b"\x00\x00\x00\x00" + SASL,
    "seven bytes": b"\x00\x00\x00\x07" + SASL,
    "data offset 0": b"\x00\x00\x00\x10\x00\x01\x00\x00",
    "data offset 1": b"\x00\x00\x00\x10\x01\x01\x00\x00",
    "data offset behind the frame": b"\x00\x00\x00\x10\xff\x01\x00\x00",
    "unknown type": b"\x00\x00\x00\x10\x02\x07\x00\x00",
    "the other type": b"\x00\x00\x00\x10" + AMQP,
}
LISTS = b"\xd0\xff\xff\xff\xf0\x00\x00\x00\x01"  # a list of one, sizes that cannot be


def nested(depth: int) -> bytes:
    """A list of a list of a list, each with an honest size."""
    value = b"\x45"
    for _ in range(depth):
        value = b"\xd0" + struct.pack(">II", len(value) + 4, 1) + value
    return value


def described(depth: int) -> bytes:
    """Descriptors of descriptors: nesting that no size announces."""
    return b"\x00" * depth + b"\x40" * (depth + 1)


VALUES = {
    "nested lists": nested(600),
    "nested descriptors": described(3000),
    "sizes that cannot be": LISTS * 500,
    "list of four billion": b"\xd0\x00\x00\x00\x08\xff\xff\xff\xff\x40\x40\x40\x40",
    "map of four billion": b"\xd1\x00\x00\x00\x08\xff\xff\xff\xff\x40\x40\x40\x40",
    "array of four billion nulls": b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40",
    "arrays of 65 536 nulls": b"\xd0\x00\x00\x03\xec\x00\x00\x00\x64"
    + b"\xf0\x00\x00\x00\x05\x00\x01\x00\x00\x40" * 100,
    "string of four gigabytes": b"\xb1\xff\xff\xff\xff" + b"x" * 100,
    "map with one key": b"\xc1\x02\x01\x40",
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_bad_frame_costs_its_connection(victim: Victim, attacker: Attacker, name: str) -> None:
    with victim.survives(growth_mb=10):
        for start in (SASL_HEADER, AMQP_HEADER):
            hostile = attacker.dial()
            kind = 1 if start == SASL_HEADER else 0
            bad = bytearray(BAD_FRAMES[name])
            if name not in ("unknown type", "the other type"):
                bad[5] = kind
            elif name == "the other type":
                bad[5] = 1 - kind
            hostile.say(start + bytes(bad) + bytes(100))
            assert hostile.is_cut_off()


def test_thousand_headers_of_four_gigabytes_take_no_memory(victim: Victim, kit: Kit) -> None:
    """From several addresses: the connections of one address would be delayed."""
    with victim.survives(growth_mb=40):
        for _ in range(40):
            attacker = victim.attacker()
            crowd = [attacker.dial() for _ in range(25)]
            for hostile in crowd:
                hostile.say(SASL_HEADER + BAD_FRAMES["four gigabytes"] + bytes(1000))
            assert kit.all_cut_off(crowd)
            attacker.close()


@pytest.mark.parametrize("name", VALUES)
def test_bomb_in_a_performative_costs_its_connection(
    victim: Victim, attacker: Attacker, name: str
) -> None:
    value = VALUES[name]
    with victim.survives(growth_mb=20):
        if len(value) < 8000:
            hostile = attacker.dial()  # before anybody is known: sasl-init and open
            hostile.say(SASL_HEADER + encode_frame(0, b"\x00\x53\x41" + value, frame_type=1))
            assert hostile.is_cut_off()
            hostile = attacker.dial()
            hostile.say(AMQP_HEADER + encode_frame(0, b"\x00\x53\x10" + value))
            assert hostile.is_cut_off()
        for code in (0x12, 0x13, 0x14, 0x15):  # attach, flow, transfer, disposition
            hostile = attacker.known(encode_frame(0, bytes((0, 0x53, code)) + value))
            assert hostile.is_cut_off()
            assert b"amqp:" in hostile.heard


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("section", [0x70, 0x72, 0x73, 0x74, 0x77, 0x78])
def test_bomb_in_a_message_is_refused_and_not_stored(
    victim: Victim, attacker: Attacker, kit: Kit, name: str, section: int
) -> None:
    """Every reader would have to decode it, so the sender gets an error
    (docs/explanation/security.md)."""
    value = VALUES[name]
    body = b"\x00\x53\x75\xa0\x01x"
    bomb = bytes((0, 0x53, section)) + value + (b"" if section == 0x77 else body)
    fine = encode_message(Message(body=DataBody([b"fine"])))
    transfers = [
        Transfer(handle=0, delivery_id=number, delivery_tag=b"%d" % number, message_format=0)
        for number in range(2)
    ]
    hostile = attacker.known(
        kit.sender(0, "events/Partitions/2"),
        kit.frame(transfers[0], bomb),
        kit.frame(transfers[1], fine),
    )
    while b"\x00\x53\x24" not in hostile.heard:  # the fine one was accepted
        assert hostile.hear(), "the connection ended over a message"
    assert b"\x00\x53\x25" in hostile.heard  # the bomb was rejected
    assert b"amqp:decode-error" in hostile.heard


def test_batch_of_bombs_is_refused_whole(victim: Victim, attacker: Attacker, kit: Kit) -> None:
    with victim.survives(growth_mb=20):
        inner = b"\x00\x53\x74" + VALUES["nested lists"]
        batch = encode_message(Message(body=DataBody([inner, b"\x00\x53\x75\xa0\x01x"])))
        transfer = Transfer(handle=0, delivery_id=0, delivery_tag=b"0", message_format=0x80013700)
        hostile = attacker.known(kit.sender(0), kit.frame(transfer, batch))
        while b"\x00\x53\x25" not in hostile.heard:
            assert hostile.hear()
        assert b"\x00\x53\x24" not in hostile.heard


def test_garbage_costs_its_connection(victim: Victim, attacker: Attacker, kit: Kit) -> None:
    chance = random.Random(4)
    with victim.survives(growth_mb=20):
        crowd = []
        for number in range(60):
            garbage = chance.randbytes(chance.randrange(1, 5000))
            if number % 3 == 0:
                crowd.append(attacker.dial())
                crowd[-1].say(garbage)
            elif number % 3 == 1:
                crowd.append(attacker.dial())
                crowd[-1].say(SASL_HEADER + b"\xff" * 8 + garbage)
            else:
                crowd.append(attacker.known(struct.pack(">I", 9) + AMQP + garbage))
        assert kit.all_cut_off(crowd)
