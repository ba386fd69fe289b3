"""When a window closes (protocol.md 9): by size or by time, whichever is first.

Pure. A partition's capture stands at a `Place`; `advanced` looks at the log's end and at the clock
and gives the windows that are over. Windows follow each other without a gap: in the log (the next
begins with the event behind the last) and in time (it opens when the last one closed).

| what is seen | the window is over | its time |
|---|---|---|
| an event that begins `size_bytes` or more behind the first | before that event | of that event |
| an event stored `interval_ms` or more after it opened | before that event | when it was due |
| neither, and the clock says that it is due | behind the last event | when it was due |
| neither, and the clock was set back | an interval after we saw it open | of the clock |
| Capture was switched off | behind the last event before that | of that moment |

The boundary is a fact of the log wherever the log has one, so a job that comes late cuts as one
that was on time. Empty windows that passed while nobody looked are one window. Events that
retention dropped before they were read belong to the window that they would have been in: it tells
how many were lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

NOT_BEGUN = -1
UNKNOWN = -1
GRACE_MS = 1_000
"""How long after it is due a window is left open for events that are on their way to the disk."""


class EventLocation(msgspec.Struct, frozen=True, gc=False):
    """Where an event lies."""

    sequence: int
    offset: int
    enqueued_ms: int


class PartitionEnd(msgspec.Struct, frozen=True, gc=False):
    """A partition's end, as it is known now. `is_empty`: nothing before it is retained."""

    next_sequence: int
    last_offset: int
    newest_ms: int
    is_empty: bool = False


class PartitionEvents(Protocol):
    """One partition, asked for the first event that is retained at a place or behind it; None
    where there is none yet."""

    def at(self, sequence: int) -> EventLocation | None: ...

    def beyond(self, offset: int) -> EventLocation | None:
        """The first that begins at this offset or behind it."""
        ...

    def since(self, time_ms: int) -> EventLocation | None:
        """The first that was stored then or later."""
        ...


class WindowRules(msgspec.Struct, frozen=True, kw_only=True):
    """What closes a window."""

    interval_ms: int
    size_bytes: int
    grace_ms: int = GRACE_MS


class CaptureStop(msgspec.Struct, frozen=True, gc=False):
    """Capture was switched off then; this is the first event that it leaves out."""

    sequence: int
    at_ms: int


