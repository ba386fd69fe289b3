"""Performatives from a peer who means harm: cut, changed, made up, nested, oversized."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.amqp import types as t
from penstock.amqp.decoder import DecodeLimits
from penstock.amqp.errors import AmqpDecodeError
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
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    Transfer,
    decode_performative,
    encode_performative,
)


def read(data: bytes) -> Performative:
    performative, position = decode_performative(data, 0, len(data))
    assert position == len(data)
    return performative


SAMPLES: list[Performative] = [
    Open(container_id="c" * 40, hostname="h", properties={"a": "b", "c": t.Int(3)}),
    Open(container_id="c" * 300, desired_capabilities=["a", "b"]),
    Begin(remote_channel=3, next_outgoing_id=1, incoming_window=5000, outgoing_window=70000),
    Attach(
        name="n",
        handle=300,
        role=True,
        snd_settle_mode=1,
        source=Source(
            address="a",
            filter={"f": t.Described(1, "x")},
            default_outcome=Modified(delivery_failed=True),
            outcomes=["amqp:accepted:list"],
        ),
        target=Target(address="t", capabilities=["q"]),
        unsettled={b"t": t.Described(0x24, [])},
        max_message_size=2**64 - 1,
        properties={"p": [1, {"k": t.Array(["v"])}]},
    ),
    Attach(name="n", handle=0, role=False, target=Coordinator(capabilities=["x"])),
    Flow(next_incoming_id=1, incoming_window=2, next_outgoing_id=3, outgoing_window=4, handle=5),
    Transfer(handle=1, delivery_id=70000, delivery_tag=b"tag", message_format=0, settled=False),
    Transfer(handle=1, state=Received(section_number=1, section_offset=300), more=True),
    Disposition(role=True, first=1, last=500, settled=True, state=Accepted()),
    Disposition(role=True, first=1, state=Rejected(error=Error(condition="c", description="d"))),
    Disposition(role=True, first=1, state=t.Described("vendor", {"k": [1]})),
    Detach(handle=1, closed=True, error=Error(condition="c", info={"k": "v"})),
    End(),
    Close(error=Error(condition="amqp:internal-error")),
    SaslMechanisms(sasl_server_mechanisms=["PLAIN", "ANONYMOUS"]),
    SaslInit(mechanism="PLAIN", initial_response=b"r", hostname="h"),
    SaslOutcome(code=0, additional_data=b"Welcome!"),
]


@pytest.mark.parametrize("performative", SAMPLES, ids=lambda value: type(value).__name__)
def test_performative_cut_anywhere_is_refused(performative: Performative) -> None:
    data = encode_performative(performative)
    assert read(data) == performative
    for cut in range(len(data)):
        with pytest.raises(AmqpDecodeError):
            decode_performative(data[:cut], 0, cut)
        with pytest.raises(AmqpDecodeError):  # the rest is there, but belongs to the next frame
            decode_performative(data, 0, cut)


@pytest.mark.parametrize("performative", SAMPLES, ids=lambda value: type(value).__name__)
def test_performative_with_any_byte_changed_is_read_or_refused(performative: Performative) -> None:
    data = encode_performative(performative)
    for position in range(min(len(data), 80)):
        for byte in (0x00, 0x01, 0x40, 0x41, 0x45, 0x52, 0x80, 0xA3, 0xC0, 0xD0, 0xF0, 0xFF):
            changed = data[:position] + bytes((byte,)) + data[position + 1 :]
            try:
                decode_performative(changed, 0, len(changed))
            except AmqpDecodeError as error:
                assert str(error)


@settings(deadline=None)
@given(
    st.sampled_from([*range(0x10, 0x19), *range(0x40, 0x45)]),
    st.integers(0, 16),
    st.binary(max_size=60),
)
def test_any_fields_are_read_or_refused(code: int, count: int, fields: bytes) -> None:
    data = struct.pack(">BBBBBB", 0, 0x53, code, 0xC0, len(fields) + 1, count) + fields
    try:
        performative, position = decode_performative(data, 0, len(data))
    except AmqpDecodeError:
        return
    assert position == len(data)
    again = encode_performative(performative)
    assert decode_performative(again, 0, len(again))[0] == performative


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_body_is_read_or_refused(data: bytes) -> None:
    try:
        decode_performative(data, 0, len(data))
    except AmqpDecodeError as error:
        assert error.condition == "amqp:decode-error"


def test_size_of_the_list_must_agree_with_its_fields() -> None:
    for data in ("00 53 17 c0 03 01 40 40", "00 53 17 c0 01 01 40", "00 53 17 c0 00"):
        with pytest.raises(AmqpDecodeError):
            decode_performative(bytes.fromhex(data), 0, len(bytes.fromhex(data)))


def test_limits_bound_all_fields_together() -> None:
    pairs: dict[str, object] = {f"k{index}": None for index in range(10)}
    attach = Attach(name="n", handle=0, role=True, source=Source(filter=pairs), properties=pairs)
    data = encode_performative(attach)
    assert decode_performative(data, 0, len(data), limits=DecodeLimits(elements_max=40))
    with pytest.raises(AmqpDecodeError, match=r"attach\.properties: .*more elements"):
        decode_performative(data, 0, len(data), limits=DecodeLimits(elements_max=39))
    with pytest.raises(AmqpDecodeError, match=r"filter: .*at most 19"):
        decode_performative(data, 0, len(data), limits=DecodeLimits(count_max=19))


def test_nesting_bomb_in_a_property_is_refused() -> None:
    deep: object = None
    for _ in range(60):
        deep = [deep]
    data = encode_performative(Open(container_id="c", properties={"k": deep}))
    with pytest.raises(AmqpDecodeError, match=r"open\.properties: .*nested deeper than 32"):
        read(data)


def test_states_nested_in_themselves_are_refused() -> None:
    """rejected(error(info)) is as deep as composites go; the rest is generic and counted."""
    data = b"\x00\x53\x15\xc0\xff\x05\x41\x43\x40\x40" + b"\x00\x53\x25\xc0\xff\x01" * 5000
    with pytest.raises(AmqpDecodeError):
        decode_performative(data, 0, len(data))
