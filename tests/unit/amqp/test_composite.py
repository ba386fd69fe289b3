"""The codec that is derived from a declaration: random composites of every class, and a new one."""

from __future__ import annotations

import gc
import struct
import uuid
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.amqp import message, performatives
from penstock.amqp import types as t
from penstock.amqp.composite import (
    SPECS,
    SPECS_BY_DESCRIPTOR,
    Boolean,
    Composite,
    CompositeField,
    CompositeType,
    String,
    Symbols,
    Uint,
    composite,
    read_composite,
    read_descriptor,
    write_composite,
)
from penstock.amqp.decoder import DEFAULT, DecodeBudget, decode
from penstock.amqp.encoder import encode
from penstock.amqp.errors import AmqpDecodeError, LocalError
from penstock.amqp.performatives import Accepted, Error, Rejected

# --- random composites -----------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=260)
ASCII = st.text(st.characters(max_codepoint=127), max_size=260)
SYMBOL_MAPS = st.dictionaries(ASCII, st.none() | TEXT | st.integers(-5, 5).map(t.Int), max_size=4)
MESSAGE_IDS = st.uuids() | TEXT | st.binary() | st.integers(0, 2**64 - 1).map(t.Ulong)

# How a field of each kind may look: its values, and the AMQP type the wire must then show.
KINDS: Final[dict[str, tuple[st.SearchStrategy[Any], tuple[type, ...]]]] = {
    "ubyte": (st.integers(0, 255), (t.Ubyte,)),
    "ushort": (st.integers(0, 0xFFFF), (t.Ushort,)),
    "uint": (st.integers(0, 300) | st.integers(0, 2**32 - 1), (t.Uint,)),
    "ulong": (st.integers(0, 300) | st.integers(0, 2**64 - 1), (t.Ulong,)),
    "boolean": (st.booleans(), (bool,)),
    "timestamp": (st.integers(-(2**63), 2**63 - 1), (t.Timestamp,)),
    "binary": (st.binary(max_size=260), (bytes,)),
    "string": (TEXT, (str,)),
    "symbol": (ASCII, (t.Symbol,)),
    "symbols": (st.lists(ASCII, min_size=1, max_size=4), (t.Array,)),
    "map": (st.dictionaries(st.binary(max_size=9), st.none(), max_size=3), (dict,)),
    "map with symbol keys": (SYMBOL_MAPS, (dict,)),
    "message-id": (MESSAGE_IDS, (t.Ulong, str, bytes, uuid.UUID)),
    "error": (st.builds(Error, condition=ASCII, description=st.none() | TEXT), (t.Described,)),
    "delivery state": (st.just(Accepted()) | st.just(Rejected()), (t.Described,)),
    "source": (st.builds(performatives.Source, address=st.none() | TEXT), (t.Described,)),
    "target": (st.builds(performatives.Target, address=st.none() | TEXT), (t.Described,)),
}


def values_of(field: CompositeField) -> st.SearchStrategy[Any]:
    values = KINDS[field.codec.name][0]
    return values if field.mandatory else values | st.none()


def null_default(spec: CompositeType, name: str) -> Any:
    """What null means for this field: the default of the class."""
    return next(info.default for info in msgspec.structs.fields(spec.cls) if info.name == name)


COMPOSITES = st.sampled_from(list(SPECS.values())).flatmap(
    lambda spec: st.tuples(
        st.just(spec), st.fixed_dictionaries({f.name: values_of(f) for f in spec.fields})
    )
)


@settings(deadline=None)
@given(COMPOSITES)
def test_composite_survives_whatever_its_fields_hold(
    drawn: tuple[CompositeType, dict[str, Any]],
) -> None:
    spec, values = drawn
    original = spec.cls(**values)
    out = bytearray()
    write_composite(out, original)
    data = bytes(out)
    descriptor, start = read_descriptor(data, 0, len(data))
    assert descriptor == spec.code
    seen, position = read_composite(spec, data, start, len(data), DecodeBudget(DEFAULT))
    assert position == len(data)
    for name, value in values.items():
        expected = null_default(spec, name) if value is None else value
        assert getattr(seen, name) == expected, name


