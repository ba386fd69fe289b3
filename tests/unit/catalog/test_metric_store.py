"""The metric history's store: falling resolution, bounded, put aside when it is damaged."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from penstock.catalog.metric_store import MIGRATIONS, SqliteMetricStore
from penstock.model.errors import DataDirectoryError
from penstock.model.metrics import (
    COUNTERS,
    DAY_MS,
    GAUGES,
    HOUR_MS,
    KEPT_MS,
    LEVELS,
    MINUTE_MS,
    NAMES,
    STEP_MS,
    SUBJECTS_MAX,
    MetricRequest,
    MetricSample,
    MetricSeries,
    MetricSubject,
)

NOW = 1_700_000_000_000 - 1_700_000_000_000 % DAY_MS  # a turn of every step
HUB = MetricSubject("contoso", "orders")


def sample(
    subject: MetricSubject = HUB, count: int = 1, *, size: int | None = 5, lag: int | None = None
) -> MetricSample:
    return MetricSample(subject, (count,) * len(COUNTERS), (None, size, lag, None))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteMetricStore]:
    made = SqliteMetricStore(path)
    yield made
    made.close()


def read(
    store: SqliteMetricStore,
    since_ms: int,
    until_ms: int,
    *,
    names: Sequence[str] = NAMES,
    points: int = 500,
    now_ms: int | None = None,
) -> MetricSeries:
    request = MetricRequest(
        namespace="Contoso",
        hub="ORDERS",
        names=names,
        since_ms=since_ms,
        until_ms=until_ms,
        points=points,
    )
    return store.read(request, now_ms=until_ms if now_ms is None else now_ms)


def rows(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        return int(connection.execute("SELECT count(*) FROM samples").fetchone()[0])
    finally:
        connection.close()


def test_steps_are_told_as_they_were_recorded(store: SqliteMetricStore) -> None:
    store.record(NOW, [sample(count=3, size=7, lag=2)])
    store.record(NOW + 2 * STEP_MS, [sample(count=4, size=6)])
    found = read(store, NOW, NOW + 3 * STEP_MS)
    assert (found.step_ms, found.at_ms) == (STEP_MS, [NOW, NOW + STEP_MS, NOW + 2 * STEP_MS])
    assert found.values["incoming_bytes"] == [3, None, 4]
    assert found.values["size_bytes"] == [7, None, 6]
    assert found.values["lag_events"] == [2, None, None]
    assert found.values["active_connections"] == [None, None, None]


def test_counters_add_up_and_gauges_are_the_highest(store: SqliteMetricStore) -> None:
    for number, (count, size) in enumerate([(1, 5), (2, 9), (3, None)]):
        store.record(NOW + number * STEP_MS, [sample(count=count, size=size)])
    found = read(store, NOW, NOW + MINUTE_MS, points=1)
    assert (found.step_ms, found.at_ms) == (MINUTE_MS, [NOW])
    assert found.values["incoming_messages"] == [6]
    assert found.values["size_bytes"] == [9]
    store.record(NOW + STEP_MS, [sample(count=1, size=1)])  # the same step once more
    assert read(store, NOW, NOW + MINUTE_MS, points=1).values["user_errors"] == [7]


@pytest.mark.parametrize(
    ("ago_ms", "step_ms"),
    [
        (HOUR_MS, 10_000),
        (2 * HOUR_MS, 20_000),  # 720 steps of ten seconds are more than 500
        (12 * HOUR_MS, 2 * MINUTE_MS),
        (7 * DAY_MS, 30 * MINUTE_MS),
        (30 * DAY_MS, 90 * MINUTE_MS),
        (300 * DAY_MS, 90 * MINUTE_MS),  # no longer than it is kept
    ],
)
def test_resolution_falls_with_the_span(
    store: SqliteMetricStore, ago_ms: int, step_ms: int
) -> None:
    found = read(store, NOW - ago_ms, NOW)
    assert found.step_ms == step_ms
    assert len(found.at_ms) <= 500
    assert found.at_ms[-1] < NOW <= found.at_ms[-1] + step_ms


@pytest.mark.parametrize("points", [1, 2, 7, 499, 500])
@pytest.mark.parametrize("odd_ms", [0, 1, 9_999, 123_457])
def test_answer_has_no_more_points_than_asked_for(
    store: SqliteMetricStore, points: int, odd_ms: int
) -> None:
    for span_ms in (0, 1, STEP_MS, HOUR_MS, 3 * HOUR_MS + 7, DAY_MS, 29 * DAY_MS):
        found = read(store, NOW - span_ms - odd_ms, NOW, points=points, now_ms=NOW + odd_ms)
        assert len(found.at_ms) <= points
        assert all(len(series) == len(found.at_ms) for series in found.values.values())


def test_what_is_old_is_kept_in_larger_steps_only(store: SqliteMetricStore, path: Path) -> None:
    """A month of ten-second steps, thinned out here to one an hour, and to all of the last hour."""
    kept = {level.step_ms: 0 for level in LEVELS}
    begin = NOW - 31 * DAY_MS
    for at_ms in [*range(begin, NOW - HOUR_MS, HOUR_MS), *range(NOW - HOUR_MS, NOW, STEP_MS)]:
        store.record(at_ms, [sample()])
    connection = sqlite3.connect(path)
    for step_ms, oldest, count in connection.execute(
        "SELECT step_ms, min(at_ms), count(*) FROM samples GROUP BY step_ms"
    ):
        kept[step_ms] = count
        level = next(level for level in LEVELS if level.step_ms == step_ms)
        assert oldest >= NOW - STEP_MS - level.kept_ms
    connection.close()
    assert kept == {STEP_MS: 361, MINUTE_MS: 47 + 60, 10 * MINUTE_MS: 719 + 6}
    whole = read(store, NOW - KEPT_MS, NOW, names=["incoming_messages"])
    counted = sum(number or 0 for number in whole.values["incoming_messages"])
    assert counted == 719 + 360


def test_groups_of_a_hub_have_their_own_lag(store: SqliteMetricStore) -> None:
    others = [
        MetricSubject("contoso", "orders", "readers"),
        MetricSubject("contoso", "other", "readers"),
    ]
    store.record(NOW, [sample(), *(sample(each, 0, size=None, lag=9) for each in others)])
    found = read(store, NOW, NOW + STEP_MS, names=["lag_events"])
    assert found.lag_by_group == {"readers": [9]}
    assert found.values == {"lag_events": [None]}
    request = MetricRequest(
        namespace="contoso", hub=None, names=NAMES, since_ms=NOW, until_ms=NOW + 1, points=9
    )
    whole = store.read(request, now_ms=NOW)
    assert whole.lag_by_group == {}


def test_rows_of_one_moment_are_bounded(store: SqliteMetricStore, path: Path) -> None:
    many = [
        sample(MetricSubject("contoso", f"hub-{number}")) for number in range(SUBJECTS_MAX + 50)
    ]
    store.record(NOW, many)
    assert rows(path) == SUBJECTS_MAX * len(LEVELS)


def test_what_a_wrong_clock_left_ahead_goes(store: SqliteMetricStore, path: Path) -> None:
    store.record(NOW + 400 * DAY_MS, [sample()])
    store.record(NOW, [sample()])
    assert rows(path) == len(LEVELS)


def test_history_survives_a_restart(store: SqliteMetricStore, path: Path) -> None:
    store.record(NOW, [sample(count=8)])
    store.close()
    again = SqliteMetricStore(path)
    assert read(again, NOW, NOW + 1).values["incoming_messages"] == [8]
    again.close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_damaged_history_is_put_aside(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_bytes(b"this is no database, whatever it is called" * 100)
    with caplog.at_level(logging.WARNING):
        store = SqliteMetricStore(path)
    store.record(NOW, [sample()])
    store.close()
    assert rows(path) == len(LEVELS)
    assert path.with_name("history.sqlite.damaged").read_bytes().startswith(b"this is no database")
    assert "put aside" in caplog.text


def test_database_of_somebody_else_is_put_aside(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE theirs (x)")
    other.close()
    SqliteMetricStore(path).close()
    aside = sqlite3.connect(path.with_name("history.sqlite.damaged"))
    assert aside.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]
    aside.close()


def test_newer_history_is_left_alone(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    SqliteMetricStore(path).close()
    newer = sqlite3.connect(path)
    newer.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    newer.close()
    with caplog.at_level(logging.WARNING):
        store = SqliteMetricStore(path)
    store.record(NOW, [sample()])
    assert read(store, NOW, NOW + 1).values["incoming_messages"] == [1]
    store.close()
    assert "newer Penstock" in caplog.text
    assert rows(path) == 0


def test_history_that_cannot_be_opened_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "history.sqlite").mkdir()
    store = SqliteMetricStore(tmp_path / "history.sqlite")
    store.record(NOW, [sample()])
    store.close()


def test_failed_write_is_named_and_leaves_nothing(store: SqliteMetricStore, path: Path) -> None:
    broken = MetricSample(HUB, (1,) * len(COUNTERS), ("many",) * len(GAUGES))  # type: ignore[arg-type]  # what the table refuses
    with pytest.raises(DataDirectoryError, match=r"history\.sqlite"):
        store.record(NOW, [sample(MetricSubject("contoso")), broken])
    assert rows(path) == 0
    store.record(NOW, [sample()])
    assert rows(path) == len(LEVELS)


def test_large_history_is_checked_while_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "history.sqlite"
    SqliteMetricStore(path).close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE row_sums SET row_sum = 1 WHERE name = 'samples'")
    connection.commit()
    connection.close()
    monkeypatch.setattr("penstock.catalog.metric_store.CHECKED_AT_START_BYTES", 0)
    store = SqliteMetricStore(path)
    assert store._check is not None
    store._check._thread.join(30)
    store.close()
    assert (
        f"metric history is damaged: file={path} reason=a row of the table samples" in caplog.text
    )
    assert not path.with_name("history.sqlite.damaged").exists()
