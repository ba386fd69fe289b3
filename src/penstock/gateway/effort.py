"""Work that nothing comes of: how much of it one peer may cause before it has to wait.

A peer can send frames that cost us far more than them: flows, dispositions, empty frames, links
that come and go, tokens, publications to be refused. A unit is about one such frame, some 25 us.
Each connection has so many at once and so many a second; above that its socket is not read for a
while. What is published or delivered earns units, so that busy clients, however chatty, never
come near the bound, and honest bursts (opening all partitions) lie within it.

Who rests is not read, so that nobody notices when it is gone: one that rests for long without
anything coming of it is given up, and so is the worst of them when there are too many.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.model import limits

# What is looked at before the balance is looked at again. A peer that has earned its trust is
# read in whole reads: they become whole batches.
FRAMES_AT_ONCE = 16
BYTES_AT_ONCE = 4 * limits.KB

ATTACH = 16  # units, beside the frame's own
REQUEST = 10  # of $cbs or $management: signatures to verify, a message to write
FAILED_TOKEN = 12  # beside the request's own: every key is tried, the answer waits
REFUSAL = 4  # of a publication: an outcome of its own, with its reason

_EVENT_EARNS = 2  # a flow and a disposition for each event
_BYTES_EARN = 256  # so many earn one: frames of an event of many
_TRUST = 256  # units that were earned since the balance was last overdrawn
_UNITS_PER_MS = limits.EFFORT_UNITS_PER_S // 1000
assert _UNITS_PER_MS >= 1


class Resting:
    """Connections that are not read for a while: the more there are, the longer each rests, so
    that all of them together cost a bounded share of the loop."""

    def __init__(self, resting_max: int = limits.RESTING_MAX) -> None:
        self._resting_max = resting_max
        self._efforts: dict[Effort, None] = {}

    @property
    def count(self) -> int:
        return len(self._efforts)

    def add(self, effort: Effort) -> None:
        self._efforts[effort] = None
        if len(self._efforts) > self._resting_max:
            # Those at it for the longest are the least likely to have a good reason.
            worst = min(self._efforts, key=lambda each: each.restless_since_ms or 0)
            del self._efforts[worst]
            worst.give_up()

    def remove(self, effort: Effort) -> None:
        self._efforts.pop(effort, None)


class Effort:
    """One connection's balance; times are monotonic milliseconds. `is_blamed`: its address has
    had too many connections that came to nothing, so that it begins with little. `on_give_up`
    ends the connection."""

    __slots__ = (
        "_balance",
        "_burst",
        "_earned",
        "_is_blamed",
        "_on_give_up",
        "_resting",
        "_since_ms",
        "is_resting",
        "restless_since_ms",
    )

    def __init__(
        self,
        resting: Resting,
        now_ms: int,
        *,
        is_blamed: bool = False,
        on_give_up: Callable[[], object] | None = None,
    ) -> None:
        self._resting = resting
        self._is_blamed = is_blamed
        self._on_give_up = on_give_up
        self._burst = self._balance = (
            limits.EFFORT_UNITS_BLAMED if is_blamed else limits.EFFORT_UNITS_STRANGER
        )
        self._earned = 0
        self._since_ms = now_ms
        self.is_resting = False
        self.restless_since_ms: int | None = None  # its first rest since anything came of it

    @property
    def is_trusted(self) -> bool:
        return self._earned >= _TRUST

    def known(self) -> None:
        """The peer has shown who it is: its measure is that of a client, whatever others at its
        address did (design.md 7: a good token is never delayed)."""
        self._is_blamed = False
        self._balance += limits.EFFORT_UNITS_MAX - self._burst
        self._burst = limits.EFFORT_UNITS_MAX

    def spend(self, units: int) -> None:
        self._balance -= units

    def earn(self, events: int, size: int) -> None:
        """Events that were published or delivered, of so many bytes."""
        earned = events * _EVENT_EARNS + size // _BYTES_EARN
        self.restless_since_ms = None
        self._earned += earned
        self._balance = min(self._balance + earned, self._burst + limits.EFFORT_UNITS_EARNED_MAX)

    def rest_ms(self, now_ms: int) -> int:
        """How long the peer is not to be read; 0: go on. `rested` says that it was waited."""
        if self._balance < self._burst:
            given = (now_ms - self._since_ms) * _UNITS_PER_MS
            self._balance = min(self._balance + given, self._burst)
        self._since_ms = now_ms
        if self._balance >= 0:
            return 0
        self._earned = 0
        self.is_resting = True
        if self.restless_since_ms is None:
            self.restless_since_ms = now_ms
        self._resting.add(self)
        restless_ms_max = (
            limits.EFFORT_RESTLESS_BLAMED_MS_MAX
            if self._is_blamed
            else limits.EFFORT_RESTLESS_MS_MAX
        )
        if now_ms - self.restless_since_ms >= restless_ms_max:
            self.give_up()
        all_of_them = -self._balance * self._resting.count
        return min(
            all_of_them * 1000 // limits.EFFORT_UNITS_ALL_PER_S + 1, limits.EFFORT_REST_MS_MAX
        )

    def rested(self, now_ms: int) -> None:
        """The wait is over, or the connection is."""
        if self.is_resting:
            self.is_resting = False
            self._resting.remove(self)
            self._balance = max(0, self._balance)
            self._since_ms = now_ms

    def give_up(self) -> None:
        """End the connection, unless that was done before."""
        end, self._on_give_up = self._on_give_up, None
        if end is not None:
            end()
