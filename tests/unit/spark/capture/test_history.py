"""Which captured files may hold events of a time, and where history ends."""

from __future__ import annotations

import random
from bisect import bisect_left
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.capture.container import AvroFile
from penstock.capture.destinations import Destination, resolve_destination
from penstock.capture.hub_files import ListedFile
from penstock.capture.storage import FileStore
from penstock.capture.windows import (
    EventLocation,
    PartitionEnd,
    PartitionObservation,
    WindowRules,
    WindowStart,
    close_windows,
)
from penstock.kernels import encode_avro_long
from penstock.spark.capture.history import BEYOND_US, next_sequence, select_files
from penstock.spark.capture.parquet_file import PARQUET_SCHEMA, ParquetFile

T_MS = 1_700_000_000_000
SIZE = 10_000


class Log:
    """One partition, whose events have a size each."""

    def __init__(self) -> None:
        self.events: list[EventLocation] = []
        self._offset = 0

    def add(self, time_ms: int, size: int) -> None:
        self.events.append(EventLocation(len(self.events), self._offset, time_ms))
        self._offset += size

    def _first(self, name: str, least: int) -> EventLocation | None:
        at = bisect_left(self.events, least, key=attrgetter(name))
        return self.events[at] if at < len(self.events) else None

    def at(self, sequence: int) -> EventLocation | None:
        return self._first("sequence", sequence)

    def beyond(self, offset: int) -> EventLocation | None:
        return self._first("offset", offset)

    def since(self, time_ms: int) -> EventLocation | None:
        return self._first("enqueued_ms", time_ms)


def captured(log: Log, interval_s: int, *, skip_empty: bool) -> dict[ListedFile, list[int]]:
    """The files that windows make of the log, with the times of their events."""
    last = log.events[-1]
    seen = PartitionObservation(
        PartitionEnd(len(log.events), last.offset, last.enqueued_ms),
        last.enqueued_ms + 2_000_000,
        0,
    )
    place = WindowStart(0, opened_ms=log.events[0].enqueued_ms)
    rules = WindowRules(interval_ms=interval_s * 1000, size_bytes=SIZE)
    _, cuts = close_windows(place, rules, log, seen, windows_max=10_000, bytes_max=2**62)
    return {
        ListedFile(f"{cut.named_s}.avro", "0", cut.named_s, 1): [
            event.enqueued_ms for event in log.events[cut.first : cut.end]
        ]
        for cut in cuts
        if not (cut.is_empty and skip_empty)
    }


@pytest.mark.parametrize("seed", range(12))
def test_no_file_that_holds_events_of_the_time_is_left_out(seed: int) -> None:
    """Bursts of many windows a second, whose names run an hour ahead, and pauses."""
    chance = random.Random(seed)
    log = Log()
    now_ms = T_MS
    for _ in range(chance.randrange(1, 6)):
        for _ in range(chance.choice((10, 300, 3000))):
            now_ms += chance.randrange(0, 200)
            log.add(now_ms, chance.choice((SIZE, SIZE, SIZE // 2, 10)))
        now_ms += chance.choice((0, 30_000, 130_000, 3_000_000))
    held = captured(log, chance.choice((60, 300, 900)), skip_empty=chance.random() < 0.5)
    times = [event.enqueued_ms for event in log.events]
    for since_ms in chance.sample(times, min(20, len(times))):
        until_ms = since_ms + chance.choice((1, 1000, 100_000))
        chosen = select_files(list(held), since_ms * 1000, until_ms * 1000)
        assert set(chosen) >= {
            file
            for file, own in held.items()
            if any(since_ms <= time_ms < until_ms for time_ms in own)
        }


def test_files_of_other_hours_are_not_opened() -> None:
    files = [ListedFile(f"{at}", "0", T_MS // 1000 + 60 * at, 1) for at in range(600)]
    hour = (T_MS + 4 * 3_600_000, T_MS + 5 * 3_600_000)
    chosen = select_files(files, hour[0] * 1000, hour[1] * 1000)
    assert 60 <= len(chosen) <= 60 + 20
    assert select_files(files, -BEYOND_US, BEYOND_US) == files


def columns(first: int, end: int) -> bytes:
    rows = [
        {"SequenceNumber": number, "Offset": "0", "EnqueuedTimeUtc": 0}
        for number in range(first, end)
    ]
    sink = pa.BufferOutputStream()
    table = pa.Table.from_pylist(rows, schema=PARQUET_SCHEMA)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def file_of(folder: Path, name: str, first: int, end: int, kind: str) -> ListedFile:
    place = folder / "box" / f"{name}.{kind}"
    place.parent.mkdir(exist_ok=True)
    made: Any = None
    if kind == "parquet":
        made = ParquetFile(place)
        made.add(end - first, columns(first, end))
    else:
        made = AvroFile(place, name=name, deflate=False)
        # Only numbers are looked at here: the rest of a record is as long as it likes.
        for start in range(first, end, 3):
            count = min(3, end - start)
            made.add(count, encode_avro_long(start) + bytes(600))
    made.close()
    return ListedFile(place.name, "0", int(name), place.stat().st_size)


@pytest.mark.parametrize("kind", ["avro", "parquet"])
def test_history_ends_behind_its_last_event_whatever_file_is_named_last(
    tmp_path: Path, kind: str
) -> None:
    store = FileStore(
        resolve_destination([Destination(name="d", url=tmp_path.as_uri())], "d", "box")
    )
    live = [file_of(tmp_path, str(at), 10 * at, 10 * at + 10, kind) for at in (5, 6)]
    empty = file_of(tmp_path, "7", 0, 0, kind)
    filled = file_of(tmp_path, "8", 0, 50, kind)
    assert next_sequence([store], [*live, empty]) == 70
    assert next_sequence([store], [*live, empty, filled, empty]) == 70
    assert next_sequence([store], [empty]) is None
