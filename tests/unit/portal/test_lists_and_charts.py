"""Lists as their address asks for them, and the data of charts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.portal import charts
from penstock.portal.lists import ListView, list_view

ROWS: list[tuple[str, int | None]] = [("b one", 3), ("a two", None), ("c one", 7), ("d", 0)]


def shown(**query: str) -> ListView[tuple[str, int | None]]:
    visit = cast("Any", SimpleNamespace(query=query))
    return list_view(
        visit,
        ROWS,
        text=lambda row: row[0],
        sorts={"name": lambda row: row[0], "lag": lambda row: row[1]},
        sort="-lag",
        states=[
            ("used", "In use", lambda row: row[1] is not None),
            ("behind", "Behind", lambda row: bool(row[1])),
            ("all", "All", lambda row: True),
        ],
        page_size=2,
    )


def names(**query: str) -> str:
    return "".join(name[0] for name, _ in shown(**query).rows)


def test_rows_are_sorted_and_unknown_values_come_last() -> None:
    assert names() == "cb"
    assert names(sort="lag") == "db"
    assert names(state="all", sort="lag", page="2") == "ca"
    assert names(state="all", sort="-lag", page="2") == "da"
    assert names(sort="nonsense") == names()


def test_search_has_every_word_and_chips_count_what_it_found() -> None:
    view = shown(find="ONE")
    assert [(chip.key, chip.count) for chip in view.chips] == [
        *((None, 2), ("behind", 2), ("all", 2))
    ]
    assert (view.matching, view.total) == (2, 4)
    assert names(find="one c") == "c"
    assert names(find="one zero") == ""


@pytest.mark.parametrize("page", ["0", "-1", "x", "1", ""])
def test_page_that_does_not_exist_is_the_first_or_last(page: str) -> None:
    assert shown(page=page).page == 1
    assert shown(page="999").page == shown().pages == 2


def history(*values: float | None, last_ms: int = 10_000) -> dict[str, Any]:
    at_ms = [index * 10_000 for index in range(len(values))]
    return {
        **{"at_ms": at_ms, "step_ms": 10_000, "last_ms": last_ms, "range_ms": 3_600_000},
        "values": {"x": list(values)},
    }


def chart(*values: float | None, **options: Any) -> charts.Chart:
    series = history(*values)
    return charts.chart(series, "X", "events/s", {"In": (1, values)}, **options)


def test_chart_begins_with_the_first_value_and_ends_with_the_last() -> None:
    made = chart(None, None, 1, None, 3, None)
    assert made.series[0].values == [1, None, 3]
    assert (made.data["end"], made.data["note"]) == (40, "no data before 00:00:20")
    assert made.latest(made.series[0]) == "3"
    assert chart(None, None).series[0].values == []
    assert "In – now" in chart(None).label


def test_gap_at_the_end_of_a_stopped_service_stays() -> None:
    assert chart(1, 2, None, None).series[0].values == [1, 2, None, None]


def test_chart_has_five_series_and_counts_the_others() -> None:
    series = history(1, 2, 3)
    made = charts.chart(series, "X", "events", {f"g{n}": (1, [1, 2, 3]) for n in range(8)})
    assert [each.name for each in made.series] == ["g0", "g1", "g2", "g3", "g4"]
    assert made.left_out == 3


def test_young_history_is_asked_for_in_the_shortest_span_that_holds_it() -> None:
    asked: list[int] = []

    class Backend:
        async def history(self, namespace: str, hub: Any, names: Any, span_ms: int) -> Any:
            asked.append(span_ms)
            return history(*([None] * 340), 1, 2, 3)

    clock = SimpleNamespace(now_ms=lambda: 3_430_000)
    visit = SimpleNamespace(
        query={}, backend=Backend(), namespace="n", portal=SimpleNamespace(clock=clock)
    )
    made = asyncio.run(charts.history(cast("Any", visit), None, ("x",)))
    assert asked == [3_600_000, 300_000]
    assert made["range_ms"] == 3_600_000
