"""Loads a partition's directory: which files it has, how they fit together, where the log ends.

Closed segments are not read: each header says how the segment before it ended. Only the active
segment is scanned (recovery.py), from the log mark in its index file on. What happens to a segment
file depends on its header and its neighbors and is decided by `HEADER_TABLE`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from pathlib import Path

import msgspec

from penstock.log.embedded.files import Files, open_file, read_small_file, unlink_if_exists
from penstock.log.embedded.index import INDEX_FILE_BYTES_MAX, LogMark, SparseIndex, decode_index
from penstock.log.embedded.recovery import (
    RecoveryResult,
    ScanResult,
    find_rule,
    recover_segment,
    replay_records,
)
from penstock.log.embedded.segment import (
    INDEX_SUFFIX,
    PRODUCERS_SUFFIX,
    SEGMENT_HEADER_BYTES,
    SEGMENT_SUFFIX,
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
    SKIP = "skip"  # the file stays and is not used; reported as damage
    REFUSE = "refuse"  # the partition is not opened


class HeaderRule(msgspec.Struct, frozen=True):
    """Applies if each fact has the given value; None matches both values."""

    label: str
    has_header: bool | None  # one of its two copies is intact
    is_newest: bool | None  # no later segment exists
    is_empty: bool | None  # the file holds nothing after the header
    has_start: bool | None  # an earlier segment exists, or its base offset is 0
    is_covered: bool | None  # the segment before it holds intact records from its base on
    action: HeaderAction
    reason: str


# fmt: off
HEADER_TABLE = (
    HeaderRule("whole", True, None, None, None, False, HeaderAction.USE,
        "One intact copy of the header is enough."),
    HeaderRule("leftover", None, None, True, None, True, HeaderAction.REMOVE,
        "The segment was not created completely and the log continued in the segment before it, "
        "whose records continue after this base. This file never held a record."),
    HeaderRule("overlap", True, None, False, None, True, HeaderAction.USE,
        "An earlier version took a leftover for the end of the log and gave the numbers after it "
        "again. Both files hold acknowledged events; those written last are served."),
    HeaderRule("unborn", False, True, True, True, False, HeaderAction.REMOVE,
        "The crash happened while the file was created: a record is written only after the header "
        "was flushed. The segment before it says where the log continues."),
    HeaderRule("lost numbers", False, True, True, False, False, HeaderAction.REFUSE,
        "It is the only file, and the next sequence number cannot be read from it: appending would "
        "give old numbers to new events."),
    HeaderRule("emptied", False, False, True, None, False, HeaderAction.SKIP,
        "It holds nothing, and the next segment's header says where the log continues. Events that "
        "it held before are lost; if none are missing, remove the file."),
    HeaderRule("damaged newest", False, True, False, None, None, HeaderAction.REFUSE,
        "Its records cannot be checked without the salt; they may have been acknowledged."),
    HeaderRule("damaged closed", False, False, False, None, None, HeaderAction.REFUSE,
        "Only this header says where the numbers of the segment before it end."),
)
# fmt: on


class LoadedPartition(msgspec.Struct, frozen=True):
    """A partition as found on disk. The last segment is the active one."""

    segments: tuple[Segment, ...]
    end: LogMark
    producers: ProducerStates
    salt: int
    damage: tuple[str, ...]  # texts for the operator
    rows: tuple[str, ...]  # labels of the recovery rules that applied
    marked_offset: int  # of the log mark in the index file; -1 if there is none


def load_partition(
    files: Files, directory: Path, partition: int, *, new_salt: Callable[[], int]
) -> LoadedPartition:
    """Load and recover a partition; a new one has no files yet. Raises LogCorrupt if opening would
    hide a loss, OSError if the disk fails, DataDirectoryError for files of a newer version."""
    damage: list[str] = []
    entries = _find_segments(files, directory, partition, damage)
    if not entries:
        return LoadedPartition((), _START, ProducerStates(), new_salt(), (), (), -1)
    segments = [Segment(directory / segment_name(h.base_offset), h) for h, _ in entries]
    for segment, (_, size), following in zip(segments, entries, segments[1:], strict=False):
        segment.end = _find_closed_end(files, segment, size, following, damage)
    recovered, marked_offset = _recover_active(files, segments, entries[-1][1], damage)
    for text in damage:
        _logger.error("partition damaged path=%s detail=%r", directory, text)
    return LoadedPartition(
        tuple(segments),
        recovered.end,
        recovered.producers,
        segments[-1].header.salt,
        tuple(damage),
        recovered.rows,
        marked_offset,
    )


def load_index(files: Files, segment: Segment) -> tuple[SparseIndex, LogMark] | None:
    """The index and log mark in the segment's index file; None if it is missing or damaged."""
    content = read_small_file(files, segment.beside(INDEX_SUFFIX), INDEX_FILE_BYTES_MAX)
    return None if content is None else decode_index(content, segment.header.base_offset)


