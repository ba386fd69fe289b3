"""What is counted for the ledger: hours, steps of 64 KB, units; jumping clocks, failed writes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.usage_ledger import MemoryUsageLedger

from penstock.broker.usage_meter import HubCounters, UsageMeter
from penstock.model.clock import ManualClock
from penstock.model.limits import KB, MB
from penstock.model.names import NamespaceName
from penstock.model.usage import HOUR_MS, Usage

NS = NamespaceName("contoso")
TEN = 480_000 * HOUR_MS  # an hour of the clock, some decades on
ELEVEN = TEN + HOUR_MS


class Bench:
    """A meter, the clock it is read with, and the ledger that it ends up in."""

    def __init__(self, units: int | None, now_ms: int = TEN) -> None:
        self.clock = ManualClock(now_ms)
        self.ledger = MemoryUsageLedger()
        self.changes = 0
        self.meter = UsageMeter(
            NS, units, now_ms=now_ms, runs=count(1).__next__, on_change=self._changed
        )
        self.hub = HubCounters()
        self.meter.follow(self.hub)

    def _changed(self) -> None:
        self.changes += 1

    def publish(self, messages: int = 1, size: int = 100, events: int | None = None) -> None:
        """As a hub counts."""
        self.meter.pass_to(self.clock.now_ms())
        self.meter.change()
        self.hub.incoming_messages += messages
        self.hub.incoming_bytes += size
        self.hub.incoming_steps += (events or messages) - messages

    def deliver(self, size: int) -> None:
        self.meter.egress(size, self.clock.now_ms())

    def hold(self, units: int | None) -> None:
        self.meter.hold(units, self.clock.now_ms())

    def flush(self) -> None:
        counts = self.meter.counts()
        self.ledger.record(counts)
        self.meter.confirm_written(counts)

    def usage(self) -> list[Usage]:
        """Hour by hour, as somebody reads it."""
        self.meter.pass_to(self.clock.now_ms())
        self.flush()
        return self.ledger.usage()


def units(usages: Sequence[Usage]) -> list[tuple[int, int]]:
    return [((usage.hour_ms - TEN) // HOUR_MS, usage.units) for usage in usages]


def test_everything_used_in_an_hour_is_in_its_row() -> None:
    bench = Bench(3)
    bench.publish(5, size=1000)
    bench.publish(1, size=100 * KB, events=2)
    bench.deliver(700)
    assert bench.usage() == [
        Usage(
            namespace=NS,
            hour_ms=TEN,
            units=3,
            ingress_events=7,
            ingress_messages=6,
            ingress_bytes=1000 + 100 * KB,
            egress_bytes=700,
        )
    ]


def test_hour_turns_between_two_publications_a_millisecond_apart() -> None:
    bench = Bench(1, TEN + HOUR_MS - 1)
    bench.publish(3)
    bench.deliver(10)
    bench.clock.advance(1)
    bench.publish(4)
    bench.deliver(20)
    ten, eleven = bench.usage()
    assert (ten.hour_ms, ten.ingress_messages, ten.egress_bytes) == (TEN, 3, 10)
    assert (eleven.hour_ms, eleven.ingress_messages, eleven.egress_bytes) == (ELEVEN, 4, 20)


def test_hour_in_which_nothing_is_used_has_its_units_all_the_same() -> None:
    bench = Bench(2)
    bench.clock.advance(HOUR_MS)
    bench.meter.pass_to(bench.clock.now_ms())
    bench.clock.advance(HOUR_MS)
    assert units(bench.usage()) == [(0, 2), (1, 2), (2, 2)]


def test_hour_is_billed_by_the_most_units_held_in_it() -> None:
    bench = Bench(2)
    bench.clock.advance(1000)
    bench.hold(7)
    bench.clock.advance(1)
    bench.hold(3)
    bench.clock.advance(HOUR_MS)
    assert units(bench.usage()) == [(0, 7), (1, 3)]


def test_units_bought_at_the_last_moment_are_one_hour_of_them() -> None:
    bench = Bench(1, TEN + HOUR_MS - 1)
    bench.hold(5)
    bench.clock.advance(1)
    bench.hold(1)
    assert units(bench.usage()) == [(0, 5), (1, 5)]  # held in both


@pytest.mark.parametrize(
    ("messages", "size", "out", "needed"),
    [
        (1, 1, 1, 1),
        (1000, 1 * MB, 2 * MB, 1),
        (1001, 1, 0, 2),
        (1, 1 * MB + 1, 0, 2),
        (0, 0, 2 * MB + 1, 2),
        (12_345, 3 * MB, 0, 13),
        (1, 25 * MB, 0, 25),
    ],
)
def test_unlimited_namespace_is_billed_what_its_busiest_second_needed(
    messages: int, size: int, out: int, needed: int
) -> None:
    bench = Bench(None)
    bench.publish(messages, size=size)
    bench.deliver(out)
    bench.clock.advance(1000)
    bench.publish(1)
    assert units(bench.usage()) == [(0, needed)]


def test_unlimited_need_is_that_of_one_second_not_of_several() -> None:
    bench = Bench(None)
    for _ in range(50):
        bench.publish(900, size=900 * KB)
        bench.clock.advance(1000)
    assert units(bench.usage()) == [(0, 1)]


def test_need_is_counted_over_the_whole_second_whenever_it_is_written() -> None:
    bench = Bench(None)
    for _ in range(10):
        bench.publish(300)
        bench.flush()
        bench.clock.advance(100)
    assert units(bench.usage()) == [(0, 3)]


def test_units_of_the_running_hour_can_be_asked_for_at_any_moment() -> None:
    bench = Bench(None)
    assert bench.meter.units == 1
    bench.publish(2_500)
    assert bench.meter.units == 3
    bench.hold(7)
    assert bench.meter.units == 7


def test_unlimited_namespace_that_is_idle_is_billed_one_unit() -> None:
    bench = Bench(None)
    bench.clock.advance(HOUR_MS)
    assert units(bench.usage()) == [(0, 1), (1, 1)]


def test_enforced_units_are_billed_as_held_whatever_was_used() -> None:
    bench = Bench(2)
    bench.publish(50_000, size=50 * MB)
    assert units(bench.usage()) == [(0, 2)]


def test_hour_that_was_unlimited_for_a_while_is_billed_by_the_larger() -> None:
    bench = Bench(None)
    bench.publish(5_000)
    bench.hold(2)
    bench.publish(9_000)
    bench.clock.advance(HOUR_MS)
    bench.hold(None)
    assert units(bench.usage()) == [(0, 5), (1, 2)]


def test_dedicated_namespace_holds_no_units() -> None:
    bench = Bench(0)
    bench.publish(5_000)
    assert units(bench.usage()) == [(0, 0)]


def test_clock_set_forward_bills_no_hour_that_nobody_lived() -> None:
    bench = Bench(2)
    bench.publish(1)
    bench.clock.jump(5 * HOUR_MS)
    bench.publish(2)
    found = bench.usage()
    assert units(found) == [(0, 2), (5, 2)]
    assert [usage.ingress_messages for usage in found] == [1, 2]


def test_clock_set_back_counts_the_hour_on() -> None:
    bench = Bench(2)
    bench.publish(1)
    bench.clock.jump(HOUR_MS)
    bench.publish(2)
    bench.flush()
    bench.clock.jump(-HOUR_MS)
    bench.publish(4)
    bench.clock.jump(HOUR_MS)
    bench.publish(8)
    assert [(usage.hour_ms, usage.ingress_messages) for usage in bench.usage()] == [
        (TEN, 5),
        (ELEVEN, 10),
    ]


def test_clock_that_wavers_at_the_turn_of_the_hour_counts_each_once() -> None:
    bench = Bench(1, TEN + HOUR_MS - 2)
    for step in (3, -3, 3, -3, 3):
        bench.publish(1)
        bench.clock.jump(step)
    assert [usage.ingress_messages for usage in bench.usage()] == [3, 2]


def test_hubs_are_added_up_and_a_deleted_one_stays_counted() -> None:
    bench = Bench(None)
    other = HubCounters()
    bench.meter.follow(other)
    bench.publish(600)
    other.incoming_messages += 600
    bench.meter.leave(other)
    bench.meter.leave(other)
    other.incoming_messages += 10_000  # nobody asks it any more
    bench.publish(900)
    (usage,) = bench.usage()
    assert (usage.ingress_messages, usage.units) == (2100, 3)


def test_change_is_told_once_until_it_was_asked_for() -> None:
    bench = Bench(1)
    assert bench.changes == 1  # the hour began
    bench.flush()
    for _ in range(5):
        bench.publish()
        bench.deliver(1)
    assert bench.changes == 2
    bench.flush()
    assert not bench.meter.is_changed
    bench.hold(1)
    bench.meter.pass_to(bench.clock.now_ms())
    assert bench.changes == 2
    bench.hold(2)
    assert bench.changes == 3


def test_counts_that_could_not_be_written_are_handed_out_again() -> None:
    bench = Bench(1, TEN + HOUR_MS - 1)
    bench.publish(3)
    bench.clock.advance(1)
    bench.publish(4)
    lost = bench.meter.counts()
    bench.meter.retain_unwritten()
    assert bench.meter.is_changed
    assert bench.meter.counts() == lost
    bench.ledger.record(lost)  # it had reached the disk after all
    assert [usage.ingress_messages for usage in bench.usage()] == [3, 4]


def test_runs_that_are_written_are_forgotten() -> None:
    bench = Bench(1)
    for _ in range(5):
        bench.publish()
        bench.clock.advance(HOUR_MS)
        bench.usage()
    assert len(bench.meter.counts()) == 1


def test_counting_goes_on_while_a_write_is_under_way() -> None:
    bench = Bench(1)
    bench.publish(1)
    counts = bench.meter.counts()
    bench.publish(2)
    bench.clock.advance(HOUR_MS)
    bench.publish(4)
    bench.ledger.record(counts)
    bench.meter.confirm_written(counts)
    # The run went on after it was handed out: it is written again, and whole.
    assert [usage.ingress_messages for usage in bench.usage()] == [3, 4]


@given(
    st.lists(
        st.one_of(
            st.integers(1, 50).map(lambda n: ("publish", n)),
            st.integers(0, 2 * HOUR_MS).map(lambda n: ("advance", n)),
            st.integers(-3 * HOUR_MS, 3 * HOUR_MS).map(lambda n: ("jump", n)),
            st.sampled_from([("flush", 0), ("fail", 0), ("fail but written", 0)]),
        ),
        max_size=40,
    )
)
def test_nothing_is_lost_and_nothing_counts_twice_whatever_happens(
    steps: list[tuple[str, int]],
) -> None:
    bench = Bench(1)
    expected: dict[int, int] = {}
    for what, number in steps:
        if what == "publish":
            bench.publish(number)
            hour_ms = bench.clock.now_ms() // HOUR_MS * HOUR_MS
            expected[hour_ms] = expected.get(hour_ms, 0) + number
        elif what == "advance":
            bench.clock.advance(number)
        elif what == "jump":
            bench.clock.jump(number)
        elif what == "flush":
            bench.flush()
        else:
            counts = bench.meter.counts()
            if what == "fail but written":
                bench.ledger.record(counts)
            bench.meter.retain_unwritten()
    found = {usage.hour_ms: usage.ingress_messages for usage in bench.usage()}
    assert {hour: messages for hour, messages in found.items() if messages} == expected
