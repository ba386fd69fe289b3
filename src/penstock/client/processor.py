"""The event processor: shares the partitions of a hub with others of its group, by leases.

Every `load_balancing_interval_s` it lists the leases in the store, renews its own, and claims or
steals the partitions that it lacks (`load_balancer`). Each partition that it owns has a pump
(`partition_pump`). A displaced reader starts the next round at once, which reads from the store
who owns the partition.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import logging
import random
import uuid
from collections.abc import Iterable, Mapping
from typing import Self

from penstock.client.consumer import EventHubConsumerClient
from penstock.client.errors import ClientClosed, ClientError
from penstock.client.event_position import EventPosition
from penstock.client.leases import CheckpointStore, Leases, ProcessorGroup
from penstock.client.load_balancer import Strategy, decide
from penstock.client.partition_pump import (
    OnClose,
    OnError,
    OnEvents,
    OnInitialize,
    PartitionContext,
    PartitionPump,
    PumpSettings,
    restart_delay_s,
)
from penstock.client.receiver import PREFETCH
from penstock.model.clock import Clock, SystemClock
from penstock.model.errors import ArgumentError

_JITTER = 0.1  # so that processors that started together do not stay synchronous
_AFTER_FAILURE = 0.25  # of the interval: a lease lasts at least two intervals
_PARTITIONS_S = 300.0  # a hub of a dedicated cluster may get more partitions
_STOP_S = 30.0  # for running handlers to end
_ERROR_S = 30.0  # for the user's error handler
_inside: contextvars.ContextVar[object] = contextvars.ContextVar("penstock-processor")
_log = logging.getLogger(__name__)


class EventProcessorClient:
    """Can be started once. The caller closes consumer and store afterwards."""

    def __init__(
        self,
        consumer: EventHubConsumerClient,
        checkpoint_store: CheckpointStore,
        on_events: OnEvents,
        *,
        on_error: OnError | None = None,
        on_partition_initialize: OnInitialize | None = None,
        on_partition_close: OnClose | None = None,
        load_balancing_interval_s: float = 10,
        ownership_expiration_s: float = 60,
        strategy: Strategy = "greedy",
        owner_level: int = 0,
        starting_position: EventPosition | Mapping[str, EventPosition] | None = None,
        max_batch_size: int = 300,
        max_wait_time_s: float | None = None,
        prefetch: int = PREFETCH,
        track_last_enqueued: bool = False,
        owner_id: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`on_events(context, events)` is called for one batch of a partition after the other, of
        at most `max_batch_size` events; with `max_wait_time_s` also with an empty batch when no
        event arrived in time. A partition without a checkpoint starts at `starting_position` (one
        for all, or by id), by default at its end. `on_error(context or None, error)` is called for
        every error, also for those that are retried. `clock` is for tests."""
        _check_options(load_balancing_interval_s, ownership_expiration_s, strategy)
        if max_batch_size < 1:
            raise ArgumentError(f"max_batch_size is {max_batch_size}: it must be at least 1.")
        self.owner_id = owner_id or str(uuid.uuid4())
        self._consumer = consumer
        self._on_error = on_error
        self._interval_s = load_balancing_interval_s
        self._expiration_s = ownership_expiration_s
        self._strategy: Strategy = strategy
        self._starting_position = starting_position
        self._work = PumpSettings(
            consumer=consumer,
            on_events=on_events,
            on_error=self._report,
            on_partition_initialize=on_partition_initialize,
            on_partition_close=on_partition_close,
            owner_level=owner_level,
            prefetch=prefetch,
            max_batch_size=max_batch_size,
            max_wait_time_s=max_wait_time_s,
            track_last_enqueued=track_last_enqueued,
        )
        names = consumer.fully_qualified_namespace, consumer.eventhub_name, consumer.consumer_group
        self._leases = Leases(
            checkpoint_store,
            ProcessorGroup(*names),
            self.owner_id,
            expiration_s=ownership_expiration_s,
            clock=clock or SystemClock(),
        )
        self._partitions: list[str] = []
        self._partitions_until_s = 0.0
        self._pumps: dict[str, tuple[PartitionPump, asyncio.Task[None]]] = {}
        self._displaced: dict[str, int] = {}  # times in a row by a reader without a lease
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._is_started = False
        self._main: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<EventProcessorClient {self.owner_id} of {self._consumer.eventhub_name}>"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    @property
    def owned_partitions(self) -> list[str]:
        """The ids of the partitions whose leases it holds now."""
        leases = self._leases.held
        return [partition for partition, lease in leases.items() if not lease.is_over]

    async def run(self) -> None:
        """Run until `stop` is called or this call is canceled: both let handlers end and release
        the leases. Raises ClientError if it cannot start (no such hub, no right)."""
        await self.start()
        assert self._main is not None
        try:
            await asyncio.shield(self._main)
        finally:
            await self.stop()

    async def start(self) -> None:
        """Run in the background; returns when the hub has answered. Raises as `run` does."""
        if self._is_started:
            raise ClientClosed("A processor can be started once: create another one.")
        self._is_started = True
        try:
            await self._find_partitions()
        except ClientError as error:
            if error.is_final:
                raise
            await self._report(None, error)
        self._main = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Let running handlers end (within 30 s and their leases), then release the leases. Called
        by a handler, it does not wait for that."""
        self._stopping.set()
        self._wake.set()
        for pump, _ in self._pumps.values():
            pump.finish()
        if _inside.get(None) is not self and self._main is not None:
            await asyncio.wait([self._main])

    # --- rounds ---------------------------------------------------------------------------------

    async def _run(self) -> None:
        _inside.set(self)  # also for every task that is created below
        try:
            while not self._stopping.is_set():
                self._wake.clear()
                pause_s = self._interval_s * await self._try_round()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._wake.wait()
        finally:
            await self._end()

    async def _try_round(self) -> float:
        """Returns the share of the interval to wait for."""
        try:
            await self._round()
        except Exception as error:  # noqa: BLE001 - a store may raise anything
            await self._report(None, error)
            return _AFTER_FAILURE
        return 1 + _JITTER * (2 * random.random() - 1)  # noqa: S311 - no secret

    async def _round(self) -> None:
        leases = self._leases
        await self._find_partitions()
        ownerships = await leases.list_ownerships()
        decision = decide(
            ownerships,
            self._partitions,
            owner_id=self.owner_id,
            held=list(leases.held),
            now_s=leases.now_s(),
            expiration_s=self._expiration_s,
            strategy=self._strategy,
        )
        for partition in decision.relinquish:
            leases.drop(partition)
        self._end_lost_pumps()
        if self._stopping.is_set():
            return
        try:
            await leases.claim([*decision.renew, *decision.claim, *decision.steal])
        finally:
            self._end_lost_pumps()
        await self._start_pumps()

    async def _find_partitions(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._partitions and now_s < self._partitions_until_s:
            return
        self._partitions = await self._consumer.get_partition_ids()
        self._partitions_until_s = now_s + _PARTITIONS_S

    def _end_lost_pumps(self) -> None:
        for partition, (pump, _) in self._pumps.items():
            if self._leases.held.get(partition) is not pump.lease or pump.lease.is_over:
                pump.lose()

    async def _start_pumps(self) -> None:
        """For leases without a pump: new ones, and those whose reader was displaced although the
        store still names this processor as the owner."""
        if not self._leases.held.keys() - self._pumps.keys():
            return
        checkpoints = await self._leases.checkpoints()
        if self._stopping.is_set():
            return
        for partition in sorted(self._leases.held.keys() - self._pumps.keys()):
            displacements = self._displaced.get(partition, 0)
            pump = PartitionPump(
                self._work,
                self._leases.held[partition],
                self._leases,
                start=self._starting_position_for(partition),
                checkpoint=checkpoints.get(partition),
                delay_s=restart_delay_s(displacements) if displacements else 0.0,
            )
            task = asyncio.create_task(pump.run())
            self._pumps[partition] = pump, task
            task.add_done_callback(functools.partial(self._on_pump_ended, partition))

    def _on_pump_ended(self, partition: str, task: asyncio.Task[None]) -> None:
        pump, _ = self._pumps.pop(partition)
        if not task.cancelled() and (fault := task.exception()) is not None:
            _log.error("partition pump failed: partition=%s", partition, exc_info=fault)
        if pump.lease.is_over:
            if self._leases.held.get(partition) is pump.lease:
                self._leases.drop(partition)
            self._displaced.pop(partition, None)
        elif not self._stopping.is_set():
            self._displaced[partition] = 1 + (
                0 if pump.is_proven else self._displaced.get(partition, 0)
            )
        if isinstance(pump.error, ClientClosed):
            self._stopping.set()  # the caller closed the consumer
        self._wake.set()

    def _starting_position_for(self, partition: str) -> EventPosition:
        positions = self._starting_position
        if isinstance(positions, EventPosition):
            return positions
        return (positions or {}).get(partition, EventPosition.latest())

    async def _report(self, context: PartitionContext | None, error: Exception) -> None:
        """Call the user's error handler, or log the error. Never raises."""
        if self._on_error is None:
            partition = "-" if context is None else context.partition_id
            _log.warning(
                "processor error: owner=%s partition=%s error=%s",
                *(self.owner_id, partition, error),
                exc_info=error,
            )
            return
        # Without a context the load balancer waits for this, and leases must be renewed.
        within_s = min(_ERROR_S, self._interval_s) if context is None else _ERROR_S
        try:
            async with asyncio.timeout(within_s):
                await self._on_error(context, error)
        except Exception:  # noqa: BLE001 - the user's code
            _log.exception("error handler of the processor failed: owner=%s", self.owner_id)

    # --- the end --------------------------------------------------------------------------------

    async def _end(self) -> None:
        """Release each lease when its pump has ended, so that a slow handler delays no other."""
        loop = asyncio.get_running_loop()
        ending = {task: partition for partition, (_, task) in self._pumps.items()}
        for pump, _ in list(self._pumps.values()):
            pump.finish()
        await self._release(self._leases.held.keys() - set(ending.values()))
        until_s = loop.time() + _STOP_S
        while ending:
            done, _ = await asyncio.wait(
                ending, timeout=max(0.0, until_s - loop.time()), return_when="FIRST_COMPLETED"
            )
            if not done:
                break
            await self._release([ending.pop(task) for task in done])
        for partition in ending.values():
            self._pumps[partition][0].abort()
        if ending:
            await asyncio.wait(ending)
            await self._release(ending.values())
        self._leases.close()

    async def _release(self, partitions: Iterable[str]) -> None:
        try:
            await self._leases.release(partitions)
        except Exception as error:  # noqa: BLE001 - a store may raise anything; the lease expires
            await self._report(None, error)


def _check_options(interval_s: float, expiration_s: float, strategy: str) -> None:
    if not interval_s > 0:
        raise ArgumentError(f"load_balancing_interval_s is {interval_s}: it must be above 0.")
    if not expiration_s >= 2 * interval_s:
        raise ArgumentError(
            f"ownership_expiration_s is {expiration_s}: it must be at least twice "
            f"load_balancing_interval_s ({interval_s}), or leases end before they are renewed."
        )
    if strategy not in ("greedy", "balanced"):
        raise ArgumentError(f"strategy is '{strategy}': it must be 'greedy' or 'balanced'.")
