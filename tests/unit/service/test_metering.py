"""The ledger is written soon, whole and once; auto-inflate; the note about units that lie idle."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest
from tests.support.usage_ledger import MemoryUsageLedger

from penstock.broker.accounts import Account
from penstock.broker.broker import Broker
from penstock.catalog.api import Catalog
from penstock.log.memory import MemoryLogStore
from penstock.model.clock import ManualClock
from penstock.model.entities import Hub, Namespace, Tier
from penstock.model.errors import DataDirectoryError
from penstock.model.names import HubName, NamespaceName
from penstock.model.quotas import QuotaGrant, QuotaKind
from penstock.model.usage import HOUR_MS, Usage
from penstock.service import usage_recorder as module
from penstock.service.usage_recorder import UsageRecorder

NS = NamespaceName("contoso")
TEN = 480_000 * HOUR_MS


class Ledger(MemoryUsageLedger):
    """Tells of each write, and fails when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.failing = False
        self.writes: asyncio.Queue[int] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def record(self, counts: Sequence[Usage]) -> None:
        if self.failing:
            self._loop.call_soon_threadsafe(self.writes.put_nowait, -1)
            raise DataDirectoryError("The disk is full.")
        super().record(counts)
        self._loop.call_soon_threadsafe(self.writes.put_nowait, len(counts))


class World:
    def __init__(self, **namespace: object) -> None:
        self.clock = ManualClock(TEN)
        self.catalog = Catalog()
        made = Namespace(name=NS, created_ms=TEN, updated_ms=TEN)
        self.catalog.put_namespace(msgspec.structs.replace(made, **namespace))
        self.catalog.put_hub(
            Hub(
                id="h",
                namespace=NS,
                name=HubName("events"),
                partition_count=4,
                created_ms=TEN,
                updated_ms=TEN,
            )
        )
        self.ledger = Ledger()
        self.start_process("p1")

    def start_process(self, process: str) -> None:
        self.broker = Broker(
            self.catalog, MemoryLogStore(lambda work: None), self.clock, producer_ids=lambda: 1
        )
        self.metering = UsageRecorder(
            self.broker.accounts,
            self.catalog,
            self.ledger,
            clock=self.clock,
            loop=asyncio.get_running_loop(),
            process=process,
        )
        self.is_writing, self.passes = False, 0
        write = self.metering.task._work

        async def note_pass() -> str | None:
            self.is_writing = True
            try:
                return await write()
            finally:
                self.is_writing = False
                self.passes += 1

        self.metering.task._work = note_pass

    @property
    def account(self) -> Account:
        account = self.broker.accounts.find(NS)
        assert account is not None
        return account

    @property
    def namespace(self) -> Namespace:
        namespace = self.catalog.namespace(NS)
        assert namespace is not None
        return namespace

    def use(self, messages: int) -> None:
        self.account.meter.pass_to(self.clock.now_ms())
        self.account.meter.change()
        counters = self.broker.hub(NS, "events").counters
        counters.incoming_messages += messages
        counters.incoming_bytes += 10 * messages

    async def written(self) -> int:
        """The next write, once its pass is recorded: the ledger's thread tells of it before."""
        async with asyncio.timeout(60):
            count = await self.ledger.writes.get()
            passes = self.passes
            while self.is_writing and self.passes == passes:  # noqa: ASYNC110
                await asyncio.sleep(0)
        return count

    async def settle(self) -> None:
        """Wait until no write is due or under way: `start` changes counts, too."""
        async with asyncio.timeout(60):
            await asyncio.sleep(0)  # the task begins
            while self.metering.task._wake.is_set() or self.is_writing:  # noqa: ASYNC110
                await asyncio.sleep(0)

    def change(self, **changes: object) -> None:
        self.catalog.put_namespace(
            msgspec.structs.replace(self.namespace, updated_ms=self.clock.now_ms(), **changes)
        )


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WRITE_AFTER_S", "_RETRY_S", "_INFLATED_S", "_REFUSED_S"):
        monkeypatch.setattr(module, name, 0.0)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World(throughput_units=2)
    await made.metering.start()
    await made.settle()
    while not made.ledger.writes.empty():
        made.ledger.writes.get_nowait()
    yield made
    await made.metering.stop()


