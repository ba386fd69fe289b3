"""The same bytes in other people's hands: Qpid Proton's codec, and the one inside azure-eventhub.

Both are optional here; where they are installed they read what we write and write what we read.
"""

from __future__ import annotations

import struct
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.amqp_values import SCALARS, ints

from penstock.amqp import types as t
from penstock.amqp.decoder import decode
from penstock.amqp.encoder import encode
from penstock.amqp.message import DataBody, Message, Properties, ValueBody, decode_message
from penstock.amqp.message import encode_message as encode_our_message
from penstock.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    Performative,
    Rejected,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    Transfer,
    decode_performative,
    encode_performative,
)

ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")


@pytest.fixture(scope="module")
def proton() -> Any:
    return pytest.importorskip("proton")


@pytest.fixture(scope="module")
def pyamqp_decode() -> Any:
    return pytest.importorskip("azure.eventhub._pyamqp._decode")


@pytest.fixture(scope="module")
def pyamqp_encode() -> Any:
    return pytest.importorskip("azure.eventhub._pyamqp._encode")


@pytest.fixture(scope="module")
def pyamqp_frames() -> Any:
    return pytest.importorskip("azure.eventhub._pyamqp.performatives")


# --- Qpid Proton -----------------------------------------------------------------------------


def _is_plain(value: object) -> bool:
    return not isinstance(value, t.Described)


VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(SCALARS, inner, max_size=5),
        # Proton 0.40 writes a described value inside a described one wrongly: it loses a byte.
        st.builds(t.Described, ints(t.Ulong, 64, signed=False), inner.filter(_is_plain)),
        st.lists(st.text("abc"), min_size=1, max_size=4).map(t.Array),
        st.lists(ints(t.Uint, 32, signed=False), min_size=1, max_size=4).map(t.Array),
    ),
    max_leaves=15,
)


def through_proton(proton: Any, data: bytes) -> bytes:
    """Decoded and encoded again by Proton, which has its own taste in widths."""
    tree = proton.Data()
    assert tree.decode(data) == len(data)
    return bytes(tree.encode())


@settings(deadline=None, max_examples=150)
@given(value=VALUES)
def test_proton_reads_what_we_write_and_we_read_what_it_writes(proton: Any, value: object) -> None:
    data = encode(value)
    back, _ = decode(through_proton(proton, data))
    # Equal encodings mean equal values of equal types.
    assert encode(back) == data


def test_proton_reads_our_performatives_field_by_field(proton: Any) -> None:
    flow = Flow(
        next_incoming_id=0, incoming_window=1, next_outgoing_id=300, outgoing_window=2, handle=9
    )
    tree = proton.Data()
    tree.decode(encode_performative(flow))
    tree.rewind()
    tree.next()
    described = tree.get_object()
    assert described.descriptor == 0x13
    assert described.value == [0, 1, 300, 2, 9, None, None, None, False, False, None]


@pytest.mark.parametrize("index", range(13))
def test_we_read_our_performatives_in_protons_encoding(proton: Any, index: int) -> None:
    """Proton writes wider headers and other descriptors' widths than we do."""
    performative = READ_BY_POSITION[index][0]
    theirs = through_proton(proton, encode_performative(performative))
    assert decode_performative(theirs, 0, len(theirs)) == (performative, len(theirs))


def test_proton_reads_our_message(proton: Any) -> None:
    ours = Message(
        message_annotations={"x-opt-sequence-number": t.Long(7)},
        properties=Properties(message_id=ID, correlation_id=t.Ulong(4), reply_to="r"),
        application_properties={"status-code": t.Int(202), "status-description": "Accepted"},
        body=ValueBody({"partition_ids": t.Array(["0", "1"]), "created_at": t.Timestamp(5)}),
    )
    theirs = proton.Message()
    theirs.decode(encode_our_message(ours))
    assert theirs.id == ID
    assert theirs.correlation_id == 4
    assert theirs.reply_to == "r"
    assert theirs.properties["status-code"] == 202
    assert type(theirs.properties["status-code"]) is proton.int32
    assert theirs.annotations == {"x-opt-sequence-number": 7}
    assert theirs.body["partition_ids"].elements == ("0", "1")
    assert type(theirs.body["created_at"]) is proton.timestamp


