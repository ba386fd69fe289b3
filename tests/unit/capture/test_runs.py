"""Runs of Capture: which events are whose."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from penstock.capture.runs import (
    RUNS_MAX,
    FilesPlace,
    Run,
    backfilled,
    ended_of,
    finished,
    kept_of,
    places_of,
    runs_of,
    switched_off,
    switched_on,
    with_ended,
    with_place,
)


def test_off_and_on_leaves_out_exactly_what_came_between() -> None:
    runs = switched_on([], {"0": 5}, run_id="a", at_ms=1_000)
    runs = switched_off(runs, {"0": 9}, at_ms=2_000)
    runs = switched_on(runs, {"0": 12}, run_id="b", at_ms=3_000)
    assert [(run.starts, run.stops) for run in runs] == [({"0": 5}, {"0": 9}), ({"0": 12}, None)]
    left, done = finished(runs, "a")
    assert [run.id for run in left] == ["b"] and done is runs[0]
    assert finished(runs, "b") == (runs, None)  # it goes on


def test_names_are_later_than_the_hub_itself_whatever_the_clock_says() -> None:
    runs = switched_on([], {"0": 5}, run_id="a", at_ms=9_000, created_ms=1_000)
    assert runs[0].named_s == 9
    runs = switched_on([], {"0": 5}, run_id="a", at_ms=1_000, created_ms=9_500)
    assert (runs[0].named_s, runs[0].on_ms) == (9, 1_000)
    (made,) = backfilled(runs, (), {"0": 2}, new_id=lambda: "h", at_ms=4_000, created_ms=9_500)
    assert made.named_s == 9


def history(
    runs: list[Run], starts: dict[str, int], ended: Sequence[Run] = ()
) -> list[tuple[dict[str, int], dict[str, int] | None]]:
    numbers = itertools.count()
    made = backfilled(runs, ended, starts, new_id=lambda: f"h{next(numbers)}", at_ms=9_000)
    assert all(run.is_backfill and run.is_over and run.named_s == 0 for run in made)
    return [(run.starts, run.stops) for run in made]


def test_history_ends_where_the_running_one_begins() -> None:
    runs = switched_on([], {"0": 5, "1": 0}, run_id="a", at_ms=1_000)
    assert history(runs, {"0": 2, "1": 0}) == [({"0": 2, "1": 0}, {"0": 5, "1": 0})]
    assert history(runs, {"0": 5, "1": 0}) == []
    assert history(runs, {"0": 2, "1": 400}) == [({"0": 2, "1": 0}, {"0": 5, "1": 0})]
    assert history([], {"0": 0}) == []
    (made,) = backfilled(runs, (), {"0": 2}, new_id=lambda: "h", at_ms=4_000)
    assert made.off_ms == 1_000


def test_history_leaves_out_what_was_captured_before() -> None:
    runs = switched_on([], {"0": 5, "1": 3}, run_id="a", at_ms=1_000)
    runs = switched_off(runs, {"0": 9, "1": 3}, at_ms=2_000)
    runs, done = finished(runs, "a")
    assert done is not None
    kept = with_ended(None, done, files=2, events=4)
    (ended,) = ended_of(kept)
    assert (ended.starts, ended.stops, ended.files) == (done.starts, done.stops, 2)
    runs = switched_on(runs, {"0": 12, "1": 7}, run_id="b", at_ms=3_000)
    gaps = [
        ({"0": 0, "1": 0}, {"0": 5, "1": 3}),
        ({"0": 9, "1": 3}, {"0": 12, "1": 7}),
    ]
    assert history(runs, {"0": 0, "1": 0}, [ended]) == gaps
    assert history(runs, {"0": 7, "1": 5}, [ended]) == [({"0": 9, "1": 5}, {"0": 12, "1": 7})]
    made = backfilled(runs, [ended], {"0": 0, "1": 0}, new_id=lambda: "h", at_ms=4_000)
    late = backfilled(runs, [ended], {"0": 10, "1": 99}, new_id=lambda: "l", at_ms=4_000)
    assert history([*late, *runs], {"0": 0, "1": 0}, [ended]) == [
        gaps[0],
        ({"0": 9, "1": 3}, {"0": 10, "1": 7}),
    ]
    assert [run.off_ms for run in made] == [1_000, 3_000]  # names end before the next one's begin
    assert history([*made, *runs], {"0": 0, "1": 0}, [ended]) == []  # asked for already


def test_places_are_kept_once_each() -> None:
    one = FilesPlace(account="a", container="x", name_format="f")
    other = FilesPlace(account="b", container="x", name_format="f")
    kept = with_place(with_place(with_place(None, one), other), one)
    assert places_of(kept) == [other, one]


def test_what_is_kept_is_plain_and_bounded() -> None:
    runs = [
        run
        for number in range(RUNS_MAX + 10)
        for run in switched_off(
            switched_on([], {"0": number}, run_id=str(number), at_ms=number), {"0": 99}, at_ms=500
        )
    ]
    assert runs_of(kept_of(runs)) == runs[-RUNS_MAX:]
    assert runs_of(None) == []