async def test_units_of_the_hour_are_in_the_ledger_when_it_starts() -> None:
    world = World(throughput_units=3)
    await world.metering.start()
    assert [(usage.hour_ms, usage.units) for usage in world.ledger.usage()] == [(TEN, 3)]
    await world.metering.stop()


async def test_what_is_used_is_written_soon_and_not_each_time(world: World) -> None:
    for _ in range(100):
        world.use(5)
    assert await world.written() == 1
    assert world.ledger.usage()[0].ingress_messages == 500
    assert world.ledger.writes.empty()


async def test_nothing_is_written_when_nothing_is_used(world: World) -> None:
    for _ in range(20):
        await asyncio.sleep(0)
    assert world.ledger.writes.empty()


async def test_what_is_left_is_written_at_the_end() -> None:
    world = World(throughput_units=1)
    await world.metering.start()
    world.use(7)
    await world.metering.stop()
    assert world.ledger.usage()[0].ingress_messages == 7
    world.use(1)  # nobody writes any more, and nobody breaks


async def test_write_that_fails_is_tried_again_and_counts_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.ledger.failing = True
    world.use(3)
    assert await world.written() == -1
    world.use(4)
    assert await world.written() == -1
    world.ledger.failing = False
    while await world.written() < 0:
        pass
    assert world.ledger.usage()[0].ingress_messages == 7
    assert "The disk is full." in caplog.text


async def test_disk_that_stays_full_does_not_hold_up_the_end() -> None:
    world = World(throughput_units=1)
    await world.metering.start()
    world.ledger.failing = True
    world.use(3)
    await world.metering.stop()
    assert world.ledger.usage()[0].ingress_messages == 0


async def test_processes_of_one_hour_are_added_up() -> None:
    world = World(throughput_units=1)
    await world.metering.start()
    world.use(3)
    await world.metering.stop()
    for process in ("p2", "p3"):
        world.start_process(process)
        await world.metering.start()
        world.use(4)
        await world.metering.stop()
    assert world.ledger.usage()[0].ingress_messages == 3 + 4 + 4


async def test_killed_process_loses_only_what_it_had_not_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.use(3)
    await world.written()
    monkeypatch.setattr(module, "WRITE_AFTER_S", 3600.0)
    world.use(4)
    killed = world.ledger.usage()
    assert [usage.ingress_messages for usage in killed] == [3]


