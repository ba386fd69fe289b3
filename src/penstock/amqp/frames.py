"""Frames and protocol headers (AMQP 2.2, 2.3), and frames cut to the peer's limit.

  0      4    5    6        8          doff*4                size
+------+----+----+---------+----------+---------------------+
| size |doff|type| channel | extended | performative payload|
+------+----+----+---------+----------+---------------------+
"""

from __future__ import annotations

import struct
from typing import Final

from msgspec.structs import replace

from penstock.amqp.errors import FramingError, LocalError
from penstock.amqp.performatives import (
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Performative,
    Rejected,
    encode_performative,
)

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
TLS_HEADER: Final = b"AMQP\x02\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"

PROTOCOL_HEADER_BYTES: Final = 8
FRAME_HEADER_BYTES: Final = 8
AMQP_FRAME: Final = 0
SASL_FRAME: Final = 1

# A heartbeat: a frame with neither performative nor payload, on channel 0 (AMQP 2.4.5).
EMPTY_FRAME: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"

_HEADER: Final = struct.Struct(">IBBH")
_FRAME_BYTES_LIMIT: Final = 0xFFFFFFFF  # the size field has 32 bits
_CHANNEL_MAX: Final = 0xFFFF


def encode_frame(
    channel: int, body: bytes, payload: bytes = b"", *, frame_type: int = AMQP_FRAME
) -> bytes:
    """Encode one frame. The caller keeps it within the peer's max-frame-size.

    Raises LocalError if channel or size do not fit their fields.
    """
    size = FRAME_HEADER_BYTES + len(body) + len(payload)
    if not 0 <= channel <= _CHANNEL_MAX:
        raise LocalError(f"channel {channel} is outside 0..{_CHANNEL_MAX}")
    if size > _FRAME_BYTES_LIMIT:
        raise LocalError(f"frame of {size} bytes; the size field ends at {_FRAME_BYTES_LIMIT}")
    return _HEADER.pack(size, 2, frame_type, channel) + body + payload


def parse_frame_header(
    data: bytes | bytearray, start: int, *, frame_bytes_max: int
) -> tuple[int, int, int, int]:
    """Read the header at `start`: (size, body_start, frame_type, channel).

    The frame is `data[start : start + size]`; `body_start`, also a position in `data`, is after the
    extended header. Only the eight header bytes need be present, so that the engine refuses an
    oversized frame before it waits for it. Raises FramingError for a malformed header, LocalError
    if fewer than eight bytes are present.
    """
    if start < 0 or len(data) - start < FRAME_HEADER_BYTES:
        raise LocalError(f"no frame header of {FRAME_HEADER_BYTES} bytes at position {start}")
    size, doff, frame_type, channel = _HEADER.unpack_from(data, start)
    if size < FRAME_HEADER_BYTES:
        raise FramingError(f"frame size {size} is below {FRAME_HEADER_BYTES}")
    if size > frame_bytes_max:
        raise FramingError(f"frame size {size} is above max-frame-size {frame_bytes_max}")
    if doff < 2:
        raise FramingError(f"frame doff {doff} is below 2")
    if doff * 4 > size:
        raise FramingError(f"frame doff {doff} points beyond the frame of {size} bytes")
    if frame_type not in (AMQP_FRAME, SASL_FRAME):
        raise FramingError(f"frame type {frame_type}; only 0 (AMQP) and 1 (SASL) are defined")
    return size, start + doff * 4, frame_type, channel


def encode_fitting_frame(
    channel: int, performative: Performative, *, frame_bytes_max: int
) -> bytes:
    """Encode one frame of at most `frame_bytes_max` bytes, which is 512 or more.

    A longer frame gets its error description cut; the caller's object does not change. Only two
    other performatives that we send can exceed 512 bytes: an attach, whose size `Link.accept`
    checks, and an open, which is sent before the peer has announced a limit.
    """
    frame = encode_frame(channel, encode_performative(performative))
    surplus = len(frame) - frame_bytes_max
    if surplus > 0:
        frame = encode_frame(channel, encode_performative(_shorten_error(performative, surplus)))
    return frame


def _shorten_error(performative: Performative, surplus: int) -> Performative:
    if isinstance(performative, Detach | End | Close):
        return replace(performative, error=_truncate_description(performative.error, surplus))
    if isinstance(performative, Disposition) and isinstance(performative.state, Rejected):
        return replace(
            performative,
            state=Rejected(error=_truncate_description(performative.state.error, surplus)),
        )
    return performative


def _truncate_description(error: Error | None, surplus: int) -> Error | None:
    if error is None or error.description is None:
        return error
    text = error.description.encode()
    shortened = text[: max(0, len(text) - surplus)]
    return replace(error, description=shortened.decode(errors="ignore"))
