"""What is done with the end of a log after a crash: a table, each row with its reason.

The active segment is walked from the last mark known to be flushed (its index file) to its end.
Where a stretch is no whole record, four facts decide:

    left        there are bytes at all behind the last whole record
    zero        they are nothing but zeros
    valid       whole records follow them
    flushed     one of those says that this stretch was on disk before it was written itself

Records carry that last fact (record.py, `unflushed`) because several are written by one call and
a loss of power may keep the later pages and not the earlier: whole records behind a torn one then
prove nothing, while a record written after a flush proves that all before the flush was there.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from penstock.log.embedded.files import Files
from penstock.log.embedded.index import LogMark, SparseIndex
from penstock.log.embedded.record import decode_batch
from penstock.log.embedded.record_scanner import DamagedRange, IntactRecord, scan_records
from penstock.log.embedded.segment import SEGMENT_HEADER_BYTES, Segment
from penstock.log.producer_state import ProducerStates
from penstock.model.sections import last_section_position


class RecoveryAction(Enum):
    KEEP = "keep"  # nothing to do
    CUT = "cut"  # truncate the file here: no acknowledged byte lies behind
    SKIP = "skip"  # leave it: readers of it get LogCorrupt, the rest is served, appending goes on


class RecoveryRule(msgspec.Struct, frozen=True):
    """A row holds when each of its facts is as said; None means whatever it is."""

    label: str
    left: bool | None
    zero: bool | None
    valid: bool | None
    flushed: bool | None
    act: RecoveryAction
    reason: str


# fmt: off
RECOVERY_TABLE = (
    RecoveryRule("clean", False, None, None, None, RecoveryAction.KEEP,
        "The log ends with a whole record."),
    RecoveryRule("zeros", True, True, None, None, RecoveryAction.CUT,
        "The file system made the file longer and lost power before the bytes arrived: "
        "nothing there was flushed, so nothing was acknowledged."),
    RecoveryRule("torn", True, False, False, None, RecoveryAction.CUT,
        "A record that did not arrive whole and nothing behind it: its flush never ended, so it "
        "was not acknowledged."),
    RecoveryRule("torn flight", True, False, True, False, RecoveryAction.CUT,
        "Whole records follow, but none written after a flush that covered this one: they all "
        "belong to the writes under way when the power went, and none was acknowledged."),
    RecoveryRule("damaged", True, False, True, True, RecoveryAction.SKIP,
        "A later record was written after this stretch had been flushed: it was whole once and "
        "may have been acknowledged, and so may all behind it. Nothing is removed."),
)
# fmt: on


def decide_recovery(*, left: bool, zero: bool, valid: bool, flushed: bool) -> RecoveryRule:
    """The one row that holds."""
    facts = (left, zero, valid, flushed)
    rows = [row for row in RECOVERY_TABLE if _holds(row, facts)]
    assert len(rows) == 1
    return rows[0]


def _holds(row: RecoveryRule, facts: tuple[bool, bool, bool, bool]) -> bool:
    wanted = (row.left, row.zero, row.valid, row.flushed)
    return all(want is None or want == fact for want, fact in zip(wanted, facts, strict=True))


class RecoveryResult(msgspec.Struct, frozen=True):
    """The active segment as it stands after recovery."""

    end: LogMark
    index: SparseIndex
    producers: ProducerStates
    rows: tuple[str, ...]  # labels of the table's rows that held, in the order of the file
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
    """Walk from `start` to the file's end, cut a torn tail and flush what is kept.

    `index` and `producers` are what is known at `start`; they are not changed. Raises OSError when
    the file cannot be read, cut or flushed.
    """
    stop = max(start.offset, segment.header.base_offset + files.size(fd) - SEGMENT_HEADER_BYTES)
    passed = replay_records(files, fd, segment, start, stop, index.copy(), producers.copy())
    rows, skipped, cut_at = judge_damage(passed.stretches, stop, passed.flushed_offset)
    if cut_at < passed.end.offset:
        # A torn flight: whole records behind the cut must leave the index and the stamps too.
        passed = replay_records(files, fd, segment, start, cut_at, index.copy(), producers.copy())
    assert passed.end.offset <= cut_at
    if cut_at < stop:
        files.truncate(fd, segment.position(cut_at))
    if stop > start.offset:
        # After a kill the page cache holds what the disk may not: it is served from now on, so it
        # has to be as durable as everything else.
        files.fdatasync(fd)
    return RecoveryResult(
        msgspec.structs.replace(passed.end, offset=cut_at),
        passed.index,
        passed.producers,
        tuple(rows),
        stop - cut_at,
        tuple(skipped),
    )


def judge_damage(
    stretches: list[DamagedRange], stop: int, flushed_offset: int
) -> tuple[list[str], list[DamagedRange], int]:
    """Put each stretch before the table, up to the first cut: labels, what is skipped, the end."""
    rows: list[str] = []
    skipped: list[DamagedRange] = []
    for stretch in stretches:
        row = decide_recovery(
            left=True,
            zero=stretch.is_zero,
            valid=stretch.stop < stop,
            flushed=stretch.offset < flushed_offset,
        )
        rows.append(row.label)
        if row.act is RecoveryAction.CUT:
            return rows, skipped, stretch.offset
        skipped.append(stretch)
    rows.append(decide_recovery(left=False, zero=False, valid=False, flushed=False).label)
    return rows, skipped, stop


class ScanResult(msgspec.Struct, frozen=True):
    """What a walk over a segment has seen."""

    end: LogMark  # behind the last whole record
    index: SparseIndex
    producers: ProducerStates
    stretches: list[DamagedRange]
    flushed_offset: int  # the furthest that any record calls flushed


def replay_records(
    files: Files,
    fd: int,
    segment: Segment,
    start: LogMark,
    stop: int,
    index: SparseIndex,
    producers: ProducerStates,
) -> ScanResult:
    """Take every whole record from `start` to `stop` into `index` and `producers`."""
    stretches: list[DamagedRange] = []
    flushed_offset = start.offset
    last: IntactRecord | None = None
    for item in scan_records(files, fd, segment, start.offset, stop):
        if isinstance(item, DamagedRange):
            stretches.append(item)
            continue
        last, header = item, item.header
        index.note(header.first_sequence, header.base_offset, header.enqueued_ms)
        flushed_offset = max(flushed_offset, header.flushed_offset)
        if header.producer is not None:
            producers.note(header.producer)
    end = start if last is None else _mark_after(last)
    return ScanResult(end, index, producers, stretches, flushed_offset)


def _mark_after(found: IntactRecord) -> LogMark:
    header = found.header
    batch = decode_batch(found.chunk, found.position, header)
    return LogMark(
        header.next_offset,
        header.next_sequence,
        header.enqueued_ms,
        header.base_offset + last_section_position(batch.sections),
    )
