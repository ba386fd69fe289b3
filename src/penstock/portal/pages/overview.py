"""The first page: how the namespace is, now and lately."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response

from penstock.formats.quantities import format_count, format_plural, format_size
from penstock.management.client import ManagementClient
from penstock.management.permissions import AdminRole
from penstock.management.resources import EventHubResource, NamespaceResource
from penstock.portal import components as ui
from penstock.portal.html import Html, el
from penstock.portal.layout import page
from penstock.portal.page_request import PageRequest

CHARTED = (
    *("incoming_messages", "outgoing_messages", "incoming_bytes", "outgoing_bytes"),
    *("throttled_requests", "user_errors", "server_errors", "size_bytes"),
)
_LATELY_MS = 60_000
HUBS_SHOWN = 20  # on one page
_LOOKED_AT = 5


async def overview(visit: PageRequest) -> Response:
    if not visit.namespace:
        return await page(visit, ui.card("", el("p", "There is no namespace yet.")))
    hubs = await visit.visible_hubs()
    now = await lately(visit, None)
    series = await ui.history(visit, None, CHARTED)
    more = format_plural(len(hubs) - HUBS_SHOWN, "event hub") if len(hubs) > HUBS_SHOWN else ""
    return await page(
        visit,
        await _first_steps(visit, hubs, now),
        ui.live_element("tiles", await _tiles(visit, hubs, now)),
        ui.live_element("charts", traffic_charts(series), tag="section"),
        ui.card(
            "Event hubs",
            ui.live_element("hubs", await hub_table(visit, hubs[:HUBS_SHOWN])),
            el("p", el("a", f"and {more} more", href=visit.link("hubs"))) if more else None,
        ),
        aside=ui.ranges(visit),
    )


async def lately(visit: PageRequest, hub: str | None) -> dict[str, Any]:
    """The numbers of the last minute, in the smallest steps (of ten seconds)."""
    return await visit.backend.history(visit.namespace, hub, (), _LATELY_MS)


def rate(now: dict[str, Any], name: str) -> float | None:
    """Of a second, by the newest step that is whole."""
    value = newest(now, name)
    return None if value is None else value * 1000 / now["step_ms"]


def newest(now: dict[str, Any], name: str) -> int | None:
    values = [value for value in now["values"].get(name, []) if value is not None]
    return values[-1] if values else None


def traffic_tile(now: dict[str, Any], way: str, *, has_bytes: bool = False) -> Html:
    """Events per second, `way` is "in" or "out"."""
    prefix = "incoming" if way == "in" else "outgoing"
    note = f"{format_size(rate(now, f'{prefix}_bytes'))}/s" if has_bytes else ""
    return ui.tile(f"Events {way}", f"{format_count(rate(now, f'{prefix}_messages'))}/s", note)


def throttled_tile(now: dict[str, Any]) -> Html:
    count = sum(value or 0 for value in now["values"].get("throttled_requests", []))
    return ui.tile("Throttled", count, "in the last minute", tone="bad" if count else "good")


async def current_namespace(visit: PageRequest) -> NamespaceResource:
    namespaces = await visit.backend.read(ManagementClient.namespaces)
    return next(each for each in namespaces if each.name == visit.namespace)


async def _tiles(visit: PageRequest, hubs: list[EventHubResource], now: dict[str, Any]) -> Html:
    namespace = await current_namespace(visit)
    stored, count = format_size(newest(now, "size_bytes")), format_plural(len(hubs), "event hub")
    units = "unlimited" if namespace.unlimited else namespace.capacity
    return ui.tiles(
        await _health(visit),
        traffic_tile(now, "in", has_bytes=True),
        traffic_tile(now, "out", has_bytes=True),
        throttled_tile(now),
        ui.tile("Furthest behind", format_count(newest(now, "lag_events")), "events"),
        ui.tile("Stored", stored, f"in {count}"),
        ui.tile("Connections", newest(now, "active_connections"), "AMQP, of clients"),
        ui.tile("Throughput units", units, namespace.sku.name),
    )


async def _health(visit: PageRequest) -> Html:
    """The way to the page that says more."""
    found = await visit.backend.health()
    fine = found.status == "ready"
    note = format_plural(len(found.warnings), "warning") if found.warnings else "all is well"
    return ui.tile(
        "Health",
        el("a", found.status, href=visit.link("health")),
        note if fine else "not every part works",
        tone="bad" if not fine else "warn" if found.warnings else "good",
    )


def traffic_charts(series: dict[str, Any]) -> Html:
    """What Azure's own overview shows: messages, bytes, errors, size."""
    values = series["values"]

    def rates(what: str) -> dict[str, list[float | None]]:
        return {way: ui.per_second(series, f"{way}_{what}") for way in ("incoming", "outgoing")}

    failures = {
        name.replace("_requests", "").replace("_", " "): values.get(name, [])
        for name in ("throttled_requests", "user_errors", "server_errors")
    }
    stored = {"log": values.get("size_bytes", [])}
    return el(
        "div",
        ui.chart(series, "Events", rates("messages"), "a second"),
        ui.chart(series, "Throughput", rates("bytes"), "bytes a second", bytes_=True),
        ui.chart(series, "Requests that failed", failures, "in each step"),
        ui.chart(series, "Stored", stored, "bytes", bytes_=True),
        class_="columns",
    )