async def test_units_bought_before_a_kill_are_in_the_ledger_after_it() -> None:
    world = World(throughput_units=2)
    world.clock.advance(HOUR_MS // 2)
    world.change(throughput_units=9)  # and the process is killed at once
    world.clock.advance(3 * HOUR_MS)
    world.start_process("p2")
    await world.metering.start()
    assert [(usage.hour_ms - TEN, usage.units) for usage in world.ledger.usage()] == [
        (0, 9),
        (3 * HOUR_MS, 9),
    ]
    await world.metering.stop()


@pytest.mark.parametrize("changes", [{"throughput_units": None}, {"tier": Tier.DEDICATED}])
async def test_namespace_without_enforced_units_has_bought_none(
    changes: dict[str, object],
) -> None:
    world = World(throughput_units=2)
    world.change(**changes)
    world.clock.advance(3 * HOUR_MS)
    world.start_process("p2")
    await world.metering.start()
    assert TEN not in [usage.hour_ms for usage in world.ledger.usage()]
    await world.metering.stop()


async def test_change_of_units_is_written_without_any_traffic(world: World) -> None:
    world.change(throughput_units=4)
    await world.written()
    assert world.ledger.usage()[0].units == 4


async def test_new_hour_is_written_when_it_turns(world: World) -> None:
    world.clock.advance(HOUR_MS)
    world.metering.task.wake()
    await world.written()
    assert [usage.hour_ms - TEN for usage in world.ledger.usage()] == [0, HOUR_MS]


async def test_time_is_looked_at_when_the_hour_turns_and_each_minute(world: World) -> None:
    assert world.metering._pause_s() == 60
    world.clock.advance(HOUR_MS - 1_500)
    assert world.metering._pause_s() == 1.5


# --- auto-inflate -------------------------------------------------------------------------------


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_units_are_raised_step_by_step_and_recorded(world: World) -> None:
    world.change(maximum_throughput_units=4)
    for expected in (3, 4, 4, 4):
        world.account._request_units()
        await settled()
        assert world.namespace.throughput_units == expected
    assert [(entry.who, entry.what) for entry in world.catalog.audit()] == [
        ("auto-inflate", "units.inflated")
    ] * 2
    assert world.catalog.audit()[0].detail == (
        "'contoso' holds 4 throughput units, after 3: at most 4"
    )
    assert world.account.throttle.units == 4


async def test_units_are_not_raised_without_a_maximum(world: World) -> None:
    world.account._request_units()
    await settled()
    assert world.namespace.throughput_units == 2
    assert world.catalog.audit() == []


async def test_units_are_raised_by_blocks_as_far_as_they_are_granted(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    grant = QuotaGrant(
        namespace=NS, kind=QuotaKind.THROUGHPUT_UNITS, value=60, granted_by="Ada", granted_ms=1
    )
    world.catalog.put_quota_grant(grant)
    world.change(throughput_units=20, maximum_throughput_units=60)
    world.account._request_units()
    await settled()
    assert world.namespace.throughput_units == 40
    world.change(throughput_units=20)
    world.catalog.delete_quota_grant(NS, QuotaKind.THROUGHPUT_UNITS, by="Bo", now_ms=2)
    world.account._request_units()
    await settled()
    assert world.namespace.throughput_units == 20
    assert "auto-inflate is refused" in caplog.text


async def test_namespace_that_is_gone_is_not_inflated(world: World) -> None:
    world.change(maximum_throughput_units=4)
    account = world.account
    account._request_units()
    world.catalog.delete_namespace(NS)
    await settled()
    assert world.catalog.namespaces() == []


# --- units that lie idle ------------------------------------------------------------------------


async def test_more_units_than_partitions_are_noted_and_logged_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    assert list(world.metering.notes) == []
    world.change(throughput_units=5)
    (note,) = list(world.metering.notes)
    assert "holds 5 throughput units, but its event hubs have 4 partitions in all" in note
    world.change(hosts=("localhost",))
    assert caplog.text.count("holds 5 throughput units") == 1
    world.change(throughput_units=4)
    assert world.metering.notes == ()


async def test_units_that_are_not_enforced_are_not_noted(world: World) -> None:
    world.change(throughput_units=5, tier=Tier.DEDICATED)
    assert world.metering.notes == ()
    world.change(throughput_units=None, tier=Tier.STANDARD)
    assert world.metering.notes == ()


async def test_error_that_nobody_foresaw_ends_one_pass_only(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that ends with an exception must not be the last pass."""
    failures = ["unexpected"]
    record = world.ledger.record

    def fail_once(counts: Sequence[Usage]) -> None:
        if failures:
            raise RuntimeError(failures.pop())
        record(counts)

    monkeypatch.setattr(world.ledger, "record", fail_once)
    world.use(3)
    assert await world.written() > 0
    assert not failures
    assert world.metering.task.report().warning is None


async def test_hour_that_cannot_be_passed_is_named_and_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(now_ms: int) -> None:
        raise RuntimeError("unexpected")

    with monkeypatch.context() as patched:
        patched.setattr(world.broker.accounts, "pass_to", fail)
        world.clock.advance(60_000)
        world.use(3)
        assert await world.written() == 1
    warning = world.metering.task.report().warning
    assert warning is not None
    assert "metering" in warning
    world.use(4)
    assert await world.written() == 1
    assert world.metering.task.report().warning is None


async def test_retry_of_a_failed_write_does_not_begin_while_the_last_one_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It once ran into the thread pool that had been shut down."""
    world = World(throughput_units=2)
    await world.metering.start()
    await world.settle()
    tries: list[str] = []
    let_go = threading.Event()

    def record(counts: Sequence[Usage]) -> None:
        tries.append("write")
        assert let_go.wait(30)
        raise DataDirectoryError("The disk is full.")

    monkeypatch.setattr(world.ledger, "record", record)
    world.use(1)
    async with asyncio.timeout(30):
        while not tries:  # noqa: ASYNC110 - a thread tells
            await asyncio.sleep(0)
        stopping = asyncio.create_task(world.metering.stop())
        await asyncio.sleep(0)
        let_go.set()
        await stopping
        await asyncio.sleep(0.01)  # a timer of zero seconds fires
    assert tries == ["write", "write"]
    assert "after shutdown" not in caplog.text
