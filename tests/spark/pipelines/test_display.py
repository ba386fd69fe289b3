"""How a running pipeline looks: on a terminal, in a log, as JSON lines; hostile text is inert."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from penstock.cli.spark.pipeline_display import JsonDisplay, LiveDisplay, PipelineDisplay, sparkline
from penstock.spark.pipelines.progress import BatchProgress
from penstock.spark.pipelines.runner import PipelineSnapshot, PipelineState, QuerySnapshot


def batch(number: int, **more: Any) -> BatchProgress:
    given: dict[str, Any] = {
        "batch_id": number,
        "timestamp": "2026-11-16T09:00:00.000Z",
        "rows": 100,
        "bytes": 51200,
        "seconds": 0.75,
        "lag_events": 42,
        "state_rows": 320,
        "state_bytes": 2048,
        "late_rows": 0,
        "watermark": None,
    }
    return BatchProgress(**(given | more))


def shot(
    *,
    state: PipelineState = PipelineState.RUNNING,
    seconds: float = 12.0,
    last: BatchProgress | None = None,
) -> PipelineSnapshot:
    query = QuerySnapshot(
        name="windows\x1b[2J",
        state=state,
        message="Waiting for data",
        rows=1200,
        rows_per_second=99.6,
        late_rows=3,
        batches=12,
        last=last,
        new_batches=[] if last is None else [last],
    )
    return PipelineSnapshot(
        name="windows", state=state, seconds=seconds, restarts=1, queries=[query]
    )


def test_json_lines_tell_everything_a_script_wants(capsys: pytest.CaptureFixture[str]) -> None:
    display = JsonDisplay()
    display.show_starting("windows", "local[*]")
    display.show_started("http://127.0.0.1:4040", "/checkpoints")
    display.show_snapshot(shot(last=batch(11)))
    display.show_rows("windows", 11, ['{"device":"a"}'])
    display.show_message("again")
    display.show_snapshot(shot(state=PipelineState.STOPPED))
    display.show_ended()
    captured = capsys.readouterr()
    lines = [json.loads(line) for line in captured.out.splitlines()]
    assert [line["event"] for line in lines] == (
        ["starting", "started", "state", "progress", "row", "note", "state", "ended"]
    )
    assert lines[1]["ui_url"] == "http://127.0.0.1:4040"
    progress = lines[3]
    assert (progress["batch_id"], progress["rows"], progress["rows_total"]) == (11, 100, 1200)
    assert (progress["lag_events"], progress["batch_seconds"]) == (42, 0.75)
    assert progress["bytes"] == 51200
    assert (progress["state_rows"], progress["state_bytes"], progress["late_rows"]) == (
        320,
        2048,
        3,
    )
    assert lines[4]["row"] == {"device": "a"}
    assert (lines[-1]["state"], lines[-1]["rows_total"], lines[-1]["batches"]) == (
        "Stopped",
        1200,
        12,
    )
    assert captured.err == ""


def test_lines_come_now_and_then_and_rows_are_data(capsys: pytest.CaptureFixture[str]) -> None:
    display = PipelineDisplay(every_s=10, is_quiet=False)
    display.show_starting("windows", "yarn")
    display.show_started(None, None)
    for second in range(25):
        display.show_snapshot(shot(seconds=float(second), last=batch(second)))
    display.show_rows("windows", 1, ['{"device":"a"}'])
    display.show_ended()
    captured = capsys.readouterr()
    assert captured.out == '{"device":"a"}\n'
    told = [line for line in captured.err.splitlines() if "batch time" in line]
    assert len(told) == 3
    assert told[0] == (
        "windows\\e[2J: batch 0, 1,200 rows, 100/s, lag 42, batch time 0.8s, "
        "state 320 rows, 2.0 KB, 3 late"
    )
    assert "no --checkpoint" in captured.err
    assert "1,200 rows in 12 batches" in captured.err


def test_quiet_says_rows_and_trouble_only(capsys: pytest.CaptureFixture[str]) -> None:
    display = PipelineDisplay(every_s=0, is_quiet=True)
    display.show_starting("windows", "yarn")
    display.show_snapshot(shot(last=batch(1)))
    display.show_message("it failed")
    display.show_ended()
    assert capsys.readouterr().err == "it failed\n"


def test_a_terminal_has_a_table_with_lag_state_and_times() -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=110, color_system=None)
    display = LiveDisplay(screen)
    display.show_starting("windows", "local[*]")
    try:
        first = _rendered(display)
        display.show_started("http://127.0.0.1:4040", "/checkpoints")
        display.show_snapshot(shot())
        waiting = _rendered(display)
        display.show_snapshot(shot(seconds=14.0, last=batch(12)))
        running = _rendered(display)
    finally:
        display.close()
    assert "Spark is starting" in first
    assert "Waiting for data" in waiting
    assert "http://127.0.0.1:4040" in running and "/checkpoints" in running
    for part in ("1,200", "100", "42", "0.8s", "320 rows, 2.0 KB", "1 restarts", "windows\\e[2J"):
        assert part in running
    assert "\x1b[2J" not in running


def test_a_sparkline_is_as_high_as_its_highest() -> None:
    assert sparkline([0, 5, 10]) == "▁▄█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""


def _rendered(display: LiveDisplay) -> str:
    plain = Console(file=io.StringIO(), width=110)
    plain.print(display._render())
    assert isinstance(plain.file, io.StringIO)
    return plain.file.getvalue()
