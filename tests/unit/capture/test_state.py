"""The state of capture runs, manifests of slots, and events that announce files."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.capture.captured_file import (
    CapturedFile,
    build_file_created_event,
    build_manifest,
)
from penstock.capture.state import (
    CaptureStateFile,
    CaptureTotals,
    ClosedWindow,
    ManifestSlot,
)
from penstock.capture.windows import ClosedRange, WindowStart


def captured(number: int, partition: str = "0", count: int = 10) -> CapturedFile:
    return CapturedFile(
        path=f"ns/hub/{partition}/{number}.avro",
        url=f"file:///x/ns/hub/{partition}/{number}.avro",
        partition=partition,
        window=number,
        first_sequence=number * 10,
        last_sequence=number * 10 + count - 1,
        count=count,
        bytes=1000,
        sha256="ab" * 32,
        named_s=1_700_000_000 + number * 60,
        first_ms=1_700_000_000_000,
        last_ms=1_700_000_001_000,
    )


def closed(file: CapturedFile, interval_s: int = 60) -> ClosedWindow:
    return ClosedWindow(file.named_s, interval_s, file)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[CaptureStateFile]:
    made = CaptureStateFile(tmp_path / "state" / "hub.sqlite", "run")
    yield made
    made.close()


def test_a_batch_that_is_committed_twice_counts_once(state: CaptureStateFile) -> None:
    for _ in range(2):
        state.record([closed(captured(n)) for n in (0, 1)], {"0": WindowStart(20, window=2)})
    assert state.totals().files == 2
    assert state.totals().events == 20
    state.record([], {"0": WindowStart(10, window=1)})  # of an older batch
    assert state.starts() == {"0": WindowStart(20, window=2)}
    assert [file.window for file in state.newest_files(10)] == [1, 0]
    assert [file.window for file in state.newest_files(1)] == [1]


def test_what_was_told_is_not_told_again(state: CaptureStateFile) -> None:
    state.record([closed(captured(n)) for n in range(5)], {})
    assert [file.window for file in state.unannounced_files(2)] == [0, 1]
    state.mark_announced(state.unannounced_files(2))
    assert [file.window for file in state.unannounced_files()] == [2, 3, 4]


def test_a_slot_is_listed_when_it_is_complete_and_again_when_more_came(
    state: CaptureStateFile,
) -> None:
    begin_s = captured(0).named_s - captured(0).named_s % 60
    one, two = ManifestSlot(begin_s, begin_s + 60), ManifestSlot(begin_s + 60, begin_s + 120)
    state.record([closed(captured(0)), closed(captured(1))], {})
    assert state.slots(one.end_s - 1) == []
    assert state.slots(one.end_s) == [one]
    state.mark_manifest_written(one)
    assert state.slots(2**40) == [two]
    late = msgspec.structs.replace(captured(7), named_s=one.end_s - 1)
    state.record([closed(late)], {})
    assert state.slots(one.end_s) == [one]
    assert [file.window for file in state.slot_files(one)] == [0, 7]
    state.mark_manifest_written(one)
    state.record([closed(late)], {})  # committed twice
    assert state.slots(one.end_s) == []


def test_a_window_without_a_file_has_a_slot_too(state: CaptureStateFile) -> None:
    state.record([ClosedWindow(130, 60)], {"0": WindowStart(0, named_s=130, window=1)})
    assert (
        state.slots(180) == [ManifestSlot(120, 180)]
        and state.slot_files(ManifestSlot(120, 180)) == []
    )
    assert not state.is_settled()
    state.mark_manifest_written(ManifestSlot(120, 180))
    assert state.is_settled()


def test_slots_do_not_overlap_when_the_interval_is_changed(state: CaptureStateFile) -> None:
    for named_s, interval_s in ((30, 60), (90, 60), (130, 60), (170, 300), (190, 300), (700, 60)):
        state.record([ClosedWindow(named_s, interval_s)], {})
    state.record([ClosedWindow(650, 300)], {})  # of a partition that was late with the longer one
    assert state.slots(2**40) == [
        ManifestSlot(0, 60),
        ManifestSlot(60, 120),
        ManifestSlot(120, 180),
        ManifestSlot(180, 300),
        ManifestSlot(600, 660),
        ManifestSlot(660, 720),
    ]


def test_a_run_is_settled_when_all_is_listed_and_told(state: CaptureStateFile) -> None:
    assert state.is_settled()
    state.record([closed(captured(0))], {})
    (slot,) = state.slots(2**40)
    state.mark_manifest_written(slot)
    assert not state.is_settled()
    state.mark_announced([captured(0)])
    assert state.is_settled()


def test_the_ledger_survives_its_process(tmp_path: Path) -> None:
    first = CaptureStateFile(tmp_path / "hub.sqlite", "run")
    first.record([closed(captured(0))], {"0": WindowStart(10, 5, 7, 8, 1)})
    first.close()
    again = CaptureStateFile(tmp_path / "hub.sqlite", "run")
    assert again.starts() == {"0": WindowStart(10, 5, 7, 8, 1)}
    again.close()


def test_changed_row_is_noticed_when_the_job_opens_the_ledger(tmp_path: Path) -> None:
    path = tmp_path / "hub.sqlite"
    state = CaptureStateFile(path, "run")
    state.record([closed(captured(0))], {"0": WindowStart(10, window=1)})
    state.record([closed(captured(1))], {"0": WindowStart(20, window=2)})  # replaces the place
    state.close()
    CaptureStateFile(path, "run", check=True).close()
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE row_sums SET row_sum = row_sum + 1 WHERE name = 'places'")
    with pytest.raises(sqlite3.DatabaseError, match=r"hub\.sqlite is damaged: a row of .*places"):
        CaptureStateFile(path, "run", check=True)


def test_events_that_retention_took_are_counted(state: CaptureStateFile) -> None:
    short = captured(0, count=10)
    state.record([closed(msgspec.structs.replace(short, count=4))], {})
    assert state.totals().lost == 6


def test_a_manifest_lists_each_file_with_what_proves_it() -> None:
    empty = captured(2, "1", count=0)
    made = build_manifest(
        "ns", "hub", 1_700_000_040, 60, [captured(1, "10"), empty, captured(0, "2")]
    )
    stored = json.loads(made.encode())
    assert [file["partitionId"] for file in stored["files"]] == ["1", "2", "10"]
    assert stored["files"][0]["firstSequenceNumber"] == -1
    assert stored["files"][1] == {
        "path": "ns/hub/2/0.avro",
        "partitionId": "2",
        "closedAt": "2023-11-14T22:13:20.000Z",
        "firstSequenceNumber": 0,
        "lastSequenceNumber": 9,
        "eventCount": 10,
        "sizeInBytes": 1000,
        "sha256": "ab" * 32,
    }
    assert (stored["slot"], stored["eventCount"]) == ("2023-11-14T22-14-00Z", 20)
    assert [*stored] == [
        "version",
        "namespace",
        "eventHub",
        "slot",
        "from",
        "to",
        "eventCount",
        "files",
    ]
    assert made.encode() == json.dumps(stored, indent=1).encode() + b"\n"


def test_a_manifest_keeps_the_files_of_another_run_in_its_slot() -> None:
    slot = ("ns", "hub", 1_700_000_040, 60)
    first = build_manifest(*slot, [captured(0), captured(1, "1")])
    late = build_manifest(*slot, [captured(2), captured(3, "0", count=4)], first)
    assert [file.path for file in late.files] == [
        "ns/hub/0/0.avro",
        "ns/hub/0/2.avro",
        "ns/hub/0/3.avro",
        "ns/hub/1/1.avro",
    ]
    assert late.event_count == 34
    assert build_manifest(*slot, [captured(0)], late) == late  # again is the same
    elsewhere = msgspec.structs.replace(first, namespace="other")
    assert build_manifest(*slot, [captured(2)], elsewhere).event_count == 10


def test_event_grid_and_cloud_events_say_the_same() -> None:
    grid = build_file_created_event(captured(1), topic="/t", hub="hub", cloud=False)
    cloud = build_file_created_event(captured(1), topic="/t", hub="hub", cloud=True)
    assert grid["eventType"] == cloud["type"] == "Microsoft.EventHub.CaptureFileCreated"
    assert grid["subject"] == cloud["subject"] == "eventhubs/hub"
    assert grid["data"] == cloud["data"] and grid["id"] == cloud["id"]
    assert grid["data"] == {
        "fileUrl": "file:///x/ns/hub/0/1.avro",
        "fileType": "AzureBlockBlob",
        "partitionId": "0",
        "sizeInBytes": 1000,
        "eventCount": 10,
        "firstSequenceNumber": 10,
        "lastSequenceNumber": 19,
        "firstEnqueueTime": "2023-11-14T22:13:20.000Z",
        "lastEnqueueTime": "2023-11-14T22:13:21.000Z",
    }
    assert cloud["specversion"] == "1.0"
    other = build_file_created_event(captured(2), topic="/t", hub="hub", cloud=False)
    assert other["id"] != grid["id"]


# --- names --------------------------------------------------------------------------------------


def cuts(*named_s: int, window: int = 0) -> list[ClosedRange]:
    return [ClosedRange(window + n, 0, 1, second) for n, second in enumerate(named_s)]


def seconds(found: list[ClosedRange]) -> list[int]:
    return [cut.named_s for cut in found]


class Names:
    """The names of a hub, taken by several runs."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def take(
        self, run: str, partition: str, ranges: list[ClosedRange], **options: Any
    ) -> list[ClosedRange]:
        with contextlib.closing(CaptureStateFile(self._file, run)) as state:
            return state.take_names(partition, ranges, **options)


