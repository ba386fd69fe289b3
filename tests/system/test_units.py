"""Throughput units by a real clock: what they hold, who is refused, who is slowed, who shares.

Each run takes PENSTOCK_UNITS_SECONDS (3), ten for the figures of the documents.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.amqp.performatives import Error
from penstock.client import connect, parse_connection_string
from penstock.client.endpoint import Endpoint
from penstock.client.load import Load, publish, receive
from penstock.client.measures import Result
from penstock.client.prepared import publication

if TYPE_CHECKING:
    from tests.conftest import NodeTools, Server, ServerFactory

SECONDS = float(os.environ.get("PENSTOCK_UNITS_SECONDS", "3"))
MB = 1_048_576
KB = 1024
UNITS = 2
BURST_S = 0.25  # what a bucket holds
PARTITIONS = [str(number) for number in range(4)]
NODE = Path(__file__).parents[1] / "compatibility" / "node"


def metered(start_server: ServerFactory, units: int = UNITS) -> Server:
    return start_server("--throughput-units", str(units), "--hub", "events:4")


def endpoint_of(server: Server) -> Endpoint:
    return parse_connection_string(server["emulator_connection_string"])


def load(*, size: int, batch: int, rate: float, partition: str | None = None) -> Load:
    """At twice what is allowed or so: what is refused is not sent again."""
    return Load(
        hub="events",
        size=size,
        batch=batch,
        rate=rate,
        partition=partition,
        in_flight=500,
        duration_s=SECONDS,
    )


def pressed(server: Server, *loads: Load) -> list[Result]:
    async def run() -> list[Result]:
        endpoint = endpoint_of(server)
        return await asyncio.gather(*(publish(endpoint, load, tls=None) for load in loads))

    return asyncio.run(run())


def stored(server: Server) -> int:
    """Events in the hub, by the service's own numbers."""
    with urllib.request.urlopen(server["admin"] + "/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    name = "penstock_partition_last_sequence_number"
    last = [line for line in lines if line.startswith(name) and 'hub="events"' in line]
    return sum(int(float(line.rpartition(" ")[2])) + 1 for line in last)


def assert_refused_as_busy(result: Result) -> None:
    assert result.errors > 0
    assert result.first_condition == "com.microsoft:server-busy"
    assert "Error code : 50002" in (result.first_error or "")


def test_two_units_hold_two_megabytes_a_second(start_server: ServerFactory) -> None:
    server = metered(start_server)
    (result,) = pressed(server, load(size=20_000, batch=1, rate=230))
    allowed = UNITS * MB * (SECONDS + BURST_S)
    assert result.payload_bytes == pytest.approx(allowed, rel=0.05)
    assert_refused_as_busy(result)
    assert stored(server) == result.events


def test_two_units_hold_two_thousand_events_a_second(start_server: ServerFactory) -> None:
    server = metered(start_server)
    (result,) = pressed(server, load(size=50, batch=10, rate=5_000))
    assert result.events == pytest.approx(UNITS * 1000 * (SECONDS + BURST_S), rel=0.05)
    assert_refused_as_busy(result)
    assert stored(server) == result.events


def test_one_partition_takes_one_units_worth(start_server: ServerFactory) -> None:
    server = metered(start_server, 4)
    (result,) = pressed(server, load(size=50, batch=10, rate=3_000, partition="2"))
    assert result.events == pytest.approx(1000 * (SECONDS + BURST_S), rel=0.05)
    assert_refused_as_busy(result)


def test_two_senders_share_within_ten_percent(start_server: ServerFactory) -> None:
    """One sends small and often, the other large and seldom, and each more than its half."""
    server = metered(start_server)
    small, large = pressed(
        server, load(size=8_000, batch=1, rate=300), load(size=100_000, batch=1, rate=25)
    )
    total = small.payload_bytes + large.payload_bytes
    assert total == pytest.approx(UNITS * MB * (SECONDS + BURST_S), rel=0.07)
    assert small.payload_bytes / total == pytest.approx(0.5, abs=0.05)
    assert stored(server) == small.events + large.events


def test_refusal_comes_at_once_and_the_same_send_is_taken_a_moment_later(
    start_server: ServerFactory,
) -> None:
    server = metered(start_server, 1)

    async def run() -> tuple[list[tuple[Error | None, float]], int]:
        connection = await connect(endpoint_of(server))
        await connection.authorise("events")
        sender = await connection.sender("events/Partitions/0")
        payload, message_format = publication(100_000, 1)
        outcomes: list[tuple[Error | None, float]] = []

        async def send() -> Error | None:
            loop = asyncio.get_running_loop()
            settled: asyncio.Future[Error | None] = loop.create_future()
            started_s = time.perf_counter()
            await sender.has_credit()
            sender.send(payload, message_format=message_format, on_settled=settled.set_result)
            connection.flush()
            async with asyncio.timeout(10):
                error = await settled
            outcomes.append((error, time.perf_counter() - started_s))
            return error

        taken = 0
        while await send() is None:  # until the bucket is empty
            taken += 1
        for _ in range(500):  # until it has room again
            if await send() is None:
                break
            await asyncio.sleep(0.02)
        await connection.close()
        return outcomes, taken + 1

    outcomes, taken = asyncio.run(run())
    refused = [(error, took_s) for error, took_s in outcomes if error is not None]
    assert all(error.condition == "com.microsoft:server-busy" for error, _ in refused)
    assert sorted(took_s for _, took_s in refused)[len(refused) // 2] < 0.5
    assert stored(server) == taken


def test_egress_holds_two_megabytes_a_second_for_each_unit_without_an_error(
    start_server: ServerFactory,
) -> None:
    """Published before the units are bought; then read by one who wants it all at once."""
    server = start_server("--hub", "events:4")
    events = int((UNITS * 2 * (SECONDS + BURST_S)) * MB / 10_000)
    flood = Load(hub="events", size=10_000, batch=20, in_flight=16, events_max=events)
    (written,) = pressed(server, flood)
    assert written.errors == 0
    server.stop()
    server = start_server("--throughput-units", str(UNITS), data=server.data)

    async def run() -> Result:
        return await receive(
            endpoint_of(server),
            "events",
            partitions=PARTITIONS,
            connections=2,
            events_max=written.events,
            tls=None,
        )

    result = asyncio.run(run())
    assert result.events == written.events  # nothing that was acknowledged is lost
    beyond_the_bucket = written.payload_bytes - UNITS * 2 * MB * BURST_S
    assert beyond_the_bucket / result.seconds == pytest.approx(UNITS * 2 * MB, rel=0.05)


def test_more_units_than_partitions_are_warned_of(start_server: ServerFactory) -> None:
    server = metered(start_server, 5)
    with urllib.request.urlopen(server["admin"] + "/ready", timeout=10) as answer:
        assert answer.status == 200
        (warning,) = json.load(answer)["warnings"]
    assert "holds 5 throughput units, but its event hubs have 4 partitions" in warning
    assert "holds 5 throughput units" in server.log.read_text()


AUTO_INFLATE = """
[[namespaces]]
name = "inflating"
throughput_units = 1
maximum_throughput_units = 3
[[namespaces.hubs]]
name = "events"
partition_count = 4
"""


def test_auto_inflate_raises_units_under_load_and_keeps_them(start_server: ServerFactory) -> None:
    server = start_server(config=AUTO_INFLATE)
    pressed(server, load(size=50, batch=10, rate=6_000))
    assert _metric(server, "penstock_throughput_units_limit") == 3
    server.stop()
    again = start_server(config=AUTO_INFLATE, data=server.data)
    assert _metric(again, "penstock_throughput_units_limit") == 3


def _metric(server: Server, name: str) -> float:
    with urllib.request.urlopen(server["admin"] + "/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{"))


@pytest.mark.sdk
def test_javascript_sdks_own_retries_succeed(start_server: ServerFactory, node: NodeTools) -> None:
    if not (NODE / "node_modules" / "@azure" / "event-hubs").is_dir():
        pytest.skip("the packages of tests/compatibility/node are not installed")
    server = metered(start_server, 1)
    sends = 15  # of 100 KB each: a unit takes two and a half of them at once, ten in a second
    asked = {
        "connectionString": server.connection_string(),
        "hub": "events",
        "sends": sends,
        "bytes": 100_000,
    }
    ended = subprocess.run(
        [node.node, str(NODE / "units.mjs")],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=90,
        env=node.environ,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told["first"] is None
    assert told["sent"] == sends
    assert _metric(server, "penstock_throttled_requests_total") > 0
    assert stored(server) == sends
