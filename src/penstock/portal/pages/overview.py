"""The first page: how the namespace is, now and lately."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response

from penstock.formats.quantities import format_count, format_integer, format_plural, format_size
from penstock.management.client import EventHubResource
from penstock.portal.components import (
    badge,
    card,
    chart,
    history,
    live_element,
    per_second,
    ranges,
    table,
    tile,
    tiles,
)
from penstock.portal.html import Html, el
from penstock.portal.layout import page
from penstock.portal.page_request import PageRequest, PageRoute
from penstock.portal.users import PortalRole

_CHARTED = (
    "incoming_messages",
    "outgoing_messages",
    "incoming_bytes",
    "outgoing_bytes",
    "throttled_requests",
    "user_errors",
    "server_errors",
    "active_connections",
    "size_bytes",
)
_LATELY_MS = 60_000
HUBS_SHOWN = 20  # on one page
_LOOKED_AT = 5


async def overview(visit: PageRequest) -> Response:
    if not visit.namespace:
        return await page(visit, "Overview", card("", el("p", "There is no namespace yet.")))
    hubs = [hub for hub in await visit.backend.hubs(visit.namespace) if visit.sees(hub.name)]
    now = await lately(visit, None)
    series = await history(visit, None, _CHARTED)
    return await page(
        visit,
        "Overview",
        await _first_steps(visit, hubs, now),
        live_element("tiles", await _tiles(visit, hubs, now)),
        live_element("charts", *traffic_charts(series), tag="section"),
        card(
            "Event hubs",
            live_element("hubs", await hub_table(visit, hubs[:HUBS_SHOWN])),
            _rest(visit, hubs),
        ),
        active="",
        aside=ranges(visit, ""),
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
    values = [value for value in now["values"].get(name, []) if value is not None]
    return values[-1] * 1000 / now["step_ms"] if values else None


def newest(now: dict[str, Any], name: str) -> int | None:
    values = [value for value in now["values"].get(name, []) if value is not None]
    return values[-1] if values else None


async def _tiles(visit: PageRequest, hubs: list[EventHubResource], now: dict[str, Any]) -> Html:
    throttled = sum(value or 0 for value in now["values"].get("throttled_requests", []))
    behind = newest(now, "lag_events")
    namespace = next(
        each for each in await visit.backend.namespaces() if each.name == visit.namespace
    )
    units = "unlimited" if namespace.unlimited else format_integer(namespace.capacity)
    return tiles(
        await _health(visit),
        tile(
            "Events in",
            f"{format_count(rate(now, 'incoming_messages'))}/s",
            _byte_rate(now, "incoming"),
        ),
        tile(
            "Events out",
            f"{format_count(rate(now, 'outgoing_messages'))}/s",
            _byte_rate(now, "outgoing"),
        ),
        tile(
            "Throttled",
            format_integer(throttled),
            "in the last minute",
            tone="bad" if throttled else "good",
        ),
        tile("Furthest behind", format_count(behind), "events"),
        tile(
            "Stored",
            format_size(newest(now, "size_bytes")),
            f"in {format_plural(len(hubs), 'event hub')}",
        ),
        tile("Connections", format_integer(newest(now, "active_connections")), "AMQP, of clients"),
        tile("Throughput units", units, namespace.sku.name),
    )


async def _health(visit: PageRequest) -> Html:
    """The way to the page that says more."""
    found = await visit.backend.health()
    fine = found.status == "ready"
    note = format_plural(len(found.warnings), "warning") if found.warnings else "all is well"
    return tile(
        "Health",
        el("a", found.status, href=visit.link("health")),
        note if fine else "not every part works",
        tone="bad" if not fine else "warn" if found.warnings else "good",
    )


def _byte_rate(now: dict[str, Any], way: str) -> str:
    return f"{format_size(rate(now, f'{way}_bytes'))}/s"


def traffic_charts(series: dict[str, Any]) -> list[Html]:
    """What Azure's own overview shows: messages, bytes, errors, connections, size."""
    values, at_ms, step_ms = series["values"], series["at_ms"], series["step_ms"]

    def lines(**named: str) -> dict[str, list[float | None]]:
        return {label: per_second(series, name) for label, name in named.items()}

    return [
        el(
            "div",
            chart(
                "Events",
                at_ms,
                lines(incoming="incoming_messages", outgoing="outgoing_messages"),
                unit="a second",
                step_ms=step_ms,
            ),
            chart(
                "Throughput",
                at_ms,
                lines(incoming="incoming_bytes", outgoing="outgoing_bytes"),
                unit="bytes a second",
                step_ms=step_ms,
                bytes_=True,
            ),
            chart(
                "Requests that failed",
                at_ms,
                {
                    "throttled": values.get("throttled_requests", []),
                    "user errors": values.get("user_errors", []),
                    "server errors": values.get("server_errors", []),
                },
                unit="in each step",
                step_ms=step_ms,
            ),
            chart(
                "Stored",
                at_ms,
                {"log": values.get("size_bytes", [])},
                unit="bytes",
                step_ms=step_ms,
                bytes_=True,
            ),
            class_="columns",
        )
    ]


