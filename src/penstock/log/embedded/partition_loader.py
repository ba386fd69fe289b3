"""Open a partition's directory: which files it has, how they fit together, where the log ends.

Closed segments are not read: each header says how the segment before it ended. Only the active
one is walked (recovery.py), from the mark in its index file on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from pathlib import Path

import msgspec

from penstock.log.embedded.files import Files, read_small
from penstock.log.embedded.index import INDEX_FILE_BYTES_MAX, LogMark, SparseIndex, decode_index
from penstock.log.embedded.record_scanner import DamagedRange
from penstock.log.embedded.recovery import RecoveryResult, recover_segment, replay_records
from penstock.log.embedded.segment import (
    INDEX_SUFFIX,
    PRODUCERS_SUFFIX,
    SEGMENT_HEADER_BYTES,
    Segment,
    SegmentHeader,
    decode_header,
    parse_segment_name,
    segment_name,
)
from penstock.log.producer_state import PRODUCERS_FILE_BYTES_MAX, ProducerStates, decode_producers
from penstock.model.errors import LogCorrupt

_logger = logging.getLogger(__name__)

_START = LogMark(offset=0, next_sequence=0, newest_ms=0, last_offset=-1)


class HeaderAction(Enum):
    USE = "use"
    REMOVE = "remove"
    SKIP = "skip"  # the file stays and is not used; the operator is told
    REFUSE = "refuse"


class HeaderRule(msgspec.Struct, frozen=True):
    """A row holds when each of its facts is as said; None means whatever it is."""

    label: str
    whole: bool | None  # one of the header's two copies is
    newest: bool | None  # no segment follows
    bare: bool | None  # the file holds nothing behind the header's place
    known: bool | None  # a segment lies before it, or it is the first of all (offset 0)
    covered: bool | None  # the segment before it holds whole records at or behind its base
    act: HeaderAction
    reason: str


# fmt: off
HEADER_TABLE = (
    HeaderRule("whole", True, None, None, None, False, HeaderAction.USE,
        "One good copy of the header is enough."),
    HeaderRule("leftover", None, None, True, None, True, HeaderAction.REMOVE,
        "The segment could not be created completely and the log went on in the one before it, "
        "whose records continue behind this base. This file never held a record."),
    HeaderRule("overlap", True, None, False, None, True, HeaderAction.USE,
        "An earlier version took a leftover for the end of the log and gave the numbers behind it "
        "again. Both files hold acknowledged events; those written last are served."),
    HeaderRule("unborn", False, True, True, True, False, HeaderAction.REMOVE,
        "The crash came while the file was being made: a record goes in only after the header was "
        "flushed. What came before says where the log goes on."),
    HeaderRule("lost numbers", False, True, True, False, False, HeaderAction.REFUSE,
        "The only file, and it can no longer tell which number comes next: going on would give "
        "old numbers to new events."),
    HeaderRule("emptied", False, False, True, None, False, HeaderAction.SKIP,
        "It holds nothing, and the next segment's header says where the log goes on. Events that "
        "it held before are lost; if none are missing, remove the file."),
    HeaderRule("damaged newest", False, True, False, None, None, HeaderAction.REFUSE,
        "Records follow that cannot be checked without the salt; they may have been acknowledged."),
    HeaderRule("damaged closed", False, False, False, None, None, HeaderAction.REFUSE,
        "The numbers of the segment before it end where only this header knows."),
)
# fmt: on


def decide_header(
    *, whole: bool, newest: bool, bare: bool, known: bool, covered: bool
) -> HeaderRule:
    """The one row that holds."""
    facts = (whole, newest, bare, known, covered)
    rows = [row for row in HEADER_TABLE if _holds(row, facts)]
    assert len(rows) == 1
    return rows[0]


def _holds(row: HeaderRule, facts: tuple[bool, ...]) -> bool:
    wanted = (row.whole, row.newest, row.bare, row.known, row.covered)
    return all(want is None or want == fact for want, fact in zip(wanted, facts, strict=True))


class LoadedPartition(msgspec.Struct, frozen=True):
    """A partition as its directory tells it. The last segment is the active one."""

    segments: tuple[Segment, ...]
    end: LogMark
    producers: ProducerStates
    salt: int
    damage: tuple[str, ...]  # what an operator should know of, in words
    rows: tuple[str, ...]  # labels of the recovery table's rows that held
    checkpointed: int  # the index file on disk speaks up to this offset; -1 if there is none


def load_partition(
    files: Files, directory: Path, partition: int, *, new_salt: Callable[[], int]
) -> LoadedPartition:
    """Raises LogCorrupt where going on would hide a loss, OSError where the disk fails, and
    DataDirectoryError for files of a newer version. A new partition has no file yet."""
    damage: list[str] = []
    found = _find_segments(files, directory, partition, damage)
    if not found:
        return LoadedPartition((), _START, ProducerStates(), new_salt(), (), (), -1)
    segments = [Segment(directory / segment_name(h.base_offset), h) for h, _ in found]
    for segment, (_, size), following in zip(segments, found, segments[1:], strict=False):
        segment.end = _end_of_closed(files, segment, size, following, damage)
    recovered, checkpointed = _open_active(files, segments, found[-1][1], damage)
    for text in damage:
        _logger.error("%s", text)
    return LoadedPartition(
        tuple(segments),
        recovered.end,
        recovered.producers,
        segments[-1].header.salt,
        tuple(damage),
        recovered.rows,
        checkpointed,
    )


def load_index(files: Files, segment: Segment) -> tuple[SparseIndex, LogMark] | None:
    """The segment's index file; None if it is missing or not whole."""
    content = read_small(files, segment.beside(INDEX_SUFFIX), INDEX_FILE_BYTES_MAX)
    return None if content is None else decode_index(content, segment.header.base_offset)


