"""Runs of plain single-frame transfers, found without decoding each frame by itself."""

from __future__ import annotations

import msgspec


class TransferRun(msgspec.Struct, frozen=True):
    """Consecutive deliveries of one link; payload i is buffer[bounds[2 * i]:bounds[2 * i + 1]]."""

    channel: int
    handle: int
    first_delivery_id: int
    count: int
    settled: bool
    message_format: int
    bounds: list[int]
    next_position: int


def scan_transfers(
    buffer: bytes, start: int, end: int, *, frame_bytes_max: int, count_max: int = 4096
) -> TransferRun | None:
    """Take the run of plain transfers that starts at `start`, or None: decode that frame."""
    return None
