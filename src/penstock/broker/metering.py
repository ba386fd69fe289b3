"""What a namespace uses, counted for the ledger: by clock hours, in memory, without I/O.

A `Meter` counts what is acknowledged and delivered into the hour that runs. Each hour that it
enters is a run of its own, with a number that no other run of this process has: when the wall clock
is set back into an hour that was counted before, that is another run of it, and runs are added up.
Counts are handed out whole and only grow, so that writing one twice is writing it once
(docs/metering.md).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.model import limits
from penstock.model.events import EventBatch
from penstock.model.ledger import Usage, hour_of
from penstock.model.names import NamespaceName

_STEP = limits.USAGE_STEP_BYTES
_SHORT, _LONG = 0xA0, 0xB0  # an event's length in one byte, or in four (model.events)
_SHORT_HEAD, _LONG_HEAD = 5, 8


class Meter:
    """One namespace's. Times are wall-clock milliseconds; `runs` numbers runs; `on_change` is told
    when there is something to write for the first time since `counts` was asked."""

    __slots__ = (
        "_changed",
        "_closed",
        "_held",
        "_on_change",
        "_run",
        "_runs",
        "_second",
        "_second_bytes",
        "_second_events",
        "_second_out",
        "_sums",
        "namespace",
    )

    def __init__(
        self,
        namespace: NamespaceName,
        units: int | None,
        *,
        now_ms: int,
        runs: Callable[[], int],
        on_change: Callable[[], None],
    ) -> None:
        self.namespace = namespace
        self._held = units  # None: as many as are needed
        self._runs = runs
        self._on_change = on_change
        self._changed = False
        self._closed: list[Usage] = []  # of runs that are over, until they are written
        self._open(now_ms)

    def ingress(self, messages: int, events: int, size: int, now_ms: int) -> None:
        """A publication was acknowledged: so many events, in steps of 64 KB so many, of so many
        bytes in all."""
        if now_ms // 1000 != self._second:
            self._turn(now_ms)
        self._second_events += messages
        self._second_bytes += size
        sums = self._sums
        sums.ingress_messages += messages
        sums.ingress_events += events
        sums.ingress_bytes += size
        if not self._changed:
            self._change()

    def egress(self, size: int, now_ms: int) -> None:
        """So many bytes of events were delivered."""
        if now_ms // 1000 != self._second:
            self._turn(now_ms)
        self._second_out += size
        self._sums.egress_bytes += size
        if not self._changed:
            self._change()

    def captured(self, hours: int, now_ms: int) -> None:
        """So many event hubs were captured in this hour."""
        if now_ms // 1000 != self._second:
            self._turn(now_ms)
        self._sums.capture_hours += hours
        self._change()

    def hold(self, units: int | None, now_ms: int) -> None:
        """So many units are held from now on; None: what is needed. The hour is billed by the most
        that were held in it, so one that is bought and given back at once is one hour of it."""
        self.pass_to(now_ms)
        if units != self._held:
            self._note_need()
            self._held = units
            self._sums.units = max(self._sums.units, _least(units))
            self._change()

    def pass_to(self, now_ms: int) -> None:
        """Time has passed, whether anything was used or not: a new hour begins with what is
        held."""
        if now_ms // 1000 != self._second:
            self._turn(now_ms)

    @property
    def units(self) -> int:
        """Of the hour that runs: the most that were held, or needed where they are not enforced."""
        self._note_need()
        return self._sums.units

    @property
    def is_changed(self) -> bool:
        """Whether there is something that `counts` has not handed out."""
        return self._changed

    def counts(self) -> list[Usage]:
        """Every count that may not be written yet, whole; the run by its number."""
        self._changed = False
        self._note_need()
        return [*self._closed, self._sums.usage(self.namespace, self._run)]

    def written(self, counts: list[Usage]) -> None:
        """They are in the ledger: runs that are over, and were so then, are forgotten."""
        self._closed = [count for count in self._closed if count not in counts]

    def not_written(self) -> None:
        """They are not, or nobody knows: they are handed out again."""
        self._changed = True

    def _change(self) -> None:
        if not self._changed:
            self._changed = True
            self._on_change()

    def _open(self, now_ms: int) -> None:
        self._run = str(self._runs())
        self._sums = _Sums(hour_ms=hour_of(now_ms), units=_least(self._held))
        self._begin_second(now_ms)
        self._change()

    def _turn(self, now_ms: int) -> None:
        """Another second; perhaps another hour, later or, when the clock was set, earlier."""
        self._note_need()
        if hour_of(now_ms) == self._sums.hour_ms:
            self._begin_second(now_ms)
            return
        self._closed.append(self._sums.usage(self.namespace, self._run))
        self._open(now_ms)

    def _begin_second(self, now_ms: int) -> None:
        self._second = now_ms // 1000
        self._second_events = 0
        self._second_bytes = 0
        self._second_out = 0

    def _note_need(self) -> None:
        """Where units are not enforced, the hour's are what its busiest second needed."""
        if self._held is None:
            needed = max(
                -(-self._second_events // limits.UNIT_INGRESS_EVENTS_PER_S),
                -(-self._second_bytes // limits.UNIT_INGRESS_BYTES_PER_S),
                -(-self._second_out // limits.UNIT_EGRESS_BYTES_PER_S),
            )
            self._sums.units = max(self._sums.units, needed)


class _Sums(msgspec.Struct, kw_only=True, gc=False):
    """The run that is being counted."""

    hour_ms: int
    units: int
    ingress_events: int = 0
    ingress_messages: int = 0
    ingress_bytes: int = 0
    egress_bytes: int = 0
    capture_hours: int = 0

    def usage(self, namespace: NamespaceName, run: str) -> Usage:
        return Usage(namespace=namespace, run=run, **msgspec.structs.asdict(self))


def _least(units: int | None) -> int:
    return 1 if units is None else units


def metered_events(batch: EventBatch) -> int:
    """Events in steps of 64 KB: one of up to 64 KB is one, of up to 128 KB two, and so on."""
    sections, count = batch.sections, batch.count
    if len(sections) <= _STEP:
        return count
    # The usual batches are proven small without a look at each event: all lengths stand in one
    # byte, or all events have the same length.
    if _LONG not in sections or _are_alike_and_small(sections, count):
        return count
    return _walked(sections)


def _are_alike_and_small(sections: bytes, count: int) -> bool:
    """Whether each event's head is the same: then the first one's length is that of all."""
    size, rest = divmod(len(sections), count)
    head = _SHORT_HEAD if sections[3] == _SHORT else _LONG_HEAD
    if rest or size - head > _STEP or int.from_bytes(sections[4:head], "big") != size - head:
        return False
    return all(sections[i::size] == sections[i : i + 1] * count for i in range(head))


def _walked(sections: bytes) -> int:
    events = position = 0
    end = len(sections)
    while position < end:
        if sections[position + 3] == _SHORT:
            position += _SHORT_HEAD + sections[position + 4]
            events += 1
        else:
            size = int.from_bytes(sections[position + 4 : position + _LONG_HEAD], "big")
            position += _LONG_HEAD + size
            events += max(1, -(-size // _STEP))
    return events
