"""A pipeline's life: its file is run, its queries are watched, stopped with grace, started again.

    Starting -> Running -> Stopping -> Stopped
                   |  ^
                   v  | (restarts left)
                  Failed

The file runs in a thread of its own, so that one that waits for its queries (`awaitTermination`)
is no different from one that does not; whoever calls `run` watches, and handles signals.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from penstock.model.backoff import Backoff
from penstock.model.errors import ConfigurationError, PenstockError
from penstock.spark.default_write_mode import activate
from penstock.spark.failures import QueryFailure, explain_error, explain_failure
from penstock.spark.launcher import is_gone, is_unreachable
from penstock.spark.pipelines import pipeline_file
from penstock.spark.pipelines.defaults import query_defaults
from penstock.spark.pipelines.progress import BatchProgress, ProgressTotals, read_progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TICK_S = 0.5
_CLOSE_TICK_S = 0.02  # while a batch ends: the next one must not begin
_BACKOFF = Backoff(1.0, 60.0)
_STEADY_S = 60.0  # who lived so long did not fail at its start
# Spark gives a Python process ten seconds to come up, however busy the machine is, and no setting
# changes that: such a failure is tried again so often without being counted.
_BUSY_MACHINE, _BUSY_TIMES_MAX = "Python worker failed to connect back", 5


class QuerySnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One query at one moment."""

    name: str
    id: str
    run_id: str
    state: str  # Starting, Running, Stopping, Stopped, Failed
    message: str  # what Spark says that it does
    rows: int
    rows_per_second: float
    late_rows: int
    batches: int
    last: BatchProgress | None
    fresh: list[BatchProgress]  # since the last look


class PipelineSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The pipeline at one moment."""

    name: str
    state: str
    seconds: float  # since it was started
    restarts: int
    queries: list[QuerySnapshot]
    last_error: str = ""

    @property
    def rows_per_second(self) -> float:
        return sum(each.rows_per_second for each in self.queries)

    @property
    def lag_events(self) -> int | None:
        known = [e.last.lag_events for e in self.queries if e.last is not None]
        counted = [lag for lag in known if lag is not None]
        return sum(counted) if counted else None

    @property
    def batch_seconds(self) -> float | None:
        known = [each.last.seconds for each in self.queries if each.last is not None]
        return max(known) if known else None


class PipelineWatcher(Protocol):
    """Who looks on. `saw` is called in the thread that runs, `rows` in one of Spark's, `note` in
    any."""

    def saw(self, shot: PipelineSnapshot) -> None: ...

    def rows(self, query: str, batch_id: int, rows: list[str]) -> None: ...

    def note(self, text: str) -> None: ...


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    arguments: Mapping[str, str]
    trigger: Mapping[str, Any]
    is_trigger_forced: bool = False
    restarts_max: int | None = 0  # None: for ever
    stop_s: float = 60.0  # for the batch that is under way


class _WatchedQuery:
    """One query of ours."""

    def __init__(self, query: Any, fallback_name: str) -> None:
        self.query = query
        self.id, self.run_id = str(query.id), str(query.runId)
        self.name = str(query.name or fallback_name)
        self.tally = ProgressTotals()
        self._fresh: list[BatchProgress] = []

    def look(self) -> None:
        """At what it finished since the last look. Several batches may have passed."""
        newest = self.query.lastProgress
        if newest is None:
            return
        batch = read_progress(newest)
        if self.tally.has_missed(batch):
            recent = [read_progress(each) for each in self.query.recentProgress]
            self._fresh += self.tally.add(recent)
        else:
            self._fresh += self.tally.add([batch])

    def take_fresh(self) -> list[BatchProgress]:
        """Each batch once, whoever looked."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def is_between_batches(self, since: int) -> bool:
        """Nothing is under way, or the batch that was at `since` is done."""
        if not self.query.status["isTriggerActive"]:
            return True
        self.look()
        return self.batch_id > since

    @property
    def batch_id(self) -> int:
        return -1 if self.tally.last is None else self.tally.last.batch_id