def test_we_read_protons_message(proton: Any) -> None:
    theirs = proton.Message(body={"k": [1, proton.symbol("s")]})
    theirs.id = proton.ulong(5)
    theirs.address = "$management"
    theirs.properties = {"operation": "READ", "n": proton.int32(3)}
    ours = decode_message(theirs.encode())
    assert ours.properties == Properties(message_id=5, to="$management")
    assert type(ours.properties.message_id) is t.Ulong
    assert ours.application_properties == {"operation": "READ", "n": 3}
    assert ours.body == ValueBody({"k": [1, "s"]})


# --- azure-eventhub's own stack --------------------------------------------------------------

FILTER = "apache.org:selector-filter:string"

READ_BY_POSITION: list[tuple[Performative, int, dict[int, object]]] = [
    # (what we send, its code, what the client must find at which index)
    (
        Open(container_id="c_G1", max_frame_size=65536, channel_max=4999, idle_time_out=120000),
        0x10,
        {0: b"c_G1", 1: None, 2: 65536, 3: 4999, 4: 120000, 9: None},
    ),
    (
        Begin(
            remote_channel=1,
            next_outgoing_id=1,
            incoming_window=5000,
            outgoing_window=65536,
            handle_max=255,
        ),
        0x11,
        {0: 1, 1: 1, 2: 5000, 3: 65536, 4: 255, 7: None},
    ),
    (
        Attach(
            name="n",
            handle=3,
            role=False,
            snd_settle_mode=1,
            rcv_settle_mode=0,
            source=Source(address="s"),
            target=Target(address="t"),
            initial_delivery_count=0,
            max_message_size=2**64 - 1,
            properties={"com.microsoft:timeout": 60},
        ),
        0x12,
        {
            0: b"n",
            1: 3,
            2: False,
            3: 1,
            4: 0,
            9: 0,
            10: 2**64 - 1,
            13: {b"com.microsoft:timeout": 60},
        },
    ),
    (
        Attach(name="n" * 300, handle=3, role=True),
        0x12,
        {0: b"n" * 300, 5: None, 6: None, 13: None},
    ),
    (
        Flow(
            next_incoming_id=0,
            incoming_window=5000,
            next_outgoing_id=1,
            outgoing_window=65536,
            handle=0,
            delivery_count=0,
            link_credit=1000,
        ),
        0x13,
        {0: 0, 1: 5000, 4: 0, 5: 0, 6: 1000, 8: False, 10: None},
    ),
    (
        Transfer(handle=1, delivery_id=2, delivery_tag=b"", message_format=0, settled=True),
        0x14,
        {0: 1, 1: 2, 2: b"", 3: 0, 4: True, 5: False, 10: False},
    ),
    (
        Disposition(role=True, first=0, last=3, settled=True, state=Accepted()),
        0x15,
        {0: True, 1: 0, 2: 3, 3: True, 4: {"accepted": []}},
    ),
    (
        Disposition(role=True, first=0, settled=True, state=Rejected(error=Error(condition="c"))),
        0x15,
        {4: {"rejected": [[b"c", None, None]]}},
    ),
    (
        Detach(handle=1, closed=True, error=Error(condition="c", description="d")),
        0x16,
        {0: 1, 1: True, 2: [b"c", b"d", None]},
    ),
    (End(), 0x17, {0: None}),
    (Close(error=Error(condition="c", description="d")), 0x18, {0: [b"c", b"d", None]}),
    (
        SaslMechanisms(sasl_server_mechanisms=["PLAIN", "ANONYMOUS"]),
        0x40,
        {0: [b"PLAIN", b"ANONYMOUS"]},
    ),
    (SaslOutcome(code=0, additional_data=b"Welcome!"), 0x44, {0: 0, 1: b"Welcome!"}),
]


@pytest.mark.parametrize(
    ("performative", "code", "expected"),
    READ_BY_POSITION,
    ids=lambda value: type(value).__name__ if not isinstance(value, int | dict) else "",
)
def test_azure_eventhub_finds_every_field_where_it_looks(
    pyamqp_decode: Any, performative: Performative, code: int, expected: dict[int, object]
) -> None:
    seen_code, fields = pyamqp_decode.decode_frame(memoryview(encode_performative(performative)))
    assert seen_code == code
    for index, value in expected.items():
        assert fields[index] == value, f"field {index}"


