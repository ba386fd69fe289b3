"""Senders that press at the same time share the units alike, whatever they send and how often."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.throttle import FairShares, Throttle
from penstock.model.clock import ManualClock
from penstock.model.errors import ServerBusy
from penstock.model.limits import KB, MB

SECONDS = 10


class Pressing:
    """A sender that tries `every_ms`, so often each time; what it got through."""

    def __init__(self, size: int, events: int = 1, *, every_ms: int = 1, tries: int = 4) -> None:
        self.size = size
        self.events = events
        self.every_ms = every_ms
        self.tries = tries
        self.sent = 0

    def press(self, throttle: Throttle, now_ms: int) -> None:
        if now_ms % self.every_ms:
            return
        for _ in range(self.tries):
            try:
                throttle.admit(self.size, self.events, now_ms, self)
            except ServerBusy:
                return
            self.sent += 1

    @property
    def sent_bytes(self) -> int:
        return self.sent * self.size

    @property
    def sent_events(self) -> int:
        return self.sent * self.events


def press(
    throttle: Throttle,
    *senders: Pressing,
    seconds: int = SECONDS,
    clock: ManualClock | None = None,
) -> None:
    """Always in the same order: the first one is always first."""
    clock = clock or ManualClock()
    for _ in range(seconds * 1000):
        for sender in senders:
            sender.press(throttle, clock.monotonic_ms())
        clock.advance(1)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Pressing(10 * KB), Pressing(10 * KB)),
        (Pressing(2 * KB, tries=30), Pressing(256 * KB, tries=1)),
        (Pressing(256 * KB), Pressing(2 * KB)),
        (Pressing(100 * KB, tries=30), Pressing(50 * KB, every_ms=10, tries=1)),
        (Pressing(64 * KB, tries=30), Pressing(256 * KB, every_ms=50, tries=1)),
    ],
    ids=["alike", "small first", "large first", "often and seldom", "seldom and large"],
)
def test_two_senders_share_the_byte_rate_within_ten_percent(
    first: Pressing, second: Pressing
) -> None:
    throttle = Throttle(2)
    press(throttle, first, second)
    assert first.sent_bytes + second.sent_bytes == pytest.approx(20 * MB, rel=0.05)
    assert first.sent_bytes == pytest.approx(second.sent_bytes, rel=0.10)


@pytest.mark.parametrize(("one", "other"), [(1, 1), (1, 500), (100, 10)])
def test_two_senders_share_the_event_rate_within_ten_percent(one: int, other: int) -> None:
    throttle, clock = Throttle(2), ManualClock()
    first, second = Pressing(one * 10, one, tries=30), Pressing(other * 10, other)
    press(throttle, first, second, seconds=1, clock=clock)
    first.sent = second.sent = 0  # who came first had what was in the bucket
    press(throttle, first, second, clock=clock)
    assert first.sent_events + second.sent_events == pytest.approx(20_000, rel=0.05)
    assert first.sent_events == pytest.approx(second.sent_events, rel=0.10)


def test_senders_of_one_partition_share_it_within_ten_percent() -> None:
    partition = Throttle(1, parent=Throttle(20))
    first, second = Pressing(2 * KB, tries=30), Pressing(256 * KB, tries=1)
    press(partition, first, second)
    assert first.sent_bytes + second.sent_bytes == pytest.approx(10 * MB, rel=0.05)
    assert first.sent_bytes == pytest.approx(second.sent_bytes, rel=0.10)


def test_large_publications_of_many_are_taken_one_after_the_other() -> None:
    """If all saved for theirs at the same rate, nobody would get through for seconds."""
    throttle = Throttle(2)
    senders = [Pressing(256 * KB, tries=1) for _ in range(16)]
    press(throttle, *senders, seconds=2)
    assert sum(sender.sent_bytes for sender in senders) == pytest.approx(4 * MB, rel=0.15)
    assert {sender.sent for sender in senders} == {1, 2}


def test_hundreds_of_senders_still_use_all_of_it() -> None:
    throttle = Throttle(2)
    senders = [Pressing(100, every_ms=5, tries=1) for _ in range(300)]
    press(throttle, *senders, seconds=3)
    sent = [sender.sent_events for sender in senders]
    assert sum(sent) == pytest.approx(6_000 + 500, rel=0.05)
    assert max(sent) <= 1.5 * min(sent)


def test_sender_below_its_share_is_never_refused_twice() -> None:
    throttle = Throttle(2)
    flood, modest = Pressing(10 * KB, tries=30), Pressing(50 * KB, every_ms=200, tries=1)
    press(throttle, flood, modest)
    assert modest.sent >= SECONDS * 5 - 1
    assert flood.sent_bytes == pytest.approx(20 * MB - modest.sent_bytes, rel=0.05)


def test_bytes_that_one_leaves_and_events_that_the_other_leaves_are_used() -> None:
    throttle = Throttle(2)
    many, large = Pressing(50, 1, tries=30), Pressing(256 * KB, 1, tries=1)
    press(throttle, many, large)
    assert many.sent_events == pytest.approx(20_000, rel=0.06)
    assert large.sent_bytes == pytest.approx(20 * MB, rel=0.10)


def test_sender_that_waits_four_seconds_finds_its_publication_paid_for() -> None:
    """As the error tells it to; meanwhile the flood takes everything else."""
    throttle = Throttle(1)
    flood, clock = Pressing(1 * KB, tries=30), ManualClock()
    press(throttle, flood, seconds=1, clock=clock)
    with pytest.raises(ServerBusy):
        throttle.admit(256 * KB, 1, clock.monotonic_ms(), "patient")
    press(throttle, flood, seconds=4, clock=clock)
    throttle.admit(256 * KB, 1, clock.monotonic_ms(), "patient")
    assert flood.sent_bytes == pytest.approx(5 * MB, rel=0.06)


def test_one_that_rested_has_what_it_saved_and_no_more() -> None:
    throttle, clock = Throttle(2), ManualClock()
    flood, rested = Pressing(10 * KB, tries=30), Pressing(10 * KB, tries=30)
    press(throttle, flood, rested, seconds=1, clock=clock)
    press(throttle, flood, seconds=4, clock=clock)
    flood.sent = rested.sent = 0
    press(throttle, flood, rested, seconds=2, clock=clock)
    assert rested.sent_bytes == pytest.approx(2 * MB + 256 * KB, rel=0.10)
    assert flood.sent_bytes == pytest.approx(2 * MB, rel=0.10)


def test_what_a_sender_saved_is_for_all_when_it_leaves() -> None:
    throttle = Throttle(1)
    throttle.admit(0, 250, 0, "a")
    with pytest.raises(ServerBusy):
        throttle.admit(0, 100, 0, "a")
    with pytest.raises(ServerBusy):
        throttle.admit(0, 100, 50, "b")  # "a" has been saving for its own
    throttle.forget("a")
    throttle.admit(0, 50, 50, "b")
    throttle.forget("nobody")


def test_common_bucket_is_back_when_nobody_was_refused_for_a_while() -> None:
    throttle = Throttle(1)
    throttle.admit(0, 250, 0, "a")
    for sender in ("a", "b", "c"):
        with pytest.raises(ServerBusy):
            throttle.admit(0, 100, 0, sender)
    throttle.admit(0, 250, 6_000, "newcomer")
    with pytest.raises(ServerBusy):
        throttle.admit(0, 1, 6_000, "a")


def test_those_who_did_not_come_back_leave_their_part_to_the_others() -> None:
    throttle = Throttle(1)
    stays = Pressing(10, 10, tries=30)
    for number in range(50):
        with pytest.raises(ServerBusy):
            while True:
                throttle.admit(10, 10, 0, number)
    press(throttle, stays, seconds=15)
    assert stays.sent_events == pytest.approx(15_000, rel=0.07)


def test_fewer_units_shrink_what_senders_saved() -> None:
    throttle = Throttle(20)
    throttle.admit(0, 5000, 0, "a")
    with pytest.raises(ServerBusy):
        throttle.admit(0, 10, 0, "a")
    throttle.admit(0, 1, 4_000, "a")
    throttle.set_units(1)
    throttle.admit(0, 250, 4_000, "a")
    with pytest.raises(ServerBusy):
        throttle.admit(0, 251, 4_000, "a")


def test_senders_are_remembered_up_to_a_number() -> None:
    shares = FairShares()
    for sender in range(10_000):
        shares.of(sender, 0)
    assert len(shares) == 4_097
    assert shares.of("another", 0) is shares.of("one more", 0)


@settings(max_examples=60, deadline=None)
@given(
    units=st.sampled_from([1, 2, 7]),
    kinds=st.lists(
        st.tuples(st.integers(1, 256 * KB), st.integers(1, 600), st.sampled_from([1, 3, 20])),
        min_size=1,
        max_size=6,
    ),
    seed=st.integers(0, 2**16),
)
def test_no_mixture_of_senders_gets_more_than_the_units_hold(
    units: int, kinds: list[tuple[int, int, int]], seed: int
) -> None:
    """One bucket at the start, and one publication's debt: never more, whoever presses."""
    throttle, chance = Throttle(units), random.Random(seed)
    senders = [Pressing(size, events, every_ms=every) for size, events, every in kinds]
    for now_ms in range(3_000):
        for sender in chance.sample(senders, len(senders)):
            sender.press(throttle, now_ms)
    largest_bytes = max(sender.size for sender in senders)
    largest_events = max(sender.events for sender in senders)
    sent_bytes = sum(sender.sent_bytes for sender in senders)
    sent_events = sum(sender.sent_events for sender in senders)
    assert sent_bytes <= units * 3.25 * MB + largest_bytes
    assert sent_events <= units * 3_250 + largest_events