@pytest.fixture
def taken(tmp_path: Path) -> Names:
    return Names(tmp_path / "state" / "hub.sqlite")


def test_two_runs_never_have_the_same_name(taken: Names) -> None:
    """Switched off and on within a second, or with names that ran ahead of the clock."""
    assert seconds(taken.take("a", "0", cuts(31, 32, 33), after_s=30)) == [31, 32, 33]
    assert seconds(taken.take("b", "0", cuts(31, 40), after_s=30)) == [34, 40]
    assert seconds(taken.take("a", "0", cuts(34, window=3), after_s=33)) == [35]
    assert seconds(taken.take("b", "1", cuts(31), after_s=30)) == [31], "another partition"


def test_a_window_that_is_cut_again_has_the_same_name(taken: Names) -> None:
    taken.take("a", "0", cuts(31), after_s=30)
    first = taken.take("b", "0", cuts(31, 31), after_s=30)
    assert seconds(first) == [32, 33]
    assert taken.take("b", "0", cuts(31, 31), after_s=30) == first
    # A place that is later than the name that it had (the log went back): another name.
    assert seconds(taken.take("b", "0", cuts(31), after_s=50)) == [51]
    assert seconds(taken.take("c", "0", cuts(32), after_s=30)) == [32], "and the old one is free"


