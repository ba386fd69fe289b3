"""Hostile input: truncated anywhere, wrong sizes, bombs. It gives a value or AmqpDecodeError."""

from __future__ import annotations

import sys
import time
import tracemalloc
import uuid

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.amqp import types as t
from penstock.amqp.decoder import DEFAULT, SMALL, DecodeLimits, decode, skip
from penstock.amqp.encoder import encode
from penstock.amqp.errors import AmqpDecodeError, LocalError

ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")

# Together these hold every constructor, narrow and wide.
SAMPLES: list[bytes] = [
    encode([None, True, False, t.Uint(0), t.Ulong(0), [], t.Ubyte(1), t.Byte(1), t.Ushort(1)]),
    encode([t.Short(1), t.Uint(1), t.Uint(300), t.Ulong(1), t.Ulong(300), t.Int(1), t.Int(300)]),
    encode([t.Long(1), t.Long(300), t.Float(1), 1.0, t.Char("c"), t.Timestamp(1), ID]),
    encode([t.Decimal32(bytes(4)), t.Decimal64(bytes(8)), t.Decimal128(bytes(16))]),
    encode([b"b", "s", t.Symbol("y"), {"k": "v"}, t.Array([t.Uint(1)])]),
    encode(["s" * 256, b"b" * 256, t.Symbol("y" * 256)]),
    encode({t.Symbol("k"): [{"deep": t.Described(1, [t.Array(["a", "b"])])}]}),
    encode(t.Array([t.Symbol("a" * 256)])),
    encode(t.Array([[1, 2], [3]])),
    encode(t.Array([True, False], t.BOOLEAN, (t.Symbol("d"),))),
    encode(t.Array([None] * 5)),
    encode({"wide": "x" * 300}),
    bytes.fromhex("56 01"),
    bytes.fromhex("d0 00000005 00000001 40"),
]


def outcome(data: bytes) -> object:
    """What decoding gives; anything but a value or a DecodeError fails the test."""
    try:
        return decode(data)[0]
    except AmqpDecodeError as error:
        return type(error)


# --- cuts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", SAMPLES, ids=lambda data: data[:6].hex())
def test_value_cut_anywhere_is_refused(data: bytes) -> None:
    for cut in range(len(data)):
        with pytest.raises(AmqpDecodeError):
            decode(data[:cut])
        with pytest.raises(AmqpDecodeError):
            skip(data[:cut], 0, cut)


@pytest.mark.parametrize("data", SAMPLES, ids=lambda data: data[:6].hex())
def test_nothing_behind_the_end_is_read(data: bytes) -> None:
    """The bytes are there, but belong to somebody else."""
    for end in range(len(data)):
        with pytest.raises(AmqpDecodeError):
            decode(data, 0, end)
        with pytest.raises(AmqpDecodeError):
            skip(data, 0, end)


@pytest.mark.parametrize("data", SAMPLES, ids=lambda data: data[:6].hex())
def test_value_with_any_byte_changed_is_a_value_or_refused(data: bytes) -> None:
    for position in range(min(len(data), 60)):
        for byte in (0x00, 0x01, 0x40, 0x45, 0x7F, 0x80, 0xC0, 0xD1, 0xE0, 0xF0, 0xFF):
            outcome(data[:position] + bytes((byte,)) + data[position + 1 :])


@settings(deadline=None)
@given(st.binary(max_size=80))
@example(b"")
@example(b"\x00")
@example(b"\x00" * 80)
@example(b"\x00\x53" * 40)
def test_any_bytes_are_a_value_or_refused(data: bytes) -> None:
    outcome(data)


@settings(deadline=None)
@given(st.binary(max_size=60).map(lambda tail: b"\xf0\x00\x00\x00" + tail))
def test_any_array_is_a_value_or_refused(data: bytes) -> None:
    outcome(data)


@settings(deadline=None)
@given(st.one_of(st.binary(max_size=60), st.sampled_from(SAMPLES)), st.binary(max_size=3))
def test_skip_accepts_what_decode_accepts(data: bytes, tail: bytes) -> None:
    try:
        _, position = decode(data + tail)
    except AmqpDecodeError:
        return
    assert skip(data + tail, 0) == position


# --- constructors ----------------------------------------------------------------------------


