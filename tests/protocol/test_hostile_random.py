"""Random frames and bytes: the engine never raises, keeps bounded memory, sends whole frames."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.amqp.connection import ConnectionConfig, ConnectionEngine
from penstock.amqp.events import (
    AttachReceived,
    ConnectionFailed,
    FlowReceived,
)
from penstock.amqp.frames import AMQP_HEADER, SASL_HEADER, encode_frame
from penstock.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    Source,
    Target,
    Transfer,
    encode_performative,
)

BEGIN = Begin(next_outgoing_id=0, incoming_window=10, outgoing_window=10)
OPEN = Open(container_id="peer")
FLOW_FIELDS: dict[str, Any] = {
    "next_incoming_id": 1,
    "incoming_window": 1000,
    "next_outgoing_id": 0,
    "outgoing_window": 1000,
}


NUMBERS = st.sampled_from([0, 1, 2, 3, 255, 256, 2**31, 2**32 - 1])
SPOKEN = st.one_of(
    st.builds(
        Begin,
        remote_channel=st.none() | st.integers(0, 2),
        next_outgoing_id=NUMBERS,
        incoming_window=NUMBERS,
        outgoing_window=NUMBERS,
        handle_max=NUMBERS,
    ),
    st.builds(
        Attach,
        name=st.sampled_from(["a", "b"]),
        handle=st.integers(0, 2),
        role=st.booleans(),
        initial_delivery_count=st.none() | NUMBERS,
        max_message_size=st.none() | st.integers(0, 20),
    ),
    st.builds(
        Flow,
        next_incoming_id=st.none() | NUMBERS,
        incoming_window=NUMBERS,
        next_outgoing_id=NUMBERS,
        outgoing_window=NUMBERS,
        handle=st.none() | st.integers(0, 2),
        delivery_count=st.none() | NUMBERS,
        link_credit=st.none() | NUMBERS,
        drain=st.booleans(),
        echo=st.booleans(),
    ),
    st.builds(
        Transfer,
        handle=st.integers(0, 2),
        delivery_id=st.none() | st.integers(0, 3),
        delivery_tag=st.none() | st.just(b"t"),
        message_format=st.none() | st.just(0),
        settled=st.none() | st.booleans(),
        more=st.booleans(),
        aborted=st.booleans(),
    ),
    st.builds(Disposition, role=st.booleans(), first=NUMBERS, last=st.none() | NUMBERS),
    st.builds(Detach, handle=st.integers(0, 2), closed=st.booleans()),
    st.just(End()),
    st.just(None),
    st.sampled_from([Close(), OPEN]),
)


def answer(events: list[Any], verdicts: list[bool]) -> None:
    """An application that does something with all it is told."""
    for event in events:
        if isinstance(event, AttachReceived):
            if verdicts and not verdicts.pop():
                event.link.refuse(Error(condition="amqp:not-found"))
                continue
            event.link.accept(source=None, target=Target(), max_message_size=10)
            if event.link.role:
                event.link.grant(5)
        elif isinstance(event, FlowReceived) and event.link is not None:
            while event.link.is_attached and not event.link.role:
                if event.link.credit > 10 or event.link.send(b"x", settled=False) is None:
                    break


@settings(max_examples=300, deadline=None)
@given(
    spoken=st.lists(st.tuples(SPOKEN, st.integers(0, 2), st.integers(1, 3)), max_size=30),
    verdicts=st.lists(st.booleans(), max_size=5),
    data=st.binary(max_size=30),
)
def test_no_order_of_frames_raises_or_grows(
    spoken: list[tuple[Any, int, int]], verdicts: list[bool], data: bytes
) -> None:
    engine = ConnectionEngine(
        ConnectionConfig(container_id="c", links_max=5, sessions_max=3), now_ms=0
    )
    engine.receive_data(AMQP_HEADER + encode_frame(0, encode_performative(OPEN)), now_ms=0)
    waiting = b""
    for body, channel, turn in spoken:
        payload = b"payload" if isinstance(body, Transfer) else b""
        encoded = encode_performative(body) if body is not None else b""
        waiting += encode_frame(channel, encoded, payload)
        if turn == 1:
            answer([*engine.receive_data(waiting, now_ms=0)], verdicts)
            waiting = b""
    answer([*engine.receive_data(waiting + data, now_ms=0)], verdicts)
    assert engine.held_bytes <= 30 + 65_536
    assert engine.allowance.link_count <= 5
    assert len(engine.sessions) <= 3
    told = engine.bytes_to_send(now_ms=0)
    # Whatever was said, what we answered is whole frames, and nothing comes after a close.
    position, closes = 8, 0
    assert told.startswith(AMQP_HEADER)
    while position < len(told):
        assert closes == 0
        size = int.from_bytes(told[position : position + 4], "big")
        closes += told[position + 8 : position + 11] == b"\x00\x53\x18"
        position += size
    assert position == len(told)
    if engine.is_over:
        assert closes == 1
        assert engine.held_bytes == 0
        assert engine.allowance.link_count == 0


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=200), start=st.sampled_from(["nothing", "sasl", "amqp", "open"]))
def test_no_bytes_raise(data: bytes, start: str) -> None:
    engine = ConnectionEngine(ConnectionConfig(container_id="c"), now_ms=0)
    begin = {
        "nothing": b"",
        "sasl": SASL_HEADER,
        "amqp": AMQP_HEADER,
        "open": AMQP_HEADER + encode_frame(0, encode_performative(OPEN)),
    }[start]
    engine.receive_data(begin, now_ms=0)
    events = engine.receive_data(data, now_ms=0)
    assert engine.held_bytes <= len(data)
    if engine.is_over:
        assert isinstance(events[-1], ConnectionFailed)


@settings(max_examples=200, deadline=None)
@given(index=st.integers(0, 400), flipped=st.integers(1, 255), cut=st.integers(0, 400))
def test_no_flipped_byte_raises(index: int, flipped: int, cut: int) -> None:
    engine = ConnectionEngine(ConnectionConfig(container_id="c"), now_ms=0)
    frames = (
        OPEN, BEGIN, Attach(name="n", handle=0, role=False, source=Source(address="a")),
        Transfer(handle=0, delivery_id=0, delivery_tag=b"tag", message_format=0, settled=True),
        Flow(**FLOW_FIELDS, handle=0, link_credit=1), Detach(handle=0, closed=True), End(), Close(),
    )  # fmt: skip
    stream = bytearray(AMQP_HEADER)
    for body in frames:
        stream += encode_frame(0, encode_performative(body))
    stream[index % len(stream)] ^= flipped
    cut %= len(stream)
    answer([*engine.receive_data(bytes(stream[:cut]), now_ms=0)], [])
    answer([*engine.receive_data(bytes(stream[cut:]), now_ms=0)], [])
    assert engine.held_bytes <= len(stream)
