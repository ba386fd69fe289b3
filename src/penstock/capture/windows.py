"""When a window closes (protocol.md 9): by size or by time, whichever is first.

Pure. The open window of a partition begins at a `WindowStart`; `close_windows` compares it with the
end of the log and the clock and returns the windows that are over. Windows have no gaps between
them: the next one begins with the event after the last, and opens when the last one closed.

| Observation | The window ends | Its time |
|---|---|---|
| an event begins `size_bytes` or more after the first | before that event | of that event |
| an event was stored `interval_ms` or more after it opened | before that event | when it was due |
| neither, and by the clock it is due | after the last event | when it was due |
| neither, and the clock was set back | an interval after it was first observed | of the clock |
| Capture was switched off | after the last event before that | of that moment |

Exactly once: wherever the log has an event after the boundary, the boundary follows from the log
alone, so a job that is late closes the same windows as one that is on time. Empty windows that
passed while no job ran are one window. Events that retention removed before they were read belong
to the window that they would have been in; its file tells how many were lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from penstock.model.capture import RunProgress

NOT_BEGUN = -1
UNKNOWN = -1
GRACE_MS = 1_000
"""How long a window stays open after it is due, for events that are not committed yet."""


class EventLocation(msgspec.Struct, frozen=True, gc=False):
    """The position of an event in the log."""

    sequence: int
    offset: int
    enqueued_ms: int


class PartitionEnd(msgspec.Struct, frozen=True, gc=False):
    """A partition's end. With `is_empty` no event before it is retained."""

    next_sequence: int
    last_offset: int
    newest_ms: int
    is_empty: bool = False


class PartitionEvents(Protocol):
    """One partition's log. Each method returns the first retained event at a position or after
    it, None where there is none yet."""

    def at(self, sequence: int) -> EventLocation | None: ...

    def beyond(self, offset: int) -> EventLocation | None:
        """The first that begins at this offset or after it."""
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
    """When Capture was switched off, and the first event that it leaves out."""

    sequence: int
    at_ms: int


