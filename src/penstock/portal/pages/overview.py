"""The first page: how the namespace is, now and lately."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.responses import Response

from penstock.management.client import ManagementClient
from penstock.management.resources import EventHubResource, NamespaceResource
from penstock.portal import charts
from penstock.portal.charts import Chart
from penstock.portal.page_request import PageRequest
from penstock.portal.shell import page

CHARTED = (
    *("incoming_messages", "outgoing_messages", "incoming_bytes", "outgoing_bytes"),
    *("throttled_requests", "user_errors", "server_errors", "size_bytes", "lag_events"),
)
_LATELY_MS = 60_000
HUBS_SHOWN = 20  # on one page
_LOOKED_AT = 5


class Now(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of the last minute; None for one that was not noted."""

    events_in: float | None
    events_out: float | None
    bytes_in: float | None
    bytes_out: float | None
    throttled: int
    lag_events: int | None
    size_bytes: int | None
    connections: int | None


class HubRow(msgspec.Struct, frozen=True, kw_only=True):
    hub: EventHubResource
    now: Now
    groups: int

    @property
    def is_captured(self) -> bool:
        return bool(self.hub.capture and self.hub.capture.get("enabled"))


async def overview(visit: PageRequest) -> Response:
    if not visit.namespace:
        return await page(visit, "overview.html", namespace=None)
    hubs = await visit.visible_hubs()
    now = await lately(visit, None)
    series = await charts.history(visit, None, CHARTED)
    return await page(
        visit,
        "overview.html",
        namespace=await current_namespace(visit),
        hubs=hubs,
        health=await visit.backend.health(),
        now=now,
        charts=traffic_charts(series),
        rows=await hub_rows(visit, hubs[:HUBS_SHOWN]),
        is_new=await _is_new(visit, hubs, now),
    )


async def lately(visit: PageRequest, hub: str | None) -> Now:
    """The numbers of the last minute, in the smallest steps (of ten seconds)."""
    series = await visit.backend.history(visit.namespace, hub, (), _LATELY_MS)

    def newest(name: str) -> int | None:
        values = [value for value in series["values"].get(name, []) if value is not None]
        return values[-1] if values else None

    def rate(name: str) -> float | None:
        value = newest(name)
        return None if value is None else value * 1000 / series["step_ms"]

    return Now(
        events_in=rate("incoming_messages"),
        events_out=rate("outgoing_messages"),
        bytes_in=rate("incoming_bytes"),
        bytes_out=rate("outgoing_bytes"),
        throttled=sum(value or 0 for value in series["values"].get("throttled_requests", [])),
        lag_events=newest("lag_events"),
        size_bytes=newest("size_bytes"),
        connections=newest("active_connections"),
    )


async def current_namespace(visit: PageRequest) -> NamespaceResource:
    namespaces = await visit.backend.read(ManagementClient.namespaces)
    return next(each for each in namespaces if each.name == visit.namespace)


def traffic_charts(series: dict[str, Any]) -> list[Chart]:
    """What Azure's own overview shows: messages, bytes, errors, size."""
    values = series["values"]

    def rates(what: str) -> dict[str, tuple[int, charts.Values]]:
        return {
            "In": (charts.IN, charts.per_second(series, f"incoming_{what}")),
            "Out": (charts.OUT, charts.per_second(series, f"outgoing_{what}")),
        }

    failures: dict[str, tuple[int, charts.Values]] = {
        "Throttled": (3, values.get("throttled_requests", [])),
        "User errors": (2, values.get("user_errors", [])),
        "Server errors": (4, values.get("server_errors", [])),
    }
    stored: dict[str, tuple[int, charts.Values]] = {"Log": (1, values.get("size_bytes", []))}
    step = f"requests per {charts.step_label(series)}"
    return [
        charts.chart(series, "Events", "events/s", rates("messages")),
        charts.chart(series, "Throughput", "bytes/s", rates("bytes"), unit="B"),
        charts.chart(series, "Failed requests", step, failures, kind="bars", is_count=True),
        charts.chart(series, "Stored", "bytes", stored, unit="B"),
    ]


async def hub_rows(visit: PageRequest, hubs: list[EventHubResource]) -> list[HubRow]:
    """Of a few: two numbers are asked for each, and the service answers so many a second."""
    assert len(hubs) <= HUBS_SHOWN
    return await asyncio.gather(*(_hub_row(visit, hub) for hub in hubs))


async def _hub_row(visit: PageRequest, hub: EventHubResource) -> HubRow:
    groups = await visit.backend.read(ManagementClient.groups, visit.namespace, hub.name)
    return HubRow(hub=hub, now=await lately(visit, hub.name), groups=len(groups))


async def _is_new(visit: PageRequest, hubs: list[EventHubResource], now: Now) -> bool:
    """Whether no event was ever stored."""
    if now.size_bytes:
        return False
    for hub in hubs[:_LOOKED_AT]:  # no number was noted yet: the service has just begun
        partitions = await visit.backend.read(
            ManagementClient.partitions, visit.namespace, hub.name
        )
        if any(each["last_sequence"] >= 0 for each in partitions):
            return False
    return True