def test_every_undefined_constructor_is_refused() -> None:
    defined = {
        value for name, value in vars(t).items() if name.isupper() and isinstance(value, int)
    }
    for code in set(range(256)) - defined:
        data = bytes((code,)) + b"\x01" * 20
        with pytest.raises(AmqpDecodeError, match=f"{code:#04x}"):
            decode(data)
        with pytest.raises(AmqpDecodeError, match=f"{code:#04x}"):
            skip(data, 0, len(data))
        with pytest.raises(AmqpDecodeError):  # as the constructor of an array's elements
            decode(b"\xe0\x03\x01" + bytes((code,)) + b"\x01")
        for check in (decode, skip):  # even of an array without elements
            with pytest.raises(AmqpDecodeError, match=f"{code:#04x}"):
                check(b"\xe0\x02\x00" + bytes((code,)))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("56 02", "boolean of value 2"),
        ("73 0000d800", "0xd800"),
        ("73 0000dfff", "0xdfff"),
        ("73 00110000", "0x110000"),
        ("a1 01 ff", "UTF-8 at its byte 0"),
        ("a1 03 61 ed a0", "UTF-8 at its byte 1"),
        ("a1 03 eda080", "UTF-8"),  # a surrogate, encoded
        ("a1 02 c080", "UTF-8"),  # an overlong NUL
        ("a3 02 61 80", "ASCII at its byte 1"),
        ("b1 00000001 80", "UTF-8"),
    ],
)
def test_contents_that_are_not_of_their_type_are_refused(text: str, reason: str) -> None:
    with pytest.raises(AmqpDecodeError, match=reason):
        decode(bytes.fromhex(text))


def test_decode_error_carries_no_bytes_of_the_peer() -> None:
    """The string may be a token."""
    with pytest.raises(AmqpDecodeError) as caught:
        decode(b"\xa1\x09password\xff")
    assert "password" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


# --- sizes and counts that lie ---------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "c0 00",  # no room for the count
        "c1 00",
        "e0 00",
        "e0 01 00",  # no room for the elements' constructor
        "e0 01 05",
        "d0 00000003 000000",
        "d0 00000000",
        "c0 02 02 40",  # two elements declared, one there
        "c0 03 01 40 40",  # one byte more than the element takes
        "c0 01 01",
        "c0 03 01 c0 02 01 40",  # the inner list is longer than the outer
        "c0 06 01 c0 02 01 40 40",
        "c0 04 01 a1 02 61",
        "c1 02 01 40",  # a key without value
        "c1 04 03 43 40 43",
        "c1 03 04 43 40",
        "d1 00000005 00000001 40",
        "e0 04 01 50 01 02",  # one ubyte declared, two there
        "e0 03 02 50 01",
        "e0 03 01 40 40",  # an element of no width, and a byte
        "e0 04 03 a1 00 00",
        "e0 05 01 a1 00 01 61",
        "e0 02 01 00",  # descriptor missing
        "e0 04 01 00 53 01",
        "f0 00000004 00000000",
        "00",
        "00 53 24",
        "00 40",
        "a0 05 61",
        "b0 ffffffff 61",
        "d0 ffffffff 00000001 40",
        "d0 00000005 ffffffff 40",
        "d1 00000006 fffffffe 43 40",
        "f0 00000006 ffffffff 50 01",
        "f0 00000005 ffffffff 40",
    ],
)
def test_sizes_and_counts_that_lie_are_refused_by_decode_and_skip(text: str) -> None:
    data = bytes.fromhex(text)
    with pytest.raises(AmqpDecodeError):
        decode(data + bytes(8), 0, len(data))
    with pytest.raises(AmqpDecodeError):
        skip(data + bytes(8), 0, len(data))


