"""Consumer groups: how far each is behind, by events, bytes and seconds, and who reads."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from starlette.responses import Response

from penstock.formats.quantities import (
    format_age,
    format_count,
    format_duration,
    format_integer,
    format_plural,
    format_size,
)
from penstock.portal import components as ui
from penstock.portal.html import Html, el
from penstock.portal.layout import page
from penstock.portal.page_request import ActionCompleted, PageRequest, PageRoute
from penstock.portal.users import PortalRole

DEFAULT = "$Default"
_HEADS = (
    "Partition", "Last sequence", "Checkpoint", "Behind (events)", "Behind (time)",
    "Behind (size)", "Owner", "Epoch", "Readers", "Last seen",
)  # fmt: skip


async def group_list(visit: PageRequest) -> Response:
    hub = await visit.hub()
    groups = await visit.backend.groups(visit.namespace, hub.name)
    series = await ui.history(visit, hub.name, ("lag_events",))
    by_group: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in await visit.backend.lag(visit.namespace, hub.name):
        by_group[row["group"]].append(row)
    lag_chart = ui.chart(
        series,
        "Behind the newest event",
        series.get("lag_by_group") or {},
        "events, by consumer group",
        empty="No group has a checkpoint here or a reader connected.",
    )
    cards = [
        _group_card(visit, hub.name, group.name, group.user_metadata, by_group[group.name])
        for group in groups
    ]
    return await page(
        visit,
        "Consumer groups",
        ui.live_element("lag-chart", lag_chart, tag="section"),
        *cards,
        _create_form(visit, hub.name) if visit.may(PortalRole.OPERATOR) else None,
        hub=hub.name,
        tab="groups",
        aside=ui.ranges(visit, "hubs", hub.name, "groups"),
    )


def _group_card(
    visit: PageRequest, hub: str, name: str, metadata: str, rows: list[dict[str, Any]]
) -> Html:
    key = "".join(c if c.isalnum() else "-" for c in name)
    behind = [row["lag_events"] for row in rows if row["lag_events"] is not None]
    late = [row["lag_seconds"] for row in rows if row["lag_seconds"] is not None]
    owners = {row["owner"] for row in rows if row["owner"]}
    readers = sum(row["readers"] for row in rows)
    state = ui.badge("read", "good") if readers else ui.badge("no reader", "warn")
    head = ui.tiles(
        ui.tile("Behind", format_count(sum(behind)) if behind else "–", "events"),
        ui.tile("Oldest waiting", format_duration(max(late, default=None)), "since it was stored"),
        ui.tile("Readers", format_integer(readers), format_plural(len(owners), "owner")),
    )
    now_ms = visit.portal.clock.now_ms()
    cells = [
        (
            row["partition"],
            format_integer(
                row["last_sequence_number"] if row["last_sequence_number"] >= 0 else None
            ),
            format_integer(row["checkpoint_sequence_number"]),
            format_integer(row["lag_events"]),
            format_duration(row["lag_seconds"]),
            format_size(row["lag_bytes"]),
            row["owner"] or "",
            "" if row["epoch"] is None else str(row["epoch"]),
            format_integer(row["readers"]),
            format_age(row["last_seen_ms"], now_ms),
        )
        for row in rows
    ]
    shown = ui.table(_HEADS, cells, empty="No partitions.", numbers=(1, 2, 3, 4, 5, 7, 8, 9))
    return ui.card(
        name,
        el("p", metadata) if metadata else None,
        ui.live_element(f"group-{key}", head, shown),
        _acts(visit, hub, name, rows) if visit.may(PortalRole.OPERATOR) else None,
        aside=state,
        id_=f"group-{key}",
    )


def _acts(visit: PageRequest, hub: str, name: str, rows: list[dict[str, Any]]) -> Html:
    partitions = {"": "all partitions"} | {row["partition"]: row["partition"] for row in rows}
    note = (
        "Checkpoints that the service keeps are moved; a group that reads is refused, unless "
        "forced."
    )
    positions = "earliest, latest, a sequence number, or a time (UTC)"
    seek = ui.form(
        visit,
        visit.link("hubs", hub, "groups", name, "seek"),
        el("p", note),
        ui.field(visit, "To", "to", "earliest", required=True, help_=positions),
        ui.select(visit, "Partition", "partition", partitions),
        ui.submit("Preview", name="dry_run", value="yes"),
        ui.submit("Move", None, name="dry_run", value=""),
        ui.submit("Move by force", None, name="force", value="yes"),
    )
    delete = ui.delete_box(
        visit,
        visit.link("hubs", hub, "groups", name, "delete"),
        "consumer group",
        name,
        "Its checkpoints go with it; its readers are cut off.",
    )
    return el(
        "div",
        el("details", el("summary", "Move its checkpoints…"), seek),
        None if name == DEFAULT else delete,
    )


def _create_form(visit: PageRequest, hub: str) -> Html:
    create = ui.form(
        visit,
        visit.link("hubs", hub, "groups"),
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
    raise ActionCompleted(visit.link("hubs", hub, "groups"), text)


async def delete(visit: PageRequest) -> Response:
    name, hub = visit.words["group"], visit.words["hub"]
    visit.check_typed(name)
    await visit.act(lambda client: client.delete_group(visit.namespace, hub, name))
    text = f"The consumer group '{name}' is deleted."
    raise ActionCompleted(visit.link("hubs", hub, "groups"), text)


async def seek(visit: PageRequest) -> Response:
    name, hub = visit.words["group"], visit.words["hub"]
    dry_run = visit.text("dry_run") == "yes"
    moved = await visit.act(
        lambda client: client.seek(
            visit.namespace,
            hub,
            name,
            visit.text("to"),
            partition=visit.text("partition") or None,
            dry_run=dry_run,
            force=visit.text("force") == "yes",
        )
    )
    parts = [
        f"partition {each['partition']}: {_format_optional(each['from_sequence_number'])} → "
        f"{_format_optional(each['to_sequence_number'])}"
        for each in moved[:32]
    ]
    word = "It would be moved" if dry_run else "Moved"
    text = f"{word} ({name}): {'; '.join(parts) or 'nothing'}."
    raise ActionCompleted(visit.link("hubs", hub, "groups"), text)


def _format_optional(value: int | None) -> str:
    return "none" if value is None else str(value)


ROUTES = (
    PageRoute("GET", "/hubs/{hub}/groups", group_list),
    PageRoute("POST", "/hubs/{hub}/groups", create, PortalRole.OPERATOR),
    PageRoute("POST", "/hubs/{hub}/groups/{group}/delete", delete, PortalRole.OPERATOR),
    PageRoute("POST", "/hubs/{hub}/groups/{group}/seek", seek, PortalRole.OPERATOR),
)
