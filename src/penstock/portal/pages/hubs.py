"""Event hubs: the list, one hub with its partitions, making, changing and deleting it."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from penstock.formats.quantities import (
    format_count,
    format_integer,
    format_moment_with_age,
    format_size,
)
from penstock.management.resources import EventHubResource
from penstock.model import limits
from penstock.model.errors import ArgumentError
from penstock.portal import components as ui
from penstock.portal.html import Html, el
from penstock.portal.layout import page
from penstock.portal.page_request import ActionCompleted, PageRequest, PageRoute
from penstock.portal.pages.overview import (
    CHARTED,
    HUBS_SHOWN,
    hub_table,
    lately,
    newest,
    traffic_charts,
    traffic_tile,
)
from penstock.portal.users import PortalRole

_STATES = {
    "Active": "Active",
    "SendDisabled": "Sending is off",
    "ReceiveDisabled": "Receiving is off",
    "Disabled": "Disabled",
}


async def hub_list(visit: PageRequest) -> Response:
    wanted = visit.query.get("find", "").casefold()
    hubs = [hub for hub in await visit.visible_hubs() if wanted in hub.name.casefold()]
    text = visit.query.get("page", "1")
    index = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 1
    shown = await hub_table(visit, hubs[max(0, index - 1) * HUBS_SHOWN :][:HUBS_SHOWN])
    return await page(
        visit,
        "Event hubs",
        ui.card("", ui.live_element("hubs", shown), _pages(visit, len(hubs), index)),
        _create_form(visit) if visit.may(PortalRole.OPERATOR) else None,
        active="hubs",
        aside=ui.find_form(visit, "/hubs") if wanted or len(hubs) > HUBS_SHOWN else None,
    )


def _pages(visit: PageRequest, count: int, index: int) -> Html | None:
    if count <= HUBS_SHOWN:
        return None
    last, find = -(-count // HUBS_SHOWN), visit.query.get("find")
    links = [
        el("a", text, href=visit.link("hubs", page=other, find=find), class_="button small")
        for text, other in (("← Previous", index - 1), ("Next →", index + 1))
        if 1 <= other <= last
    ]
    text = f"Page {index} of {last}, {format_integer(count)} event hubs. "
    return el("p", text, *links, class_="row")


def _retention_field(visit: PageRequest, hours: int, **attributes: object) -> Html:
    least, most = limits.RETENTION_HOURS_MIN, limits.RETENTION_HOURS_MAX
    label = "Retention (hours)"
    return ui.number(visit, label, "retention", hours, least=least, most=most, **attributes)


def _create_form(visit: PageRequest) -> Html:
    count, hours = limits.PARTITION_COUNT_DEFAULT, limits.RETENTION_HOURS_DEFAULT
    hours_help = f"{limits.RETENTION_HOURS_MIN} to {limits.RETENTION_HOURS_MAX}"
    name_help = "letters, digits, . _ - and /"
    fields = ui.form(
        visit,
        visit.link("hubs"),
        ui.name_field(visit, maxlength=limits.HUB_NAME_MAX, help_=name_help),
        ui.number(
            visit,
            *("Partitions", "partitions", count),
            least=limits.PARTITION_COUNT_MIN_CURRENT,
            most=limits.PARTITION_COUNT_GRANTED_MAX,
            required=True,
            help_=f"{limits.PARTITION_COUNT_MIN} to {limits.PARTITION_COUNT_MAX}, 1 where the "
            "namespace has Azure's current limits, more with a grant; they cannot be changed later",
        ),
        _retention_field(visit, hours, required=True, help_=hours_help),
        ui.submit("Create event hub"),
    )
    return ui.card("Create an event hub", fields, id_="create")


async def create(visit: PageRequest) -> Response:
    name = visit.text("name")
    count = visit.integer("partitions", "Partitions")
    hours = visit.integer("retention", "Retention")
    if not visit.sees(name):
        raise ArgumentError(
            f"You may not have an event hub '{name}': {visit.session.hubs} are yours."
        )
    existing = await visit.backend.hubs(visit.namespace)
    if any(hub.name.casefold() == name.casefold() for hub in existing):
        raise ArgumentError(f"There is an event hub '{name}' already.")
    await visit.act(
        lambda client: client.put_hub(
            visit.namespace, name, partition_count=count, retention_hours=hours
        )
    )
    raise ActionCompleted(visit.link("hubs", name), f"The event hub '{name}' is created.")


async def hub_page(visit: PageRequest) -> Response:
    hub = await visit.hub()
    now = await lately(visit, hub.name)
    series = await ui.history(visit, hub.name, CHARTED)
    return await page(
        visit,
        "Overview",
        ui.live_element("tiles", _tiles(hub, now)),
        ui.live_element("charts", traffic_charts(series), tag="section"),
        ui.card("Partitions", ui.live_element("partitions", await _partitions(visit, hub))),
        el(
            "div",
            ui.card("Properties", _hub_properties(hub)),
            _settings(visit, hub) if visit.may(PortalRole.OPERATOR) else None,
            class_="columns",
        ),
        hub=hub.name,
        aside=ui.ranges(visit, "hubs", hub.name),
    )


def _tiles(hub: EventHubResource, now: dict[str, Any]) -> Html:
    state, tone = _STATES.get(hub.status, hub.status), "good" if hub.status == "Active" else "warn"
    return ui.tiles(
        ui.tile("State", state, tone=tone),
        traffic_tile(now, "in"),
        traffic_tile(now, "out"),
        ui.tile(
            "Stored", format_size(newest(now, "size_bytes")), f"kept for {hub.retention_hours} h"
        ),
        ui.tile(
            "Furthest behind", format_count(newest(now, "lag_events")), "events, of its groups"
        ),
        ui.tile("Connections", format_integer(newest(now, "active_connections"))),
    )


async def _partitions(visit: PageRequest, hub: EventHubResource) -> Html:
    namespace, now_ms = visit.namespace, visit.portal.clock.now_ms()
    found = await visit.backend.partitions(namespace, hub.name)
    lag = await visit.backend.lag(namespace, hub.name)
    owners: dict[str, list[str]] = {}
    for row in lag:
        if row["owner"]:
            owners.setdefault(row["partition"], []).append(f"{row['owner']} ({row['group']})")
    rows = [
        (
            el(
                "a",
                each["id"],
                href=visit.link("hubs", hub.name, "events", partition=each["id"], from_="earliest"),
                title="Its events, from the first on",
            ),
            format_integer(each["begin_sequence"]) if each["begin_sequence"] >= 0 else "–",
            format_integer(each["last_sequence"]) if each["last_sequence"] >= 0 else "–",
            each["last_offset"] if each["last_sequence"] >= 0 else "–",
            format_moment_with_age(each["last_enqueued_ms"], now_ms, unknown="never"),
            format_size(each["size_bytes"]),
            ", ".join(owners.get(each["id"], [])) or "nobody",
            ui.badge(each["failed"], "bad") if each["failed"] else ui.badge("ok", "good"),
        )
        for each in found
    ]
    heads = (
        "Partition", "First sequence", "Last sequence", "Last offset", "Last event (UTC)",
        "Stored", "Owner", "State",
    )  # fmt: skip
    return ui.table(heads, rows, empty="No partitions.", numbers=(1, 2, 3, 5))


def _hub_properties(hub: EventHubResource) -> Html:
    return ui.facts(
        [
            ("Partitions", format_integer(hub.partition_count)),
            ("Retention", f"{hub.retention_hours} hours"),
            ("Created", hub.created_at),
            ("Changed", hub.updated_at),
            ("User metadata", hub.user_metadata),
        ]
    )


def _settings(visit: PageRequest, hub: EventHubResource) -> Html:
    note = f"your own words, at most {limits.USER_METADATA_MAX} characters"
    settings = ui.form(
        visit,
        visit.link("hubs", hub.name, "edit"),
        _retention_field(visit, hub.retention_hours),
        ui.select(visit, "State", "status", _STATES, hub.status),
        ui.area(visit, "User metadata", "metadata", hub.user_metadata, rows=2, help_=note),
        ui.submit("Save"),
    )
    delete = ui.delete_box(
        visit,
        visit.link("hubs", hub.name, "delete"),
        "event hub",
        hub.name,
        "Its events, consumer groups, checkpoints and policies go with it, and cannot be brought "
        "back.",
    )
    return ui.card("Settings", settings, delete)


async def edit(visit: PageRequest) -> Response:
    hub = await visit.hub()
    hours = visit.integer("retention", "Retention")
    await visit.act(
        lambda client: client.put_hub(
            visit.namespace,
            hub.name,
            retention_hours=hours,
            status=visit.form.get("status") or None,
            user_metadata=visit.form.get("metadata", ""),
        )
    )
    raise ActionCompleted(visit.link("hubs", hub.name), "The settings are saved.")


async def delete(visit: PageRequest) -> Response:
    hub = await visit.hub()
    visit.check_typed(hub.name)
    await visit.act(lambda client: client.delete_hub(visit.namespace, hub.name))
    raise ActionCompleted(visit.link("hubs"), f"The event hub '{hub.name}' is deleted.")


ROUTES = (
    PageRoute("GET", "/hubs", hub_list),
    PageRoute("POST", "/hubs", create, PortalRole.OPERATOR),
    PageRoute("GET", "/hubs/{hub}", hub_page),
    PageRoute("POST", "/hubs/{hub}/edit", edit, PortalRole.OPERATOR),
    PageRoute("POST", "/hubs/{hub}/delete", delete, PortalRole.OPERATOR),
)