class WindowStart(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Where the open window of a partition begins. Serialized: the order of fields is stored."""

    sequence: int  # of the next event to capture
    offset: int = UNKNOWN  # of that event
    opened_ms: int = NOT_BEGUN
    named_s: int = 0  # the time in the last window's name
    window: int = 0  # number of closed windows


def start_after(progress: RunProgress) -> WindowStart:
    """Where the window after the reported progress begins."""
    return WindowStart(
        progress.sequence, UNKNOWN, progress.opened_ms, progress.named_s, progress.window
    )


class ClosedRange(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A closed window: events from `first` to before `end`, none when they are equal. Serialized:
    the order of fields is stored."""

    window: int
    first: int
    end: int
    named_s: int
    closed_ms: int = UNKNOWN

    @property
    def next_start(self) -> WindowStart:
        """Where the next window begins. Sufficient to close the same windows from here on."""
        opened_ms = self.named_s * 1000 if self.closed_ms == UNKNOWN else self.closed_ms
        return WindowStart(self.end, UNKNOWN, opened_ms, self.named_s, self.window + 1)

    @property
    def is_empty(self) -> bool:
        return self.first == self.end


class PartitionObservation(msgspec.Struct, frozen=True, gc=False):
    """The log's end and the time at one moment. `waited_ms` is how long the open window has been
    observed, by the monotonic clock."""

    end: PartitionEnd
    now_ms: int
    waited_ms: int = 0
    stop: CaptureStop | None = None


class WindowTimer:
    """How long this process has observed each partition's open window."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[int, int]] = {}  # window, when it was first seen

    def waited_ms(self, partition: str, start: WindowStart, steady_ms: int) -> int:
        """`steady_ms` is the monotonic time."""
        if start.opened_ms == NOT_BEGUN:
            return 0
        window, since_ms = self._since.get(partition, (-1, 0))
        if window != start.window:
            self._since[partition] = (start.window, steady_ms)
            return 0
        return steady_ms - since_ms


def open_first_windows(
    starts: Mapping[str, WindowStart],
    ends: Mapping[str, PartitionEnd],
    logs: Mapping[str, PartitionEvents],
) -> dict[str, WindowStart]:
    """Capture begins with the first event after it was switched on: then all partitions of the
    hub open their first window."""
    waiting = [key for key, start in starts.items() if start.opened_ms == NOT_BEGUN]
    firsts = [
        first.enqueued_ms
        for key in waiting
        if key in ends and _has_events(ends[key], starts[key])
        if (first := logs[key].at(starts[key].sequence)) is not None
    ]
    # A partition that joins later opens its first window with the open ones.
    firsts += [start.opened_ms for start in starts.values() if start.opened_ms != NOT_BEGUN]
    opened_ms = min(firsts, default=NOT_BEGUN)
    return {
        key: msgspec.structs.replace(start, opened_ms=opened_ms) if key in waiting else start
        for key, start in starts.items()
    }


def is_log_behind(start: WindowStart, end: PartitionEnd) -> bool:
    """Whether the log is shorter than what was captured of it: an older copy was restored."""
    return start.sequence > end.next_sequence


def window_start_at_end(
    start: WindowStart, end: PartitionEnd, now_ms: int
) -> tuple[WindowStart, list[ClosedRange]]:
    """For a log that went back: continue from its end, with later names than those of the events
    that it had before. An empty window is closed at once, so that the new position is stored: a
    later observation would find a later end."""
    back = msgspec.structs.replace(start, sequence=end.next_sequence, offset=UNKNOWN)
    cut, following = _close_range(back, end.next_sequence, UNKNOWN, now_ms)
    return following, [cut]


def close_windows(
    start: WindowStart,
    rules: WindowRules,
    log: PartitionEvents,
    seen: PartitionObservation,
    *,
    windows_max: int,
    bytes_max: int,
) -> tuple[WindowStart, list[ClosedRange]]:
    """Where the next window begins, and the windows that are over, oldest first: up to
    `windows_max`, and none after they have `bytes_max` bytes."""
    cuts: list[ClosedRange] = []
    if seen.stop is not None:
        end = seen.end
        sequence = min(end.next_sequence, seen.stop.sequence)
        newest_ms = min(end.newest_ms, seen.stop.at_ms)
        seen = msgspec.structs.replace(
            seen, end=PartitionEnd(sequence, end.last_offset, newest_ms, end.is_empty)
        )
    taken = 0
    while start.opened_ms != NOT_BEGUN and len(cuts) < windows_max and taken < bytes_max:
        start = _locate_start(start, log, seen)
        closed = _close_next(start, rules, log, seen)
        if closed is None:
            break
        cut, following = closed
        if following.offset != UNKNOWN and start.offset != UNKNOWN:
            taken += following.offset - start.offset
        elif not cut.is_empty:
            taken += rules.size_bytes
        cuts.append(cut)
        start = following
        seen = msgspec.structs.replace(seen, waited_ms=0)
    return start, cuts


def _locate_start(
    start: WindowStart, log: PartitionEvents, seen: PartitionObservation
) -> WindowStart:
    """The start with the offset of its first retained event."""
    if start.offset != UNKNOWN or not _has_events(seen.end, start):
        return start
    first = log.at(start.sequence)
    return start if first is None else msgspec.structs.replace(start, offset=first.offset)


def _has_events(end: PartitionEnd, start: WindowStart) -> bool:
    """Whether an event can be read: a read from an empty log would wait for its timeout."""
    return end.next_sequence > start.sequence and not end.is_empty


def _close_next(
    start: WindowStart, rules: WindowRules, log: PartitionEvents, seen: PartitionObservation
) -> tuple[ClosedRange, WindowStart] | None:
    due_ms = start.opened_ms + rules.interval_ms
    by_time: EventLocation | None = None
    by_size: EventLocation | None = None
    if _has_events(seen.end, start):
        limit = start.offset + rules.size_bytes
        if start.offset != UNKNOWN and seen.end.last_offset >= limit:
            by_size = _ignore_beyond_end(log.beyond(limit), seen)
        if seen.end.newest_ms >= due_ms:
            by_time = _ignore_beyond_end(log.since(due_ms), seen)
    if by_time is not None and (by_size is None or by_time.sequence <= by_size.sequence):
        sequence = max(by_time.sequence, start.sequence)
        if sequence == start.sequence:
            due_ms = _last_boundary_ms(start.opened_ms, rules.interval_ms, by_time.enqueued_ms)
        return _close_range(start, sequence, by_time.offset, due_ms)
    if by_size is not None:
        closed_ms = max(by_size.enqueued_ms, start.opened_ms)
        return _close_range(start, by_size.sequence, by_size.offset, closed_ms)
    return _close_by_clock(start, rules, seen, due_ms)


def _ignore_beyond_end(
    event: EventLocation | None, seen: PartitionObservation
) -> EventLocation | None:
    """Ignore events after the end that this round works with."""
    return event if event is not None and event.sequence < seen.end.next_sequence else None


def _close_by_clock(
    start: WindowStart, rules: WindowRules, seen: PartitionObservation, due_ms: int
) -> tuple[ClosedRange, WindowStart] | None:
    end = max(seen.end.next_sequence, start.sequence)
    is_empty = end == start.sequence
    now_ms = seen.now_ms
    if seen.stop is not None:
        # After switching off, a window without events gets no file.
        closed_ms = max(min(due_ms, seen.stop.at_ms), start.opened_ms)
        return None if is_empty else _close_range(start, end, UNKNOWN, closed_ms)
    if now_ms >= due_ms + rules.grace_ms:
        if is_empty:
            due_ms = _last_boundary_ms(start.opened_ms, rules.interval_ms, now_ms - rules.grace_ms)
        return _close_range(start, end, UNKNOWN, due_ms)
    if seen.waited_ms >= rules.interval_ms + rules.grace_ms:
        return _close_range(start, end, UNKNOWN, now_ms)  # the clock's present time holds from now
    return None


def _last_boundary_ms(opened_ms: int, interval_ms: int, until_ms: int) -> int:
    """The last multiple of the interval by then; at least one has passed."""
    return opened_ms + max(1, (until_ms - opened_ms) // interval_ms) * interval_ms


def _close_range(
    start: WindowStart, end: int, offset: int, closed_ms: int
) -> tuple[ClosedRange, WindowStart]:
    # Two windows of one second need two names, and a clock that was set back must not give an
    # older name.
    named_s = max(start.named_s + 1, closed_ms // 1000)
    cut = ClosedRange(start.window, start.sequence, end, named_s, closed_ms)
    return cut, msgspec.structs.replace(cut.next_start, offset=offset)
