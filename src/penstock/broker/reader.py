"""One reader of one partition decides what to deliver next; the gateway does the I/O.

The gateway calls `state()`:

- READY: it sends from `batch` at `position`, up to `allowance()` bytes, and reports what it sent
  with `advance()`. With an allowance of 0 it waits for `on_ready`.
- AT_END: it waits for `on_ready`.
- NEEDS_DISK: it runs `fetch()` on a thread that may block and passes the result to
  `accept_fetch()` on the owner's thread.

No per-event work is done here except finding the first event of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import msgspec

from penstock.broker.egress import EgressLimiter
from penstock.broker.round_queue import RoundQueue
from penstock.log.api import PartitionLog, PartitionStatus, Unsubscribe
from penstock.model import limits
from penstock.model.errors import PenstockError
from penstock.model.events import StoredBatch
from penstock.model.names import GroupName
from penstock.model.positions import Position, PositionKind
from penstock.model.sections import section_position

OnEnd = Callable[[PenstockError], None]
"""The service ended a link. Called once, never after the link's own close(), on the owner's
thread, possibly before the call that caused it returns."""

OnReady = Callable[[], None]

# Read-ahead starts small and doubles while the reader keeps up, so that many readers without credit
# hold little memory.
_AHEAD_BYTES_FIRST = limits.READ_CHUNK_BYTES // 16
_RUN_BATCHES_MAX = 32  # sent at once; batches of a hundred small events fill a turn with fewer


class ReadState(IntEnum):
    READY = 0  # `batch` can be sent
    AT_END = 1  # all committed events are sent; `on_ready` is called when there are more
    NEEDS_DISK = 2  # fetch() must run on a thread that may block


class FetchResult(msgspec.Struct, frozen=True):
    """Result of fetch(): batches, the first of which contains `sequence` if it is retained."""

    sequence: int
    batches: list[StoredBatch]


class Reader:
    """Created by `HubRuntime.open_reader`. Everything but fetch() is called on the owner's thread.

    fetch() runs on another thread. It sets `_fetching` and reads `_start`, `sequence` and
    `_ahead_bytes`. No batch is current until accept_fetch(), so `advance` cannot change `sequence`
    meanwhile.
    """

    def __init__(
        self,
        log: PartitionLog,
        start: Position,
        *,
        group: GroupName,
        partition: int,
        name: str | None,
        epoch: int | None,
        on_end: OnEnd,
        on_ready: OnReady,
        on_close: Callable[[Reader], None],
        rounds: RoundQueue,
        egress: EgressLimiter | None = None,
    ) -> None:
        """`name` is the receiver name that the client chose; `epoch` makes the reader exclusive.
        With `egress` None the reader is neither slowed nor counted (reads of the service)."""
        self.group = group
        self.partition = partition
        self.name = name
        self.epoch = epoch
        self.sequence = 0  # of the next event to deliver; valid once `_start` is None
        self.position = 0  # start of the data section of that event in batch.sections
        self.remaining = 0  # events of the batch from `position` on; never 0 while READY
        self._log = log
        self._on_end = on_end
        self._on_ready = on_ready
        self._on_close = on_close
        self._rounds = rounds
        self._egress = egress
        self._start: Position | None = start  # not yet located; then None
        # The current batch is `_ahead[_ahead_next - 1]`; None unless READY.
        self._batch: StoredBatch | None = None
        self._ahead: list[StoredBatch] = []
        self._ahead_next = 0
        self._ahead_bytes = _AHEAD_BYTES_FIRST
        self._fetching = False  # from fetch() until accept_fetch()
        self._waiting = False  # AT_END was returned and on_ready was not called since
        self._closed = False
        self._unsubscribe: Unsubscribe | None = None
        self._locate_in_memory(start)

    @property
    def batch(self) -> StoredBatch:
        """The batch to send from. Only while READY."""
        assert self._batch is not None
        return self._batch

    @property
    def batches(self) -> list[StoredBatch]:
        """The current batch and some after it. Only while READY."""
        assert self._batch is not None
        return self._ahead[self._ahead_next - 1 : self._ahead_next + _RUN_BATCHES_MAX]

    @property
    def lag_events(self) -> int:
        """Retained events that were not delivered; 0 until the start is located."""
        status = self._log.status()
        if self._start is not None:
            return 0
        return max(0, status.last_sequence + 1 - max(self.sequence, status.next_retained))

    def runtime(self) -> PartitionStatus:
        """Status of the partition, for receiver runtime metrics (protocol.md 5.4)."""
        return self._log.status()

    def state(self) -> ReadState:
        """What the gateway can do next. Does not block."""
        if self._batch is not None:
            return ReadState.READY
        if self._closed:
            return ReadState.AT_END
        if self._fetching or self._start is not None:
            return ReadState.NEEDS_DISK
        batches = self._log.read_cached(self.sequence, bytes_max=self._ahead_bytes)
        if batches is None:
            return ReadState.NEEDS_DISK
        if batches:
            self._read_ahead(_prefix(batches, self._ahead_bytes))
            return ReadState.READY
        self._wait()
        return ReadState.AT_END

    def allowance(self, bytes_max: int) -> int:
        """Bytes of events that may be sent now; the last event may exceed it. 0: the egress units
        of the namespace are used up, and `on_ready` is called when there are more."""
        egress = self._egress
        if egress is None or not egress.is_paced:
            return bytes_max
        return egress.allowance(self, bytes_max)

    def resume(self) -> None:
        """Events were committed, or egress units are available again (`EgressWaiter`)."""
        if not self._closed:
            self._on_ready()

    def advance(self, events: int, position: int) -> None:
        """`events` events of `batches` were sent. `position` is the end of the last one in the
        sections of its batch."""
        assert events > 0
        size = 0
        while events > self.remaining:
            size += len(self.batch.sections) - self.position
            events -= self.remaining
            self.sequence += self.remaining
            self._next_batch()
        size += position - self.position
        if self._egress is not None:
            self._egress.spent(self, size)
        self.sequence += events
        self.remaining -= events
        self.position = position
        if self.remaining == 0:
            self._next_batch()

    def fetch(self) -> FetchResult:
        """Locate the start if necessary, and read from disk. Blocks; any thread; one call at a
        time. Raises ArgumentError for a start beyond the end, LogCorrupt, other PenstockErrors."""
        assert not self._fetching
        assert self._batch is None
        self._fetching = True
        try:
            start, sequence = self._start, self.sequence
            if start is not None:
                sequence = self._log.locate(start)
            # Events that retention removed are skipped: reading goes on at the oldest event.
            batches = self._log.read(sequence, bytes_max=self._ahead_bytes)
            return FetchResult(sequence, batches)
        except BaseException:
            self._fetching = False
            raise

    def accept_fetch(self, result: FetchResult) -> None:
        """Take the result of fetch(), on the owner's thread. Ignored once closed."""
        if self._closed:
            return
        assert self._fetching
        self._fetching = False
        self._start = None
        self.sequence = result.sequence
        if result.batches:
            self._read_ahead(result.batches)
        else:
            self._skip_removed()

    def release_memory(self) -> None:
        """Drop the batches read ahead, for a reader that waits for credit. `sequence` stays, so
        they are read again."""
        self._batch = None
        self._ahead = []
        self._ahead_next = 0
        self._ahead_bytes = _AHEAD_BYTES_FIRST
        self.remaining = 0

    def close(self) -> None:
        """Release the registration. Idempotent; also after the service ended the reader."""
        if self._closed:
            return
        self._closed = True
        self._waiting = False
        self.release_memory()
        if self._egress is not None:
            self._egress.leave(self)
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        self._on_close(self)

    def end(self, error: PenstockError) -> None:
        """Close the reader from the service's side and notify its owner."""
        if not self._closed:
            self.close()
            self._on_end(error)

    def _locate_in_memory(self, start: Position) -> None:
        """Locate LATEST and EARLIEST now: LATEST is the end at attach, not when credit arrives
        (protocol.md 5.3)."""
        if start.kind not in (PositionKind.LATEST, PositionKind.EARLIEST):
            return
        status = self._log.status()
        is_latest = start.kind is PositionKind.LATEST
        self.sequence = status.last_sequence + 1 if is_latest else status.next_retained
        self._start = None

    def _skip_removed(self) -> None:
        """The disk had no batch at `sequence`. Unless that is the end, retention removed it: go on
        at the oldest event, or the reader would fetch the same sequence number forever."""
        self.sequence = max(self.sequence, self._log.status().next_retained)

    def _read_ahead(self, batches: list[StoredBatch]) -> None:
        self._ahead = batches
        self._ahead_next = 0
        self._next_batch()

    def _next_batch(self) -> None:
        """Make the batch with the next event current, or the first one after it if retention
        removed the event."""
        self._batch = None
        while self._ahead_next < len(self._ahead):
            batch = self._ahead[self._ahead_next]
            self._ahead_next += 1
            skip = max(0, self.sequence - batch.first_sequence)
            if skip >= batch.count:
                continue
            self._batch = batch
            self.sequence = batch.first_sequence + skip
            self.position = section_position(batch.sections, skip)
            self.remaining = batch.count - skip
            return
        self._ahead = []
        self._ahead_next = 0
        self._ahead_bytes = min(2 * self._ahead_bytes, limits.READ_CHUNK_BYTES)

    def _wait(self) -> None:
        if self._unsubscribe is None:
            self._unsubscribe = self._log.subscribe(self._on_commit)
        self._waiting = True

    def _on_commit(self) -> None:
        """The log applies a commit round: mark the reader ready. It runs after the log returned."""
        if self._waiting:
            self._waiting = False
            self._rounds.deliver(self.resume)


def _prefix(batches: list[StoredBatch], bytes_max: int) -> list[StoredBatch]:
    """The first batches that fit into `bytes_max`, at least one."""
    total = 0
    for index, batch in enumerate(batches):
        total += len(batch.sections)
        if total > bytes_max and index > 0:
            return batches[:index]
    return batches
