"""Writes a partition's segments: appends, flushes, rolls, and stops when the disk fails.

Threads: one thread at a time uses a `PartitionWriter`: the committer, or the helper that the
committer lends the writer to for `begin` and `flush` and then waits for. Only `cancel` may be
called by another thread.

The committer calls a round in this order, and the order is the durability guarantee:

1. `begin`   writes the records. A record that does not fit begins a new segment first; then
             everything before it is flushed and committed within `begin`.
2. `flush`   one fdatasync (not with `flush = "os"`).
3. `finish`  commits: index, producer stamps and the committed end move. Nothing moved before.
4. The owner's thread makes the events readable, then acknowledges them, then wakes readers
   (`EmbeddedPartition.apply_outcome`).

| what fails | appends of the round | the partition afterwards |
|---|---|---|
| write or flush: no space (ENOSPC, EDQUOT) | DiskFull, file truncated | each round tries again |
| write or flush: no descriptor or memory | LogFailed, file truncated | each round tries again |
| write or flush: any other error | LogFailed, file truncated | stopped until restart |
| truncating the file to its committed end | LogFailed | stopped until restart |
| creating a segment | as above, by its error; its file is removed | as above, by its error |
| removing that file | LogFailed | stopped until restart |
| index or producers file of a roll: EIO | LogFailed | stopped until restart |
| the same: other errors; marks; reserving | not affected, a log line | tried again later |

What was committed before the failure, within the same round, stays committed and is acknowledged.
A flush is never repeated: after a failed one the kernel may have dropped the dirty pages, so a
second flush that succeeds proves nothing. The file is truncated after a failure so that a restart
cannot read from the page cache what the disk lacks.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.log.api import AppendDone
from penstock.log.embedded.file_handles import FileHandle, FileHandleCache
from penstock.log.embedded.files import Files, open_file, replace_file, write_all
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

# A log mark is written after this many bytes or records, whichever comes first. Recovery scans at
# most that much, in well below 0.1 s.
MARK_INTERVAL_BYTES = 8 * limits.MB
MARK_INTERVAL_RECORDS = 16_000
_RESERVE_FROM_BYTES = 1 * limits.MB  # a smaller segment uses only the blocks of its records
_RESERVE_BYTES_MAX = 16 * limits.MB
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_NO_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


class PendingAppend(msgspec.Struct, frozen=True, gc=False):
    """An append that is numbered and not yet committed."""

    generation: int  # number of failures of the partition when the batch was numbered
    header: bytes
    batch: StoredBatch
    producer: ProducerStamp | None
    done: AppendDone

    @property
    def size(self) -> int:
        return RECORD_HEADER_BYTES + len(self.batch.sections)


class SegmentLeftBehind(Exception):
    """A segment could not be created and its file could not be removed. Recovery would take it for
    the end of the log, so nothing may be written to the segment before it."""


class WriteOutcome(msgspec.Struct):
    """Result of a round in one partition; each list is in the order of appending."""

    # Not written: numbered before a failure, or the writer stopped.
    refused: list[PendingAppend] = []
    refusal: PenstockError | None = None
    committed: list[PendingAppend] = []
    failed: list[PendingAppend] = []
    error: LogFailed | None = None  # of `failed`
    is_final: bool = False  # the partition accepts no more appends
    producers: ProducerStates | None = None  # the committed stamps, if something failed
    new_segments: list[Segment] = []


class PartitionWriter:
    """Appends to the active segment of one partition. See the module for threads and failures."""

    def __init__(
        self,
        files: Files,
        handles: FileHandleCache,
        directory: Path,
        partition: int,
        loaded: LoadedPartition,
        *,
        is_durable: bool,
        segment_bytes: int,
    ) -> None:
        self._files = files
        self._handles = handles
        self._directory = directory
        self._partition_index = partition
        self._is_durable = is_durable
        self._segment_bytes = segment_bytes
        self._salt = loaded.salt

        # The committed log. Invariant: `_commit` alone moves these fields, after the flush, so a
        # failed round leaves them as they were; a failure truncates the file to `_end`.
        self._segment = loaded.segments[-1] if loaded.segments else None  # active; set by `_roll`
        self._end = loaded.end.offset
        self._next_sequence = loaded.end.next_sequence
        self._newest_ms = loaded.end.newest_ms
        self._producers = loaded.producers
        # Offset of the newest event: `_last_offset` if `_newest_record_offset` is -1, else still to
        # be read from that record (`_end_mark`).
        self._last_offset = loaded.end.last_offset
        self._newest_record_offset = -1

        # The active segment's file.
        self._reserved_to = 0  # file position up to which blocks were requested
        self._was_truncated = False  # since its last flush

        # Log marks. `_marked_offset` is the offset in the index file on disk, -1 without one.
        self._marked_offset = loaded.marked_offset
        self._next_mark_offset = 0
        self._unmarked_records = 0
        self._schedule_next_mark()

        # Failures. `_generation` counts them, here and in EmbeddedPartition. A batch of an earlier
        # generation has numbers that were given again since, so it is refused with `_refusal`.
        self._generation = 0
        self._refusal: PenstockError | None = None
        self._is_stopped = False  # also set by `cancel`, from any thread; never reset

        # The current round; empty between rounds, so that no payload stays in memory.
        self._handle: FileHandle | None = None
        self._accepted: list[PendingAppend] = []  # to be written in this round
        self._unflushed: list[PendingAppend] = []  # written and not committed: the current run
        self._outcome = WriteOutcome()
        self._error: Exception | None = None  # first failure of the round

    # --- a round ---------------------------------------------------------------------------------

    def begin(self, pending: list[PendingAppend]) -> None:
        """Write the appends, flushing only where a segment ends. Never raises; `finish` reports."""
        generation = -1 if self._is_stopped else self._generation
        accepted = [item for item in pending if item.generation == generation]
        # Appends of earlier generations always come first.
        refused = pending[: len(pending) - len(accepted)]
        self._outcome = WriteOutcome(refused, self._refusal)
        self._error = None
        self._accepted = accepted
        if accepted:
            self._run_guarded(self._write_runs)

    @property
    def needs_flush(self) -> bool:
        return self._is_durable and bool(self._unflushed) and self._error is None

    def flush(self) -> None:
        """Flush what `begin` wrote; at most once per round. Never raises. Writers of several
        partitions flush in parallel."""
        self._run_guarded(self._flush)

    def finish(self) -> WriteOutcome:
        """Commit the round, or undo it after a failure. The writer keeps no reference to the round:
        payloads and callbacks belong to the caller."""
        if self._error is None:
            self._run_guarded(self._commit)
        if self._error is not None:
            self._fail_round(self._error)
        self._release_handle()
        outcome, self._outcome = self._outcome, WriteOutcome()
        self._accepted, self._unflushed, self._error = [], [], None
        return outcome

    def cancel(self) -> None:
        """The hub was deleted: refuse all further appends. Any thread."""
        self._refusal = OperationCancelled("The event hub was deleted.")
        self._is_stopped = True

    # --- between rounds --------------------------------------------------------------------------

    def write_mark_if_due(self) -> None:
        has_many_records = self._unmarked_records >= MARK_INTERVAL_RECORDS
        if self._is_durable and (has_many_records or self._end >= self._next_mark_offset):
            self.write_mark()

    def write_mark(self) -> None:
        """Record in the index file that everything up to the committed end is flushed, so that
        recovery starts there. Errors are logged only, EIO included: these files hold no events,
        and each mark is written to a new file."""
        segment = self._segment
        if segment is None or self._end == self._marked_offset or self._is_stopped:
            return
        assert segment.index is not None
        try:
            mark = self._end_mark()
            stamps = self._producers.encode(mark.offset)
            # It replaces a flushed file whose records retention may have removed since.
            needs_flush = len(self._producers) > 0
            replace_file(self._files, segment.beside(PRODUCERS_SUFFIX), stamps, flush=needs_flush)
            content = segment.index.encode(segment.header.base_offset, mark)
            replace_file(self._files, segment.beside(INDEX_SUFFIX), content)
            self._marked_offset = mark.offset
        except OSError as error:
            _logger.warning("log mark not written path=%s error=%r", segment.path, str(error))
        finally:
            self._schedule_next_mark()
            self._release_handle()

    def roll(self, expected: Segment) -> WriteOutcome:
        """Begin a new segment so that retention can expire `expected`; does nothing if that is no
        longer the active one, or empty. After a lack of space or descriptors retention tries again
        in its next pass; any other failure stops the partition as it does in a round."""
        if (
            self._is_stopped
            or self._segment is not expected
            or self._end == expected.header.base_offset
        ):
            return WriteOutcome()
        self._run_guarded(self._roll)
        error = self._error
        if error is not None and _is_transient(error):
            _logger.warning("segment not rolled path=%s error=%r", expected.path, str(error))
            self._error = None
        return self.finish()

    def close(self) -> None:
        """Write a mark at the end, so that the next start has nothing to scan, and release reserved
        blocks, also those of an earlier process that was killed."""
        segment = self._segment
        if segment is None or self._is_stopped:
            return
        try:
            if not self._is_durable and self._end != self._marked_offset:
                self._files.fdatasync(self._open_fd())
            self._release_reserved()
        except OSError as error:
            _logger.warning("segment not trimmed path=%s error=%r", segment.path, str(error))
            return
        finally:
            self._release_handle()
        self.write_mark()

    # --- writing ---------------------------------------------------------------------------------

    def _write_runs(self) -> None:
        """Write the accepted appends, one run (one write call) per segment."""
        run: list[PendingAppend] = []
        size = 0
        for item in self._accepted:
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
        """Whether a record of `size` bytes after the run belongs in the next segment."""
        segment = self._segment
        if segment is None:
            return True
        end = self._end + run_size
        is_empty = end == segment.header.base_offset  # an empty one takes a record of any size
        return not is_empty and segment.position(end) + size > self._segment_bytes

    def _write(self, run: list[PendingAppend], size: int) -> None:
        if not run:
            return
        assert self._segment is not None
        assert run[0].batch.base_offset == self._end
        self._unflushed = run
        position = self._segment.position(self._end)
        fd = self._open_fd()
        self._reserve(fd, position, position + size)
        buffers: list[bytes] = []
        for item in run:
            buffers.append(item.header)
            buffers.append(item.batch.sections)
        write_all(self._files, fd, buffers, position)

    def _flush(self) -> None:
        self._files.fdatasync(self._open_fd())

    def _commit(self) -> None:
        """Move the committed end over the run. Call it only after the run was flushed (or written,
        with `flush = "os"`)."""
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
        self._unmarked_records += len(run)
        self._end = newest.batch.base_offset + newest.size
        self._next_sequence = newest.batch.next_sequence
        self._newest_ms = newest.batch.enqueued_ms
        self._newest_record_offset = newest.batch.base_offset
        self._unflushed = []

    def _fail_round(self, error: Exception) -> None:
        outcome = self._outcome
        is_truncated = self._truncate_to_committed()
        is_final = not is_truncated or not _is_transient(error)
        outcome.error = _failure_error(error, is_final=is_final)
        _logger.error(
            "partition log failed partition=%d directory=%s is_final=%s error=%r",
            self._partition_index,
            self._directory,
            is_final,
            str(error),  # no traceback: its frames hold the payloads
        )
        outcome.failed = self._accepted[len(outcome.committed) :]
        outcome.is_final = is_final
        outcome.producers = self._producers.copy()
        self._generation += 1
        if not (self._is_stopped and self._refusal is not None):  # keep what `cancel` set
            self._refusal = outcome.error
            self._is_stopped = is_final

    def _truncate_to_committed(self) -> bool:
        """Remove the failed round's bytes from the file. Returns whether that succeeded."""
        self._reserved_to = 0
        if self._segment is None or self._handle is None:
            return True  # nothing was written
        self._was_truncated = True
        try:
            self._files.truncate(self._handle.fd, self._segment.position(self._end))
        except Exception:
            _logger.exception("segment not truncated path=%s", self._segment.path)
            return False
        return True

    def _run_guarded(self, step: Callable[[], None]) -> None:
        """A failure ends this partition's round, never the committer's thread."""
        try:
            step()
        except OSError as error:
            self._error = error
        except Exception as error:
            _logger.exception("unexpected error in a commit round directory=%s", self._directory)
            self._error = error

    # --- segments --------------------------------------------------------------------------------

    def _roll(self) -> None:
        """Begin the next segment. The old one is closed only after the new one is durable: a crash
        in between leaves the old one as the active segment, or an empty new one."""
        closing = self._segment
        if closing is not None and (self._was_truncated or not self._is_durable):
            # Recovery does not scan closed segments, so they must be durable; and a record that was
            # truncated must not return after a power failure, after the next segment's base.
            self._flush()
        mark = self._end_mark()
        header = SegmentHeader(
            mark.offset,
            mark.next_sequence,
            mark.last_offset,
            mark.newest_ms,
            self._salt,
            self._partition_index,
        )
        path = self._directory / segment_name(mark.offset)
        segment = Segment(path, header, index=SparseIndex())
        if closing is not None:
            self._write_stamps(segment, mark)
        self._create(segment, is_first=closing is None)
        if closing is not None:
            self._close_segment(closing, mark)
        self._release_handle()
        self._segment = segment
        self._reserved_to = 0
        self._was_truncated = False
        self._marked_offset = max(self._marked_offset, mark.offset)
        self._schedule_next_mark()
        self._outcome.new_segments.append(segment)

    def _create(self, segment: Segment, *, is_first: bool) -> None:
        """Create the file durably, or remove it again. Raises OSError, or SegmentLeftBehind if the
        file could not be removed."""
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
        with open_file(files, segment.path, create=True) as fd:
            # The file may be left from a failed roll; nothing was acknowledged from this offset on.
            files.truncate(fd, 0)
            write_all(files, fd, [segment.header.encode()], 0)
            files.fdatasync(fd)

    def _remove_unfinished(self, segment: Segment, cause: Exception) -> None:
        """The removal need not be durable: a file that returns after a power failure is recognized
        when the partition is loaded (partition_loader.py, "leftover")."""
        for suffix in (SEGMENT_SUFFIX, PRODUCERS_SUFFIX):
            try:
                self._files.unlink(segment.beside(suffix))
            except FileNotFoundError:
                continue
            except OSError as error:
                if suffix == SEGMENT_SUFFIX:
                    raise SegmentLeftBehind(
                        f"{_cause_text(cause)}; the unfinished file {segment.path.name} could not "
                        f"be removed: {_cause_text(error)}"
                    ) from error

    def _write_stamps(self, segment: Segment, mark: LogMark) -> None:
        """Write the producers file of a new segment. It is flushed, because retention may remove
        the records that it summarizes long before their producers stop. Without it the remaining
        records are scanned for stamps."""
        try:
            stamps = self._producers.encode(mark.offset)
            replace_file(self._files, segment.beside(PRODUCERS_SUFFIX), stamps, flush=True)
        except OSError as error:
            if error.errno == errno.EIO:
                raise
            _logger.warning("producers file not written path=%s error=%r", segment.path, str(error))

    def _close_segment(self, closing: Segment, mark: LogMark) -> None:
        """Write the index file and release reserved blocks. Only EIO is a failure: the disk cannot
        be trusted any more."""
        assert closing.index is not None
        closing.end = mark
        try:
            content = closing.index.encode(closing.header.base_offset, mark)
            replace_file(self._files, closing.beside(INDEX_SUFFIX), content)
            closing.index = None  # readers load it from the file
            self._release_reserved()
        except OSError as error:
            if error.errno == errno.EIO:
                raise
            _logger.warning("index not written path=%s error=%r", closing.path, str(error))

    def _schedule_next_mark(self) -> None:
        """Also after a failed attempt: a full disk is not tried again in every round."""
        self._next_mark_offset = self._end + MARK_INTERVAL_BYTES
        self._unmarked_records = 0

    def _reserve(self, fd: int, position: int, upto: int) -> None:
        """Reserve blocks ahead of the data, so that a flush has fewer to allocate. Only for a
        segment that has grown: there may be thousands of partitions with a few events each."""
        if upto <= self._reserved_to or upto < _RESERVE_FROM_BYTES:
            return
        target = max(upto, min(upto + min(upto, _RESERVE_BYTES_MAX), self._segment_bytes))
        try:
            self._files.allocate(fd, position, target - position)
        except OSError as error:
            _logger.debug("blocks not reserved path=%s error=%r", self._directory, str(error))
        self._reserved_to = target  # not tried again: the write itself reports a full disk

    def _release_reserved(self) -> None:
        assert self._segment is not None
        self._files.truncate(self._open_fd(), self._segment.position(self._end))

    def _end_mark(self) -> LogMark:
        """The committed end. The newest event's offset is read back from the file here, because it
        is seldom needed and finding it in every round would cost time."""
        if self._newest_record_offset >= 0:
            assert self._segment is not None
            base = self._newest_record_offset
            position = self._segment.position(base)
            record = self._files.pread(self._open_fd(), self._end - base, position)
            self._last_offset = base + last_section_position(record[RECORD_HEADER_BYTES:])
            self._newest_record_offset = -1
        return LogMark(self._end, self._next_sequence, self._newest_ms, self._last_offset)

    def _open_fd(self) -> int:
        if self._handle is None:
            assert self._segment is not None
            self._handle = self._handles.acquire(self._segment)
        return self._handle.fd

    def _release_handle(self) -> None:
        if self._handle is not None:
            self._handles.release(self._handle)
            self._handle = None


def _is_transient(error: Exception) -> bool:
    """Whether writing may succeed later without a restart."""
    return isinstance(error, OSError) and error.errno in _NO_SPACE | _NO_RESOURCES


def _failure_error(error: Exception, *, is_final: bool) -> LogFailed:
    """The error for publishers and `/ready`: what happens next, and no path of the server."""
    if is_final:
        return LogFailed(
            f"The log stopped after a failed write ({_cause_text(error)}): what was acknowledged "
            f"is kept and served, nothing more is accepted until the service is restarted."
        )
    if isinstance(error, OSError) and error.errno in _NO_SPACE:
        return DiskFull(
            "The disk is full: events are accepted again when there is free space; what is stored "
            "can be read."
        )
    return LogFailed(
        f"The log could not be written ({_cause_text(error)}): the next publication tries again; "
        f"what is stored can be read."
    )


def _cause_text(error: Exception) -> str:
    """The error without the file name that an OSError may carry."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
