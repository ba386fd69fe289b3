"""Processes events like processor.py, with Penstock's own client.

Start it twice: each process gets half of the partitions. If you stop one with Ctrl-C, the other
takes over its partitions at the next balancing; if you kill it, when its leases expire.

    python examples/client_processor.py --store checkpoints.sqlite
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys

from penstock.checkpoints.aio import SqliteCheckpointStore
from penstock.client import (
    EventData,
    EventHubConsumerClient,
    EventPosition,
    EventProcessorClient,
    PartitionContext,
)


async def run(given: argparse.Namespace, connection_string: str) -> None:
    seen = 0

    async def on_events(partition: PartitionContext, events: list[EventData]) -> None:
        nonlocal seen
        for event in events:
            print(f"{partition.partition_id}: {event.body_as_str()}", flush=True)
        await partition.update_checkpoint()
        seen += len(events)
        if given.count is not None and seen >= given.count:
            await processor.stop()

    async with (
        SqliteCheckpointStore(given.store) as store,
        EventHubConsumerClient(
            connection_string,
            given.group,
            eventhub_name=os.environ.get("PENSTOCK_HUB", "events"),
            ca_file=os.environ.get("PENSTOCK_CA_FILE"),
        ) as consumer,
    ):
        processor = EventProcessorClient(
            consumer,
            store,
            on_events,
            load_balancing_interval_s=2,
            ownership_expiration_s=12,
            starting_position=EventPosition.earliest(),
        )
        await processor.run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", default="checkpoints.sqlite")
    parser.add_argument("--group", default="$Default")
    parser.add_argument("--count", type=int, help="stop after this many events; default: at Ctrl-C")
    connection_string = os.environ.get("PENSTOCK_CONNECTION_STRING")
    if not connection_string:
        sys.exit(
            "Set PENSTOCK_CONNECTION_STRING: 'penstock policy connection-string --plain' prints it."
        )
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(parser.parse_args(), connection_string))


if __name__ == "__main__":
    main()