async def hub_table(visit: PageRequest, hubs: list[EventHubResource]) -> Html:
    """Of a few: two numbers are asked for each, and the service answers so many a second."""
    assert len(hubs) <= HUBS_SHOWN
    found = await asyncio.gather(
        *(lately(visit, hub.name) for hub in hubs),
    )
    groups_of = await asyncio.gather(
        *(visit.backend.groups(visit.namespace, hub.name) for hub in hubs)
    )
    rows = []
    for hub, now, groups in zip(hubs, found, groups_of, strict=True):
        captured = bool(hub.capture and hub.capture.get("enabled"))
        rows.append(
            (
                el("a", hub.name, href=visit.link("hubs", hub.name)),
                badge(hub.status, "good" if hub.status == "Active" else "warn"),
                format_integer(hub.partition_count),
                format_size(newest(now, "size_bytes")),
                f"{format_count(rate(now, 'incoming_messages'))}/s",
                f"{format_count(rate(now, 'outgoing_messages'))}/s",
                format_integer(len(groups)),
                f"{hub.retention_hours} h",
                badge("on", "good") if captured else "off",
            )
        )
    heads = ("Name", "State", "Partitions", "Stored", "In", "Out", "Groups", "Retention", "Capture")
    return table(
        heads, rows, empty="No event hub yet: create the first.", numbers=(2, 3, 4, 5, 6, 7)
    )


def _rest(visit: PageRequest, hubs: list[EventHubResource]) -> Html | None:
    more = len(hubs) - HUBS_SHOWN
    if more <= 0:
        return None
    return el("p", el("a", f"and {format_plural(more, 'event hub')} more", href=visit.link("hubs")))


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
    first = hubs[0].name if hubs else None
    make: object = "Create an event hub."
    if visit.may(PortalRole.OPERATOR):
        make = el("a", "Create an event hub", href=visit.link("hubs") + "#create")
    steps = [el("li", el("div", make if first is None else f"The event hub {first} is ready."))]
    if first is not None:
        steps += [
            el(
                "li",
                el(
                    "div",
                    el("a", "Take a connection string", href=visit.link("policies")),
                    " for your SDK; snippets are beside it. Or ",
                    el("a", "send the first events here", href=visit.link("hubs", first, "send")),
                    ".",
                ),
            ),
            el(
                "li",
                el(
                    "div",
                    el("a", "Watch them arrive", href=visit.link("hubs", first, "events")),
                    ".",
                ),
            ),
        ]
    return card("First steps", el("ol", *steps, class_="steps"), id_="first-steps")


ROUTES = (PageRoute("GET", "/", overview),)
