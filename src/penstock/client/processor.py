"""The event processor: shares a hub's partitions with others of its group, by leases in a store.

Every `load_balancing_interval_s` it lists the leases, renews its own, and claims or steals what it
lacks (`balancing`). Each partition that it holds has a pump (`pump`). A reader that is displaced
wakes the next round at once; the store is then asked whose the partition is.
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
from types import TracebackType
from typing import Self

from penstock.client.errors import ClientClosed, ClientError
from penstock.client.event_position import EventPosition
from penstock.client.leases import CheckpointStore, Leases, ProcessorGroup
from penstock.client.load_balancer import Strategy, decide
from penstock.client.partition_pump import (
    ConsumerClient,
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

_JITTER = 0.1  # processors that began together do not list and claim in step for ever
_AFTER_FAILURE = 0.25  # of the interval: a lease lasts two of them at least
_PARTITIONS_S = 300.0  # a hub of Azure's dedicated kind may get more
_STOP_S = 30.0  # for handlers that run when it is stopped
_ERROR_S = 30.0  # for the user's error handler
_inside: contextvars.ContextVar[object] = contextvars.ContextVar("penstock-processor")
_log = logging.getLogger(__name__)


class EventProcessorClient:
    """Made once, started once. The consumer and the store are the caller's to close, afterwards."""

    def __init__(
        self,
        consumer: ConsumerClient,
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
        `max_batch_size` at most; with `max_wait_time_s` also with an empty one when nothing came.
        Without a checkpoint a partition starts at `starting_position` (one for all, or by id), at
        its end when that is not given. `on_error(context or None, error)` hears of everything that
        went wrong; what can be tried again is. `clock` is for tests."""
        _check(load_balancing_interval_s, ownership_expiration_s, strategy)
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
        self._displaced: dict[str, int] = {}  # how often in a row, by a reader without a lease
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._is_started = False
        self._main: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<EventProcessorClient {self.owner_id} of {self._consumer.eventhub_name}>"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    @property
    def owned_partitions(self) -> list[str]:
        """The ids of those whose leases it holds now."""
        return [each for each, lease in self._leases.held.items() if not lease.is_over]

    async def run(self) -> None:
        """Until `stop` is called or this is cancelled: both let handlers end and give the leases
        back. Raises ClientError if it cannot begin (no such hub, not allowed)."""
        await self.start()
        assert self._main is not None
        try:
            await asyncio.shield(self._main)
        finally:
            await self.stop()

    async def start(self) -> None:
        """The same in the background; returns when the hub has answered."""
        if self._is_started:
            raise ClientClosed("A processor is started once: make another one.")
        self._is_started = True
        try:
            await self._find_partitions()
        except ClientError as error:
            if error.is_final:
                raise
            await self._report(None, error)
        self._main = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Handlers that run may end their work (30 s at most, and not beyond their leases), then
        the leases are given back at once. From inside a handler it only asks for that."""
        self._stopping.set()
        self._wake.set()
        for pump, _ in self._pumps.values():
            pump.finish()
        if _inside.get(None) is not self and self._main is not None:
            await asyncio.wait([self._main])

    # --- rounds ---------------------------------------------------------------------------------

    async def _run(self) -> None:
        _inside.set(self)  # and of every task that begins in here
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
        """How much of the interval to wait."""
        try:
            await self._round()
        except Exception as error:  # noqa: BLE001 - a store may raise anything
            await self._report(None, error)
            return _AFTER_FAILURE
        return 1 + _JITTER * (2 * random.random() - 1)  # noqa: S311 - no secret

    async def _round(self) -> None:
        leases = self._leases
        await self._find_partitions()
        ownerships = await leases.look()
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
            await leases.take([*decision.renew, *decision.claim, *decision.steal])
        finally:
            self._end_lost_pumps()
        await self._begin_pumps()

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

    async def _begin_pumps(self) -> None:
        """For what is held and has none: won just now, or displaced and found to be ours still."""
        if not self._leases.held.keys() - self._pumps.keys():
            return
        checkpoints = await self._leases.checkpoints()
        if self._stopping.is_set():
            return
        for partition in sorted(self._leases.held.keys() - self._pumps.keys()):
            times = self._displaced.get(partition, 0)
            pump = PartitionPump(
                self._work,
                self._leases.held[partition],
                self._leases,
                start=self._start_of(partition),
                checkpoint=checkpoints.get(partition),
                delay_s=restart_delay_s(times) if times else 0.0,
            )
            task = asyncio.create_task(pump.run())
            self._pumps[partition] = pump, task
            task.add_done_callback(functools.partial(self._on_pump_ended, partition))

    def _on_pump_ended(self, partition: str, task: asyncio.Task[None]) -> None:
        pump, _ = self._pumps.pop(partition)
        if not task.cancelled() and (fault := task.exception()) is not None:
            _log.error("The pump of partition %s failed.", partition, exc_info=fault)
        if pump.lease.is_over:
            if self._leases.held.get(partition) is pump.lease:
                self._leases.drop(partition)
            self._displaced.pop(partition, None)
        elif not self._stopping.is_set():
            self._displaced[partition] = 1 + (
                0 if pump.is_proven else self._displaced.get(partition, 0)
            )
        if isinstance(pump.error, ClientClosed):
            self._stopping.set()  # the consumer was closed: there is nothing to read with
        self._wake.set()

    def _start_of(self, partition: str) -> EventPosition:
        given = self._starting_position
        if isinstance(given, EventPosition):
            return given
        return (given or {}).get(partition, EventPosition.latest())

    async def _report(self, context: PartitionContext | None, error: Exception) -> None:
        """To the user, or to the log. Never raises."""
        if self._on_error is None:
            where = "load balancing" if context is None else f"partition {context.partition_id}"
            _log.warning("Processor %s, %s: %s", self.owner_id, where, error, exc_info=error)
            return
        # Between two rounds leases wait to be renewed.
        within_s = min(_ERROR_S, self._interval_s) if context is None else _ERROR_S
        try:
            async with asyncio.timeout(within_s):
                await self._on_error(context, error)
        except Exception:  # noqa: BLE001 - the user's code
            _log.exception("The error handler failed.")

    # --- the end --------------------------------------------------------------------------------

    async def _end(self) -> None:
        """Each lease is given back when its pump has ended: one slow handler delays no other."""
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
        except Exception as error:  # noqa: BLE001 - a store may raise anything; the lease will end
            await self._report(None, error)


def _check(interval_s: float, expiration_s: float, strategy: str) -> None:
    if not interval_s > 0:
        raise ArgumentError(f"load_balancing_interval_s is {interval_s}: it must be above 0.")
    if not expiration_s >= 2 * interval_s:
        raise ArgumentError(
            f"ownership_expiration_s is {expiration_s}: it must be at least twice "
            f"load_balancing_interval_s ({interval_s}), or leases end before they are renewed."
        )
    if strategy not in ("greedy", "balanced"):
        raise ArgumentError(f"strategy is '{strategy}': 'greedy' or 'balanced' is meant.")
