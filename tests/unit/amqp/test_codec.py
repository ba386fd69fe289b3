"""Every AMQP type in every width: bytes written out by hand, and random values both ways."""

from __future__ import annotations

import enum
import math
import struct
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.amqp_values import ASCII, SCALARS, TEXT, ints

from penstock.amqp import types as t
from penstock.amqp.decoder import decode, skip
from penstock.amqp.encoder import encode
from penstock.amqp.errors import LocalError

ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
LONG_TEXT = "x" * 256
LONG_HEX = "78" * 256

# value -> its smallest encoding, which is what we write.
CANONICAL: list[tuple[object, str]] = [
    (None, "40"),
    (True, "41"),
    (False, "42"),
    (t.Ubyte(0), "50 00"),
    (t.Ubyte(255), "50 ff"),
    (t.Ushort(0), "60 0000"),
    (t.Ushort(0xFFFF), "60 ffff"),
    (t.Uint(0), "43"),
    (t.Uint(1), "52 01"),
    (t.Uint(255), "52 ff"),
    (t.Uint(256), "70 00000100"),
    (t.Uint(0xFFFFFFFF), "70 ffffffff"),
    (t.Ulong(0), "44"),
    (t.Ulong(1), "53 01"),
    (t.Ulong(255), "53 ff"),
    (t.Ulong(256), "80 0000000000000100"),
    (t.Ulong(2**64 - 1), "80 ffffffffffffffff"),
    (t.Byte(-128), "51 80"),
    (t.Byte(127), "51 7f"),
    (t.Short(-1), "61 ffff"),
    (t.Short(0x7FFF), "61 7fff"),
    (t.Int(0), "54 00"),
    (t.Int(-128), "54 80"),
    (t.Int(127), "54 7f"),
    (t.Int(128), "71 00000080"),
    (t.Int(-129), "71 ffffff7f"),
    (t.Int(-(2**31)), "71 80000000"),
    (t.Long(0), "55 00"),
    (t.Long(-1), "55 ff"),
    (t.Long(128), "81 0000000000000080"),
    (t.Long(-(2**63)), "81 8000000000000000"),
    (t.Timestamp(0), "83 0000000000000000"),
    # 0001-01-01, what an empty partition reports (protocol.md 3.2).
    (t.Timestamp(-62135596800000), "83 ffffc77cedd32800"),
    (t.Float(1.5), "72 3fc00000"),
    (1.5, "82 3ff8000000000000"),
    (-math.inf, "82 fff0000000000000"),
    (t.Char("A"), "73 00000041"),
    (t.Char("\U0001f600"), "73 0001f600"),
    (t.Decimal32(b"\x01\x02\x03\x04"), "74 01020304"),
    (t.Decimal64(bytes(8)), "84 0000000000000000"),
    (t.Decimal128(bytes(15) + b"\x01"), "94 00000000000000000000000000000001"),
    (ID, "98 00112233445566778899aabbccddeeff"),
    (b"", "a0 00"),
    (b"\x00\xff", "a0 02 00ff"),
    (b"x" * 255, "a0 ff" + "78" * 255),
    (b"x" * 256, "b0 00000100" + LONG_HEX),
    ("", "a1 00"),
    ("hé", "a1 03 68c3a9"),
    ("x" * 255, "a1 ff" + "78" * 255),
    (LONG_TEXT, "b1 00000100" + LONG_HEX),
    ("é" * 128, "b1 00000100" + "c3a9" * 128),  # the length is in bytes, not characters
    (t.Symbol(""), "a3 00"),
    (t.Symbol("hub"), "a3 03 687562"),
    (t.Symbol(LONG_TEXT), "b3 00000100" + LONG_HEX),
    ([], "45"),
    ([None], "c0 02 01 40"),
    ([t.Uint(0), "a", [True]], "c0 09 03 43 a1 01 61 c0 02 01 41"),
    ([None] * 254, "c0 ff fe" + "40" * 254),
    ([None] * 255, "d0 00000103 000000ff" + "40" * 255),
    ({}, "c1 01 00"),
    ({t.Symbol("k"): t.Int(1)}, "c1 06 02 a3 01 6b 54 01"),
    ({"a": None, "b": None}, "c1 09 04 a1 01 61 40 a1 01 62 40"),
    ({"k": LONG_TEXT}, "d1 0000010c 00000002 a1 01 6b b1 00000100" + LONG_HEX),
    (t.Described(t.Ulong(0x24), []), "00 53 24 45"),
    (t.Described(t.Symbol("d"), "v"), "00 a3 01 64 a1 01 76"),
    (t.Described(t.Ulong(1), t.Described(t.Ulong(2), None)), "00 53 01 00 53 02 40"),
]