def test_events_from_before_go_between_files_that_are_there(taken: Names) -> None:
    taken.take("a", "0", cuts(31), after_s=30)
    found = taken.take("h", "0", cuts(31, 45), after_s=5, exists={30, 45}.__contains__)
    assert seconds(found) == [29, 44]
    assert seconds(taken.take("a", "0", cuts(44, window=1), after_s=31)) == [45]


def test_names_of_long_ago_are_forgotten(taken: Names) -> None:
    taken.take("a", "0", cuts(31), after_s=30)
    later = 31 + 9 * 24 * 3600
    taken.take("a", "0", cuts(later, window=1000), after_s=31)
    assert seconds(taken.take("b", "0", cuts(31), after_s=30)) == [31]


# --- several runs, and files of version 0.1 -------------------------------------------------------


def test_runs_of_a_hub_share_a_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "hub.sqlite"
    one, two = CaptureStateFile(file, "hub-a"), CaptureStateFile(file, "hub-b")
    one.record([closed(captured(0))], {"0": WindowStart(10, window=1)})
    two.record([closed(captured(1))], {"0": WindowStart(20, window=2)})
    assert (one.totals().files, two.totals().files) == (1, 1)
    assert one.starts() == {"0": WindowStart(10, window=1)}
    one.take_names("0", cuts(31), after_s=30)
    one.forget_run()
    assert (one.totals(), one.starts(), one.newest_files(9)) == (CaptureTotals(), {}, [])
    assert two.totals().files == 1
    assert seconds(two.take_names("0", cuts(31), after_s=30)) == [32], "the name stays taken"
    one.close()
    two.close()


