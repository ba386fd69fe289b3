"""The Python classes of AMQP types: they behave as their base and remember what they are."""

from __future__ import annotations

import copy
import pickle
import uuid

import pytest

from penstock.amqp import errors
from penstock.amqp import types as t

INTEGERS: tuple[type[int], ...] = (
    t.Ubyte,
    t.Ushort,
    t.Uint,
    t.Ulong,
    t.Byte,
    t.Short,
    t.Int,
    t.Long,
    t.Timestamp,
)
TEXTS: tuple[type[str], ...] = (t.Char, t.Symbol)


@pytest.mark.parametrize("kind", INTEGERS)
def test_integer_type_compares_hashes_and_prints_as_int(kind: type[int]) -> None:
    assert kind(5) == 5
    assert hash(kind(5)) == hash(5)
    assert f"{kind(5)}" == "5"  # numbers stand in error texts that clients match
    assert {5: "x"}[kind(5)] == "x"
    assert type(kind(5)) is kind


@pytest.mark.parametrize("kind", INTEGERS)
def test_integer_type_checks_nothing_when_it_is_made(kind: type[int]) -> None:
    assert kind(-(2**70)) == -(2**70)


@pytest.mark.parametrize("kind", TEXTS)
def test_text_type_compares_hashes_and_prints_as_str(kind: type[str]) -> None:
    assert kind("a") == "a"
    assert {"a": 1}[kind("a")] == 1
    assert f"{kind('a')}" == "a"
    assert type(kind("a")) is kind


def test_float_is_a_python_float() -> None:
    assert t.Float(0.5) == 0.5
    assert isinstance(t.Float(0.5), float)


@pytest.mark.parametrize("kind", [t.Decimal32, t.Decimal64, t.Decimal128, t.Raw])
def test_byte_types_keep_their_bytes(kind: type[bytes]) -> None:
    assert kind(b"\x00\x01") == b"\x00\x01"
    assert type(kind(b"\x00\x01")) is kind


@pytest.mark.parametrize("kind", [*INTEGERS, *TEXTS, t.Float])
def test_scalar_types_carry_no_dict(kind: type) -> None:
    assert not hasattr(kind(), "__dict__")


def test_array_is_a_list_with_the_constructor_of_its_elements() -> None:
    array = t.Array(["a", "b"], code=t.STRING_32)
    assert array == ["a", "b"]
    assert array.code == 0xB1
    assert array.descriptors == ()
    assert t.Array(["a"]).code is None


def test_array_copies_what_it_is_made_of() -> None:
    values: list[object] = [1]
    array = t.Array(values)
    values.append(2)
    assert array == [1]


def test_array_shows_constructor_and_descriptors() -> None:
    assert repr(t.Array([1], code=0x43)) == "Array([1], code=0x43, descriptors=())"
    assert repr(t.Array()) == "Array([], code=None, descriptors=())"


def test_described_compares_by_descriptor_and_value() -> None:
    assert t.Described(t.Ulong(1), "a") == t.Described(1, "a")
    assert t.Described(1, "a") != t.Described(2, "a")
    assert t.Described(1, "a") != t.Described(1, "b")


def test_described_is_no_dict_key() -> None:
    with pytest.raises(TypeError):
        hash(t.Described(1, 2))


@pytest.mark.parametrize(
    "value",
    [
        t.Uint(3),
        t.Symbol("s"),
        t.Char("c"),
        t.Float(1.5),
        t.Decimal32(b"\x00\x00\x00\x01"),
        t.Raw(b"\x40"),
        t.Described(t.Symbol("d"), [1]),
        uuid.UUID(int=1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_survive_copying_and_pickling_with_their_type(value: object) -> None:
    for twin in (copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert twin == value
        assert type(twin) is type(value)


def test_constructor_codes_are_unique_and_in_range() -> None:
    codes = [value for name, value in vars(t).items() if name.isupper() and isinstance(value, int)]
    assert len(codes) == 40  # the 39 encodings of AMQP 1.6 and the described constructor
    assert len(set(codes)) == len(codes)
    assert all(0 <= code <= 0xFF for code in codes)


@pytest.mark.parametrize(
    ("kind", "condition"),
    [
        (errors.AmqpError, "amqp:internal-error"),
        (errors.AmqpDecodeError, "amqp:decode-error"),
        (errors.FramingError, "amqp:connection:framing-error"),
        (errors.LocalError, "amqp:internal-error"),
    ],
)
def test_errors_carry_the_condition_a_peer_is_told(
    kind: type[errors.AmqpError], condition: str
) -> None:
    assert kind("text").condition == condition
    assert issubclass(kind, errors.AmqpError)