def test_azure_eventhub_reads_our_answers(pyamqp_decode: Any) -> None:
    answer = Message(
        properties=Properties(correlation_id=ID),
        application_properties={"status-code": t.Int(200)},
        body=ValueBody({"partition_ids": t.Array(["0", "1"])}),
    )
    seen = pyamqp_decode.decode_payload(memoryview(encode_our_message(answer)))
    assert seen.properties.correlation_id == ID
    assert seen.application_properties == {b"status-code": 200}
    assert seen.value == {b"partition_ids": [b"0", b"1"]}


def their_body(pyamqp_encode: Any, frame: Any, *, sasl: bool = False) -> bytes:
    header, body = pyamqp_encode.encode_frame(frame, *([b"\x01"] if sasl else []))
    assert struct.unpack(">I", header[:4])[0] == 8 + len(body)
    return bytes(body)


def test_we_read_what_azure_eventhub_opens_with(pyamqp_encode: Any, pyamqp_frames: Any) -> None:
    frame = pyamqp_frames.OpenFrame(
        container_id="EHProducer-1",
        hostname="localhost",
        max_frame_size=1048576,
        channel_max=65535,
        idle_timeout=None,
        outgoing_locales=None,
        incoming_locales=None,
        offered_capabilities=None,
        desired_capabilities=None,
        properties={b"product": "eventhub.python"},
    )
    body = their_body(pyamqp_encode, frame)
    seen, _ = decode_performative(body, 0, len(body))
    assert seen == Open(
        container_id="EHProducer-1",
        hostname="localhost",
        max_frame_size=1048576,
        channel_max=65535,
        properties={"product": "eventhub.python"},
    )


def test_we_read_azure_eventhubs_attach_with_its_filter(
    pyamqp_encode: Any, pyamqp_frames: Any
) -> None:
    endpoints = pytest.importorskip("azure.eventhub._pyamqp.endpoints")
    source = endpoints.Source(
        address="amqps://h/eh1", filters={FILTER.encode(): (FILTER, "x > '-1'")}
    )
    frame = pyamqp_frames.AttachFrame(
        name="n",
        handle=1,
        role=True,
        send_settle_mode=0,
        rcv_settle_mode=0,
        source=source,
        target=endpoints.Target(address="receiver-link-n"),
        unsettled=None,
        incomplete_unsettled=None,
        initial_delivery_count=None,
        max_message_size=1048576,
        offered_capabilities=None,
        desired_capabilities=None,
        properties=None,
    )
    body = their_body(pyamqp_encode, frame)
    seen, position = decode_performative(body, 0, len(body))
    assert position == len(body)
    assert isinstance(seen, Attach)
    assert (seen.snd_settle_mode, seen.rcv_settle_mode) == (0, 0)
    assert seen.source is not None and seen.source.filter is not None
    assert seen.source.address == "amqps://h/eh1"
    described = seen.source.filter[FILTER]
    assert isinstance(described, t.Described)
    assert described.value == "x > '-1'"
    assert isinstance(seen.target, Target) and seen.target.address == "receiver-link-n"


def test_we_read_azure_eventhubs_flow(pyamqp_encode: Any, pyamqp_frames: Any) -> None:
    frame = pyamqp_frames.FlowFrame(
        next_incoming_id=1,
        incoming_window=65536,
        next_outgoing_id=0,
        outgoing_window=65536,
        handle=2,
        delivery_count=0,
        link_credit=300,
        available=None,
        drain=None,
        echo=None,
        properties=None,
    )
    body = their_body(pyamqp_encode, frame)
    seen, _ = decode_performative(body, 0, len(body))
    assert isinstance(seen, Flow)
    assert (seen.handle, seen.link_credit, seen.drain) == (2, 300, False)


def test_we_read_azure_eventhubs_message(pyamqp_encode: Any) -> None:
    their = pytest.importorskip("azure.eventhub._pyamqp.message")
    message = their.Message(
        properties=their.Properties(message_id=ID, to="$cbs"),
        application_properties={"operation": "put-token", "expiration": 5},
        data=[b"one", b"two"],
        delivery_annotations={b"d": 1},  # written last by this client (protocol.md 4.6)
    )
    out = bytearray()
    pyamqp_encode.encode_payload(out, message)
    seen = decode_message(bytes(out))
    assert seen.properties is not None
    assert seen.properties.message_id == ID
    assert seen.properties.to == "$cbs"
    assert seen.application_properties is not None
    assert seen.application_properties["operation"] == "put-token"
    assert seen.body == DataBody([b"one", b"two"])
    assert seen.delivery_annotations == {"d": 1}
