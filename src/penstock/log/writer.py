"""The writing half of a partition; only the committer's thread (or a flush helper) is in here.

A round is begin -> flush -> finish: write what came, flush the file, tell what became of it.

| what fails | what becomes of the round | afterwards |
|---|---|---|
| no room (ENOSPC, EDQUOT) | DiskFull; the file is cut back to its committed end | tries again |
| no descriptor, no memory | LogFailed; likewise | tries again |
| anything else, or the cutting | LogFailed; cut back if possible | stopped until restart |

A flush is never repeated: after a failed one the kernel may have dropped the pages and forgotten
that it did. The file is cut back so that a restart cannot read from memory what the disk lacks.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.log.api import AppendDone
from penstock.log.files import Files, replace_file, write_all
from penstock.log.handles import Handle, Handles
from penstock.log.index import Mark, SparseIndex
from penstock.log.opening import Opened
from penstock.log.producers import Producers
from penstock.log.record import RECORD_HEADER_BYTES, last_event_position
from penstock.log.segment import (
    INDEX_SUFFIX,
    PRODUCERS_SUFFIX,
    Segment,
    SegmentHeader,
    segment_name,
)
from penstock.model import limits
from penstock.model.errors import DiskFull, LogFailed, OperationCancelled, PenstockError
from penstock.model.events import Producer, StoredBatch

_logger = logging.getLogger(__name__)

CHECKPOINT_BYTES = 8 * limits.MB  # of log between two marks: what recovery has to walk,
CHECKPOINT_RECORDS = 16_000  # or so many records, whichever comes first: well below 0.1 s
_RESERVE_BYTES_MIN = 1 * limits.MB  # so that a partition with few events takes little room
_RESERVE_BYTES_MAX = 16 * limits.MB
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_NO_MEANS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


class Pending(msgspec.Struct, frozen=True, gc=False):
    """An append between the owner's thread and the disk."""

    generation: int  # how often the partition had failed when the batch was numbered
    header: bytes
    batch: StoredBatch
    producer: Producer | None
    done: AppendDone

    @property
    def size(self) -> int:
        return RECORD_HEADER_BYTES + len(self.batch.sections)


class Outcome(msgspec.Struct):
    """What became of a round in one partition, in the order of appending."""

    refused: list[Pending]  # not tried: numbered before a failure, or the partition is no more
    refusal: PenstockError | None
    committed: list[Pending]
    failed: list[Pending]
    error: LogFailed | None = None  # why they failed
    is_final: bool = False  # nothing more is taken
    producers: Producers | None = None  # the stamps as committed, where something failed
    opened: list[Segment] = []  # segments begun in this round


