"""The log in memory: the same contract without a disk, for tests and simulation.

Offsets are those of the embedded engine (each batch has a record header), so that a test history
has the same results on both.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import partial

from penstock.log.api import AppendDone, LogHealth, PartitionStatus, Unsubscribe
from penstock.log.append import Subscribers, Wake, check_batch, receipt_for, run_callback
from penstock.log.embedded.record import record_bytes
from penstock.log.position_resolver import event_at_offset, is_at_or_after, resolve_position
from penstock.log.producer_state import ProducerStates
from penstock.log.tail_cache import CACHED_BATCHES_MAX
from penstock.model.errors import LogFailed, OperationCancelled, PenstockError
from penstock.model.events import EventBatch, ProducerStamp, StoredBatch
from penstock.model.positions import Position, PositionKind
from penstock.model.sections import last_section_position


class MemoryPartition:
    """One partition; `commit` makes what was appended readable."""

    def __init__(self, wake: Wake, schedule_commit: Callable[[], None]) -> None:
        self._wake = wake
        self._schedule_commit = schedule_commit
        self._batches: list[StoredBatch] = []
        self._firsts: list[int] = []
        self._pending: list[tuple[StoredBatch, AppendDone]] = []
        self._subscribers = Subscribers()
        self._producers = ProducerStates()
        self._next_sequence = 0
        self._next_offset = 0
        self._appended_ms = 0
        self._newest: StoredBatch | None = None
        self._error: PenstockError | None = None

    def append(self, batch: EventBatch, *, now_ms: int, done: AppendDone) -> None:
        error = self._error or check_batch(batch)
        if error is not None:
            self._wake(partial(run_callback, done, error))
            return
        self._appended_ms = max(self._appended_ms, now_ms)
        stored = StoredBatch(
            self._next_sequence, self._next_offset, self._appended_ms, batch.count, batch.sections
        )
        self._next_sequence += batch.count
        self._next_offset += record_bytes(batch.sections)
        if batch.producer is not None:
            self._producers.note(batch.producer)
        self._pending.append((stored, done))
        self._schedule_commit()

    def status(self) -> PartitionStatus:
        newest = self._newest
        failed = None if self._error is None else str(self._error)
        if newest is None:
            return PartitionStatus(-1, -1, -1, 0, 0, failed)
        end = newest.base_offset + record_bytes(newest.sections)
        has_events = bool(self._batches)
        return PartitionStatus(
            begin_sequence=self._firsts[0] if has_events else -1,
            last_sequence=newest.next_sequence - 1,
            last_offset=newest.base_offset + last_section_position(newest.sections),
            last_enqueued_ms=newest.enqueued_ms,
            size_bytes=end - self._batches[0].base_offset if has_events else 0,
            failed=failed,
        )

    def locate(self, position: Position) -> int:
        sequence = resolve_position(position, self.status())
        if sequence is not None:
            return sequence
        for batch in self._batches:
            if position.kind is PositionKind.OFFSET:
                if batch.base_offset + record_bytes(batch.sections) > position.value:
                    return event_at_offset(batch, position)
            elif is_at_or_after(batch.enqueued_ms, position):
                return batch.first_sequence
        return self.status().last_sequence + 1

    def read_cached(self, sequence: int, *, bytes_max: int = 0) -> list[StoredBatch] | None:
        if not self._batches or sequence >= self._batches[-1].next_sequence:
            return []
        start = self._index_of(sequence)
        return self._batches[start : start + CACHED_BATCHES_MAX]

    def read(self, sequence: int, *, bytes_max: int) -> list[StoredBatch]:
        if not self._batches or sequence >= self._batches[-1].next_sequence:
            return []
        batches: list[StoredBatch] = []
        size = 0
        for batch in self._batches[self._index_of(sequence) :]:
            size += len(batch.sections)
            if batches and size > bytes_max:
                break
            batches.append(batch)
        return batches

    def subscribe(self, on_commit: Callable[[], None]) -> Unsubscribe:
        return self._subscribers.add(on_commit)

    def producer(self, producer_id: int) -> ProducerStamp | None:
        return self._producers.get(producer_id)

    def fail(self, error: LogFailed) -> None:
        """For tests: every further append ends in `error`."""
        self._error = error

    @property
    def pending(self) -> int:
        """Number of appends that are not committed yet."""
        return len(self._pending)

    def commit(self) -> None:
        """Make pending appends readable, acknowledge them, notify subscribers; in this order."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        self._batches += [batch for batch, _ in pending]
        self._firsts += [batch.first_sequence for batch, _ in pending]
        self._newest = self._batches[-1]
        for batch, done in pending:
            run_callback(done, receipt_for(batch))
        self._subscribers.notify()

    def cancel(self) -> None:
        """The hub was deleted: cancel pending appends and refuse further ones."""
        self._error = OperationCancelled("The event hub was deleted.")
        pending, self._pending = self._pending, []
        self._batches, self._firsts, self._newest = [], [], None
        for _, done in pending:
            self._wake(partial(run_callback, done, self._error))

    def drop_before(self, oldest_ms: int) -> int:
        """Drop batches that are older; each counts as a segment here. Returns the bytes freed."""
        dropped = 0
        while dropped < len(self._batches) and self._batches[dropped].enqueued_ms < oldest_ms:
            dropped += 1
        freed = sum(record_bytes(batch.sections) for batch in self._batches[:dropped])
        del self._batches[:dropped], self._firsts[:dropped]
        return freed

    def _index_of(self, sequence: int) -> int:
        return max(0, bisect_right(self._firsts, sequence) - 1)


class MemoryLogStore:
    """All partitions, in memory only."""

    def __init__(self, wake: Wake) -> None:
        self._wake = wake
        self._is_commit_scheduled = False
        self._partitions: dict[tuple[str, int], MemoryPartition] = {}

    def partition(self, hub_id: str, index: int) -> MemoryPartition:
        partition = self._partitions.get((hub_id, index))
        if partition is None:
            partition = MemoryPartition(self._wake, self._schedule_commit)
            self._partitions[hub_id, index] = partition
        return partition

    def drop(self, hub_id: str) -> None:
        for key in [key for key in self._partitions if key[0] == hub_id]:
            self._partitions.pop(key).cancel()

    def enforce_retention(self, hub_id: str, *, retention_ms: int, now_ms: int) -> int:
        return sum(
            partition.drop_before(now_ms - retention_ms)
            for (hub, _), partition in self._partitions.items()
            if hub == hub_id
        )

    def health(self) -> LogHealth:
        """Always alive: it commits on the owner's thread."""
        queued = sum(partition.pending for partition in self._partitions.values())
        return LogHealth(is_alive=True, last_round_ms=None, queued=queued)

    def close(self) -> None:
        self._commit()

    def _schedule_commit(self) -> None:
        """Schedule one commit for all pending appends, as group commit does on disk."""
        if not self._is_commit_scheduled:
            self._is_commit_scheduled = True
            self._wake(self._commit)

    def _commit(self) -> None:
        self._is_commit_scheduled = False
        for partition in list(self._partitions.values()):
            partition.commit()
