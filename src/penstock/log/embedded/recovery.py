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
from penstock.log.embedded.index import Mark, SparseIndex
from penstock.log.embedded.record import last_event_position, stored
from penstock.log.embedded.record_scanner import Damaged, Found, walk
from penstock.log.embedded.segment import SEGMENT_HEADER_BYTES, Segment
from penstock.log.producer_state import Producers


class Act(Enum):
    KEEP = "keep"  # nothing to do
    CUT = "cut"  # truncate the file here: no acknowledged byte lies behind
    SKIP = "skip"  # leave it: readers of it get LogCorrupt, the rest is served, appending goes on


class Row(msgspec.Struct, frozen=True):
    """A row holds when each of its facts is as said; None means whatever it is."""

    label: str
    left: bool | None
    zero: bool | None
    valid: bool | None
    flushed: bool | None
    act: Act
    reason: str


# fmt: off
RECOVERY_TABLE = (
    Row("clean", False, None, None, None, Act.KEEP,
        "The log ends with a whole record."),
    Row("zeros", True, True, None, None, Act.CUT,
        "The file system made the file longer and lost power before the bytes arrived: "
        "nothing there was flushed, so nothing was acknowledged."),
    Row("torn", True, False, False, None, Act.CUT,
        "A record that did not arrive whole and nothing behind it: its flush never ended, so it "
        "was not acknowledged."),
    Row("torn flight", True, False, True, False, Act.CUT,
        "Whole records follow, but none written after a flush that covered this one: they all "
        "belong to the writes under way when the power went, and none was acknowledged."),
    Row("damaged", True, False, True, True, Act.SKIP,
        "A later record was written after this stretch had been flushed: it was whole once and "
        "may have been acknowledged, and so may all behind it. Nothing is removed."),
)
# fmt: on


def decide(*, left: bool, zero: bool, valid: bool, flushed: bool) -> Row:
    """The one row that holds."""
    facts = (left, zero, valid, flushed)
    rows = [row for row in RECOVERY_TABLE if _holds(row, facts)]
    assert len(rows) == 1
    return rows[0]


def _holds(row: Row, facts: tuple[bool, bool, bool, bool]) -> bool:
    wanted = (row.left, row.zero, row.valid, row.flushed)
    return all(want is None or want == fact for want, fact in zip(wanted, facts, strict=True))


class Recovered(msgspec.Struct, frozen=True):
    """The active segment as it stands after recovery."""

    end: Mark
    index: SparseIndex
    producers: Producers
    rows: tuple[str, ...]  # labels of the table's rows that held, in the order of the file
    cut_bytes: int
    damaged: tuple[Damaged, ...]


def recover(
    files: Files, fd: int, segment: Segment, start: Mark, index: SparseIndex, producers: Producers
) -> Recovered:
    """Walk from `start` to the file's end, cut a torn tail and flush what is kept.

    `index` and `producers` are what is known at `start`; they are not changed. Raises OSError when
    the file cannot be read, cut or flushed.
    """
    stop = max(start.offset, segment.header.base_offset + files.size(fd) - SEGMENT_HEADER_BYTES)
    passed = replay(files, fd, segment, start, stop, index.copy(), producers.copy())
    rows, skipped, cut_at = judge(passed.stretches, stop, passed.flushed_offset)
    if cut_at < passed.end.offset:
        # A torn flight: whole records behind the cut must leave the index and the stamps too.
        passed = replay(files, fd, segment, start, cut_at, index.copy(), producers.copy())
    assert passed.end.offset <= cut_at
    if cut_at < stop:
        files.truncate(fd, segment.position(cut_at))
    if stop > start.offset:
        # After a kill the page cache holds what the disk may not: it is served from now on, so it
        # has to be as durable as everything else.
        files.fdatasync(fd)
    return Recovered(
        msgspec.structs.replace(passed.end, offset=cut_at),
        passed.index,
        passed.producers,
        tuple(rows),
        stop - cut_at,
        tuple(skipped),
    )


def judge(
    stretches: list[Damaged], stop: int, flushed_offset: int
) -> tuple[list[str], list[Damaged], int]:
    """Put each stretch before the table, up to the first cut: labels, what is skipped, the end."""
    rows: list[str] = []
    skipped: list[Damaged] = []
    for stretch in stretches:
        row = decide(
            left=True,
            zero=stretch.is_zero,
            valid=stretch.stop < stop,
            flushed=stretch.offset < flushed_offset,
        )
        rows.append(row.label)
        if row.act is Act.CUT:
            return rows, skipped, stretch.offset
        skipped.append(stretch)
    rows.append(decide(left=False, zero=False, valid=False, flushed=False).label)
    return rows, skipped, stop


class Passed(msgspec.Struct, frozen=True):
    """What a walk over a segment has seen."""

    end: Mark  # behind the last whole record
    index: SparseIndex
    producers: Producers
    stretches: list[Damaged]
    flushed_offset: int  # the furthest that any record calls flushed


def replay(
    files: Files,
    fd: int,
    segment: Segment,
    start: Mark,
    stop: int,
    index: SparseIndex,
    producers: Producers,
) -> Passed:
    """Take every whole record from `start` to `stop` into `index` and `producers`."""
    stretches: list[Damaged] = []
    flushed_offset = start.offset
    last: Found | None = None
    for item in walk(files, fd, segment, start.offset, stop):
        if isinstance(item, Damaged):
            stretches.append(item)
            continue
        last, header = item, item.header
        index.note(header.first_sequence, header.base_offset, header.enqueued_ms)
        flushed_offset = max(flushed_offset, header.flushed_offset)
        if header.producer is not None:
            producers.note(header.producer)
    end = start if last is None else _mark_behind(last)
    return Passed(end, index, producers, stretches, flushed_offset)


def _mark_behind(found: Found) -> Mark:
    header = found.header
    batch = stored(found.chunk, found.position, header)
    return Mark(
        header.next_offset,
        header.next_sequence,
        header.enqueued_ms,
        header.base_offset + last_event_position(batch.sections),
    )
