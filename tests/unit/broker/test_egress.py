"""Readers get 2 MB/s for each unit: slowed, in turn, never refused (protocol.md 10.4)."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

import pytest

from penstock.broker.egress import EgressLimiter
from penstock.broker.usage_meter import UsageMeter
from penstock.model.clock import ManualClock
from penstock.model.limits import KB, MB
from penstock.model.names import NamespaceName

NS = NamespaceName("contoso")


class Timers:
    """`later` with a clock that is turned by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.set = 0
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()

    def later(self, delay_ms: int, work: Callable[[], None]) -> None:
        self.set += 1
        at_ms = self.clock.monotonic_ms() + delay_ms
        heapq.heappush(self._due, (at_ms, next(self._numbers), work))

    def run(self, milliseconds: int) -> None:
        end_ms = self.clock.monotonic_ms() + milliseconds
        while self._due and self._due[0][0] <= end_ms:
            at_ms, _, work = heapq.heappop(self._due)
            self.clock.advance(max(0, at_ms - self.clock.monotonic_ms()))
            work()
        self.clock.advance(end_ms - self.clock.monotonic_ms())


class Draining:
    """A reader that always has events of one size and takes all that it may."""

    def __init__(self, egress: EgressLimiter, event: int) -> None:
        self.egress = egress
        self.event = event
        self.sent = 0
        self.resumed = 0

    def pump(self) -> None:
        while allowed := self.egress.allowance(self, 256 * KB):
            size = max(1, allowed // self.event) * self.event
            self.sent += size
            self.egress.spent(self, size)

    def resume(self) -> None:
        self.resumed += 1
        self.pump()


@pytest.fixture
def timers() -> Timers:
    return Timers()


def made(
    timers: Timers, units: int | None, on_short: Callable[[], None] | None = None
) -> EgressLimiter:
    meter = UsageMeter(NS, units, now_ms=0, runs=count().__next__, on_change=lambda: None)
    return EgressLimiter(units, meter, clock=timers.clock, later=timers.later, on_short=on_short)


@pytest.mark.parametrize("units", [1, 2, 20])
@pytest.mark.parametrize("event", [100, 1 * KB, 60 * KB, 1 * MB])
def test_reader_gets_two_megabytes_a_second_for_each_unit(
    timers: Timers, units: int, event: int
) -> None:
    reader = Draining(made(timers, units), event)
    reader.pump()
    timers.run(10_000)
    assert reader.sent == pytest.approx(units * 20 * MB, rel=0.05)


def test_first_quarter_of_a_second_is_there_at_once(timers: Timers) -> None:
    reader = Draining(made(timers, 2), 1 * KB)
    reader.pump()
    assert reader.sent == 1 * MB


def test_readers_of_a_namespace_share_alike(timers: Timers) -> None:
    egress = made(timers, 1)
    readers = [Draining(egress, event) for event in (100, 1 * KB, 10 * KB, 150 * KB, 100)]
    for reader in readers:
        reader.pump()
    timers.run(250)  # the first one had what was in the bucket
    before = [reader.sent for reader in readers]
    timers.run(10_000)
    sent = [reader.sent - was for reader, was in zip(readers, before, strict=True)]
    assert sum(sent) == pytest.approx(20 * MB, rel=0.02)
    assert max(sent) == pytest.approx(min(sent), rel=0.08)


def test_waiting_costs_a_few_timers_not_one_for_each_reader(timers: Timers) -> None:
    egress = made(timers, 1)
    for reader in [Draining(egress, 1 * KB) for _ in range(500)]:
        reader.pump()
    timers.run(1_000)
    assert timers.set <= 110


def test_nobody_is_woken_when_nobody_waits(timers: Timers) -> None:
    egress = made(timers, 1)
    reader = Draining(egress, 1 * KB)
    assert egress.allowance(reader, 10 * KB) == 10 * KB
    egress.spent(reader, 10 * KB)
    timers.run(10_000)
    assert timers.set == 0
    assert reader.resumed == 0


def test_reader_that_left_is_not_woken(timers: Timers) -> None:
    egress = made(timers, 1)
    reader = Draining(egress, 1 * KB)
    reader.pump()
    egress.leave(reader)
    egress.leave(reader)
    timers.run(1_000)
    assert reader.resumed == 0


def test_turn_that_is_not_taken_is_the_next_ones(timers: Timers) -> None:
    class Asleep(Draining):
        def resume(self) -> None:
            self.resumed += 1  # its socket is full, or its credit is used up

    egress = made(timers, 1)
    asleep, awake = Asleep(egress, 1 * KB), Draining(egress, 1 * KB)
    asleep.pump()
    awake.pump()
    timers.run(5_000)
    assert asleep.resumed == 1
    assert awake.sent == pytest.approx(10 * MB, rel=0.02)


def test_no_units_pace_nobody(timers: Timers) -> None:
    reader = Draining(made(timers, None), 1 * KB)
    assert reader.egress.allowance(reader, 256 * KB) == 256 * KB
    reader.egress.spent(reader, 100 * MB)
    assert reader.egress.allowance(reader, 256 * KB) == 256 * KB
    assert timers.set == 0


def test_nobody_is_paced_where_nobody_can_be_woken() -> None:
    clock = ManualClock()
    meter = UsageMeter(NS, 1, now_ms=0, runs=count().__next__, on_change=lambda: None)
    egress = EgressLimiter(1, meter, clock=clock, later=None)
    reader = Draining(egress, 1 * KB)
    egress.spent(reader, 100 * MB)
    assert egress.allowance(reader, 10) == 10


def test_more_units_wake_those_who_wait_at_once(timers: Timers) -> None:
    class Once(Draining):
        def resume(self) -> None:
            self.resumed += 1
            assert self.egress.allowance(self, 256 * KB) == 256 * KB

    egress = made(timers, 1)
    readers = [Once(egress, 1 * MB) for _ in range(3)]
    for reader in readers:
        reader.pump()
    timers.run(100)
    assert [reader.resumed for reader in readers] == [0, 0, 0]
    egress.set_units(None)
    assert egress.units is None
    assert [reader.resumed for reader in readers] == [1, 1, 1]
    timers.run(10_000)
    assert [reader.resumed for reader in readers] == [1, 1, 1]


def test_change_of_units_holds_for_those_who_wait(timers: Timers) -> None:
    egress = made(timers, 1)
    reader = Draining(egress, 1 * KB)
    reader.pump()
    timers.run(1_000)
    egress.set_units(5)
    before = reader.sent
    timers.run(2_000)
    assert reader.sent - before == pytest.approx(20 * MB, rel=0.05)
    egress.set_units(1)
    timers.run(1_000)
    before = reader.sent
    timers.run(5_000)
    assert reader.sent - before == pytest.approx(10 * MB, rel=0.05)


def test_units_enforced_again_start_with_a_full_bucket(timers: Timers) -> None:
    egress = made(timers, None)
    reader = Draining(egress, 1 * KB)
    egress.spent(reader, 100 * MB)
    egress.set_units(1)
    reader.pump()
    assert reader.sent == 512 * KB


def test_everything_that_went_out_is_metered(timers: Timers) -> None:
    meter = UsageMeter(NS, 1, now_ms=0, runs=count().__next__, on_change=lambda: None)
    egress = EgressLimiter(1, meter, clock=timers.clock, later=timers.later)
    reader = Draining(egress, 1 * KB)
    reader.pump()
    timers.run(3_000)
    assert sum(usage.egress_bytes for usage in meter.counts()) == reader.sent


def test_shortage_is_told_when_somebody_must_wait(timers: Timers) -> None:
    told: list[int] = []
    reader = Draining(made(timers, 1, lambda: told.append(reader.sent)), 1 * KB)
    reader.pump()
    assert told == [512 * KB]