class PartitionWriter:
    """Appends to the active segment, rolls it, and stops for good when the disk fails."""

    def __init__(
        self,
        files: Files,
        handles: Handles,
        directory: Path,
        partition: int,
        opened: Opened,
        *,
        is_durable: bool,
        segment_bytes: int,
    ) -> None:
        self._files = files
        self._handles = handles
        self._directory = directory
        self._partition = partition
        self._is_durable = is_durable
        self._segment_bytes = segment_bytes
        self._salt = opened.salt
        self._segment = opened.segments[-1] if opened.segments else None
        self._end = opened.end.offset  # committed up to here
        self._next_sequence = opened.end.next_sequence
        self._newest_ms = opened.end.newest_ms
        self._newest_at = -1  # base offset of the newest record, if its last event's is not known
        self._last_offset = opened.end.last_offset
        self._producers = opened.producers
        self._reserved_to = 0  # position in the file
        self._checkpointed = opened.checkpointed
        self._mark_at = 0  # the next mark is due at this offset,
        self._unmarked = 0  # or after so many records
        self._put_off_mark()
        self._generation = 0
        self._refusal: PenstockError | None = None  # for what was numbered before the last failure
        self._is_stopped = False
        # One round's own:
        self._handle: Handle | None = None
        self._live: list[Pending] = []
        self._unflushed: list[Pending] = []
        self._outcome = Outcome([], None, [], [])
        self._error: Exception | None = None

    # --- a round ---------------------------------------------------------------------------------

    def begin(self, pending: list[Pending]) -> None:
        """Write all of it, flushing only where a segment ends."""
        live = [] if self._is_stopped else [p for p in pending if p.generation == self._generation]
        refused = pending[: len(pending) - len(live)]  # older generations always come first
        assert all(item.generation <= self._generation for item in refused)
        self._outcome = Outcome(refused, self._refusal, [], [], opened=[])
        self._error = None
        self._live = live
        if live:
            self._guard(self._write_runs)

    @property
    def needs_flush(self) -> bool:
        return self._is_durable and bool(self._unflushed) and self._error is None

    def flush(self) -> None:
        """Once per round and never again; several partitions may be in here at once."""
        assert self.needs_flush
        self._guard(self._flush)

    def finish(self) -> Outcome:
        """What became of it; from here on `committed` is committed."""
        outcome = self._outcome
        if self._error is None:
            self._commit()
        else:
            self._fail(self._error)
        self._release()
        self._live, self._unflushed = [], []
        return outcome

    def cancel(self) -> None:
        """The hub was deleted; whatever still comes is refused. Any thread."""
        self._refusal = OperationCancelled("The event hub was deleted.")
        self._is_stopped = True

    # --- between rounds --------------------------------------------------------------------------

    def tidy(self) -> None:
        """Write a mark every so often, for recovery to start from."""
        is_due = self._end >= self._mark_at or self._unmarked >= CHECKPOINT_RECORDS
        if self._is_durable and is_due:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Tell recovery that everything up to here is flushed. A failure costs nothing."""
        segment = self._segment
        if segment is None or self._end == self._checkpointed or self._is_stopped:
            return
        assert segment.index is not None
        try:
            mark = self._mark()
            stamps = self._producers.encode(mark.offset)
            replace_file(self._files, segment.beside(PRODUCERS_SUFFIX), stamps)
            content = segment.index.encode(segment.header.base_offset, mark)
            replace_file(self._files, segment.beside(INDEX_SUFFIX), content)
            self._checkpointed = mark.offset
        except OSError as error:
            _logger.warning("The index of %s could not be written: %s", segment.path, error)
        finally:
            self._put_off_mark()
            self._release()

    def roll(self, expected: Segment) -> list[Segment]:
        """Begin a new segment so that retention can drop the one it saw; the segments begun."""
        if self._is_stopped or self._segment is not expected:
            return []
        if self._end == expected.header.base_offset:
            return []
        self._outcome = Outcome([], None, [], [], opened=[])
        try:
            self._roll()
        except OSError as error:
            _logger.warning("The segment %s could not be closed yet: %s", expected.path, error)
        finally:
            self._release()
        return self._outcome.opened

    def close(self) -> None:
        """Leave a mark at the very end, so that the next start has nothing to walk."""
        segment = self._segment
        if segment is None or self._end == self._checkpointed or self._is_stopped:
            return
        try:
            if not self._is_durable:
                self._files.fdatasync(self._fd())
            self._trim()
        except OSError as error:
            _logger.warning("The segment %s could not be closed well: %s", segment.path, error)
            return
        finally:
            self._release()
        self.checkpoint()

    # --- writing ---------------------------------------------------------------------------------

    def _write_runs(self) -> None:
        """A run is what goes into one segment: one write."""
        run: list[Pending] = []
        size = 0
        for item in self._live:
            if self._is_full(size, item.size):
                self._write(run, size)
                if self.needs_flush:
                    self._flush()
                self._commit()
                self._roll()
                run, size = [], 0
            run.append(item)
            size += item.size
        self._write(run, size)

    def _is_full(self, run_size: int, size: int) -> bool:
        """Whether a record of `size` behind the run belongs into the next segment."""
        segment = self._segment
        if segment is None:
            return True
        end = self._end + run_size
        is_empty = end == segment.header.base_offset  # then it takes a record of any size
        return not is_empty and segment.position(end) + size > self._segment_bytes

    def _write(self, run: list[Pending], size: int) -> None:
        if not run:
            return
        assert self._segment is not None
        assert run[0].batch.base_offset == self._end
        self._unflushed = run
        position = self._segment.position(self._end)
        fd = self._fd()
        self._reserve(fd, position, position + size)
        buffers: list[bytes] = []
        for item in run:
            buffers.append(item.header)
            buffers.append(item.batch.sections)
        write_all(self._files, fd, buffers, position)

    def _flush(self) -> None:
        self._files.fdatasync(self._fd())

    def _commit(self) -> None:
        """The run is as durable as it will be: let readers and recovery find it."""
        run = self._unflushed
        if not run:
            return
        assert self._segment is not None
        assert self._segment.index is not None
        note = self._segment.index.note
        for item in run:
            batch = item.batch
            note(batch.first_sequence, batch.base_offset, batch.enqueued_ms)
            if item.producer is not None:
                self._producers.note(item.producer)
        newest = run[-1]
        self._unmarked += len(run)
        self._end = newest.batch.base_offset + newest.size
        self._next_sequence = newest.batch.next_sequence
        self._newest_ms = newest.batch.enqueued_ms
        self._newest_at = newest.batch.base_offset
        self._outcome.committed += run
        self._unflushed = []

    def _fail(self, error: Exception) -> None:
        outcome = self._outcome
        code = error.errno if isinstance(error, OSError) else None
        is_cut = self._cut_back()
        is_final = not is_cut or code not in _NO_ROOM | _NO_MEANS
        where = f"partition {self._partition} in {self._directory}"
        if code in _NO_ROOM and not is_final:
            outcome.error = DiskFull(
                f"The disk is full: {where} takes events again when there is room."
            )
        elif not is_final:
            outcome.error = LogFailed(f"The log of {where} could not be written: {error}.")
        else:
            outcome.error = LogFailed(
                f"The log of {where} stopped after a failed write ({error}): what was "
                f"acknowledged is kept and served, nothing more is taken until a restart."
            )
        outcome.failed = self._live[len(outcome.committed) :]
        outcome.is_final = is_final
        outcome.producers = self._producers.copy()
        _logger.error("%s", outcome.error)
        self._generation += 1
        if not (self._is_stopped and self._refusal is not None):  # not after cancel()
            self._refusal = outcome.error
            self._is_stopped = is_final

    def _cut_back(self) -> bool:
        """Take the failed round's bytes out of the file again; whether that worked."""
        self._reserved_to = 0
        if self._segment is None or self._handle is None:
            return True  # nothing was written
        try:
            self._files.truncate(self._handle.fd, self._segment.position(self._end))
        except OSError:
            return False
        return True

    def _guard(self, step: Callable[[], None]) -> None:
        """A failure ends this partition's round, never the committer's thread."""
        try:
            step()
        except OSError as error:
            self._error = error
        except Exception as error:
            _logger.exception("The committer met a fault of its own.")
            self._error = error

    # --- segments --------------------------------------------------------------------------------

    def _roll(self) -> None:
        """Begin the next segment; the old one is closed once the new one is safely there."""
        closing = self._segment
        if closing is not None and not self._is_durable:
            self._flush()  # recovery does not look into closed segments, so they must be whole
        mark = self._mark()
        header = SegmentHeader(
            mark.offset,
            mark.next_sequence,
            mark.last_offset,
            mark.newest_ms,
            self._salt,
            self._partition,
        )
        path = self._directory / segment_name(mark.offset)
        begun = Segment(path, header, index=SparseIndex())
        if closing is not None:
            self._leave_stamps(begun, mark)
        self._create(begun, is_first=closing is None)
        if closing is not None:
            self._finish_segment(closing, mark)
        self._release()
        self._segment = begun
        self._reserved_to = 0
        self._checkpointed = max(self._checkpointed, mark.offset)
        self._put_off_mark()
        self._outcome.opened.append(begun)

    def _create(self, segment: Segment, *, is_first: bool) -> None:
        files = self._files
        if is_first:
            files.mkdir(self._directory)
        fd = files.open(segment.path, create=True)
        try:
            # A file of that name can only be what an earlier attempt left: nothing was ever
            # acknowledged at or behind this offset.
            files.truncate(fd, 0)
            write_all(files, fd, [segment.header.encode()], 0)
            files.fdatasync(fd)
        finally:
            files.close(fd)
        files.fsync_directory(self._directory)
        if is_first:
            files.fsync_directory(self._directory.parent)
            files.fsync_directory(self._directory.parent.parent)

    def _leave_stamps(self, begun: Segment, mark: Mark) -> None:
        """Flushed, and its name with the new segment's: the records that it sums up may be dropped
        long before their producers are done. Without it the rest is searched for them."""
        try:
            stamps = self._producers.encode(mark.offset)
            replace_file(self._files, begun.beside(PRODUCERS_SUFFIX), stamps, flush=True)
        except OSError as error:
            _logger.warning("No producers' stamps were left beside %s: %s", begun.path, error)

    def _finish_segment(self, closing: Segment, mark: Mark) -> None:
        """A derived file and the return of reserved room: worth trying, never worth failing."""
        assert closing.index is not None
        closing.end = mark
        try:
            content = closing.index.encode(closing.header.base_offset, mark)
            replace_file(self._files, closing.beside(INDEX_SUFFIX), content)
            closing.index = None  # from the file, when somebody wants it
            self._trim()
        except OSError as error:
            _logger.warning("The index of %s could not be written: %s", closing.path, error)

    def _put_off_mark(self) -> None:
        """After one was left, or could not be: a full disk is not asked again in every round."""
        self._mark_at = self._end + CHECKPOINT_BYTES
        self._unmarked = 0

    def _reserve(self, fd: int, position: int, upto: int) -> None:
        """Ask for blocks ahead of the data, so that a flush has fewer of them to find."""
        if upto <= self._reserved_to:
            return
        step = min(max(upto, _RESERVE_BYTES_MIN), _RESERVE_BYTES_MAX)
        target = max(upto, min(upto + step, self._segment_bytes))
        try:
            self._files.allocate(fd, position, target - position)
        except OSError as error:
            _logger.debug("No room reserved for %s: %s", self._directory, error)
        self._reserved_to = target  # asked once, whatever came of it: the write itself will tell

    def _trim(self) -> None:
        assert self._segment is not None
        self._files.truncate(self._fd(), self._segment.position(self._end))

    def _mark(self) -> Mark:
        """The log's end; the newest event's offset is read back, as it is seldom wanted."""
        if self._newest_at >= 0:
            assert self._segment is not None
            position = self._segment.position(self._newest_at)
            record = self._files.pread(self._fd(), self._end - self._newest_at, position)
            self._last_offset = self._newest_at + last_event_position(record[RECORD_HEADER_BYTES:])
            self._newest_at = -1
        return Mark(self._end, self._next_sequence, self._newest_ms, self._last_offset)

    def _fd(self) -> int:
        if self._handle is None:
            assert self._segment is not None
            self._handle = self._handles.acquire(self._segment)
        return self._handle.fd

    def _release(self) -> None:
        if self._handle is not None:
            self._handles.release(self._handle)
            self._handle = None
