"""The job's rounds, with a service and a Spark that are played by the test."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest
from tests.unit.spark.capture.conftest import Stage

from penstock.capture.windows import WindowStart
from penstock.spark.capture.job import job_id
from penstock.spark.capture.plan import read_plan


def test_a_run_gets_a_query_and_reports(stage: Stage) -> None:
    stage.round()
    assert stage.queries == []
    stage.service.want()
    stage.round()
    (query,) = stage.queries
    assert query.plan.starts == {"0": 0, "1": 5}
    assert query.plan.consumer_group == "$Capture"
    assert "UseDevelopmentEmulator=true" in query.plan.connection_string
    assert stage.service.reports[-1].state == "Running"
    assert stage.service.reports[-1].captured == {"0": 0, "1": 5}
    stage.round()
    assert len(stage.queries) == 1


def test_damaged_job_id_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = job_id(tmp_path)
    assert job_id(tmp_path) == first
    file = tmp_path / "job-id"
    file.write_bytes(b"\xe8" + file.read_bytes()[1:])
    second = job_id(tmp_path)
    assert f"file={file}" in caplog.text
    assert second != first
    assert job_id(tmp_path) == second


def test_without_a_key_that_manages_the_default_group_is_read(stage: Stage) -> None:
    stage.service.rights = ["Listen"]
    stage.service.want()
    stage.round()
    assert stage.queries[0].plan.consumer_group == "$Default"
    stage.service.rights = ["Send"]
    stage.queries[0].fail("denied")
    for _ in range(3):
        stage.round(100)
    assert "may listen" in stage.service.reports[-1].last_error


def test_a_query_that_fails_is_started_again_later_each_time(stage: Stage) -> None:
    stage.service.want()
    stage.round()
    stage.queries[-1].fail("storage is away")
    stage.round(0.5)
    assert len(stage.queries) == 1
    stage.round(5)
    assert len(stage.queries) == 2
    assert stage.service.reports[-1].last_error == "storage is away"
    stage.queries[-1].fail("storage is away")
    stage.round(0.1)
    assert stage.service.reports[-1].state in ("Waiting", "Running")
    stage.round(1.5)
    assert len(stage.queries) == 2  # two seconds now
    stage.round(5)
    assert len(stage.queries) == 3


def test_news_are_reported_at_once_and_nothing_else_is(stage: Stage) -> None:
    stage.service.want()
    stage.round()
    reports = len(stage.service.reports)
    stage.round(1)
    assert len(stage.service.reports) == reports
    with closing(stage.queries[0].plan.open_state()) as state:
        state.record([], {"0": WindowStart(3, window=1, named_s=7)})
    stage.round(1)
    assert stage.service.reports[reports].captured == {"0": 3, "1": 5}
    stage.queries[0].fail("storage is away")
    stage.round(1)
    assert stage.service.reports[reports + 1].last_error == "storage is away"
    stage.round(0.5)
    assert len(stage.service.reports) == reports + 2


def test_whatever_spark_throws_is_tried_again(stage: Stage) -> None:
    stage.service.want()
    stage.is_spark_broken = True
    stage.round()
    assert "OutOfMemoryError" in stage.service.reports[-1].last_error
    stage.is_spark_broken = False
    stage.round(100)
    assert len(stage.queries) == 1


def test_changed_settings_and_the_end_start_the_query_anew(stage: Stage) -> None:
    stage.service.want()
    stage.round()
    stage.service.want(off_ms=5_000, stops={"0": 10, "1": 5})
    stage.round()
    first, second = stage.queries
    assert not first.isActive and second.plan.stops == {"0": 10, "1": 5}
    with closing(second.plan.open_state()) as state:
        state.record([], {"0": WindowStart(10, window=1, named_s=7)})
    stage.round()
    assert stage.service.reports[-1].is_finished is True
    assert not second.isActive
    stage.service.runs = []
    folder = Path(second.plan.state)
    stage.round()
    assert not folder.exists()


def test_events_from_before_are_captured_one_run_after_the_other(stage: Stage) -> None:
    stage.service.want()
    before = [
        stage.service.assignment(
            id=f"b{n}", on_ms=1, starts={"0": n}, off_ms=2, stops={"0": n + 1}, is_backfill=True
        )
        for n in range(2)
    ]
    stage.service.runs = [*before, *stage.service.runs]
    stage.round()
    stage.round()
    assert [query.plan.starts for query in stage.queries] == [{"0": 0}, {"0": 0, "1": 5}]
    assert stage.queries[0].plan.is_backfill and not stage.queries[1].plan.is_backfill
    assert stage.queries[0].plan.state != stage.queries[1].plan.state
    with closing(stage.queries[0].plan.open_state()) as state:
        state.record([], {"0": WindowStart(1, window=1, named_s=7)})
    stage.round()
    stage.round()
    assert [query.plan.starts for query in stage.queries[2:]] == [{"0": 1}]


def test_a_service_that_is_away_stops_nothing(stage: Stage) -> None:
    stage.service.want()
    stage.round()
    stage.service.is_away = True
    stage.round()
    assert stage.queries[0].isActive
    assert "does not say" in stage.job.last_error


def test_a_job_gives_way_to_another_one(stage: Stage) -> None:
    stage.service.want()
    stage.round()
    stage.service.other_job = "another one is at work"
    stage.round()
    assert not stage.queries[0].isActive and "another one" in stage.job.last_error
    stage.service.other_job = ""
    stage.round()
    assert stage.queries[1].isActive


def test_stopping_stops_the_queries(stage: Stage) -> None:
    stage.service.want()
    stopping = threading.Event()
    stage.round()
    stopping.set()
    stage.job.run(stopping.wait)
    assert not stage.queries[0].isActive


def test_the_plan_s_file_is_ours_alone_and_shows_nothing(stage: Stage) -> None:
    stage.service.want()
    stage.round()
    file = Path(stage.queries[0].plan.state) / "plan.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert "SharedAccessKey" not in repr(read_plan(str(file)))
    with pytest.raises(Exception, match="cannot be read") as refused:
        read_plan(str(file.parent / "other.json"))
    assert "key" not in str(refused.value)
