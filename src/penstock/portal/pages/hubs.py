"""Event hubs: the list, one hub with its partitions, making, changing and deleting it."""

from __future__ import annotations

from collections import defaultdict

import msgspec
from starlette.responses import Response

from penstock.management.client import ManagementClient
from penstock.model import limits
from penstock.model.errors import ArgumentError
from penstock.portal import charts
from penstock.portal.lists import list_view
from penstock.portal.page_request import ActionCompleted, PageRequest
from penstock.portal.pages import overview
from penstock.portal.shell import page

_STATES = (
    ("Active", "Active"),
    ("SendDisabled", "Sending is off"),
    ("ReceiveDisabled", "Receiving is off"),
    ("Disabled", "Disabled"),
)


class PartitionRow(msgspec.Struct, frozen=True, kw_only=True):
    """None for a number that does not exist: no event was stored, or none is retained."""

    id: str
    first: int | None
    last: int | None
    last_offset: str
    last_ms: int
    size_bytes: int
    owners: list[str]
    failed: str | None


async def hub_list(visit: PageRequest) -> Response:
    hubs = await visit.visible_hubs()
    view = list_view(
        visit,
        hubs,
        text=lambda hub: hub.name,
        sorts={"name": lambda hub: hub.name.casefold()},
        sort="name",
        page_size=overview.HUBS_SHOWN,
    )
    rows = await overview.hub_rows(visit, view.rows)
    return await page(visit, "hubs.html", view=view, rows=rows)


async def new_hub(visit: PageRequest) -> Response:
    return await page(visit, "hub_new.html", limits=limits)


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
    series = await charts.history(visit, hub.name, overview.CHARTED)
    return await page(
        visit,
        "hub.html",
        now=await overview.lately(visit, hub.name),
        charts=overview.traffic_charts(series),
        partitions=await partition_rows(visit),
        states=_STATES,
        limits=limits,
    )


async def partition_rows(visit: PageRequest) -> list[PartitionRow]:
    place = (visit.namespace, visit.words["hub"])
    owners: dict[str, list[str]] = defaultdict(list)
    for row in await visit.backend.read(ManagementClient.lag, *place):
        if row["owner"]:
            owners[row["partition"]].append(f"{row['owner']} ({row['group']})")

    def known(number: int) -> int | None:
        return number if number >= 0 else None

    return [
        PartitionRow(
            id=each["id"],
            first=known(each["begin_sequence"]),
            last=known(each["last_sequence"]),
            last_offset=each["last_offset"] if each["last_sequence"] >= 0 else "",
            last_ms=each["last_enqueued_ms"],
            size_bytes=each["size_bytes"],
            owners=owners[each["id"]],
            failed=each["failed"],
        )
        for each in await visit.backend.read(ManagementClient.partitions, *place)
    ]


async def edit(visit: PageRequest) -> Response:
    hub, hours = visit.words["hub"], visit.integer("retention", "Retention")
    status, metadata = visit.form.get("status") or None, visit.form.get("metadata", "")
    await visit.act(
        lambda client: client.put_hub(
            visit.namespace, hub, retention_hours=hours, status=status, user_metadata=metadata
        )
    )
    raise ActionCompleted(visit.hub_link(), "The settings are saved.")


async def confirm_delete(visit: PageRequest) -> Response:
    return await page(visit, "hub_delete.html")


async def delete(visit: PageRequest) -> Response:
    hub = visit.words["hub"]
    visit.check_typed(hub)
    await visit.act(lambda client: client.delete_hub(visit.namespace, hub))
    raise ActionCompleted(visit.link("hubs"), f"The event hub '{hub}' is deleted.")
