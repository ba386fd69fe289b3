"""The one thread that commits, with helper threads for long work: group commit.

While the committer flushes, appends gather in its queue; when the flush ends, all of them are the
next round: one write and one flush per partition touched, then one callback on the owner's thread
that settles every append of the round.

All threads start with the store, so that a lack of threads later on cannot stop publishing. A
helper only ever speeds a round up: the committer itself runs every job that no helper has begun.

| what raises | what follows |
|---|---|
| a partition's write, flush or commit | that partition fails (writer.py), the others go on |
| a chore (a mark, retention, a deletion) | one line in the log; the chore is dropped |
| the loop itself | the thread ends: queued and later appends fail, `is_alive` is False |
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Protocol

from penstock.log.api import LogHealth
from penstock.log.append import Wake
from penstock.log.embedded.writer import Outcome, PartitionWriter, Pending
from penstock.model import limits
from penstock.model.errors import DataDirectoryError, LogFailed

_logger = logging.getLogger(__name__)

# A round ends at this size: the first publishers of a round get their answer before the last bytes
# of a burst are written, and send on meanwhile. A disk whose flush takes long, whatever its size,
# gets larger rounds, else the number of flushes would bound the rate.
ROUND_BYTES_MIN = 2 * limits.MB
ROUND_BYTES_MAX = 32 * limits.MB
SLOW_FLUSH_S, QUICK_FLUSH_S = 0.010, 0.005
FLUSH_HELPERS = 8  # flushing at once: 3 times the rate of one by one at 4 files, 5 and more at 16
# From this size on, writing takes long enough that one partition is written while another is
# flushed. Chosen well above what a write that fits a page or two takes, not measured.
LARGE_ROUND_BYTES = 512 * 1024
IDLE_WAKE_S = 5.0  # an idle committer wakes this often, to show that it is alive

Chore = Callable[[], object]
OnFlush = Callable[[float], object]
"""Called on the committer's thread with the seconds that a round's flush took; must not block."""


class Committed(Protocol):
    """The owner's half of a partition, as the committer sees it."""

    writer: PartitionWriter

    def settle(self, outcome: Outcome) -> None:
        """On the owner's thread: take the outcome of a round."""
        ...


class Job:
    """Work for a helper thread, or for the caller that takes it back before a helper begins it."""

    __slots__ = ("_chore", "future")

    def __init__(self, chore: Chore) -> None:
        self.future: Future[object] = Future()  # done when the work has ended
        self._chore: Chore | None = chore

    def run(self) -> None:
        """Run the work, unless it was taken back. An error is logged."""
        if not self.future.set_running_or_notify_cancel():
            return
        assert self._chore is not None
        try:
            self._chore()
        except BaseException:
            _logger.exception("A job of a flush helper failed.")
        self.future.set_result(None)

    def take_back(self) -> Chore | None:
        """The work, for the caller to run; None if a helper has begun it. The job no longer holds
        it: a busy helper may find the job in its queue much later, and a round's payloads must not
        wait for that."""
        if not self.future.cancel():
            return None
        chore, self._chore = self._chore, None
        return chore


