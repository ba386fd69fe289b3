"""The first page: how the namespace is, now and lately."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response

from penstock.formats.quantities import format_count, format_integer, format_plural, format_size
from penstock.management.resources import EventHubResource, NamespaceResource
from penstock.portal import components as ui
from penstock.portal.html import Html, el
from penstock.portal.layout import page
from penstock.portal.page_request import PageRequest, PageRoute
from penstock.portal.users import PortalRole

CHARTED = (
    *("incoming_messages", "outgoing_messages", "incoming_bytes", "outgoing_bytes"),
    *("throttled_requests", "user_errors", "server_errors", "size_bytes"),
)
_LATELY_MS = 60_000
HUBS_SHOWN = 20  # on one page
_LOOKED_AT = 5


async def overview(visit: PageRequest) -> Response:
    if not visit.namespace:
        return await page(visit, "Overview", ui.card("", el("p", "There is no namespace yet.")))
    hubs = await visit.visible_hubs()
    now = await lately(visit, None)
    series = await ui.history(visit, None, CHARTED)
    more = format_plural(len(hubs) - HUBS_SHOWN, "event hub") if len(hubs) > HUBS_SHOWN else ""
    return await page(
        visit,
        "Overview",
        await _first_steps(visit, hubs, now),
        ui.live_element("tiles", await _tiles(visit, hubs, now)),
        ui.live_element("charts", traffic_charts(series), tag="section"),
        ui.card(
            "Event hubs",
            ui.live_element("hubs", await hub_table(visit, hubs[:HUBS_SHOWN])),
            el("p", el("a", f"and {more} more", href=visit.link("hubs"))) if more else None,
        ),
        active="",
        aside=ui.ranges(visit, ""),
    )


async def lately(visit: PageRequest, hub: str | None) -> dict[str, Any]:
    """The numbers of the last minute, in the smallest steps (of ten seconds)."""
    namespace, now_ms = visit.namespace, visit.portal.clock.now_ms()
    return await visit.backend.get_shared(
        ("lately", namespace, hub),
        lambda client: client.metric_history(
            namespace, hub, since_ms=now_ms - _LATELY_MS, until_ms=now_ms, points=10
        ),
        ttl_ms=4_000,
    )


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
    tone = "bad" if count else "good"
    return ui.tile("Throttled", format_integer(count), "in the last minute", tone=tone)


async def current_namespace(visit: PageRequest) -> NamespaceResource:
    return next(each for each in await visit.backend.namespaces() if each.name == visit.namespace)


async def _tiles(visit: PageRequest, hubs: list[EventHubResource], now: dict[str, Any]) -> Html:
    namespace = await current_namespace(visit)
    units = "unlimited" if namespace.unlimited else format_integer(namespace.capacity)
    stored, count = format_size(newest(now, "size_bytes")), format_plural(len(hubs), "event hub")
    return ui.tiles(
        await _health(visit),
        traffic_tile(now, "in", has_bytes=True),
        traffic_tile(now, "out", has_bytes=True),
        throttled_tile(now),
        ui.tile("Furthest behind", format_count(newest(now, "lag_events")), "events"),
        ui.tile("Stored", stored, f"in {count}"),
        ui.tile(
            "Connections", format_integer(newest(now, "active_connections")), "AMQP, of clients"
        ),
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
    found = await asyncio.gather(*(lately(visit, hub.name) for hub in hubs))
    groups_of = await asyncio.gather(
        *(visit.backend.groups(visit.namespace, hub.name) for hub in hubs)
    )
    rows = []
    for hub, now, groups in zip(hubs, found, groups_of, strict=True):
        captured = bool(hub.capture and hub.capture.get("enabled"))
        rows.append(
            (
                el("a", hub.name, href=visit.link("hubs", hub.name)),
                ui.badge(hub.status, "good" if hub.status == "Active" else "warn"),
                format_integer(hub.partition_count),
                format_size(newest(now, "size_bytes")),
                f"{format_count(rate(now, 'incoming_messages'))}/s",
                f"{format_count(rate(now, 'outgoing_messages'))}/s",
                format_integer(len(groups)),
                f"{hub.retention_hours} h",
                ui.badge("on", "good") if captured else "off",
            )
        )
    heads = ("Name", "State", "Partitions", "Stored", "In", "Out", "Groups", "Retention", "Capture")
    return ui.table(
        heads, rows, empty="No event hub yet: create the first.", numbers=(2, 3, 4, 5, 6, 7)
    )


async def _first_steps(
    visit: PageRequest, hubs: list[EventHubResource], now: dict[str, Any]
) -> Html | None:
    """Until the first event is there: what to do next."""
    if newest(now, "size_bytes"):
        return None
    for hub in hubs[:_LOOKED_AT]:  # no number was noted yet: the service has just begun
        partitions = await visit.backend.partitions(visit.namespace, hub.name)
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
    elif visit.may(PortalRole.OPERATOR):
        steps = [(el("a", "Create an event hub", href=visit.link("hubs") + "#create"),)]
    items = [el("li", el("div", *parts)) for parts in steps]
    return ui.card("First steps", el("ol", *items, class_="steps"), id_="first-steps")


ROUTES = (PageRoute("GET", "/", overview),)
