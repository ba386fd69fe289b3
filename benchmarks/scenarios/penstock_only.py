"""Workloads of Penstock alone: latency, many connections, a slow reader beside fast ones."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks.report.results import Results
from benchmarks.scenarios.comparison import BATCH, Tell, label, require_success
from benchmarks.systems.base import run
from benchmarks.systems.penstock import (
    BATCHES_IN_FLIGHT,
    HUB,
    PARTITIONS,
    SINGLES_IN_FLIGHT,
    Penstock,
)
from benchmarks.systems.process import measured

from penstock.client.connection import Connection
from penstock.client.load.consumer import end_to_end, receive
from penstock.client.load.measurements import LoadResult
from penstock.client.load.producer import LoadProfile, publish
from penstock.model.connection_string import Endpoint

CONNECTIONS = (1, 8, 64)
RATES = ((1_000, 1), (10_000, 1), (100_000, BATCH))  # events a second, in batches of
_SLOW_READS_PER_S = 5
_FAST_READERS = 2
_EVERY = [str(number) for number in range(PARTITIONS)]


def latency(place: Path, results: Results, *, rounds: int, seconds: float, tell: Tell) -> None:
    """One batch in flight, and events at fixed rates from sending to reading."""
    penstock = Penstock(place / "latency")
    try:
        for number in range(rounds):
            penstock.fresh()
            tell(f"latency, round {number + 1} of {rounds}: one batch in flight")
            row = results.row("publish 100 B batches, one in flight", penstock.name, size=100)
            with measured(penstock.broker) as cpu_s:
                result = run(penstock.publish(100, BATCH, seconds=seconds / 2, in_flight=1))
                row.add(require_success(result, row.workload), broker_cpu_s=cpu_s())
            for rate, batch in RATES:
                kind = "singles" if batch == 1 else "batches"
                tell(f"latency, round {number + 1} of {rounds}: {rate:,} a second {kind}")
                row = results.row(f"end to end, {rate:,}/s {kind}", penstock.name, size=100)
                with measured(penstock.broker) as cpu_s:
                    result = run(_end_to_end(penstock, rate, batch, seconds))
                    row.add(require_success(result, row.workload), broker_cpu_s=cpu_s())
                    if result.events_read != result.events:
                        raise RuntimeError(f"{row.workload}: read {result.events_read} of them")
    finally:
        penstock.close()


async def _end_to_end(penstock: Penstock, rate: int, batch: int, seconds: float) -> LoadResult:
    assert penstock.endpoint is not None
    load = LoadProfile(
        hub=HUB,
        partition=str(PARTITIONS - 1),
        size=100,
        batch=batch,
        in_flight=SINGLES_IN_FLIGHT if batch == 1 else BATCHES_IN_FLIGHT,
        duration_s=seconds,
        rate=rate,
    )
    return await end_to_end(penstock.endpoint, load, tls=None)


def many_connections(
    place: Path,
    results: Results,
    *,
    rounds: int,
    seconds: float,
    tell: Tell,
    counts: tuple[int, ...] = CONNECTIONS,
) -> None:
    """The same load from 1, 8 and 64 connections, over all partitions."""
    penstock = Penstock(place / "connections")
    try:
        for number in range(rounds):
            for count in counts:
                tell(f"{_connections(count)}, round {number + 1} of {rounds}")
                penstock.fresh()
                _with_connections(penstock, count, results, seconds)
    finally:
        penstock.close()


def _with_connections(penstock: Penstock, count: int, results: Results, seconds: float) -> None:
    stored = 0
    for batch, kind in ((1, "singles"), (BATCH, "batches")):
        name = f"publish 100 B {kind}, {_connections(count)}"
        row = results.row(name, penstock.name, size=100)
        with measured(penstock.broker) as cpu_s:
            result = require_success(run(_spread(penstock, batch, count, seconds)), name)
            row.add(result, broker_cpu_s=cpu_s())
            stored += result.events
    name = f"deliver 100 B, {_connections(count)}"
    row = results.row(name, penstock.name, size=100)
    with measured(penstock.broker) as cpu_s:
        result = run(_read(penstock, count, _EVERY, min(stored, 1_500_000)))
        row.add(require_success(result, name), broker_cpu_s=cpu_s())


def _connections(count: int) -> str:
    return f"{count} connection{'s' if count > 1 else ''} to {PARTITIONS} partitions"


async def _spread(penstock: Penstock, batch: int, count: int, seconds: float) -> LoadResult:
    assert penstock.endpoint is not None
    load = LoadProfile(
        hub=HUB,
        size=100,
        batch=batch,
        # All together about what one alone has: more connections, not more of everything.
        in_flight=(SINGLES_IN_FLIGHT if batch == 1 else 2 * BATCHES_IN_FLIGHT) // count,
        connections=count,
        duration_s=seconds,
    )
    return await publish(penstock.endpoint, load, tls=None)


async def _read(penstock: Penstock, count: int, partitions: list[str], events: int) -> LoadResult:
    assert penstock.endpoint is not None
    return await receive(
        penstock.endpoint,
        HUB,
        partitions=partitions,
        connections=count,
        events_max=events,
        tls=None,
    )


# --- a slow reader ------------------------------------------------------------------------------


class SlowConnection(Connection):
    """Takes what the socket holds a few times a second, and leaves the rest where it is."""

    def data_received(self, data: bytes | memoryview) -> None:
        super().data_received(data)
        if self.is_slow and self._socket is not None and not self._socket.is_closing():
            self._socket.pause_reading()
            self._loop.call_later(1 / _SLOW_READS_PER_S, self._resume)

    is_slow = False

    def _resume(self) -> None:
        if self._socket is not None and not self._socket.is_closing():
            self._socket.resume_reading()


def slow_reader(place: Path, results: Results, *, rounds: int, seconds: float, tell: Tell) -> None:
    """Two fast readers of one partition, alone and beside one that hardly reads."""
    penstock = Penstock(place / "slow")
    try:
        for number in range(rounds):
            tell(f"slow reader, round {number + 1} of {rounds}")
            penstock.fresh()
            stored = require_success(
                run(penstock.publish(100, BATCH, seconds=seconds)), "slow reader"
            )
            events = _FAST_READERS * min(stored.events, 750_000)
            for is_beside in (False, True):
                name = f"deliver {label(100)} to {_FAST_READERS} readers"
                name += ", beside a slow one" if is_beside else ""
                row = results.row(name, penstock.name, size=100)
                with measured(penstock.broker) as cpu_s:
                    result = run(_fast_readers(penstock, events, is_beside))
                    row.add(require_success(result, name), broker_cpu_s=cpu_s())
    finally:
        penstock.close()


async def _fast_readers(penstock: Penstock, events: int, is_beside: bool) -> LoadResult:
    endpoint = penstock.endpoint
    assert endpoint is not None
    slow = await _slow(endpoint) if is_beside else None
    try:
        return await _read(penstock, _FAST_READERS, ["0"], events)
    finally:
        if slow is not None:
            slow.is_slow = False
            await slow.close()


async def _slow(endpoint: Endpoint) -> SlowConnection:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(
        lambda: SlowConnection(endpoint, timeout_s=10.0), endpoint.host, endpoint.port
    )
    async with asyncio.timeout(10.0):
        await connection.opened
        await connection.cbs.attach()
    await connection.authorise(HUB)
    connection.is_slow = True
    await connection.receiver(
        f"{HUB}/ConsumerGroups/$Default/Partitions/0",
        credit=100_000,
        on_transfers=lambda _: None,
        selector="amqp.annotation.x-opt-offset > '-1'",
    )
    return connection
