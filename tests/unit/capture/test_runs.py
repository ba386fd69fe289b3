"""Runs of Capture: which events are whose."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from penstock.capture.runs import (
    CaptureHistory,
    CaptureRun,
    FileLocation,
    RunProgress,
    Span,
    add_location,
    add_to_history,
    dump_runs,
    end_run,
    load_history,
    load_locations,
    load_runs,
    merge_ranges,
    plan_backfill,
    remove_finished_run,
    start_run,
)
from penstock.capture.windows import WindowStart


def test_off_and_on_leaves_out_exactly_what_came_between() -> None:
    runs = start_run([], {"0": 5}, run_id="a", at_ms=1_000)
    runs = end_run(runs, {"0": 9}, at_ms=2_000)
    runs = start_run(runs, {"0": 12}, run_id="b", at_ms=3_000)
    assert [(run.starts, run.stops) for run in runs] == [({"0": 5}, {"0": 9}), ({"0": 12}, None)]
    left, done = remove_finished_run(runs, "a")
    assert [run.id for run in left] == ["b"] and done is runs[0]
    assert remove_finished_run(runs, "b") == (runs, None)  # it goes on


def test_names_are_later_than_the_hub_itself_whatever_the_clock_says() -> None:
    runs = start_run([], {"0": 5}, run_id="a", at_ms=9_000, created_ms=1_000)
    assert runs[0].named_s == 9
    runs = start_run([], {"0": 5}, run_id="a", at_ms=1_000, created_ms=9_500)
    assert (runs[0].named_s, runs[0].on_ms) == (9, 1_000)
    (made,) = plan_backfill(
        runs, CaptureHistory(), {"0": 2}, new_id=lambda: "h", at_ms=4_000, created_ms=9_500
    )
    assert made.named_s == 9


def history(
    runs: list[CaptureRun], starts: dict[str, int], past: CaptureHistory | None = None
) -> list[tuple[dict[str, int], dict[str, int] | None]]:
    numbers = itertools.count()
    made = plan_backfill(
        runs, past or CaptureHistory(), starts, new_id=lambda: f"h{next(numbers)}", at_ms=9_000
    )
    assert all(run.is_backfill and run.is_over and run.named_s == 0 for run in made)
    return [(run.starts, run.stops) for run in made]


def test_history_ends_where_the_running_one_begins() -> None:
    runs = start_run([], {"0": 5, "1": 0}, run_id="a", at_ms=1_000)
    assert history(runs, {"0": 2, "1": 0}) == [({"0": 2, "1": 0}, {"0": 5, "1": 0})]
    assert history(runs, {"0": 5, "1": 0}) == []
    assert history(runs, {"0": 2, "1": 400}) == [({"0": 2, "1": 0}, {"0": 5, "1": 0})]
    assert history([], {"0": 0}) == []
    (made,) = plan_backfill(runs, CaptureHistory(), {"0": 2}, new_id=lambda: "h", at_ms=4_000)
    assert made.off_ms == 1_000


def done(
    runs: list[CaptureRun], past: CaptureHistory, run_id: str, **wrote: Any
) -> tuple[list[CaptureRun], CaptureHistory]:
    left, run = remove_finished_run(runs, run_id)
    assert run is not None
    return left, load_history(add_to_history(past, run, **wrote))


def test_history_leaves_out_what_was_captured_before() -> None:
    runs = start_run([], {"0": 5, "1": 3}, run_id="a", at_ms=1_000)
    runs = end_run(runs, {"0": 9, "1": 3}, at_ms=2_000)
    runs, past = done(runs, CaptureHistory(), "a", files=2, events=4)
    assert (past.covered, past.files, past.events) == ({"0": [(5, 9)], "1": []}, 2, 4)
    runs = start_run(runs, {"0": 12, "1": 7}, run_id="b", at_ms=3_000)
    gaps = [
        ({"0": 0, "1": 0}, {"0": 5, "1": 7}),
        ({"0": 9, "1": 7}, {"0": 12, "1": 7}),
    ]
    assert history(runs, {"0": 0, "1": 0}, past) == gaps
    assert history(runs, {"0": 7, "1": 5}, past) == [({"0": 9, "1": 5}, {"0": 12, "1": 7})]
    made = plan_backfill(runs, past, {"0": 0, "1": 0}, new_id=lambda: "h", at_ms=4_000)
    late = plan_backfill(runs, past, {"0": 10, "1": 99}, new_id=lambda: "l", at_ms=4_000)
    assert history([*late, *runs], {"0": 0, "1": 0}, past) == [
        gaps[0],
        ({"0": 9, "1": 7}, {"0": 10, "1": 7}),
    ]
    assert [run.off_ms for run in made] == [3_000, 3_000]  # names end before the running one's
    assert history([*made, *runs], {"0": 0, "1": 0}, past) == []  # asked for already


def test_history_asked_for_in_any_order_is_captured_once(hundred: list[CaptureRun]) -> None:
    runs, past = hundred, CaptureHistory()
    seen: dict[str, list[Span]] = {"0": [], "1": []}
    numbers = itertools.count()
    for starts in ({"0": 60, "1": 10}, {"0": 20, "1": 80}, {"0": 0, "1": 0}, {"0": 0, "1": 0}):
        made = plan_backfill(runs, past, starts, new_id=lambda: f"h{next(numbers)}", at_ms=9_000)
        runs = [*made, *runs]
        for run in made:
            assert run.stops is not None
            for key, end in run.stops.items():
                seen[key].append((run.starts[key], end))
            runs, past = done(runs, past, run.id)
    for key, spans in seen.items():
        assert sum(end - first for first, end in spans) == 100, key
        assert merge_ranges(spans) == [(0, 100)] == past.covered[key]


@pytest.fixture
def hundred() -> list[CaptureRun]:
    return start_run([], {"0": 100, "1": 100}, run_id="a", at_ms=1_000)


def test_many_runs_are_remembered_as_what_they_captured() -> None:
    runs: list[CaptureRun] = []
    past = CaptureHistory()
    for number in range(100):
        runs = start_run(runs, {"0": number * 10}, run_id="a", at_ms=number)
        runs = end_run(runs, {"0": number * 10 + 10}, at_ms=number)
        runs, past = done(runs, past, "a", files=1, last_file=f"{number}", last_file_ms=number)
    assert (past.covered, past.files, past.last_file) == ({"0": [(0, 1000)]}, 100, "99")


def test_a_run_that_is_over_keeps_the_settings_it_had() -> None:
    runs = start_run([], {"0": 5}, run_id="a", at_ms=1_000)
    runs = end_run(runs, {"0": 9}, at_ms=2_000, description={"size": 1})
    runs = start_run(runs, {"0": 9}, run_id="b", at_ms=3_000)
    runs = end_run(runs, {"0": 12}, at_ms=4_000, description={"size": 2})
    assert [run.description for run in load_runs(dump_runs(runs))] == [{"size": 1}, {"size": 2}]


def test_names_of_a_new_run_are_later_than_those_of_all_before() -> None:
    runs = start_run([], {"0": 5}, run_id="a", at_ms=1_000)
    reached = {"0": RunProgress(9, 1_000, 40, 3), "1": RunProgress(0, 1_000, 2, 1)}
    runs = [msgspec.structs.replace(runs[0], reached=reached)]
    runs = end_run(load_runs(dump_runs(runs)), {"0": 9}, at_ms=2_000)
    assert start_run(runs, {"0": 9}, run_id="b", at_ms=3_000)[-1].named_s == 40
    past = CaptureHistory(last_file_ms=77_000)
    assert start_run([], {"0": 9}, run_id="b", at_ms=3_000, past=past)[-1].named_s == 77
    assert reached["0"].place == WindowStart(9, -1, 1_000, 40, 3)


def test_places_are_kept_once_each() -> None:
    one = FileLocation(account="a", container="x", name_format="f")
    other = FileLocation(account="b", container="x", name_format="f")
    kept = add_location(add_location(add_location(None, one), other), one)
    assert load_locations(kept) == [other, one]


def test_what_is_kept_is_plain() -> None:
    runs = end_run(start_run([], {"0": 1}, run_id="a", at_ms=5), {"0": 99}, at_ms=500)
    assert load_runs(dump_runs(runs)) == runs
    assert load_runs(None) == [] and load_history(None) == CaptureHistory()
