"""`/metrics`: names as documented, numbers as published."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import ssl
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.auth.sas import sign
from penstock.client import connect, parse_connection_string
from penstock.client.transfer_frames import encode_publication
from penstock.model.entities import Secret
from penstock.model.metrics import COUNTERS, FLUSH_BOUNDS_S
from penstock.service.metrics import BROKER_METRICS, CAPTURE_METRICS

if TYPE_CHECKING:
    from tests.conftest import Server, ServerFactory

BATCH = "application/vnd.microsoft.servicebus.json"
HUB = '{hub="events",namespace="penstock"}'
PARTITION = '{hub="events",namespace="penstock",partition="1"}'


async def publish(connection_string: str, batches: int) -> None:
    connection = await connect(parse_connection_string(connection_string))
    await connection.authorise("events")
    sender = await connection.sender("events/Partitions/1")
    payload, message_format = encode_publication(10, 5)
    for _ in range(batches):
        settled = asyncio.get_running_loop().create_future()
        await sender.wait_for_credit()
        sender.send(payload, message_format=message_format, on_settled=settled.set_result)
        connection.flush()
        async with asyncio.timeout(10):
            assert await settled is None
    await connection.close()


def metrics_of(server: Server) -> dict[str, float]:
    with urllib.request.urlopen(server["admin"] + "/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_metrics_count_what_was_published(start_server: ServerFactory) -> None:
    server = start_server("--hub", "events:4")
    asyncio.run(publish(server["emulator_connection_string"], 3))
    samples = metrics_of(server)
    assert samples[f"penstock_incoming_messages_total{HUB}"] == 15
    assert samples[f"penstock_successful_requests_total{HUB}"] == 3
    assert samples[f"penstock_publish_latency_seconds_count{HUB}"] == 3
    assert samples[f"penstock_partition_last_sequence_number{PARTITION}"] == 14
    assert samples[f"penstock_partition_size_bytes{PARTITION}"] > 0
    assert samples[f"penstock_partition_failed{PARTITION}"] == 0
    assert samples["penstock_opened_connections_total"] == 1
    for name in COUNTERS:
        assert f"penstock_{name}_total{HUB}" in samples
    buckets = [
        samples[f'penstock_flush_latency_seconds_bucket{{le="{s}"}}'] for s in FLUSH_BOUNDS_S
    ]
    assert buckets == sorted(buckets)
    assert samples["penstock_flush_latency_seconds_count"] >= 3
    assert samples["penstock_flush_latency_seconds_sum"] > 0


def test_requests_over_https_count_as_those_over_amqp(start_server: ServerFactory) -> None:
    server = start_server("--throughput-units", "1", "--hub", "events:4")
    door = http.client.HTTPSConnection(
        "localhost",
        server.port("https"),
        context=ssl.create_default_context(cafile=server["ca_file"]),
        timeout=30,
    )
    expires_s = int(time.time()) + 3600
    token = sign(
        server["https"], "RootManageSharedAccessKey", Secret(server.key), expires_s=expires_s
    )

    def post(path: str, body: bytes, **headers: str) -> int:
        door.request("POST", path, body, {"Authorization": token, **headers})
        answer = door.getresponse()
        answer.read()
        return answer.status

    many = json.dumps([{"Body": ""}] * 5_000).encode()
    statuses = [
        post("/events/messages", b"x"),
        post("/events/partitions/7/messages", b"x"),  # the hub's: its sender's error
        post("/events/messages", b"x", BrokerProperties="{"),
        post("/events/messages", b"x" * 262_145),
        post("/events/messages", b"x", Authorization=""),  # nobody's
        post("/nothing/messages", b"x"),
        post(f"/{'y' * 20}/messages", b"x"),
        # More than a second's worth is taken at once, and leaves a debt of some seconds.
        post("/events/messages", many, **{"Content-Type": BATCH}),
        post("/events/messages", b"x"),
    ]
    door.close()
    assert statuses == [201, 400, 400, 413, 401, 404, 404, 201, 503]
    samples = metrics_of(server)
    assert samples[f"penstock_user_errors_total{HUB}"] == 3
    assert samples[f"penstock_successful_requests_total{HUB}"] == statuses.count(201)
    assert samples[f"penstock_throttled_requests_total{HUB}"] == 1
    assert samples[f"penstock_server_errors_total{HUB}"] == 0
    for status in (201, 400, 401, 404, 413, 503):
        name = f'penstock_https_requests_total{{status="{status}"}}'
        assert samples[name] == statuses.count(status)
    assert not [name for name in samples if "yyyy" in name or "nothing" in name]


def test_every_metric_is_documented() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "guides", "operations.md").read_text()
    named = {f"penstock_{name}" for _, name, _ in (*BROKER_METRICS, *CAPTURE_METRICS)}
    assert [name for name in sorted(named) if name not in page] == []
    documented = set(re.findall(r"`(penstock_[a-z_]+)`", page))
    assert documented - named == set()
