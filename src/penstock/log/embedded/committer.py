"""Group commit: one committer thread, with helper threads for flushes and long tasks.

While the committer flushes, appends gather in its queue. When the flush ends, all of them are the
next round, up to a size; there is no timer. A round is, in this order:

1. write the records of every partition in the round (`PartitionWriter.begin`),
2. flush, several partitions in parallel (`PartitionWriter.flush`),
3. commit, partition by partition (`PartitionWriter.finish`),
4. one callback on the owner's thread, which acknowledges every append of the round.

Nothing is acknowledged or readable before its flush has succeeded.

All threads start with the store, so that a lack of threads later on cannot stop publishing. A
helper only speeds a round up: the committer itself runs every job that no helper has begun.

| what raises | consequence |
|---|---|
| a partition's write, flush or commit | that partition fails (writer.py), the others go on |
| a task (a mark, retention, a deletion) | one log line; the task is dropped |
| the committer's loop | the thread ends; queued and later appends fail, `is_alive` is False |
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
from penstock.log.embedded.writer import PartitionWriter, PendingAppend, WriteOutcome
from penstock.model import limits
from penstock.model.errors import DataDirectoryError, LogFailed

_logger = logging.getLogger(__name__)

# A round ends at this size: the first publishers of a burst get their acknowledgement before the
# last bytes of the burst are written, and continue meanwhile. A disk with slow flushes, whatever
# their size, gets larger rounds; otherwise the number of flushes would limit the rate.
ROUND_BYTES_MIN = 2 * limits.MB
ROUND_BYTES_MAX = 32 * limits.MB
SLOW_FLUSH_S, QUICK_FLUSH_S = 0.010, 0.005
FLUSH_HELPERS = 8  # parallel flushes: 3 times as fast as one by one at 4 files, 5 times at 16
# From this size on, writing takes long enough that one partition is written while another one is
# flushed. Chosen well above the size of a write of a few pages, not measured.
LARGE_ROUND_BYTES = 512 * 1024
IDLE_WAKE_S = 5.0  # an idle committer wakes at this interval, to show that it is alive

Task = Callable[[], object]
OnFlush = Callable[[float], object]
"""Called on the committer's thread with the seconds that a round's flush took; must not block."""


class CommittedPartition(Protocol):
    """The part of a partition that the committer uses."""

    writer: PartitionWriter

    def apply_outcome(self, outcome: WriteOutcome) -> None:
        """Owner's thread: take the outcome of a round."""
        ...


class Job:
    """A task for a helper thread, or for the caller if it takes the task back in time."""

    __slots__ = ("_task", "future")

    def __init__(self, task: Task) -> None:
        self.future: Future[object] = Future()  # done when the task has ended
        self._task: Task | None = task

    def run(self) -> None:
        """Run the task, unless it was taken back. An error is logged."""
        if not self.future.set_running_or_notify_cancel():
            return
        assert self._task is not None
        try:
            self._task()
        except BaseException:
            _logger.exception("flush helper job failed")
        self.future.set_result(None)

    def take_back(self) -> Task | None:
        """The task, for the caller to run; None if a helper has begun it. The job no longer holds
        it: a busy helper may find the job in its queue much later, and a round's payloads must not
        wait for that."""
        if not self.future.cancel():
            return None
        task, self._task = self._task, None
        return task