class HelperThreads:
    """A fixed number of threads, all started at construction."""

    def __init__(self, count: int) -> None:
        """Goes on with fewer threads, or none, where the system refuses to start more."""
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        for number in range(count):
            thread = threading.Thread(
                target=self._run, name=f"penstock-flush-{number}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:
                _logger.warning(
                    "only %d of %d flush helper threads could be started (%s): flushes run one "
                    "after the other; raise the limit on threads of this user or container",
                    number, count, error,
                )  # fmt: skip
                return
            self._threads.append(thread)

    def submit(self, chore: Chore) -> Job:
        """Any thread. Without helpers the caller runs it here."""
        job = Job(chore)
        if self._threads:
            self._jobs.put(job)
        else:
            job.run()
        return job

    def run_all(self, chores: Sequence[Chore]) -> None:
        """Run all chores, side by side where helpers are free, and return when all have ended.

        They must not raise. The caller runs the first one and every other that no helper has begun
        by then, so this ends also when no helper is left.
        """
        jobs = [self.submit(chore) for chore in chores[1:]]
        chores[0]()
        begun: list[Job] = []
        for job in jobs:
            chore = job.take_back()
            if chore is None:
                begun.append(job)
            else:
                chore()
        for job in begun:
            job.future.exception()  # waits

    def close(self) -> None:
        """Wait for all jobs that were submitted."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()
            del job  # it holds a round's payloads


class Committer:
    """Takes appends from the owner's thread and gives outcomes back to it."""

    def __init__(self, wake: Wake, *, on_flush: OnFlush | None = None) -> None:
        """Raises DataDirectoryError where the system starts no thread at all."""
        self._wake = wake
        self._on_flush = on_flush
        self._queue: SimpleQueue[tuple[Committed, Pending] | Chore | None] = SimpleQueue()
        self._owner = threading.get_ident()
        self._is_owner_gone = False
        self._news: deque[Callable[[], object]] = deque()
        self._round_bytes = ROUND_BYTES_MIN
        self._round: dict[Committed, list[Pending]] = {}  # taken from the queue and not settled
        self._failure: LogFailed | None = None  # why the thread ended
        self._last_round_ms: int | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-commit", daemon=True)
        self._helpers = HelperThreads(FLUSH_HELPERS)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._helpers.close()
            raise DataDirectoryError(
                f"The log's committer thread could not be started: {error}. Raise the limit on "
                f"threads or processes of this user or container."
            ) from error

    @property
    def health(self) -> LogHealth:
        """Any thread."""
        return LogHealth(self._thread.is_alive(), self._last_round_ms, self._queue.qsize())

    def put(self, partition: Committed, pending: Pending) -> None:
        """On the owner's thread; never blocks."""
        self._queue.put((partition, pending))
        if self._failure is not None:
            self._fail_queued(self._failure)

    def do(self, chore: Chore) -> None:
        """Run `chore` on the committer's thread, after all that was put before it."""
        self._queue.put(chore)

    def do_aside(self, chore: Chore) -> None:
        """The same for what would keep the next round waiting, such as removing large files."""
        self._queue.put(lambda: self._helpers.submit(partial(_guarded, chore)))

    def post(self, news: Callable[[], object]) -> None:
        """From the committer's thread: have `news` run by the owner, after all earlier ones."""
        self._news.append(news)
        self._wake_owner()

    def deliver(self) -> None:
        """On the owner's thread: run everything that was posted by now."""
        while True:
            try:
                news = self._news.popleft()
            except IndexError:
                return
            _guarded(news)

    def close(self) -> None:
        """Finish all that was put, settle it, then end. Blocks.

        On the owner's thread, where it belongs, the news are delivered before this returns. Another
        thread leaves them to the owner, which has been woken for each, unless it is gone.
        """
        self._queue.put(None)
        self._thread.join()
        if self._failure is not None:
            self._fail_queued(self._failure)
        self._helpers.close()
        if threading.get_ident() == self._owner or self._is_owner_gone:
            self.deliver()

    # --- on the committer's thread ----------------------------------------------------------------

    def _run(self) -> None:
        """Nothing may leave this function without failing what waits for it."""
        try:
            is_open = True
            while is_open:
                is_open = self._turn()
                self._last_round_ms = int(monotonic() * 1000)
        except BaseException as error:
            _logger.critical("committer ended error=%r", error, exc_info=True)
            taken, self._round = self._round, {}
            self._failure = LogFailed(
                f"The log's committer ended ({type(error).__name__}): what was acknowledged is "
                f"kept and served, nothing more is accepted until the service is restarted."
            )
            self._fail_queued(self._failure, taken)

    def _turn(self) -> bool:
        """One round, or one idle wake-up; whether the committer stays open."""
        chores: list[Chore] = []
        is_open = self._take(self._round, chores)
        if self._round:
            self._commit(self._round)
        for chore in chores:
            _guarded(chore)
        return is_open

    def _take(self, appends: dict[Committed, list[Pending]], chores: list[Chore]) -> bool:
        """Take everything that is queued; wait for the first item, up to IDLE_WAKE_S."""
        size = 0
        try:
            item = self._queue.get(timeout=IDLE_WAKE_S)
            while True:
                if item is None:
                    return False
                if isinstance(item, tuple):
                    partition, pending = item
                    waiting = appends.get(partition)
                    if waiting is None:
                        appends[partition] = [pending]
                    else:
                        waiting.append(pending)
                    size += pending.size
                    if size >= self._round_bytes:
                        return True
                else:
                    chores.append(item)
                item = self._queue.get_nowait()
        except Empty:
            return True

    def _commit(self, appends: dict[Committed, list[Pending]]) -> None:
        if len(appends) > 1 and _size(appends) >= LARGE_ROUND_BYTES:
            flush_s = self._store_at_once(appends)
        else:
            flush_s = self._store(appends)
        if flush_s is not None:
            self._round_bytes = next_round_bytes(self._round_bytes, flush_s)
            if self._on_flush is not None:
                _guarded(partial(self._on_flush, flush_s))
        partitions = list(appends)
        for partition in partitions:
            outcome = partition.writer.finish()
            del appends[partition]  # from here on its appends are settled by this outcome alone
            self._news.append(partial(partition.settle, outcome))
        self._wake_owner()
        for partition in partitions:
            _guarded(partition.writer.tidy)

    def _store(self, appends: dict[Committed, list[Pending]]) -> float | None:
        """Write everything, then flush all of it at once; how long that flush took, if any."""
        for partition, pending in appends.items():
            partition.writer.begin(pending)
        flushing = [p.writer for p in appends if p.writer.needs_flush]
        if not flushing:
            return None
        began_s = monotonic()
        self._helpers.run_all([writer.flush for writer in flushing])
        return monotonic() - began_s

    def _store_at_once(self, appends: dict[Committed, list[Pending]]) -> float | None:
        """Write and flush each partition by itself, all at once; how long the longest flush took.
        Only one thread uses a writer during that time."""
        flushes_s: list[float] = []
        self._helpers.run_all(
            [
                partial(_store_one, partition.writer, pending, flushes_s)
                for partition, pending in appends.items()
            ]
        )
        return max(flushes_s, default=None)

    def _wake_owner(self) -> None:
        try:
            self._wake(self.deliver)
        except RuntimeError:
            self._is_owner_gone = True
            # The owner's loop is closed already: `close` delivers what it no longer will.
            _logger.debug("The owner's thread takes no more callbacks.")

    def _fail_queued(
        self, error: LogFailed, waiting: dict[Committed, list[Pending]] | None = None
    ) -> None:
        """The thread ended: settle what it had taken (`waiting`) and what is queued with `error`.

        Runs on the ending thread, and on the owner's thread for what is put afterwards: the queue
        gives every item to one of them.
        """
        waiting = {} if waiting is None else waiting
        chores: list[Chore] = []
        self._queue.put(None)
        while self._take(waiting, chores):
            pass
        for partition, pending in waiting.items():
            failed = Outcome([], None, [], pending, error=error, is_final=True)
            self._news.append(partial(partition.settle, failed))
        self._wake_owner()


def _guarded(act: Callable[[], object]) -> None:
    """A failure is logged and does not keep the next act from being run."""
    try:
        act()
    except Exception:
        _logger.exception("A task of the log failed.")


def _size(appends: dict[Committed, list[Pending]]) -> int:
    return sum(each.size for pending in appends.values() for each in pending)


def _store_one(writer: PartitionWriter, pending: list[Pending], flushes_s: list[float]) -> None:
    writer.begin(pending)
    if writer.needs_flush:
        began_s = monotonic()
        writer.flush()
        flushes_s.append(monotonic() - began_s)


def next_round_bytes(round_bytes: int, flush_s: float) -> int:
    """How large a round may be after one whose flush took `flush_s` seconds."""
    if flush_s > SLOW_FLUSH_S:
        return min(round_bytes * 2, ROUND_BYTES_MAX)
    if flush_s < QUICK_FLUSH_S:
        return max(round_bytes // 2, ROUND_BYTES_MIN)
    return round_bytes
