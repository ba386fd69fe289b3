"""A partition on the owner's thread: numbers batches, holds the committed view, completes appends.

Two positions move separately. The *appended* end moves in `append`, which numbers the batch and
queues it. The *committed* end (the view) moves in `apply_outcome`, after the committer has flushed
the round. A failed round moves the appended end back to the committed one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from penstock.log.api import AppendDone, PartitionStatus, Unsubscribe
from penstock.log.append import Subscribers, Wake, check_batch, receipt_for, run_callback
from penstock.log.embedded.committer import Committer
from penstock.log.embedded.partition_loader import LoadedPartition
from penstock.log.embedded.reader import CommittedView, PartitionReader
from penstock.log.embedded.record import RECORD_HEADER_BYTES, encode_record_header
from penstock.log.embedded.segment import Segment
from penstock.log.embedded.writer import PartitionWriter, PendingAppend, WriteOutcome
from penstock.log.position_resolver import resolve_position
from penstock.log.tail_cache import TailCache
from penstock.model import limits
from penstock.model.errors import (
    InternalError,
    LogCorrupt,
    LogFailed,
    OperationCancelled,
    PenstockError,
)
from penstock.model.events import EventBatch, ProducerStamp, StoredBatch
from penstock.model.positions import Position

_logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_READ_ATTEMPTS = 8  # while retention removes segments; each attempt uses a newer view


class EmbeddedPartition:
    """One partition of an embedded store.

    Threads: the owner's, except for `locate` and `read`, which any thread may call. Of the mutable
    fields those two read only `view`, `_error` and `TailCache.last_offset`, each of which is
    replaced as a whole.
    """

    def __init__(
        self,
        loaded: LoadedPartition,
        *,
        committer: Committer,
        writer: PartitionWriter,
        reader: PartitionReader,
        tail_cache: TailCache,
        wake: Wake,
        is_durable: bool,
    ) -> None:
        self.writer = writer  # used by the committer; the owner calls only `cancel`
        self.damage = loaded.damage
        self.pending_bytes = 0  # appended and neither acknowledged nor refused
        self._committer = committer
        self._reader = reader
        self._tail_cache = tail_cache
        self._wake = wake
        self._is_durable = is_durable
        self._salt = loaded.salt
        self._subscribers = Subscribers()
        end = loaded.end
        # Replaced as a whole and only by the owner's thread; any thread may hold one. It never
        # names an event that is not as durable as the store promises.
        self.view = CommittedView(loaded.segments, end.offset, end.next_sequence, end.newest_ms)
        self._error: PenstockError | None = None  # set while appends fail; `status` reports it
        self._accepts_appends = True  # False: every append ends in `_error`
        self._is_deleted = False
        # Number of failed rounds. The writer counts them too and refuses batches that were numbered
        # before the last failure, because their numbers are given again.
        self._generation = 0
        # The appended end, at or after the view's end. Equal to it after a failure.
        self._next_sequence = end.next_sequence
        self._next_offset = end.offset
        self._appended_ms = end.newest_ms  # enqueued times never decrease
        self._producers = loaded.producers.copy()  # stamps as appended
        # Everything below is known to be on disk. Each record stores it for recovery, so it must
        # never be ahead of the flushed end; with flush = "os" it does not move.
        self._flushed_offset = end.offset

    # --- the contract -----------------------------------------------------------------------------

    def append(self, batch: EventBatch, *, now_ms: int, done: AppendDone) -> None:
        error = check_batch(batch) if self._accepts_appends else self._error
        if error is not None:
            self._wake(partial(run_callback, done, error))
            return
        if now_ms > self._appended_ms:
            self._appended_ms = now_ms
        numbered = StoredBatch(
            self._next_sequence, self._next_offset, self._appended_ms, batch.count, batch.sections
        )
        header = encode_record_header(
            numbered, batch.producer, flushed_offset=self._flushed_offset, salt=self._salt
        )
        size = RECORD_HEADER_BYTES + len(batch.sections)
        self._next_sequence += batch.count
        self._next_offset += size
        self.pending_bytes += size
        if batch.producer is not None:
            self._producers.note(batch.producer)
        self._committer.put(
            self, PendingAppend(self._generation, header, numbered, batch.producer, done)
        )

    def status(self) -> PartitionStatus:
        return self._build_status(self.view, self._tail_cache.resolve_last_offset())

    def locate(self, position: Position) -> int:
        # The view first: a round may be applied between the two reads. With an older offset and a
        # newer view, a reader that resumes at that offset would skip the round's events.
        view = self.view
        last_offset = self._tail_cache.last_offset
        sequence = resolve_position(position, self._build_status(view, last_offset))
        if sequence is not None:
            return sequence
        return self._with_current_view(lambda view: self._search(view, position))

    def read_cached(self, sequence: int, *, bytes_max: int = 0) -> list[StoredBatch] | None:
        view = self.view
        begin = view.begin_sequence
        if begin < 0 or sequence >= view.next_sequence:
            return []
        if sequence < begin:
            return None
        batches = self._tail_cache.read_from(sequence)
        if batches is None and bytes_max:
            return self._reader.read_cached(view, sequence, bytes_max=bytes_max)
        return batches

    def read(self, sequence: int, *, bytes_max: int) -> list[StoredBatch]:
        return self._with_current_view(lambda view: self._read(view, sequence, bytes_max))

    def subscribe(self, on_commit: Callable[[], None]) -> Unsubscribe:
        return self._subscribers.add(on_commit)

    def producer(self, producer_id: int) -> ProducerStamp | None:
        return self._producers.get(producer_id)

    # --- for the store ----------------------------------------------------------------------------

    def apply_outcome(self, outcome: WriteOutcome) -> None:
        """Take the outcome of a round or a roll. The order matters: events are readable before they
        are acknowledged, so that a publisher finds its own events, and readers wake last."""
        if self._is_deleted:
            for pending in [*outcome.refused, *outcome.committed, *outcome.failed]:
                self._complete_append(pending, OperationCancelled("The event hub was deleted."))
            return
        if outcome.new_segments or outcome.committed:
            self._advance_view(outcome)
        if outcome.error is not None:
            self._discard_uncommitted(outcome, outcome.error)
        for pending in outcome.refused:
            assert outcome.refusal is not None
            self._complete_append(pending, outcome.refusal)
        for pending in outcome.committed:
            self.pending_bytes -= pending.size
            run_callback(pending.done, receipt_for(pending.batch))
        for pending in outcome.failed:
            assert outcome.error is not None
            self._complete_append(pending, outcome.error)
        if outcome.committed:
            self._subscribers.notify()

    def drop_oldest(self, count: int) -> tuple[Segment, ...]:
        """Take the oldest `count` closed segments out of the view. Returns them; their files may be
        removed now."""
        if count == 0:
            return ()
        view = self.view
        assert count < len(view.segments)
        self.view = msgspec.structs.replace(view, segments=view.segments[count:])
        self._tail_cache.drop_before(view.segments[count].header.first_sequence)
        return view.segments[:count]

    def shrink_cache(self, now_ms: int) -> None:
        """Drop old batches from the tail cache, also if nothing is appended any more."""
        self._tail_cache.drop_older(now_ms - limits.TAIL_CACHE_AGE_MS)

    def cancel(self) -> tuple[Segment, ...]:
        """The hub was deleted: refuse appends and serve nothing. Returns the view's segments."""
        self.stop("The event hub was deleted.")
        self._is_deleted = True
        self.writer.cancel()
        segments = self.view.segments
        self.view = CommittedView((), 0, 0, 0)
        self._tail_cache.clear()
        return segments

    def stop(self, reason: str) -> None:
        """Refuse further appends with `reason`; queued ones are still committed."""
        self._error = OperationCancelled(reason)
        self._accepts_appends = False

    # --- internal ---------------------------------------------------------------------------------

    def _advance_view(self, outcome: WriteOutcome) -> None:
        view = self.view
        segments = view.segments + tuple(outcome.new_segments)
        if not outcome.committed:
            self.view = msgspec.structs.replace(view, segments=segments)
            return
        newest = outcome.committed[-1].batch
        end_offset = newest.base_offset + outcome.committed[-1].size
        assert end_offset > view.end_offset
        self._tail_cache.add([pending.batch for pending in outcome.committed])
        self.view = CommittedView(segments, end_offset, newest.next_sequence, newest.enqueued_ms)
        if self._is_durable:
            self._flushed_offset = end_offset
        if self._accepts_appends:
            self._error = None  # writing works again, for example after a full disk

    def _discard_uncommitted(self, outcome: WriteOutcome, error: LogFailed) -> None:
        """Move the appended end back to the committed end: the numbers of failed batches are given
        again. Producer stamps too; otherwise a publisher's retry would look like a duplicate."""
        view = self.view
        self._next_sequence = view.next_sequence
        self._next_offset = view.end_offset
        self._appended_ms = view.newest_ms
        if outcome.producers is not None:  # None after the committer ended: nothing is appended
            self._producers = outcome.producers
        self._generation += 1
        if self._accepts_appends:
            self._error = error
            self._accepts_appends = not outcome.is_final

    def _complete_append(self, pending: PendingAppend, error: PenstockError) -> None:
        self.pending_bytes -= pending.size
        run_callback(pending.done, error)

    def _build_status(self, view: CommittedView, last_offset: int) -> PartitionStatus:
        return PartitionStatus(
            begin_sequence=view.begin_sequence,
            last_sequence=view.next_sequence - 1,
            last_offset=last_offset,
            last_enqueued_ms=view.newest_ms,
            size_bytes=view.size_bytes,
            failed=None if self._error is None else str(self._error),
        )

    def _read(self, view: CommittedView, sequence: int, bytes_max: int) -> list[StoredBatch]:
        begin = view.begin_sequence
        if begin < 0 or sequence >= view.next_sequence:
            return []
        return self._reader.read(view, max(sequence, begin), bytes_max=bytes_max)

    def _search(self, view: CommittedView, position: Position) -> int:
        begin = view.begin_sequence
        if begin < 0:
            return view.next_sequence
        return min(view.next_sequence, max(begin, self._reader.search(view, position)))

    def _with_current_view(self, operation: Callable[[CommittedView], _T]) -> _T:
        """Run `operation` on the current view. Retention may remove a file after this thread has
        taken the view; then the operation runs again on the newer view, which lacks the file."""
        for _ in range(_READ_ATTEMPTS):
            view = self.view
            try:
                return operation(view)
            except FileNotFoundError as error:
                if self.view is view:
                    name = Path(str(error.filename)).name  # clients do not see server paths
                    raise LogCorrupt(f"The log's file {name} is missing.") from error
            except OSError as error:
                _logger.error("partition read failed error=%r", str(error))
                raise InternalError(f"The log cannot be read: {error.strerror}.") from error
        raise LogCorrupt("Retention removes the log's files faster than they can be read.")


class RefusedPartition:
    """A partition that could not be loaded: it says reason and leaves its files as they are."""

    damage: tuple[str, ...]
    pending_bytes = 0

    def __init__(self, reason: str, directory: Path, wake: Wake) -> None:
        """`reason` is for the operator; clients get it without the path on the server."""
        self.damage = (reason,)
        self._text = reason.replace(f"{directory}/", "").replace(str(directory), "its directory")
        self._wake = wake

    def append(self, batch: EventBatch, *, now_ms: int, done: AppendDone) -> None:
        self._wake(partial(run_callback, done, LogFailed(self._text)))

    def status(self) -> PartitionStatus:
        return PartitionStatus(-1, -1, -1, 0, 0, self.damage[0])

    def locate(self, position: Position) -> int:
        raise LogCorrupt(self._text)

    def read_cached(self, sequence: int, *, bytes_max: int = 0) -> list[StoredBatch] | None:
        return None

    def read(self, sequence: int, *, bytes_max: int) -> list[StoredBatch]:
        raise LogCorrupt(self._text)

    def subscribe(self, on_commit: Callable[[], None]) -> Unsubscribe:
        return lambda: None

    def producer(self, producer_id: int) -> ProducerStamp | None:
        return None