class WindowStart(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Where the open window of a partition begins."""

    sequence: int  # of the next event to capture
    offset: int = UNKNOWN  # of that event
    opened_ms: int = NOT_BEGUN
    named_s: int = 0  # the time that the last window's name tells
    window: int = 0  # how many are over


class ClosedRange(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A window that is over: events from `first` to before `end`, none when they are equal."""

    window: int
    first: int
    end: int
    named_s: int
    closed_ms: int = UNKNOWN

    @property
    def next_start(self) -> WindowStart:
        """Where the next window begins, as far as this one knows it: who has lost everything else
        cuts from here on as before."""
        opened_ms = self.named_s * 1000 if self.closed_ms == UNKNOWN else self.closed_ms
        return WindowStart(self.end, UNKNOWN, opened_ms, self.named_s, self.window + 1)

    @property
    def is_empty(self) -> bool:
        return self.first == self.end


class PartitionObservation(msgspec.Struct, frozen=True, gc=False):
    """What is known at one moment. `waited_ms` is how long the open window has been watched, by a
    clock that only goes forward."""

    end: PartitionEnd
    now_ms: int
    waited_ms: int = 0
    stop: CaptureStop | None = None


class WindowTimer:
    """How long each partition's open window has been watched; forgotten with the process."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[int, int]] = {}  # window, when it was first seen

    def waited_ms(self, partition: str, place: WindowStart, steady_ms: int) -> int:
        """`steady_ms` is of a clock that only goes forward."""
        if place.opened_ms == NOT_BEGUN:
            return 0
        window, since_ms = self._since.get(partition, (-1, 0))
        if window != place.window:
            self._since[partition] = (place.window, steady_ms)
            return 0
        return steady_ms - since_ms


def open_first_windows(
    places: Mapping[str, WindowStart],
    ends: Mapping[str, PartitionEnd],
    logs: Mapping[str, PartitionEvents],
) -> dict[str, WindowStart]:
    """Capture begins with the first event after it was switched on: all partitions of the hub
    open their first window when the first of them has one."""
    waiting = [key for key, place in places.items() if place.opened_ms == NOT_BEGUN]
    firsts = [
        first.enqueued_ms
        for key in waiting
        if key in ends and _has_events(ends[key], places[key])
        if (first := logs[key].at(places[key].sequence)) is not None
    ]
    # One that came late, to a hub that has begun, opens its first window with the open ones.
    firsts += [place.opened_ms for place in places.values() if place.opened_ms != NOT_BEGUN]
    opened_ms = min(firsts, default=NOT_BEGUN)
    return {
        key: msgspec.structs.replace(place, opened_ms=opened_ms) if key in waiting else place
        for key, place in places.items()
    }


def is_log_behind(place: WindowStart, end: PartitionEnd) -> bool:
    """Whether the log is shorter than what was captured of it: an older copy was put back."""
    return place.sequence > end.next_sequence


def window_start_at_end(
    place: WindowStart, end: PartitionEnd, now_ms: int
) -> tuple[WindowStart, list[ClosedRange]]:
    """Of a log that went back: what is published from now on is captured, under names that come
    later than those of the events that it had before. A window without events is closed at once,
    so that the place is written down: who found it anew later would begin later."""
    back = msgspec.structs.replace(place, sequence=end.next_sequence, offset=UNKNOWN)
    cut, following = _close_range(back, end.next_sequence, UNKNOWN, now_ms)
    return following, [cut]


def close_windows(
    place: WindowStart,
    rules: WindowRules,
    log: PartitionEvents,
    seen: PartitionObservation,
    *,
    windows_max: int,
    bytes_max: int,
) -> tuple[WindowStart, list[ClosedRange]]:
    """The windows that are over, oldest first, and where the next one begins. At most so many, and
    no more of them when they hold so many bytes."""
    cuts: list[ClosedRange] = []
    if seen.stop is not None:
        end = seen.end
        sequence = min(end.next_sequence, seen.stop.sequence)
        newest_ms = min(end.newest_ms, seen.stop.at_ms)
        seen = msgspec.structs.replace(
            seen, end=PartitionEnd(sequence, end.last_offset, newest_ms, end.is_empty)
        )
    taken = 0
    while place.opened_ms != NOT_BEGUN and len(cuts) < windows_max and taken < bytes_max:
        place = _locate_start(place, log, seen)
        found = _next(place, rules, log, seen)
        if found is None:
            break
        cut, following = found
        if following.offset != UNKNOWN and place.offset != UNKNOWN:
            taken += following.offset - place.offset
        elif not cut.is_empty:
            taken += rules.size_bytes
        cuts.append(cut)
        place = following
        seen = msgspec.structs.replace(seen, waited_ms=0)
    return place, cuts


def is_done(place: WindowStart, stop: CaptureStop | None) -> bool:
    """Whether nothing of what was asked for is left."""
    return stop is not None and place.sequence >= stop.sequence


def _locate_start(
    place: WindowStart, log: PartitionEvents, seen: PartitionObservation
) -> WindowStart:
    """With the offset of its first event that is retained."""
    if place.offset != UNKNOWN or not _has_events(seen.end, place):
        return place
    first = log.at(place.sequence)
    return place if first is None else msgspec.structs.replace(place, offset=first.offset)


def _has_events(end: PartitionEnd, place: WindowStart) -> bool:
    """Whether the log can be asked: about one that has none it would be silent for long."""
    return end.next_sequence > place.sequence and not end.is_empty


def _next(
    place: WindowStart, rules: WindowRules, log: PartitionEvents, seen: PartitionObservation
) -> tuple[ClosedRange, WindowStart] | None:
    due_ms = place.opened_ms + rules.interval_ms
    by_time: EventLocation | None = None
    by_size: EventLocation | None = None
    if _has_events(seen.end, place):
        limit = place.offset + rules.size_bytes
        if place.offset != UNKNOWN and seen.end.last_offset >= limit:
            by_size = _within(log.beyond(limit), seen)
        if seen.end.newest_ms >= due_ms:
            by_time = _within(log.since(due_ms), seen)
    if by_time is not None and (by_size is None or by_time.sequence <= by_size.sequence):
        sequence = max(by_time.sequence, place.sequence)
        if sequence == place.sequence:
            due_ms = _last_boundary_ms(place.opened_ms, rules.interval_ms, by_time.enqueued_ms)
        return _close_range(place, sequence, by_time.offset, due_ms)
    if by_size is not None:
        closed_ms = max(by_size.enqueued_ms, place.opened_ms)
        return _close_range(place, by_size.sequence, by_size.offset, closed_ms)
    return _by_clock(place, rules, seen, due_ms)


def _within(event: EventLocation | None, seen: PartitionObservation) -> EventLocation | None:
    """What lies behind the end that we look at is not there yet."""
    return event if event is not None and event.sequence < seen.end.next_sequence else None


def _by_clock(
    place: WindowStart, rules: WindowRules, seen: PartitionObservation, due_ms: int
) -> tuple[ClosedRange, WindowStart] | None:
    end = max(seen.end.next_sequence, place.sequence)
    is_empty = end == place.sequence
    now_ms = seen.now_ms
    if seen.stop is not None:
        # A window that never got an event is not worth a file when nobody wants one any more.
        closed_ms = max(min(due_ms, seen.stop.at_ms), place.opened_ms)
        return None if is_empty else _close_range(place, end, UNKNOWN, closed_ms)
    if now_ms >= due_ms + rules.grace_ms:
        if is_empty:
            due_ms = _last_boundary_ms(place.opened_ms, rules.interval_ms, now_ms - rules.grace_ms)
        return _close_range(place, end, UNKNOWN, due_ms)
    if seen.waited_ms >= rules.interval_ms + rules.grace_ms:
        return _close_range(place, end, UNKNOWN, now_ms)  # from here on by the clock as it is now
    return None


def _last_boundary_ms(opened_ms: int, interval_ms: int, until_ms: int) -> int:
    """The last boundary that is over by then; at least one is."""
    return opened_ms + max(1, (until_ms - opened_ms) // interval_ms) * interval_ms


def _close_range(
    place: WindowStart, end: int, offset: int, closed_ms: int
) -> tuple[ClosedRange, WindowStart]:
    # Two windows of one second need two names, and a clock that was set back must not give the
    # name of an older one.
    named_s = max(place.named_s + 1, closed_ms // 1000)
    cut = ClosedRange(place.window, place.sequence, end, named_s, closed_ms)
    return cut, msgspec.structs.replace(cut.next_start, offset=offset)
