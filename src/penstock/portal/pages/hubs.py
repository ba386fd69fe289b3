"""Event hubs: the list, one hub with its partitions, making, changing and deleting it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from starlette.responses import Response

from penstock.formats.quantities import format_count, format_moment_with_age, format_size
from penstock.management.client import ManagementClient
from penstock.management.permissions import AdminRole
from penstock.management.resources import EventHubResource
from penstock.model import limits
from penstock.model.errors import ArgumentError
from penstock.portal import components as ui
from penstock.portal.html import Html, el
from penstock.portal.layout import page
from penstock.portal.page_request import ActionCompleted, PageRequest
from penstock.portal.pages import overview

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
    table = await overview.hub_table(
        visit, hubs[max(0, index - 1) * overview.HUBS_SHOWN :][: overview.HUBS_SHOWN]
    )
    return await page(
        visit,
        ui.card("", ui.live_element("hubs", table), _pages(visit, len(hubs), index)),
        _create_form(visit) if visit.may(AdminRole.OPERATOR) else None,
        aside=ui.find_form(visit, "/hubs") if wanted or len(hubs) > overview.HUBS_SHOWN else None,
    )


def _pages(visit: PageRequest, count: int, index: int) -> Html | None:
    if count <= overview.HUBS_SHOWN:
        return None
    last, find = -(-count // overview.HUBS_SHOWN), visit.query.get("find")
    links = [
        el("a", text, href=visit.link("hubs", page=other, find=find), class_="button small")
        for text, other in (("← Previous", index - 1), ("Next →", index + 1))
        if 1 <= other <= last
    ]
    text = f"Page {index} of {last}, {count:,} event hubs. "
    return el("p", text, *links, class_="row")


def _retention_field(visit: PageRequest, hours: int, **attributes: object) -> Html:
    bounds = (limits.RETENTION_HOURS_MIN, limits.RETENTION_HOURS_MAX)
    return ui.number(visit, "Retention (hours)", "retention", hours, bounds, **attributes)


def _create_form(visit: PageRequest) -> Html:
    count, hours = limits.PARTITION_COUNT_DEFAULT, limits.RETENTION_HOURS_DEFAULT
    hours_help = f"{limits.RETENTION_HOURS_MIN} to {limits.RETENTION_HOURS_MAX}"
    name_help = "letters, digits, . _ - and /"
    count_help = (
        f"{limits.PARTITION_COUNT_MIN} to {limits.PARTITION_COUNT_MAX}, 1 where the "
        "namespace has Azure's current limits, more with a grant; they cannot be changed later"
    )
    bounds = (limits.PARTITION_COUNT_MIN_CURRENT, limits.PARTITION_COUNT_GRANTED_MAX)
    partitions = ui.number(
        visit, "Partitions", "partitions", count, bounds, required=True, help_=count_help
    )
    form = ui.form(
        visit,
        visit.link("hubs"),
        ui.name_field(visit, maxlength=limits.HUB_NAME_MAX, help_=name_help),
        partitions,
        _retention_field(visit, hours, required=True, help_=hours_help),
        ui.submit("Create event hub"),
    )
    return ui.card("Create an event hub", form, id_="create")


async def create(visit: PageRequest) -> Response:
    name = visit.text("name")
    count = visit.integer("partitions", "Partitions")
    hours = visit.integer("retention", "Retention")
    if not visit.sees(name):
        raise ArgumentError(
            f"You may not have an event hub '{name}': {visit.session.hubs} are yours."
        )
    if await visit.backend.find(name, ManagementClient.hubs, visit.namespace) is not None:
        raise ArgumentError(f"There is an event hub '{name}' already.")
    await visit.act(
        lambda client: client.put_hub(
            visit.namespace, name, partition_count=count, retention_hours=hours
        )
    )
    raise ActionCompleted(visit.link("hubs", name), f"The event hub '{name}' is created.")


async def hub_page(visit: PageRequest) -> Response:
    hub = await visit.hub()
    now = await overview.lately(visit, hub.name)
    series = await ui.history(visit, hub.name, overview.CHARTED)
    properties = ui.facts(
        ("Partitions", hub.partition_count),
        ("Retention", f"{hub.retention_hours} hours"),
        ("Created", hub.created_at),
        ("Changed", hub.updated_at),
        ("User metadata", hub.user_metadata),
    )
    settings = _settings(visit, hub) if visit.may(AdminRole.OPERATOR) else None
    return await page(
        visit,
        ui.live_element("tiles", _tiles(hub, now)),
        ui.live_element("charts", overview.traffic_charts(series), tag="section"),
        ui.card("Partitions", ui.live_element("partitions", await _partitions(visit))),
        el("div", ui.card("Properties", properties), settings, class_="columns"),
        aside=ui.ranges(visit),
    )


def _tiles(hub: EventHubResource, now: dict[str, Any]) -> Html:
    state, tone = _STATES.get(hub.status, hub.status), "good" if hub.status == "Active" else "warn"
    stored, behind = (
        format_size(overview.newest(now, "size_bytes")),
        overview.newest(now, "lag_events"),
    )
    return ui.tiles(
        ui.tile("State", state, tone=tone),
        overview.traffic_tile(now, "in"),
        overview.traffic_tile(now, "out"),
        ui.tile("Stored", stored, f"kept for {hub.retention_hours} h"),
        ui.tile("Furthest behind", format_count(behind), "events, of its groups"),
        ui.tile("Connections", overview.newest(now, "active_connections")),
    )


async def _partitions(visit: PageRequest) -> Html:
    place, now_ms = (visit.namespace, visit.words["hub"]), visit.portal.clock.now_ms()
    owners: dict[str, list[str]] = defaultdict(list)
    for row in await visit.backend.read(ManagementClient.lag, *place):
        if row["owner"]:
            owners[row["partition"]].append(f"{row['owner']} ({row['group']})")

    def link(partition: str) -> Html:
        to = visit.hub_link("events", partition=partition, from_="earliest")
        return el("a", partition, href=to, title="Its events, from the first on")

    rows = [
        {
            "Partition": link(each["id"]),
            "First sequence": ui.sequence_number(each["begin_sequence"]),
            "Last sequence": ui.sequence_number(each["last_sequence"]),
            "Last offset": each["last_offset"] if each["last_sequence"] >= 0 else "",
            "Last event (UTC)": format_moment_with_age(
                each["last_enqueued_ms"], now_ms, unknown="never"
            ),
            "Stored": format_size(each["size_bytes"]),
            "Owner": ", ".join(owners[each["id"]]) or "nobody",
            "State": ui.badge(each["failed"], "bad") if each["failed"] else ui.badge("ok", "good"),
        }
        for each in await visit.backend.read(ManagementClient.partitions, *place)
    ]
    numbers = ("First sequence", "Last sequence", "Last offset", "Stored")
    return ui.table(rows, empty="No partitions.", numbers=numbers)


def _settings(visit: PageRequest, hub: EventHubResource) -> Html:
    note = f"your own words, at most {limits.USER_METADATA_MAX} characters"
    settings = ui.form(
        visit,
        visit.hub_link("edit"),
        _retention_field(visit, hub.retention_hours),
        ui.select(visit, "State", "status", _STATES, hub.status),
        ui.area(visit, "User metadata", "metadata", hub.user_metadata, rows=2, help_=note),
        ui.submit("Save"),
    )
    loss = (
        "Its events, consumer groups, checkpoints and policies go with it, and cannot be brought "
        "back."
    )
    delete = ui.delete_box(visit, visit.hub_link("delete"), "event hub", hub.name, loss)
    return ui.card("Settings", settings, delete)


async def edit(visit: PageRequest) -> Response:
    hub, hours = visit.words["hub"], visit.integer("retention", "Retention")
    status, metadata = visit.form.get("status") or None, visit.form.get("metadata", "")
    await visit.act(
        lambda client: client.put_hub(
            visit.namespace, hub, retention_hours=hours, status=status, user_metadata=metadata
        )
    )
    raise ActionCompleted(visit.hub_link(), "The settings are saved.")


async def delete(visit: PageRequest) -> Response:
    hub = visit.words["hub"]
    visit.check_typed(hub)
    await visit.act(lambda client: client.delete_hub(visit.namespace, hub))
    raise ActionCompleted(visit.link("hubs"), f"The event hub '{hub}' is deleted.")
