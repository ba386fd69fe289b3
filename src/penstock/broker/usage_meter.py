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

from penstock.broker.counters import HubCounters
from penstock.model import limits
from penstock.model.names import NamespaceName
from penstock.model.usage import Usage, hour_of


class UsageMeter:
    """One namespace's. Times are wall-clock milliseconds; `runs` numbers runs; `on_change` is told
    when there is something to write for the first time since `counts` was asked.

    Events that come in are counted by the hubs themselves, once for the metrics and the ledger: the
    meter takes over what they have counted whenever a second ends. So who counts one compares
    `second` first, and lets the meter `pass_to` the new one.
    """

    __slots__ = (
        "_came",
        "_closed",
        "_held",
        "_hubs",
        "_on_change",
        "_run",
        "_runs",
        "_second_came",
        "_second_out",
        "_sums",
        "is_changed",
        "namespace",
        "second",
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
        self.is_changed = False  # whether there is something that `counts` has not handed out
        self._held = units  # None: as many as are needed
        self._runs = runs
        self._on_change = on_change
        self._hubs: list[HubCounters] = []
        self._came = _IngressTotals()  # of all hubs, as far as it is in the sums
        self._second_came = self._came  # the same when the second began
        self._closed: list[Usage] = []  # of runs that are over, until they are written
        self._open(now_ms)

    def follow(self, counters: HubCounters) -> None:
        """A hub of the namespace, which has counted nothing yet."""
        self._hubs.append(counters)

    def leave(self, counters: HubCounters) -> None:
        """The hub is deleted; what it counted stays."""
        if counters in self._hubs:
            self._take_over()
            before = self._came
            self._hubs.remove(counters)
            self._came = now = self._all_that_came()
            # Of the second that runs it stays counted as well.
            self._second_came = self._second_came.rebase(before, now)

    def egress(self, size: int, now_ms: int) -> None:
        """So many bytes of events were delivered."""
        if now_ms // 1000 != self.second:
            self._turn(now_ms)
        self._second_out += size
        self._sums.egress_bytes += size
        if not self.is_changed:
            self.change()

    def add_capture_hours(self, hours: int, now_ms: int) -> None:
        """So many event hubs were captured in this hour."""
        self.pass_to(now_ms)
        self._sums.capture_hours += hours
        self.change()

    def hold(self, units: int | None, now_ms: int) -> None:
        """So many units are held from now on; None: what is needed. The hour is billed by the most
        that were held in it, so one that is bought and given back at once is one hour of it."""
        self.pass_to(now_ms)
        if units != self._held:
            self._take_over()
            self._held = units
            self._sums.units = max(self._sums.units, _lowest_units(units))
            self.change()

    def pass_to(self, now_ms: int) -> None:
        """Time has passed, whether anything was used or not: a new hour begins with what is
        held."""
        if now_ms // 1000 != self.second:
            self._turn(now_ms)

    def change(self) -> None:
        """Something is, or will be, counted."""
        if not self.is_changed:
            self.is_changed = True
            self._on_change()

    @property
    def units(self) -> int:
        """Of the hour that runs: the most that were held, or needed where they are not enforced."""
        self._take_over()
        return self._sums.units

    def counts(self) -> list[Usage]:
        """Every count that may not be written yet, whole; the run by its number."""
        self.is_changed = False
        self._take_over()
        return [*self._closed, self._sums.usage(self.namespace, self._run)]

    def confirm_written(self, counts: list[Usage]) -> None:
        """They are in the ledger: runs that are over, and were so then, are forgotten."""
        self._closed = [count for count in self._closed if count not in counts]

    def retain_unwritten(self) -> None:
        """They are not, or nobody knows: they are handed out again."""
        self.is_changed = True

    def _open(self, now_ms: int) -> None:
        self._run = str(self._runs())
        self._sums = _HourTotals(hour_ms=hour_of(now_ms), units=_lowest_units(self._held))
        self._begin_second(now_ms)
        self.change()

    def _turn(self, now_ms: int) -> None:
        """Another second; perhaps another hour, later or, when the clock was set, earlier."""
        self._take_over()
        if hour_of(now_ms) == self._sums.hour_ms:
            self._begin_second(now_ms)
            return
        self._closed.append(self._sums.usage(self.namespace, self._run))
        self._open(now_ms)

    def _begin_second(self, now_ms: int) -> None:
        self.second = now_ms // 1000
        self._second_came = self._came
        self._second_out = 0

    def _take_over(self) -> None:
        """What the hubs have counted since the last time is of the second, and hour, that runs.
        Where units are not enforced, the hour's are what its busiest second needed."""
        came, sums = self._all_that_came(), self._sums
        messages = came.messages - self._came.messages
        sums.ingress_messages += messages
        sums.ingress_events += messages + came.steps - self._came.steps
        sums.ingress_bytes += came.size - self._came.size
        self._came = came
        if self._held is None:
            began = self._second_came
            needed = max(
                -(-(came.messages - began.messages) // limits.UNIT_INGRESS_EVENTS_PER_S),
                -(-(came.size - began.size) // limits.UNIT_INGRESS_BYTES_PER_S),
                -(-self._second_out // limits.UNIT_EGRESS_BYTES_PER_S),
            )
            sums.units = max(sums.units, needed)

    def _all_that_came(self) -> _IngressTotals:
        messages = size = steps = 0
        for hub in self._hubs:
            messages += hub.incoming_messages
            size += hub.incoming_bytes
            steps += hub.incoming_steps
        return _IngressTotals(messages, size, steps)


class _IngressTotals(msgspec.Struct, frozen=True, gc=False):
    """What came in until some moment."""

    messages: int = 0
    size: int = 0
    steps: int = 0

    def rebase(self, before: _IngressTotals, now: _IngressTotals) -> _IngressTotals:
        return _IngressTotals(
            self.messages - before.messages + now.messages,
            self.size - before.size + now.size,
            self.steps - before.steps + now.steps,
        )


class _HourTotals(msgspec.Struct, kw_only=True, gc=False):
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


def _lowest_units(units: int | None) -> int:
    return 1 if units is None else units
