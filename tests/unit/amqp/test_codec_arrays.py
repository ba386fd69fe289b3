"""Arrays: one constructor for all elements, of every width, kept when they are encoded again."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.amqp import types as t
from penstock.amqp.decoder import decode, skip
from penstock.amqp.encoder import encode
from penstock.amqp.errors import LocalError

ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")

# Every constructor code as that of an array: (code, elements, the array's bytes).
EVERY_CODE: list[tuple[int, list[object], str]] = [
    (t.NULL, [None, None], "e0 02 02 40"),
    (t.TRUE, [True, True], "e0 02 02 41"),
    (t.FALSE, [False], "e0 02 01 42"),
    (t.UINT_0, [t.Uint(0)] * 3, "e0 02 03 43"),
    (t.ULONG_0, [t.Ulong(0)], "e0 02 01 44"),
    (t.LIST_0, [[], []], "e0 02 02 45"),
    (t.UBYTE, [t.Ubyte(1), t.Ubyte(255)], "e0 04 02 50 01 ff"),
    (t.BYTE, [t.Byte(-1)], "e0 03 01 51 ff"),
    (t.SMALL_UINT, [t.Uint(7)], "e0 03 01 52 07"),
    (t.SMALL_ULONG, [t.Ulong(7)], "e0 03 01 53 07"),
    (t.SMALL_INT, [t.Int(-7)], "e0 03 01 54 f9"),
    (t.SMALL_LONG, [t.Long(-7)], "e0 03 01 55 f9"),
    (t.BOOLEAN, [True, False], "e0 04 02 56 01 00"),
    (t.USHORT, [t.Ushort(1)], "e0 04 01 60 0001"),
    (t.SHORT, [t.Short(-1)], "e0 04 01 61 ffff"),
    (t.UINT, [t.Uint(1)], "e0 06 01 70 00000001"),
    (t.INT, [t.Int(-1)], "e0 06 01 71 ffffffff"),
    (t.FLOAT, [t.Float(1.5)], "e0 06 01 72 3fc00000"),
    (t.CHAR, [t.Char("A")], "e0 06 01 73 00000041"),
    (t.DECIMAL32, [t.Decimal32(b"abcd")], "e0 06 01 74 61626364"),
    (t.ULONG, [t.Ulong(1)], "e0 0a 01 80 0000000000000001"),
    (t.LONG, [t.Long(-1)], "e0 0a 01 81 ffffffffffffffff"),
    (t.DOUBLE, [1.5], "e0 0a 01 82 3ff8000000000000"),
    (t.TIMESTAMP, [t.Timestamp(1)], "e0 0a 01 83 0000000000000001"),
    (t.DECIMAL64, [t.Decimal64(bytes(8))], "e0 0a 01 84 0000000000000000"),
    (t.DECIMAL128, [t.Decimal128(bytes(16))], "e0 12 01 94" + "00" * 16),
    (t.UUID, [ID], "e0 12 01 98 00112233445566778899aabbccddeeff"),
    (t.BINARY_8, [b"", b"a"], "e0 05 02 a0 00 01 61"),
    (t.STRING_8, ["a", "é"], "e0 07 02 a1 01 61 02 c3a9"),
    (t.SYMBOL_8, [t.Symbol("a")], "e0 04 01 a3 01 61"),
    (t.BINARY_32, [b"a"], "e0 07 01 b0 00000001 61"),
    (t.STRING_32, ["a"], "e0 07 01 b1 00000001 61"),
    (t.SYMBOL_32, [t.Symbol("a")], "e0 07 01 b3 00000001 61"),
    (t.LIST_8, [[None], []], "e0 07 02 c0 02 01 40 01 00"),
    (t.LIST_32, [[None]], "e0 0b 01 d0 00000005 00000001 40"),
    (t.MAP_8, [{"a": None}], "e0 08 01 c1 05 02 a1 01 61 40"),
    (t.MAP_32, [{}], "e0 0a 01 d1 00000004 00000000"),
    (t.ARRAY_8, [t.Array([None], t.NULL)], "e0 05 01 e0 02 01 40"),
    (t.ARRAY_32, [t.Array([], t.UINT)], "e0 0b 01 f0 00000005 00000000 70"),
]


def _code_id(value: object) -> str:
    return f"{value:#04x}" if isinstance(value, int) else ""


@pytest.mark.parametrize(("code", "elements", "text"), EVERY_CODE, ids=_code_id)
def test_array_of_every_constructor_is_written(
    code: int, elements: list[object], text: str
) -> None:
    assert encode(t.Array(elements, code=code)) == bytes.fromhex(text)


@pytest.mark.parametrize(("code", "elements", "text"), EVERY_CODE, ids=_code_id)
def test_array_of_every_constructor_is_read(code: int, elements: list[object], text: str) -> None:
    data = bytes.fromhex(text)
    array, position = decode(data)
    assert isinstance(array, t.Array)
    assert array == elements
    assert array.code == code
    assert [type(each) for each in array] == [type(each) for each in elements]
    assert position == skip(data, 0, len(data)) == len(data)


def test_table_covers_every_constructor() -> None:
    codes = {value for name, value in vars(t).items() if name.isupper() and isinstance(value, int)}
    assert {code for code, _, _ in EVERY_CODE} == codes - {t.DESCRIBED}


def test_empty_array_of_every_constructor_survives() -> None:
    for code, _, _ in EVERY_CODE:
        data = encode(t.Array([], code=code))
        array, _ = decode(data)
        assert isinstance(array, t.Array)
        assert (list(array), array.code) == ([], code)
        assert encode(array) == data


# --- the code that is chosen when none is given ----------------------------------------------


def test_array_of_string_uses_str32_as_the_service_does() -> None:
    """`partition_ids` (protocol.md 13, E18)."""
    assert encode(t.Array(["0", "1"])) == bytes.fromhex("e0 0c 02 b1 00000001 30 00000001 31")


def test_array_of_symbol_uses_sym8_while_all_fit() -> None:
    mechanisms = t.Array([t.Symbol("PLAIN"), t.Symbol("ANONYMOUS")])
    assert encode(mechanisms) == bytes.fromhex("e0 12 02 a3 05") + b"PLAIN\x09ANONYMOUS"


def test_array_of_symbol_uses_sym32_when_one_is_too_long() -> None:
    data = encode(t.Array([t.Symbol("a"), t.Symbol("b" * 256)]))
    assert data[:14] == bytes.fromhex("f0 0000010e 00000002 b3 00000001")
    assert decode(data)[0] == ["a", "b" * 256]


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (None, t.NULL),
        (True, t.BOOLEAN),
        (t.Ubyte(1), t.UBYTE),
        (t.Ushort(1), t.USHORT),
        (t.Uint(1), t.UINT),
        (t.Ulong(1), t.ULONG),
        (t.Byte(1), t.BYTE),
        (t.Short(1), t.SHORT),
        (t.Int(1), t.INT),
        (t.Long(1), t.LONG),
        (1, t.LONG),
        (t.Timestamp(1), t.TIMESTAMP),
        (1.5, t.DOUBLE),
        (t.Float(1.5), t.FLOAT),
        (t.Char("c"), t.CHAR),
        (ID, t.UUID),
        (b"b", t.BINARY_32),
        ([1], t.LIST_32),
        ({"k": 1}, t.MAP_32),
        (t.Array([1]), t.ARRAY_32),
    ],
    ids=lambda value: type(value).__name__,
)
def test_array_without_code_takes_one_that_every_value_fits(value: object, code: int) -> None:
    array, _ = decode(encode(t.Array([value])))
    assert isinstance(array, t.Array)
    assert array.code == code
    assert array == [value]


def test_long_array_takes_the_wide_header() -> None:
    narrow = encode(t.Array([True] * 253))
    assert narrow[:4] == bytes.fromhex("e0 ff fd 56")
    wide = encode(t.Array([True] * 254))
    assert wide[:10] == bytes.fromhex("f0 00000103 000000fe 56")
    # 300 elements of no width: it is the count that does not fit.
    assert encode(t.Array([None] * 300)) == bytes.fromhex("f0 00000005 0000012c 40")


# --- described elements ----------------------------------------------------------------------


def test_array_of_described_elements_keeps_the_descriptor_once() -> None:
    data = bytes.fromhex("e0 07 02 00 53 24 50 01 02")
    array, position = decode(data)
    assert isinstance(array, t.Array)
    assert array.descriptors == (t.Ulong(0x24),)
    assert array == [1, 2]
    assert position == skip(data, 0, len(data)) == len(data)
    assert encode(array) == data


def test_array_of_doubly_described_elements_keeps_both_descriptors() -> None:
    array = t.Array([True], t.TRUE, (t.Ulong(1), t.Symbol("d")))
    assert encode(array) == bytes.fromhex("e0 09 01 00 53 01 00 a3 01 64 41")
    decoded, _ = decode(encode(array))
    assert isinstance(decoded, t.Array)
    assert decoded.descriptors == (t.Ulong(1), t.Symbol("d"))
    assert decoded == [True]


# --- what an array cannot hold ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (t.Array(), "empty array needs the code"),
        (t.Array([1, "a"]), "one type"),
        (t.Array([t.Int(1), t.Uint(1)]), "one type"),
        (t.Array([t.Described(1, 2)]), "cannot be Described"),
        (t.Array([t.Raw(b"\x40")]), "cannot be Raw"),
        pytest.param(t.Array([object()]), "cannot be object", id="object"),
        (t.Array([1], code=0x57), "0x57 is no constructor"),
        (t.Array([1], code=t.DESCRIBED), "0x00 is no constructor"),
        (t.Array([1], code=t.NULL), "must be None"),
        (t.Array([t.Uint(1)], code=t.UINT_0), "must be 0"),
        (t.Array([[1]], code=t.LIST_0), "zero-width"),
        (t.Array(["a" * 256], code=t.STRING_8), "256 does not fit"),
        (t.Array([[None] * 255], code=t.LIST_8), "256 does not fit"),
        (t.Array([t.Uint(256)], code=t.SMALL_UINT), "does not fit smalluint"),
        (t.Array([t.Int(-1)], code=t.UINT), "does not fit uint"),
        (t.Array(["é"], code=t.SYMBOL_8), "ASCII"),
        (t.Array(["a"], code=t.UINT), "cannot hold a str"),
        (t.Array(["a"], code=t.BINARY_8), "cannot hold a str"),
        (t.Array([b"a"], code=t.STRING_8), "cannot hold a bytes"),
        (t.Array([1], code=t.BOOLEAN), "cannot hold a int"),
        (t.Array([1], code=t.UUID), "cannot hold a int"),
        (t.Array([1], code=t.CHAR), "cannot hold a int"),
        (t.Array(["ab"], code=t.LIST_8), "cannot hold a str"),
        (t.Array([{"a": 1}], code=t.LIST_8), "cannot hold a dict"),
        (t.Array([[1]], code=t.MAP_8), "cannot hold a list"),
        (t.Array([[1]], code=t.ARRAY_8), "cannot hold a list"),
        (t.Array(["1.5"], code=t.DOUBLE), "cannot hold a str"),
    ],
    ids=str,
)
def test_encode_refuses_an_array_that_is_none(array: t.Array, reason: str) -> None:
    with pytest.raises(LocalError, match=reason):
        encode(array)


def test_array_that_holds_itself_is_refused() -> None:
    array = t.Array(code=t.ARRAY_32)
    array.append(array)
    with pytest.raises(LocalError, match="nested deeper"):
        encode(array)


# --- random arrays ---------------------------------------------------------------------------

ARRAYS = st.one_of(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=300), min_size=1),
    st.lists(st.integers(0, 2**32 - 1).map(t.Uint), min_size=1),
    st.lists(st.integers(-(2**63), 2**63 - 1).map(t.Long), min_size=1),
    st.lists(st.text(st.characters(max_codepoint=127), max_size=300).map(t.Symbol), min_size=1),
    st.lists(st.binary(max_size=300), min_size=1),
    st.lists(st.none(), min_size=1, max_size=4),  # more elements than bytes are refused
    st.lists(st.booleans(), min_size=1, max_size=300),
    st.lists(st.lists(st.booleans()), min_size=1, max_size=50),
    st.lists(st.uuids(), min_size=1),
)


@settings(deadline=None)
@given(ARRAYS)
def test_array_survives_with_elements_types_and_code(values: list[object]) -> None:
    data = encode(t.Array(values))
    array, position = decode(data)
    assert isinstance(array, t.Array)
    assert array == values
    assert {type(each) for each in array} == {type(each) for each in values}
    assert position == skip(data, 0, len(data)) == len(data)
    assert encode(array) == data


@settings(deadline=None)
@given(st.lists(ARRAYS.map(t.Array), min_size=1, max_size=4))
def test_array_of_arrays_survives(arrays: list[t.Array]) -> None:
    data = encode(t.Array(arrays))
    decoded, _ = decode(data)
    assert decoded == arrays
    assert encode(decoded) == data