class HelperThreads:
    """A fixed number of threads, all started at construction."""

    def __init__(self, count: int) -> None:
        """Continues with fewer threads, or none, if the system refuses to start more."""
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
                    "flush helpers not started started=%d requested=%d error=%r hint=%r",
                    number,
                    count,
                    str(error),
                    "flushes are slower; raise the limit on threads of this user or container",
                )
                return
            self._threads.append(thread)

    def submit(self, task: Task) -> Job:
        """Any thread. Without helpers the caller's thread runs the task here."""
        job = Job(task)
        if self._threads:
            self._jobs.put(job)
        else:
            job.run()
        return job

    def run_all(self, tasks: Sequence[Task]) -> None:
        """Run all tasks, in parallel where helpers are free; return when all have ended.

        The tasks must not raise. The caller runs the first one and every task that no helper has
        begun by then, so this returns even if no helper is left.
        """
        jobs = [self.submit(task) for task in tasks[1:]]
        tasks[0]()
        begun: list[Job] = []
        for job in jobs:
            task = job.take_back()
            if task is None:
                begun.append(job)
            else:
                task()
        for job in begun:
            job.future.exception()  # waits

    def close(self) -> None:
        """Wait for all submitted jobs, then end the threads."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()
            del job  # it holds a round's payloads


class Committer:
    """Takes appends from the owner's thread and returns outcomes to it."""

    def __init__(self, wake: Wake, *, on_flush: OnFlush | None = None) -> None:
        """Raises DataDirectoryError if the system starts no thread at all. The calling thread is
        the owner."""
        self._wake = wake
        self._on_flush = on_flush
        # Any thread puts; the committer takes. After the committer has ended, the owner takes too
        # (`_fail_queued`); each item still goes to exactly one of them.
        self._queue: SimpleQueue[tuple[CommittedPartition, PendingAppend] | Task | None] = (
            SimpleQueue()
        )
        self._owner_thread_id = threading.get_ident()
        self._is_owner_gone = False  # set by the first wake-up that finds the owner's loop closed
        # The committer appends, the owner pops from the left: outcomes are applied in the order of
        # the rounds. deque operations are atomic.
        self._owner_callbacks: deque[Task] = deque()
        # Committer's thread only.
        self._round_bytes = ROUND_BYTES_MIN
        # Taken from the queue and not yet in an outcome. Invariant: every append is in the queue,
        # in `_round`, or in an outcome, so that none is lost if the thread ends.
        self._round: dict[CommittedPartition, list[PendingAppend]] = {}
        # Set once by the committer's thread when it ends by an error; read by the owner.
        self._failure: LogFailed | None = None
        self._last_round_ms: int | None = None  # committer's thread writes, any thread reads
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

    def put(self, partition: CommittedPartition, pending: PendingAppend) -> None:
        """Queue an append. Owner's thread; never blocks."""
        self._queue.put((partition, pending))
        if self._failure is not None:
            self._fail_queued(self._failure)

    def run_on_committer(self, task: Task) -> None:
        """Run `task` on the committer's thread, after everything queued before it. Any thread."""
        self._queue.put(task)

    def run_on_helper(self, task: Task) -> None:
        """The same on a helper thread: for tasks that would delay the next round, such as removing
        large files."""
        self._queue.put(lambda: self._helpers.submit(partial(_run_guarded, task)))

    def run_on_owner(self, callback: Task) -> None:
        """Run `callback` on the owner's thread, after all earlier ones. Committer's thread."""
        self._owner_callbacks.append(callback)
        self._wake_owner()

    def run_owner_callbacks(self) -> None:
        """Run all callbacks that are queued for the owner. Owner's thread."""
        while True:
            try:
                callback = self._owner_callbacks.popleft()
            except IndexError:
                return
            _run_guarded(callback)

    def close(self) -> None:
        """Commit and acknowledge everything queued, then end all threads. Blocks.

        Called on the owner's thread, it runs the owner's callbacks before it returns. Called on
        another thread, it leaves them to the owner, which was woken for each, unless the owner's
        loop is closed.
        """
        self._queue.put(None)
        self._thread.join()
        if self._failure is not None:
            self._fail_queued(self._failure)
        self._helpers.close()
        if threading.get_ident() == self._owner_thread_id or self._is_owner_gone:
            self.run_owner_callbacks()

    # --- on the committer's thread ----------------------------------------------------------------

    def _run(self) -> None:
        """The thread. An exception that ends it must fail every append that waits."""
        try:
            is_open = True
            while is_open:
                is_open = self._run_round()
                self._last_round_ms = int(monotonic() * 1000)
        except BaseException as error:
            _logger.critical("committer ended error=%r", error, exc_info=True)
            waiting, self._round = self._round, {}
            self._failure = LogFailed(
                f"The log's committer ended ({type(error).__name__}): what was acknowledged is "
                f"kept and served, nothing more is accepted until the service is restarted."
            )
            self._fail_queued(self._failure, waiting)

    def _run_round(self) -> bool:
        """One round, or one idle wake-up. Returns whether the committer stays open."""
        tasks: list[Task] = []
        is_open = self._take_queued(self._round, tasks)
        if self._round:
            self._commit(self._round)
        for task in tasks:
            _run_guarded(task)
        return is_open

    def _take_queued(
        self, appends: dict[CommittedPartition, list[PendingAppend]], tasks: list[Task]
    ) -> bool:
        """Take queued items up to the size of a round; wait for the first one, up to IDLE_WAKE_S.
        Returns False after `close` was called."""
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
                    tasks.append(item)
                item = self._queue.get_nowait()
        except Empty:
            return True

    def _commit(self, appends: dict[CommittedPartition, list[PendingAppend]]) -> None:
        size = sum(append.size for pending in appends.values() for append in pending)
        if len(appends) > 1 and size >= LARGE_ROUND_BYTES:
            flush_s = self._store_in_parallel(appends)
        else:
            flush_s = self._store(appends)
        if flush_s is not None:
            self._round_bytes = next_round_bytes(self._round_bytes, flush_s)
            if self._on_flush is not None:
                _run_guarded(partial(self._on_flush, flush_s))
        partitions = list(appends)
        for partition in partitions:
            outcome = partition.writer.finish()
            del appends[partition]  # from here on the outcome alone answers its appends
            self._owner_callbacks.append(partial(partition.apply_outcome, outcome))
        self._wake_owner()
        # After the acknowledgements: a mark is no part of the round's durability.
        for partition in partitions:
            _run_guarded(partition.writer.write_mark_if_due)

    def _store(self, appends: dict[CommittedPartition, list[PendingAppend]]) -> float | None:
        """Write all partitions, then flush them in parallel. Returns the seconds of the flush, None
        without one."""
        for partition, pending in appends.items():
            partition.writer.begin(pending)
        writers = [p.writer for p in appends if p.writer.needs_flush]
        if not writers:
            return None
        start_s = monotonic()
        self._helpers.run_all([writer.flush for writer in writers])
        return monotonic() - start_s

    def _store_in_parallel(
        self, appends: dict[CommittedPartition, list[PendingAppend]]
    ) -> float | None:
        """Write and flush each partition on a thread of its own. Returns the seconds of the longest
        flush, None without one. Only one thread uses a writer during that time."""
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
            self._wake(self.run_owner_callbacks)
        except RuntimeError:
            # The owner's loop is closed; `close` runs the callbacks instead.
            self._is_owner_gone = True
            _logger.debug("owner loop closed")

    def _fail_queued(
        self, error: LogFailed, waiting: dict[CommittedPartition, list[PendingAppend]] | None = None
    ) -> None:
        """The thread ended: fail the appends that it had taken (`waiting`) and those in the queue.

        Runs on the ending thread, and on the owner's thread for later appends. The queue gives
        every item to one of them.
        """
        waiting = {} if waiting is None else waiting
        tasks: list[Task] = []
        self._queue.put(None)
        while self._take_queued(waiting, tasks):
            pass
        for partition, pending in waiting.items():
            outcome = WriteOutcome(failed=pending, error=error, is_final=True)
            self._owner_callbacks.append(partial(partition.apply_outcome, outcome))
        self._wake_owner()


def _run_guarded(task: Task) -> None:
    """A failure is logged and does not prevent the next task."""
    try:
        task()
    except Exception:
        _logger.exception("log task failed")


def _store_one(
    writer: PartitionWriter, pending: list[PendingAppend], flushes_s: list[float]
) -> None:
    writer.begin(pending)
    if writer.needs_flush:
        start_s = monotonic()
        writer.flush()
        flushes_s.append(monotonic() - start_s)


def next_round_bytes(round_bytes: int, flush_s: float) -> int:
    """Size limit of the round after one whose flush took `flush_s` seconds."""
    if flush_s > SLOW_FLUSH_S:
        return min(round_bytes * 2, ROUND_BYTES_MAX)
    if flush_s < QUICK_FLUSH_S:
        return max(round_bytes // 2, ROUND_BYTES_MIN)
    return round_bytes
