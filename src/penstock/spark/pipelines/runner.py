"""Runs a pipeline: starts the queries of its file, watches, stops and restarts them.

    STARTING -> RUNNING -> STOPPING -> STOPPED
                   |  ^
                   v  | (restarts left)
                  FAILED

The file runs in a thread of its own, so that it may wait for its queries (`awaitTermination`). The
thread that calls `run` watches the queries and handles a request to stop.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from penstock.model.backoff import Backoff
from penstock.model.errors import ConfigurationError
from penstock.spark.errors import QueryFailure, explain_error, explain_failure
from penstock.spark.launcher import is_gone, is_unreachable
from penstock.spark.pipelines import pipeline_file
from penstock.spark.pipelines.progress import BatchProgress, ProgressTotals, read_progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TICK_S = 0.5
_STOP_TICK_S = 0.02  # while a batch ends: the next one must not begin
_BACKOFF = Backoff(1.0, 60.0)
_STEADY_S = 60.0  # an attempt that ran for this long did not fail at its start
# Spark gives a Python process ten seconds to start, however busy the machine is, and has no setting
# for it: a failure with this text is retried up to this many times without being counted.
_BUSY_MACHINE, _BUSY_TIMES_MAX = "Python worker failed to connect back", 5
_CONNECT_MODULE = "pyspark.sql.connect.streaming.readwriter"


class PipelineState(StrEnum):
    STARTING = "Starting"
    RUNNING = "Running"
    STOPPING = "Stopping"
    STOPPED = "Stopped"
    FAILED = "Failed"


class QuerySnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One query at one moment."""

    name: str
    state: PipelineState
    message: str  # Spark's description of what the query does
    rows: int
    rows_per_second: float
    late_rows: int
    batches: int
    last: BatchProgress | None
    new_batches: list[BatchProgress]  # since the snapshot before


class PipelineSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The pipeline at one moment."""

    name: str
    state: PipelineState
    seconds: float  # since it was started
    restarts: int
    queries: list[QuerySnapshot]
    last_error: str = ""

    @property
    def rows_per_second(self) -> float:
        return sum(query.rows_per_second for query in self.queries)

    @property
    def lag_events(self) -> int | None:
        lags = [query.last.lag_events for query in self.queries if query.last is not None]
        numbers = [lag for lag in lags if lag is not None]
        return sum(numbers) if numbers else None

    @property
    def batch_seconds(self) -> float | None:
        return max((q.last.seconds for q in self.queries if q.last is not None), default=None)


class PipelineWatcher(Protocol):
    """Shows a pipeline. The thread of `run` calls `show_snapshot`, one of Spark's threads
    `show_rows`, any thread `show_message`."""

    def show_snapshot(self, snapshot: PipelineSnapshot) -> None: ...

    def show_rows(self, query: str, batch_id: int, rows: list[str]) -> None: ...

    def show_message(self, text: str) -> None: ...


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    arguments: Mapping[str, str]
    trigger: Mapping[str, Any]  # the arguments of Spark's `.trigger()`
    is_trigger_forced: bool = False
    restarts_max: int | None = 0  # None: unlimited
    stop_s: float = 60.0  # for the batch in progress


@contextmanager
def query_defaults(settings: RunSettings, on_start: Callable[[Any], None]) -> Iterator[None]:
    """Give every query of this process a trigger and a name, unless its writer sets them.
    `on_start` is called with every query, by the thread that started it.

    Spark's default trigger polls an idle source without a pause, and a query without a name does
    not find its checkpoint again. Spark has no setting for either, so this patches public methods
    of DataStreamWriter for the duration of the block. A forced trigger wins over the writer's own.
    """
    from pyspark.sql.streaming import readwriter

    writers: list[Any] = [readwriter.DataStreamWriter]
    if _CONNECT_MODULE in sys.modules:
        writers.append(sys.modules[_CONNECT_MODULE].DataStreamWriter)
    # The same names in the same order whenever the file is run: clean, clean-2, clean-3.
    numbered = (f"{settings.name}-{number}" for number in itertools.count(2))
    names = itertools.chain([settings.name], numbered)
    with ExitStack() as stack:
        for writer in writers:
            for name in ("__init__", "trigger", "start", "toTable"):
                stack.callback(setattr, writer, name, getattr(writer, name))
            _patch_writer(writer, settings, names, on_start)
        yield


def _patch_writer(
    writer: Any, settings: RunSettings, names: Iterator[str], on_start: Callable[[Any], None]
) -> None:
    init, set_trigger = writer.__init__, writer.trigger

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        set_trigger(self, **settings.trigger)
        self.queryName(next(names))

    def report_start(start: Any) -> Callable[..., Any]:
        def start_and_report(self: Any, *args: Any, **kwargs: Any) -> Any:
            query = start(self, *args, **kwargs)
            on_start(query)
            return query

        return start_and_report

    writer.__init__ = __init__
    if settings.is_trigger_forced:
        writer.trigger = lambda self, **_: self
    writer.start = report_start(writer.start)
    writer.toTable = report_start(writer.toTable)


class _WatchedQuery(ProgressTotals):
    """One query of the pipeline."""

    def __init__(self, query: Any) -> None:
        super().__init__()
        self.query = query
        self.id, self.name = str(query.id), str(query.name)
        self.has_ended = False
        self.failure: QueryFailure | None = None
        self._new_batches: list[BatchProgress] = []

    def is_active(self) -> bool:
        """Records why a query ended."""
        if self.query.isActive:
            return True
        if not self.has_ended:
            error = self.query.exception()
            self.failure = None if error is None else explain_failure(str(error))
            self.has_ended = True
        return False

    def update(self) -> None:
        """Add the batches that ended since the last call."""
        newest = self.query.lastProgress
        if newest is None:
            return
        batches = [read_progress(newest)]
        if self.has_missed(batches[0]):
            batches = [read_progress(progress) for progress in self.query.recentProgress]
        self._new_batches += self.add(batches)

    def snapshot(self, state: PipelineState, now_ms: int) -> QuerySnapshot:
        """`state` is the pipeline's."""
        message = ""
        if not self.has_ended or state in (PipelineState.STOPPED, PipelineState.FAILED):
            try:
                self.update()
                message = str(self.query.status["message"])
            except Exception as error:
                if not is_gone(error):
                    raise
        if self.has_ended:
            state = PipelineState.STOPPED if self.failure is None else PipelineState.FAILED
        new_batches, self._new_batches = self._new_batches, []
        return QuerySnapshot(
            name=self.name,
            state=state,
            message=message,
            rows=self.rows,
            rows_per_second=self.rate(now_ms),
            late_rows=self.late_rows,
            batches=self.batches,
            last=self.last,
            new_batches=new_batches,
        )

    def is_between_batches(self, since: int) -> bool:
        """Whether no batch is in progress, or the batch after `since` has ended."""
        if not self.query.status["isTriggerActive"]:
            return True
        self.update()
        return self.batch_id > since

    @property
    def batch_id(self) -> int:
        return -1 if self.last is None else self.last.batch_id


