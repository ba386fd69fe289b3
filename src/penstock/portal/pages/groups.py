"""Consumer groups: how far each is behind, by events, bytes and seconds, and who reads."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from starlette.responses import Response

from penstock.formats.quantities import (
    format_age,
    format_count,
    format_duration,
    format_plural,
    format_size,
)
from penstock.management.client import ManagementClient
from penstock.management.permissions import AdminRole
from penstock.management.resources import ConsumerGroupResource
from penstock.portal import components as ui
from penstock.portal.html import Html, el
from penstock.portal.layout import page
from penstock.portal.page_request import ActionCompleted, PageRequest

_NUMBERS = (
    *("Last sequence", "Checkpoint", "Behind (events)", "Behind (time)", "Behind (size)"),
    *("Epoch", "Readers", "Last seen"),
)


async def group_list(visit: PageRequest) -> Response:
    namespace, hub = visit.namespace, visit.words["hub"]
    groups = await visit.backend.read(ManagementClient.groups, namespace, hub)
    series = await ui.history(visit, hub, ("lag_events",))
    by_group: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in await visit.backend.read(ManagementClient.lag, namespace, hub):
        by_group[row["group"]].append(row)
    lag_chart = ui.chart(
        series,
        "Behind the newest event",
        series.get("lag_by_group") or {},
        "events, by consumer group",
        empty="No group has a checkpoint here or a reader connected.",
    )
    return await page(
        visit,
        ui.live_element("lag-chart", lag_chart, tag="section"),
        *(_group_card(visit, group, by_group[group.name]) for group in groups),
        _create_form(visit) if visit.may(AdminRole.OPERATOR) else None,
        aside=ui.ranges(visit),
    )


def _group_card(
    visit: PageRequest, group: ConsumerGroupResource, rows: list[dict[str, Any]]
) -> Html:
    name, metadata = group.name, group.user_metadata
    key = "".join(c if c.isalnum() else "-" for c in name)
    behind = [row["lag_events"] for row in rows if row["lag_events"] is not None]
    late = [row["lag_seconds"] for row in rows if row["lag_seconds"] is not None]
    owners = {row["owner"] for row in rows if row["owner"]}
    readers = sum(row["readers"] for row in rows)
    state = ui.badge("read", "good") if readers else ui.badge("no reader", "warn")
    head = ui.tiles(
        ui.tile("Behind", format_count(sum(behind)) if behind else "–", "events"),
        ui.tile("Oldest waiting", format_duration(max(late, default=None)), "since it was stored"),
        ui.tile("Readers", readers, format_plural(len(owners), "owner")),
    )
    now_ms = visit.portal.clock.now_ms()
    cells = [
        {
            "Partition": row["partition"],
            "Last sequence": ui.sequence_number(row["last_sequence_number"]),
            "Checkpoint": row["checkpoint_sequence_number"],
            "Behind (events)": row["lag_events"],
            "Behind (time)": format_duration(row["lag_seconds"]),
            "Behind (size)": format_size(row["lag_bytes"]),
            "Owner": row["owner"],
            "Epoch": "" if row["epoch"] is None else str(row["epoch"]),
            "Readers": row["readers"],
            "Last seen": format_age(row["last_seen_ms"], now_ms),
        }
        for row in rows
    ]
    table = ui.table(cells, empty="No partitions.", numbers=_NUMBERS)
    return ui.card(
        name,
        el("p", metadata) if metadata else None,
        ui.live_element(f"group-{key}", head, table),
        _acts(visit, name, rows) if visit.may(AdminRole.OPERATOR) else None,
        aside=state,
        id_=f"group-{key}",
    )


def _acts(visit: PageRequest, name: str, rows: list[dict[str, Any]]) -> Html:
    partitions = {"": "all partitions"} | {row["partition"]: row["partition"] for row in rows}
    note = (
        "Checkpoints that the service keeps are moved; a group that reads is refused, unless "
        "forced."
    )
    loss = "Its checkpoints go with it; its readers are cut off."
    positions = "earliest, latest, a sequence number, or a time (UTC)"
    seek = ui.form(
        visit,
        visit.hub_link("groups", name, "seek"),
        el("p", note),
        ui.field(visit, "To", "to", "earliest", required=True, help_=positions),
        ui.select(visit, "Partition", "partition", partitions),
        ui.submit("Preview", name="dry_run", value="yes"),
        ui.submit("Move", None, name="dry_run", value=""),
        ui.submit("Move by force", None, name="force", value="yes"),
    )
    move = el("details", el("summary", "Move its checkpoints…"), seek)
    if name == "$Default":
        return el("div", move)
    to = visit.hub_link("groups", name, "delete")
    return el("div", move, ui.delete_box(visit, to, "consumer group", name, loss))


def _create_form(visit: PageRequest) -> Html:
    create = ui.form(
        visit,
        visit.hub_link("groups"),
        ui.name_field(visit, maxlength=50),
        ui.field(visit, "User metadata", "metadata", maxlength=1024),
        ui.submit("Create consumer group"),
    )
    return ui.card("Create a consumer group", create, id_="create")


async def create(visit: PageRequest) -> Response:
    name, hub = visit.text("name"), visit.words["hub"]
    metadata = visit.form.get("metadata") or None
    await visit.act(
        lambda client: client.put_group(visit.namespace, hub, name, user_metadata=metadata)
    )
    text = f"The consumer group '{name}' is there."
    raise ActionCompleted(visit.hub_link("groups"), text)


async def delete(visit: PageRequest) -> Response:
    name, hub = visit.words["group"], visit.words["hub"]
    visit.check_typed(name)
    await visit.act(lambda client: client.delete_group(visit.namespace, hub, name))
    text = f"The consumer group '{name}' is deleted."
    raise ActionCompleted(visit.hub_link("groups"), text)


async def seek(visit: PageRequest) -> Response:
    name, hub = visit.words["group"], visit.words["hub"]
    to, partition = visit.text("to"), visit.text("partition") or None
    dry_run, force = visit.text("dry_run") == "yes", visit.text("force") == "yes"
    moved = await visit.act(
        lambda client: client.seek(visit.namespace, hub, name, to, partition, dry_run, force)
    )
    parts = [
        f"partition {each['partition']}: {_format_number(each['from_sequence_number'])} → "
        f"{_format_number(each['to_sequence_number'])}"
        for each in moved[:32]
    ]
    word = "It would be moved" if dry_run else "Moved"
    text = f"{word} ({name}): {'; '.join(parts) or 'nothing'}."
    raise ActionCompleted(visit.hub_link("groups"), text)


def _format_number(value: int | None) -> str:
    return "none" if value is None else str(value)
