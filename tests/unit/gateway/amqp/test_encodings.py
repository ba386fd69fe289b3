"""The encoding rules that keep every client alive (protocol.md 0.2), on all that the gateway writes
in a conversation with everything in it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from penstock.amqp.link import LinkRole
from penstock.amqp.types import Long, Symbol

if TYPE_CHECKING:
    from tests.unit.gateway.amqp.conftest import Peer, World

# Descriptor -> how many fields its list must have (E2).
FIELDS = {0x10: 10, 0x11: 8, 0x12: 14, 0x13: 11, 0x14: 11, 0x15: 6, 0x16: 3, 0x17: 1, 0x18: 1}
TRANSFER = 0x14


class RawFrame(NamedTuple):
    code: int
    fields: int
    body: bytes  # from the descriptor on, payload and all


def raw_frames(data: bytes) -> Iterator[RawFrame]:
    position = 0
    while position < len(data):
        if data.startswith(b"AMQP", position):
            position += 8
            continue
        size, doff, kind = struct.unpack_from(">IBB", data, position)
        body = data[position + 4 * doff : position + size]
        position += size
        if body and kind == 0:
            assert body[:2] == b"\x00\x53", body[:16].hex()  # E1
            assert body[3] in (0xC0, 0xD0)  # E3: never list0
            count = body[5] if body[3] == 0xC0 else struct.unpack_from(">I", body, 8)[0]
            yield RawFrame(body[2], count, body)


@pytest.fixture
def written(world: World, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> list[RawFrame]:
    """Every AMQP frame of: tokens good and bad, facts, publishing, reading, refusals, the end."""
    data = bytearray()
    takes = peer.socket.write

    def overheard(chunk: bytes) -> None:
        data.extend(chunk)
        takes(chunk)

    monkeypatch.setattr(peer.socket, "write", overheard)
    peer.put_token("eh1", key="wrong")
    asked: dict[str, Any] = {"operation": "READ", "type": "com.microsoft:eventhub", "name": "eh1"}
    peer.request("$management", {**asked, "security_token": world.token("eh1")})
    peer.request("$management", {**asked, "name": "nothing"})
    sender = peer.sender("eh1/Partitions/0")
    peer.publish(sender, world.event(b"good", key="k"), b"bad", world.event(b"x" * 100_000))
    epoch = {Symbol("com.microsoft:epoch"): Long(1)}
    peer.receiver(0, credit=5, properties=epoch)
    peer.receiver(0, credit=5, properties=epoch)  # takes over
    peer.refusal("nothing", LinkRole.SENDER)
    session = peer.engine.begin()
    peer.run()
    session.end()
    peer.run()
    peer.connection.shut_down()
    peer.run()
    return list(raw_frames(bytes(data)))


def test_conversation_has_every_kind_of_frame_but_open(written: list[RawFrame]) -> None:
    assert {each.code for each in written} == set(FIELDS) - {0x10}


def test_no_trailing_field_is_left_out(written: list[RawFrame]) -> None:
    assert [each for each in written if each.fields != FIELDS[each.code]] == []  # E2


def test_every_error_has_three_fields(written: list[RawFrame]) -> None:
    """E12: 00 53 1d, a list, three."""
    seen = 0
    for each in written:
        at = each.body.find(b"\x00\x53\x1d")
        if each.code != TRANSFER and at >= 0:
            seen += 1
            if each.body[at + 3] == 0xC0:
                assert each.body[at + 5] == 3
            else:
                assert struct.unpack_from(">I", each.body, at + 8)[0] == 3
    assert seen >= 4


def test_sections_that_are_sent_have_short_descriptors(written: list[RawFrame]) -> None:
    sections = []
    for body in (each.body for each in written if each.code == TRANSFER):
        payload = 5 + body[4] if body[3] == 0xC0 else 8 + struct.unpack_from(">I", body, 4)[0]
        sections.append(body[payload : payload + 3])
    firsts = [section for section in sections if section != b"xxx"]  # later frames of a large event
    assert len(firsts) >= 5
    assert all(section[:2] == b"\x00\x53" for section in firsts)  # E1, E22
    assert all(0x70 <= section[2] <= 0x78 for section in firsts)
