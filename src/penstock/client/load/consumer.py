"""Receiving for `penstock bench`: at full speed, or with the latency from send to receive."""

from __future__ import annotations

import asyncio
import secrets
import ssl
import time

from penstock.amqp.events import TransfersReceived
from penstock.client.errors import ClientError
from penstock.client.load.measurements import LoadResult
from penstock.client.load.producer import (
    STAMP,
    LoadProfile,
    Report,
    attach_producers,
    open_connections,
    run_producers,
    wait_for,
)
from penstock.model.connection_string import Endpoint

QUIET_S = 2.0  # a reader that received nothing for this long has read everything
_CREDIT = 20_000


class LoadConsumer:
    """Counts received events by runs of transfers; nothing is decoded."""

    def __init__(self, events_max: int | None) -> None:
        self.events = 0
        self.payload_bytes = 0
        self.last_s = 0.0
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._events_max = events_max
        self._timer: asyncio.TimerHandle | None = None

    def on_transfers(self, event: TransfersReceived) -> None:
        self.last_s = time.perf_counter()
        self.events += event.count
        self.payload_bytes += sum(event.bounds[1::2]) - sum(event.bounds[::2])
        if self._events_max is not None and self.events >= self._events_max:
            self.finish()

    def finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.finished.done():
            self.finished.set_result(None)

    def finish_when_quiet(self) -> None:
        """Finish after QUIET_S without an event."""
        loop = asyncio.get_running_loop()
        quiet_s = time.perf_counter() - self.last_s
        if quiet_s >= QUIET_S:
            self.finish()
        elif not self.finished.done():
            self._timer = loop.call_later(QUIET_S - quiet_s, self.finish_when_quiet)


async def receive(
    endpoint: Endpoint,
    hub: str,
    *,
    group: str = "$Default",
    partitions: list[str],
    connections: int = 1,
    credit: int = _CREDIT,
    events_max: int | None = None,
    duration_s: float = 60.0,
    tls: ssl.SSLContext | None,
    report: Report | None = None,
) -> LoadResult:
    """Read the partitions from their start until no event arrives, `events_max` have arrived, or
    the time is over. Raises ClientError."""
    consumer = LoadConsumer(events_max)
    async with open_connections(endpoint, hub, connections, tls=tls) as opened:
        started_s, cpu_s = time.perf_counter(), time.process_time()
        consumer.last_s = started_s
        # Every partition is read at least once, and every connection reads.
        receivers = [
            await opened[i % connections].receiver(
                f"{hub}/ConsumerGroups/{group}/Partitions/{partitions[i % len(partitions)]}",
                credit=credit,
                on_transfers=consumer.on_transfers,
                selector="amqp.annotation.x-opt-offset > '-1'",
            )
            for i in range(max(connections, len(partitions)))
        ]
        consumer.finish_when_quiet()
        ended = [consumer.finished, *(receiver.ended for receiver in receivers)]
        try:
            await wait_for(ended, duration_s, lambda: consumer.events, report, any_=True)
        finally:
            consumer.finish()
        cpu_s = time.process_time() - cpu_s
        for receiver in receivers:
            if receiver.error is not None:
                raise receiver.error
    if consumer.events == 0:
        raise ClientError(f"Nothing came from {hub} within {duration_s} s: publish first.")
    return LoadResult(
        events=consumer.events,
        payload_bytes=consumer.payload_bytes,
        seconds=max(consumer.last_s - started_s, 1e-9),
        cpu_seconds=cpu_s,
    )


class LatencyConsumer:
    """Measures the latency of the events with this run's mark; others are ignored. Python code runs
    per event, so this is for fixed rates."""

    def __init__(self, result: LoadResult, *, size: int, mark: bytes) -> None:
        self._result = result
        self._size = size
        self._mark = mark
        self._expected: int | None = None
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_transfers(self, event: TransfersReceived) -> None:
        now_s = time.perf_counter()
        data, size, result = event.data, self._size, self._result
        for stop in event.bounds[1::2]:
            if stop < size:
                continue
            mark, at_s = STAMP.unpack_from(data, stop - size)
            if mark == self._mark:
                result.events_read += 1
                result.deliveries.add((now_s - at_s) * 1000)
        self._finish_if_complete()

    def expect(self, events: int) -> None:
        """`finished` is done when that many events have arrived."""
        self._expected = events
        self._finish_if_complete()

    def _finish_if_complete(self) -> None:
        is_complete = self._expected is not None and self._result.events_read >= self._expected
        if is_complete and not self.finished.done():
            self.finished.set_result(None)


async def end_to_end(
    endpoint: Endpoint,
    load: LoadProfile,
    *,
    group: str = "$Default",
    tls: ssl.SSLContext | None,
    report: Report | None = None,
) -> LoadResult:
    """Publish to one partition and read it at the same time, in this process, so that both use the
    same clock. Raises ClientError, TimeoutError."""
    assert load.partition is not None
    mark, result = secrets.token_bytes(8), LoadResult()
    consumer = LatencyConsumer(result, size=load.size, mark=mark)
    async with open_connections(endpoint, load.hub, 1 + load.connections, tls=tls) as opened:
        receiver = await opened[0].receiver(
            f"{load.hub}/ConsumerGroups/{group}/Partitions/{load.partition}",
            credit=_CREDIT,
            on_transfers=consumer.on_transfers,
            selector="amqp.annotation.x-opt-offset > '@latest'",
        )
        producers = await attach_producers(opened[1:], load, result, mark=mark)
        await run_producers(producers, load, result, report)
        consumer.expect(result.events)
        await asyncio.wait([consumer.finished, receiver.ended], timeout=QUIET_S)
        if receiver.error is not None:
            raise receiver.error
        return result