class PipelineRun:
    """Runs one file on one session, until it is done, fails for good or is told to stop."""

    def __init__(
        self,
        spark: SparkSession,
        file: pipeline_file.PipelineFile,
        settings: RunSettings,
        watcher: PipelineWatcher,
        *,
        hubs: Callable[[SparkSession, pipeline_file.ShowRows], pipeline_file.PipelineHubs],
        renew: Callable[[], SparkSession] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spark = spark
        self._file = file
        self._settings = settings
        self._watcher = watcher
        self._make_hubs = hubs
        self._hubs = hubs(spark, self._show)
        self._renew = renew
        self._is_jvm_gone = False
        self._busy_times = 0
        self._monotonic = monotonic
        self._stop = threading.Event()
        self._at_once = threading.Event()
        self._lock = threading.Lock()
        self._watched: list[_WatchedQuery] = []
        self._ended: dict[str, QueryFailure | None] = {}
        self._state = "Starting"
        self._restarts = 0
        self._error = ""
        self._started_s = monotonic()

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    def ask_to_stop(self) -> None:
        """From any thread, but no signal's handler: finish the batch, then end. Once more: now."""
        if self._stop.is_set():
            self._at_once.set()
        self._stop.set()

    def run(self) -> PipelineSnapshot:
        """The last shot; raises the pipeline's failure, a PenstockError."""
        failures = 0  # in a row
        while True:
            began_s = self._monotonic()
            failure = self._attempt()
            if failure is None:
                return self._saw("Stopped")
            self._error = failure.text
            if not self._may_restart(failure):
                self._saw("Failed")
                raise failure.error()
            is_steady = self._monotonic() - began_s >= _STEADY_S
            failures = 1 if is_steady else failures + 1
            delay_s = _BACKOFF.pause_s(failures)
            self._restarts += 1
            self._watcher.note(f"{failure.text}\nStarting again in {delay_s:.0f} s.")
            self._saw("Failed")
            if self._stop.wait(delay_s):
                return self._saw("Stopped")
            if self._is_jvm_gone:
                self._restart()

    def _restart(self) -> None:
        """Another JVM; the checkpoints are where they were."""
        assert self._renew is not None, "else the failure was final"
        with self._lock:
            self._watched, self._ended = [], {}
        self._spark = self._renew()
        self._hubs = self._make_hubs(self._spark, self._show)
        self._is_jvm_gone = False

    def _may_restart(self, failure: QueryFailure) -> bool:
        most = self._settings.restarts_max
        if self._stop.is_set() or failure.is_final:
            return False
        if _BUSY_MACHINE in failure.text and self._busy_times < _BUSY_TIMES_MAX:
            self._busy_times += 1
            return True
        return most is None or self._restarts - self._busy_times < most

    def _attempt(self) -> QueryFailure | None:
        """Once from the file to the end of its queries; why it failed."""
        with self._lock:
            self._watched, self._ended = [], {}
        self._state = "Starting"
        raised: list[BaseException] = []
        thread = threading.Thread(
            target=self._run_file, args=(raised,), name="penstock-pipeline", daemon=True
        )
        with query_defaults(
            self._settings.name,
            self._settings.trigger,
            is_forced=self._settings.is_trigger_forced,
            started=self._on_query_started,
        ):
            thread.start()
            try:
                return self._watch(thread, raised)
            except Exception as error:
                if not is_gone(error):
                    raise
                return self._jvm_ended()

    def _watch(self, thread: threading.Thread, raised: list[BaseException]) -> QueryFailure | None:
        while True:
            is_running = thread.is_alive()  # before the queries are looked at: it starts them
            active = self._look()
            failure = self._failure(raised)
            if failure is not None or self._stop.is_set():
                self._end_queries()
                return failure or self._failure(raised, is_stopping=True)
            if not active and not is_running:
                if not self._watched and not self._file.is_script:
                    return explain_error(_nothing_started(self._file))
                return None
            if self._watched:
                self._state = "Running"
            self._saw(self._state)
            self._stop.wait(TICK_S)

    def _run_file(self, raised: list[BaseException]) -> None:
        try:
            activate(self._spark)
            found = self._file.run(self._spark, self._hubs, self._settings.arguments)
            pipeline_file.start_result(found, self._hubs)
        except SystemExit as error:
            if error.code not in (None, 0):
                raised.append(error)
        except BaseException as error:  # noqa: BLE001  # whatever a user's file raises is shown
            raised.append(error)

    def _on_query_started(self, query: Any) -> None:
        with self._lock:
            number = len(self._watched) + 1
            self._watched.append(_WatchedQuery(query, f"{self._settings.name}-{number}"))

    def _show(self, query_id: str, batch_id: int, rows: list[str]) -> None:
        with self._lock:
            names = [each.name for each in self._watched if each.id == query_id]
        self._watcher.rows(names[0] if names else self._settings.name, batch_id, rows)

    # --- looking ----------------------------------------------------------------------------------

    def _look(self) -> list[_WatchedQuery]:
        """Which queries are active; of those that ended, why."""
        active = []
        for each in self._queries():
            if each.query.isActive:
                active.append(each)
            elif each.run_id not in self._ended:
                error = each.query.exception()
                self._ended[each.run_id] = None if error is None else explain_failure(str(error))
        return active

    def _failure(
        self, raised: list[BaseException], *, is_stopping: bool = False
    ) -> QueryFailure | None:
        """A query's own failure says more than what the file made of it."""
        for failure in self._ended.values():
            if failure is not None:
                return failure
        # One that waits for a query which we stopped may find that odd.
        if not raised or is_stopping:
            return None
        return self._jvm_ended() if is_unreachable(raised[0]) else explain_error(raised[0])

    def _jvm_ended(self) -> QueryFailure:
        self._is_jvm_gone = True
        return QueryFailure("Spark's JVM ended: its log says why.", is_final=self._renew is None)

    def _queries(self) -> list[_WatchedQuery]:
        with self._lock:
            return list(self._watched)

    def _saw(self, state: str) -> PipelineSnapshot:
        self._state = state
        now_s = self._monotonic()
        shot = PipelineSnapshot(
            name=self._settings.name,
            state=state,
            seconds=now_s - self._started_s,
            restarts=self._restarts,
            queries=[self._shot(each, int(now_s * 1000)) for each in self._queries()],
            last_error=self._error,
        )
        self._watcher.saw(shot)
        return shot

    def _shot(self, each: _WatchedQuery, now_ms: int) -> QuerySnapshot:
        message = ""
        is_ended = each.run_id in self._ended
        if not is_ended or self._state in ("Stopped", "Failed"):
            try:
                each.look()
                message = str(each.query.status["message"])
            except Exception as error:
                if not is_gone(error):
                    raise
        state = self._state if not is_ended else "Stopped"
        if self._ended.get(each.run_id) is not None:
            state = "Failed"
        return QuerySnapshot(
            name=each.name,
            id=each.id,
            run_id=each.run_id,
            state=state,
            message=message,
            rows=each.tally.rows,
            rows_per_second=each.tally.rate(now_ms),
            late_rows=each.tally.late_rows,
            batches=each.tally.batches,
            last=each.tally.last,
            fresh=each.take_fresh(),
        )

    # --- ending -----------------------------------------------------------------------------------

    def _end_queries(self) -> None:
        """Each when its batch is done, all beside each other; at the deadline whatever they do."""
        self._saw("Stopping")
        left = {each.run_id: (each, each.batch_id) for each in self._look()}
        deadline_s = self._monotonic() + self._settings.stop_s
        shown_s = self._monotonic()
        while left:
            is_late = self._at_once.is_set() or self._monotonic() >= deadline_s
            for run_id, (each, since) in list(left.items()):
                if is_late or not each.query.isActive or each.is_between_batches(since):
                    each.query.stop()
                    del left[run_id]
            if self._monotonic() - shown_s >= TICK_S:
                shown_s = self._monotonic()
                self._saw("Stopping")
            if left:
                self._at_once.wait(_CLOSE_TICK_S)
        self._look()


def _nothing_started(file: pipeline_file.PipelineFile) -> PenstockError:
    return ConfigurationError(
        f"{file.path.name} started no query: {pipeline_file.FUNCTION}() returns a writer such as "
        "df.writeStream, or starts it."
    )
