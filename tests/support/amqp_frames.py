"""AMQP frames as a test writes and reads them."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.amqp.frames import encode_frame, parse_frame_header
from penstock.amqp.performatives import Performative, decode_performative, encode_performative


class Sent(NamedTuple):
    """One frame that the engine or the gateway wrote."""

    channel: int
    body: Any  # a performative; None for an empty frame
    payload: bytes


def frame(body: Performative | None, payload: bytes = b"", *, channel: int = 0) -> bytes:
    """An AMQP frame, or a SASL frame where the performative belongs into one."""
    if body is None:
        return encode_frame(channel, b"")
    sasl = type(body).__name__.startswith("Sasl")
    return encode_frame(channel, encode_performative(body), payload, frame_type=int(sasl))


def read_frames(data: bytes) -> list[Sent]:
    """What a peer would read; protocol headers are left out."""
    sent, position = [], 0
    while position < len(data):
        if data.startswith(b"AMQP", position):
            position += 8
            continue
        size, body, _, channel = parse_frame_header(data, position, frame_bytes_max=2**32)
        end = position + size
        assert end <= len(data), "half a frame was written"
        if body == end:
            sent.append(Sent(channel, None, b""))
        else:
            performative, payload = decode_performative(data, body, end)
            sent.append(Sent(channel, performative, data[payload:end]))
        position = end
    return sent
