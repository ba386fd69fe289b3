"""The metric history: a small SQLite file of its own.

Apart from the catalog: its numbers may be lost without harm and are not flushed, the catalog's may
not; a write every ten seconds never stands in the way of one of the catalog's, which happens on
the event loop; and a history that is damaged is put aside, where a catalog stops the start.
Damage is detected as in the catalog (`penstock.io.sqlite`).
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from penstock.catalog.sqlite import translate_errors
from penstock.io.database import (
    DatabaseFormat,
    DatabaseInaccessible,
    open_database,
    open_read_only,
)
from penstock.io.sqlite import check_rows, transaction
from penstock.model.errors import DataDirectoryError
from penstock.model.metrics import (
    COUNTERS,
    DAY_MS,
    GAUGES,
    KEPT_MS,
    LEVELS,
    NAMES,
    SUBJECTS_MAX,
    MetricRequest,
    MetricSample,
    MetricSeries,
    MetricSubject,
)
from penstock.model.names import fold_name

_log = logging.getLogger(__name__)

# "PENH": tells it from any other SQLite file that somebody put in its place.
APPLICATION_ID = 0x50454E48
_BUSY_S = 5.0
# A history of 36 MB took 3.3 s to check (docs/explanation/durability.md); the largest has 190 MB.
CHECKED_AT_START_BYTES = 4 * 1024 * 1024
_SUBJECTS_EVERY = 1000  # records between two looks for subjects that nothing is kept of
_AHEAD_MS = DAY_MS  # what a clock that was wrong has left in the future goes as well

_STEP_1 = (
    """
    CREATE TABLE subjects (
        id INTEGER PRIMARY KEY,
        namespace TEXT NOT NULL, -- keys, not names
        hub TEXT NOT NULL, -- empty: the whole namespace
        consumer_group TEXT NOT NULL, -- empty: the whole hub
        UNIQUE (namespace, hub, consumer_group)
    ) STRICT
    """,
    """
    CREATE TABLE samples (
        subject INTEGER NOT NULL, step_ms INTEGER NOT NULL, at_ms INTEGER NOT NULL,
        incoming_messages INTEGER NOT NULL, incoming_bytes INTEGER NOT NULL,
        outgoing_messages INTEGER NOT NULL, outgoing_bytes INTEGER NOT NULL,
        successful_requests INTEGER NOT NULL, throttled_requests INTEGER NOT NULL,
        user_errors INTEGER NOT NULL, server_errors INTEGER NOT NULL,
        active_connections INTEGER, size_bytes INTEGER,
        lag_events INTEGER, throughput_units INTEGER,
        PRIMARY KEY (subject, step_ms, at_ms)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX samples_by_age ON samples (step_ms, at_ms)",
)
# A step is never edited after a release (catalog/sqlite.py).
MIGRATIONS: tuple[tuple[str, ...], ...] = (_STEP_1, ())  # 2: row sums
_FORMAT = DatabaseFormat(
    name="metric history",
    application_id=APPLICATION_ID,
    migrations=MIGRATIONS,
    summed_tables=("subjects", "samples"),
    is_durable=False,  # its numbers are not flushed one by one
    remedy="",
)

_ADDED = ", ".join(f"{name} = {name} + excluded.{name}" for name in COUNTERS)
# max() of two values is NULL if one is.
_HIGHEST = ", ".join(
    f"{name} = max(ifnull({name}, excluded.{name}), ifnull(excluded.{name}, {name}))"
    for name in GAUGES
)
_RECORD = f"""
    INSERT INTO samples (subject, step_ms, at_ms, {", ".join(NAMES)})
    VALUES (?, ?, ?, {", ".join("?" * len(NAMES))})
    ON CONFLICT DO UPDATE SET {_ADDED}, {_HIGHEST}
"""  # noqa: S608 - the names stand in model/metrics.py
_SUMS = ", ".join([*(f"sum({name})" for name in COUNTERS), *(f"max({name})" for name in GAUGES)])
_READ = f"""
    SELECT consumer_group, at_ms / :step, {_SUMS} FROM subjects JOIN samples ON subject = id
    WHERE namespace = :namespace AND hub = :hub
        AND step_ms = :kept AND at_ms >= :since AND at_ms < :until
    GROUP BY id, at_ms / :step
"""  # noqa: S608 - the same
_FIND = "SELECT id FROM subjects WHERE namespace = ? AND hub = ? AND consumer_group = ?"
_FORGET_OLD = "DELETE FROM samples WHERE step_ms = ? AND at_ms < ?"
_FORGET_AHEAD = "DELETE FROM samples WHERE step_ms = ? AND at_ms > ?"
_FORGET_SUBJECTS = """
    DELETE FROM subjects WHERE NOT EXISTS (SELECT 1 FROM samples WHERE subject = subjects.id)
"""


