"""The ledger of a run, manifests of slots, and events that tell of files."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.capture.captured_file import (
    CapturedFile,
    add_files_to_manifest,
    build_file_created_event,
    build_manifest,
    manifest_bytes,
)
from penstock.capture.ledger import CaptureStateFile, ClosedWindow, ManifestSlot
from penstock.capture.windows import WindowStart


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
def ledger(tmp_path: Path) -> Iterator[CaptureStateFile]:
    made = CaptureStateFile(tmp_path / "state" / "ledger.sqlite")
    yield made
    made.close()


def test_a_batch_that_is_committed_twice_counts_once(ledger: CaptureStateFile) -> None:
    for _ in range(2):
        ledger.record([closed(captured(n)) for n in (0, 1)], {"0": WindowStart(20, window=2)})
    assert ledger.totals().files == 2
    assert ledger.totals().events == 20
    ledger.record([], {"0": WindowStart(10, window=1)})  # of an older batch
    assert ledger.places() == {"0": WindowStart(20, window=2)}
    assert [file.window for file in ledger.newest(10)] == [1, 0]
    assert [file.window for file in ledger.newest(1)] == [1]


def test_what_was_told_is_not_told_again(ledger: CaptureStateFile) -> None:
    ledger.record([closed(captured(n)) for n in range(5)], {})
    assert [file.window for file in ledger.unannounced_files(2)] == [0, 1]
    ledger.mark_announced([file.path for file in ledger.unannounced_files(2)])
    assert [file.window for file in ledger.unannounced_files()] == [2, 3, 4]


def test_a_slot_is_listed_when_it_is_complete_and_again_when_more_came(
    ledger: CaptureStateFile,
) -> None:
    begin_s = captured(0).named_s - captured(0).named_s % 60
    one, two = ManifestSlot(begin_s, begin_s + 60), ManifestSlot(begin_s + 60, begin_s + 120)
    ledger.record([closed(captured(0)), closed(captured(1))], {})
    assert ledger.slots(one.end_s - 1) == []
    assert ledger.slots(one.end_s) == [one]
    ledger.mark_manifest_written(one)
    assert ledger.slots(2**40) == [two]
    late = msgspec.structs.replace(captured(7), named_s=one.end_s - 1)
    ledger.record([closed(late)], {})
    assert ledger.slots(one.end_s) == [one]
    assert [file.window for file in ledger.of_slot(one)] == [0, 7]
    ledger.mark_manifest_written(one)
    ledger.record([closed(late)], {})  # committed twice
    assert ledger.slots(one.end_s) == []


def test_a_window_without_a_file_has_a_slot_too(ledger: CaptureStateFile) -> None:
    ledger.record([ClosedWindow(130, 60)], {"0": WindowStart(0, named_s=130, window=1)})
    assert (
        ledger.slots(180) == [ManifestSlot(120, 180)]
        and ledger.of_slot(ManifestSlot(120, 180)) == []
    )
    assert not ledger.is_settled()
    ledger.mark_manifest_written(ManifestSlot(120, 180))
    assert ledger.is_settled()


def test_slots_do_not_overlap_when_the_interval_is_changed(ledger: CaptureStateFile) -> None:
    for named_s, interval_s in ((30, 60), (90, 60), (130, 60), (170, 300), (190, 300), (700, 60)):
        ledger.record([ClosedWindow(named_s, interval_s)], {})
    ledger.record([ClosedWindow(650, 300)], {})  # of a partition that was late with the longer one
    assert ledger.slots(2**40) == [
        ManifestSlot(0, 60),
        ManifestSlot(60, 120),
        ManifestSlot(120, 180),
        ManifestSlot(180, 300),
        ManifestSlot(600, 660),
        ManifestSlot(660, 720),
    ]


def test_a_run_is_settled_when_all_is_listed_and_told(ledger: CaptureStateFile) -> None:
    assert ledger.is_settled()
    ledger.record([closed(captured(0))], {})
    (slot,) = ledger.slots(2**40)
    ledger.mark_manifest_written(slot)
    assert not ledger.is_settled()
    ledger.mark_announced([captured(0).path])
    assert ledger.is_settled()


def test_the_ledger_survives_its_process(tmp_path: Path) -> None:
    first = CaptureStateFile(tmp_path / "ledger.sqlite")
    first.record([closed(captured(0))], {"0": WindowStart(10, 5, 7, 8, 1)})
    first.close()
    again = CaptureStateFile(tmp_path / "ledger.sqlite")
    assert again.places() == {"0": WindowStart(10, 5, 7, 8, 1)}
    again.close()


def test_changed_row_is_noticed_when_the_job_opens_the_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = CaptureStateFile(path)
    ledger.record([closed(captured(0))], {"0": WindowStart(10, window=1)})
    ledger.record([closed(captured(1))], {"0": WindowStart(20, window=2)})  # replaces the place
    ledger.close()
    CaptureStateFile(path, check=True).close()
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE row_sums SET row_sum = row_sum + 1 WHERE name = 'places'")
    with pytest.raises(
        sqlite3.DatabaseError, match=r"ledger\.sqlite: it is damaged: a row of .*places"
    ):
        CaptureStateFile(path, check=True)


def test_events_that_retention_took_are_counted(ledger: CaptureStateFile) -> None:
    short = captured(0, count=10)
    ledger.record([closed(msgspec.structs.replace(short, count=4))], {})
    assert ledger.totals().lost == 6


def test_a_manifest_lists_each_file_with_what_proves_it() -> None:
    empty = captured(2, "1", count=0)
    made = build_manifest(
        "ns", "hub", 1_700_000_040, 60, [captured(1, "10"), empty, captured(0, "2")]
    )
    assert [file["partitionId"] for file in made["files"]] == ["1", "2", "10"]
    assert made["files"][0]["firstSequenceNumber"] == -1
    assert made["files"][1] == {
        "path": "ns/hub/2/0.avro",
        "partitionId": "2",
        "closedAt": "2023-11-14T22:13:20.000Z",
        "firstSequenceNumber": 0,
        "lastSequenceNumber": 9,
        "eventCount": 10,
        "sizeInBytes": 1000,
        "sha256": "ab" * 32,
    }
    assert (made["slot"], made["eventCount"]) == ("2023-11-14T22-14-00Z", 20)
    assert json.loads(manifest_bytes(made)) == made


def test_a_manifest_keeps_the_files_of_another_run_in_its_slot() -> None:
    slot = ("ns", "hub", 1_700_000_040, 60)
    first = build_manifest(*slot, [captured(0), captured(1, "1")])
    late = add_files_to_manifest(
        build_manifest(*slot, [captured(2), captured(3, "0", count=4)]), first
    )
    assert [file["path"] for file in late["files"]] == [
        "ns/hub/0/0.avro",
        "ns/hub/0/2.avro",
        "ns/hub/0/3.avro",
        "ns/hub/1/1.avro",
    ]
    assert late["eventCount"] == 34
    assert (
        add_files_to_manifest(build_manifest(*slot, [captured(0)]), late) == late
    )  # again is the same
    elsewhere = first | {"namespace": "other"}
    assert (
        add_files_to_manifest(build_manifest(*slot, [captured(2)]), elsewhere)["eventCount"] == 10
    )


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
