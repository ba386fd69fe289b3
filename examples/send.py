"""Publishes its arguments as one batch: `python examples/send.py --key device-1 hello world`."""

from __future__ import annotations

import argparse

from azure.eventhub import EventData, EventHubProducerClient
from connect import HUB, connection


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", nargs="*", default=["hello", "world"])
    parser.add_argument("--key", help="events with the same key share a partition")
    given = parser.parse_args()
    with EventHubProducerClient.from_connection_string(**connection()) as producer:
        batch = producer.create_batch(partition_key=given.key)
        for text in given.texts:
            batch.add(EventData(text))
        producer.send_batch(batch)
    print(f"sent {len(given.texts)} events to {HUB}")


if __name__ == "__main__":
    main()