def _find_segments(
    files: Files, directory: Path, partition: int, damage: list[str]
) -> list[tuple[SegmentHeader, int]]:
    """Headers and file sizes of the usable segments, oldest first. Removes leftovers and temporary
    files, and adds damage to `damage`."""
    names = files.listdir(directory)
    for name in names:
        if name.endswith(".new"):
            files.unlink(directory / name)  # a derived file that was not renamed into place
    bases = sorted(base for name in names if (base := parse_segment_name(name)) is not None)
    entries: list[tuple[SegmentHeader, int]] = []
    for base in bases:
        path = directory / segment_name(base)
        header, size = _read_header(files, path)
        hidden = _find_hidden_end(files, directory, entries[-1], base) if entries else None
        row = find_rule(
            HEADER_TABLE,
            has_header=header is not None,
            is_newest=base == bases[-1],
            is_empty=size <= SEGMENT_HEADER_BYTES,
            has_start=bool(entries) or base == 0,
            is_covered=hidden is not None,
        )
        if row.action is HeaderAction.REFUSE:
            raise LogCorrupt(f"The segment {path} has no intact header ({row.label}). {row.reason}")
        if row.action is HeaderAction.REMOVE:
            _logger.warning("unfinished segment removed path=%s reason=%r", path, row.reason)
            for suffix in (INDEX_SUFFIX, PRODUCERS_SUFFIX, SEGMENT_SUFFIX):
                unlink_if_exists(files, path.with_suffix(suffix))
            continue
        if row.action is HeaderAction.SKIP:
            damage.append(f"The segment {path} is not used ({row.label}). {row.reason}")
            continue
        assert header is not None
        if header.base_offset != base or header.partition != partition:
            raise LogCorrupt(
                f"The segment {path} belongs to partition {header.partition} at offset "
                f"{header.base_offset}: it was moved or renamed."
            )
        if hidden is not None:
            previous = directory / segment_name(entries[-1][0].base_offset)
            damage.append(
                f"The segment {previous} holds events up to number {hidden.next_sequence - 1} "
                f"whose numbers were given again in the next segment: those are served, the ones "
                f"in {previous.name} are hidden. `penstock log dump` shows them."
            )
        entries.append((header, size))
    return entries


def _find_hidden_end(
    files: Files, directory: Path, previous: tuple[SegmentHeader, int], base: int
) -> LogMark | None:
    """The end of the intact records that the previous segment holds from `base` on; None if there
    are none. Reads nothing if the file ends at `base`, as a closed one normally does."""
    header, size = previous
    stop = header.base_offset + size - SEGMENT_HEADER_BYTES
    if stop <= base:
        return None
    segment = Segment(directory / segment_name(header.base_offset), header)
    start = LogMark(base, -1, -1, -1)
    end = _replay_file(files, segment, start, stop, ProducerStates()).end
    return None if end is start else end


def _read_header(files: Files, path: Path) -> tuple[SegmentHeader | None, int]:
    with open_file(files, path, write=False) as fd:
        return decode_header(files.pread(fd, SEGMENT_HEADER_BYTES, 0), path), files.size(fd)


def _find_closed_end(
    files: Files, segment: Segment, size: int, following: Segment, damage: list[str]
) -> LogMark:
    """End of a closed segment: what the next header says, unless the file is shorter than that."""
    file_end = segment.header.base_offset + size - SEGMENT_HEADER_BYTES
    if file_end >= following.header.base_offset:
        return following.header.start
    damage.append(
        f"The log of {segment.path.parent} lacks the bytes from offset {file_end} to "
        f"{following.header.base_offset}: the file {segment_name(file_end)} is missing, or "
        f"{segment.path.name} was truncated. Events up to number "
        f"{following.header.first_sequence - 1} are lost there; the others are served."
    )
    return _replay_file(files, segment, segment.header.start, file_end, ProducerStates()).end


def _replay_file(
    files: Files, segment: Segment, start: LogMark, stop: int, producers: ProducerStates
) -> ScanResult:
    with open_file(files, segment.path, write=False) as fd:
        return replay_records(files, fd, segment, start, stop, SparseIndex(), producers)


def _recover_active(
    files: Files, segments: list[Segment], size: int, damage: list[str]
) -> tuple[RecoveryResult, int]:
    """Recover the last segment; its index stays in memory. Returns the result and the offset of the
    log mark that was used, -1 without one."""
    active = segments[-1]
    producers, producers_through = _load_producers(files, segments)
    index, start = SparseIndex(), active.header.start
    marked_offset = -1
    file_end = active.header.base_offset + size - SEGMENT_HEADER_BYTES
    loaded = load_index(files, active)
    if loaded is not None and loaded[1].offset > file_end:
        damage.append(
            f"The segment {active.path} ends at offset {file_end}, but it was flushed up to "
            f"{loaded[1].offset} before: it was truncated since. What is left is served."
        )
    elif loaded is not None and producers_through >= loaded[1].offset:
        index, start = loaded
        marked_offset = start.offset
    with open_file(files, active.path) as fd:
        recovered = recover_segment(files, fd, active, start, index, producers)
    if recovered.cut_bytes:
        _logger.warning(
            "recovery truncated the log path=%s bytes=%d offset=%d rule=%r reason=%r",
            active.path, recovered.cut_bytes, recovered.end.offset, recovered.rows[-1],
            "the last write is incomplete, and no later record shows that it was flushed",
        )  # fmt: skip
    damage += [
        f"The segment {active.path} is damaged from offset {damaged.offset} to {damaged.stop}: "
        f"reading there fails, the other events are served."
        for damaged in recovered.damaged
    ]
    active.index = recovered.index
    return recovered, marked_offset


def _load_producers(files: Files, segments: list[Segment]) -> tuple[ProducerStates, int]:
    """Producer stamps at the active segment's start or later, and the offset that they cover.

    They come from the newest intact producers file and all records of closed segments after it.
    """
    producers, through = ProducerStates(), 0
    replayed_from = 0
    for number in range(len(segments) - 1, -1, -1):
        path = segments[number].beside(PRODUCERS_SUFFIX)
        content = read_small_file(files, path, PRODUCERS_FILE_BYTES_MAX)
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
        _replay_file(files, segment, start, segment.end.offset, producers)
    return producers, max(through, active.header.base_offset)
