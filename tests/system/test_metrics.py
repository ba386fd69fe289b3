"""`/metrics`: names as documented, numbers as published."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from pathlib import Path

from penstock.client import connect, parse_connection_string
from penstock.client.prepared import publication
from penstock.service.metrics import HUB_COUNTERS

PENSTOCK = str(Path(sys.executable).with_name("penstock"))
PORTS = ("--amqp-port=0", "--amqps-port=0", "--https-port=0", "--admin-port=0")


async def publish(connection_string: str, batches: int) -> None:
    connection = await connect(parse_connection_string(connection_string))
    await connection.authorise("events")
    sender = await connection.sender("events/Partitions/1")
    payload, message_format = publication(10, 5)
    for _ in range(batches):
        settled = asyncio.get_running_loop().create_future()
        await sender.has_credit()
        sender.send(payload, message_format=message_format, on_settled=settled.set_result)
        connection.flush()
        async with asyncio.timeout(10):
            assert await settled is None
    await connection.close()


def test_metrics_count_what_was_published(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [PENSTOCK, "serve", "--json", f"--data={tmp_path / 'data'}", *PORTS],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        facts = json.loads(process.stdout.readline())
        asyncio.run(publish(facts["emulator_connection_string"], 3))
        with urllib.request.urlopen(facts["admin"] + "/metrics", timeout=10) as answer:
            text = answer.read().decode()
    finally:
        process.terminate()
        process.communicate(timeout=30)
    samples = dict(
        line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#")
    )
    hub = '{hub="events",namespace="penstock"}'
    partition = '{hub="events",namespace="penstock",partition="1"}'
    assert samples[f"penstock_incoming_messages_total{hub}"] == "15.0"
    assert samples[f"penstock_successful_requests_total{hub}"] == "3.0"
    assert samples[f"penstock_publish_latency_seconds_count{hub}"] == "3.0"
    assert samples[f"penstock_partition_last_sequence_number{partition}"] == "14.0"
    assert samples[f"penstock_partition_failed{partition}"] == "0.0"
    assert samples["penstock_opened_connections_total"] == "1.0"
    for name in HUB_COUNTERS:
        assert f"{name}_total{hub}" in samples


def test_every_metric_is_documented() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "operations.md").read_text()
    source = Path(__file__).parents[2].joinpath("src/penstock/service/metrics.py").read_text()
    named = {word for word in source.split('"') if word.startswith("penstock_")}
    assert named
    assert [name for name in sorted(named) if name not in page] == []