@dataclass
class PipelineRun:
    """Runs one file on one session until it is done, fails for good or is asked to stop.
    `restart_spark` starts another JVM after one has ended; None: that failure is final."""

    spark: SparkSession
    file: pipeline_file.PipelineFile
    settings: RunSettings
    watcher: PipelineWatcher
    hubs: Callable[[SparkSession, pipeline_file.ShowRows], pipeline_file.PipelineHubs]
    restart_spark: Callable[[], SparkSession] | None = None
    snapshot: PipelineSnapshot | None = None  # the last one; any thread may read it
    _is_jvm_gone: bool = False
    _busy_times: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _stop_now: threading.Event = field(default_factory=threading.Event)
    # The file's threads append to it, which needs no lock; each attempt has a new list.
    _watched: list[_WatchedQuery] = field(default_factory=list)
    _state: PipelineState = PipelineState.STARTING
    _restarts: int = 0
    _error: str = ""
    _started_s: float = field(default_factory=time.monotonic)

    def ask_to_stop(self) -> bool:
        """End after the batch in progress and return True; a second call ends at once and returns
        False. Any thread may call this, but not a signal handler, which could interrupt a thread
        that holds the same lock."""
        if self._stop.is_set():
            self._stop_now.set()
            return False
        self._stop.set()
        return True

    def run(self) -> PipelineSnapshot:
        """Return the last snapshot. Raises a PenstockError if the pipeline failed."""
        failures = 0  # in a row
        while True:
            began_s = time.monotonic()
            failure = self._attempt()
            if failure is None:
                return self._show_snapshot(PipelineState.STOPPED)
            self._error = failure.text
            if not self._may_restart(failure):
                self._show_snapshot(PipelineState.FAILED)
                raise failure.error()
            is_steady = time.monotonic() - began_s >= _STEADY_S
            failures = 1 if is_steady else failures + 1
            delay_s = _BACKOFF.pause_s(failures)
            self._restarts += 1
            self.watcher.show_message(f"{failure.text}\nStarting again in {delay_s:.0f} s.")
            self._show_snapshot(PipelineState.FAILED)
            if self._stop.wait(delay_s):
                return self._show_snapshot(PipelineState.STOPPED)
            if self._is_jvm_gone:
                assert self.restart_spark is not None, "else the failure was final"
                self._watched = []
                self.spark = self.restart_spark()
                self._is_jvm_gone = False

    def _may_restart(self, failure: QueryFailure) -> bool:
        most = self.settings.restarts_max
        if self._stop.is_set() or failure.is_final:
            return False
        if _BUSY_MACHINE in failure.text and self._busy_times < _BUSY_TIMES_MAX:
            self._busy_times += 1
            return True
        return most is None or self._restarts - self._busy_times < most

    def _attempt(self) -> QueryFailure | None:
        """Run the file until its queries have ended; return why it failed."""
        self._watched = []
        self._state = PipelineState.STARTING
        raised: list[BaseException] = []
        thread = threading.Thread(
            target=self._run_file, args=(raised,), name="penstock-pipeline", daemon=True
        )
        with query_defaults(self.settings, self._on_query_started):
            thread.start()
            try:
                return self._watch(thread, raised)
            except Exception as error:
                if not is_gone(error):
                    raise
                return self._jvm_failure()

    def _watch(self, thread: threading.Thread, raised: list[BaseException]) -> QueryFailure | None:
        while True:
            is_file_running = thread.is_alive()  # before the queries are read: it starts them
            active = [query for query in self._watched if query.is_active()]
            failure = self._failure(raised)
            if failure is not None or self._stop.is_set():
                self._stop_queries()
                return failure or self._failure(raised, is_stopping=True)
            if not active and not is_file_running:
                if not self._watched and not self.file.is_script:
                    return QueryFailure(
                        f"{self.file.path.name} started no query: {pipeline_file.FUNCTION}() "
                        "returns a writer such as df.writeStream, or starts it.",
                        ConfigurationError,
                        is_final=True,
                    )
                return None
            if self._watched:
                self._state = PipelineState.RUNNING
            self._show_snapshot(self._state)
            self._stop.wait(TICK_S)

    def _run_file(self, raised: list[BaseException]) -> None:
        try:
            # Sets the active session of this thread: without one, Spark does not find formats in
            # Python when a query starts. No other public call sets it.
            self.spark.createDataFrame([], "unused int")
            hubs = self.hubs(self.spark, self._show_rows)
            results = self.file.run(self.spark, hubs, self.settings.arguments)
            pipeline_file.start_results(results, hubs)
        except SystemExit as error:
            if error.code not in (None, 0):
                raised.append(error)
        except BaseException as error:  # noqa: BLE001  # a user's file may raise anything
            raised.append(error)

    def _on_query_started(self, query: Any) -> None:
        self._watched.append(_WatchedQuery(query))

    def _show_rows(self, query_id: str, batch_id: int, rows: list[str]) -> None:
        names = [query.name for query in self._watched if query.id == query_id]
        self.watcher.show_rows(names[0] if names else self.settings.name, batch_id, rows)

    def _failure(
        self, raised: list[BaseException], *, is_stopping: bool = False
    ) -> QueryFailure | None:
        """A query's own failure explains more than the exception that the file raised for it."""
        for query in self._watched:
            if query.failure is not None:
                return query.failure
        # A file that waits for a query may raise because this class stopped the query.
        if not raised or is_stopping:
            return None
        return self._jvm_failure() if is_unreachable(raised[0]) else explain_error(raised[0])

    def _jvm_failure(self) -> QueryFailure:
        self._is_jvm_gone = True
        is_final = self.restart_spark is None
        return QueryFailure("Spark's JVM ended: its log says why.", is_final=is_final)

    def _show_snapshot(self, state: PipelineState) -> PipelineSnapshot:
        self._state = state
        now_s = time.monotonic()
        snapshot = self.snapshot = PipelineSnapshot(
            name=self.settings.name,
            state=state,
            seconds=now_s - self._started_s,
            restarts=self._restarts,
            queries=[query.snapshot(state, int(now_s * 1000)) for query in self._watched],
            last_error=self._error,
        )
        self.watcher.show_snapshot(snapshot)
        return snapshot

    def _stop_queries(self) -> None:
        """Stop each query when its batch is done, or at the deadline."""
        self._show_snapshot(PipelineState.STOPPING)
        left = [(query, query.batch_id) for query in self._watched if query.is_active()]
        deadline_s = time.monotonic() + self.settings.stop_s
        shown_s = time.monotonic()
        while left:
            is_late = self._stop_now.is_set() or time.monotonic() >= deadline_s
            for entry in list(left):
                query, since = entry
                if is_late or not query.is_active() or query.is_between_batches(since):
                    query.query.stop()
                    left.remove(entry)
            if time.monotonic() - shown_s >= TICK_S:
                shown_s = time.monotonic()
                self._show_snapshot(PipelineState.STOPPING)
            if left:
                self._stop_now.wait(_STOP_TICK_S)
        for query in self._watched:
            query.is_active()
