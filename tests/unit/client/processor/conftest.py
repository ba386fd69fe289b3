"""A store and a hub in memory for event processors, and a loop whose time is turned.

`TurnedLoop` jumps to the next timer whenever nothing else is to be done: minutes of leases and
back-offs pass in milliseconds, and in the same order every time.
"""

from __future__ import annotations

import asyncio
import itertools
import selectors
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, cast

import pytest

from penstock.client import (
    ClientError,
    ClientStolen,
    CloseReason,
    EventData,
    EventHubConsumerClient,
    EventPosition,
    EventProcessorClient,
    PartitionContext,
    PartitionProperties,
)

Record = dict[str, Any]
START_S = 1_700_000_000.0
INTERVAL_S, EXPIRATION_S = 10.0, 60.0


class TurnedSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everybody waits and no timer is set: this would hang"
        self.now_s += max(0.0, timeout)
        return super().select(0)


class TurnedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._turned = TurnedSelector()
        super().__init__(self._turned)

    def time(self) -> float:
        return self._turned.now_s


def turned(scene: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=TurnedLoop) as runner:
        runner.run(scene)


class LoopClock:
    """Both clocks are the loop's; a machine's may be wrong by `off_s`."""

    def __init__(self, off_s: float = 0.0) -> None:
        self.off_s = off_s

    def now_ms(self) -> int:
        return int((START_S + asyncio.get_running_loop().time() + self.off_s) * 1000)

    def monotonic_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)


class Store:
    """The official interface, asynchronous. It can be told to fail, to hang, to lose an answer."""

    def __init__(self, off_s: float = 0.0) -> None:
        self.owned: dict[str, Record] = {}
        self.saved: dict[str, Record] = {}
        self.clock = LoopClock(off_s)
        self.error: Exception | None = None
        self.lost_answers = 0
        self.hangs = False
        self.hands_back = False  # claims, as the official Blob store does after an error
        self.claims: list[tuple[float, str, str]] = []
        self.on_claim: Callable[[Record | None, Record], None] | None = None
        etags = itertools.count(1)
        self.new_etag: Callable[[], str] = lambda: str(next(etags))

    async def list_ownership(self, namespace: str, hub: str, group: str) -> Iterable[Record]:
        await self._reach()
        return (dict(each) for each in self.owned.values())  # an iterable, no more

    async def claim_ownership(self, ownership_list: Iterable[Record]) -> Iterable[Record]:
        await self._reach()
        if self.hands_back:
            return [dict(each) for each in ownership_list]
        won = [self._claim(dict(each)) for each in ownership_list]
        if self.lost_answers:
            self.lost_answers -= 1
            raise OSError("the answer was lost")
        return [each for each in won if each is not None]

    async def update_checkpoint(self, checkpoint: Record) -> None:
        await self._reach()
        self.saved[checkpoint["partition_id"]] = dict(checkpoint)

    async def list_checkpoints(self, namespace: str, hub: str, group: str) -> list[Record]:
        await self._reach()
        return [dict(each) for each in self.saved.values()]

    def set_owner(self, partition: int, owner: str) -> None:
        """Somebody else's claim."""
        self._write({"partition_id": str(partition), "owner_id": owner})

    def owners(self) -> dict[str, int]:
        counts: dict[str, int] = defaultdict(int)
        for each in self.owned.values():
            counts[each["owner_id"]] += 1
        return dict(counts)

    async def _reach(self) -> None:
        await asyncio.sleep(0.005)
        if self.hangs:
            await passes(10_000)
        if self.error is not None:
            raise self.error

    def _claim(self, wanted: Record) -> Record | None:
        before = self.owned.get(wanted["partition_id"])
        if (before or {}).get("etag") != wanted.get("etag"):
            return None
        now_s = asyncio.get_running_loop().time()
        if self.on_claim is not None:
            self.on_claim(before, wanted)
        self.claims.append((now_s, wanted["partition_id"], wanted["owner_id"]))
        return self._write(wanted)

    def _write(self, record: Record) -> Record:
        record |= {"etag": self.new_etag(), "last_modified_time": self.clock.now_ms() / 1000}
        self.owned[record["partition_id"]] = dict(record)
        return record


class Hub:
    """Partitions in memory; the newest reader of one is the only one (epoch 0, protocol.md 5.6)."""

    fully_qualified_namespace = "contoso.example"
    eventhub_name = "orders"
    consumer_group = "$Default"

    def __init__(self, partition_count: int) -> None:
        self.partitions: list[list[EventData]] = [[] for _ in range(partition_count)]
        self.readers: dict[str, MemoryReader] = {}
        self.opened: list[tuple[float, str, str]] = []
        self.error: ClientError | None = None
        self.takes = 0

    def send(self, partition: int, *bodies: str) -> None:
        events = self.partitions[partition]
        for body in bodies:
            event = EventData(body)
            event.sequence_number = len(events)
            event.offset = str(100 * len(events))
            events.append(event)
        if reader := self.readers.get(str(partition)):
            reader.news.set()

    async def get_partition_ids(self) -> list[str]:
        if self.error is not None:
            raise self.error
        return [str(number) for number in range(len(self.partitions))]

    async def get_partition_properties(self, partition_id: str) -> PartitionProperties:
        last = len(self.partitions[int(partition_id)]) - 1
        known: Any = {"last_enqueued_sequence_number": last}
        return known  # type: ignore[no-any-return]  # as much of it as is looked at

    def open_partition(
        self,
        partition_id: str,
        position: EventPosition,
        *,
        owner_level: int | None = None,
        prefetch: int = 1,
        track_last_enqueued: bool = False,
    ) -> MemoryReader:
        assert owner_level == 0
        now_s = asyncio.get_running_loop().time()
        self.opened.append((now_s, partition_id, position.selector))
        return MemoryReader(self, partition_id, position)


