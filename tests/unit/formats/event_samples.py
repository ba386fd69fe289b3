"""Events of every kind, as a service delivers them."""

from __future__ import annotations

import math
import uuid

from penstock.amqp import types as t
from penstock.amqp.encoder import encode
from penstock.amqp.message import Message, SequenceBody, ValueBody, encode_message
from penstock.cli.events.event_sender import EventCopy
from penstock.formats.event_sections import EventSections
from penstock.kernels import Columns

# Every simple type that AMQP has, and those that are not simple.
VALUES: dict[str, object] = {
    "null": None,
    "true": True,
    "false": False,
    "ubyte": t.Ubyte(255),
    "ushort": t.Ushort(65535),
    "uint": t.Uint(2**32 - 1),
    "ulong": t.Ulong(2**64 - 1),
    "byte": t.Byte(-128),
    "short": t.Short(-32768),
    "int": t.Int(-(2**31)),
    "long": -(2**63),
    "small long": 5,
    "float": t.Float(1.5),
    "double": 0.1,
    "not a number": math.nan,
    "infinite float": t.Float(-math.inf),
    "char": t.Char("ß"),
    "timestamp": t.Timestamp(1_794_812_715_255),
    "far timestamp": t.Timestamp(2**62),
    "uuid": uuid.UUID(int=2**100 + 7),
    "binary": b"\x00\xff\x1b[2J",
    "string": "Grüße \U0001f40d \u202e\x00",
    "symbol": t.Symbol("sym"),
    "decimal32": t.Decimal32(b"abcd"),
    "decimal64": t.Decimal64(b"abcdefgh"),
    "decimal128": t.Decimal128(b"abcdefghijklmnop"),
    "list": [1, "two", t.Uint(3), [None]],
    "map": {"a": t.Ubyte(1), t.Symbol("b"): {}},
    "array": t.Array([1, 2, 3], code=t.INT),
    "timespan": t.Described(t.Symbol("com.microsoft:timespan"), 36_000_000_000),
}
KINDS = {"data": 0x75, "sequence": 0x76, "value": 0x77}
BODIES = {
    0x75: b"body \xff",
    0x76: b"\x00\x53\x76" + encode([1, "a"]),
    0x77: b"\x00\x53\x77" + encode({"a": 1}),
}


def columns(
    *,
    body: bytes = b"body",
    kind: int = 0x75,
    key: str | None = None,
    sections: EventSections | None = None,
) -> Columns:
    """One event as a service delivers it."""
    sections = sections or EventSections()
    place: dict[object, object] = {
        t.Symbol("x-opt-sequence-number-epoch"): t.Int(-1),
        t.Symbol("x-opt-sequence-number"): 7,
        t.Symbol("x-opt-offset"): "4242",
        t.Symbol("x-opt-enqueued-time"): t.Timestamp(1_794_812_715_255),
    }
    if key is not None:
        place[t.Symbol("x-opt-partition-key")] = key
    system = encode(place)
    if sections.annotations:
        inside = system[3:] + sections.annotations[3:]
        count = system[2] + sections.annotations[2]
        system = bytes((0xD1,)) + (len(inside) + 4).to_bytes(4, "big") + count.to_bytes(4, "big")
        system += inside
    return Columns(
        [7],
        ["4242"],
        [1_794_812_715_255],
        [key],
        [body],
        [sections.properties],
        [system],
        [sections.fields],
        bytes((kind,)),
    )


def published(event: EventCopy) -> tuple[bytes, object, object]:
    """Its bytes in a publication, and where it goes."""
    out = bytearray()
    event.append_to(out, b"")
    return bytes(out), event.partition_key, event.partition


COLUMNS = Columns(
    [7, 8],
    ["70", "80"],
    [1_794_812_715_255, 1_794_812_715_256],
    ["käy", None],
    [b'{"t": 31, "list": [1, {"deep": "x"}]}', b"\x1b]0;owned\x07\xff\n"],
    [encode({"kind": "warm", "n": 5}), b""],
    [b"", b""],
    [b"", b""],
    b"\x75\x75",
)

# What plain AMQP clients (Qpid Proton, rhea) and .NET send.
VALUE_BODIES = Columns(
    [1, 2, 3],
    ["10", "20", "30"],
    [0, 0, 0],
    [None, None, None],
    [
        encode_message(Message(body=ValueBody('{"a": 1}'))),
        encode_message(Message(body=ValueBody(b"\x1bbin"))),
        encode_message(Message(body=SequenceBody([[1, "x"]]))),
    ],
    [
        encode({"price": t.Decimal128(bytes.fromhex("0c3e" + "00" * 13 + "01"))}),
        encode({"span": t.Described(t.Symbol("com.microsoft:timespan"), 15_000_000)}),
        b"",
    ],
    [b"", b"", b""],
    [b"", b"", b""],
    b"\x77\x77\x76",
)
