"""Runs of Capture: which events are whose."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec

from penstock.capture.runs import (
    add_location,
    end_run,
    finish_run,
    merge_ranges,
    plan_backfill,
    start_run,
)
from penstock.capture.windows import WindowStart, start_after
from penstock.model.capture import (
    CaptureHistory,
    CaptureRun,
    FileLocation,
    HubCapture,
    RunProgress,
    SequenceRange,
)
from penstock.model.entities import Hub
from penstock.model.names import HubName, NamespaceName

NEW = HubCapture()


def test_off_and_on_leaves_out_exactly_what_came_between() -> None:
    capture = start_run(NEW, {"0": 5}, run_id="a", at_ms=1_000)
    capture = end_run(capture, {"0": 9}, at_ms=2_000)
    capture = start_run(capture, {"0": 12}, run_id="b", at_ms=3_000)
    found = [(run.starts, run.stops) for run in capture.runs]
    assert found == [({"0": 5}, {"0": 9}), ({"0": 12}, None)]
    capture = finish_run(capture, capture.runs[0])
    assert [run.id for run in capture.runs] == ["b"]


def test_names_are_later_than_the_hub_itself_whatever_the_clock_says() -> None:
    capture = start_run(NEW, {"0": 5}, run_id="a", at_ms=9_000, created_ms=1_000)
    assert capture.runs[0].named_s == 9
    capture = start_run(NEW, {"0": 5}, run_id="a", at_ms=1_000, created_ms=9_500)
    assert (capture.runs[0].named_s, capture.runs[0].on_ms) == (9, 1_000)
    (backfill,) = plan_backfill(
        capture, {"0": 2}, new_id=lambda: "h", at_ms=4_000, created_ms=9_500
    )
    assert backfill.named_s == 9


def history(
    capture: HubCapture, starts: dict[str, int]
) -> list[tuple[dict[str, int], dict[str, int] | None]]:
    numbers = itertools.count()
    runs = plan_backfill(capture, starts, new_id=lambda: f"h{next(numbers)}", at_ms=9_000)
    assert all(run.is_backfill and run.is_over and run.named_s == 0 for run in runs)
    return [(run.starts, run.stops) for run in runs]


def with_runs(capture: HubCapture, runs: list[CaptureRun]) -> HubCapture:
    return msgspec.structs.replace(capture, runs=[*runs, *capture.runs])


def test_history_ends_where_the_running_one_begins() -> None:
    capture = start_run(NEW, {"0": 5, "1": 0}, run_id="a", at_ms=1_000)
    assert history(capture, {"0": 2, "1": 0}) == [({"0": 2, "1": 0}, {"0": 5, "1": 0})]
    assert history(capture, {"0": 5, "1": 0}) == []
    assert history(capture, {"0": 2, "1": 400}) == [({"0": 2, "1": 0}, {"0": 5, "1": 0})]
    assert history(NEW, {"0": 0}) == []
    (backfill,) = plan_backfill(capture, {"0": 2}, new_id=lambda: "h", at_ms=4_000)
    assert backfill.off_ms == 1_000


def test_history_leaves_out_what_was_captured_before() -> None:
    capture = start_run(NEW, {"0": 5, "1": 3}, run_id="a", at_ms=1_000)
    capture = end_run(capture, {"0": 9, "1": 3}, at_ms=2_000)
    capture = finish_run(capture, capture.runs[0], files=2, events=4)
    past = capture.past
    assert past is not None
    assert (past.covered, past.files, past.events) == ({"0": [(5, 9)], "1": []}, 2, 4)
    capture = start_run(capture, {"0": 12, "1": 7}, run_id="b", at_ms=3_000)
    gaps = [
        ({"0": 0, "1": 0}, {"0": 5, "1": 7}),
        ({"0": 9, "1": 7}, {"0": 12, "1": 7}),
    ]
    assert history(capture, {"0": 0, "1": 0}) == gaps
    assert history(capture, {"0": 7, "1": 5}) == [({"0": 9, "1": 5}, {"0": 12, "1": 7})]
    runs = plan_backfill(capture, {"0": 0, "1": 0}, new_id=lambda: "h", at_ms=4_000)
    late = plan_backfill(capture, {"0": 10, "1": 99}, new_id=lambda: "l", at_ms=4_000)
    assert history(with_runs(capture, late), {"0": 0, "1": 0}) == [
        gaps[0],
        ({"0": 9, "1": 7}, {"0": 10, "1": 7}),
    ]
    assert [run.off_ms for run in runs] == [3_000, 3_000]  # names end before the running one's
    assert history(with_runs(capture, runs), {"0": 0, "1": 0}) == []  # requested already


def test_history_requested_in_any_order_is_captured_once() -> None:
    capture = start_run(NEW, {"0": 100, "1": 100}, run_id="a", at_ms=1_000)
    seen: dict[str, list[SequenceRange]] = {"0": [], "1": []}
    numbers = itertools.count()
    for starts in ({"0": 60, "1": 10}, {"0": 20, "1": 80}, {"0": 0, "1": 0}, {"0": 0, "1": 0}):
        runs = plan_backfill(capture, starts, new_id=lambda: f"h{next(numbers)}", at_ms=9_000)
        capture = with_runs(capture, runs)
        for run in runs:
            assert run.stops is not None
            for key, end in run.stops.items():
                seen[key].append((run.starts[key], end))
            capture = finish_run(capture, run)
    assert capture.past is not None
    for key, ranges in seen.items():
        assert sum(end - first for first, end in ranges) == 100, key
        assert merge_ranges(ranges) == [(0, 100)] == capture.past.covered[key]


def test_many_runs_are_remembered_as_what_they_captured() -> None:
    capture = NEW
    for number in range(100):
        capture = start_run(capture, {"0": number * 10}, run_id="a", at_ms=number)
        capture = end_run(capture, {"0": number * 10 + 10}, at_ms=number)
        written: dict[str, Any] = {"files": 1, "last_file": f"{number}", "last_file_ms": number}
        capture = finish_run(capture, capture.runs[0], **written)
    past = capture.past
    assert past is not None
    assert (past.covered, past.files, past.last_file) == ({"0": [(0, 1000)]}, 100, "99")


def test_a_run_that_is_over_keeps_the_settings_it_had() -> None:
    capture = start_run(NEW, {"0": 5}, run_id="a", at_ms=1_000)
    capture = end_run(capture, {"0": 9}, at_ms=2_000, description={"size": 1})
    capture = start_run(capture, {"0": 9}, run_id="b", at_ms=3_000)
    capture = end_run(capture, {"0": 12}, at_ms=4_000, description={"size": 2})
    assert [run.description for run in capture.runs] == [{"size": 1}, {"size": 2}]


def test_names_of_a_new_run_are_later_than_those_of_all_before() -> None:
    reached = {"0": RunProgress(9, 1_000, 40, 3), "1": RunProgress(0, 1_000, 2, 1)}
    capture = start_run(NEW, {"0": 5}, run_id="a", at_ms=1_000)
    runs = [msgspec.structs.replace(capture.runs[0], reached=reached)]
    capture = end_run(HubCapture(runs=runs), {"0": 9}, at_ms=2_000)
    assert start_run(capture, {"0": 9}, run_id="b", at_ms=3_000).runs[-1].named_s == 40
    capture = HubCapture(past=CaptureHistory(last_file_ms=77_000))
    assert start_run(capture, {"0": 9}, run_id="b", at_ms=3_000).runs[-1].named_s == 77
    assert start_after(reached["0"]) == WindowStart(9, -1, 1_000, 40, 3)


def test_locations_are_kept_once_each() -> None:
    one = FileLocation(account="a", container="x", name_format="f")
    other = FileLocation(account="b", container="x", name_format="f")
    assert add_location(add_location(add_location([], one), other), one) == [other, one]


def test_the_catalog_stores_plain_json_under_the_keys_of_version_0_1() -> None:
    capture = start_run(NEW, {"0": 1}, run_id="a", at_ms=5)
    capture = end_run(capture, {"0": 9}, at_ms=500, description={"enabled": True})
    progress = {"0": RunProgress(9, 1, 2, 3)}
    run = msgspec.structs.replace(capture.runs[0], reached=progress)
    capture = finish_run(capture, run, files=3)
    capture = msgspec.structs.replace(
        with_runs(capture, [run]),
        description={"enabled": False},
        places=[FileLocation(account="a", container="x", name_format="f")],
    )
    hub = Hub(
        id="a-hub",
        namespace=NamespaceName("contoso"),
        name=HubName("orders"),
        partition_count=1,
        created_ms=0,
        updated_ms=0,
        metadata={"other": 1, "captureRuns": ["replaced"]},
    )
    stored = hub.replace_capture(capture)
    assert stored.metadata == {
        "other": 1,
        "capture": {"enabled": False},
        "captureRuns": [
            {
                "id": "a",
                "on_ms": 5,
                "starts": {"0": 1},
                "off_ms": 500,
                "stops": {"0": 9},
                "description": {"enabled": True},
                "reached": {"0": [9, 1, 2, 3]},
            }
        ],
        "capturePast": {"files": 3, "covered": {"0": [[1, 9]]}},
        "capturePlaces": [{"account": "a", "container": "x", "name_format": "f"}],
    }
    assert stored.capture == capture
    without = stored.replace_capture(NEW)
    assert without.metadata == {"other": 1}
    assert without.capture == NEW
