"""Event hubs: the list, one hub with its partitions, making, changing and deleting it."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from penstock.formats.quantities import (
    format_age,
    format_count,
    format_integer,
    format_moment,
    format_size,
)
from penstock.management.client import EventHubResource
from penstock.model import limits
from penstock.model.errors import ArgumentError
from penstock.portal.components import (
    area,
    badge,
    card,
    delete_box,
    facts,
    field,
    form,
    history,
    live_element,
    ranges,
    select,
    submit,
    table,
    tile,
    tiles,
)
from penstock.portal.html import Html, el
from penstock.portal.layout import page
from penstock.portal.page_request import ActionCompleted, PageRequest, PageRoute
from penstock.portal.pages.overview import (
    HUBS_SHOWN,
    hub_table,
    lately,
    newest,
    rate,
    traffic_charts,
)
from penstock.portal.users import PortalRole

_STATES = {
    "Active": "Active",
    "SendDisabled": "Sending is off",
    "ReceiveDisabled": "Receiving is off",
    "Disabled": "Disabled",
}
_CHARTED = (
    "incoming_messages",
    "outgoing_messages",
    "incoming_bytes",
    "outgoing_bytes",
    "throttled_requests",
    "user_errors",
    "server_errors",
    "size_bytes",
)


async def hub_list(visit: PageRequest) -> Response:
    wanted = visit.query.get("find", "").casefold()
    hubs = [
        hub
        for hub in await visit.backend.hubs(visit.namespace)
        if visit.sees(hub.name) and wanted in hub.name.casefold()
    ]
    text = visit.query.get("page", "1")
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 1
    shown = hubs[max(0, number - 1) * HUBS_SHOWN :][:HUBS_SHOWN]
    return await page(
        visit,
        "Event hubs",
        card(
            "",
            live_element("hubs", await hub_table(visit, shown)),
            _pages(visit, len(hubs), number),
        ),
        _create_form(visit) if visit.may(PortalRole.OPERATOR) else None,
        active="hubs",
        aside=_find_form(visit) if wanted or len(hubs) > HUBS_SHOWN else None,
    )


def _find_form(visit: PageRequest) -> Html:
    namespace = visit.query.get("namespace")
    return el(
        "form",
        el("input", type="hidden", name="namespace", value=namespace) if namespace else None,
        el("label", "Find", for_="f-find", class_="visually-hidden"),
        el(
            "input", id="f-find", name="find", value=visit.query.get("find", ""), placeholder="Find"
        ),
        submit("Find"),
        method="get",
        action="/hubs",
        class_="inline",
    )


def _pages(visit: PageRequest, count: int, number: int) -> Html | None:
    if count <= HUBS_SHOWN:
        return None
    last, find = -(-count // HUBS_SHOWN), visit.query.get("find")
    around = [each for each in (number - 1, number + 1) if 1 <= each <= last]
    return el(
        "p",
        f"Page {number} of {last}, {format_integer(count)} event hubs. ",
        *(
            el(
                "a",
                "← Previous" if each < number else "Next →",
                href=visit.link("hubs", page=each, find=find),
                class_="button small",
            )
            for each in around
        ),
        class_="row",
    )


def _create_form(visit: PageRequest) -> Html:
    fields = form(
        visit,
        visit.link("hubs"),
        field(
            "Name",
            "name",
            visit.form_value("name"),
            required=True,
            maxlength=limits.HUB_NAME_MAX,
            autocomplete="off",
            help_="letters, digits, . _ - and /",
        ),
        field(
            "Partitions",
            "partitions",
            visit.form_value("partitions", limits.PARTITION_COUNT_DEFAULT),
            type_="number",
            min=limits.PARTITION_COUNT_MIN_CURRENT,
            max=limits.PARTITION_COUNT_GRANTED_MAX,
            required=True,
            help_=f"{limits.PARTITION_COUNT_MIN} to {limits.PARTITION_COUNT_MAX}, 1 where the "
            "namespace has Azure's current limits, more with a grant; they cannot be changed later",
        ),
        field(
            "Retention (hours)",
            "retention",
            visit.form_value("retention", limits.RETENTION_HOURS_DEFAULT),
            type_="number",
            min=limits.RETENTION_HOURS_MIN,
            max=limits.RETENTION_HOURS_MAX,
            required=True,
            help_=f"{limits.RETENTION_HOURS_MIN} to {limits.RETENTION_HOURS_MAX}",
        ),
        submit("Create event hub"),
    )
    return card("Create an event hub", fields, id_="create")


async def create(visit: PageRequest) -> Response:
    name = visit.form.get("name", "").strip()
    partitions, retention = (
        parse_form_integer(visit, "partitions"),
        parse_form_integer(visit, "retention"),
    )
    if not visit.sees(name):
        raise ArgumentError(
            f"You may not have an event hub '{name}': {visit.session.hubs} are yours."
        )
    if any(
        hub.name.casefold() == name.casefold() for hub in await visit.backend.hubs(visit.namespace)
    ):
        raise ArgumentError(f"There is an event hub '{name}' already.")
    await visit.backend.act(
        visit.session,
        lambda client: client.put_hub(
            visit.namespace, name, partition_count=partitions, retention_hours=retention
        ),
    )
    raise ActionCompleted(visit.link("hubs", name), f"The event hub '{name}' is created.")


async def hub_page(visit: PageRequest) -> Response:
    hub = await visit.backend.hub(visit.namespace, visit.hub)
    now = await lately(visit, hub.name)
    series = await history(visit, hub.name, _CHARTED)
    return await page(
        visit,
        "Overview",
        live_element("tiles", _tiles(hub, now)),
        live_element("charts", *traffic_charts(series), tag="section"),
        card("Partitions", live_element("partitions", await _partitions(visit, hub))),
        el(
            "div",
            card("Properties", _hub_properties(hub)),
            _settings(visit, hub) if visit.may(PortalRole.OPERATOR) else None,
            class_="columns",
        ),
        active="hubs",
        hub=hub.name,
        aside=ranges(visit, "hubs", hub.name),
    )


def _tiles(hub: EventHubResource, now: dict[str, Any]) -> Html:
    return tiles(
        tile(
            "State",
            _STATES.get(hub.status, hub.status),
            tone="good" if hub.status == "Active" else "warn",
        ),
        tile("Events in", f"{format_count(rate(now, 'incoming_messages'))}/s"),
        tile("Events out", f"{format_count(rate(now, 'outgoing_messages'))}/s"),
        tile("Stored", format_size(newest(now, "size_bytes")), f"kept for {hub.retention_hours} h"),
        tile("Furthest behind", format_count(newest(now, "lag_events")), "events, of its groups"),
        tile("Connections", format_integer(newest(now, "active_connections"))),
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
            f"{format_moment(each['last_enqueued_ms'])} "
            f"({format_age(each['last_enqueued_ms'], now_ms)})"
            if each["last_enqueued_ms"] > 0
            else "never",
            format_size(each["size_bytes"]),
            ", ".join(owners.get(each["id"], [])) or "nobody",
            badge(each["failed"], "bad") if each["failed"] else badge("ok", "good"),
        )
        for each in found
    ]
    heads = (
        "Partition", "First sequence", "Last sequence", "Last offset", "Last event (UTC)",
        "Stored", "Owner", "State",
    )  # fmt: skip
    return table(heads, rows, empty="No partitions.", numbers=(1, 2, 3, 5))


def _hub_properties(hub: EventHubResource) -> Html:
    return facts(
        [
            ("Partitions", format_integer(hub.partition_count)),
            ("Retention", f"{hub.retention_hours} hours"),
            ("Created", hub.created_at),
            ("Changed", hub.updated_at),
            ("User metadata", hub.user_metadata),
        ]
    )


def _settings(visit: PageRequest, hub: EventHubResource) -> Html:
    return card(
        "Settings",
        form(
            visit,
            visit.link("hubs", hub.name, "edit"),
            field(
                "Retention (hours)",
                "retention",
                visit.form_value("retention", hub.retention_hours),
                type_="number",
                min=limits.RETENTION_HOURS_MIN,
                max=limits.RETENTION_HOURS_MAX,
            ),
            select("State", "status", _STATES, visit.form_value("status", hub.status)),
            area(
                "User metadata",
                "metadata",
                visit.form_value("metadata", hub.user_metadata),
                rows=2,
                help_=f"your own words, at most {limits.USER_METADATA_MAX} characters",
            ),
            submit("Save"),
        ),
        delete_box(
            visit,
            visit.link("hubs", hub.name, "delete"),
            "event hub",
            hub.name,
            "Its events, consumer groups, checkpoints and policies go with it, and cannot be "
            "brought back.",
        ),
    )


async def edit(visit: PageRequest) -> Response:
    hub = await visit.backend.hub(visit.namespace, visit.hub)
    retention = parse_form_integer(visit, "retention")
    await visit.backend.act(
        visit.session,
        lambda client: client.put_hub(
            visit.namespace,
            hub.name,
            retention_hours=retention,
            status=visit.form.get("status") or None,
            user_metadata=visit.form.get("metadata", ""),
        ),
    )
    raise ActionCompleted(visit.link("hubs", hub.name), "The settings are saved.")


async def delete(visit: PageRequest) -> Response:
    hub = await visit.backend.hub(visit.namespace, visit.hub)
    if visit.form.get("confirm") != hub.name:
        raise ArgumentError(f"Type '{hub.name}' to delete it: nothing was deleted.")
    await visit.backend.act(
        visit.session, lambda client: client.delete_hub(visit.namespace, hub.name)
    )
    raise ActionCompleted(visit.link("hubs"), f"The event hub '{hub.name}' is deleted.")


def parse_form_integer(visit: PageRequest, name: str) -> int:
    text = visit.form.get(name, "").strip()
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ArgumentError(f"'{text[:40]}' is no whole number.")
    return int(text)


ROUTES = (
    PageRoute("GET", "/hubs", hub_list),
    PageRoute("POST", "/hubs", create, PortalRole.OPERATOR),
    PageRoute("GET", "/hubs/{hub}", hub_page),
    PageRoute("POST", "/hubs/{hub}/edit", edit, PortalRole.OPERATOR),
    PageRoute("POST", "/hubs/{hub}/delete", delete, PortalRole.OPERATOR),
)