@pytest.mark.parametrize(
    "text",
    [
        "d0 ffffffff ffffffff",
        "d1 ffffffff fffffffe",
        "f0 ffffffff ffffffff 80",
        "f0 00000005 ffffffff 40",
        "b0 ffffffff",
        "b1 7fffffff",
        "b3 ffffffff",
    ],
)
def test_declared_gigabytes_are_refused_before_anything_is_allocated(text: str) -> None:
    data = bytes.fromhex(text)
    tracemalloc.start()
    try:
        with pytest.raises(AmqpDecodeError):
            decode(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100_000


# --- nesting ---------------------------------------------------------------------------------


def nested_lists(depth: int) -> bytes:
    data = b"\x45"
    for _ in range(depth - 1):
        data = encode([t.Raw(data)])
    return data


NESTS = {
    "list8": b"\xc0\xff\x01" * 4000,
    "list32": b"\xd0\x00\x00\xff\xff\x00\x00\x00\x01" * 4000,
    "map": b"\xd1\x00\x00\xff\xff\x00\x00\x00\x02" * 4000,
    "described value": b"\x00\x53\x01" * 20000,
    "described descriptor": b"\x00" * 60000,
    "array constructor": b"\xf0\x00\x00\xff\x00\x00\x00\x00\x01" + b"\x00\x53\x01" * 30000,
    "array descriptor": b"\xf0\x00\x00\xff\x00\x00\x00\x00\x01" + b"\x00" * 65300,
    "array of array": b"\xf0\x00\x00\xff\x00\x00\x00\x00\x01" * 7000,
}


@pytest.mark.parametrize("name", NESTS)
def test_nesting_bomb_is_refused_without_recursion_error(name: str) -> None:
    data = NESTS[name]
    with pytest.raises(AmqpDecodeError):
        decode(data)
    with pytest.raises(AmqpDecodeError):
        skip(data, 0, len(data))


def test_true_nesting_is_allowed_to_the_limit_and_not_beyond() -> None:
    limits = DecodeLimits(depth_max=5)
    # The innermost is an empty list, list0, which nests nothing.
    fits, too_deep = nested_lists(6), nested_lists(7)
    assert decode(fits, limits=limits)[1] == len(fits)
    assert skip(fits, 0, limits=limits) == len(fits)
    with pytest.raises(AmqpDecodeError, match="nested deeper than 5"):
        decode(too_deep, limits=limits)
    with pytest.raises(AmqpDecodeError, match="nested deeper than 5"):
        skip(too_deep, 0, limits=limits)


def test_deepest_value_that_can_be_decoded_can_be_encoded() -> None:
    limits = DecodeLimits(depth_max=128)
    data = nested_lists(129)
    value, _ = decode(data, limits=limits)
    assert encode(value) == data


def test_depth_limit_stays_far_from_the_interpreters() -> None:
    with pytest.raises(LocalError, match="depth_max"):
        DecodeLimits(depth_max=129)
    assert sys.getrecursionlimit() > 4 * 128


# --- counts ----------------------------------------------------------------------------------


def test_defaults_are_those_of_the_contract() -> None:
    assert (DEFAULT.depth_max, DEFAULT.count_max, DEFAULT.elements_max) == (32, 65536, 100_000)


ZERO_WIDTH = (t.NULL, t.TRUE, t.FALSE, t.UINT_0, t.ULONG_0, t.LIST_0)


@pytest.mark.parametrize("code", ZERO_WIDTH, ids=hex)
def test_an_array_of_zero_width_elements_has_at_most_one_per_byte(code: int) -> None:
    narrow, wide = b"\xe0\x02%c" + bytes((code,)), b"\xf0\0\0\0\x05\0\0\0%c" + bytes((code,))
    for form in (narrow, wide):
        size = len(form) - 1  # %c becomes one byte
        fits = form % size
        assert len(decode(fits)[0]) == size  # type: ignore[arg-type]
        assert skip(fits, 0) == size
        bomb = form % (size + 1)
        with pytest.raises(AmqpDecodeError, match=f"{size} bytes .* declares {size + 1} elements"):
            decode(bomb)
        with pytest.raises(AmqpDecodeError, match=f"{size} bytes .* declares {size + 1} elements"):
            skip(bomb, 0)


def test_values_built_are_bounded_by_the_bytes_received() -> None:
    """Nested arrays of zero-width elements: each as full as it may be."""
    inner = bytes.fromhex("f0 00000005 0000000a 45")
    data = encode([t.Raw(inner)] * 6000)
    value, _ = decode(data)
    assert isinstance(value, list)
    assert sum(len(each) + 1 for each in value) <= 2 * len(data)
    element = bytes.fromhex("00000005 00010000 40")
    body = element * 1000
    bomb = b"\xf0" + (5 + len(body)).to_bytes(4, "big") + (1000).to_bytes(4, "big") + b"\xf0" + body
    for refuse in (decode, skip):
        with pytest.raises(AmqpDecodeError, match="declares 65536 elements"):
            refuse(bomb)


def test_trees_of_described_values_are_bounded() -> None:
    """A described value inside a described value has no count that could be limited."""
    tree = b"\x40"
    for _ in range(10):
        tree = b"\x00" + tree + tree
    assert decode(tree)[1] == skip(tree, 0) == len(tree)
    for refuse in (decode, skip):
        with pytest.raises(AmqpDecodeError, match="more elements in all"):
            refuse(tree, limits=SMALL)


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param([t.Long(i << 54) for i in range(257)], id="integers"),
        pytest.param([uuid.UUID(int=i) for i in range(257)], id="uuids"),
    ],
)
def test_small_limits_bound_keys_that_collide(keys: list[object]) -> None:
    """hash() of these is not keyed: a peer can choose thousands that collide
    (docs/explanation/security.md)."""
    with pytest.raises(AmqpDecodeError, match="514 elements; at most 512"):
        decode(encode(dict.fromkeys(keys)), limits=SMALL)


