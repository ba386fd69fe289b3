"""Work budgets: which work is done at once, which waits, in which order, and what is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from penstock.gateway.guard import WorkBudget, WorkQueue
from penstock.model import limits
from penstock.model.clock import ManualClock

SHARE = limits.WORK_QUEUE_PERCENT / 100
BURST = limits.WORK_QUEUE_BURST_US


class Loop:
    """`call_later` on a manual clock."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self._timers: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay_s: float, work: Callable[[], None]) -> object:
        timer = (self.clock.monotonic_ms() + delay_s * 1000, work)
        self._timers.append(timer)
        return timer

    def advance(self, milliseconds: int) -> None:
        for _ in range(milliseconds):
            self.clock.advance(1)
            now_ms = self.clock.monotonic_ms()
            due = [timer for timer in self._timers if timer[0] <= now_ms]
            self._timers = [timer for timer in self._timers if timer[0] > now_ms]
            for _, work in due:
                work()


class Office:
    """A work queue, its loop, and connections that do pieces of work of a given cost."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.loop = Loop(self.clock)
        self.queue = WorkQueue(cast(asyncio.AbstractEventLoop, self.loop), self.clock)
        self.dropped: list[WorkBudget] = []

    def budget(self, address: str = "192.0.2.1", *, authenticated: bool = False) -> WorkBudget:
        budget = WorkBudget(self.queue, address, on_drop=lambda: self.dropped.append(budget))
        if authenticated:
            budget.authenticate()
        return budget


class Worker:
    """Has endless work in pieces of one cost, and counts the pieces done."""

    def __init__(self, budget: WorkBudget, cost_us: int) -> None:
        self.budget = budget
        self.cost_us = cost_us
        self.pieces = 0

    def work(self, pieces: int = 1_000_000) -> None:
        for _ in range(pieces):
            if not self.budget.may_work():
                self.budget.wait(self.work)
                return
            self.pieces += 1
            self.budget.charge(self.cost_us, self.cost_us)


@pytest.fixture
def office() -> Office:
    return Office()


# --- at once ------------------------------------------------------------------------------------


def test_an_authenticated_connection_has_a_burst(office: Office) -> None:
    worker = Worker(office.budget(authenticated=True), 1000)
    worker.work()
    assert worker.pieces == limits.WORK_BURST_US // 1000 + 1 + BURST // 1000
    assert worker.budget.entries


def test_useful_work_pays_for_itself(office: Office) -> None:
    """Thousands of small sends: 100 us each, as measured, never wait."""
    budget = office.budget(authenticated=True)
    for _ in range(10_000):
        assert budget.is_within
        budget.pay(1, 100)
        budget.charge(120, 120)
    assert budget.is_within


def test_useful_work_does_not_pay_for_costly_shapes(office: Office) -> None:
    """One event of 150 KB whose check takes 50 ms is one event (docs/explanation/security.md)."""
    budget = office.budget(authenticated=True)
    for _ in range(3):
        budget.pay(1, 150_000)
        budget.charge(50_000, 50_000)
    assert not budget.is_within


def test_time_refills_an_authenticated_budget(office: Office) -> None:
    budget = office.budget(authenticated=True)
    budget.charge(limits.WORK_BURST_US + 1000, limits.WORK_BURST_US + 1000)
    assert not budget.is_within
    office.clock.advance(limits.WORK_BURST_US // 1000 * 100 // limits.WORK_REFILL_PERCENT)
    budget.charge(0, 0)
    assert budget.is_within


def test_unauthenticated_work_is_done_at_once_while_the_queue_is_free(office: Office) -> None:
    worker = Worker(office.budget(), 500)
    worker.work(20)
    assert worker.pieces == 20
    assert not worker.budget.entries


# --- in turn ------------------------------------------------------------------------------------


def test_all_unauthenticated_work_together_gets_a_share(office: Office) -> None:
    workers = [Worker(office.budget(f"192.0.2.{n}"), 400) for n in range(200)]
    for worker in workers:
        worker.work()
    office.loop.advance(5000)
    done_us = sum(worker.pieces for worker in workers) * 400
    assert 5000 * 1000 * SHARE * 0.9 < done_us <= 5000 * 1000 * SHARE + BURST + 400


def test_a_process_that_was_stopped_does_not_owe_that_time(office: Office) -> None:
    """The machine gave this process no time for a minute, in the middle of a piece of work."""
    office.budget("192.0.2.1").charge(100, 60_000_000)
    newcomer = Worker(office.budget("192.0.2.2"), 1000)
    newcomer.work(1)
    office.loop.advance(1000)
    assert newcomer.pieces > 0


def test_addresses_take_turns(office: Office) -> None:
    crowd = [Worker(office.budget("192.0.2.1"), 1000) for _ in range(50)]
    alone = Worker(office.budget("192.0.2.2"), 1000)
    for worker in [*crowd, alone]:
        worker.work()
    before = sum(worker.pieces for worker in crowd)
    office.loop.advance(500)
    after = sum(worker.pieces for worker in crowd)
    assert abs(alone.pieces - (after - before)) <= 2


def test_a_newcomer_passes_those_of_its_address_that_used_more(office: Office) -> None:
    crowd = [Worker(office.budget(), 2000) for _ in range(50)]
    for worker in crowd:
        worker.work()
    office.loop.advance(2000)
    newcomer = Worker(office.budget(), 300)
    newcomer.work(1)
    office.loop.advance(30)
    assert newcomer.pieces >= 1


def test_a_turn_is_one_piece_of_work(office: Office) -> None:
    first, second = Worker(office.budget(), 30_000), Worker(office.budget(), 100)
    first.work()
    second.work()
    assert (first.pieces, second.pieces) == (1, 0)
    office.loop.advance(60)
    assert second.pieces >= 1
    assert first.pieces == 1


def test_a_connection_that_is_closed_does_not_wait(office: Office) -> None:
    office.queue.spend(BURST)
    worker = Worker(office.budget(), 100)
    worker.work()
    assert office.queue.waiting == 1
    worker.budget.close()
    assert office.queue.waiting == 0
    office.loop.advance(100)
    assert worker.pieces == 0
    worker.budget.wait(worker.work)
    assert office.queue.waiting == 0


# --- dropped ------------------------------------------------------------------------------------


def test_an_unauthenticated_connection_is_dropped_after_its_work(office: Office) -> None:
    worker = Worker(office.budget(), 1000)
    worker.work()
    office.loop.advance(10_000)
    assert office.dropped == [worker.budget]
    assert worker.pieces == limits.WORK_UNAUTHENTICATED_US_MAX // 1000 + 1


def test_an_authenticated_connection_is_dropped_when_it_goes_on(office: Office) -> None:
    worker = Worker(office.budget(authenticated=True), 5000)
    worker.work()
    office.loop.advance(20_000)
    assert office.dropped == []
    office.loop.advance(60_000)
    assert office.dropped == [worker.budget]


def test_work_before_the_token_is_forgiven(office: Office) -> None:
    budget = office.budget()
    budget.charge(limits.WORK_UNAUTHENTICATED_US_MAX - 1, limits.WORK_UNAUTHENTICATED_US_MAX - 1)
    budget.authenticate()
    assert budget.is_within
    assert budget.may_work()


def test_connections_that_wait_are_limited_and_the_worst_is_dropped(office: Office) -> None:
    office.queue.spend(BURST)
    worst = office.budget()
    worst.charge(100_000, 100_000)
    for budget in [worst, *(office.budget() for _ in range(limits.WORK_WAITING_MAX))]:
        budget.wait(lambda: None)
    assert office.dropped == [worst]
    assert office.queue.waiting == limits.WORK_WAITING_MAX


# --- requests -----------------------------------------------------------------------------------


async def test_each_step_of_a_measured_task_is_charged(office: Office) -> None:
    budget = office.budget()
    office.clock.step_us = 700  # between two readings of the clock

    async def work() -> None:
        await asyncio.sleep(0)
        with pytest.raises(ZeroDivisionError):
            await fail()

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    await budget.measured(work())
    assert budget.spent_us == 3 * 700


async def test_errors_and_cancellation_pass_through_a_measured_task(office: Office) -> None:
    budget = office.budget()

    async def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await budget.measured(fail())
    canceled = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            canceled.append(True)
            raise

    async def run() -> None:
        await budget.measured(wait())

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert canceled == [True]


async def test_a_request_waits_for_its_turn(office: Office) -> None:
    office.queue.spend(2 * BURST)
    budget = office.budget()
    request = asyncio.create_task(budget.turn())
    await asyncio.sleep(0)
    assert not request.done()
    office.loop.advance(300)
    await request


async def test_a_request_whose_connection_is_closed_does_not_wait(office: Office) -> None:
    office.queue.spend(2 * BURST)
    budget = office.budget()
    request = asyncio.create_task(budget.turn())
    await asyncio.sleep(0)
    budget.close()
    await request
    await budget.turn()
    assert office.queue.waiting == 0
