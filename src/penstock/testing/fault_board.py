"""The armed faults of a broker: what they are, how often they struck, and when they strike.

Everything but `InjectedFault` is for the broker's own thread. While no fault is armed, a
publication costs one test of an empty list and an event nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from typing import Literal, Protocol, TypeVar

from penstock.broker import error_messages
from penstock.model.errors import AuthFailed, PenstockError, ServerBusy
from penstock.model.names import fold_name

Side = Literal["send", "receive", "both"]
T = TypeVar("T")

WAIT_S = 30.0  # the default timeout of a test's wait
EXPIRED_TEXT = "ExpiredToken: The token is expired (a fault that the test asked for)."
_SIDES = ("send", "receive", "both")


class FaultKind(Enum):
    BUSY = "server_busy"
    SLOW = "slow"
    DETACH = "detach"
    DROP = "drop_connection"
    CONNECTIONS = "refuse_connections"
    TOKENS = "refuse_tokens"
    EXPIRY = "expire_token"


class RunOnBroker(Protocol):
    """Runs the function on the broker's thread and returns its result."""

    def __call__(self, work: Callable[[], T]) -> T: ...


class InjectedFault:
    """One fault. It strikes `times` times, or until it is canceled.

    May be used by any thread, and as a context manager that cancels it at the end.
    """

    def __init__(
        self,
        board: FaultBoard,
        kind: FaultKind,
        *,
        times: int | None,
        hub: str | None = None,
        side: Side = "both",
        delay_s: float = 0.0,
        after: int = 0,
        hit: Callable[[object], None] | None = None,
        acknowledges: bool = True,
    ) -> None:
        """`hit` does it to a link, after `after` events have passed. Raises ValueError."""
        if times is not None and times < 1:
            raise ValueError(f"{times} times is invalid: a fault strikes once or more often.")
        if side not in _SIDES:
            raise ValueError(f"side is {side!r}: allowed are {', '.join(_SIDES)}.")
        if after < 0:
            raise ValueError(f"{after} events cannot have passed: 0 or more can.")
        self.kind = kind
        self.hub = hub
        self.times = times
        self.side = side
        self.delay_s = delay_s
        self.acknowledges = acknowledges
        self._board = board
        self._after = after
        self._passed = 0  # events since it struck last
        self._hit = hit
        self._struck = threading.Condition()
        self._count = 0

    def __repr__(self) -> str:
        times = "any number of" if self.times is None else self.times
        return f"<fault {self.kind.value}: struck {self._count} of {times} times>"

    @property
    def count(self) -> int:
        """How often it struck."""
        return self._count

    @property
    def is_armed(self) -> bool:
        """Whether it can still strike."""
        return self in self._board.armed

    def cancel(self) -> None:
        """Disarm the fault and release what it delays. Without effect if it is over, or if the
        broker has stopped."""
        if self.is_armed:
            self._board.run(lambda: self._board.disarm(self))

    def wait(self, count: int = 1, timeout_s: float = WAIT_S) -> None:
        """Wait until it has struck `count` times; TimeoutError says how often it had."""
        with self._struck:
            if not self._struck.wait_for(lambda: self._count >= count, timeout_s):
                raise TimeoutError(f"{self!r} after {timeout_s:g} s: {count} was waited for.")

    def __enter__(self) -> InjectedFault:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    # on the broker's thread

    def matches(self, hub: str | None, side: Side = "both") -> bool:
        is_hub = self.hub is None or hub is None or fold_name(self.hub) == fold_name(hub)
        return is_hub and (self.side == side or "both" in (self.side, side))

    def strike(self, times: int = 1) -> None:
        with self._struck:
            self._count += times
            self._struck.notify_all()
        if self.times is not None and self._count >= self.times:
            self._board.disarm(self)

    def count_events(self, events: int) -> bool:
        """Count events that passed; whether the fault strikes now."""
        self._passed += events
        if self._passed < self._after:
            return False
        self._passed = 0
        self.strike()
        return True

    def hit(self, link: object) -> None:
        """Detach or drop the link by which the last event went."""
        if self._hit is not None:
            self._hit(link)


class FaultBoard:
    """Every armed fault. `wake_ups` are called when a `slow` fault ends, to release what waits."""

    def __init__(self, run: RunOnBroker) -> None:
        self.run = run
        self.armed: list[InjectedFault] = []
        self.wake_ups: dict[Callable[[], None], None] = {}  # ordered

    def arm(self, fault: InjectedFault) -> None:
        self.armed.append(fault)

    def disarm(self, fault: InjectedFault) -> None:
        if fault in self.armed:
            self.armed.remove(fault)
            if fault.kind is FaultKind.SLOW:
                self._wake_up()

    def disarm_all(self) -> None:
        self.armed.clear()
        self._wake_up()

    def busy_error(self, hub: str) -> ServerBusy | None:
        """The error with which a publication is refused now."""
        is_busy = self._strike_first(FaultKind.BUSY, hub)
        return error_messages.server_busy_error() if is_busy else None

    def delay_s(self, hub: str, side: Side) -> float:
        """How long to delay: the longest delay of any fault."""
        faults = [f for f in self.armed if f.kind is FaultKind.SLOW and f.matches(hub, side)]
        if not faults:
            return 0.0
        slowest = max(faults, key=lambda fault: fault.delay_s)
        slowest.strike()
        return slowest.delay_s

    def counting_faults(self, hub: str, side: Side) -> list[InjectedFault]:
        kinds = (FaultKind.DETACH, FaultKind.DROP)
        return [f for f in self.armed if f.kind in kinds and f.matches(hub, side)]

    def count_events(self, hub: str, side: Side, events: int) -> list[InjectedFault]:
        """Count events that passed; return the faults that hit their link now."""
        return [fault for fault in self.counting_faults(hub, side) if fault.count_events(events)]

    def refuses_connection(self) -> bool:
        return self._strike_first(FaultKind.CONNECTIONS)

    def token_error(self) -> AuthFailed | None:
        """The error with which a token is refused now."""
        return AuthFailed(EXPIRED_TEXT) if self._strike_first(FaultKind.TOKENS) else None

    def _strike_first(self, kind: FaultKind, hub: str | None = None) -> bool:
        for fault in self.armed:
            if fault.kind is kind and fault.matches(hub):
                fault.strike()
                return True
        return False

    def _wake_up(self) -> None:
        for wake_up in list(self.wake_ups):
            wake_up()


def error_for_condition(condition: str, text: str) -> PenstockError:
    """An error with any AMQP condition, whether the service uses it or not."""
    kind = type("InjectedError", (PenstockError,), {"condition": condition, "retriable": True})
    error = kind(text)
    assert isinstance(error, PenstockError)
    return error
