"""Which types and counts every kernel accepts, pure or compiled: what no reader must be given."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contract.test_kernels import (
    Kernel,
    compound,
    kernels,
    thorough,
    value_end,
    values,
    wrapped,
)

from penstock.kernels import KernelError, RefusedEvent

FIELD_NAMES = (
    "message-id", "user-id", "to", "subject", "reply-to", "correlation-id", "content-type",
    "content-encoding", "absolute-expiry-time", "creation-time", "group-id", "group-sequence",
    "reply-to-group-id",
)  # fmt: skip

# One encoding of each AMQP type, by the names of AMQP 1.6.
TYPES = {
    "boolean": "56 01", "ubyte": "50 01", "ushort": "60 00 01", "uint": "52 01", "ulong": "53 01",
    "byte": "51 01", "short": "61 00 01", "int": "54 01", "long": "55 01",
    "float": "72 3f 80 00 00", "double": "82 3f f0 00 00 00 00 00 00", "char": "73 00 00 00 61",
    "decimal32": "74 00 00 00 01", "decimal64": "84" + "00" * 8,
    "decimal128": "94" + "00" * 16, "uuid": "98" + "00" * 16,
    "timestamp": "83" + "00" * 8, "binary": "a0 01 61", "string": "a1 01 61", "symbol": "a3 01 61",
    "list": "c0 02 01 40", "map": "c1 05 02 a1 01 61 40", "array": "e0 03 01 50 01",
    "described": "00 53 10 40",
}  # fmt: skip
MESSAGE_ID = {"ulong", "uuid", "binary", "string"}
ALLOWED = {
    "message-id": MESSAGE_ID, "user-id": {"binary"}, "to": {"string"}, "subject": {"string"},
    "reply-to": {"string"}, "correlation-id": MESSAGE_ID, "content-type": {"symbol"},
    "content-encoding": {"symbol"}, "absolute-expiry-time": {"timestamp"},
    "creation-time": {"timestamp"}, "group-id": {"string"}, "group-sequence": {"uint"},
    "reply-to-group-id": {"string"},
}  # fmt: skip


@kernels
@pytest.mark.parametrize("field", FIELD_NAMES)
def test_properties_field_of_another_type_is_refused_by_name(kernel: Kernel, field: str) -> None:
    before = b"\x40" * FIELD_NAMES.index(field)
    for kind, encoded_value in TYPES.items():
        value = bytes.fromhex(encoded_value)
        for long in (False, True):
            fields = compound(0xC0, len(before) + 1, before + value, long=long)
            message = b"\x00\x53\x73" + fields + b"\x00\x53\x75\xa0\x00"
            (single,) = kernel.split_singles(message, [0, len(message)])
            batch = wrapped(message)
            if kind in ALLOWED[field]:
                assert single.sections == batch, kind
                assert kernel.split_batch(batch, 0, len(batch)).sections == batch
                continue
            assert isinstance(single, RefusedEvent), kind
            assert f"the field {field} of properties at byte" in str(single.error)
            assert f"is of type {kind} " in str(single.error)
            assert all(allowed in str(single.error) for allowed in ALLOWED[field])
            with pytest.raises(KernelError, match=f"the field {field} of properties"):
                kernel.split_batch(batch, 0, len(batch))


@kernels
@pytest.mark.parametrize(
    ("index", "value", "field"),
    [
        (0, "50 01", "durable"), (1, "52 01", "priority"), (2, "55 01", "ttl"),
        (3, "a1 00", "first-acquirer"), (4, "44", "delivery-count"),
    ],
)  # fmt: skip
def test_header_field_of_another_type_is_refused_by_name(
    kernel: Kernel, index: int, value: str, field: str
) -> None:
    wrong = bytes.fromhex(value)
    fields = compound(0xC0, index + 1, b"\x40" * index + wrong)
    message = b"\x00\x53\x70" + fields + b"\x00\x53\x75\xa0\x00"
    (refusal,) = kernel.split_singles(message, [0, len(message)])
    assert f"the field {field} of header" in str(refusal.error)


def elements_in(value: bytes) -> int:
    """How many values a decoder creates for an encoded value, counted without a kernel."""
    code = value[0]
    if code == 0:
        return elements_in(value[value_end(value, 1) :])
    if code >> 4 < 0xC:
        return 1
    short = not code & 0x10
    count = value[2] if short else int(struct.unpack_from(">I", value, 5)[0])
    first = 3 if short else 9
    if code >> 4 >= 0xE:
        return 1 + count  # arrays of compounds are not generated here
    total = 1
    for _ in range(count):
        stop = value_end(value, first)
        total += elements_in(value[first:stop])
        first = stop
    return total


@kernels
@thorough
@given(value=values, count=st.integers(0, 300), code=st.sampled_from(range(0x40, 0x46)))
def test_publication_has_no_more_elements_than_bytes(
    kernel: Kernel, value: bytes, count: int, code: int
) -> None:
    zero_width = compound(0xE0, count, bytes((code,)), long=count & 1 == 1)
    body = compound(0xC0, 2, zero_width + value, long=True)
    message = b"\x00\x53\x77" + body
    (single,) = kernel.split_singles(message, [0, len(message)])
    if isinstance(single, RefusedEvent):
        assert count > 1
        assert f"{count} elements in 1 bytes" in str(single.error)
    else:
        assert count <= 1
        assert elements_in(body) <= len(body)


@kernels
@pytest.mark.parametrize("place", ["body", "property", "annotation", "list", "array"])
def test_map_with_a_key_of_no_primitive_type_is_refused(kernel: Kernel, place: str) -> None:
    """A reader that keeps maps in a hash table cannot take them: the Python SDK of Azure fails with
    TypeError and reads the same event again for ever."""
    for kind, encoded_key in {**TYPES, "empty list": "45"}.items():
        key = bytes.fromhex(encoded_key)
        for long in (False, True):
            code = 0xD1 if long else 0xC1
            value = compound(code & 0xEF, 4, b"\xa1\x01a\x40" + key + b"\x41", long=long)
            if place == "list":
                value = compound(0xC0, 1, value)
            elif place == "array":
                value = compound(0xE0, 1, value)
            message = {
                "property": b"\x00\x53\x74" + compound(0xC1, 2, b"\xa1\x01k" + value),
                "annotation": b"\x00\x53\x72" + compound(0xC1, 2, b"\xa3\x01k" + value),
            }.get(place, b"\x00\x53\x77" + value)
            if place in ("property", "annotation"):
                message += b"\x00\x53\x75\xa0\x00"
            (single,) = kernel.split_singles(message, [0, len(message)])
            batch = wrapped(message)
            if kind in ("list", "empty list", "map", "array", "described"):
                assert isinstance(single, RefusedEvent), kind
                assert "a map's key at byte" in str(single.error)
                with pytest.raises(KernelError, match="a primitive type is allowed"):
                    kernel.split_batch(batch, 0, len(batch))
            else:
                assert not isinstance(single, RefusedEvent), single.error
