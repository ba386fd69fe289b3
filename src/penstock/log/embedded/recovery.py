"""Recovery: what happens to the end of a log after a crash. A table; each rule states its reason.

The active segment is scanned from its last log mark (its index file), up to which everything was
flushed, to the end of the file. Four facts about each damaged range decide:

    has_bytes          there are bytes after the last intact record
    is_zero            they are all zero
    has_later_records  intact records follow
    was_flushed        one of those was written after a flush that covered this range

Records store the last fact (record.py, `unflushed`). One call writes several records, and a power
failure may keep later pages and lose earlier ones: intact records after a torn one prove nothing by
themselves. A record that was written after a flush proves that everything before the flush was on
disk, and may have been acknowledged.

The guarantee: recovery discards only writes that were not flushed, so not acknowledged. The limit
of it: a disk that damages the very last flushed write, after which nothing was written and no mark
left, makes it look like a torn write (docs/explanation/durability.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TypeVar

import msgspec

from penstock.log.embedded.files import Files
from penstock.log.embedded.index import LogMark, SparseIndex
from penstock.log.embedded.record import decode_batch
from penstock.log.embedded.record_scanner import DamagedRange, IntactRecord, scan_records
from penstock.log.embedded.segment import SEGMENT_HEADER_BYTES, Segment
from penstock.log.producer_state import ProducerStates
from penstock.model.sections import last_section_position

_Rule = TypeVar("_Rule")


class RecoveryAction(Enum):
    KEEP = "keep"
    CUT = "cut"  # truncate the file here: nothing after it was acknowledged
    SKIP = "skip"  # leave it: reading it raises LogCorrupt; the other events are served


class RecoveryRule(msgspec.Struct, frozen=True):
    """Applies if each fact has the given value; None matches both values."""

    label: str
    has_bytes: bool | None
    is_zero: bool | None
    has_later_records: bool | None
    was_flushed: bool | None
    action: RecoveryAction
    reason: str


# fmt: off
RECOVERY_TABLE = (
    RecoveryRule("clean", False, None, None, None, RecoveryAction.KEEP,
        "The log ends with an intact record."),
    RecoveryRule("zeros", True, True, None, None, RecoveryAction.CUT,
        "The file system extended the file, and the power failed before the data was written: "
        "nothing there was flushed, so nothing was acknowledged."),
    RecoveryRule("torn", True, False, False, None, RecoveryAction.CUT,
        "An incomplete record and nothing after it: its flush did not complete, so it was not "
        "acknowledged."),
    RecoveryRule("torn flight", True, False, True, False, RecoveryAction.CUT,
        "Intact records follow, but none was written after a flush that covered this range: they "
        "all belong to the writes in progress when the power failed; none was acknowledged."),
    RecoveryRule("damaged", True, False, True, True, RecoveryAction.SKIP,
        "A later record was written after this range had been flushed: it was intact then and may "
        "have been acknowledged, and so may everything after it. Nothing is removed."),
)
# fmt: on


def find_rule(table: Sequence[_Rule], **facts: bool) -> _Rule:
    """The one rule of a table that applies: each fact has the value of the rule's field of that
    name, where None matches both values."""
    rows = [
        rule
        for rule in table
        if all(getattr(rule, name) in (None, fact) for name, fact in facts.items())
    ]
    assert len(rows) == 1
    return rows[0]


class RecoveryResult(msgspec.Struct, frozen=True):
    """The active segment after recovery."""

    end: LogMark
    index: SparseIndex
    producers: ProducerStates
    rows: tuple[str, ...]  # labels of the rules that applied, in file order
    cut_bytes: int
    damaged: tuple[DamagedRange, ...]


def recover_segment(
    files: Files,
    fd: int,
    segment: Segment,
    start: LogMark,
    index: SparseIndex,
    producers: ProducerStates,
) -> RecoveryResult:
    """Scan from `start` to the end of the file, truncate a torn write and flush what stays.

    `index` and `producers` are the state at `start`; they are not changed. Raises OSError if the
    file cannot be read, truncated or flushed.
    """
    stop = max(start.offset, segment.header.base_offset + files.size(fd) - SEGMENT_HEADER_BYTES)
    scan = replay_records(files, fd, segment, start, stop, index.copy(), producers.copy())
    rows, skipped, cut_at = judge_damage(scan.damaged, stop, scan.flushed_offset)
    if cut_at < scan.end.offset:
        # "torn flight": intact records after the cut must not stay in the index and the stamps.
        scan = replay_records(files, fd, segment, start, cut_at, index.copy(), producers.copy())
    assert scan.end.offset <= cut_at
    if cut_at < stop:
        files.truncate(fd, segment.position(cut_at))
    if stop > start.offset:
        # After a kill the page cache may hold records that the disk does not. They are served from
        # now on, so they must be durable.
        files.fdatasync(fd)
    return RecoveryResult(
        msgspec.structs.replace(scan.end, offset=cut_at),
        scan.index,
        scan.producers,
        tuple(rows),
        stop - cut_at,
        tuple(skipped),
    )


def judge_damage(
    damaged: list[DamagedRange], stop: int, flushed_offset: int
) -> tuple[list[str], list[DamagedRange], int]:
    """Apply the table to each damaged range, up to the first cut. Returns the labels of the rules,
    the ranges to skip and the end of the log."""
    rows: list[str] = []
    skipped: list[DamagedRange] = []
    for damage in damaged:
        row = find_rule(
            RECOVERY_TABLE,
            has_bytes=True,
            is_zero=damage.is_zero,
            has_later_records=damage.stop < stop,
            was_flushed=damage.offset < flushed_offset,
        )
        rows.append(row.label)
        if row.action is RecoveryAction.CUT:
            return rows, skipped, damage.offset
        skipped.append(damage)
    rows.append(find_rule(RECOVERY_TABLE, has_bytes=False).label)
    return rows, skipped, stop


class ScanResult(msgspec.Struct, frozen=True):
    """Result of scanning a segment."""

    end: LogMark  # after the last intact record
    index: SparseIndex
    producers: ProducerStates
    damaged: list[DamagedRange]
    flushed_offset: int  # the highest that any record stores


def replay_records(
    files: Files,
    fd: int,
    segment: Segment,
    start: LogMark,
    stop: int,
    index: SparseIndex,
    producers: ProducerStates,
) -> ScanResult:
    """Add every intact record from `start` to `stop` to `index` and `producers`."""
    damaged: list[DamagedRange] = []
    flushed_offset = start.offset
    last: IntactRecord | None = None
    for item in scan_records(files, fd, segment, start.offset, stop):
        if isinstance(item, DamagedRange):
            damaged.append(item)
            continue
        last, header = item, item.header
        index.note(header.first_sequence, header.base_offset, header.enqueued_ms)
        flushed_offset = max(flushed_offset, header.flushed_offset)
        if header.producer is not None:
            producers.note(header.producer)
    end = start if last is None else mark_after(last)
    return ScanResult(end, index, producers, damaged, flushed_offset)


def mark_after(record: IntactRecord) -> LogMark:
    """The log up to the end of the record."""
    header = record.header
    batch = decode_batch(record.chunk, record.position, header)
    return LogMark(
        header.next_offset,
        header.next_sequence,
        header.enqueued_ms,
        header.base_offset + last_section_position(batch.sections),
    )
