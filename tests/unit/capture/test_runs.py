"""Runs of Capture: which events are whose."""

from __future__ import annotations

from penstock.capture.runs import (
    RUNS_MAX,
    backfilled,
    finished,
    kept_of,
    runs_of,
    switched_off,
    switched_on,
)


def test_off_and_on_leaves_out_exactly_what_came_between() -> None:
    runs = switched_on([], {"0": 5}, run_id="a", at_ms=1_000)
    runs = switched_off(runs, {"0": 9}, at_ms=2_000)
    runs = switched_on(runs, {"0": 12}, run_id="b", at_ms=3_000)
    assert [(run.starts, run.stops) for run in runs] == [({"0": 5}, {"0": 9}), ({"0": 12}, None)]
    assert [run.id for run in finished(runs, "a")] == ["b"]
    assert finished(runs, "b") == runs  # it goes on


def test_history_ends_where_the_running_one_begins() -> None:
    runs = switched_on([], {"0": 5, "1": 0}, run_id="a", at_ms=1_000)
    made = backfilled(runs, {"0": 2, "1": 0}, run_id="h", at_ms=4_000)
    assert made is not None and (made.starts, made.stops) == ({"0": 2, "1": 0}, {"0": 5, "1": 0})
    assert made.off_ms == 1_000 and made.named_s == 0
    assert backfilled(runs, {"0": 5, "1": 0}, run_id="h", at_ms=4_000) is None
    assert backfilled([], {"0": 0}, run_id="h", at_ms=4_000) is None


def test_what_is_kept_is_plain_and_bounded() -> None:
    runs = [
        run
        for number in range(30)
        for run in switched_off(
            switched_on([], {"0": number}, run_id=str(number), at_ms=number), {"0": 99}, at_ms=50
        )
    ]
    assert runs_of(kept_of(runs)) == runs[-RUNS_MAX:]
    assert runs_of(None) == []
