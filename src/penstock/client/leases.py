"""Leases and checkpoints of a processor, over any store with the official interface (protocol.md
11.1): asynchronous stores are awaited, blocking ones called in threads."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import msgspec

from penstock.client.errors import ClientError, ClientTimedOut
from penstock.client.event_position import EventPosition
from penstock.client.load_balancer import PartitionOwnership
from penstock.model.clock import Clock

Record = dict[str, Any]
_THREADS = 4  # one for leases, the others for checkpoints
_CALL_S_MAX = 60.0
_TICK_S = 1.0  # resolution of the times of a blob store


class CheckpointStore(Protocol):
    """The official interface. The results may be awaitable."""

    def list_ownership(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str
    ) -> Any: ...
    def claim_ownership(self, ownership_list: list[Record]) -> Any: ...
    def update_checkpoint(self, checkpoint: Record) -> Any: ...
    def list_checkpoints(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str
    ) -> Any: ...


class LeaseLost(ClientError):
    """Another processor owns the partition, or may own it by now; nothing was written."""

    is_final = True


class ProcessorGroup(NamedTuple):
    """The consumer group of the leases, in the order of the interface's arguments."""

    fully_qualified_namespace: str
    eventhub_name: str
    consumer_group: str

    def record(self, partition_id: str) -> Record:
        return {**self._asdict(), "partition_id": partition_id}


class ProcessorCheckpoint(msgspec.Struct, frozen=True):
    """The last processed event."""

    offset: str
    sequence_number: int

    @property
    def position(self) -> EventPosition:
        """After it."""
        if self.offset:
            return EventPosition.from_offset(self.offset)
        return EventPosition.from_sequence_number(self.sequence_number)


class Lease:
    """The right to process one partition for a time. It ends earlier for its owner than for other
    processors: it begins before the claim is sent, and a margin covers differing clocks and the
    time to stop."""

    def __init__(self, partition_id: str, clock: Clock, lasts_s: float) -> None:
        self.partition_id = partition_id
        self.etag: str | None = None
        self._clock = clock
        self._lasts_ms = int(lasts_s * 1000)
        self._until_ms = (0, 0)  # by the monotonic clock and by the wall clock

    def renew(self, etag: str, since_ms: tuple[int, int]) -> None:
        self.etag = etag
        self._until_ms = since_ms[0] + self._lasts_ms, since_ms[1] + self._lasts_ms

    def lose(self) -> None:
        self.etag = None
        self._until_ms = (0, 0)

    @property
    def remaining_s(self) -> float:
        """By the clock with the shorter time: the monotonic clock stops while a machine sleeps, and
        the wall clock may be set back."""
        if self.etag is None:
            return 0.0
        now_ms = _read_clocks(self._clock)
        remaining = min(until - now for until, now in zip(self._until_ms, now_ms, strict=True))
        return max(0, remaining) / 1000

    @property
    def is_over(self) -> bool:
        return self.remaining_s <= 0


