"""The rules of a window, with a log and a clock that are turned by hand."""

from __future__ import annotations

from bisect import bisect_left

import pytest

from penstock.capture.windows import (
    NOT_BEGUN,
    CaptureStop,
    ClosedRange,
    EventLocation,
    PartitionEnd,
    PartitionObservation,
    WindowRules,
    WindowStart,
    WindowTimer,
    close_windows,
    is_log_behind,
    open_first_windows,
    window_start_at_end,
)
from penstock.model.clock import ManualClock

MB = 1024 * 1024
RULES = WindowRules(interval_ms=60_000, size_bytes=10 * MB)


class Hub:
    """One partition: events, and the capture that stands somewhere in it."""

    def __init__(self, clock: ManualClock, rules: WindowRules = RULES) -> None:
        self.clock = clock
        self.rules = rules
        self.events: list[EventLocation] = []
        self.dropped = 0  # by retention
        self.place = WindowStart(0)
        self.cuts: list[ClosedRange] = []
        self.watch = WindowTimer()
        self.windows_max = 100
        self.stop: CaptureStop | None = None

    def publish(self, count: int = 1, size: int = 100) -> None:
        for _ in range(count):
            last = self.events[-1] if self.events else EventLocation(-1, -size, 0)
            # As the log does it: the stored time never goes back.
            at_ms = max(self.clock.now_ms(), last.enqueued_ms)
            offset = self.events[-1].offset + self.sizes[-1] if self.events else 0
            self.events.append(EventLocation(last.sequence + 1, offset, at_ms))
            self.sizes.append(size)

    @property
    def sizes(self) -> list[int]:
        if not hasattr(self, "_sizes"):
            self._sizes: list[int] = []
        return self._sizes

    def at(self, sequence: int) -> EventLocation | None:
        return self._first(max(sequence, self.dropped))

    def beyond(self, offset: int) -> EventLocation | None:
        return self._first(bisect_left([event.offset for event in self.events], offset))

    def since(self, time_ms: int) -> EventLocation | None:
        return self._first(bisect_left([event.enqueued_ms for event in self.events], time_ms))

    def _first(self, index: int) -> EventLocation | None:
        return self.events[index] if index < len(self.events) else None

    @property
    def end(self) -> PartitionEnd:
        newest = self.events[-1] if self.events else EventLocation(-1, -1, 0)
        is_empty = self.dropped >= len(self.events)
        return PartitionEnd(newest.sequence + 1, newest.offset, newest.enqueued_ms, is_empty)

    def look(self) -> list[ClosedRange]:
        """What a trigger of the job does."""
        place = open_first_windows({"0": self.place}, {"0": self.end}, {"0": self})["0"]
        waited_ms = self.watch.waited_ms("0", place, self.clock.monotonic_ms())
        seen = PartitionObservation(self.end, self.clock.now_ms(), waited_ms, self.stop)
        place, cuts = close_windows(
            place, self.rules, self, seen, windows_max=self.windows_max, bytes_max=1 << 40
        )
        if cuts:
            self.place = place
        self.cuts += cuts
        return cuts

    def restart(self) -> None:
        """The job is another process now: it has its place and nothing else."""
        self.watch = WindowTimer()

    def ranges(self) -> list[tuple[int, int]]:
        return [(cut.first, cut.end) for cut in self.cuts]


def told(cuts: list[ClosedRange]) -> list[tuple[int, int, int, int]]:
    return [(cut.window, cut.first, cut.end, cut.named_s) for cut in cuts]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000_000)


@pytest.fixture
def hub(clock: ManualClock) -> Hub:
    return Hub(clock)