def _find_segments(
    files: Files, directory: Path, partition: int, damage: list[str]
) -> list[tuple[SegmentHeader, int]]:
    """The headers and file sizes, oldest first; what never came to be is removed."""
    names = files.listdir(directory)
    for name in names:
        if name.endswith(".new"):
            files.unlink(directory / name)  # a derived file that was not put in place
    bases = sorted(base for name in names if (base := parse_segment_name(name)) is not None)
    found: list[tuple[SegmentHeader, int]] = []
    for base in bases:
        path = directory / segment_name(base)
        header, size = _read_header(files, path)
        hidden = _hidden_records(files, directory, found[-1], base) if found else None
        row = decide_header(
            whole=header is not None,
            newest=base == bases[-1],
            bare=size <= SEGMENT_HEADER_BYTES,
            known=bool(found) or base == 0,
            covered=hidden is not None,
        )
        if row.act is HeaderAction.REFUSE:
            raise LogCorrupt(f"The segment {path} has no whole header ({row.label}). {row.reason}")
        if row.act is HeaderAction.REMOVE:
            _logger.warning("unfinished segment removed path=%s reason=%r", path, row.reason)
            _remove(files, path, names)
            continue
        if row.act is HeaderAction.SKIP:
            damage.append(f"The segment {path} is not used ({row.label}). {row.reason}")
            continue
        assert header is not None
        if header.base_offset != base or header.partition != partition:
            raise LogCorrupt(
                f"The segment {path} is that of partition {header.partition} at offset "
                f"{header.base_offset}: it was put in a place that is not its own."
            )
        if hidden is not None:
            damage.append(_overlap_text(directory / segment_name(found[-1][0].base_offset), hidden))
        found.append((header, size))
    return found


def _hidden_records(
    files: Files, directory: Path, previous: tuple[SegmentHeader, int], base: int
) -> LogMark | None:
    """The end of the whole records that the previous segment holds at or behind `base`; None if
    there is none. Reads nothing where the file ends at `base`, as every closed one does."""
    header, size = previous
    stop = header.base_offset + size - SEGMENT_HEADER_BYTES
    if stop <= base:
        return None
    segment = Segment(directory / segment_name(header.base_offset), header)
    start = LogMark(base, -1, -1, -1)
    fd = files.open(segment.path, write=False)
    try:
        passed = replay_records(files, fd, segment, start, stop, SparseIndex(), ProducerStates())
    finally:
        files.close(fd)
    return None if passed.end is start else passed.end


def _remove(files: Files, path: Path, names: list[str]) -> None:
    """A segment that holds nothing, and the derived files that may be beside it."""
    for suffix in (INDEX_SUFFIX, PRODUCERS_SUFFIX):
        derived = path.with_suffix(suffix)
        if derived.name in names:
            files.unlink(derived)
    files.unlink(path)


