"""Numbers over time as an operation and over the API; the store has tests of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.management.operations.activity import MetricQuery
from penstock.model import metrics
from penstock.model.errors import ArgumentError, NotFound

if TYPE_CHECKING:
    from tests.unit.management.conftest import Caller, Plane

OWN = "/providers/Penstock/namespaces/contoso"


async def test_history_is_of_the_last_hour_and_of_everything_unless_said(full: Plane) -> None:
    found = await full.admin.activity.list_metrics("contoso", query=MetricQuery())
    now_ms = full.clock.now_ms()
    assert full.history.asked == metrics.MetricRequest(
        namespace="contoso",
        hub=None,
        names=metrics.NAMES,
        since_ms=now_ms - 3_600_000,
        until_ms=now_ms,
        points=500,
    )
    assert set(found.values) == set(metrics.NAMES)


async def test_history_of_a_hub_names_groups_as_they_are_named(full: Plane) -> None:
    full.admin.groups.put("contoso", "orders", "Other")
    found = await full.admin.activity.list_metrics(
        "contoso",
        "ORDERS",
        query=MetricQuery(names="lag_events,lag_events", since_ms=1, until_ms=2, points=3),
    )
    assert found.lag_by_group == {"readers": [7, 8]}  # what is left of a group that is gone is not
    assert list(found.values) == ["lag_events"]
    assert full.history.asked is not None
    assert (full.history.asked.since_ms, full.history.asked.points) == (1, 3)


async def test_history_of_what_is_not_there_is_refused(full: Plane) -> None:
    reports = full.admin.activity
    with pytest.raises(NotFound):
        await reports.list_metrics("missing", query=MetricQuery())
    with pytest.raises(NotFound):
        await reports.list_metrics("contoso", "missing", query=MetricQuery())
    with pytest.raises(ArgumentError, match="'cpu' is no metric"):
        await reports.list_metrics("contoso", query=MetricQuery(names="incoming_bytes,cpu"))


async def test_history_over_the_api(call: Caller) -> None:
    query = "names=incoming_bytes,lag_events&sinceMs=5&untilMs=9&points=2"
    answer = await call("GET", f"{OWN}/eventhubs/orders/metrics", query=query)
    assert answer.json == {
        "step_ms": 10_000,
        "at_ms": [0, 10_000],
        "values": {"incoming_bytes": [1, None], "lag_events": [1, None]},
        "lag_by_group": {"readers": [7, 8]},
    }
    whole = await call("GET", f"{OWN}/metrics", query="")
    assert (whole.status, whole.json["lag_by_group"]) == (200, {})
    for wrong in ("points=0", "points=501", "sinceMs=-1", "names=cpu"):
        assert (await call("GET", f"{OWN}/metrics", query=wrong)).status == 400
