"""Connections of clients, and closing one."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from penstock.management.client import ManagementClient
from penstock.portal.lists import list_view
from penstock.portal.page_request import ActionCompleted, PageRequest
from penstock.portal.shell import page

_LINKS_SHOWN = 8


class ConnectionRow(msgspec.Struct, frozen=True, kw_only=True):
    """`links` are those of hubs that the user may see."""

    connection: dict[str, Any]
    links: list[str]
    is_sending: bool
    is_receiving: bool


async def connections(visit: PageRequest) -> Response:
    found = await visit.backend.read(ManagementClient.connections)
    own = (visit.namespace.casefold(), "")
    rows = [_connection(visit, each) for each in found if each["namespace"].casefold() in own]
    view = list_view(
        visit,
        rows,
        text=lambda row: (
            " ".join(
                (
                    row.connection["peer"],
                    row.connection["container_id"],
                    row.connection["user_agent"],
                )
            )
            + " ".join(row.links)
        ),
        sorts={
            "age": lambda row: row.connection["age_seconds"],
            "in": lambda row: row.connection["events_in"],
            "out": lambda row: row.connection["events_out"],
        },
        sort="-age",
    )
    return await page(
        visit,
        "connections.html",
        view=view,
        sending=sum(row.is_sending for row in rows),
        receiving=sum(row.is_receiving for row in rows),
    )


def _connection(visit: PageRequest, connection: dict[str, Any]) -> ConnectionRow:
    links = connection["hub_links"]
    return ConnectionRow(
        connection=connection,
        links=[_format_link(link) for link in links if visit.sees(link["hub"])][: _LINKS_SHOWN + 1],
        is_sending=any(link["role"] == "send" for link in links),
        is_receiving=any(link["role"] == "receive" for link in links),
    )


def _format_link(link: dict[str, Any]) -> str:
    partition = link.get("partition")
    number = None if partition is None else f"#{partition}"
    parts = (link["role"], link["hub"], link.get("group"), number, link.get("publisher"))
    return " ".join(filter(None, parts))


async def close_connection(visit: PageRequest) -> Response:
    await visit.act(lambda client: client.kill_connection(visit.words["connection"]))
    text = "The connection is closed; its client may come back."
    raise ActionCompleted(visit.link("connections"), text)