def _overlap_text(path: Path, hidden: LogMark) -> str:
    return (
        f"The segment {path} holds events up to number {hidden.next_sequence - 1} whose numbers "
        f"were given again in the next segment: those are served, the ones in {path.name} are "
        f"hidden. `penstock log dump` shows them."
    )


def _read_header(files: Files, path: Path) -> tuple[SegmentHeader | None, int]:
    fd = files.open(path, write=False)
    try:
        return decode_header(files.pread(fd, SEGMENT_HEADER_BYTES, 0), path), files.size(fd)
    finally:
        files.close(fd)


def _end_of_closed(
    files: Files, segment: Segment, size: int, following: Segment, damage: list[str]
) -> LogMark:
    """What the next header says, unless the file is too short to reach that far."""
    there = segment.header.base_offset + size - SEGMENT_HEADER_BYTES
    if there >= following.header.base_offset:
        return following.header.start
    damage.append(
        f"The log of {segment.path.parent} lacks the bytes from offset {there} to "
        f"{following.header.base_offset}: the file {segment_name(there)} is missing, or "
        f"{segment.path.name} was cut. Events up to number {following.header.first_sequence - 1} "
        f"are lost there; the others are served."
    )
    fd = files.open(segment.path, write=False)
    try:
        start = segment.header.start
        passed = replay_records(files, fd, segment, start, there, SparseIndex(), ProducerStates())
        return passed.end
    finally:
        files.close(fd)


def _open_active(
    files: Files, segments: list[Segment], size: int, damage: list[str]
) -> tuple[RecoveryResult, int]:
    """Recover the last segment, whose index stays in memory; up to where its file speaks."""
    active = segments[-1]
    producers, producers_through = _producers_at_active(files, segments)
    index, start = SparseIndex(), active.header.start
    checkpointed = -1
    there = active.header.base_offset + size - SEGMENT_HEADER_BYTES
    loaded = load_index(files, active)
    if loaded is not None and loaded[1].offset > there:
        damage.append(
            f"The segment {active.path} ends at offset {there}, but it was flushed up to "
            f"{loaded[1].offset} once: it was cut since. What is left is served."
        )
    elif loaded is not None and producers_through >= loaded[1].offset:
        index, start = loaded
        checkpointed = start.offset
    fd = files.open(active.path)
    try:
        recovered = recover_segment(files, fd, active, start, index, producers)
    finally:
        files.close(fd)
    if recovered.cut_bytes:
        _logger.warning(
            "recovery cut the log's end path=%s bytes=%d offset=%d row=%r: the last write there is "
            "not whole, and nothing shows that it was ever flushed",
            active.path, recovered.cut_bytes, recovered.end.offset, recovered.rows[-1],
        )  # fmt: skip
    damage += [_describe_damage(active, stretch) for stretch in recovered.damaged]
    active.index = recovered.index
    return recovered, checkpointed


def _describe_damage(segment: Segment, stretch: DamagedRange) -> str:
    return (
        f"The segment {segment.path} is damaged from offset {stretch.offset} to {stretch.stop}: "
        f"reading there fails, the rest is served."
    )


def _producers_at_active(files: Files, segments: list[Segment]) -> tuple[ProducerStates, int]:
    """The newest stamps known at the active segment's start or further on, and up to where.

    Without its file they are gathered from the nearest one before, and from all records since.
    """
    producers, through = ProducerStates(), 0
    replayed_from = 0
    for number in range(len(segments) - 1, -1, -1):
        path = segments[number].beside(PRODUCERS_SUFFIX)
        content = read_small(files, path, PRODUCERS_FILE_BYTES_MAX)
        loaded = None if content is None else decode_producers(content)
        if loaded is not None:
            producers, through = loaded
            replayed_from = number
            break
    active = segments[-1]
    for segment in segments[replayed_from:-1]:
        if segment.end is None or through >= segment.end.offset:
            continue
        start = segment.header.start
        if through > start.offset:
            start = msgspec.structs.replace(start, offset=through)
        fd = files.open(segment.path, write=False)
        try:
            replay_records(files, fd, segment, start, segment.end.offset, SparseIndex(), producers)
        finally:
            files.close(fd)
    return producers, max(through, active.header.base_offset)