class SqliteMetricStore:
    """`catalog.api.MetricStore` in a file. One that cannot be used as it is, is put aside; one of
    a newer Penstock is left alone, and this run's numbers end with it."""

    def __init__(self, path: Path) -> None:
        self._name = f"The metric history {path}"
        self._subjects: dict[MetricSubject, int] = {}
        self._records = 0
        self._check: _BackgroundCheck | None = None
        try:
            self._connection = _open_database(path)
        except (DatabaseInaccessible, sqlite3.OperationalError) as error:
            _log.warning("no metric history is kept beyond this run: %s: %s", path, error)
            self._connection = _open_database(None)
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            aside = path.with_name(f"{path.name}.damaged")
            _log.warning("%s is damaged, and put aside as %s: %s", path, aside.name, error)
            self._connection = _recreate_database(path, aside)
        else:
            if path.stat().st_size > CHECKED_AT_START_BYTES:
                self._check = _BackgroundCheck(path)

    def record(self, at_ms: int, samples: Sequence[MetricSample]) -> None:
        try:
            with translate_errors(self._name), transaction(self._connection):
                named = [(self._subject(each.subject), each) for each in samples[:SUBJECTS_MAX]]
                for level in LEVELS:
                    place = (level.step_ms, at_ms - at_ms % level.step_ms)
                    # At once: a loop in Python would hold the event loop's thread up.
                    self._connection.executemany(
                        _RECORD,
                        [(number, *place, *each.counters, *each.gauges) for number, each in named],
                    )
                self._forget(at_ms)
        except DataDirectoryError:
            self._subjects.clear()  # ids of what was rolled back
            raise

    def read(self, request: MetricRequest, *, now_ms: int) -> MetricSeries:
        since_ms = max(request.since_ms, now_ms - KEPT_MS)
        until_ms = min(request.until_ms, now_ms + 1)
        kept = next(
            (level for level in LEVELS if since_ms >= now_ms - level.kept_ms), LEVELS[-1]
        ).step_ms
        step = kept * max(1, (until_ms - since_ms) // (kept * request.points))
        while len(times := range(since_ms - since_ms % step, until_ms, step)) > request.points:
            step += kept
        window = {"step": step, "kept": kept, "since": times.start, "until": until_ms}
        subject = {"namespace": fold_name(request.namespace), "hub": fold_name(request.hub or "")}
        # By group, "" for the whole hub or namespace: a list for each of NAMES.
        series: defaultdict[str, list[list[int | None]]] = defaultdict(
            lambda: [[None] * len(times) for _ in NAMES]
        )
        with translate_errors(self._name):
            for group, number, *row in self._connection.execute(_READ, window | subject):
                for numbers, value in zip(series[group], row, strict=True):
                    numbers[number - times.start // step] = value
        values = {name: series[""][NAMES.index(name)] for name in request.names}
        lag = {group: lists[NAMES.index("lag_events")] for group, lists in series.items() if group}
        lag = {group: numbers for group, numbers in lag.items() if {*numbers} != {None}}
        return MetricSeries(step_ms=step, at_ms=list(times), values=values, lag_by_group=lag)

    def close(self) -> None:
        if self._check is not None:
            self._check.close()
        self._connection.close()

    def _subject(self, subject: MetricSubject) -> int:
        known = self._subjects.get(subject)
        if known is not None:
            return known
        parts = (subject.namespace, subject.hub, subject.group)
        self._connection.execute(
            "INSERT OR IGNORE INTO subjects (namespace, hub, consumer_group) VALUES (?, ?, ?)",
            parts,
        )
        number: int = self._connection.execute(_FIND, parts).fetchone()[0]
        self._subjects[subject] = number
        return number

    def _forget(self, now_ms: int) -> None:
        for level in LEVELS:
            oldest = now_ms - level.kept_ms
            self._connection.execute(_FORGET_OLD, (level.step_ms, oldest))
            self._connection.execute(_FORGET_AHEAD, (level.step_ms, now_ms + _AHEAD_MS))
        self._records += 1
        if self._records % _SUBJECTS_EVERY == 0:
            self._connection.execute(_FORGET_SUBJECTS)
            self._subjects.clear()


class _BackgroundCheck:
    """Compares a large history with its row sums while the service runs, and warns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = open_read_only(path, busy_s=_BUSY_S)
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="penstock-history-check")
        self._thread.start()

    def close(self) -> None:
        """Ends a check that is under way."""
        self._is_closed = True
        while self._thread.is_alive():
            self._connection.interrupt()
            self._thread.join(0.1)
        self._connection.close()

    def _run(self) -> None:
        try:
            damage = check_rows(self._connection)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            damage = str(error)
        if damage is not None and not self._is_closed:
            _log.warning("metric history is damaged: file=%s reason=%s", self._path, damage)


def _recreate_database(path: Path, aside: Path) -> sqlite3.Connection:
    try:
        path.replace(aside)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        return _open_database(path)
    except (OSError, sqlite3.Error) as error:
        _log.warning("no metric history is kept beyond this run: %s", error)
        return _open_database(None)


def _open_database(path: Path | None) -> sqlite3.Connection:
    """In memory without a path. Raises DatabaseUnusable and other errors of SQLite."""
    is_small = path is None or not path.exists() or path.stat().st_size <= CHECKED_AT_START_BYTES
    connection = open_database(path, _FORMAT, busy_s=_BUSY_S, check_content=is_small)
    try:
        connection.execute(_FORGET_SUBJECTS)
    except BaseException:
        connection.close()
        raise
    return connection
