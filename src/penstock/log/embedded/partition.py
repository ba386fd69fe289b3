"""A partition on disk as its owner's thread sees it: numbers batches, keeps the committed view."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

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

_ATTEMPTS = 8  # to read while retention drops segments; each finds a view that is newer


class EmbeddedPartition:
    """One partition of an embedded store."""

    def __init__(
        self,
        opened: LoadedPartition,
        *,
        committer: Committer,
        writer: PartitionWriter,
        reader: PartitionReader,
        tail: TailCache,
        wake: Wake,
        is_durable: bool,
    ) -> None:
        self.writer = writer
        self.damage = opened.damage
        self.pending_bytes = 0
        self._committer = committer
        self._reader = reader
        self._tail = tail
        self._wake = wake
        self._is_durable = is_durable
        self._salt = opened.salt
        self._subscribers = Subscribers()
        end = opened.end
        self._view = CommittedView(opened.segments, end.offset, end.next_sequence, end.newest_ms)
        self._error: PenstockError | None = None
        self._takes_more = True
        self._is_dropped = False
        self._generation = 0
        # As appended, which runs ahead of what is committed:
        self._next_sequence = end.next_sequence
        self._next_offset = end.offset
        self._appended_ms = end.newest_ms
        self._flushed_offset = end.offset
        self._producers = opened.producers.copy()

    # --- the contract -----------------------------------------------------------------------------

    def append(self, batch: EventBatch, *, now_ms: int, done: AppendDone) -> None:
        refused = check_batch(batch) if self._takes_more else self._error
        if refused is not None:
            self._wake(partial(run_callback, done, refused))
            return
        if now_ms > self._appended_ms:
            self._appended_ms = now_ms
        numbered = StoredBatch(
            self._next_sequence, self._next_offset, self._appended_ms, batch.count, batch.sections
        )
        header = encode_record_header(
            batch,
            first_sequence=self._next_sequence,
            base_offset=self._next_offset,
            enqueued_ms=self._appended_ms,
            flushed_offset=self._flushed_offset,
            salt=self._salt,
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
        return self._status(self._view, self._tail.settle_last_offset())

    def locate(self, position: Position) -> int:
        # In this order: the view is then at least as new as the offset that was compared.
        last_offset = self._tail.last_offset
        view = self._view
        found = resolve_position(position, self._status(view, last_offset))
        if found is not None:
            return found
        return self._with_current_view(lambda view: self._search(view, position))

    def read_cached(self, sequence: int, *, bytes_max: int = 0) -> list[StoredBatch] | None:
        view = self._view
        begin = view.begin_sequence
        if begin < 0 or sequence >= view.next_sequence:
            return []
        if sequence < begin:
            return None
        found = self._tail.since(sequence)
        if found is None and bytes_max:
            return self._reader.read_cached(view, sequence, bytes_max=bytes_max)
        return found

    def read(self, sequence: int, *, bytes_max: int) -> list[StoredBatch]:
        return self._with_current_view(lambda view: self._read(view, sequence, bytes_max))

    def subscribe(self, on_commit: Callable[[], None]) -> Unsubscribe:
        return self._subscribers.add(on_commit)

    def producer(self, producer_id: int) -> ProducerStamp | None:
        return self._producers.get(producer_id)

    # --- for the store ----------------------------------------------------------------------------

    @property
    def view(self) -> CommittedView:
        return self._view

    def apply_outcome(self, outcome: WriteOutcome) -> None:
        """A round ended: make it readable, tell its publishers, wake its readers; in this order."""
        if self._is_dropped:
            for pending in [*outcome.refused, *outcome.committed, *outcome.failed]:
                self._complete_append(pending, OperationCancelled("The event hub was deleted."))
            return
        if outcome.opened or outcome.committed:
            self._advance(outcome)
        if outcome.error is not None:
            self._fall_back(outcome, outcome.error)
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
        """Take the oldest `count` segments out of the view; their files may be removed now."""
        if count == 0:
            return ()
        view = self._view
        assert count < len(view.segments)
        self._view = CommittedView(
            view.segments[count:], view.end_offset, view.next_sequence, view.newest_ms
        )
        self._tail.drop_before(view.segments[count].header.first_sequence)
        return view.segments[:count]

    def shrink_cache(self, now_ms: int) -> None:
        """Forget cached batches for their age, also where nothing is appended any more."""
        self._tail.drop_older(now_ms - limits.TAIL_CACHE_AGE_MS)

    def cancel(self) -> tuple[Segment, ...]:
        """The hub is deleted: take and show nothing more; the segments that were shown."""
        self.stop("The event hub was deleted.")
        self._is_dropped = True
        self.writer.cancel()
        segments = self._view.segments
        self._view = CommittedView((), 0, 0, 0)
        self._tail.clear()
        return segments

    def stop(self, why: str) -> None:
        """Take nothing more; what is under way goes on."""
        self._error = OperationCancelled(why)
        self._takes_more = False

    # --- within -----------------------------------------------------------------------------------

    def _advance(self, outcome: WriteOutcome) -> None:
        view = self._view
        segments = (*view.segments, *outcome.opened) if outcome.opened else view.segments
        if not outcome.committed:
            self._view = CommittedView(
                segments, view.end_offset, view.next_sequence, view.newest_ms
            )
            return
        newest = outcome.committed[-1].batch
        end_offset = newest.base_offset + outcome.committed[-1].size
        assert end_offset > view.end_offset
        self._tail.add([pending.batch for pending in outcome.committed])
        self._view = CommittedView(segments, end_offset, newest.next_sequence, newest.enqueued_ms)
        if self._is_durable:
            self._flushed_offset = end_offset
        if self._takes_more:
            self._error = None  # there is room again

    def _fall_back(self, outcome: WriteOutcome, error: LogFailed) -> None:
        """What was numbered and not committed never was: its numbers, and its producers' stamps,
        are given again. A stamp kept here would make the publisher's retry look like a repeat."""
        view = self._view
        self._next_sequence = view.next_sequence
        self._next_offset = view.end_offset
        self._appended_ms = view.newest_ms
        if outcome.producers is not None:  # None where the committer ended: nothing follows
            self._producers = outcome.producers
        self._generation += 1
        if self._takes_more:
            self._error = error
            self._takes_more = not outcome.is_final

    def _complete_append(self, pending: PendingAppend, error: PenstockError) -> None:
        self.pending_bytes -= pending.size
        run_callback(pending.done, error)

    def _status(self, view: CommittedView, last_offset: int) -> PartitionStatus:
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

    def _with_current_view(self, act: Callable[[CommittedView], _T]) -> _T:
        """Retention may remove a file between the look at the view and its opening; the view that
        is there by then no longer names it."""
        for _ in range(_ATTEMPTS):
            view = self._view
            try:
                return act(view)
            except FileNotFoundError as error:
                if self._view is view:
                    name = Path(str(error.filename)).name  # no path of the server for clients
                    raise LogCorrupt(f"The log's file {name} is missing.") from error
            except OSError as error:
                _logger.error("partition read failed error=%r", error)
                raise InternalError(f"The log cannot be read: {error.strerror}.") from error
        raise LogCorrupt("The log's files vanish faster than they can be read.")


class RefusedPartition:
    """A partition that could not be opened: it says why and leaves its files as they are."""

    damage: tuple[str, ...]
    pending_bytes = 0

    def __init__(self, reason: str, directory: Path, wake: Wake) -> None:
        """`reason` is for the operator; clients get it without the server's path."""
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