def test_nothing_begins_before_the_first_event(hub: Hub, clock: ManualClock) -> None:
    clock.advance(3_600_000)
    assert hub.look() == []
    hub.publish()
    began_ms = clock.now_ms()
    clock.advance(60_999)
    assert hub.look() == []
    clock.advance(1)
    assert told(hub.look()) == [(0, 0, 1, (began_ms + 60_000) // 1000)]


def test_time_first_closes_behind_what_was_stored_before(hub: Hub, clock: ManualClock) -> None:
    hub.publish(3)
    clock.advance(59_999)
    hub.publish(2)
    clock.advance(1)
    hub.publish(4)  # stored when the window is due: of the next one
    assert told(hub.look()) == [(0, 0, 5, hub.cuts[0].named_s)]
    clock.advance(61_000)
    hub.look()
    assert hub.ranges() == [(0, 5), (5, 9)]


def test_size_first_closes_at_the_event_that_goes_beyond(hub: Hub, clock: ManualClock) -> None:
    for _ in range(25):
        hub.publish(size=MB)
        clock.advance(10)
    cuts = hub.look()
    assert hub.ranges() == [(0, 10), (10, 20)]
    assert cuts[1].named_s > cuts[0].named_s  # both closed within one second
    clock.advance(61_000)
    hub.look()
    assert hub.ranges()[2:] == [(20, 25)]


def test_a_window_that_closed_by_size_opens_the_next_then(hub: Hub, clock: ManualClock) -> None:
    hub.publish(10, size=MB)
    clock.advance(30_000)
    hub.publish(1)
    hub.look()
    opened_ms = clock.now_ms()
    clock.advance(60_999)
    assert hub.look() == []
    clock.advance(1)
    assert hub.look()[0].named_s == (opened_ms + 60_000) // 1000


def test_empty_windows_are_cuts_too(hub: Hub, clock: ManualClock) -> None:
    hub.publish()
    clock.advance(61_000)
    hub.look()
    for _ in range(3):
        clock.advance(60_000)
        assert [cut.is_empty for cut in hub.look()] == [True]
    assert [cut.named_s - hub.cuts[0].named_s for cut in hub.cuts] == [0, 60, 120, 180]


def test_empty_windows_that_nobody_saw_are_one(hub: Hub, clock: ManualClock) -> None:
    hub.publish()
    clock.advance(61_000)
    hub.look()
    clock.advance(10 * 60_000)
    assert [cut.is_empty for cut in hub.look()] == [True]
    assert hub.cuts[1].named_s - hub.cuts[0].named_s == 600
    clock.advance(5 * 60_000 + 100)
    hub.publish()
    cuts = hub.look()  # four or five empty ones, then an event
    assert [cut.is_empty for cut in cuts] == [True]
    clock.advance(61_000)
    assert hub.look()[0].first == 1


def test_restart_in_mid_window_changes_nothing(clock: ManualClock) -> None:
    straight, restarted = Hub(clock), Hub(clock)
    for _ in range(40):
        for each in (straight, restarted):
            each.publish(7, size=MB // 4)
        clock.advance(7_000)
        straight.look()
        restarted.restart()
        if clock.now_ms() % 3:
            restarted.look()
    clock.advance(61_000)
    straight.look()
    restarted.look()
    assert straight.cuts == restarted.cuts


def test_a_job_that_comes_late_cuts_as_one_that_was_on_time(clock: ManualClock) -> None:
    on_time, late = Hub(clock), Hub(clock)
    for _ in range(60):
        for each in (on_time, late):
            each.publish(9, size=MB // 3)
        clock.advance(11_000)
        on_time.look()
    late.windows_max = 3
    while late.look():
        pass
    on_time.look()
    assert on_time.cuts == late.cuts
    assert len(late.cuts) > 10


def test_events_are_captured_once_and_in_order_whatever_happens(hub: Hub) -> None:
    clock = hub.clock
    for step in range(200):
        hub.publish(step % 5, size=(step % 7) * MB)
        clock.advance((step * 7919) % 45_000)
        if step % 11 == 0:
            clock.jump(-5_000 if step % 2 else 9_000)
        if step % 3 == 0:
            hub.restart()
        hub.look()
    clock.advance(200_000)
    hub.look()
    expected = 0
    for first, end in hub.ranges():
        assert first == expected
        expected = end
    assert expected == len(hub.events)
    named = [cut.named_s for cut in hub.cuts]
    assert named == sorted(set(named))
    assert [cut.window for cut in hub.cuts] == list(range(len(hub.cuts)))


def test_clock_set_back_closes_after_an_interval_all_the_same(hub: Hub, clock: ManualClock) -> None:
    hub.publish()
    clock.advance(61_000)
    hub.look()
    hub.publish()
    assert hub.look() == []
    clock.jump(-3_600_000)
    clock.advance(60_999)
    assert hub.look() == []
    clock.advance(1)
    assert [(cut.first, cut.end) for cut in hub.look()] == [(1, 2)]
    # By the clock as it is now; but no name comes before the last one's.
    assert hub.place.opened_ms == clock.now_ms()
    assert hub.cuts[1].named_s == hub.cuts[0].named_s + 1
    clock.advance(61_000)
    assert len(hub.look()) == 1


def test_shorter_interval_in_mid_window_holds_for_the_open_one(
    hub: Hub, clock: ManualClock
) -> None:
    hub.rules = WindowRules(interval_ms=900_000, size_bytes=10 * MB)
    hub.publish()
    clock.advance(300_000)
    assert hub.look() == []
    hub.rules = RULES
    hub.publish()
    assert told(hub.look())[0] == (
        0,
        0,
        1,
        hub.cuts[0].named_s,
    )  # what was stored before it was due
    clock.advance(61_000)
    hub.look()
    assert sum(end - first for first, end in hub.ranges()) == 2


def test_longer_interval_in_mid_window_holds_for_the_open_one(hub: Hub, clock: ManualClock) -> None:
    hub.publish()
    clock.advance(30_000)
    hub.look()
    hub.rules = WindowRules(interval_ms=120_000, size_bytes=10 * MB)
    clock.advance(60_000)
    assert hub.look() == []
    clock.advance(31_000)
    assert hub.ranges() == [] and len(hub.look()) == 1


def test_switched_off_closes_at_once_and_leaves_out_what_comes_later(
    hub: Hub, clock: ManualClock
) -> None:
    hub.publish(3)
    clock.advance(10_000)
    hub.stop = CaptureStop(3, clock.now_ms())
    hub.publish(5)
    assert [(cut.first, cut.end) for cut in hub.look()] == [(0, 3)]
    assert hub.stop is not None and hub.place.sequence >= hub.stop.sequence
    clock.advance(600_000)
    assert hub.look() == []


def test_switched_off_late_still_cuts_by_time_and_size(hub: Hub, clock: ManualClock) -> None:
    hub.publish(12, size=MB)
    clock.advance(90_000)
    hub.publish(2)
    hub.stop = CaptureStop(14, clock.now_ms())
    hub.look()
    assert hub.ranges()[0] == (0, 10)
    assert hub.ranges()[-1][1] == 14
    assert hub.stop is not None and hub.place.sequence >= hub.stop.sequence


def test_switched_off_without_an_event_is_done_at_once(hub: Hub) -> None:
    hub.stop = CaptureStop(0, hub.clock.now_ms())
    assert hub.look() == []
    assert hub.stop is not None and hub.place.sequence >= hub.stop.sequence


def test_on_again_begins_with_the_first_event_after_that(hub: Hub, clock: ManualClock) -> None:
    hub.publish(5)
    hub.place = WindowStart(5)  # switched on now: what was there before is not captured
    clock.advance(3_600_000)
    assert hub.look() == []
    hub.publish(2)
    clock.advance(61_000)
    assert told(hub.look()) == [(0, 5, 7, (clock.now_ms() - 1_000) // 1000)]


def test_what_retention_dropped_is_counted_to_its_window(hub: Hub, clock: ManualClock) -> None:
    hub.publish(10)
    hub.dropped = 4
    clock.advance(61_000)
    assert hub.look()[0].first == 0, "the file holds six events of ten: four are lost"
    assert hub.ranges() == [(0, 10)]


def test_a_run_ends_also_where_retention_dropped_its_rest(hub: Hub, clock: ManualClock) -> None:
    hub.publish(10)
    hub.look()
    hub.stop = CaptureStop(10, clock.now_ms())
    clock.advance(3_600_000)
    hub.publish(3)
    hub.dropped = 12
    hub.place = open_first_windows({"0": hub.place}, {"0": hub.end}, {"0": hub})["0"]
    hub.look()
    assert hub.ranges() == [(0, 10)] and hub.stop is not None


def test_a_log_that_is_empty_is_not_asked(hub: Hub, clock: ManualClock) -> None:
    hub.publish(10)
    hub.look()
    hub.place = WindowStart(4, opened_ms=clock.now_ms(), window=2)
    hub.dropped = 10

    def silent(_: object) -> EventLocation | None:
        raise AssertionError("it would wait for an event that does not come")

    hub.at = hub.beyond = hub.since = silent  # type: ignore[method-assign,assignment]
    clock.advance(61_000)
    assert told(hub.look()) == [(2, 4, 10, hub.cuts[0].named_s)]


def test_who_lost_everything_but_the_last_cut_goes_on_as_if_not(clock: ManualClock) -> None:
    straight, lost = Hub(clock), Hub(clock)
    for _ in range(60):
        for each in (straight, lost):
            each.publish(9, size=MB // 3)
            if each.look() and each is lost:
                each.place = each.cuts[-1].next_start
                each.restart()
        clock.advance(7_300)
    assert straight.cuts == lost.cuts and len(lost.cuts) > 10


def test_a_log_that_went_back_is_captured_from_its_end_on(hub: Hub, clock: ManualClock) -> None:
    hub.publish(10)
    clock.advance(61_000)
    hub.look()
    before = hub.place
    assert not is_log_behind(before, hub.end)
    del hub.events[6:], hub.sizes[6:]
    assert is_log_behind(before, hub.end)
    hub.place, (closed,) = window_start_at_end(before, hub.end, clock.now_ms())
    assert closed.is_empty and closed.window == before.window
    assert closed.named_s > before.named_s
    hub.publish(2)
    clock.advance(61_000)
    (cut,) = hub.look()
    assert (cut.first, cut.end) == (6, 8)
    assert cut.named_s > closed.named_s and cut.window == before.window + 1


def test_all_partitions_begin_with_the_first_event_of_the_hub(clock: ManualClock) -> None:
    one, other = Hub(clock), Hub(clock)
    one.publish()
    places = {"0": WindowStart(0), "1": WindowStart(0)}
    opened = open_first_windows(places, {"0": one.end, "1": other.end}, {"0": one, "1": other})
    assert opened["1"].opened_ms == opened["0"].opened_ms == one.events[0].enqueued_ms
    assert places["0"].opened_ms == NOT_BEGUN


def test_a_partition_without_events_opens_with_those_that_have_some(clock: ManualClock) -> None:
    busy, idle = Hub(clock), Hub(clock)
    places = {"0": WindowStart(9, opened_ms=clock.now_ms(), window=1), "1": WindowStart(0)}
    busy.publish()
    opened = open_first_windows(places, {"0": busy.end, "1": idle.end}, {"0": busy, "1": idle})
    assert opened == {"0": places["0"], "1": WindowStart(0, opened_ms=clock.now_ms())}
    idle.place = opened["1"]
    clock.advance(61_000)
    assert [cut.is_empty for cut in idle.look()] == [True]


def test_bytes_of_one_turn_are_bounded(hub: Hub, clock: ManualClock) -> None:
    hub.publish(100, size=MB)
    place = open_first_windows({"0": hub.place}, {"0": hub.end}, {"0": hub})["0"]
    seen = PartitionObservation(hub.end, clock.now_ms())
    _, cuts = close_windows(place, RULES, hub, seen, windows_max=100, bytes_max=25 * MB)
    assert len(cuts) == 3
