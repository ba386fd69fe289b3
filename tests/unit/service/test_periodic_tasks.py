"""Long-lived tasks: a failure ends one item or one pass, never the task; late passes are named."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from penstock.broker.broker import Broker
from penstock.catalog.api import Catalog
from penstock.log.memory import MemoryLogStore
from penstock.model.clock import ManualClock
from penstock.model.entities import Hub, Namespace
from penstock.model.names import HubName, NamespaceName
from penstock.service.periodic_tasks import PeriodicTask
from penstock.service.retention import PARTITIONS_PER_TURN, enforce_retention

NS = NamespaceName("contoso")
DEADLINE_S = 30


class Pass:
    """A pass that raises the given errors, one each time it runs, and then succeeds."""

    def __init__(self, errors: Sequence[BaseException] = ()) -> None:
        self.errors = list(errors)
        self.ran: asyncio.Queue[int] = asyncio.Queue()
        self._count = 0

    async def __call__(self) -> str | None:
        self._count += 1
        self.ran.put_nowait(self._count)
        if self.errors:
            raise self.errors.pop(0)
        return None

    async def next(self) -> int:
        async with asyncio.timeout(DEADLINE_S):
            return await self.ran.get()


@pytest.mark.parametrize(
    "error", [OSError(24, "Too many open files"), asyncio.CancelledError(), AssertionError()]
)
async def test_pass_that_raises_is_named_and_the_next_one_runs(error: BaseException) -> None:
    work = Pass([error])
    task = PeriodicTask("retention", work, ManualClock(), interval_s=600)
    task.start()
    assert await work.next() == 1
    await asyncio.sleep(0)
    warning = task.report().warning
    assert warning is not None
    assert "retention" in warning
    assert type(error).__name__ in warning
    task.wake()
    assert await work.next() == 2
    await asyncio.sleep(0)
    assert task.report().warning is None
    await task.close()


async def test_task_that_ends_is_named_and_started_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Pass()
    task = PeriodicTask("retention", work, ManualClock(), interval_s=600)

    async def broken(task: PeriodicTask) -> None:
        raise RuntimeError("outside every guard")

    with monkeypatch.context() as patched:
        patched.setattr(PeriodicTask, "run_once", broken)
        task.start()
        await asyncio.sleep(0)
    assert await work.next() == 1
    assert "task_ended task=retention" in caplog.text
    await task.close()


async def test_task_that_is_woken_and_closed_at_once_ends() -> None:
    work = Pass()
    task = PeriodicTask("retention", work, ManualClock(), interval_s=600)
    task.start()
    await work.next()
    await asyncio.sleep(0)
    task.wake()
    async with asyncio.timeout(DEADLINE_S):
        await task.close()


async def test_pass_is_late_after_three_intervals() -> None:
    clock = ManualClock()
    task = PeriodicTask("metering", Pass(), clock, interval_s=60)
    assert task.report().seconds_ago is None
    await task.run_once()
    clock.advance(179_000)
    assert task.report().seconds_ago == 179
    assert task.report().warning is None
    clock.advance(2_000)
    assert task.report().warning == (
        "metering: the last complete pass was 181 s ago; one is expected every 60 s."
    )


def test_pass_that_never_ran_is_late_too() -> None:
    clock = ManualClock()
    task = PeriodicTask("metering", Pass(), clock, interval_s=60)
    clock.advance(181_000)
    warning = task.report().warning
    assert warning is not None
    assert "the last complete pass was never" in warning


class FailingLogs(MemoryLogStore):
    """Counts hubs per event-loop turn; fails for some of them."""

    def __init__(self) -> None:
        super().__init__(lambda work: None)
        self.failing: set[str] = set()
        self.turns: list[tuple[int, str]] = []
        self.turn = 0

    def enforce_retention(self, hub_id: str, *, retention_ms: int, now_ms: int) -> int:
        self.turns.append((self.turn, hub_id))
        if hub_id in self.failing:
            raise OSError(24, "Too many open files")
        return super().enforce_retention(hub_id, retention_ms=retention_ms, now_ms=now_ms)

    async def count_turns(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)


def broker_of(logs: FailingLogs, hubs: int, partitions: int) -> Broker:
    catalog = Catalog()
    catalog.put_namespace(Namespace(name=NS, created_ms=0, updated_ms=0))
    for number in range(hubs):
        catalog.put_hub(
            Hub(
                id=f"{number:032}",
                namespace=NS,
                name=HubName(f"hub-{number:04}"),
                partition_count=partitions,
                created_ms=0,
                updated_ms=0,
            )
        )
    return Broker(catalog, logs, ManualClock(), producer_ids=lambda: 1)


async def test_retention_goes_on_after_a_hub_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    logs = FailingLogs()
    broker = broker_of(logs, hubs=5, partitions=2)
    logs.failing = {f"{1:032}", f"{3:032}"}
    problem = await enforce_retention(broker)
    assert [hub_id for _, hub_id in logs.turns] == [f"{number:032}" for number in range(5)]
    assert problem is not None
    assert "contoso/hub-0001" in problem
    assert "1 more" in problem
    assert "retention_failed hub=contoso/hub-0003" in caplog.text


@pytest.mark.parametrize("partitions", [2, 24])
async def test_retention_handles_a_bounded_number_of_partitions_per_turn(partitions: int) -> None:
    logs = FailingLogs()
    broker = broker_of(logs, hubs=300, partitions=partitions)
    counting = asyncio.create_task(logs.count_turns())
    assert await enforce_retention(broker) is None
    counting.cancel()
    assert len(logs.turns) == 300
    hubs_of_turn = [0] * (logs.turn + 1)
    for turn, _ in logs.turns:
        hubs_of_turn[turn] += 1
    assert max(hubs_of_turn) * partitions < PARTITIONS_PER_TURN + partitions
