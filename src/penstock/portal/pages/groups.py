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
from penstock.model.errors import ArgumentError
from penstock.portal.components import (
    badge,
    card,
    chart,
    delete_box,
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
from penstock.portal.users import PortalRole

DEFAULT = "$Default"
_HEADS = (
    "Partition", "Last sequence", "Checkpoint", "Behind (events)", "Behind (time)",
    "Behind (size)", "Owner", "Epoch", "Readers", "Last seen",
)  # fmt: skip


async def group_list(visit: PageRequest) -> Response:
    hub = await visit.backend.hub(visit.namespace, visit.hub)
    namespace = visit.namespace
    rows = await visit.backend.lag(namespace, hub.name)
    groups = await visit.backend.groups(namespace, hub.name)
    series = await history(visit, hub.name, ("lag_events",))
    by_group: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_group[row["group"]].append(row)
    lines: Any = series.get("lag_by_group") or {}
    at_ms: Any = series["at_ms"]
    return await page(
        visit,
        "Consumer groups",
        live_element(
            "lag-chart",
            chart(
                "Behind the newest event",
                at_ms,
                lines,
                unit="events, by consumer group",
                empty="No group has a checkpoint here or a reader connected.",
            ),
            tag="section",
        ),
        *(
            _group_card(
                visit, hub.name, group.name, group.user_metadata, by_group.get(group.name, [])
            )
            for group in groups
        ),
        _create_form(visit, hub.name) if visit.may(PortalRole.OPERATOR) else None,
        active="hubs",
        hub=hub.name,
        tab="groups",
        aside=ranges(visit, "hubs", hub.name, "groups"),
    )


def _group_card(
    visit: PageRequest, hub: str, name: str, metadata: str, rows: list[dict[str, Any]]
) -> Html:
    key = "".join(c if c.isalnum() else "-" for c in name)
    behind = [row["lag_events"] for row in rows if row["lag_events"] is not None]
    late = [row["lag_seconds"] for row in rows if row["lag_seconds"] is not None]
    owners = {row["owner"] for row in rows if row["owner"]}
    readers = sum(row["readers"] for row in rows)
    state = badge("read", "good") if readers else badge("nobody reads", "warn")
    head = tiles(
        tile("Behind", format_count(sum(behind)) if behind else "–", "events"),
        tile("Oldest waiting", format_duration(max(late, default=None)), "since it was stored"),
        tile("Readers", format_integer(readers), format_plural(len(owners), "owner")),
    )
    now_ms = visit.portal.clock.now_ms()
    cells = [
        (
            row["partition"],
            format_integer(row["last_sequence_number"])
            if row["last_sequence_number"] >= 0
            else "–",
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
    shown = table(_HEADS, cells, empty="No partitions.", numbers=(1, 2, 3, 4, 5, 7, 8, 9))
    return card(
        name,
        el("p", metadata) if metadata else None,
        live_element(f"group-{key}", head, shown),
        _acts(visit, hub, name, rows) if visit.may(PortalRole.OPERATOR) else None,
        aside=state,
        id_=f"group-{key}",
    )


def _acts(visit: PageRequest, hub: str, name: str, rows: list[dict[str, Any]]) -> Html:
    partitions = {"": "all partitions"} | {row["partition"]: row["partition"] for row in rows}
    seek = el(
        "details",
        el("summary", "Move its checkpoints…"),
        form(
            visit,
            visit.link("hubs", hub, "groups", name, "seek"),
            el(
                "p",
                "Checkpoints that the service keeps are moved; a group that reads is refused, "
                "unless forced.",
            ),
            field(
                "To",
                "to",
                visit.form_value("to", "earliest"),
                required=True,
                help_="earliest, latest, a sequence number, or a time (UTC)",
            ),
            select("Partition", "partition", partitions, visit.form_value("partition")),
            submit("Preview", name="dry_run", value="yes"),
            el("button", "Move", type="submit", name="dry_run", value=""),
            el("button", "Move by force", type="submit", name="force", value="yes"),
        ),
    )
    if name == DEFAULT:
        return seek
    return el(
        "div",
        seek,
        delete_box(
            visit,
            visit.link("hubs", hub, "groups", name, "delete"),
            "consumer group",
            name,
            "Its checkpoints go with it; its readers are cut off.",
        ),
    )


def _create_form(visit: PageRequest, hub: str) -> Html:
    return card(
        "Create a consumer group",
        form(
            visit,
            visit.link("hubs", hub, "groups"),
            field(
                "Name",
                "name",
                visit.form_value("name"),
                required=True,
                maxlength=50,
                autocomplete="off",
            ),
            field("User metadata", "metadata", visit.form_value("metadata"), maxlength=1024),
            submit("Create consumer group"),
        ),
        id_="create",
    )


async def create(visit: PageRequest) -> Response:
    name, metadata = visit.form.get("name", "").strip(), visit.form.get("metadata", "")
    hub = visit.hub
    await visit.backend.act(
        visit.session,
        lambda client: client.put_group(visit.namespace, hub, name, user_metadata=metadata or None),
    )
    raise ActionCompleted(
        visit.link("hubs", hub, "groups"), f"The consumer group '{name}' is there."
    )


async def delete(visit: PageRequest) -> Response:
    name, hub = visit.words["group"], visit.hub
    if visit.form.get("confirm") != name:
        raise ArgumentError(f"Type '{name}' to delete it: nothing was deleted.")
    await visit.backend.act(
        visit.session, lambda client: client.delete_group(visit.namespace, hub, name)
    )
    raise ActionCompleted(
        visit.link("hubs", hub, "groups"), f"The consumer group '{name}' is deleted."
    )


async def seek(visit: PageRequest) -> Response:
    name, hub, values = visit.words["group"], visit.hub, visit.form
    dry_run = values.get("dry_run") == "yes"
    moved = await visit.backend.act(
        visit.session,
        lambda client: client.seek(
            visit.namespace,
            hub,
            name,
            values.get("to", "").strip(),
            partition=values.get("partition") or None,
            dry_run=dry_run,
            force=values.get("force") == "yes",
        ),
    )
    parts = [
        f"partition {each['partition']}: {_format_optional(each['from_sequence_number'])} → "
        f"{_format_optional(each['to_sequence_number'])}"
        for each in moved[:32]
    ]
    word = "It would be moved" if dry_run else "Moved"
    raise ActionCompleted(
        visit.link("hubs", hub, "groups"), f"{word} ({name}): {'; '.join(parts) or 'nothing'}."
    )


def _format_optional(value: int | None) -> str:
    return "none" if value is None else str(value)


ROUTES = (
    PageRoute("GET", "/hubs/{hub}/groups", group_list),
    PageRoute("POST", "/hubs/{hub}/groups", create, PortalRole.OPERATOR),
    PageRoute("POST", "/hubs/{hub}/groups/{group}/delete", delete, PortalRole.OPERATOR),
    PageRoute("POST", "/hubs/{hub}/groups/{group}/seek", seek, PortalRole.OPERATOR),
)
