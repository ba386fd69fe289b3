"""A processor's leases and checkpoints, over any store with the official interface (protocol.md
11.1): asynchronous ones are awaited, blocking ones called in threads of their own."""

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
_TICK_S = 1.0  # of a store whose times are whole seconds, as those of blobs


class CheckpointStore(Protocol):
    """The official interface. What is returned may be awaitable, or not."""

    def list_ownership(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str
    ) -> Any: ...
    def claim_ownership(self, ownership_list: list[Record]) -> Any: ...
    def update_checkpoint(self, checkpoint: Record) -> Any: ...
    def list_checkpoints(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str
    ) -> Any: ...


class LeaseLost(ClientError):
    """The partition is another processor's, or may be by now; nothing was written."""

    is_final = True


class ProcessorGroup(NamedTuple):
    """Whose leases these are; the order is the interface's."""

    fully_qualified_namespace: str
    eventhub_name: str
    consumer_group: str

    def record(self, partition_id: str) -> Record:
        return {**self._asdict(), "partition_id": partition_id}


class ProcessorCheckpoint(msgspec.Struct, frozen=True):
    """The last event that was processed."""

    offset: str
    sequence_number: int

    @property
    def position(self) -> EventPosition:
        """Behind it."""
        if self.offset:
            return EventPosition.from_offset(self.offset)
        return EventPosition.from_sequence_number(self.sequence_number)


class Lease:
    """One partition for a time. It ends earlier here than for others: it is counted from before
    the claim was sent, and a margin is taken off for clocks that differ and for stopping."""

    def __init__(self, partition_id: str, clock: Clock, lasts_s: float) -> None:
        self.partition_id = partition_id
        self.etag: str | None = None
        self._clock = clock
        self._lasts_ms = int(lasts_s * 1000)
        self._until_ms = (0, 0)

    def renew(self, etag: str, since_ms: tuple[int, int]) -> None:
        self.etag = etag
        self._until_ms = since_ms[0] + self._lasts_ms, since_ms[1] + self._lasts_ms

    def lose(self) -> None:
        self.etag = None
        self._until_ms = (0, 0)

    @property
    def remaining_s(self) -> float:
        """By the clock that counts fewer: the monotonic one stands still while a machine sleeps,
        the other one may be set back."""
        if self.etag is None:
            return 0.0
        now_ms = moment_ms(self._clock)
        left = min(until - now for until, now in zip(self._until_ms, now_ms, strict=True))
        return max(0, left) / 1000

    @property
    def is_over(self) -> bool:
        return self.remaining_s <= 0


