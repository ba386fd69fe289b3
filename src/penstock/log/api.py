"""The contract of a partition's commit log.

Threads: call everything on the owner's thread (the event loop) unless a docstring says "any
thread". Callbacks run on the owner's thread too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from penstock.model.errors import PenstockError
from penstock.model.events import EventBatch, ProducerStamp, Receipt, StoredBatch
from penstock.model.positions import Position

AppendDone = Callable[[Receipt | PenstockError], None]
"""Called once per append, in the order of appending within a partition: with the receipt after the
events are as durable as the store promises, or with the error."""

Unsubscribe = Callable[[], None]


class PartitionStatus(msgspec.Struct, frozen=True, gc=False):
    """A consistent view of the committed log (protocol.md 3.2, 13)."""

    begin_sequence: int  # of the oldest retained event; -1 if there is none
    last_sequence: int  # of the newest committed event ever; -1 if there was none
    last_offset: int  # of that event; -1 if there was none
    last_enqueued_ms: int  # 0 if there was none
    size_bytes: int
    failed: str | None  # why appends fail; None while they succeed

    @property
    def is_empty(self) -> bool:
        return self.begin_sequence < 0

    @property
    def next_retained(self) -> int:
        """The sequence number of the oldest retained event; of the next event if there is none."""
        return self.last_sequence + 1 if self.is_empty else self.begin_sequence


class LogHealth(msgspec.Struct, frozen=True, gc=False):
    """Whether a store still commits. A store that waits for its disk is alive, but its
    `last_round_ms` is old."""

    is_alive: bool  # False: every append fails until the process is restarted
    last_round_ms: int | None  # monotonic clock, of the last completed round or idle wake-up
    queued: int  # appends and other tasks that no round has taken yet


class PartitionLog(Protocol):
    """One partition: an ordered, append-only sequence of batches."""

    def append(self, batch: EventBatch, *, now_ms: int, done: AppendDone) -> None:
        """Queue a batch after all earlier ones. Sequence numbers, offset and enqueued time (never
        before the previous batch's) are assigned now. Never blocks; `done` never runs before this
        returns. After the log has failed, `done` gets LogFailed."""
        ...

    def status(self) -> PartitionStatus:
        """Committed state. Never blocks."""
        ...

    def locate(self, position: Position) -> int:
        """The sequence number of the first event to deliver: from begin_sequence to
        last_sequence + 1 (nothing yet). Positions before the retained log mean its oldest event.
        Raises ArgumentError for an offset or sequence number beyond the end, with the text of
        protocol.md 13 ("The supplied offset 'N' is invalid. The last offset in the system is
        'M'"). May read the disk: any thread."""
        ...

    def read_cached(self, sequence: int, *, bytes_max: int = 0) -> list[StoredBatch] | None:
        """Committed batches from the one that holds `sequence`, if they are in memory, at most some
        hundreds; [] at the committed end; None if they must be read from disk. Never blocks. For a
        reader that continues where it stopped, up to `bytes_max` bytes come from the operating
        system's page cache too."""
        ...

    def read(self, sequence: int, *, bytes_max: int) -> list[StoredBatch]:
        """The same from disk: at least one batch unless at the committed end, then as many as fit
        into `bytes_max`. For a `sequence` that retention has dropped, reading starts at the oldest
        event. Raises LogCorrupt for damaged events, InternalError if the disk fails. Any thread."""
        ...

    def subscribe(self, on_commit: Callable[[], None]) -> Unsubscribe:
        """Call `on_commit` after each commit that made more events readable. It runs while the log
        applies the round, after the round's `done` callbacks: it must only note that there is work,
        not read the log (see broker/round_queue.py)."""
        ...

    def producer(self, producer_id: int) -> ProducerStamp | None:
        """The newest stamp appended (not necessarily committed) under this producer id."""
        ...


class LogStore(Protocol):
    """All partitions of one data directory."""

    def partition(self, hub_id: str, index: int) -> PartitionLog:
        """Open or create a partition. Returns the same object every time."""
        ...

    def drop(self, hub_id: str) -> None:
        """Remove a hub's partitions and their files; pending appends end in OperationCancelled."""
        ...

    def enforce_retention(self, hub_id: str, *, retention_ms: int, now_ms: int) -> int:
        """Drop whole segments whose newest event is older than the retention. Returns the bytes
        freed."""
        ...

    def health(self) -> LogHealth:
        """Whether appends are still committed, and when they last were. Never blocks. Any
        thread."""
        ...

    def close(self) -> None:
        """Commit queued appends, run their `done` callbacks, release the lock. Blocks. No other
        call may follow."""
        ...
