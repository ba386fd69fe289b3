"""The partitions of a hub's page."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from penstock.management.client import ManagementClient
from penstock.model.clock import ManualClock
from penstock.portal.pages.hubs import _partitions


class Backend:
    async def read(self, method: Any, namespace: str, hub: str) -> list[dict[str, Any]]:
        if method is ManagementClient.lag:
            return []
        emptied = {"begin_sequence": -1, "last_sequence": 4, "last_offset": "435"}
        unused = {"begin_sequence": -1, "last_sequence": -1, "last_offset": "-1"}
        common = {"last_enqueued_ms": -1, "size_bytes": 0, "failed": None}
        return [{"id": "0"} | emptied | common, {"id": "1"} | unused | common]


def test_partition_that_retention_emptied_has_no_first_number() -> None:
    visit = SimpleNamespace(
        namespace="penstock",
        portal=SimpleNamespace(clock=ManualClock()),
        backend=Backend(),
        words={"hub": "h"},
        hub_link=lambda *words, **query: "/",
    )
    html = str(asyncio.run(_partitions(cast("Any", visit))))
    cells = [cell.partition("<")[0].partition(">")[2] for cell in html.split("<td")[1:]]
    rows = [cells[:8], cells[8:]]
    assert [row[1:4] for row in rows] == [["–", "4", "435"], ["–", "–", "–"]]
