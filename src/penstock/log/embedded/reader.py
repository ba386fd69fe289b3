"""Reads committed batches from segments, on any thread, while the committer writes and retention
removes files.

Each call works on one `CommittedView`, which never changes. Events that are committed meanwhile are
for the next call.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from operator import attrgetter

import msgspec

from penstock.log.embedded.file_handles import FileHandleCache
from penstock.log.embedded.files import Files, replace_file
from penstock.log.embedded.index import IndexEntry, LogMark, SparseIndex
from penstock.log.embedded.partition_loader import load_index
from penstock.log.embedded.record import (
    RECORD_HEADER_BYTES,
    RecordHeader,
    decode_batch,
    decode_record_header,
    is_intact,
    record_bytes,
)
from penstock.log.embedded.record_scanner import DamagedRange, IntactRecord, scan_records
from penstock.log.embedded.recovery import replay_records
from penstock.log.embedded.segment import INDEX_SUFFIX, Segment, SegmentHeader
from penstock.log.position_resolver import event_at_offset, is_at_or_after
from penstock.log.producer_state import ProducerStates
from penstock.model import limits
from penstock.model.errors import LogCorrupt
from penstock.model.events import StoredBatch
from penstock.model.positions import Position, PositionKind

INDEXES_MAX = 256  # of closed segments in memory, about 24 KB each
_STOPS_MAX = 256  # positions where readers stopped, from which they continue without a search
CACHED_READ_BYTES = limits.READ_CHUNK_BYTES  # copied on the owner's thread: less than a millisecond
_first_sequence = attrgetter("header.first_sequence")
_base_offset = attrgetter("header.base_offset")
_SEARCH_BYTES = 128 * limits.KB  # read at once to find one record: two index intervals


class CommittedView(msgspec.Struct, frozen=True, gc=False):
    """The committed log at one moment. The last segment is the active one."""

    segments: tuple[Segment, ...]
    end_offset: int
    next_sequence: int
    newest_ms: int

    @property
    def begin_sequence(self) -> int:
        """Sequence number of the oldest retained event; -1 if there is none."""
        if not self.segments:
            return -1
        first = self.segments[0].header.first_sequence
        return first if first < self.next_sequence else -1

    @property
    def size_bytes(self) -> int:
        return self.end_offset - self.segments[0].header.base_offset if self.segments else 0

    def end_of(self, number: int) -> LogMark:
        """Committed end of a segment."""
        if number == len(self.segments) - 1:
            return LogMark(self.end_offset, self.next_sequence, self.newest_ms, -1)
        end = self.segments[number].end
        assert end is not None
        return end


class SegmentIndexes:
    """Indexes of closed segments, from their files; rebuilt if those are missing or damaged. Any
    thread."""

    def __init__(
        self, files: Files, handles: FileHandleCache, *, indexes_max: int = INDEXES_MAX
    ) -> None:
        self._files = files
        self._handles = handles
        self._indexes_max = indexes_max
        self._lock = threading.Lock()
        self._loaded: OrderedDict[Segment, SparseIndex] = OrderedDict()

    def __len__(self) -> int:
        return len(self._loaded)

    def get(self, segment: Segment, end: LogMark) -> SparseIndex:
        active = segment.index
        if active is not None:
            return active
        # If the segment was closed after the caller took its view, the file covers all of it.
        end = segment.end if segment.end is not None else end
        with self._lock:
            loaded = self._loaded.get(segment)
            if loaded is not None:
                self._loaded.move_to_end(segment)
                return loaded
        index = self._load(segment, end)
        with self._lock:
            self._loaded[segment] = index
            while len(self._loaded) > self._indexes_max:
                self._loaded.popitem(last=False)
        return index

    def forget(self, segment: Segment) -> None:
        with self._lock:
            self._loaded.pop(segment, None)

    def _load(self, segment: Segment, end: LogMark) -> SparseIndex:
        loaded_index = load_index(self._files, segment)
        if loaded_index is not None and loaded_index[1].offset == end.offset:
            return loaded_index[0]
        start = segment.header.start
        with self._handles.use(segment) as fd:
            scan = replay_records(
                self._files, fd, segment, start, end.offset, SparseIndex(), ProducerStates()
            )
        content = scan.index.encode(segment.header.base_offset, end)
        try:
            replace_file(self._files, segment.beside(INDEX_SUFFIX), content)
            self._remove_orphan(segment)
        except OSError:
            return scan.index  # a derived file: it is rebuilt next time
        return scan.index

    def _remove_orphan(self, segment: Segment) -> None:
        """Remove the index that was just written if retention has removed the segment meanwhile.
        Retention unlinks the index once more after the records, so one of the two removes it."""
        try:
            self._files.close(self._files.open(segment.path, write=False))
        except FileNotFoundError:
            self._files.unlink(segment.beside(INDEX_SUFFIX))


class PartitionReader:
    """Reads and searches views of one partition. Any thread, except `read_cached`. Raises OSError
    if the disk fails."""

    def __init__(
        self, files: Files, handles: FileHandleCache, indexes: SegmentIndexes, buffer: memoryview
    ) -> None:
        """`buffer` is scratch space of `read_cached`; all partitions of a store share it."""
        self._files = files
        self._handles = handles
        self._indexes = indexes
        self._buffer = buffer
        # By next sequence number. A hint only: a lost entry costs a search. Single dict operations
        # are atomic, so that no lock is needed.
        self._stops: dict[int, _ReadStop] = {}

    def read(self, view: CommittedView, sequence: int, *, bytes_max: int) -> list[StoredBatch]:
        """Batches from the one that holds `sequence`, up to `bytes_max` bytes and at least one. The
        view must retain `sequence`. Raises LogCorrupt if the first one is damaged or missing."""
        assert view.begin_sequence <= sequence < view.next_sequence
        result = _ReadResult(sequence, bytes_max)
        first = bisect_right(view.segments, sequence, key=_first_sequence) - 1
        for number in range(first, len(view.segments)):
            if not self._read_segment(view, number, result):
                break
        return result.batches

    def read_cached(
        self, view: CommittedView, sequence: int, *, bytes_max: int
    ) -> list[StoredBatch] | None:
        """The same for a reader that continues where it stopped, as far as the page cache holds the
        file. None means: call `read`, which may block and reports damage. Owner's thread."""
        stopped = self._stops.get(sequence)
        number = bisect_right(view.segments, sequence, key=_first_sequence) - 1
        if stopped is None or view.segments[number] is not stopped.segment:
            return None
        segment, offset, length = stopped.segment, stopped.offset, stopped.length
        # A multiple of the last record's length: a record that is cut off would be read twice.
        size = min(bytes_max, len(self._buffer))
        size = min(max(size - size % length, length), view.end_of(number).offset - offset)
        if size <= 0:
            return None  # the segment ends here and the next one is missing
        chunk = self._buffer[:size]
        try:
            size = self._handles.read_cached(segment, chunk, segment.position(offset))
        except OSError:
            return None
        batches = _decode_records(chunk[:size], sequence, offset, segment.header.salt)
        if not batches:
            return None
        self._stops.pop(sequence, None)
        last = batches[-1]
        length = record_bytes(last.sections)
        self._remember_stop(last.next_sequence, segment, last.base_offset + length, length)
        return batches

    def search(self, view: CommittedView, position: Position) -> int:
        """Sequence number of the first event at an offset or a time within the view."""
        if position.kind is PositionKind.OFFSET:
            return self._search_offset(view, position)
        return self._search_time(view, position)

    def _read_segment(self, view: CommittedView, number: int, result: _ReadResult) -> bool:
        """Read from one segment. Returns whether to continue with the next one."""
        segment, end = view.segments[number], view.end_of(number)
        if result.sequence < segment.header.first_sequence:
            return _stop_at_damage(
                result, f"files before {segment.path.name} are missing", segment.header
            )
        if result.sequence >= end.next_sequence:
            return True
        with self._handles.use(segment) as fd:
            entry = self._find_start_offset(segment, end, result.sequence)
            chunk_bytes = min(limits.READ_CHUNK_BYTES, result.bytes_max) + _SEARCH_BYTES
            for item in scan_records(
                self._files, fd, segment, entry, end.offset, chunk_bytes=chunk_bytes
            ):
                if isinstance(item, DamagedRange) or item.header.next_sequence <= result.sequence:
                    continue
                if item.header.first_sequence > result.sequence:
                    return _stop_at_damage(
                        result, f"{segment.path.name} is damaged there", item.header
                    )
                if not result.has_room(item.header.length):
                    length = RECORD_HEADER_BYTES + item.header.length
                    self._remember_stop(result.sequence, segment, item.header.base_offset, length)
                    return False
                result.add(decode_batch(item.chunk, item.position, item.header))
        if result.sequence < end.next_sequence:
            return _stop_at_damage(result, f"{segment.path.name} is damaged there", end)
        self._remember_stop(result.sequence, segment, end.offset, 1)
        return result.has_room(1)

    def _search_offset(self, view: CommittedView, position: Position) -> int:
        number = bisect_right(view.segments, position.value, key=_base_offset) - 1
        if number < 0:
            return view.begin_sequence
        segment, end = view.segments[number], view.end_of(number)
        entry = self._indexes.get(segment, end).before_offset(position.value)
        sequence = segment.header.first_sequence if entry is None else entry.sequence
        for item in self._scan(segment, entry, end):
            if isinstance(item, DamagedRange):
                if item.stop > position.value:
                    return sequence  # where the damage begins; reading there raises LogCorrupt
                continue
            if item.header.next_offset > position.value:
                return event_at_offset(
                    decode_batch(item.chunk, item.position, item.header), position
                )
            sequence = item.header.next_sequence
        return sequence

    def _search_time(self, view: CommittedView, position: Position) -> int:
        for number in range(len(view.segments)):
            end = view.end_of(number)
            if is_at_or_after(end.newest_ms, position):
                break
        else:
            return view.next_sequence
        segment = view.segments[number]
        entry = self._indexes.get(segment, end).before_time(position.value)
        sequence = segment.header.first_sequence if entry is None else entry.sequence
        is_damaged = False
        for item in self._scan(segment, entry, end):
            if isinstance(item, DamagedRange):
                is_damaged = True
                continue
            if is_at_or_after(item.header.enqueued_ms, position):
                # A lost event just before may match too: reading there raises LogCorrupt.
                return sequence if is_damaged else item.header.first_sequence
            sequence, is_damaged = item.header.next_sequence, False
        return sequence

    def _scan(
        self, segment: Segment, entry: IndexEntry | None, end: LogMark
    ) -> Iterator[IntactRecord | DamagedRange]:
        start = segment.header.base_offset if entry is None else entry.offset
        with self._handles.use(segment) as fd:
            yield from scan_records(
                self._files, fd, segment, start, end.offset, chunk_bytes=_SEARCH_BYTES
            )

    def _find_start_offset(self, segment: Segment, end: LogMark, sequence: int) -> int:
        """Offset to start from: where a reader stopped before, or the nearest index entry."""
        stopped = self._stops.pop(sequence, None)
        if stopped is not None and stopped.segment is segment:
            return stopped.offset
        entry = self._indexes.get(segment, end).before_sequence(sequence)
        return segment.header.base_offset if entry is None else entry.offset

    def _remember_stop(self, sequence: int, segment: Segment, offset: int, length: int) -> None:
        if len(self._stops) >= _STOPS_MAX:
            self._stops.clear()  # most readers are gone; the others search once
        self._stops[sequence] = _ReadStop(segment, offset, length)


