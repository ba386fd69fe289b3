"""Start position of a reader (protocol.md 5.3)."""

from __future__ import annotations

from enum import IntEnum

import msgspec


class PositionKind(IntEnum):
    EARLIEST = 0  # before the first retained event: offset '-1'
    LATEST = 1  # after the last event at the moment of attaching: offset '@latest'
    OFFSET = 2
    SEQUENCE = 3
    ENQUEUED_TIME = 4  # value in milliseconds since the epoch


class Position(msgspec.Struct, frozen=True, gc=False):
    """`inclusive` is `>=` in the filter; it is ignored for EARLIEST and LATEST."""

    kind: PositionKind
    value: int = 0
    inclusive: bool = False


EARLIEST = Position(PositionKind.EARLIEST)
LATEST = Position(PositionKind.LATEST)
