"""Throughput units hold what they say (protocol.md 10.4)."""

from __future__ import annotations

import pytest

from penstock.broker.throttle import Throttle
from penstock.model.clock import ManualClock
from penstock.model.errors import ServerBusy
from penstock.model.limits import KB, MB

TEN_SECONDS_MS = 10_000


def pressed(throttle: Throttle, size_bytes: int, events: int, clock: ManualClock) -> int:
    """Publish as fast as the throttle lets, for ten seconds; return the admitted publications."""
    admitted = 0
    for _ in range(TEN_SECONDS_MS):
        try:
            while True:
                throttle.admit(size_bytes, events, clock.monotonic_ms())
                admitted += 1
        except ServerBusy:
            clock.advance(1)
    return admitted


@pytest.mark.parametrize("size_bytes", [100 * KB, 10 * KB, 2 * KB, 256 * KB])
@pytest.mark.parametrize("units", [2, 7])
def test_units_hold_the_byte_rate_within_five_percent(units: int, size_bytes: int) -> None:
    admitted = pressed(Throttle(units), size_bytes, 1, ManualClock())
    assert admitted * size_bytes == pytest.approx(units * 10 * MB, rel=0.05)


@pytest.mark.parametrize("events", [1, 10, 100, 500])
def test_units_hold_the_event_rate_within_five_percent(events: int) -> None:
    admitted = pressed(Throttle(2), events * 10, events, ManualClock())
    assert admitted * events == pytest.approx(20_000, rel=0.05)


def test_refusal_has_the_services_words_and_condition() -> None:
    throttle = Throttle(1)
    throttle.admit(0, 250, 0)
    with pytest.raises(ServerBusy) as refusal:
        throttle.admit(1, 1, 0)
    assert str(refusal.value) == (
        "The request was terminated because the entity is being throttled. Error code : 50002. "
        "Please wait 4 seconds and try again."
    )
    assert refusal.value.condition == "com.microsoft:server-busy"


def test_bucket_holds_a_quarter_of_a_second_after_any_idle_time() -> None:
    throttle = Throttle(1)
    throttle.admit(0, 1, 0)
    for _ in range(250):
        throttle.admit(0, 1, 3_600_000)
    with pytest.raises(ServerBusy):
        throttle.admit(0, 1, 3_600_000)


def test_publication_larger_than_the_bucket_is_taken_when_it_is_full_and_paid_for_later() -> None:
    throttle = Throttle(1)
    throttle.admit(1000, 5000, 0)
    with pytest.raises(ServerBusy):
        throttle.admit(1, 1, 4750)
    throttle.admit(1, 1, 4751)


def test_refused_publication_costs_nothing() -> None:
    throttle = Throttle(1)
    throttle.admit(0, 250, 0)
    for _ in range(100):
        with pytest.raises(ServerBusy):
            throttle.admit(0, 100, 50)
    throttle.admit(0, 100, 100)


def test_throttle_without_units_never_refuses() -> None:
    throttle = Throttle(None)
    for _ in range(1000):
        throttle.admit(MB, 1000, 0)


def test_change_of_units_takes_effect_at_once() -> None:
    clock = ManualClock()
    throttle = Throttle(None)
    throttle.admit(100 * MB, 1_000_000, clock.monotonic_ms())
    throttle.set_units(1)
    throttle.admit(256 * KB, 1, clock.monotonic_ms())
    with pytest.raises(ServerBusy):
        throttle.admit(256 * KB, 1, clock.monotonic_ms())
    throttle.set_units(4)
    clock.advance(63)
    throttle.admit(256 * KB, 1, clock.monotonic_ms())
    throttle.set_units(None)
    throttle.admit(100 * MB, 1_000_000, clock.monotonic_ms())


def test_units_enforced_again_start_with_a_full_bucket() -> None:
    throttle = Throttle(1)
    throttle.admit(0, 5000, 0)
    throttle.set_units(None)
    throttle.set_units(1)
    throttle.admit(0, 250, 1)


def test_fewer_units_shrink_what_the_bucket_holds() -> None:
    throttle = Throttle(20)
    throttle.admit(0, 1, 0)
    throttle.set_units(1)
    throttle.admit(0, 250, 0)
    with pytest.raises(ServerBusy):
        throttle.admit(0, 1, 0)


def test_partition_takes_at_most_one_units_worth() -> None:
    clock = ManualClock()
    namespace = Throttle(20)
    partition = Throttle(1, parent=namespace)
    assert pressed(partition, 1 * KB, 1, clock) == pytest.approx(10_000, rel=0.05)


def test_partitions_share_their_namespaces_units() -> None:
    clock = ManualClock()
    namespace = Throttle(2)
    partitions = [Throttle(1, parent=namespace) for _ in range(4)]
    admitted = 0
    for _ in range(TEN_SECONDS_MS):
        for partition in partitions:
            try:
                partition.admit(100, 1, clock.monotonic_ms())
            except ServerBusy:
                continue
            admitted += 1
        clock.advance(1)
    assert admitted == pytest.approx(20_000, rel=0.05)


def test_refusal_by_the_namespace_leaves_the_partitions_tokens() -> None:
    namespace = Throttle(1)
    partition = Throttle(1, parent=namespace)
    other = Throttle(1, parent=namespace)
    other.admit(0, 250, 0)
    with pytest.raises(ServerBusy):
        partition.admit(0, 250, 0)
    partition.admit(0, 250, 250)


def test_clock_that_goes_back_gives_no_tokens() -> None:
    throttle = Throttle(1)
    throttle.admit(0, 250, 1000)
    for now_ms in (999, 0, 1000):
        with pytest.raises(ServerBusy):
            throttle.admit(0, 1, now_ms)