class MemoryReader:
    last_enqueued = None

    def __init__(self, hub: Hub, partition_id: str, position: EventPosition) -> None:
        self.news = asyncio.Event()
        self.error: Exception | None = None
        self.is_closed = False
        self._hub = hub
        self._partition_id = partition_id
        self._events = hub.partitions[int(partition_id)]
        self._next = _index(position)

    async def open(self) -> None:
        if self._hub.error is not None:
            raise self._hub.error
        before = self._hub.readers.get(self._partition_id)
        self._hub.readers[self._partition_id] = self
        if before is not None:
            before.fail(ClientStolen("New receiver with higher epoch of '0' is created"))

    def fail(self, error: Exception) -> None:
        self.error = error
        self.news.set()

    async def receive_batch(
        self, max_batch_size: int = 300, max_wait_time_s: float | None = None
    ) -> list[EventData]:
        self._hub.takes += 1
        self.news.clear()
        if self.error is None and self._next >= len(self._events):
            await asyncio.wait(
                [asyncio.ensure_future(self.news.wait())], timeout=max_wait_time_s or 60.0
            )
        if self.error is not None:
            raise self.error
        taken = self._events[self._next : self._next + max_batch_size]
        self._next += len(taken)
        return taken

    async def close(self) -> None:
        self.is_closed = True
        if self._hub.readers.get(self._partition_id) is self:
            del self._hub.readers[self._partition_id]


def _index(position: EventPosition) -> int:
    if position == EventPosition.earliest():
        return 0
    assert not position.inclusive and position.value != "@latest"
    if position.annotation == "x-opt-offset":
        return int(position.value) // 100 + 1
    return int(position.value) + 1


class User:
    """Handlers that write down what they hear; what they do beside that can be set."""

    def __init__(self) -> None:
        self.bodies: dict[str, list[str]] = defaultdict(list)
        self.errors: list[tuple[str | None, Exception]] = []
        self.initialized: list[str] = []
        self.closed: list[tuple[str, CloseReason]] = []
        self.ended_s: list[float] = []
        self.act: Callable[[PartitionContext, list[EventData]], Coroutine[Any, Any, None]] | None
        self.act = None

    async def on_events(self, context: PartitionContext, events: list[EventData]) -> None:
        self.bodies[context.partition_id] += [event.body_as_str() for event in events]
        if self.act is not None:
            try:
                await self.act(context, events)
            finally:
                self.ended_s.append(asyncio.get_running_loop().time())

    async def on_error(self, context: PartitionContext | None, error: Exception) -> None:
        self.errors.append((None if context is None else context.partition_id, error))

    async def on_initialize(self, context: PartitionContext) -> None:
        self.initialized.append(context.partition_id)

    async def on_close(self, context: PartitionContext, reason: CloseReason) -> None:
        self.closed.append((context.partition_id, reason))

    def processor(self, hub: Hub, store: Any, **options: Any) -> EventProcessorClient:
        given: dict[str, Any] = {
            "on_error": self.on_error,
            "on_partition_initialize": self.on_initialize,
            "on_partition_close": self.on_close,
            "load_balancing_interval_s": INTERVAL_S,
            "ownership_expiration_s": EXPIRATION_S,
            "starting_position": EventPosition.earliest(),
            "clock": LoopClock(),
        }
        on_events = options.pop("on_events", self.on_events)
        consumer = cast(EventHubConsumerClient, hub)  # it has the methods that a processor calls
        return EventProcessorClient(consumer, store, on_events, **given | options)


async def passes(seconds: float) -> None:
    """Time that is turned on, unless somebody has something to do before."""
    await asyncio.sleep(seconds)


async def until(condition: Callable[[], object], within_s: float = 1000.0) -> float:
    """How long it took, by the turned clock."""
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    while not condition():
        waited_s = loop.time() - begin_s
        assert waited_s < within_s, f"not within {waited_s} s"
        await asyncio.sleep(0.04)
    return loop.time() - begin_s


async def save(context: PartitionContext, events: list[EventData]) -> None:
    await context.update_checkpoint()


async def for_ever(context: PartitionContext, events: list[EventData]) -> None:
    await asyncio.Event().wait()


class Kit:
    """All of it, for tests (which cannot import this file)."""

    Hub = Hub
    Store = Store
    User = User
    LoopClock = LoopClock
    turned = staticmethod(turned)
    passes = staticmethod(passes)
    until = staticmethod(until)
    save = staticmethod(save)
    for_ever = staticmethod(for_ever)


@pytest.fixture(scope="session")
def memory() -> Kit:
    return Kit()