async def hub_table(visit: PageRequest, hubs: list[EventHubResource]) -> Html:
    """Of a few: two numbers are asked for each, and the service answers so many a second."""
    assert len(hubs) <= HUBS_SHOWN
    rows = await asyncio.gather(*(_hub_row(visit, hub) for hub in hubs))
    empty = "No event hub yet: create the first."
    numbers = ("Partitions", "Stored", "In", "Out", "Groups", "Retention")
    return ui.table(rows, empty=empty, numbers=numbers)


async def _hub_row(visit: PageRequest, hub: EventHubResource) -> dict[str, object]:
    now = await lately(visit, hub.name)
    groups = await visit.backend.read(ManagementClient.groups, visit.namespace, hub.name)
    is_captured = bool(hub.capture and hub.capture.get("enabled"))
    return {
        "Name": el("a", hub.name, href=visit.link("hubs", hub.name)),
        "State": ui.badge(hub.status, "good" if hub.status == "Active" else "warn"),
        "Partitions": hub.partition_count,
        "Stored": format_size(newest(now, "size_bytes")),
        "In": f"{format_count(rate(now, 'incoming_messages'))}/s",
        "Out": f"{format_count(rate(now, 'outgoing_messages'))}/s",
        "Groups": len(groups),
        "Retention": f"{hub.retention_hours} h",
        "Capture": ui.badge("on", "good") if is_captured else "off",
    }


async def _first_steps(
    visit: PageRequest, hubs: list[EventHubResource], now: dict[str, Any]
) -> Html | None:
    """Until the first event is there: what to do next."""
    if newest(now, "size_bytes"):
        return None
    for hub in hubs[:_LOOKED_AT]:  # no number was noted yet: the service has just begun
        partitions = await visit.backend.read(
            ManagementClient.partitions, visit.namespace, hub.name
        )
        if any(each["last_sequence"] >= 0 for each in partitions):
            return None
    steps: list[tuple[object, ...]] = [("Create an event hub.",)]
    if hubs:
        first = hubs[0].name
        keys = el("a", "Take a connection string", href=visit.link("policies"))
        send = el("a", "send the first events here", href=visit.link("hubs", first, "send"))
        watch = el("a", "Watch them arrive", href=visit.link("hubs", first, "events"))
        steps = [
            (f"The event hub {first} is ready.",),
            (keys, " for your SDK; snippets are beside it. Or ", send, "."),
            (watch, "."),
        ]
    elif visit.may(AdminRole.OPERATOR):
        steps = [(el("a", "Create an event hub", href=visit.link("hubs") + "#create"),)]
    items = [el("li", el("div", *parts)) for parts in steps]
    return ui.card("First steps", el("ol", *items, class_="steps"), id_="first-steps")
