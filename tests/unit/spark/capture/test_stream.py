"""The streaming source of Capture, without Spark: offsets from a log that the test has."""

from __future__ import annotations

import hashlib
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.capture.test_windows import Hub

from penstock.capture.container import AvroFile
from penstock.capture.description import NAME_FORMAT_DEFAULT
from penstock.capture.destinations import Destination, resolve_destination
from penstock.capture.storage import FileStore
from penstock.capture.windows import (
    NOT_BEGUN,
    ClosedRange,
    EventLocation,
    PartitionEnd,
    WindowStart,
)
from penstock.client.event_position import EventPosition
from penstock.model.capture import CaptureDescription, RunProgress
from penstock.model.clock import ManualClock
from penstock.spark.capture import stream
from penstock.spark.capture.plan import CapturePlan
from penstock.spark.capture.stream import CaptureStreamReader, closed_ranges, window_starts
from penstock.spark.capture.window_writer import read_larger_file

MB = 1024 * 1024
BEGAN_S = 1_700_000_000


class Log:
    """`LogReader` of a hub whose partitions are played by the test."""

    def __init__(self, hubs: dict[str, Hub]) -> None:
        self.hubs = hubs

    def ends(self) -> dict[str, PartitionEnd]:
        return {key: hub.end for key, hub in self.hubs.items()}

    def first(self, partition: str, position: EventPosition) -> EventLocation | None:
        raise AssertionError("views are asked instead")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    made = ManualClock(BEGAN_S * 1000)
    monkeypatch.setattr(time, "time_ns", lambda: made.now_ms() * 1_000_000)
    monkeypatch.setattr(time, "monotonic_ns", lambda: made.monotonic_ms() * 1_000_000)
    return made


