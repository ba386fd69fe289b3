"""The writing half of a partition; only the committer's thread (or a flush helper) is in here.

A round is begin -> flush -> finish: write what came, flush the file, tell what became of it.

| what fails | what becomes of the round | afterwards |
|---|---|---|
| no room (ENOSPC, EDQUOT) | DiskFull; the file is cut back to its committed end | tries again |
| no descriptor, no memory | LogFailed; likewise | tries again |
| anything else, or the cutting | LogFailed; cut back if possible | stopped until restart |
| a new segment, as above; its file | removed again | a file that stays: stopped until restart |

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
from penstock.log.embedded.file_handles import FileHandle, FileHandleCache
from penstock.log.embedded.files import Files, replace_file, write_all
from penstock.log.embedded.index import LogMark, SparseIndex
from penstock.log.embedded.partition_loader import LoadedPartition
from penstock.log.embedded.record import RECORD_HEADER_BYTES
from penstock.log.embedded.segment import (
    INDEX_SUFFIX,
    PRODUCERS_SUFFIX,
    SEGMENT_SUFFIX,
    Segment,
    SegmentHeader,
    segment_name,
)
from penstock.log.producer_state import ProducerStates
from penstock.model import limits
from penstock.model.errors import DiskFull, LogFailed, OperationCancelled, PenstockError
from penstock.model.events import ProducerStamp, StoredBatch
from penstock.model.sections import last_section_position

_logger = logging.getLogger(__name__)

CHECKPOINT_BYTES = 8 * limits.MB  # of log between two marks: what recovery has to walk,
CHECKPOINT_RECORDS = 16_000  # or so many records, whichever comes first: well below 0.1 s
_RESERVE_FROM_BYTES = 1 * limits.MB  # below, a segment takes only the blocks of its records
_RESERVE_BYTES_MAX = 16 * limits.MB
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_NO_MEANS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


class PendingAppend(msgspec.Struct, frozen=True, gc=False):
    """An append between the owner's thread and the disk."""

    generation: int  # how often the partition had failed when the batch was numbered
    header: bytes
    batch: StoredBatch
    producer: ProducerStamp | None
    done: AppendDone

    @property
    def size(self) -> int:
        return RECORD_HEADER_BYTES + len(self.batch.sections)


class SegmentLeftBehind(Exception):
    """A segment could not be created and its file could not be removed. Recovery would take it for
    the log's end, so nothing may be written to the segment before it."""


class WriteOutcome(msgspec.Struct):
    """What became of a round in one partition, in the order of appending."""

    refused: list[
        PendingAppend
    ]  # not tried: numbered before a failure, or the partition is no more
    refusal: PenstockError | None
    committed: list[PendingAppend]
    failed: list[PendingAppend]
    error: LogFailed | None = None  # why they failed
    is_final: bool = False  # nothing more is taken
    producers: ProducerStates | None = None  # the stamps as committed, where something failed
    opened: list[Segment] = []  # segments begun in this round


