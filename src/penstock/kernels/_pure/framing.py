"""From stored events to transfer frames."""

from __future__ import annotations

import msgspec


class Framed(msgspec.Struct, frozen=True, gc=False):
    """Frames ready for the socket; `position` is where the next event's data section starts."""

    data: bytes
    events: int
    frames: int
    position: int


def frame_events(
    sections: bytes,
    position: int,
    *,
    events_max: int,
    frames_max: int,
    bytes_max: int,
    channel: int,
    handle: int,
    delivery_id: int,
    frame_bytes_max: int,
    sequence: int,
    base_offset: int,
    enqueued_ms: int,
    runtime: bytes,
) -> Framed:
    """Frame events as settled transfers, one delivery each."""
    raise NotImplementedError
