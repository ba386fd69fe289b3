"""Performatives on the wire, byte by byte: what keeps every client alive (protocol.md 0.2).

Each expected body is written field by field, so that a reader can count them.
"""

from __future__ import annotations

import pytest

from penstock.amqp import types as t
from penstock.amqp.composite import SPECS
from penstock.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Coordinator,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Modified,
    Open,
    Performative,
    Received,
    Rejected,
    Released,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    Source,
    Target,
    Transfer,
    decode_performative,
    encode_performative,
)

SESSION_END = "a3 0b 73657373696f6e2d656e64"


def described_list(code: int, *fields: str) -> bytes:
    """00 53 <code> c0 <size> <count> <fields>; every argument is exactly one field."""
    body = b"".join(bytes.fromhex(field) for field in fields)
    assert len(body) < 255
    return bytes((0x00, 0x53, code, 0xC0, len(body) + 1, len(fields))) + body


ERROR = Error(condition="amqp:not-found", description="no hub")
ERROR_HEX = described_list(
    0x1D, "a3 0e 616d71703a6e6f742d666f756e64", "a1 06 6e6f20687562", "40"
).hex()

CASES: list[tuple[Performative, bytes]] = [
    (
        # What the real service opens with (protocol.md 13).
        Open(container_id="c_G1", max_frame_size=65536, channel_max=4999, idle_time_out=120000),
        described_list(
            0x10,
            "a1 04 635f4731",  # container-id
            "40",  # hostname
            "70 00010000",  # max-frame-size, never null (E4)
            "60 1387",  # channel-max
            "70 0001d4c0",  # idle-time-out
            "40",  # outgoing-locales
            "40",  # incoming-locales
            "40",  # offered-capabilities
            "40",  # desired-capabilities
            "40",  # properties
        ),
    ),
    (
        Open(
            container_id="",
            hostname="ns",
            outgoing_locales=["en-US"],
            incoming_locales=["en-US", "de"],
            offered_capabilities=["a"],
            desired_capabilities=["b"],
            properties={"product": "P", "level": t.Int(2)},
        ),
        described_list(
            0x10,
            "a1 00",
            "a1 02 6e73",
            "70 ffffffff",
            "60 ffff",
            "40",
            "e0 08 01 a3 05 656e2d5553",
            "e0 0b 02 a3 05 656e2d5553 02 6465",
            "e0 04 01 a3 01 61",
            "e0 04 01 a3 01 62",
            "c1 16 04 a3 07 70726f64756374 a1 01 50 a3 05 6c6576656c 54 02",
        ),
    ),
    (
        Begin(
            remote_channel=1,
            next_outgoing_id=1,
            incoming_window=5000,
            outgoing_window=65536,
            handle_max=255,
        ),
        described_list(
            0x11,
            "60 0001",  # remote-channel
            "52 01",  # next-outgoing-id
            "70 00001388",  # incoming-window
            "70 00010000",  # outgoing-window
            "52 ff",  # handle-max, never null (E4)
            "40",  # offered-capabilities
            "40",  # desired-capabilities
            "40",  # properties
        ),
    ),
    (
        Begin(next_outgoing_id=0, incoming_window=0, outgoing_window=0),
        described_list(0x11, "40", "43", "43", "43", "70 ffffffff", "40", "40", "40"),
    ),
    (
        Attach(
            name="link",
            handle=3,
            role=False,
            snd_settle_mode=1,
            rcv_settle_mode=0,
            source=Source(address="s"),
            target=Target(address="t"),
            initial_delivery_count=0,
            max_message_size=1048576,
            desired_capabilities=["com"],
            properties={"e": 3},
        ),
        described_list(
            0x12,
            "a1 04 6c696e6b",  # name
            "52 03",  # handle
            "42",  # role: sender
            "50 01",  # snd-settle-mode
            "50 00",  # rcv-settle-mode
            "005328 c0 1a 0b a1 01 73 43" + SESSION_END + "43 42 40 40 40 40 40 40",  # source
            "005329 c0 16 07 a1 01 74 43" + SESSION_END + "43 42 40 40",  # target
            "40",  # unsettled
            "42",  # incomplete-unsettled
            "43",  # initial-delivery-count: 0 is written, not null (E5)
            "80 0000000000100000",  # max-message-size
            "40",  # offered-capabilities
            "e0 06 01 a3 03 636f6d",  # desired-capabilities
            "c1 06 02 a3 01 65 55 03",  # properties: a plain int is a long
        ),
    ),
    (
        # A refused link: source and target null, all 14 fields there (E15, E2).
        Attach(name="", handle=0, role=True),
        described_list(0x12, "a1 00", "43", "41", *["40"] * 5, "42", "40", "40", "40", "40", "40"),
    ),
    (
        Flow(
            next_incoming_id=0,
            incoming_window=5000,
            next_outgoing_id=1,
            outgoing_window=65536,
            handle=0,
            delivery_count=7,
            link_credit=300,
        ),
        described_list(
            0x13,
            "43",  # next-incoming-id: 0 is not null (E10)
            "70 00001388",  # incoming-window
            "52 01",  # next-outgoing-id
            "70 00010000",  # outgoing-window
            "43",  # handle
            "52 07",  # delivery-count
            "70 0000012c",  # link-credit
            "40",  # available
            "42",  # drain
            "42",  # echo
            "40",  # properties
        ),
    ),
    (
        Flow(
            incoming_window=1,
            next_outgoing_id=2,
            outgoing_window=3,
            available=4,
            drain=True,
            echo=True,
            properties={},
        ),
        described_list(
            0x13, "40", "52 01", "52 02", "52 03", "40", "40", "40", "52 04", "41", "41", "c1 01 00"
        ),
    ),
    (
        # A delivered event (protocol.md 13): settled, batchable, empty tag, format 0 written (E8).
        Transfer(
            handle=1,
            delivery_id=0,
            delivery_tag=b"",
            message_format=0,
            settled=True,
            batchable=True,
        ),
        described_list(
            0x14,
            "52 01",  # handle
            "43",  # delivery-id
            "a0 00",  # delivery-tag
            "43",  # message-format
            "41",  # settled
            "42",  # more
            "40",  # rcv-settle-mode
            "40",  # state
            "42",  # resume
            "42",  # aborted
            "41",  # batchable
        ),
    ),
    (
        # The batch format of Event Hubs publishers, a fragment of a transfer.
        Transfer(
            handle=300,
            delivery_id=0xFFFFFFFF,
            delivery_tag=b"\x01\x02\x03\x04",
            message_format=0x80013700,
            settled=False,
            more=True,
            rcv_settle_mode=1,
            state=Received(section_number=1, section_offset=2),
            resume=True,
            aborted=True,
        ),
        described_list(
            0x14,
            "70 0000012c",
            "70 ffffffff",
            "a0 04 01020304",
            "70 80013700",
            "42",
            "41",
            "50 01",
            "005323 c0 05 02 52 01 53 02",
            "41",
            "41",
            "42",
        ),
    ),
    (
        Disposition(role=True, first=4, last=9, settled=True, state=Accepted()),
        described_list(
            0x15,
            "41",  # role: receiver
            "52 04",  # first
            "52 09",  # last
            "41",  # settled
            "005324 45",  # state: accepted, an outcome, may be list0 (E3)
            "42",  # batchable
        ),
    ),
    (
        Disposition(role=True, first=0, settled=True, state=Rejected(error=ERROR)),
        described_list(
            0x15,
            "41",
            "43",
            "40",
            "41",
            "005325 c0" + f"{len(ERROR_HEX) // 2 + 1:02x} 01" + ERROR_HEX,
            "42",
        ),
    ),
    (
        Disposition(role=False, first=1, state=Released()),
        described_list(0x15, "42", "52 01", "40", "42", "005326 45", "42"),
    ),
    (
        Disposition(
            role=False,
            first=1,
            state=Modified(delivery_failed=True, message_annotations={"k": None}),
        ),
        described_list(
            0x15, "42", "52 01", "40", "42", "005327 c0 0a 03 41 40 c1 05 02 a3 01 6b 40", "42"
        ),
    ),
    (
        Disposition(role=True, first=1, state=t.Described(t.Ulong(0x34), [b"txn"])),
        described_list(0x15, "41", "52 01", "40", "42", "005334 c0 06 01 a0 03 74786e", "42"),
    ),
    (
        Detach(handle=3, closed=True, error=ERROR),
        described_list(0x16, "52 03", "41", ERROR_HEX),  # closed: E14; error: three fields, E12
    ),
    (Detach(handle=3), described_list(0x16, "52 03", "42", "40")),
    (End(), described_list(0x17, "40")),  # one field, never list0 (E3)
    (End(error=ERROR), described_list(0x17, ERROR_HEX)),
    (Close(), described_list(0x18, "40")),
    (Close(error=ERROR), described_list(0x18, ERROR_HEX)),
    (
        SaslMechanisms(sasl_server_mechanisms=["MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL"]),
        described_list(
            0x40,
            "e0 23 04 a3 07 4d535342434253 05 504c41494e 09 414e4f4e594d4f555308 45585445524e414c",
        ),
    ),
    (
        SaslInit(mechanism="PLAIN", initial_response=b"\0u\0p", hostname="h"),
        described_list(0x41, "a3 05 504c41494e", "a0 04 00750070", "a1 01 68"),
    ),
    (SaslInit(mechanism="ANONYMOUS"), described_list(0x41, "a3 09 414e4f4e594d4f5553", "40", "40")),
    (SaslChallenge(challenge=b"c"), described_list(0x42, "a0 01 63")),
    (SaslResponse(response=b""), described_list(0x43, "a0 00")),
    (
        SaslOutcome(code=0, additional_data=b"Welcome!"),
        described_list(0x44, "50 00", "a0 08 57656c636f6d6521"),
    ),
    (SaslOutcome(code=1), described_list(0x44, "50 01", "40")),
]


