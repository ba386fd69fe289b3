"""Faults that are armed now: what they are, how often they struck, who is told.

A `Board` holds them. Everything but `InjectedFault` is for the broker's own thread. Where none is
armed, a publication asks one boolean and an event nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from types import TracebackType
from typing import Literal, Protocol, TypeVar

from penstock.broker import error_messages
from penstock.model.errors import AuthFailed, PenstockError, ServerBusy
from penstock.model.names import fold_name

Side = Literal["send", "receive", "both"]
T = TypeVar("T")

WAIT_S = 30.0  # how long a test waits at most, unless it says otherwise
EXPIRED_TEXT = "ExpiredToken: The token is expired (a fault that the test asked for)."


class FaultKind(Enum):
    BUSY = "server_busy"
    SLOW = "slow"
    DETACH = "detach"
    DROP = "drop_connection"
    CONNECTIONS = "refuse_connections"
    TOKENS = "refuse_tokens"
    EXPIRY = "expire_token"


class RunOnBroker(Protocol):
    """Runs the work on the broker's thread and returns what it returns."""

    def __call__(self, work: Callable[[], T]) -> T: ...


class DelayedCall(Protocol):
    """Somebody whom a `slow` fault keeps waiting."""

    def wake(self) -> None: ...


class InjectedFault:
    """One fault. It strikes until `times` is reached, or for as long as it is not cancelled.

    May be used by any thread, and as a context manager that cancels it at the end.
    """

    def __init__(
        self, board: FaultBoard, kind: FaultKind, *, times: int | None, hub: str | None
    ) -> None:
        self.kind = kind
        self.hub = hub
        self.times = times
        self._board = board
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
        return self in self._board.armed_faults(self.kind)

    def cancel(self) -> None:
        """Strike no more; who was kept waiting goes on. Harmless when it is over, or when the
        broker is gone."""
        if self.is_armed:
            self._board.run(lambda: self._board.disarm(self))

    def wait(self, count: int = 1, timeout_s: float = WAIT_S) -> None:
        """Until it has struck so often; TimeoutError says how often it had."""
        with self._struck:
            if not self._struck.wait_for(lambda: self._count >= count, timeout_s):
                raise TimeoutError(f"{self!r} after {timeout_s:g} s: {count} was waited for.")

    def __enter__(self) -> InjectedFault:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cancel()

    # on the broker's thread

    def concerns(self, hub: str) -> bool:
        return self.hub is None or fold_name(self.hub) == fold_name(hub)

    def strike(self, times: int = 1) -> None:
        with self._struck:
            self._count += times
            self._struck.notify_all()
        if self.times is not None and self._count >= self.times:
            self._board.disarm(self)


class SlowFault(InjectedFault):
    def __init__(self, board: FaultBoard, *, delay_s: float, hub: str | None, side: Side) -> None:
        super().__init__(board, FaultKind.SLOW, times=None, hub=hub)
        self.delay_s = delay_s
        self.side = side


class CountingFault(InjectedFault):
    """Strikes each time that `after` events have passed; `act` does it to the link by which the
    last of them went."""

    def __init__(
        self,
        board: FaultBoard,
        kind: FaultKind,
        *,
        after: int,
        times: int | None,
        hub: str | None,
        side: Side,
        act: Callable[[object], None],
        acknowledges: bool = True,
    ) -> None:
        super().__init__(board, kind, times=times, hub=hub)
        self.side = side
        self.acknowledges = acknowledges
        self._after = after
        self._act = act
        self._passed = 0

    def count_events(self, events: int) -> bool:
        """So many more have; whether it is to strike now."""
        self._passed += events
        if self._passed < self._after:
            return False
        self._passed = 0
        return True

    def hit(self, link: object) -> None:
        self._act(link)


class FaultBoard:
    """Every armed fault. `is_armed` is what the hubs ask first."""

    def __init__(self, run: RunOnBroker) -> None:
        self.run = run
        self.is_armed = False
        self._armed: dict[FaultKind, list[InjectedFault]] = {kind: [] for kind in FaultKind}
        self._sleepers: dict[DelayedCall, None] = {}

    def armed_faults(self, kind: FaultKind) -> list[InjectedFault]:
        return self._armed[kind]

    def arm(self, fault: InjectedFault) -> None:
        self._armed[fault.kind].append(fault)
        self.is_armed = True

    def disarm(self, fault: InjectedFault) -> None:
        armed = self._armed[fault.kind]
        if fault in armed:
            armed.remove(fault)
            self.is_armed = any(self._armed.values())
            if fault.kind is FaultKind.SLOW:
                self._wake_everybody()

    def disarm_everything(self) -> None:
        for faults in self._armed.values():
            faults.clear()
        self.is_armed = False
        self._wake_everybody()

    # --- what watchers ask ----------------------------------------------------------------------

    def busy(self, hub: str) -> ServerBusy | None:
        """Why a publication is refused now."""
        fault = self._first(FaultKind.BUSY, hub)
        if fault is None:
            return None
        fault.strike()
        return error_messages.server_busy_error()

    def delay_s(self, hub: str, side: Side) -> float:
        """How long to keep it waiting: the longest that any fault says."""
        found = [
            fault
            for fault in self._armed[FaultKind.SLOW]
            if isinstance(fault, SlowFault) and fault.concerns(hub) and fault.side in (side, "both")
        ]
        if not found:
            return 0.0
        slowest = max(found, key=lambda fault: fault.delay_s)
        slowest.strike()
        return slowest.delay_s

    def counting_faults(self, hub: str, side: Side) -> list[CountingFault]:
        return [
            fault
            for kind in (FaultKind.DETACH, FaultKind.DROP)
            for fault in self._armed[kind]
            if isinstance(fault, CountingFault)
            and fault.concerns(hub)
            and fault.side in (side, "both")
        ]

    def count_events(self, hub: str, side: Side, events: int) -> list[CountingFault]:
        """Events went by; the faults that are to hit their link for it, already counted."""
        due = [fault for fault in self.counting_faults(hub, side) if fault.count_events(events)]
        for fault in due:
            fault.strike()
        return due

    def refuses_connection(self) -> bool:
        fault = self._first(FaultKind.CONNECTIONS)
        if fault is not None:
            fault.strike()
        return fault is not None

    def refused_token(self) -> AuthFailed | None:
        fault = self._first(FaultKind.TOKENS)
        if fault is None:
            return None
        fault.strike()
        return AuthFailed(EXPIRED_TEXT)

    def sleeps(self, sleeper: DelayedCall) -> None:
        self._sleepers[sleeper] = None

    def woke(self, sleeper: DelayedCall) -> None:
        self._sleepers.pop(sleeper, None)

    def _first(self, kind: FaultKind, hub: str | None = None) -> InjectedFault | None:
        found = (fault for fault in self._armed[kind] if hub is None or fault.concerns(hub))
        return next(found, None)

    def _wake_everybody(self) -> None:
        for sleeper in list(self._sleepers):
            sleeper.wake()


def error_for_condition(condition: str, text: str) -> PenstockError:
    """An error that the wire carries under any condition, the service's own or not."""
    kind = type("InjectedError", (PenstockError,), {"condition": condition, "retriable": True})
    error = kind(text)
    assert isinstance(error, PenstockError)
    return error