class _ReadStop(msgspec.Struct, frozen=True, gc=False):
    """Position at which a read ended."""

    segment: Segment
    offset: int
    length: int  # of the record there, or of the last one: an estimate of the next length


class _ReadResult:
    """Batches that a read has collected, and the next sequence number."""

    __slots__ = ("_size", "batches", "bytes_max", "sequence")

    def __init__(self, sequence: int, bytes_max: int) -> None:
        self.sequence = sequence
        self.bytes_max = bytes_max
        self.batches: list[StoredBatch] = []
        self._size = 0

    def has_room(self, length: int) -> bool:
        return not self.batches or self._size + length <= self.bytes_max

    def add(self, batch: StoredBatch) -> None:
        self.batches.append(batch)
        self._size += len(batch.sections)
        self.sequence = batch.first_sequence + batch.count


def _decode_records(chunk: memoryview, sequence: int, offset: int, salt: int) -> list[StoredBatch]:
    """Intact records from the start of `chunk`, whose offset is `offset`."""
    batches: list[StoredBatch] = []
    position = 0
    while True:
        header = decode_record_header(chunk, position, base_offset=offset + position)
        if header is None or not is_intact(chunk, position, header, salt):
            return batches
        if not batches and not header.first_sequence <= sequence < header.next_sequence:
            return batches
        batches.append(decode_batch(chunk, position, header))
        position += RECORD_HEADER_BYTES + header.length


def _stop_at_damage(
    result: _ReadResult, reason: str, following: RecordHeader | SegmentHeader | LogMark
) -> bool:
    """The next event cannot be read: return False, or raise LogCorrupt if nothing was read yet."""
    if result.batches:
        return False
    after = following.next_sequence if isinstance(following, LogMark) else following.first_sequence
    raise LogCorrupt(
        f"The events {result.sequence} to {after - 1} cannot be read: {reason}. "
        f"Reading can continue from sequence number {after}."
    )
