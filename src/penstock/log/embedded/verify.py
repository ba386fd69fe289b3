"""`penstock log verify` and `log dump`: read-only inspection of a data directory, without the lock.

`verify_directory` reads every byte and reports inconsistencies; `dump_segment` lists the records of
a segment. The log of a running service may end with an incomplete write, which is no damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from penstock.log.embedded.directory import FORMAT_FILE, check_format
from penstock.log.embedded.files import Files, open_file, read_small_file
from penstock.log.embedded.index import LogMark
from penstock.log.embedded.partition_loader import load_index
from penstock.log.embedded.record import RecordHeader, decode_batch
from penstock.log.embedded.record_scanner import DamagedRange, IntactRecord, scan_records
from penstock.log.embedded.recovery import mark_after
from penstock.log.embedded.segment import (
    PRODUCERS_SUFFIX,
    SEGMENT_HEADER_BYTES,
    Segment,
    SegmentHeader,
    decode_header,
    is_copy_intact,
    parse_segment_name,
)
from penstock.log.producer_state import PRODUCERS_FILE_BYTES_MAX, decode_producers
from penstock.model.errors import DataDirectoryError, LogCorrupt
from penstock.model.sections import count_sections

# Also the types that `dump_segment` yields, for callers outside of the log.
__all__ = [
    "DamagedRange",
    "LogFinding",
    "PartitionSummary",
    "RecordHeader",
    "SegmentHeader",
    "dump_segment",
    "verify_directory",
]


class LogFinding(msgspec.Struct, frozen=True):
    """An inconsistency. `is_loss`: stored events cannot be read any more."""

    path: str
    text: str
    is_loss: bool


class PartitionSummary(msgspec.Struct):
    """Totals of one partition, after all of it was read."""

    hub_id: str
    partition: int
    segments: int = 0
    records: int = 0
    events: int = 0
    first_sequence: int = -1  # -1 if there is no event
    last_sequence: int = -1
    size_bytes: int = 0
    findings: int = 0


def verify_directory(
    directory: Path, *, files: Files | None = None
) -> Iterator[LogFinding | PartitionSummary]:
    """Yield every partition's findings, then its summary. Raises DataDirectoryError if there is no
    log in the directory, or one of a newer version."""
    files = files if files is not None else Files()
    if FORMAT_FILE not in files.listdir(directory):
        raise DataDirectoryError(
            f"There is no log in {directory}: the file {FORMAT_FILE} is missing."
        )
    check_format(files, directory)
    for hub_id in files.listdir(directory):
        for name in files.listdir(directory / hub_id):
            if name.isascii() and name.isdigit() and not hub_id.startswith("."):
                yield from _PartitionVerifier(files, directory / hub_id / name).verify()


def dump_segment(
    path: Path, *, files: Files | None = None
) -> Iterator[SegmentHeader | RecordHeader | DamagedRange]:
    """Yield the segment's header, then the headers of its records and the damaged
    ranges in file order. The header's
    salt must not leave the process. Raises LogCorrupt if the file is no segment, OSError if it
    cannot be read."""
    files = files if files is not None else Files()
    with open_file(files, path, write=False) as fd:
        header = decode_header(files.pread(fd, SEGMENT_HEADER_BYTES, 0), path)
        if header is None:
            raise LogCorrupt(f"The file {path} has no intact segment header.")
        yield header
        stop = header.base_offset + files.size(fd) - SEGMENT_HEADER_BYTES
        for item in scan_records(files, fd, Segment(path, header), header.base_offset, stop):
            yield item if isinstance(item, DamagedRange) else item.header


class _PartitionVerifier:
    """Reads all segments of one partition and compares each with those before it."""

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self._folder = folder
        self._expected: LogMark | None = None  # the log after the last record
        self._summary = PartitionSummary(folder.parent.name, int(folder.name))

    def verify(self) -> Iterator[LogFinding | PartitionSummary]:
        names = [
            name
            for name in self._files.listdir(self._folder)
            if parse_segment_name(name) is not None
        ]
        for name in names:
            for finding in self._verify_segment(name, is_newest=name == names[-1]):
                self._summary.findings += 1
                yield finding
        if self._expected is not None:
            self._summary.last_sequence = self._expected.next_sequence - 1
        yield self._summary

    def _verify_segment(self, name: str, *, is_newest: bool) -> Iterator[LogFinding]:
        path = self._folder / name
        self._summary.segments += 1
        try:
            with open_file(self._files, path, write=False) as fd:
                yield from self._verify_open_segment(fd, path, is_newest=is_newest)
        except OSError as error:
            yield LogFinding(str(path), f"It cannot be read: {error}.", is_loss=True)

    def _verify_open_segment(self, fd: int, path: Path, *, is_newest: bool) -> Iterator[LogFinding]:
        content = self._files.pread(fd, SEGMENT_HEADER_BYTES, 0)
        header = decode_header(content, path)
        is_empty = self._files.size(fd) <= SEGMENT_HEADER_BYTES
        if is_empty and self._is_covered(path.name):
            yield self._leftover(path, has_header=header is not None)
            return
        if header is None:
            yield LogFinding(
                str(path), "It has no intact header.", is_loss=not (is_newest and is_empty)
            )
            return
        if not is_copy_intact(content, 0) or not is_copy_intact(content, 1):
            yield LogFinding(str(path), "One of its header's two copies is damaged.", is_loss=False)
        segment = Segment(path, header)
        yield from self._compare_start(segment)
        yield from self._verify_records(fd, segment, is_newest=is_newest)
        yield from self._verify_derived(segment, is_newest=is_newest)

    def _is_covered(self, name: str) -> bool:
        """Whether the segments before it hold intact records from its base on."""
        base = parse_segment_name(name)
        return self._expected is not None and base is not None and base < self._expected.offset

    def _leftover(self, path: Path, *, has_header: bool) -> LogFinding:
        """A segment that was not created completely; the log continues in the segment before it.
        With an intact header it hides those events from versions that take it for the end of the
        log."""
        assert self._expected is not None
        self._summary.segments -= 1
        text = (
            "It was not created completely and holds no record, and the segment before it "
            f"continues after its base, up to number {self._expected.next_sequence - 1}"
        )
        if has_header:
            text += ": an earlier version does not serve those events"
        return LogFinding(str(path), text + ". The next start removes it.", is_loss=has_header)

    def _compare_start(self, segment: Segment) -> Iterator[LogFinding]:
        path, header, expected = str(segment.path), segment.header, self._expected
        if header.base_offset != parse_segment_name(segment.path.name):
            yield LogFinding(path, f"Its header says offset {header.base_offset}.", is_loss=True)
        if header.partition != int(self._folder.name):
            yield LogFinding(path, f"Its header says partition {header.partition}.", is_loss=True)
        if expected is not None and header.start != expected:
            hidden = expected.next_sequence - header.first_sequence
            yield LogFinding(
                path,
                f"It begins at offset {header.base_offset} and sequence number "
                f"{header.first_sequence}; the log before it ends at {expected.offset} and "
                f"{expected.next_sequence}."
                + (f" It hides {hidden} events of the segment before it." if hidden > 0 else ""),
                is_loss=header.base_offset != expected.offset or hidden != 0,
            )
        self._expected = header.start
        if self._summary.first_sequence < 0:
            self._summary.first_sequence = header.first_sequence

    def _verify_records(
        self, fd: int, segment: Segment, *, is_newest: bool
    ) -> Iterator[LogFinding]:
        base = segment.header.base_offset
        stop = base + self._files.size(fd) - SEGMENT_HEADER_BYTES
        damaged: list[DamagedRange] = []
        loaded = load_index(self._files, segment)
        flushed = base if loaded is None else loaded[1].offset
        for item in scan_records(self._files, fd, segment, base, stop):
            if isinstance(item, DamagedRange):
                damaged.append(item)
            else:
                flushed = max(flushed, item.header.flushed_offset)
                yield from self._compare_record(segment, item)
        self._summary.size_bytes += stop - base
        for damage in damaged:
            is_torn_write = is_newest and damage.offset >= flushed
            yield LogFinding(
                str(segment.path),
                f"From offset {damage.offset} to {damage.stop} there is no intact record"
                + (": an incomplete last write, which recovery removes." if is_torn_write else "."),
                is_loss=not is_torn_write,
            )

    def _compare_record(self, segment: Segment, item: IntactRecord) -> Iterator[LogFinding]:
        path, header, expected = str(segment.path), item.header, self._expected
        assert expected is not None
        batch = decode_batch(item.chunk, item.position, header)
        self._summary.records += 1
        self._summary.events += header.count
        where = f"The record at offset {header.base_offset}"
        is_after_damage = header.base_offset > expected.offset
        if not is_after_damage and header.first_sequence != expected.next_sequence:
            yield LogFinding(
                path,
                f"{where} begins with sequence number {header.first_sequence}, not "
                f"{expected.next_sequence}.",
                is_loss=True,
            )
        if header.enqueued_ms < expected.newest_ms:
            yield LogFinding(path, f"{where} is older than the one before it.", is_loss=False)
        if not _has_events(batch.sections, header.count):
            yield LogFinding(
                path, f"{where} does not hold {header.count} data sections.", is_loss=True
            )
        self._expected = mark_after(item)

    def _verify_derived(self, segment: Segment, *, is_newest: bool) -> Iterator[LogFinding]:
        """Derived files can be rebuilt, so no damage is a loss. The newest segment may have
        none."""
        loaded = load_index(self._files, segment)
        if loaded is None and not is_newest:
            text = "Its index file is missing or damaged; it is rebuilt when it is needed."
            yield LogFinding(str(segment.path), text, is_loss=False)
        path = segment.beside(PRODUCERS_SUFFIX)
        content = read_small_file(self._files, path, PRODUCERS_FILE_BYTES_MAX)
        if content is not None and decode_producers(content) is None:
            text = "It is damaged; the stamps are collected from the records."
            yield LogFinding(str(path), text, is_loss=False)


def _has_events(sections: bytes, count: int) -> bool:
    try:
        return count_sections(sections) == count
    except LogCorrupt:
        return False
