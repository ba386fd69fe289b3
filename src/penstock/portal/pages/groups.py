"""Consumer groups: how far each is behind, by events, bytes and seconds, and who reads."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec
from starlette.responses import Response

from penstock.management.client import ManagementClient
from penstock.management.resources import ConsumerGroupResource
from penstock.portal import charts
from penstock.portal.page_request import ActionCompleted, PageRequest
from penstock.portal.shell import page


class GroupRow(msgspec.Struct, frozen=True, kw_only=True):
    group: ConsumerGroupResource
    partitions: list[dict[str, Any]]
    lag_events: int | None
    lag_seconds: float | None
    readers: int
    owners: int


async def group_list(visit: PageRequest) -> Response:
    namespace, hub = visit.namespace, visit.words["hub"]
    groups = await visit.backend.read(ManagementClient.groups, namespace, hub)
    series = await charts.history(visit, hub, ("lag_events",))
    by_group: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in await visit.backend.read(ManagementClient.lag, namespace, hub):
        by_group[row["group"]].append(row)
    lags = {
        name: (index % 6 + 1, values)
        for index, (name, values) in enumerate((series.get("lag_by_group") or {}).items())
    }
    return await page(
        visit,
        "groups.html",
        lag_chart=charts.chart(series, "Lag by consumer group", "events", lags, is_count=True),
        rows=[_group_row(group, by_group[group.name]) for group in groups],
    )


def _group_row(group: ConsumerGroupResource, rows: list[dict[str, Any]]) -> GroupRow:
    behind = [row["lag_events"] for row in rows if row["lag_events"] is not None]
    late = [row["lag_seconds"] for row in rows if row["lag_seconds"] is not None]
    return GroupRow(
        group=group,
        partitions=rows,
        lag_events=sum(behind) if behind else None,
        lag_seconds=max(late, default=None),
        readers=sum(row["readers"] for row in rows),
        owners=len({row["owner"] for row in rows if row["owner"]}),
    )


async def new_group(visit: PageRequest) -> Response:
    return await page(visit, "group_new.html")


async def create(visit: PageRequest) -> Response:
    name, hub = visit.text("name"), visit.words["hub"]
    metadata = visit.form.get("metadata") or None
    await visit.act(
        lambda client: client.put_group(visit.namespace, hub, name, user_metadata=metadata)
    )
    text = f"The consumer group '{name}' is there."
    raise ActionCompleted(visit.hub_link("groups"), text)


async def confirm_delete(visit: PageRequest) -> Response:
    return await page(visit, "group_delete.html", group=visit.words["group"])


async def delete(visit: PageRequest) -> Response:
    name, hub = visit.words["group"], visit.words["hub"]
    visit.check_typed(name)
    await visit.act(lambda client: client.delete_group(visit.namespace, hub, name))
    text = f"The consumer group '{name}' is deleted."
    raise ActionCompleted(visit.hub_link("groups"), text)


async def move(visit: PageRequest) -> Response:
    return await page(visit, "group_move.html", group=visit.words["group"])


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
