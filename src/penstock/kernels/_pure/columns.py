"""From delivered messages to columns."""

from __future__ import annotations

import msgspec


class Columns(msgspec.Struct, frozen=True):
    """Delivered events, one list per attribute; row i of each is event i."""

    sequence_numbers: list[int]
    offsets: list[str]
    enqueued_ms: list[int]
    partition_keys: list[str | None]
    bodies: list[bytes]
    properties: list[bytes]
    system: list[bytes]
    message_properties: list[bytes]
    body_kinds: bytes


def decode_events(data: bytes, bounds: list[int]) -> Columns:
    """Decode delivered messages into columns."""
    raise NotImplementedError