@pytest.fixture
def hubs(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> dict[str, Hub]:
    monkeypatch.setattr(stream, "CapturePartitionLog", lambda log, key: log.hubs[key])
    return {"0": Hub(clock), "1": Hub(clock)}


def plan(folder: Path, run: str = "hub-run", **changes: Any) -> CapturePlan:
    settings = CaptureDescription(
        encoding="Avro",
        interval_s=60,
        size_bytes=10 * MB,
        skip_empty=False,
        account="here",
        container="box",
        name_format=NAME_FORMAT_DEFAULT,
    )
    usual: dict[str, Any] = {
        "id": run,
        "on_ms": BEGAN_S * 1000,
        "namespace": "ns",
        "hub": "h",
        "hub_id": "hub",
        "settings": settings,
        "destinations": [Destination(name="here", url=(folder / "files").as_uri())],
        "connection_string": "",
        "state": str(folder / "state" / run),
        "starts": {"0": 0, "1": 0},
        "named_s": BEGAN_S,
    }
    return CapturePlan(**usual | changes)


def reader(made: CapturePlan, hubs: dict[str, Hub]) -> CaptureStreamReader:
    found = CaptureStreamReader(made)
    found._log = Log(hubs)  # type: ignore[assignment]
    return found


def test_without_a_checkpoint_it_begins_where_the_state_ends(tmp_path: Path) -> None:
    reached = {"0": RunProgress(7, 9_000, 8, 2)}
    made = plan(tmp_path, reached=reached)
    first = window_starts(CaptureStreamReader(made).initialOffset())
    assert first == {"0": WindowStart(7, -1, 9_000, 8, 2), "1": WindowStart(0, named_s=BEGAN_S)}
    with closing(made.open_state()) as state:
        state.record([], {"0": WindowStart(9, -1, 12_000, 12, 3)})
    assert window_starts(CaptureStreamReader(made).initialOffset())["0"].sequence == 9


def test_a_partition_without_events_has_its_windows_from_the_beginning(
    tmp_path: Path, hubs: dict[str, Hub], clock: ManualClock
) -> None:
    """One that is busy closes its window by an event, before the clock closes the others'."""
    source = reader(plan(tmp_path), hubs)
    start = source.initialOffset()
    hubs["0"].publish()
    assert source.latestOffset(start, None) == start
    clock.advance(60_000)
    hubs["0"].publish()
    first = source.latestOffset(start, None)
    assert {key: len(cuts) for key, cuts in closed_ranges(first).items()} == {"0": 1}
    assert window_starts(first)["1"].opened_ms != NOT_BEGUN
    clock.advance(1_000)
    second = source.latestOffset(first, None)
    ((empty,),) = closed_ranges(second).values()
    assert empty.is_empty and empty.named_s == BEGAN_S + 60


def test_off_and_on_within_a_second_makes_two_files(
    tmp_path: Path, hubs: dict[str, Hub], clock: ManualClock
) -> None:
    hubs["0"].publish()
    clock.advance(400)
    one = plan(tmp_path, "hub-a", stops={"0": 1, "1": 0}, off_ms=clock.now_ms())
    clock.advance(200)
    hubs["0"].publish()
    clock.advance(300)
    two = plan(
        tmp_path,
        "hub-b",
        starts={"0": 1, "1": 0},
        stops={"0": 2, "1": 0},
        off_ms=clock.now_ms(),
    )
    named = []
    for made in (one, two, one):
        source = reader(made, hubs)
        found = source.latestOffset(source.initialOffset(), None)
        ((cut,),) = closed_ranges(found).values()
        named.append(cut.named_s)
    assert named == [BEGAN_S + 1, BEGAN_S + 2, BEGAN_S + 1]


def test_a_log_that_was_put_back_is_captured_from_its_end_on(
    tmp_path: Path,
    hubs: dict[str, Hub],
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = reader(plan(tmp_path), hubs)
    stood = {"0": WindowStart(50, -1, clock.now_ms(), BEGAN_S + 5, 4), "1": WindowStart(0)}
    start = source._offset(stood, {})
    hubs["0"].publish(3)
    # Written down at once: what comes next is captured, whoever looks again and when.
    found = source.latestOffset(start, None)
    assert "events=3 captured=50" in caplog.text
    assert [(cut.window, cut.first, cut.end) for cut in closed_ranges(found)["0"]] == [(4, 3, 3)]
    hubs["0"].publish(2)
    again = reader(plan(tmp_path), hubs)
    assert again.latestOffset(found, None) == found
    clock.advance(61_000)
    following = again.latestOffset(found, None)
    assert [(cut.first, cut.end) for cut in closed_ranges(following)["0"]] == [(3, 5)]
    assert caplog.text.count("capture log went back") == 1


def test_what_an_earlier_try_wrote_of_events_that_are_gone_now_is_kept(tmp_path: Path) -> None:
    made = plan(tmp_path)
    store = FileStore(resolve_destination(made.destinations, "here", "box"))
    spooled = tmp_path / "spooled"
    file = AvroFile(spooled, name="x", deflate=False)
    file.add(5, b"five records")
    size, digest = file.close()
    store.upload(spooled, "a.avro")
    assert read_larger_file(store, "a.avro", "avro", 4) == (5, size, digest)
    assert read_larger_file(store, "a.avro", "avro", 5) is None
    assert read_larger_file(store, "b.avro", "avro", 0) is None
    (tmp_path / "files/box/c.avro").write_bytes(b"something else")
    assert read_larger_file(store, "c.avro", "avro", 0) is None
    content = (tmp_path / "files/box/a.avro").read_bytes()
    assert hashlib.sha256(content).hexdigest() == digest


def test_cuts_survive_the_way_through_an_offset(tmp_path: Path) -> None:
    cut = ClosedRange(3, 4, 5, 6, 7_500)
    offset = CaptureStreamReader(plan(tmp_path))._offset({"0": cut.next_start}, {"0": [cut]})
    again = msgspec.json.decode(msgspec.json.encode(offset))
    assert closed_ranges(again) == {"0": [cut]}
    assert window_starts(again) == {"0": WindowStart(5, -1, 7_500, 6, 4)}
