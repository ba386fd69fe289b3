"""`penstock.client` beside the official azure-eventhub (asyncio), in one run on one machine.

    python -m benchmarks.scenarios.client                    three rounds of each
    python -m benchmarks.scenarios.client --quick            one short round, to look
    python -m benchmarks.scenarios.client --flush os         the broker does not wait for the disk

The broker runs as a user runs it, on one core; all clients on another, one after the other, in this
process and on one event loop (uvloop). Both send 1 KB events in batches as large as the service
takes, each event an EventData made for the occasion, and read them from one partition's start.
Rates are by the wall clock; on a machine that is busy with other things look at the columns of CPU
microseconds, which the clients themselves used for an event. Exit code 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import uvloop
from benchmarks.systems.process import Broker, pin_generator

from penstock.client import (
    EventData,
    EventHubBufferedProducerClient,
    EventHubConsumerClient,
    EventHubProducerClient,
    EventPosition,
)

PENSTOCK = Path(sys.executable).with_name("penstock")
HUB = "events"
PARTITION = "0"
SIZE = 1024
IN_FLIGHT = 8  # batches of ours; the official SDK waits for each
SEND_TARGET, RECEIVE_TARGET, RATIO_TARGET = 150_000, 200_000, 10
DEADLINE_S = 120.0


class Measure(msgspec.Struct):
    """One run of one client."""

    events: int
    seconds: float
    cpu_s: float

    @property
    def rate(self) -> float:
        return self.events / self.seconds

    @property
    def cpu_us(self) -> float:
        return self.cpu_s / self.events * 1e6


Act = Callable[[str, int], Awaitable[None]]


async def measured(act: Act, connection_string: str, events: int) -> Measure:
    started_s, cpu_s = time.perf_counter(), time.process_time()
    async with asyncio.timeout(DEADLINE_S):
        await act(connection_string, events)
    return Measure(events, time.perf_counter() - started_s, time.process_time() - cpu_s)


# --- ours -----------------------------------------------------------------------------------------


async def send(connection_string: str, events: int) -> None:
    body = bytes(SIZE)
    left = events

    async def publish(producer: EventHubProducerClient) -> None:
        nonlocal left
        while left > 0:
            batch = await producer.create_batch(partition_id=PARTITION)
            while left > 0 and batch.try_add(EventData(body)):
                left -= 1
            await producer.send_batch(batch)

    async with EventHubProducerClient(connection_string, eventhub_name=HUB) as producer:
        await asyncio.gather(*(publish(producer) for _ in range(IN_FLIGHT)))


async def send_buffered(connection_string: str, events: int) -> None:
    body = bytes(SIZE)
    async with EventHubBufferedProducerClient(connection_string, eventhub_name=HUB) as producer:
        for _ in range(events):
            await producer.enqueue_event(EventData(body), partition_id=PARTITION)


async def receive_columns(connection_string: str, events: int) -> None:
    async with (
        EventHubConsumerClient(connection_string, eventhub_name=HUB) as consumer,
        consumer.open_partition(PARTITION, EventPosition.earliest()) as reader,
    ):
        while events > 0:
            columns = await reader.receive_columns()
            assert len(columns.bodies[0]) == SIZE
            events -= len(columns.bodies)


async def receive_events(connection_string: str, events: int) -> None:
    async with (
        EventHubConsumerClient(connection_string, eventhub_name=HUB) as consumer,
        consumer.open_partition(PARTITION, EventPosition.earliest()) as reader,
    ):
        while events > 0:
            batch = await reader.receive_batch(1000)
            assert len(batch[0].body) == SIZE
            events -= len(batch)


# --- the official SDK -----------------------------------------------------------------------------


async def official_send(connection_string: str, events: int) -> None:
    from azure.eventhub import EventData as OfficialEvent
    from azure.eventhub.aio import EventHubProducerClient as OfficialProducer

    body = bytes(SIZE)
    producer = OfficialProducer.from_connection_string(connection_string, eventhub_name=HUB)
    async with producer:
        while events > 0:
            batch = await producer.create_batch(partition_id=PARTITION)
            with contextlib.suppress(ValueError):  # full
                while events > 0:
                    batch.add(OfficialEvent(body))
                    events -= 1
            await producer.send_batch(batch)


async def official_receive(connection_string: str, events: int) -> None:
    from azure.eventhub import EventData as OfficialEvent
    from azure.eventhub.aio import EventHubConsumerClient as OfficialConsumer
    from azure.eventhub.aio import PartitionContext

    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    left = events

    async def on_batch(_: PartitionContext, batch: list[OfficialEvent]) -> None:
        nonlocal left
        left -= len(batch)
        if left <= 0 and not done.done():
            done.set_result(None)

    consumer = OfficialConsumer.from_connection_string(
        connection_string, "$Default", eventhub_name=HUB
    )
    async with consumer:
        receiving = asyncio.ensure_future(
            consumer.receive_batch(
                on_batch,
                partition_id=PARTITION,
                starting_position="-1",
                max_batch_size=1000,
                prefetch=3000,
            )
        )
        await done
        receiving.cancel()
        await asyncio.wait([receiving])


# --- the run --------------------------------------------------------------------------------------

WAYS: dict[str, tuple[Act, int]] = {  # and by how much fewer events than ours
    "send, batches": (send, 1),
    "send, buffered": (send_buffered, 2),
    "send, azure-eventhub": (official_send, 10),
    "receive, columns": (receive_columns, 1),
    "receive, EventData": (receive_events, 1),
    "receive, azure-eventhub": (official_receive, 10),
}


@contextlib.contextmanager
def broker(flush: str) -> Iterator[str]:
    """A broker of its own, on its core; the connection string."""
    with tempfile.TemporaryDirectory(prefix="penstock-client-") as folder:
        doors = [f"--{door}-port=0" for door in ("amqp", "amqps", "https", "admin")]
        command: list[str | Path] = [
            PENSTOCK,
            "serve",
            "--json",
            "--data",
            f"{folder}/data",
            *doors,
        ]
        running = Broker([*command, "--hub", f"{HUB}:4", "--flush", flush], stdout=subprocess.PIPE)
        try:
            stdout = running.process.stdout
            assert stdout is not None
            yield json.loads(stdout.readline())["emulator_connection_string"]
        finally:
            running.process.terminate()
            running.process.wait(30)


def run(rounds: int, events: int, flush: str) -> dict[str, list[Measure]]:
    results: dict[str, list[Measure]] = {name: [] for name in WAYS}
    for number in range(rounds):
        with broker(flush) as connection_string:
            for name, (act, fewer) in WAYS.items():
                print(f"round {number + 1} of {rounds}: {name}", file=sys.stderr)
                count = events // fewer
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    measure = runner.run(measured(act, connection_string, count))
                results[name].append(measure)
    return results


def report(results: dict[str, list[Measure]]) -> bool:
    """Print the table and the ratios; whether every target is reached."""
    print(f"{'':26}{'events/s':>12}{'lowest':>12}{'highest':>12}{'CPU µs':>10}")
    rate, cpu = {}, {}
    for name, measures in results.items():
        rates = [measure.rate for measure in measures]
        rate[name] = statistics.median(rates)
        cpu[name] = statistics.median(measure.cpu_us for measure in measures)
        print(
            f"{name:26}{rate[name]:>12,.0f}{min(rates):>12,.0f}{max(rates):>12,.0f}"
            f"{cpu[name]:>10.2f}"
        )
    reached = [
        _target("send, batches", rate["send, batches"], SEND_TARGET),
        _target("receive, columns", rate["receive, columns"], RECEIVE_TARGET),
    ]
    for ours, theirs in (
        ("send, batches", "send, azure-eventhub"),
        ("receive, columns", "receive, azure-eventhub"),
        ("receive, EventData", "receive, azure-eventhub"),
    ):
        ratio, cpu_ratio = rate[ours] / rate[theirs], cpu[theirs] / cpu[ours]
        print(f"{ours} : official = {ratio:.1f} (by CPU {cpu_ratio:.1f})")
        if ours != "receive, EventData":
            reached.append(_target(f"{ours}, ratio", ratio, RATIO_TARGET))
    return all(reached)


def _target(name: str, value: float, target: float) -> bool:
    print(f"{'reached' if value >= target else 'MISSED '} {name}: {value:,.1f} of {target:,}")
    return value >= target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--events", type=int, default=300_000, help="of 1 KB, in a round")
    parser.add_argument("--flush", choices=("disk", "os"), default="disk")
    parser.add_argument("--quick", action="store_true", help="one round of 100 000 events")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # the SDK's, of connections that it closes
    pin_generator()
    rounds, events = (1, 100_000) if options.quick else (options.rounds, options.events)
    sys.exit(0 if report(run(rounds, events, options.flush)) else 1)


if __name__ == "__main__":
    main()