def _name(value: object) -> str:
    return type(value).__name__ if not isinstance(value, bytes) else ""


@pytest.mark.parametrize(("performative", "expected"), CASES, ids=_name)
def test_performative_is_written_exactly_so(performative: Performative, expected: bytes) -> None:
    assert encode_performative(performative).hex(" ") == expected.hex(" ")


@pytest.mark.parametrize(("performative", "expected"), CASES, ids=_name)
def test_performative_is_read_back_as_it_was(performative: Performative, expected: bytes) -> None:
    frame = b"\xee" * 8 + expected + b"payload"
    decoded, position = decode_performative(frame, 8, len(frame))
    assert decoded == performative
    assert type(decoded) is type(performative)
    assert frame[position:] == b"payload"


@pytest.mark.parametrize(
    ("cls", "count"),
    [
        (Open, 10),
        (Begin, 8),
        (Attach, 14),
        (Flow, 11),
        (Transfer, 11),
        (Disposition, 6),
        (Detach, 3),
        (End, 1),
        (Close, 1),
        (Error, 3),
        (Source, 11),
        (Target, 7),
        (Coordinator, 1),
        (Received, 2),
        (Rejected, 1),
        (Modified, 3),
        (SaslMechanisms, 1),
        (SaslInit, 3),
        (SaslChallenge, 1),
        (SaslResponse, 1),
        (SaslOutcome, 2),
    ],
)
def test_composite_has_every_field_of_the_specification(cls: type, count: int) -> None:
    """E2: the count that must stand in the list, whatever is null."""
    assert len(SPECS[cls].fields) == count


