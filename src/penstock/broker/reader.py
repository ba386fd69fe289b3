"""One reader of one partition: what it delivers next. It decides; a door does the I/O.

The door asks `state()`. READY: it sends from `batch` at `position`, as much as `allowance()` allows
now, and says so with `advance()`; allowed nothing, it waits for `on_ready`.
AT_END: it waits for `on_ready`. NEEDS_DISK: it runs `fetch()` on a thread that may block and hands
the result to `fetched()`. No per-event work is done here, but for finding the first event.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import msgspec

from penstock.broker.egress import EgressLimiter
from penstock.broker.reader_registry import ReaderIdentity
from penstock.log.api import PartitionLog, PartitionStatus, Unsubscribe
from penstock.model import limits
from penstock.model.errors import PenstockError
from penstock.model.events import StoredBatch
from penstock.model.names import GroupName
from penstock.model.positions import Position, PositionKind
from penstock.model.sections import section_position

OnEnd = Callable[[PenstockError], None]
"""The service ends a link: called once, never after the link's own close(), on the owner's
thread and possibly before the call that caused it returns."""

OnReady = Callable[[], None]

# Reading ahead starts small and doubles as the reader keeps up, so that many readers that stall
# at once (no credit) hold little.
_AHEAD_BYTES_FIRST = limits.READ_CHUNK_BYTES // 16
_RUN_BATCHES_MAX = 32  # sent from at once: batches of a hundred small events fill a turn with fewer


class ReadState(IntEnum):
    READY = 0  # there is a batch to send from
    AT_END = 1  # everything committed is sent; on_ready tells of more
    NEEDS_DISK = 2  # fetch() must be run, on a thread that may block


class FetchResult(msgspec.Struct, frozen=True):
    """What fetch() found: batches from the one that holds `sequence` on."""

    sequence: int
    batches: list[StoredBatch]


class Reader:
    """Made by `HubRuntime.open_reader`; everything but fetch() is for the owner's thread."""

    __slots__ = (
        "_ahead",
        "_ahead_bytes",
        "_ahead_next",
        "_batch",
        "_closed",
        "_egress",
        "_fetching",
        "_log",
        "_on_close",
        "_on_end",
        "_on_ready",
        "_start",
        "_unsubscribe",
        "_waiting",
        "group",
        "identity",
        "partition",
        "position",
        "remaining",
        "sequence",
    )

    def __init__(
        self,
        log: PartitionLog,
        start: Position,
        *,
        group: GroupName,
        partition: int,
        identity: ReaderIdentity,
        on_end: OnEnd,
        on_ready: OnReady,
        on_close: Callable[[Reader], None],
        egress: EgressLimiter | None = None,
    ) -> None:
        """`egress` None: the service reads for itself; it is neither slowed nor counted."""
        self.group = group
        self.partition = partition
        self.identity = identity
        self.sequence = 0  # of the next event, once the start is located
        self.position = 0  # where that event's data section starts in batch.sections
        self.remaining = 0  # events of the batch from `position` on
        self._log = log
        self._on_end = on_end
        self._on_ready = on_ready
        self._on_close = on_close
        self._egress = egress
        self._start: Position | None = start
        self._batch: StoredBatch | None = None
        self._ahead: list[StoredBatch] = []
        self._ahead_next = 0
        self._ahead_bytes = _AHEAD_BYTES_FIRST
        self._fetching = False
        self._waiting = False
        self._closed = False
        self._unsubscribe: Unsubscribe | None = None
        self._locate_in_memory(start)

    @property
    def batch(self) -> StoredBatch:
        """The batch to send from; only while READY."""
        assert self._batch is not None
        return self._batch

    @property
    def batches(self) -> list[StoredBatch]:
        """That one and some of those behind it; only while READY."""
        assert self._batch is not None
        return self._ahead[self._ahead_next - 1 : self._ahead_next + _RUN_BATCHES_MAX]

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def lag_events(self) -> int:
        """Retained events that it has not taken; 0 until its start is located."""
        status = self._log.status()
        if self._start is not None or status.is_empty:
            return 0
        return max(0, status.last_sequence + 1 - max(self.sequence, status.begin_sequence))

    def runtime(self) -> PartitionStatus:
        """The partition as it is now, for receiver runtime metrics (protocol.md 5.4)."""
        return self._log.status()

    def state(self) -> ReadState:
        """What can be done next. Never blocks."""
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
        """How many bytes of events may be sent now, the last one going beyond if need be; 0: the
        namespace's egress units are used up, and `on_ready` tells of more."""
        egress = self._egress
        if egress is None or not egress.is_paced:
            return bytes_max
        return egress.allowance(self, bytes_max)

    def resume(self) -> None:
        """Egress units are back."""
        if not self._closed:
            self._on_ready()

    def advance(self, events: int, position: int) -> None:
        """`events` of `batches` were sent; behind the last of them `position` is reached in the
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
        """Locate the start if need be, and read from the disk. Blocks; any thread; one at a time.
        Raises ArgumentError for a start beyond the end, LogCorrupt, or another PenstockError."""
        assert not self._fetching
        assert self._batch is None
        self._fetching = True
        try:
            start, sequence = self._start, self.sequence
            if start is not None:
                sequence = self._log.locate(start)
            # What retention has dropped meanwhile is left out: reading goes on at the oldest.
            batches = self._log.read(sequence, bytes_max=self._ahead_bytes)
            return FetchResult(sequence, batches)
        except BaseException:
            self._fetching = False
            raise

    def accept_fetch(self, result: FetchResult) -> None:
        """What fetch() returned, back on the owner's thread; ignored once closed."""
        if self._closed:
            return
        assert self._fetching
        self._fetching = False
        self._start = None
        self.sequence = result.sequence
        if result.batches:
            self._read_ahead(result.batches)
        else:
            self._skip_what_is_gone()

    def release_memory(self) -> None:
        """Forget what was read ahead, for a reader that is to wait long for credit; it is found
        again by its sequence number."""
        self._batch = None
        self._ahead = []
        self._ahead_next = 0
        self._ahead_bytes = _AHEAD_BYTES_FIRST
        self.remaining = 0

    def close(self) -> None:
        """Give the place up. Harmless when done before, or when the service ended the reader."""
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
        """The service takes the place away and says why."""
        if not self._closed:
            self.close()
            self._on_end(error)

    def _locate_in_memory(self, start: Position) -> None:
        """LATEST is evaluated now, not when credit arrives (protocol.md 5.3)."""
        if start.kind not in (PositionKind.LATEST, PositionKind.EARLIEST):
            return
        status = self._log.status()
        if start.kind is PositionKind.LATEST or status.is_empty:
            self.sequence = status.last_sequence + 1
        else:
            self.sequence = status.begin_sequence
        self._start = None

    def _skip_what_is_gone(self) -> None:
        """The disk had nothing. Unless that is the end, retention dropped it all: asking for it
        again would never end."""
        status = self._log.status()
        oldest = status.last_sequence + 1 if status.is_empty else status.begin_sequence
        self.sequence = max(self.sequence, oldest)

    def _read_ahead(self, batches: list[StoredBatch]) -> None:
        self._ahead = batches
        self._ahead_next = 0
        self._next_batch()

    def _next_batch(self) -> None:
        """Enter the batch that holds the next event, or the first one after it when retention
        overtook the reader."""
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
        if self._waiting:
            self._waiting = False
            self._on_ready()


def _prefix(batches: list[StoredBatch], bytes_max: int) -> list[StoredBatch]:
    """As many as fit into bytes_max, at least one."""
    total = 0
    for index, batch in enumerate(batches):
        total += len(batch.sections)
        if total > bytes_max and index > 0:
            return batches[:index]
    return batches
