"""Prints events from all partitions: `python examples/receive.py --from earliest --count 10`."""

from __future__ import annotations

import argparse

from azure.eventhub import EventData, EventHubConsumerClient, PartitionContext
from connect import connection

POSITIONS = {"earliest": "-1", "latest": "@latest"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="position", choices=POSITIONS, default="earliest")
    parser.add_argument("--group", default="$Default")
    parser.add_argument("--count", type=int, help="stop after this many events; default: at Ctrl-C")
    given = parser.parse_args()
    client = EventHubConsumerClient.from_connection_string(
        consumer_group=given.group, **connection()
    )
    seen = 0

    def on_event(partition: PartitionContext, event: EventData | None) -> None:
        nonlocal seen
        if event is not None:
            seen += 1
            place = f"{partition.partition_id}/{event.sequence_number}"
            print(f"{place:>8}  {event.body_as_str()}", flush=True)
        if given.count is not None and seen >= given.count:
            client.close()

    try:
        with client:
            client.receive(on_event, starting_position=POSITIONS[given.position], max_wait_time=1)
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
