"""`broker.faults`: the faults that a test may inject, and the armed ones, which strike.

`InjectedFault` and `Faults` are for the test, on any thread; `FaultBoard` is for the broker's own
thread. While no fault is armed, a publication costs one test of an empty list and an event nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Literal, get_args

from penstock.amqp.link import Link
from penstock.gateway.amqp.authorization import ConnectionGrants
from penstock.gateway.amqp.connection import AmqpConnection
from penstock.gateway.amqp.links import EntityLinkHandler
from penstock.gateway.amqp.publish_link import PublishLink
from penstock.gateway.amqp.read_link import ReadLink
from penstock.gateway.amqp.server import AmqpServer
from penstock.gateway.backpressure import PauseReason
from penstock.model.entities import Right
from penstock.model.errors import AuthFailed, PenstockError
from penstock.model.names import fold_name

Side = Literal["send", "receive", "both"]
EndLink = Callable[[AmqpConnection, Link], None]

WAIT_S = 30.0  # the default timeout of a test's wait
_DETACHED = "The service ended this link (a fault that the test asked for)."
_EXPIRED = "ExpiredToken: The token is expired (a fault that the test asked for)."


class FaultKind(Enum):
    BUSY = "server_busy"
    SLOW = "slow"
    DETACH = "detach"
    DROP = "drop_connection"
    CONNECTIONS = "refuse_connections"
    TOKENS = "refuse_tokens"
    EXPIRY = "expire_token"


@dataclass(eq=False, repr=False)
class InjectedFault:
    """One fault. It strikes `times` times, or until it is canceled.

    May be used by any thread, and as a context manager that cancels it at the end.
    """

    board: FaultBoard
    kind: FaultKind
    times: int | None
    hub: str | None = None
    side: Side = "both"
    delay_s: float = 0.0
    after: int = 0  # events that pass before each strike
    acknowledges: bool = True
    end_link: EndLink | None = None  # of DETACH and DROP
    count: int = 0
    """How often it struck."""

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if self.times is not None and self.times < 1:
            raise ValueError(f"{self.times} times is invalid: a fault strikes once or more often.")
        if self.side not in get_args(Side):
            raise ValueError(f"side is {self.side!r}: allowed are {', '.join(get_args(Side))}.")
        if self.after < 0:
            raise ValueError(f"{self.after} events cannot have passed: 0 or more can.")
        self._passed = 0  # events since it struck last
        self._struck = threading.Condition()

    def __repr__(self) -> str:
        times = "any number of" if self.times is None else self.times
        return f"<fault {self.kind.value}: struck {self.count} of {times} times>"

    @property
    def is_armed(self) -> bool:
        """Whether it can still strike."""
        return self in self.board.armed

    def cancel(self) -> None:
        """Disarm the fault and release what it delays. Without effect if it is over, or if the
        broker has stopped."""
        if self.is_armed:
            self.board.run(lambda: self.board.disarm(self))

    def wait(self, count: int = 1, timeout_s: float = WAIT_S) -> None:
        """Wait until it has struck `count` times; TimeoutError says how often it had."""
        with self._struck:
            if not self._struck.wait_for(lambda: self.count >= count, timeout_s):
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
            self.count += times
            self._struck.notify_all()
        if self.times is not None and self.count >= self.times:
            self.board.disarm(self)

    def count_events(self, events: int) -> bool:
        """Count events that passed; whether the fault strikes now."""
        self._passed += events
        if self._passed < self.after:
            return False
        self._passed = 0
        self.strike()
        return True


class FaultBoard:
    """Every armed fault. `run` calls a function on the broker's thread and waits for it; `wake_ups`
    are called when a `slow` fault ends, to release what waits."""

    server: AmqpServer  # set when the broker has started

    def __init__(self, run: Callable[[Callable[[], None]], None]) -> None:
        self.run = run
        self.armed: list[InjectedFault] = []
        self.wake_ups: dict[Callable[[], None], None] = {}  # ordered
        self._is_rechecking = False

    def disarm(self, fault: InjectedFault) -> None:
        if fault in self.armed:
            self.armed.remove(fault)
            if fault.kind is FaultKind.SLOW:
                self._wake_up()

    def disarm_all(self) -> None:
        self.armed.clear()
        self._wake_up()

    def strikes(self, kind: FaultKind, hub: str | None = None) -> bool:
        """Whether a fault of this kind strikes now."""
        for fault in self.armed:
            if fault.kind is kind and fault.matches(hub):
                fault.strike()
                return True
        return False

    def check_token(self) -> None:
        """Raises AuthFailed if a fault refuses the token that a client presents."""
        if not self._is_rechecking and self.strikes(FaultKind.TOKENS):
            raise AuthFailed(_EXPIRED)

    def recheck_tokens(self) -> None:
        """End links whose tokens expired or whose policies changed. Clients present no token here,
        so faults do not refuse any."""
        self._is_rechecking = True
        try:
            self.server.revalidate_grants()
        finally:
            self._is_rechecking = False

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

    def hit(self, fault: InjectedFault, client: object) -> None:
        """Detach or drop the link of the client: a sender, a producer or a reader of a hub."""
        for connection, link, handler in list(self.entity_links()):
            if isinstance(handler, PublishLink):
                is_hit = client in (handler.sender, handler.producer)
            else:
                is_hit = isinstance(handler, ReadLink) and client is handler.reader
            if is_hit and fault.end_link is not None:
                fault.end_link(connection, link)

    def entity_links(self) -> Iterator[tuple[AmqpConnection, Link, EntityLinkHandler]]:
        for connection in self.server.connections:
            for link, handler in connection.links.handlers.items():
                if isinstance(handler, EntityLinkHandler):
                    yield connection, link, handler

    def _wake_up(self) -> None:
        for wake_up in list(self.wake_ups):
            wake_up()


class Faults:
    """Each method arms one fault and returns it: `count`, `wait()`, `cancel()`, or a `with` block.
    May be called by any thread. `hub` None means every hub. Wrong arguments raise ValueError."""

    def __init__(self, board: FaultBoard) -> None:
        self._board = board

    def server_busy(self, times: int | None = 1, *, hub: str | None = None) -> InjectedFault:
        """The next `times` publications (None: all) are refused as throttled ones are:
        `com.microsoft:server-busy` over AMQP, 503 with Retry-After over HTTPS. Nothing of them is
        stored."""
        return self._arm(InjectedFault(self._board, FaultKind.BUSY, times, hub))

    def slow(self, delay_s: float, *, hub: str | None = None, side: Side = "both") -> InjectedFault:
        """Acknowledge each publication with this delay (it is stored at once), and deliver events
        to readers with this delay."""
        if not delay_s > 0:
            raise ValueError(f"delay_s is {delay_s}: it must be more than 0 seconds.")
        return self._arm(InjectedFault(self._board, FaultKind.SLOW, None, hub, side, delay_s))

    def detach(
        self,
        after: int = 0,
        *,
        condition: str = "amqp:link:detach-forced",
        times: int = 1,
        hub: str | None = None,
        side: Side = "both",
    ) -> InjectedFault:
        """After `after` events have been acknowledged or delivered, detach the link by which the
        last of them went, with this AMQP condition. This happens `times` times, and the count of
        events restarts after each.
        With 0: detach every link that is attached to a hub, now and only once."""

        def detach_link(connection: AmqpConnection, link: Link) -> None:
            # Any condition, whether the service uses it or not.
            attributes = {"condition": condition, "retriable": True}
            error = type("InjectedError", (PenstockError,), attributes)(_DETACHED)
            connection.turns.run(partial(connection.links.detach, link, error))

        fault = InjectedFault(self._board, FaultKind.DETACH, times, hub, side, after=after)
        return self._arm_counting(fault, detach_link)

    def drop_connection(
        self,
        after_events: int = 0,
        *,
        times: int = 1,
        hub: str | None = None,
        side: Side = "both",
        acknowledge: bool = True,
    ) -> InjectedFault:
        """As `detach`, but close the socket without an AMQP close. With `acknowledge=False` the
        publication that reaches the number is stored but not acknowledged: a sender that sends it
        again creates a duplicate."""

        def drop_connection_of(connection: AmqpConnection, link: Link) -> None:
            connection.backpressure.pause(PauseReason.SHUTDOWN)
            connection.life.hang_up()

        fault = InjectedFault(self._board, FaultKind.DROP, times, hub, side, after=after_events)
        fault.acknowledges = acknowledge
        return self._arm_counting(fault, drop_connection_of)

    def refuse_connections(self, times: int | None = 1) -> InjectedFault:
        """Close the next `times` connections (None: all), AMQP or HTTPS, as soon as they are
        accepted. Existing connections stay open."""
        return self._arm(InjectedFault(self._board, FaultKind.CONNECTIONS, times))

    def refuse_tokens(self, times: int | None = 1) -> InjectedFault:
        """Refuse the next `times` tokens (None: all), put over AMQP or sent with an HTTPS request,
        as expired: 401."""
        return self._arm(InjectedFault(self._board, FaultKind.TOKENS, times))

    def expire_token(self) -> InjectedFault:
        """Expire every token that an AMQP connection holds: its links are detached with
        `amqp:unauthorized-access` until it puts another. `count` is the number of links. Over
        HTTPS each request has its own token: see `refuse_tokens`."""
        fault = InjectedFault(self._board, FaultKind.EXPIRY, None)
        self._board.run(lambda: self._expire(fault))
        return fault

    def clear(self) -> None:
        """Cancel every fault."""
        self._board.run(self._board.disarm_all)

    def _arm(self, fault: InjectedFault) -> InjectedFault:
        self._board.run(lambda: self._board.armed.append(fault))
        return fault

    def _arm_counting(self, fault: InjectedFault, end_link: EndLink) -> InjectedFault:
        fault.end_link = end_link
        if fault.after:
            return self._arm(fault)
        self._board.run(lambda: self._hit_all(fault))
        return fault

    # on the broker's thread

    def _hit_all(self, fault: InjectedFault) -> None:
        assert fault.end_link is not None
        links = []
        for connection, link, handler in self._board.entity_links():
            side: Side = "send" if handler.right is Right.SEND else "receive"
            if fault.matches(handler.address.hub, side):
                links.append((connection, link))
        for connection, link in links:
            fault.end_link(connection, link)
        # Several links of one connection are dropped at once.
        is_drop = fault.kind is FaultKind.DROP
        fault.strike(len({connection for connection, _ in links} if is_drop else links))

    def _expire(self, fault: InjectedFault) -> None:
        board = self._board
        link_count = len(list(board.entity_links()))
        for connection in board.server.connections:
            connection.links.grants = ConnectionGrants()
        board.recheck_tokens()
        fault.strike(link_count - len(list(board.entity_links())))