class Leases:
    """The leases of one processor in a group, and the group's checkpoints. Every call has a
    deadline. Raises the errors of the store, or ClientTimedOut."""

    def __init__(
        self,
        store: CheckpointStore,
        group: ProcessorGroup,
        owner_id: str,
        *,
        expiration_s: float,
        clock: Clock,
    ) -> None:
        self.held: dict[str, Lease] = {}
        self.group = group
        self.owner_id = owner_id
        self._store = store
        self._clock = clock
        self._lasts_s = expiration_s - renewal_margin_s(expiration_s)
        self._call_s = min(_CALL_S_MAX, self._lasts_s / 2)
        self._etags: dict[str, str | None] = {}  # as last listed
        self._ahead_s = 0.0  # how far the store's clock is ahead of ours
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="penstock-leases")

    def now_s(self) -> float:
        """The store's time, as far as its responses show it: the times of leases are its times."""
        return self._clock.now_ms() / 1000 + self._ahead_s

    async def list_ownerships(self) -> list[PartitionOwnership]:
        """The leases of all processors of the group."""
        records: Iterable[Record] = await self._call(self._store.list_ownership, *self.group)
        ownerships = [
            PartitionOwnership(
                str(record["partition_id"]),
                record.get("owner_id") or "",
                float(record.get("last_modified_time") or 0),
                record.get("etag"),
            )
            for record in records
        ]
        self._etags = {each.partition_id: each.etag for each in ownerships}
        return ownerships

    async def claim(self, partition_ids: Iterable[str]) -> None:
        """Claim, steal or renew these by the etags that `list_ownerships` returned. Afterwards
        `held` has the partitions that were won, and not those that were lost. When this raises, the
        outcome is unknown and `held` is unchanged."""
        etags = {partition: self._etags.get(partition) for partition in partition_ids}
        if not etags:
            return
        sent_ms = _read_clocks(self._clock)
        won = await self._claim(etags, self.owner_id)
        received_ms = _read_clocks(self._clock)
        for partition, etag in etags.items():
            record = won.get(partition)
            if record is None:
                self.drop(partition)
                continue
            new_etag = record.get("etag")
            if new_etag is None or new_etag == etag:
                # The official Blob store returns a claim that met an error (protocol.md 11.1):
                # neither won nor lost. A lease that is held stays until it expires.
                continue
            self._adjust_clock(record, sent_ms[1] / 1000, received_ms[1] / 1000)
            lease = self.held.get(partition) or Lease(partition, self._clock, self._lasts_s)
            lease.renew(new_etag, sent_ms)
            self.held[partition] = lease

    def drop(self, partition_id: str) -> None:
        """Another processor owns the partition, or may own it."""
        lease = self.held.pop(partition_id, None)
        if lease is not None:
            lease.lose()

    async def release(self, partition_ids: Iterable[str]) -> None:
        """Give these up, so that other processors need not wait until the leases expire."""
        etags = {
            partition: lease.etag
            for partition in partition_ids
            if (lease := self.held.get(partition)) is not None and not lease.is_over
        }
        for partition in etags:
            self.drop(partition)  # first here: afterwards nothing may be written for it
        if etags:
            await self._claim(etags, "")

    async def checkpoints(self) -> dict[str, ProcessorCheckpoint]:
        """The checkpoints of the group, by partition."""
        records: Iterable[Record] = await self._call(self._store.list_checkpoints, *self.group)
        return {
            str(record["partition_id"]): ProcessorCheckpoint(
                str(record.get("offset") or ""), int(record["sequence_number"])
            )
            for record in records
        }

    async def save(self, lease: Lease, checkpoint: ProcessorCheckpoint) -> None:
        """Raises LeaseLost if the lease is over: the new owner's checkpoint must not be
        overwritten."""
        if lease.is_over:
            raise LeaseLost(f"The lease of partition {lease.partition_id} is over.")
        record = {
            **self.group.record(lease.partition_id),
            "offset": checkpoint.offset,
            "sequence_number": checkpoint.sequence_number,
        }
        await self._call(self._store.update_checkpoint, record, within_s=lease.remaining_s)

    def close(self) -> None:
        """Does not wait for threads that wait for the store."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- inside ---------------------------------------------------------------------------------

    async def _claim(self, etags: dict[str, str | None], owner_id: str) -> dict[str, Record]:
        """The records of the claims that won, by partition."""
        claims = []
        for partition, etag in etags.items():
            claim = {**self.group.record(partition), "owner_id": owner_id}
            if etag is not None:  # without one: only if there is no record (protocol.md 11.1)
                claim["etag"] = etag
            claims.append(claim)
        records: Iterable[Record] = await self._call(self._store.claim_ownership, claims)
        return {str(record["partition_id"]): record for record in records}

    def _adjust_clock(self, record: Record, sent_s: float, received_s: float) -> None:
        """The store wrote its time between our two times; the difference is that of the clocks."""
        modified_s = record.get("last_modified_time")
        if isinstance(modified_s, int | float):
            early_s = min(0.0, modified_s + _TICK_S - sent_s)
            self._ahead_s = early_s or max(0.0, modified_s - received_s)

    async def _call(self, method: Any, *arguments: Any, within_s: float | None = None) -> Any:
        seconds = self._call_s if within_s is None else within_s
        try:
            async with asyncio.timeout(seconds):
                if inspect.iscoroutinefunction(method):
                    return await method(*arguments)
                loop = asyncio.get_running_loop()
                result = await loop.run_in_executor(self._threads, method, *arguments)
                return await result if inspect.isawaitable(result) else result
        except TimeoutError:
            what = getattr(method, "__name__", "a call")
            raise ClientTimedOut(
                f"The checkpoint store did not answer {what} within {seconds:.1f} s."
            ) from None


def renewal_margin_s(expiration_s: float) -> float:
    """A tenth of the lease, but at least a second for stores whose times are whole seconds, and at
    most a third of a very short lease."""
    return min(max(_TICK_S, expiration_s / 10), expiration_s / 3)


def _read_clocks(clock: Clock) -> tuple[int, int]:
    """Monotonic and wall clock in milliseconds."""
    return clock.monotonic_ms(), clock.now_ms()