@pytest.mark.parametrize(("performative", "expected"), CASES, ids=_name)
def test_performative_never_elides_and_never_uses_list0(
    performative: Performative, expected: bytes
) -> None:
    """E1, E2, E3 by position, as azure-eventhub reads them."""
    body = encode_performative(performative)
    assert body[:2] == b"\x00\x53"
    assert body[2] == SPECS[type(performative)].code
    assert body[3] == 0xC0
    assert body[5] == len(SPECS[type(performative)].fields)


def test_long_performative_takes_list32_and_keeps_the_rules() -> None:
    body = encode_performative(Open(container_id="c" * 300, properties={"k": "v" * 300}))
    assert body[:4] == bytes.fromhex("005310 d0")
    assert int.from_bytes(body[4:8], "big") == len(body) - 8
    assert int.from_bytes(body[8:12], "big") == 10
    assert body[12:17] == bytes.fromhex("b1 0000012c")


def test_longest_list8_and_shortest_list32_differ_by_one_byte() -> None:
    # The size of the outer list is one byte while it is at most 255.
    def close(length: int) -> bytes:
        return encode_performative(Close(error=Error(condition="c", description="d" * length)))

    narrow = next(length for length in range(255, 0, -1) if close(length)[3] == 0xC0)
    assert close(narrow)[4] == 255
    wide = close(narrow + 1)
    assert wide[3] == 0xD0
    assert decode_performative(wide, 0, len(wide))[1] == len(wide)


def test_filter_is_echoed_with_its_descriptor() -> None:
    """protocol.md 5.3: three clients, three descriptors; each is given back what it sent."""
    selector = "amqp.annotation.x-opt-offset > '-1'"
    name = "apache.org:selector-filter:string"
    for descriptor in (t.Symbol(name), t.Ulong(0x468C00000004), t.Ulong(0x137000000A)):
        attach = Attach(
            name="r",
            handle=0,
            role=True,
            source=Source(address="a", filter={name: t.Described(descriptor, selector)}),
        )
        body = encode_performative(attach)
        decoded, _ = decode_performative(body, 0, len(body))
        assert isinstance(decoded, Attach)
        assert decoded.source is not None and decoded.source.filter is not None
        seen = decoded.source.filter[name]
        assert isinstance(seen, t.Described)
        assert (type(seen.descriptor), seen.value) == (type(descriptor), selector)
        assert encode_performative(decoded) == body
