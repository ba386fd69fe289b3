"""A client of a container, run in its network: one JSON object on standard output.

    container_client.py send CONNECTION_STRING HUB COUNT [BODY_BYTES]
    container_client.py read CONNECTION_STRING HUB
    container_client.py get URL [SOURCE_ADDRESS]      of HTTP or HTTPS, unverified
    container_client.py connect HOST PORT

Uses the official SDK; PENSTOCK_CA_FILE verifies TLS.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from azure.eventhub import EventData, EventHubConsumerClient, EventHubProducerClient

TIMEOUT_S = 30.0


def options(hub: str) -> dict[str, Any]:
    found: dict[str, Any] = {"eventhub_name": hub, "retry_total": 0}
    if ca_file := os.environ.get("PENSTOCK_CA_FILE"):
        found["connection_verify"] = ca_file
    return found


def send(text: str, hub: str, count: str, size: str = "0") -> dict[str, Any]:
    with EventHubProducerClient.from_connection_string(text, **options(hub)) as producer:
        batch = producer.create_batch()
        for number in range(int(count)):
            batch.add(EventData(f"{number}".ljust(int(size))))
        producer.send_batch(batch)
        return {"sent": int(count), "batch_bytes_max": batch.max_size_in_bytes}


def read(text: str, hub: str) -> dict[str, Any]:
    """All events that are there."""
    found: Counter[str] = Counter()
    sizes: list[int] = []
    with EventHubConsumerClient.from_connection_string(
        text, consumer_group="$Default", **options(hub)
    ) as consumer:
        expected = 0
        for partition in consumer.get_partition_ids():
            about = consumer.get_partition_properties(partition)
            expected += about["last_enqueued_sequence_number"] + 1

        def on_event(_: object, event: Any) -> None:
            body = event.body_as_str()
            found[body.strip()] += 1
            sizes.append(len(body))
            if len(sizes) == expected:
                done.set()

        done = threading.Event()
        receiving = threading.Thread(
            target=consumer.receive, args=(on_event,), kwargs={"starting_position": "-1"}
        )
        receiving.start()
        has_all = expected == 0 or done.wait(TIMEOUT_S)
        consumer.close()
        receiving.join(TIMEOUT_S)
    assert has_all, f"{len(sizes)} of {expected} events came"
    return {"bodies": sorted(found.elements(), key=int), "largest": max(sizes, default=0)}


def get(url: str, source: str = "") -> dict[str, Any]:
    parts = urlsplit(url)
    assert parts.hostname
    address = (source, 0) if source else None
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(
            parts.hostname,
            parts.port,
            timeout=TIMEOUT_S,
            source_address=address,
            context=context,
        )
    else:
        connection = http.client.HTTPConnection(
            parts.hostname, parts.port, timeout=TIMEOUT_S, source_address=address
        )
    connection.request("GET", parts.path or "/")
    answer = connection.getresponse()
    return {"status": answer.status, "body": answer.read().decode()}


def connect(host: str, port: str) -> dict[str, Any]:
    try:
        socket.create_connection((host, int(port)), TIMEOUT_S).close()
    except OSError as error:
        return {"open": False, "error": str(error)}
    return {"open": True}


if __name__ == "__main__":
    actions: dict[str, Callable[..., dict[str, Any]]] = {
        "send": send,
        "read": read,
        "get": get,
        "connect": connect,
    }
    print(json.dumps(actions[sys.argv[1]](*sys.argv[2:])))