class Leases:
    """What one processor holds of a group, and how far it came. Every call has a deadline, and
    raises what the store raises, or ClientTimedOut."""

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
        self._etags: dict[str, str | None] = {}  # as they were listed last
        self._ahead_s = 0.0  # the store's clock, of ours
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="penstock-leases")

    def now_s(self) -> float:
        """By the store's clock, as far as its answers told it: the times of leases are its."""
        return self._clock.now_ms() / 1000 + self._ahead_s

    async def look(self) -> list[PartitionOwnership]:
        """The leases of everybody in the group."""
        records: Iterable[Record] = await self._call(self._store.list_ownership, *self.group)
        found = [
            PartitionOwnership(
                str(record["partition_id"]),
                record.get("owner_id") or "",
                float(record.get("last_modified_time") or 0),
                record.get("etag"),
            )
            for record in records
        ]
        self._etags = {each.partition_id: each.etag for each in found}
        return found

    async def take(self, partition_ids: Iterable[str]) -> None:
        """Claim, steal or renew these by the etags that `look` saw. `held` has what was won, and no
        more what was lost. When this raises, nothing is known to have changed."""
        asked = {each: self._etags.get(each) for each in partition_ids}
        if not asked:
            return
        sent_ms = moment_ms(self._clock)
        won = await self._claim(asked, self.owner_id)
        received_ms = moment_ms(self._clock)
        for partition, etag in asked.items():
            record = won.get(partition)
            if record is None:
                self.drop(partition)
                continue
            got = record.get("etag")
            if got is None or got == etag:
                # The official Blob store hands a claim back that met an error (protocol.md 11.1):
                # neither won nor lost. What is held goes on until its time ends.
                continue
            self._learn(record, sent_ms[1] / 1000, received_ms[1] / 1000)
            lease = self.held.get(partition) or Lease(partition, self._clock, self._lasts_s)
            lease.renew(got, sent_ms)
            self.held[partition] = lease

    def drop(self, partition_id: str) -> None:
        """It is another's, or may be."""
        lease = self.held.pop(partition_id, None)
        if lease is not None:
            lease.lose()

    async def release(self, partition_ids: Iterable[str]) -> None:
        """Give these up, so that others need not wait for the leases to end."""
        asked = {
            each: lease.etag
            for each in partition_ids
            if (lease := self.held.get(each)) is not None and not lease.is_over
        }
        for partition in asked:
            self.drop(partition)  # before the store knows: nothing more is done in its name
        if asked:
            await self._claim(asked, "")

    async def checkpoints(self) -> dict[str, ProcessorCheckpoint]:
        """The group's, by partition."""
        records: Iterable[Record] = await self._call(self._store.list_checkpoints, *self.group)
        return {
            str(record["partition_id"]): ProcessorCheckpoint(
                str(record.get("offset") or ""), int(record["sequence_number"])
            )
            for record in records
        }

    async def save(self, lease: Lease, checkpoint: ProcessorCheckpoint) -> None:
        """Raises LeaseLost if the lease is over: another's checkpoint may not be overwritten."""
        if lease.is_over:
            raise LeaseLost(f"The lease of partition {lease.partition_id} is over.")
        record = {
            **self.group.record(lease.partition_id),
            "offset": checkpoint.offset,
            "sequence_number": checkpoint.sequence_number,
        }
        await self._call(self._store.update_checkpoint, record, within_s=lease.remaining_s)

    def close(self) -> None:
        """Threads that wait for a store end when it answers."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- inside ---------------------------------------------------------------------------------

    async def _claim(self, asked: dict[str, str | None], owner_id: str) -> dict[str, Record]:
        claims = []
        for partition, etag in asked.items():
            claim = {**self.group.record(partition), "owner_id": owner_id}
            if etag is not None:  # absent: create only if there is none (protocol.md 11.1)
                claim["etag"] = etag
            claims.append(claim)
        records: Iterable[Record] = await self._call(self._store.claim_ownership, claims)
        return {str(record["partition_id"]): record for record in records}

    def _learn(self, record: Record, sent_s: float, received_s: float) -> None:
        """The store wrote its time between our two; how far it is off, its clock is off."""
        modified_s = record.get("last_modified_time")
        if isinstance(modified_s, int | float):
            early_s = min(0.0, modified_s + _TICK_S - sent_s)
            self._ahead_s = early_s or max(0.0, modified_s - received_s)

    async def _call(self, act: Any, *given: Any, within_s: float | None = None) -> Any:
        seconds = self._call_s if within_s is None else within_s
        try:
            async with asyncio.timeout(seconds):
                if inspect.iscoroutinefunction(act):
                    return await act(*given)
                loop = asyncio.get_running_loop()
                answer = await loop.run_in_executor(self._threads, act, *given)
                return await answer if inspect.isawaitable(answer) else answer
        except TimeoutError:
            what = getattr(act, "__name__", "a call")
            raise ClientTimedOut(
                f"The checkpoint store did not answer {what} within {seconds:.1f} s."
            ) from None


def renewal_margin_s(expiration_s: float) -> float:
    """A tenth of the lease, but a second at least for stores whose times are whole seconds; and
    of a very short lease no more than a third."""
    return min(max(_TICK_S, expiration_s / 10), expiration_s / 3)


def moment_ms(clock: Clock) -> tuple[int, int]:
    return clock.monotonic_ms(), clock.now_ms()