# Encodings that are valid but not the smallest: read, never written.
WIDE: list[tuple[str, object]] = [
    ("56 01", True),
    ("56 00", False),
    ("52 00", t.Uint(0)),
    ("70 00000000", t.Uint(0)),
    ("70 00000001", t.Uint(1)),
    ("53 00", t.Ulong(0)),
    ("80 0000000000000000", t.Ulong(0)),
    ("80 0000000000000001", t.Ulong(1)),
    ("71 ffffffff", t.Int(-1)),
    ("81 ffffffffffffffff", t.Long(-1)),
    ("b0 00000000", b""),
    ("b0 00000001 ff", b"\xff"),
    ("b1 00000000", ""),
    ("b1 00000002 c3a9", "é"),
    ("b3 00000003 687562", t.Symbol("hub")),
    ("c0 01 00", []),
    ("d0 00000004 00000000", []),
    ("d0 00000005 00000001 40", [None]),
    ("d1 00000004 00000000", {}),
    ("d1 00000006 00000002 43 40", {t.Uint(0): None}),
    ("00 80 0000000000000024 45", t.Described(t.Ulong(0x24), [])),
    ("00 b3 00000001 64 40", t.Described(t.Symbol("d"), None)),
    ("00 00 53 01 53 02 40", t.Described(t.Described(t.Ulong(1), t.Ulong(2)), None)),
    ("00 c0 02 01 43 40", t.Described([t.Uint(0)], None)),
]


def shape(value: object) -> object:
    """The value with the type of every part, so that Uint(1) differs from Int(1)."""
    if isinstance(value, t.Described):
        return ("described", shape(value.descriptor), shape(value.value))
    if isinstance(value, t.Array):
        code = value.code, [shape(each) for each in value.descriptors]
        return ("array", code, [shape(each) for each in value])
    if isinstance(value, list):
        return ("list", [shape(each) for each in value])
    if isinstance(value, dict):
        return ("map", [(shape(key), shape(each)) for key, each in value.items()])
    if isinstance(value, float):
        return (type(value), struct.pack(">d", value))  # NaN has an identity here, and -0.0
    return (type(value), value)


def _id(value: object) -> str:
    return str(value)[:40]


# --- literal bytes ---------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "text"), CANONICAL, ids=_id)
def test_encode_writes_the_smallest_encoding(value: object, text: str) -> None:
    assert encode(value) == bytes.fromhex(text)


@pytest.mark.parametrize(("value", "text"), CANONICAL, ids=_id)
def test_decode_reads_the_smallest_encoding(value: object, text: str) -> None:
    data = bytes.fromhex(text)
    decoded, position = decode(data)
    assert shape(decoded) == shape(value)
    assert position == len(data)


@pytest.mark.parametrize(("text", "value"), WIDE, ids=_id)
def test_decode_reads_every_other_encoding(text: str, value: object) -> None:
    data = bytes.fromhex(text)
    decoded, position = decode(data)
    assert shape(decoded) == shape(value)
    assert position == len(data)
    assert skip(data, 0, len(data)) == len(data)


def test_decode_starts_and_ends_where_it_is_told() -> None:
    data = b"\xff\xff" + encode("hub") + encode(None) + b"\xff"
    value, position = decode(data, 2)
    assert (value, position) == ("hub", 7)
    assert decode(data, position, position + 1) == (None, 8)
    assert skip(data, 2, 7) == 7


@pytest.mark.parametrize(("start", "end"), [(-1, None), (4, None), (0, 4), (2, 1), (0, -1)])
def test_decode_blames_the_caller_for_a_span_outside_the_data(start: int, end: int | None) -> None:
    with pytest.raises(LocalError, match="span"):
        decode(b"\x40\x40\x40", start, end)
    with pytest.raises(LocalError, match="span"):
        skip(b"\x40\x40\x40", start, end)


def test_map_keeps_its_order() -> None:
    pairs = {t.Symbol(name): t.Int(index) for index, name in enumerate("zaqm")}
    decoded, _ = decode(encode(pairs))
    assert isinstance(decoded, dict)
    assert list(decoded) == list("zaqm")


def test_decoded_lists_are_not_shared() -> None:
    decoded, _ = decode(encode([[], []]))
    assert isinstance(decoded, list)
    decoded[0].append(1)
    assert decoded == [[1], []]


# --- what a plain Python value becomes -------------------------------------------------------


def test_plain_int_is_a_long() -> None:
    assert encode(5) == encode(t.Long(5)) == b"\x55\x05"
    assert encode(2**40) == encode(t.Long(2**40))


def test_plain_descriptors_are_ulong_and_symbol() -> None:
    assert encode(t.Described(0x24, None)) == bytes.fromhex("00 53 24 40")
    assert encode(t.Described("d", None)) == bytes.fromhex("00 a3 01 64 40")
    # The filter descriptor of JS and Go clients (protocol.md 5.3).
    assert encode(t.Described(0x0000468C00000004, None)) == bytes.fromhex(
        "00 80 0000468c00000004 40"
    )


