"""Decode the records of captured Avro files.

Files are untrusted: every length is checked before it is used. Raises DamagedAvroFile.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from penstock.capture.container import (
    DamagedAvroFile,
    decode_bytes,
    decode_long,
    decode_map,
    decode_text,
)

Value = int | float | str | bytes
_DOUBLE = struct.Struct("<d")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
_TIME = "x-opt-enqueued-time"
_NET = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4}) (\d{1,2}):(\d{2}):(\d{2}) (AM|PM)")


class CaptureRecord:
    """One event of a file."""

    __slots__ = ("body", "end", "enqueued", "offset", "properties", "sequence", "start", "system")

    def __init__(self, block: bytes, start: int) -> None:
        self.start = start
        self.sequence, at = decode_long(block, start)
        self.offset, at = decode_text(block, at)
        self.enqueued, at = decode_text(block, at)
        self.system, at = decode_map(block, at, _read_value)
        self.properties, at = decode_map(block, at, _read_value)
        branch, at = decode_long(block, at)
        self.body: bytes | None = None
        if branch == 1:
            self.body, at = decode_bytes(block, at)
        elif branch != 0:
            raise DamagedAvroFile(f"Branch {branch} of a body.")
        self.end = at

    @property
    def enqueued_us(self) -> int:
        """Microseconds. The annotation is more exact than a text in .NET's format."""
        exact = self.system.get(_TIME)
        if isinstance(exact, int):
            return exact * 1000
        return parse_time_us(self.enqueued)


def read_capture_records(count: int, block: bytes) -> Iterator[CaptureRecord]:
    """The records of one block, which has `count` of them and nothing else."""
    at = 0
    for _ in range(count):
        record = CaptureRecord(block, at)
        at = record.end
        yield record
    if at != len(block):
        raise DamagedAvroFile(f"A block has {len(block) - at} bytes more than its records.")


def is_iso_time(text: str) -> bool:
    """Which of the two formats EnqueuedTimeUtc has. The file decides: the destination's setting may
    have changed since.

    >>> is_iso_time("9/26/2017 8:05:27 PM"), is_iso_time("2017-09-26T20:05:27.0000000Z")
    (False, True)
    """
    return _NET.fullmatch(text) is None


@lru_cache(maxsize=4096)
def parse_time_us(text: str) -> int:
    """Parse EnqueuedTimeUtc, in .NET's format or in ISO 8601."""
    match = _NET.fullmatch(text)
    try:
        if match is not None:
            month, day, year, hour, minute, second = (int(part) for part in match.groups()[:6])
            hour = hour % 12 + (12 if match[7] == "PM" else 0)
            at = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
        else:
            # .NET writes seven digits of a second; Python accepts six.
            at = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text))
            at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    except ValueError:
        raise DamagedAvroFile("EnqueuedTimeUtc is not a time.") from None
    return (at - _EPOCH) // _US


def _read_value(block: bytes, at: int) -> tuple[Value, int]:
    branch, at = decode_long(block, at)
    if branch == 0:
        return decode_long(block, at)
    if branch == 1:
        if len(block) - at < 8:
            raise DamagedAvroFile("A number is cut off.")
        return float(_DOUBLE.unpack_from(block, at)[0]), at + 8
    if branch == 2:
        return decode_text(block, at)
    if branch == 3:
        return decode_bytes(block, at)
    raise DamagedAvroFile(f"Branch {branch} of a union of four.")
