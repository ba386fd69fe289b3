"""Processes a hub's events from checkpoints; several copies of it share the partitions.

Start it twice: each process gets half of the partitions. If you stop one, the other takes over.
Ownership and checkpoints are in an SQLite file, through the SDK's CheckpointStore interface.

    python examples/processor.py --store checkpoints.sqlite
"""

from __future__ import annotations

import argparse
import sqlite3
import time
import uuid
from collections.abc import Iterable
from typing import Any

from azure.eventhub import CheckpointStore, EventData, EventHubConsumerClient, PartitionContext
from connect import connection

Record = dict[str, Any]
PLACE = ("fully_qualified_namespace", "eventhub_name", "consumer_group", "partition_id")
OWNERSHIP = (*PLACE, "owner_id", "last_modified_time", "etag")
CHECKPOINT = (*PLACE, "sequence_number", "offset")


class SqliteStore(CheckpointStore):
    """Claims are compare-and-swap on the etag; the last checkpoint wins."""

    def __init__(self, path: str) -> None:
        self._path = path
        for table, columns in (("ownership", OWNERSHIP), ("checkpoint", CHECKPOINT)):
            names = ", ".join(f'"{column}"' for column in columns)
            key = ", ".join(f'"{column}"' for column in PLACE)
            self._run(f"CREATE TABLE IF NOT EXISTS {table} ({names}, PRIMARY KEY ({key}))")

    def list_ownership(self, *names: str, **options: Any) -> list[Record]:
        return self._list("ownership", OWNERSHIP, names)

    def list_checkpoints(self, *names: str, **options: Any) -> list[Record]:
        return self._list("checkpoint", CHECKPOINT, names)

    def claim_ownership(self, ownership_list: Iterable[Record], **options: Any) -> list[Record]:
        return [won for wanted in ownership_list if (won := self._claim(wanted)) is not None]

    def update_checkpoint(self, checkpoint: Record, **options: Any) -> None:
        values = [checkpoint[column] for column in CHECKPOINT]
        self._run("INSERT OR REPLACE INTO checkpoint VALUES (?, ?, ?, ?, ?, ?)", *values)

    def _claim(self, wanted: Record) -> Record | None:
        won = wanted | {"etag": str(uuid.uuid4()), "last_modified_time": time.time()}
        values = [won[column] for column in OWNERSHIP]
        place = [won[column] for column in PLACE]
        if wanted.get("etag") is None:  # it has no owner yet: only the first claim succeeds
            changed = self._run("INSERT OR IGNORE INTO ownership VALUES (?,?,?,?,?,?,?)", *values)
        else:
            where = " AND ".join(f'"{column}" = ?' for column in (*PLACE, "etag"))
            update = f"UPDATE ownership SET owner_id=?, last_modified_time=?, etag=? WHERE {where}"
            changed = self._run(update, *values[4:], *place, wanted["etag"])
        return won if changed else None

    def _list(self, table: str, columns: tuple[str, ...], names: Iterable[str]) -> list[Record]:
        where = " AND ".join(f'"{column}" = ?' for column in PLACE[:3])
        with sqlite3.connect(self._path) as database:
            rows = database.execute(f"SELECT * FROM {table} WHERE {where}", tuple(names))
            return [dict(zip(columns, row, strict=True)) for row in rows]

    def _run(self, statement: str, *values: Any) -> int:
        with sqlite3.connect(self._path) as database:  # one transaction
            return database.execute(statement, values).rowcount


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", default="checkpoints.sqlite")
    parser.add_argument("--group", default="$Default")
    parser.add_argument("--count", type=int, help="stop after this many events; default: at Ctrl-C")
    given = parser.parse_args()
    client = EventHubConsumerClient.from_connection_string(
        consumer_group=given.group,
        checkpoint_store=SqliteStore(given.store),
        load_balancing_interval=2,
        **connection(),
    )
    seen = 0

    def on_event(partition: PartitionContext, event: EventData | None) -> None:
        nonlocal seen
        if event is not None:
            seen += 1
            print(f"{partition.partition_id}: {event.body_as_str()}", flush=True)
            partition.update_checkpoint(event)
        if given.count is not None and seen >= given.count:
            client.close()

    try:
        with client:
            client.receive(on_event, starting_position="-1", max_wait_time=1)
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