@settings(deadline=None)
@given(COMPOSITES)
def test_composite_shows_each_field_in_its_type_and_place(
    drawn: tuple[CompositeType, dict[str, Any]],
) -> None:
    """The generic decoder, which knows no composites, sees a described list of all fields."""
    spec, values = drawn
    out = bytearray()
    write_composite(out, spec.cls(**values))
    described, _ = decode(bytes(out))
    assert isinstance(described, t.Described)
    assert described.descriptor == spec.code
    assert isinstance(described.value, list)
    assert len(described.value) == len(spec.fields)
    for field, seen in zip(spec.fields, described.value, strict=True):
        if values[field.name] is None:
            assert seen is None
        else:
            assert type(seen) in KINDS[field.codec.name][1], field.name


@settings(deadline=None)
@given(COMPOSITES, st.data())
def test_composite_cut_or_changed_is_read_or_refused(
    drawn: tuple[CompositeType, dict[str, Any]], data: st.DataObject
) -> None:
    spec, values = drawn
    out = bytearray()
    write_composite(out, spec.cls(**values))
    position = data.draw(st.integers(3, len(out) - 1))
    out[position] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(position, len(out)))
    try:
        seen, stop = read_composite(spec, bytes(out), 3, end, DecodeBudget(DEFAULT))
    except (AmqpDecodeError, IndexError, struct.error):
        return  # the callers turn the last two into the first (decode_performative, one_of)
    assert stop <= end
    write_composite(bytearray(), seen)


def test_every_kind_of_field_is_drawn() -> None:
    used = {field.codec.name for spec in SPECS.values() for field in spec.fields}
    assert used == set(KINDS)


# --- declaring one ---------------------------------------------------------------------------


@pytest.fixture
def probe() -> Iterator[type[Composite]]:
    """A composite of our own, taken out again afterwards."""

    @composite("penstock:probe:list", 0xEE)
    class Probe(Composite, kw_only=True):
        first: Uint | None = None
        name: String
        ready: Boolean = True
        tags: Symbols | None = None

    yield Probe
    spec = SPECS.pop(Probe)
    del SPECS_BY_DESCRIPTOR[spec.code], SPECS_BY_DESCRIPTOR[spec.symbol]


def test_declaration_becomes_fields(probe: type[Composite]) -> None:
    spec = SPECS[probe]
    assert [(f.name, f.codec.name, f.mandatory) for f in spec.fields] == [
        ("first", "uint", False),
        ("name", "string", True),
        ("ready", "boolean", False),
        ("tags", "symbols", False),
    ]
    assert spec.mandatory == ("name",)
    assert spec.head == bytes.fromhex("00 53 ee")
    assert SPECS_BY_DESCRIPTOR[0xEE] is SPECS_BY_DESCRIPTOR["penstock:probe:list"] is spec


def test_declared_composite_is_written_and_read(probe: type[Composite]) -> None:
    build: Any = probe
    out = bytearray(b"before")
    write_composite(out, build(name="n", tags=["a"]))
    assert out == b"before" + bytes.fromhex("0053ee c0 0c 04 40 a1016e 41 e0 04 01 a3 01 61")
    body = encode([None, "n"])
    seen, _ = read_composite(SPECS[probe], body, 0, len(body), DecodeBudget(DEFAULT))
    assert seen == build(name="n", ready=True)


def test_declared_composite_refuses_none_for_a_mandatory_field(probe: type[Composite]) -> None:
    build: Any = probe
    with pytest.raises(LocalError, match=r"name is mandatory"):
        write_composite(bytearray(), build(name=None))


def test_field_without_a_codec_is_our_own_mistake() -> None:
    with pytest.raises(TypeError, match="exactly one FieldCodec"):

        @composite("penstock:broken:list", 0xEF)
        class Broken(Composite, kw_only=True):
            name: str

    assert 0xEF not in SPECS_BY_DESCRIPTOR


def test_descriptors_are_unique() -> None:
    codes = [spec.code for spec in SPECS.values()]
    assert len(set(codes)) == len(codes)
    assert len(SPECS_BY_DESCRIPTOR) == 2 * len(SPECS)
    assert SPECS[message.Properties].code == 0x73


def test_composites_stay_out_of_the_garbage_collector() -> None:
    """Thousands of flows and transfers a second, none of them ever in a cycle."""
    assert not gc.is_tracked(performatives.Close(error=Error(condition="c", info={"k": []})))
