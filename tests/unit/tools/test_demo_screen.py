"""`make demo` without a terminal: something new at least every two seconds, and the verdict."""

from __future__ import annotations

import itertools
import re

import pytest
from tools.demo_screen import Screen, View, summary

TICK_S = 0.25


def sent(view: View, seconds: float) -> None:
    events = int(seconds * 500)
    reading = '{"device": "device-01", "temperature": 20.5}'
    said = {"sent": events, "bytes": events * 100, "readings": events, "seconds": seconds}
    view.seconds = seconds
    view.heard_fleet(said | {"newest": reading})


def test_lines_without_a_terminal_have_news_at_least_every_two_seconds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view = View(folder="demo", devices=2, rate=500)
    with Screen() as screen:
        for tick in range(60):
            sent(view, tick * TICK_S)
            if tick == 30:
                view.note("the broker is killed")
            screen.show(view)
    lines = capsys.readouterr().out.splitlines()[1:]
    times = [float(line.split()[0]) for line in lines]
    assert max(later - sooner for sooner, later in itertools.pairwise(times)) <= 2.0
    assert len(set(lines)) == len(lines)
    assert [line for line in lines if "*" in line] == ["  7.5 s  * the broker is killed"]
    assert all(len(line) <= 120 for line in lines)
    assert "device-01 20.5 °C" in lines[1]


@pytest.mark.parametrize(
    ("lost", "counted", "is_exact", "text"),
    [
        (0, 100, True, "0 lost; 2 sent again by the SDK"),
        (3, 100, False, "3 lost"),
        (0, 99, False, "100 readings are stored, 99 are counted"),
    ],
)
def test_the_summary_compares_acknowledged_with_stored_and_counted_events(
    capsys: pytest.CaptureFixture[str], lost: int, counted: int, is_exact: bool, text: str
) -> None:
    view = View(folder="demo", devices=1, rate=500)
    sent(view, 1.0)
    row = {"from": "2026-11-18T20:00:00Z", "device": "device-01", "average": 20.5}
    view.heard_pipeline({"event": "row", "row": row | {"readings": counted}})
    view.is_fleet_done = True
    view.acknowledged, view.stored, view.lost, view.repeated = 98, 100, lost, 2
    summary(view, is_kept=False)
    assert view.is_exact is is_exact
    assert text in re.sub(r"\s+", " ", capsys.readouterr().out)
