"""Counters of a hub; usage of a namespace per clock hour, counted in memory for the ledger.

A `UsageMeter` counts acknowledged and delivered events into the current hour. Each hour that it
enters is a run with its own number: if the wall clock is set back into an earlier hour, that hour
gets another run, and the ledger adds runs up. Counts are totals of a run and only grow, so writing
one twice has the effect of writing it once (docs/reference/metering.md).
"""

from __future__ import annotations

from collections.abc import Callable
from operator import sub

import msgspec

from penstock.model import limits
from penstock.model.metrics import LatencyHistogram
from penstock.model.names import NamespaceName
from penstock.model.usage import Usage, hour_of

_Ingress = tuple[int, int, int]  # messages, bytes, 64 KB steps beyond the first of each event


class HubCounters:
    """Counters of a hub since it was opened, for the metrics and, for ingress, for the ledger. A
    request is one publication. Messages and bytes count when acknowledged or delivered.

    A plain class, not a struct: each publication adds to it, and plain attributes are fastest.
    """

    def __init__(self) -> None:
        self.incoming_messages = 0
        self.incoming_bytes = 0
        self.incoming_steps = 0  # 64 KB steps of large events beyond the first of each
        self.outgoing_messages = 0
        self.outgoing_bytes = 0
        self.throttled_requests = 0
        self.user_errors = 0
        self.server_errors = 0
        self.publish_latency = LatencyHistogram()

    @property
    def successful_requests(self) -> int:
        return self.publish_latency.count


class UsageMeter:
    """The meter of one namespace. Times are wall-clock milliseconds. `runs` returns the next run
    number. `on_change` is called at the first change after `counts`.

    The hubs count ingress once, for metrics and ledger (`HubCounters`); the meter collects their
    counters when a second ends. So before a hub counts a publication it compares `second`, and
    calls `pass_to` if another second has begun.
    """

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
        self.is_changed = False  # there are counts that `counts` did not return yet
        self._units = units  # held; None: units are not enforced
        self._runs = runs
        self._on_change = on_change
        self._hubs: list[HubCounters] = []
        self._collected: _Ingress = (0, 0, 0)  # ingress of all hubs that is in `_sums`
        self._second_start = self._collected  # `_collected` when the second began
        self._closed: list[Usage] = []  # counts of finished runs, until they are written
        self._open(now_ms)

    def follow(self, counters: HubCounters) -> None:
        """Add a hub of the namespace whose counters are still 0."""
        self._hubs.append(counters)

    def leave(self, counters: HubCounters) -> None:
        """Remove a deleted hub; its counts so far are kept."""
        if counters in self._hubs:
            self._collect()
            self._hubs.remove(counters)
            self._collected = self._sum_hubs()
            # Its ingress in the current second stays counted too.
            messages, size, steps = self._second_start
            self._second_start = (
                messages - counters.incoming_messages,
                size - counters.incoming_bytes,
                steps - counters.incoming_steps,
            )

    def egress(self, size: int, now_ms: int) -> None:
        """Count `size` delivered bytes."""
        if now_ms // 1000 != self.second:
            self._change_second(now_ms)
        self._second_out += size
        self._sums.egress_bytes += size
        if not self.is_changed:
            self.change()

    def hold(self, units: int | None, now_ms: int) -> None:
        """The namespace holds `units` from now on; None if they are not enforced. An hour counts
        the highest number held in it, however briefly."""
        self.pass_to(now_ms)
        if units != self._units:
            self._collect()
            self._units = units
            self._sums.units = max(self._sums.units, _lowest_units(units))
            self.change()

    def pass_to(self, now_ms: int) -> None:
        """Advance to `now_ms`. A new hour starts with the units that are held, used or not."""
        if now_ms // 1000 != self.second:
            self._change_second(now_ms)

    def change(self) -> None:
        """Mark the counts as changed."""
        if not self.is_changed:
            self.is_changed = True
            self._on_change()

    @property
    def units(self) -> int:
        """Units of the current hour: the most held, or the most needed if they are not enforced."""
        self._collect()
        return self._sums.units

    def counts(self) -> list[Usage]:
        """All counts that may not be written yet, as totals of their runs."""
        self.is_changed = False
        self._collect()
        return [*self._closed, self._sums.usage(self.namespace, self._run)]

    def confirm_written(self, counts: list[Usage]) -> None:
        """The counts are in the ledger: forget those of finished runs."""
        self._closed = [count for count in self._closed if count not in counts]

    def retain_unwritten(self) -> None:
        """The counts were not written, or the outcome is unknown: `counts` returns them again."""
        self.is_changed = True

    def _open(self, now_ms: int) -> None:
        self._run = str(self._runs())
        self._sums = _HourTotals(hour_ms=hour_of(now_ms), units=_lowest_units(self._units))
        self._begin_second(now_ms)
        self.change()

    def _change_second(self, now_ms: int) -> None:
        """Another second begins, perhaps in another hour: a later one, or an earlier one if the
        clock was set back."""
        self._collect()
        if hour_of(now_ms) == self._sums.hour_ms:
            self._begin_second(now_ms)
            return
        self._closed.append(self._sums.usage(self.namespace, self._run))
        self._open(now_ms)

    def _begin_second(self, now_ms: int) -> None:
        self.second = now_ms // 1000
        self._second_start = self._collected
        self._second_out = 0

    def _collect(self) -> None:
        """Add what the hubs counted since the last call to the current hour. If units are not
        enforced, the units of the hour are those that its busiest second needed."""
        total, sums = self._sum_hubs(), self._sums
        messages, size, steps = map(sub, total, self._collected)
        sums.ingress_messages += messages
        sums.ingress_events += messages + steps
        sums.ingress_bytes += size
        self._collected = total
        if self._units is None:
            messages, size, _ = map(sub, total, self._second_start)
            needed = max(
                -(-messages // limits.UNIT_INGRESS_EVENTS_PER_S),
                -(-size // limits.UNIT_INGRESS_BYTES_PER_S),
                -(-self._second_out // limits.UNIT_EGRESS_BYTES_PER_S),
            )
            sums.units = max(sums.units, needed)

    def _sum_hubs(self) -> _Ingress:
        messages = size = steps = 0
        for hub in self._hubs:
            messages += hub.incoming_messages
            size += hub.incoming_bytes
            steps += hub.incoming_steps
        return messages, size, steps


class _HourTotals(msgspec.Struct, kw_only=True, gc=False):
    """Counts of the current run."""

    hour_ms: int
    units: int
    ingress_events: int = 0
    ingress_messages: int = 0
    ingress_bytes: int = 0
    egress_bytes: int = 0

    def usage(self, namespace: NamespaceName, run: str) -> Usage:
        return Usage(namespace=namespace, run=run, **msgspec.structs.asdict(self))


def _lowest_units(units: int | None) -> int:
    return 1 if units is None else units