class PartitionWriter:
    """Appends to the active segment, rolls it, and stops for good when the disk fails."""

    def __init__(
        self,
        files: Files,
        handles: FileHandleCache,
        directory: Path,
        partition: int,
        opened: LoadedPartition,
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
        self._was_cut_back = False  # the file was truncated since its last flush
        self._checkpointed = opened.checkpointed
        self._mark_at = 0  # the next mark is due at this offset,
        self._unmarked = 0  # or after so many records
        self._put_off_mark()
        self._generation = 0
        self._refusal: PenstockError | None = None  # for what was numbered before the last failure
        self._is_stopped = False
        # One round's own:
        self._handle: FileHandle | None = None
        self._live: list[PendingAppend] = []
        self._unflushed: list[PendingAppend] = []
        self._outcome = _no_outcome()
        self._error: Exception | None = None

    # --- a round ---------------------------------------------------------------------------------

    def begin(self, pending: list[PendingAppend]) -> None:
        """Write all of it, flushing only where a segment ends."""
        live = [] if self._is_stopped else [p for p in pending if p.generation == self._generation]
        # Older generations always come first.
        self._outcome = WriteOutcome(
            pending[: len(pending) - len(live)], self._refusal, [], [], opened=[]
        )
        self._error = None
        self._live = live
        if live:
            self._guard(self._write_runs)

    @property
    def needs_flush(self) -> bool:
        return self._is_durable and bool(self._unflushed) and self._error is None

    def flush(self) -> None:
        """Once per round and never again; several partitions may be in here at once."""
        self._guard(self._flush)

    def finish(self) -> WriteOutcome:
        """What became of it; from here on `committed` is committed. Nothing of the round is kept:
        its payloads, and the hub that its callbacks name, are the caller's alone."""
        if self._error is None:
            self._guard(self._commit)
        if self._error is not None:
            self._fail(self._error)
        self._release()
        outcome, self._outcome = self._outcome, _no_outcome()
        self._live, self._unflushed, self._error = [], [], None
        return outcome

    def cancel(self) -> None:
        """The hub was deleted; whatever still comes is refused. Any thread."""
        self._refusal = OperationCancelled("The event hub was deleted.")
        self._is_stopped = True

    # --- between rounds --------------------------------------------------------------------------

    def write_mark_if_due(self) -> None:
        """Write a mark every so often, for recovery to start from."""
        is_due = self._end >= self._mark_at or self._unmarked >= CHECKPOINT_RECORDS
        if self._is_durable and is_due:
            self.write_mark()

    def write_mark(self) -> None:
        """Tell recovery that everything up to here is flushed. A failure costs nothing, EIO
        included: no event is in these files, and each mark is written to a new file."""
        segment = self._segment
        if segment is None or self._end == self._checkpointed or self._is_stopped:
            return
        assert segment.index is not None
        try:
            mark = self._mark()
            stamps = self._producers.encode(mark.offset)
            # It replaces a flushed file whose records retention may have dropped since.
            is_needed = len(self._producers) > 0
            replace_file(self._files, segment.beside(PRODUCERS_SUFFIX), stamps, flush=is_needed)
            content = segment.index.encode(segment.header.base_offset, mark)
            replace_file(self._files, segment.beside(INDEX_SUFFIX), content)
            self._checkpointed = mark.offset
        except OSError as error:
            _logger.warning("The index of %s could not be written: %s", segment.path, error)
        finally:
            self._put_off_mark()
            self._release()

    def roll(self, expected: Segment) -> WriteOutcome:
        """Begin a new segment so that retention can drop the one it saw. A lack of space or
        descriptors is a warning, and retention tries again; any other failure stops the partition
        as it does in a round."""
        if (
            self._is_stopped
            or self._segment is not expected
            or self._end == expected.header.base_offset
        ):
            return _no_outcome()
        self._guard(self._roll)
        error = self._error
        if error is not None and _is_passing(error):
            _logger.warning("segment not closed yet path=%s error=%s", expected.path, error)
            self._error = None
        return self.finish()

    def close(self) -> None:
        """Leave a mark at the very end, so that the next start has nothing to walk, and give back
        what was reserved, also by an earlier process that was killed."""
        segment = self._segment
        if segment is None or self._is_stopped:
            return
        try:
            if not self._is_durable and self._end != self._checkpointed:
                self._files.fdatasync(self._fd())
            self._trim()
        except OSError as error:
            _logger.warning("The segment %s could not be closed well: %s", segment.path, error)
            return
        finally:
            self._release()
        self.write_mark()

    # --- writing ---------------------------------------------------------------------------------

    def _write_runs(self) -> None:
        """A run is what goes into one segment: one write."""
        run: list[PendingAppend] = []
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

    def _write(self, run: list[PendingAppend], size: int) -> None:
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
        self._outcome.committed += run
        self._unmarked += len(run)
        self._end = newest.batch.base_offset + newest.size
        self._next_sequence = newest.batch.next_sequence
        self._newest_ms = newest.batch.enqueued_ms
        self._newest_at = newest.batch.base_offset
        self._unflushed = []

    def _fail(self, error: Exception) -> None:
        outcome = self._outcome
        is_cut = self._cut_back()
        is_final = not is_cut or not _is_passing(error)
        outcome.error = _failure(error, is_final=is_final)
        _logger.error(
            "partition log failed partition=%d directory=%s is_final=%s error=%r",
            self._partition, self._directory, is_final, str(error),  # its frames hold the payloads
        )  # fmt: skip
        outcome.failed = self._live[len(outcome.committed) :]
        outcome.is_final = is_final
        outcome.producers = self._producers.copy()
        self._generation += 1
        if not (self._is_stopped and self._refusal is not None):  # not after cancel()
            self._refusal = outcome.error
            self._is_stopped = is_final

    def _cut_back(self) -> bool:
        """Take the failed round's bytes out of the file again; whether that worked."""
        self._reserved_to = 0
        if self._segment is None or self._handle is None:
            return True  # nothing was written
        self._was_cut_back = True
        try:
            self._files.truncate(self._handle.fd, self._segment.position(self._end))
        except Exception:
            _logger.exception("segment could not be cut back path=%s", self._segment.path)
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
        if closing is not None and (self._was_cut_back or not self._is_durable):
            # Recovery does not look into closed segments, so they must be whole; and a record that
            # was cut off must not return after a power cut, behind the next segment's base.
            self._flush()
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
        self._was_cut_back = False
        self._checkpointed = max(self._checkpointed, mark.offset)
        self._put_off_mark()
        self._outcome.opened.append(begun)

    def _create(self, segment: Segment, *, is_first: bool) -> None:
        """Create the file, durably, or leave nothing behind: raises OSError, and
        SegmentLeftBehind where the file could not be removed again."""
        files = self._files
        if is_first:
            files.mkdir(self._directory)
        try:
            self._write_header(segment)
            files.fsync_directory(self._directory)
            if is_first:
                files.fsync_directory(self._directory.parent)
                files.fsync_directory(self._directory.parent.parent)
        except Exception as error:
            self._remove_unfinished(segment, error)
            raise

    def _write_header(self, segment: Segment) -> None:
        files = self._files
        fd = files.open(segment.path, create=True)
        try:
            files.truncate(fd, 0)  # a leftover: nothing was acknowledged at or behind this offset
            write_all(files, fd, [segment.header.encode()], 0)
            files.fdatasync(fd)
        finally:
            files.close(fd)

    def _remove_unfinished(self, segment: Segment, cause: Exception) -> None:
        """The removal need not be durable: a file that a power cut brings back is recognized when
        the partition is opened (opening.py, "leftover")."""
        for suffix in (SEGMENT_SUFFIX, PRODUCERS_SUFFIX):
            try:
                self._files.unlink(segment.beside(suffix))
            except FileNotFoundError:
                continue
            except OSError as error:
                if suffix == SEGMENT_SUFFIX:
                    raise SegmentLeftBehind(
                        f"{_cause(cause)}; the unfinished file {segment.path.name} could not be "
                        f"removed: {_cause(error)}"
                    ) from error

    def _leave_stamps(self, begun: Segment, mark: LogMark) -> None:
        """Flushed, and its name with the new segment's: the records that it sums up may be dropped
        long before their producers are done. Without it the rest is searched for them."""
        try:
            stamps = self._producers.encode(mark.offset)
            replace_file(self._files, begun.beside(PRODUCERS_SUFFIX), stamps, flush=True)
        except OSError as error:
            if error.errno == errno.EIO:
                raise
            _logger.warning("No producers' stamps were left beside %s: %s", begun.path, error)

    def _finish_segment(self, closing: Segment, mark: LogMark) -> None:
        """Write a derived file and return reserved room. Only an I/O error is a failure: the disk
        is not to be trusted any more."""
        assert closing.index is not None
        closing.end = mark
        try:
            content = closing.index.encode(closing.header.base_offset, mark)
            replace_file(self._files, closing.beside(INDEX_SUFFIX), content)
            closing.index = None  # from the file, when somebody wants it
            self._trim()
        except OSError as error:
            if error.errno == errno.EIO:
                raise
            _logger.warning("The index of %s could not be written: %s", closing.path, error)

    def _put_off_mark(self) -> None:
        """After one was left, or could not be: a full disk is not asked again in every round."""
        self._mark_at = self._end + CHECKPOINT_BYTES
        self._unmarked = 0

    def _reserve(self, fd: int, position: int, upto: int) -> None:
        """Ask for blocks ahead of the data, so that a flush has fewer of them to find. Only for a
        segment that has grown: there may be thousands of partitions with a few events each."""
        if upto <= self._reserved_to or upto < _RESERVE_FROM_BYTES:
            return
        target = max(upto, min(upto + min(upto, _RESERVE_BYTES_MAX), self._segment_bytes))
        try:
            self._files.allocate(fd, position, target - position)
        except OSError as error:
            _logger.debug("No room reserved for %s: %s", self._directory, error)
        self._reserved_to = target  # asked once, whatever came of it: the write itself will tell

    def _trim(self) -> None:
        assert self._segment is not None
        self._files.truncate(self._fd(), self._segment.position(self._end))

    def _mark(self) -> LogMark:
        """The log's end; the newest event's offset is read back, as it is seldom wanted."""
        if self._newest_at >= 0:
            assert self._segment is not None
            position = self._segment.position(self._newest_at)
            record = self._files.pread(self._fd(), self._end - self._newest_at, position)
            self._last_offset = self._newest_at + last_section_position(
                record[RECORD_HEADER_BYTES:]
            )
            self._newest_at = -1
        return LogMark(self._end, self._next_sequence, self._newest_ms, self._last_offset)

    def _fd(self) -> int:
        if self._handle is None:
            assert self._segment is not None
            self._handle = self._handles.acquire(self._segment)
        return self._handle.fd

    def _release(self) -> None:
        if self._handle is not None:
            self._handles.release(self._handle)
            self._handle = None


def _is_passing(error: Exception) -> bool:
    """Whether writing may succeed later without a restart."""
    return isinstance(error, OSError) and error.errno in _NO_ROOM | _NO_MEANS


def _failure(error: Exception, *, is_final: bool) -> LogFailed:
    """What publishers and /ready are told: no path of the server, and what happens next."""
    if is_final:
        return LogFailed(
            f"The log stopped after a failed write ({_cause(error)}): what was acknowledged is "
            f"kept and served, nothing more is accepted until the service is restarted."
        )
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return DiskFull(
            "The disk is full: events are accepted again when there is free space; what is stored "
            "can be read."
        )
    return LogFailed(
        f"The log could not be written ({_cause(error)}): the next publication tries again; what "
        f"is stored can be read."
    )


def _cause(error: Exception) -> str:
    """Without the file name that an OSError may carry."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _no_outcome() -> WriteOutcome:
    return WriteOutcome([], None, [], [], opened=[])