OLD_RUN = """
CREATE TABLE files (
    path TEXT PRIMARY KEY, slot_s INTEGER NOT NULL, named_s INTEGER NOT NULL,
    told INTEGER NOT NULL DEFAULT 0, record BLOB NOT NULL
);
CREATE TABLE slots (
    slot_s INTEGER PRIMARY KEY, end_s INTEGER NOT NULL, listed INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE places (partition TEXT PRIMARY KEY, place BLOB NOT NULL);
CREATE TABLE totals (
    one INTEGER PRIMARY KEY CHECK (one = 1), files INTEGER NOT NULL, events INTEGER NOT NULL,
    bytes INTEGER NOT NULL, lost INTEGER NOT NULL
);
"""
OLD_NAMES = """
CREATE TABLE taken (
    partition TEXT NOT NULL, named_s INTEGER NOT NULL, run TEXT NOT NULL, window INTEGER NOT NULL,
    PRIMARY KEY (partition, named_s)
) WITHOUT ROWID;
INSERT INTO taken VALUES ('0', 31, 'hub-a', 1);
"""


def write_old_files(folder: Path) -> tuple[Path, Path]:
    names, run = folder / "hub.names.sqlite", folder / "hub-a" / "ledger.sqlite"
    run.parent.mkdir(parents=True, exist_ok=True)
    file = captured(0)
    rows = (
        ("files", (file.path, file.named_s - 20, file.named_s, 0, msgspec.msgpack.encode(file))),
        ("slots", (file.named_s - 20, file.named_s + 40, 0)),
        ("places", ("0", msgspec.msgpack.encode(WindowStart(10, -1, 5, 31, 1)))),
        ("totals", (1, 7, 70, 7000, 3)),
    )
    with contextlib.closing(sqlite3.connect(run)) as database, database:
        database.executescript(OLD_RUN)
        for table, row in rows:
            marks = ", ".join("?" * len(row))
            database.execute(f"INSERT INTO {table} VALUES ({marks})", row)
    with contextlib.closing(sqlite3.connect(names)) as database, database:
        database.executescript(OLD_NAMES)
    return names, run


def test_files_of_version_0_1_are_imported_once(tmp_path: Path) -> None:
    old = write_old_files(tmp_path)
    for _ in range(3):
        with contextlib.closing(CaptureStateFile(tmp_path / "hub.sqlite", "hub-a")) as state:
            assert state.totals() == CaptureTotals(7, 70, 7000, 3)
            assert state.starts() == {"0": WindowStart(10, -1, 5, 31, 1)}
            assert state.unannounced_files() == [captured(0)]
            assert len(state.slots(2**40)) == 1
            # The window keeps the name that it had, and no other run gets it.
            assert seconds(state.take_names("0", cuts(30, window=1), after_s=20)) == [31]
        assert not any(file.exists() for file in old)
        write_old_files(tmp_path)  # as after a crash between the import and the removal
    with contextlib.closing(CaptureStateFile(tmp_path / "hub.sqlite", "hub-b")) as other:
        assert seconds(other.take_names("0", cuts(31), after_s=20)) == [32]
        assert (other.totals(), other.starts()) == (CaptureTotals(), {})


def test_damaged_file_of_version_0_1_is_not_imported(tmp_path: Path) -> None:
    _, run = write_old_files(tmp_path)
    content = bytearray(run.read_bytes())
    content[100:200] = bytes(100)
    run.write_bytes(content)
    with pytest.raises(sqlite3.DatabaseError):
        CaptureStateFile(tmp_path / "hub.sqlite", "hub-a")
    assert run.read_bytes() == content
