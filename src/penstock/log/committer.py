"""The one thread that commits, with helpers for what is long: natural group commit.

While it flushes, appends gather; when the flush ends, all of them are the next round: one write and
one flush per partition touched, then one turn on the owner's thread that tells everybody. There is
no timer: an idle log costs nothing, a lone append waits for nobody, a busy disk is used fully.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Protocol

from penstock.log.appending import Wake
from penstock.log.writer import Outcome, PartitionWriter, Pending
from penstock.model import limits

_logger = logging.getLogger(__name__)

# A round ends at so many bytes: the first of them hear of it before the last are written, and those
# who publish send on meanwhile. A disk whose flush takes long, whatever its size, gets larger ones,
# else flushes would bound the rate.
ROUND_BYTES_MIN = 2 * limits.MB
ROUND_BYTES_MAX = 32 * limits.MB
SLOW_FLUSH_S, QUICK_FLUSH_S = 0.010, 0.005
FLUSH_HELPERS = 8  # flushing at once: 3 times the rate of one by one at 4 files, 5 and more at 16
# From so many bytes on, writing takes long enough that one partition is written while another is
# flushed. Chosen well above what a write that fits a page or two takes, not measured.
LARGE_ROUND_BYTES = 512 * 1024

Chore = Callable[[], object]
OnFlush = Callable[[float], object]
"""How many seconds a round's flush took, on the committer's thread; must not block or raise."""


class Committed(Protocol):
    """The owner's half of a partition, as the committer sees it."""

    writer: PartitionWriter

    def settle(self, outcome: Outcome) -> None:
        """On the owner's thread: hear the outcome of a round."""
        ...


class Committer:
    """Takes appends from the owner's thread and gives outcomes back to it."""

    def __init__(self, wake: Wake, *, on_flush: OnFlush | None = None) -> None:
        self._wake = wake
        self._on_flush = on_flush
        self._queue: SimpleQueue[tuple[Committed, Pending] | Chore | None] = SimpleQueue()
        self._owner = threading.get_ident()
        self._is_owner_gone = False
        self._news: deque[Callable[[], object]] = deque()
        self._round_bytes = ROUND_BYTES_MIN
        self._helpers = ThreadPoolExecutor(FLUSH_HELPERS, thread_name_prefix="penstock-flush")
        self._thread = threading.Thread(target=self._run, name="penstock-commit", daemon=True)
        self._thread.start()

    def put(self, partition: Committed, pending: Pending) -> None:
        """On the owner's thread; never blocks."""
        self._queue.put((partition, pending))

    def do(self, chore: Chore) -> None:
        """Run `chore` on the committer's thread, after all that was put before it."""
        self._queue.put(chore)

    def do_aside(self, chore: Chore) -> None:
        """The same for what would keep the next round waiting, such as removing large files."""
        self._queue.put(lambda: self._aside(chore))

    def post(self, news: Callable[[], object]) -> None:
        """From the committer's thread: have `news` run by the owner, behind all earlier ones."""
        self._news.append(news)
        self._wake_owner()

    def deliver(self) -> None:
        """On the owner's thread: everything that is known by now."""
        while True:
            try:
                news = self._news.popleft()
            except IndexError:
                return
            self._guarded(news)

    def close(self) -> None:
        """Finish all that was put, tell of it, then end. Blocks.

        On the owner's thread, where it belongs, the news are told before this returns. Another
        thread leaves them to the owner, who has been woken for each, unless it is gone.
        """
        self._queue.put(None)
        self._thread.join()
        self._helpers.shutdown(wait=True)
        if threading.get_ident() == self._owner or self._is_owner_gone:
            self.deliver()

    # --- on the committer's thread ----------------------------------------------------------------

    def _run(self) -> None:
        is_open = True
        while is_open:
            appends, chores, is_open = self._take()
            if appends:
                self._commit(appends)
            for chore in chores:
                self._guarded(chore)

    def _take(self) -> tuple[dict[Committed, list[Pending]], list[Chore], bool]:
        """Everything that is there; waits for the first of it, without end and without polling."""
        appends: dict[Committed, list[Pending]] = {}
        chores: list[Chore] = []
        size = 0
        item = self._queue.get()
        while True:
            if item is None:
                return appends, chores, False
            if isinstance(item, tuple):
                partition, pending = item
                waiting = appends.get(partition)
                if waiting is None:
                    appends[partition] = [pending]
                else:
                    waiting.append(pending)
                size += pending.size
                if size >= self._round_bytes:
                    return appends, chores, True
            else:
                chores.append(item)
            try:
                item = self._queue.get_nowait()
            except Empty:
                return appends, chores, True

    def _commit(self, appends: dict[Committed, list[Pending]]) -> None:
        if len(appends) > 1 and _size(appends) >= LARGE_ROUND_BYTES:
            flush_s = self._store_at_once(appends)
        else:
            flush_s = self._store(appends)
        if flush_s is not None:
            self._round_bytes = next_round_bytes(self._round_bytes, flush_s)
            if self._on_flush is not None:
                self._on_flush(flush_s)
        for partition in appends:
            self._news.append(partial(partition.settle, partition.writer.finish()))
        self._wake_owner()
        for partition in appends:
            partition.writer.tidy()

    def _store(self, appends: dict[Committed, list[Pending]]) -> float | None:
        """Write everything, then flush all of it at once; how long that flush took, if any."""
        for partition, pending in appends.items():
            partition.writer.begin(pending)
        flushing = [p.writer for p in appends if p.writer.needs_flush]
        if not flushing:
            return None
        began_s = monotonic()
        others = [self._helpers.submit(writer.flush) for writer in flushing[1:]]
        flushing[0].flush()
        for other in others:
            other.result()
        return monotonic() - began_s

    def _store_at_once(self, appends: dict[Committed, list[Pending]]) -> float | None:
        """Write and flush each partition by itself, all at once; how long the longest flush took.
        A writer is in one thread's hands all the while, and answers for its own failures."""
        rounds = [(partition.writer, pending) for partition, pending in appends.items()]
        others = [self._helpers.submit(_store_one, *each) for each in rounds[1:]]
        told = [_store_one(*rounds[0]), *(other.result() for other in others)]
        return max((flush_s for flush_s in told if flush_s is not None), default=None)

    def _wake_owner(self) -> None:
        try:
            self._wake(self.deliver)
        except RuntimeError:
            self._is_owner_gone = True
            # The owner's loop is closed already: `close` delivers what it no longer will.
            _logger.debug("The owner's thread takes no more callbacks.")

    def _aside(self, chore: Chore) -> None:
        self._helpers.submit(self._guarded, chore)

    def _guarded(self, act: Callable[[], object]) -> None:
        """One failure must not take the others' turn."""
        try:
            act()
        except Exception:
            _logger.exception("An act of the log failed.")


def _size(appends: dict[Committed, list[Pending]]) -> int:
    return sum(each.size for pending in appends.values() for each in pending)


def _store_one(writer: PartitionWriter, pending: list[Pending]) -> float | None:
    writer.begin(pending)
    if not writer.needs_flush:
        return None
    began_s = monotonic()
    writer.flush()
    return monotonic() - began_s


def next_round_bytes(round_bytes: int, flush_s: float) -> int:
    """How large a round may be after one whose flush took so long."""
    if flush_s > SLOW_FLUSH_S:
        return min(round_bytes * 2, ROUND_BYTES_MAX)
    if flush_s < QUICK_FLUSH_S:
        return max(round_bytes // 2, ROUND_BYTES_MIN)
    return round_bytes