def test_subclass_is_written_as_its_nearest_base() -> None:
    class Level(enum.IntEnum):
        LOW = 1

    class Grade(t.Uint):
        pass

    class Word(enum.StrEnum):
        YES = "yes"

    assert encode(Level.LOW) == encode(1)
    assert encode(Grade(7)) == encode(t.Uint(7))
    assert encode(Word.YES) == encode("yes")


def test_raw_is_copied_verbatim_anywhere() -> None:
    wide_true = t.Raw(b"\x56\x01")
    assert encode(wide_true) == b"\x56\x01"
    assert encode([wide_true]) == bytes.fromhex("c0 03 01 5601")
    assert encode({"k": wide_true}) == bytes.fromhex("c1 06 02 a1016b 5601")


# --- what cannot be encoded ------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        t.Ubyte(-1),
        t.Ubyte(256),
        t.Ushort(-1),
        t.Ushort(0x10000),
        t.Uint(-1),
        t.Uint(2**32),
        t.Ulong(-1),
        t.Ulong(2**64),
        t.Byte(-129),
        t.Byte(128),
        t.Short(-0x8001),
        t.Short(0x8000),
        t.Int(2**31),
        t.Int(-(2**31) - 1),
        t.Long(2**63),
        t.Long(-(2**63) - 1),
        2**63,
        10**5000,  # Python refuses to print it; the error must not fail over that
        t.Timestamp(2**63),
    ],
    ids=lambda value: f"{type(value).__name__} of {value.bit_length()} bits",
)
def test_encode_refuses_an_integer_outside_its_type(value: int) -> None:
    with pytest.raises(LocalError, match="does not fit"):
        encode(value)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        pytest.param(object(), "object is no AMQP type", id="object"),
        ((1, 2), "tuple is no AMQP type"),
        ({1}, "set is no AMQP type"),
        ([1j], "complex is no AMQP type"),
        ({"k": bytearray()}, "bytearray is no AMQP type"),
        (t.Float(1e39), "does not fit float"),
        (t.Char(""), "char"),
        (t.Char("ab"), "char"),
        (t.Char("\ud800"), "char"),
        (t.Decimal32(b"123"), "decimal32 has 4 bytes, not 3"),
        (t.Decimal64(bytes(9)), "decimal64 has 8 bytes, not 9"),
        (t.Decimal128(b""), "decimal128 has 16 bytes, not 0"),
        ("\udc80", "surrogate"),
        (t.Symbol("é"), "ASCII"),
        (t.Described("é", None), "ASCII"),
        (t.Described(-1, None), "does not fit ulong"),
        (t.Raw(b""), "Raw"),
    ],
    ids=_id,
)
def test_encode_refuses_what_amqp_cannot_carry(value: object, reason: str) -> None:
    with pytest.raises(LocalError, match=reason):
        encode(value)


def test_encode_refuses_a_value_that_holds_itself() -> None:
    loop: list[object] = []
    loop.append(loop)
    ring: dict[object, object] = {}
    ring["k"] = [ring]
    described = t.Described(1, None)
    described.value = described
    for value in (loop, ring, described):
        with pytest.raises(LocalError, match="nested deeper"):
            encode(value)


# --- random values ---------------------------------------------------------------------------


VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=6),
        st.dictionaries(SCALARS, inner, max_size=6),
        st.builds(t.Described, ints(t.Ulong, 64, signed=False) | ASCII.map(t.Symbol), inner),
        st.lists(TEXT, max_size=4).map(lambda texts: t.Array(texts, code=t.STRING_32)),
    ),
    max_leaves=25,
)


@settings(deadline=None)
@given(VALUES)
def test_decode_undoes_encode_with_every_type_kept(value: object) -> None:
    data = encode(value)
    decoded, position = decode(data)
    assert shape(decoded) == shape(value)
    assert position == len(data)
    assert encode(decoded) == data


@settings(deadline=None)
@given(VALUES, st.binary(max_size=5), st.binary(max_size=5))
def test_decode_and_skip_agree_on_where_a_value_ends(
    value: object, before: bytes, after: bytes
) -> None:
    body = encode(value)
    data = before + body + after
    end = len(before) + len(body)
    assert skip(data, len(before), end) == end
    assert skip(data, len(before)) == end
    assert decode(data, len(before))[1] == end


@settings(deadline=None)
@given(st.floats(width=32), st.floats())
def test_floats_keep_their_bits_when_they_are_numbers(single: float, double: float) -> None:
    for value in (t.Float(single), double):
        decoded, _ = decode(encode(value))
        assert isinstance(decoded, float)
        assert type(decoded) is type(value)
        assert math.isnan(decoded) if math.isnan(value) else shape(decoded) == shape(value)