def test_list_is_bounded_by_count_max_and_elements_max() -> None:
    limits = DecodeLimits(count_max=10, elements_max=15)
    assert decode(encode([None] * 10), limits=limits)[0] == [None] * 10
    with pytest.raises(AmqpDecodeError, match="11 elements; at most 10"):
        decode(encode([None] * 11), limits=limits)
    with pytest.raises(AmqpDecodeError, match="more elements in all"):
        decode(encode([[None] * 7, [None] * 7]), limits=limits)
    assert decode(encode([[None] * 7, [None] * 6]), limits=limits)[0] == [[None] * 7, [None] * 6]


def test_limits_are_spent_per_call() -> None:
    limits = DecodeLimits(elements_max=5)
    data = encode([None] * 5)
    for _ in range(3):
        assert decode(data, limits=limits)[0] == [None] * 5


# --- map keys --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("c0 02 01 40", "list"),
        ("45", "list"),
        ("c1 01 00", "dict"),
        ("e0 02 01 40", "Array"),
        ("00 53 01 40", "Described"),
    ],
)
def test_map_key_that_cannot_be_hashed_is_refused(key: str, name: str) -> None:
    key_bytes = bytes.fromhex(key)
    data = b"\xc1" + bytes((2 + len(key_bytes), 2)) + key_bytes + b"\x40"
    with pytest.raises(AmqpDecodeError, match=f"{name} as a map key"):
        decode(data)


def test_map_with_a_key_twice_is_refused() -> None:
    with pytest.raises(AmqpDecodeError, match="same str key twice"):
        decode(bytes.fromhex("c1 09 04 a1 01 61 40 a1 01 61 41"))


def test_scalars_of_every_type_are_map_keys() -> None:
    keys: list[object] = [None, True, t.Uint(7), t.Long(8), 0.5, "s", b"b", t.Symbol("y"), ID]
    pairs = dict.fromkeys(keys, 1)
    assert decode(encode(pairs))[0] == pairs


def colliding_uuids(count: int) -> list[uuid.UUID]:
    """hash(UUID) is hash(int): all these fall into one bucket."""
    return [uuid.UUID(int=7 + index * sys.hash_info.modulus) for index in range(count)]


def test_uuid_keys_that_collide_are_refused_before_they_cost_seconds() -> None:
    keys = colliding_uuids(3000)
    assert len({hash(key) for key in keys}) == 1
    body = b"".join(encode(key) + b"\x40" for key in keys)
    data = b"\xd1" + (4 + len(body)).to_bytes(4, "big") + (6000).to_bytes(4, "big") + body
    start = time.process_time()
    with pytest.raises(AmqpDecodeError, match="uuid map keys"):
        decode(data)
    assert time.process_time() - start < 1.0


def test_uuid_keys_within_the_limit_are_read() -> None:
    pairs = dict.fromkeys(colliding_uuids(256))
    assert decode(encode(pairs))[0] == pairs
