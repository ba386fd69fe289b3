"""`verify_directory` and `dump_segment`: what they find, and that they touch nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import pytest

from penstock.log.embedded.files import Files
from penstock.log.embedded.index import LogMark
from penstock.log.embedded.record import (
    RECORD_HEADER_BYTES,
    RecordHeader,
    encode_record_header,
)
from penstock.log.embedded.record_scanner import DamagedRange
from penstock.log.embedded.segment import SEGMENT_HEADER_BYTES, SegmentHeader
from penstock.log.embedded.store import EmbeddedLogStore
from penstock.log.embedded.verify import (
    LogFinding,
    PartitionSummary,
    dump_segment,
    verify_directory,
)
from penstock.model.errors import DataDirectoryError, LogCorrupt, PenstockError
from penstock.model.events import EventBatch, ProducerStamp, Receipt, StoredBatch

NOW = 1_700_000_000_000
STAMP = ProducerStamp(7, 1, 2, 3)


def batch(number: int) -> EventBatch:
    bodies = [f"{number}.{i}".encode().ljust(40, b"x") for i in range(2)]
    sections = b"".join(b"\x00\x53\x75\xa0" + bytes([len(body)]) + body for body in bodies)
    return EventBatch(sections, 2, producer=STAMP if number == 1 else None)


SIZE = RECORD_HEADER_BYTES + len(batch(0).sections)


def write(directory: Path, batches: list[EventBatch]) -> None:
    turns: SimpleQueue[Callable[[], None]] = SimpleQueue()
    store = EmbeddedLogStore(
        directory, wake=turns.put, segment_bytes=SEGMENT_HEADER_BYTES + 2 * SIZE
    )
    outcomes: list[Receipt | PenstockError] = []
    for number, item in enumerate(batches):
        store.partition("hub", 3).append(item, now_ms=NOW + number, done=outcomes.append)
        while len(outcomes) <= number:
            turns.get(timeout=20)()
    store.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write(tmp_path / "data", [batch(number) for number in range(5)])
    return tmp_path / "data"


def segments(directory: Path) -> list[Path]:
    return sorted((directory / "hub" / "3").glob("*.log"))


def findings(directory: Path) -> list[LogFinding]:
    return [item for item in verify_directory(directory) if isinstance(item, LogFinding)]


def change(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x40
    path.write_bytes(content)


def test_whole_directory_has_no_findings(directory: Path) -> None:
    assert list(verify_directory(directory)) == [
        PartitionSummary(
            hub_id="hub",
            partition=3,
            segments=3,
            records=5,
            events=10,
            first_sequence=0,
            last_sequence=9,
            size_bytes=5 * SIZE,
            findings=0,
        )
    ]


def test_verifying_changes_nothing_and_needs_no_lock(directory: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    (copy / "lock").unlink()
    change(segments(copy)[1], SEGMENT_HEADER_BYTES + 70)
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    held = EmbeddedLogStore(directory, wake=lambda _: None)
    assert findings(directory) == []
    held.close()
    assert len(findings(copy)) == 1
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before


def test_directory_without_a_log_or_of_a_newer_version_is_refused(directory: Path) -> None:
    with pytest.raises(DataDirectoryError, match="There is no log in"):
        list(verify_directory(directory / "hub"))
    (directory / "format.json").write_text('{"format": 9}')
    with pytest.raises(DataDirectoryError, match="newer Penstock"):
        list(verify_directory(directory))


def test_damaged_record_is_a_loss(directory: Path) -> None:
    change(segments(directory)[0], SEGMENT_HEADER_BYTES + 70)
    [finding] = findings(directory)
    assert finding.is_loss
    assert finding.text == f"From offset 0 to {SIZE} there is no intact record."
    assert finding.path == str(segments(directory)[0])


def test_incomplete_last_write_is_no_loss(directory: Path) -> None:
    for path in directory.rglob("*.index"):
        path.unlink()
    newest = segments(directory)[-1]
    newest.write_bytes(newest.read_bytes() + b"half a record")
    told = [finding for finding in findings(directory) if "no intact record" in finding.text]
    assert [finding.is_loss for finding in told] == [False]
    assert "recovery removes" in told[0].text


def test_damage_below_the_flushed_mark_is_a_loss_even_at_the_end(directory: Path) -> None:
    change(segments(directory)[-1], SEGMENT_HEADER_BYTES + 70)
    assert [finding.is_loss for finding in findings(directory)] == [True]


def test_missing_segment_is_a_loss(directory: Path) -> None:
    segments(directory)[1].unlink()
    [finding] = findings(directory)
    assert finding.is_loss
    assert f"begins at offset {4 * SIZE} and sequence number 8" in finding.text
    assert f"ends at {2 * SIZE} and 4" in finding.text


def test_damaged_headers_are_reported(directory: Path) -> None:
    change(segments(directory)[0], 20)
    [finding] = findings(directory)
    assert (finding.is_loss, finding.text) == (
        False,
        "One of its header's two copies is damaged.",
    )
    change(segments(directory)[0], 64 + 20)
    assert any(f.is_loss and "no intact header" in f.text for f in findings(directory))


def test_unborn_segment_is_no_loss(directory: Path) -> None:
    (directory / "hub" / "3" / f"{5 * SIZE:020d}.log").write_bytes(b"")
    [finding] = findings(directory)
    assert not finding.is_loss


def test_segment_in_another_directory_is_reported(directory: Path) -> None:
    (directory / "hub" / "3").rename(directory / "hub" / "4")
    assert any("says partition 3" in finding.text for finding in findings(directory))
    first = min((directory / "hub" / "4").glob("*.log"))
    first.rename(first.with_name("00000000000000000001.log"))
    assert any("says offset 0" in finding.text for finding in findings(directory))


def test_lost_derived_files_are_reported_and_no_loss(directory: Path) -> None:
    (directory / "hub" / "3" / "00000000000000000000.index").unlink()
    change(directory / "hub" / "3" / f"{2 * SIZE:020d}.producers", 3)
    found = findings(directory)
    assert [finding.is_loss for finding in found] == [False, False]
    assert "index file is missing" in found[0].text
    assert "stamps are collected" in found[1].text


@pytest.mark.parametrize("sections", [b"junk", b"\x00\x53\x75\xa0\x01x"])
def test_record_whose_events_do_not_match_its_count_is_reported(
    tmp_path: Path, sections: bytes
) -> None:
    write(tmp_path, [EventBatch(sections, 2)])
    assert [finding.text for finding in findings(tmp_path)] == [
        "The record at offset 0 does not hold 2 data sections."
    ]


def test_dump_lists_each_record(directory: Path) -> None:
    header, first, second = dump_segment(segments(directory)[0])
    assert isinstance(header, SegmentHeader)
    assert header.start == LogMark(0, 0, 0, -1)
    assert header.partition == 3
    length = SIZE - RECORD_HEADER_BYTES
    for record, expected in (
        (first, (0, 0, 2, NOW, length, None, 0)),
        (second, (SIZE, 2, 2, NOW + 1, length, STAMP, SIZE)),
    ):
        assert isinstance(record, RecordHeader)
        assert expected == (
            record.base_offset,
            record.first_sequence,
            record.count,
            record.enqueued_ms,
            record.length,
            record.producer,
            record.flushed_offset,
        )


def test_dump_continues_after_damage(directory: Path) -> None:
    change(segments(directory)[0], SEGMENT_HEADER_BYTES + 70)
    assert [type(item) for item in dump_segment(segments(directory)[0])] == [
        SegmentHeader,
        DamagedRange,
        RecordHeader,
    ]


def test_dump_of_another_file_is_refused(directory: Path) -> None:
    with pytest.raises(LogCorrupt, match="no intact segment header"):
        list(dump_segment(directory / "format.json"))


def test_disk_that_fails_while_verifying_is_a_finding(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> bytes:
        raise OSError(5, "Input/output error")

    for call in ("pread", "open"):
        with monkeypatch.context() as patch:
            files = Files()
            patch.setattr(files, call, fail)
            patch.setattr("penstock.log.embedded.verify.check_format", lambda *_: None)
            found = [
                f for f in verify_directory(directory, files=files) if isinstance(f, LogFinding)
            ]
        assert [finding.is_loss for finding in found] == [True] * 3
        assert all("cannot be read" in finding.text for finding in found)


def test_numbers_and_times_out_of_order_are_reported(tmp_path: Path) -> None:
    """Written by hand, since the log itself never does."""
    folder = tmp_path / "hub" / "0"
    folder.mkdir(parents=True)
    (tmp_path / "format.json").write_text('{"format": 1}')
    content = SegmentHeader(0, 0, -1, 0, 1, 0).encode()
    offset = 0
    for first, enqueued_ms in ((0, 50), (3, 40)):
        item = batch(0)
        content += (
            encode_record_header(
                StoredBatch(first, offset, enqueued_ms, item.count, item.sections),
                item.producer,
                flushed_offset=0,
                salt=1,
            )
            + item.sections
        )
        offset += SIZE
    (folder / "00000000000000000000.log").write_bytes(content)
    assert [finding.text for finding in findings(tmp_path)] == [
        f"The record at offset {SIZE} begins with sequence number 3, not 2.",
        f"The record at offset {SIZE} is older than the one before it.",
    ]
