"""Protocol headers and SASL without a connection: both roles, byte by byte."""

from __future__ import annotations

import pytest

from penstock.amqp.config import ConnectionConfig
from penstock.amqp.errors import FramingError, LocalError, SaslFailed
from penstock.amqp.events import SaslInitReceived, SaslMechanismsReceived, SaslOutcomeReceived
from penstock.amqp.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER, TLS_HEADER, encode_frame
from penstock.amqp.handshake import Handshake
from penstock.amqp.performatives import SaslOutcome, encode_performative
from penstock.amqp.states import IllegalState, SaslState

OUTCOME = encode_frame(0, encode_performative(SaslOutcome(code=0)), frame_type=SASL_FRAME)


def build_handshake(*, server: bool, sasl: bool = True) -> Handshake:
    return Handshake(
        ConnectionConfig(container_id="c", server=server, sasl=sasl, mechanisms=("PLAIN",))
    )


def receive(handshake: Handshake, frame: bytes) -> object:
    for size in range(len(frame)):
        assert handshake.read_frame(frame[:size], 0) is None
    result = handshake.read_frame(frame, 0)
    assert result is not None
    assert result[1] == len(frame)
    return handshake.on_frame(result[0])


@pytest.mark.parametrize("ok", [True, False])
def test_exchange_of_client_and_server(ok: bool) -> None:
    client, server = build_handshake(server=False), build_handshake(server=True)
    assert client.start() == SASL_HEADER
    answer = server.on_sasl_header()
    assert answer[:8] == SASL_HEADER
    assert client.on_sasl_header() == b""
    assert receive(client, answer[8:]) == SaslMechanismsReceived(["PLAIN"])
    assert receive(server, client.init("PLAIN", b"r")) == SaslInitReceived("PLAIN", b"r", None)
    outcome = server.answer(ok=ok)
    if ok:
        assert receive(client, outcome) == SaslOutcomeReceived(b"Welcome!")
        assert client.expected_headers == server.expected_headers == (AMQP_HEADER,)
    else:
        with pytest.raises(SaslFailed):
            receive(client, outcome)
    final = SaslState.DONE if ok else SaslState.FAILED
    assert (client.state, server.state) == (final, final)


@pytest.mark.parametrize(
    ("server", "sasl", "expected"),
    [
        (True, True, (SASL_HEADER, AMQP_HEADER)),
        (False, True, (SASL_HEADER,)),
        (False, False, (AMQP_HEADER,)),
    ],
)
def test_header_is_refused_at_its_first_wrong_byte(
    server: bool, sasl: bool, expected: tuple[bytes, ...]
) -> None:
    handshake = build_handshake(server=server, sasl=sasl)
    assert handshake.expected_headers == expected
    for header in expected:
        for size in range(9):
            handshake.check_header(header[:size])
    for wrong in (b"G", b"AMQX", TLS_HEADER):
        with pytest.raises(FramingError, match=wrong[:5].hex()):
            handshake.check_header(wrong)


def test_frames_and_calls_out_of_order_are_refused() -> None:
    server = build_handshake(server=True)
    with pytest.raises(LocalError):
        server.answer(ok=True)
    server.on_sasl_header()
    client = build_handshake(server=False)
    client.start()
    client.on_sasl_header()
    with pytest.raises(IllegalState):
        receive(client, OUTCOME)
    with pytest.raises(FramingError, match="type 0"):
        server.read_frame(encode_frame(0, b"x"), 0)
    with pytest.raises(FramingError, match="empty"):
        server.read_frame(encode_frame(0, b"", frame_type=SASL_FRAME), 0)
