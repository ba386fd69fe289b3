"""`broker.faults`: what a test may ask its broker to do wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from penstock.amqp.link import Link
from penstock.gateway.amqp.authorization import ConnectionGrants
from penstock.gateway.amqp.connection import AmqpConnection
from penstock.gateway.amqp.links import EntityLinkHandler
from penstock.gateway.amqp.publish_link import PublishLink
from penstock.gateway.amqp.read_link import ReadLink
from penstock.gateway.amqp.server import AmqpServer
from penstock.gateway.backpressure import PauseReason
from penstock.testing.fault_board import (
    CountingFault,
    FaultBoard,
    FaultKind,
    InjectedFault,
    Side,
    SlowFault,
    error_for_condition,
)
from penstock.testing.faulty_hub import FaultyReader

DETACH_FORCED = "amqp:link:detach-forced"
_TEXT = "The service ended this link (a fault that the test asked for)."
_SIDES = ("send", "receive", "both")


class Faults:
    """Each call arms one fault and returns it: `count`, `wait()`, `cancel()`, or a `with` block.
    May be called by any thread. `hub` None means every hub."""

    def __init__(self, board: FaultBoard) -> None:
        self._board = board
        self._door: AmqpServer | None = None
        self._rejudge: Callable[[], None] | None = None

    def watch(self, door: AmqpServer, rejudge: Callable[[], None]) -> None:
        """The broker is there; `rejudge` has every link look at its tokens again."""
        self._door, self._rejudge = door, rejudge

    def server_busy(self, times: int | None = 1, *, hub: str | None = None) -> InjectedFault:
        """The next `times` publications (None: all) are refused as throttled ones are:
        `com.microsoft:server-busy` over AMQP, 503 with Retry-After over HTTPS. Nothing of them is
        stored."""
        _check_times(times)
        return self._arm(InjectedFault(self._board, FaultKind.BUSY, times=times, hub=hub))

    def slow(self, delay_s: float, *, hub: str | None = None, side: Side = "both") -> InjectedFault:
        """From now on each publication is acknowledged that much later (it is stored at once), and
        readers get what there is with that delay."""
        if not delay_s > 0:
            raise ValueError(f"delay_s is {delay_s}: it must be more than 0 seconds.")
        _check_side(side)
        return self._arm(SlowFault(self._board, delay_s=delay_s, hub=hub, side=side))

    def detach(
        self,
        after: int = 0,
        *,
        condition: str = DETACH_FORCED,
        times: int = 1,
        hub: str | None = None,
        side: Side = "both",
    ) -> InjectedFault:
        """When `after` events have been acknowledged or delivered, the link by which the last of
        them went is detached with that AMQP condition. This happens `times` times, and the count
        of events restarts after each.
        With 0: every link to a hub that is attached now, at once, and only once."""

        def end(connection: AmqpConnection, link: Link) -> None:
            error = error_for_condition(condition, _TEXT)
            connection.turns.run(partial(connection.links.detach, link, error))

        return self._arm_counting(FaultKind.DETACH, after, times, hub, side, end)

    def drop_connection(
        self,
        after_events: int = 0,
        *,
        times: int = 1,
        hub: str | None = None,
        side: Side = "both",
        acknowledge: bool = True,
    ) -> InjectedFault:
        """As `detach`, but the socket is closed without a word of AMQP. With `acknowledge=False`
        the publication that reaches the number is stored and its sender never hears so: one that
        sends it again makes a duplicate."""

        def cut(connection: AmqpConnection, link: Link) -> None:
            connection.backpressure.pause(PauseReason.SHUTDOWN)
            connection.hang_up()

        return self._arm_counting(
            FaultKind.DROP, after_events, times, hub, side, cut, acknowledges=acknowledge
        )

    def refuse_connections(self, times: int | None = 1) -> InjectedFault:
        """The next `times` connections (None: all), AMQP or HTTPS, are closed as soon as they are
        made. Those that are there stay."""
        _check_times(times)
        return self._arm(InjectedFault(self._board, FaultKind.CONNECTIONS, times=times, hub=None))

    def refuse_tokens(self, times: int | None = 1) -> InjectedFault:
        """The next `times` tokens (None: all) that are put over AMQP, or come with an HTTPS
        request, are refused as expired: 401."""
        _check_times(times)
        return self._arm(InjectedFault(self._board, FaultKind.TOKENS, times=times, hub=None))

    def expire_token(self) -> InjectedFault:
        """Every token that an AMQP connection holds runs out now: its links are detached with
        `amqp:unauthorized-access` until it puts another. `count` is the number of links. Over
        HTTPS each request brings its token: see `refuse_tokens`."""
        fault = InjectedFault(self._board, FaultKind.EXPIRY, times=None, hub=None)
        self._board.run(lambda: self._expire(fault))
        return fault

    def clear(self) -> None:
        """Cancel whatever is armed."""
        self._board.run(self._board.disarm_everything)

    # --- on the broker's thread -----------------------------------------------------------------

    def _arm(self, fault: InjectedFault) -> InjectedFault:
        self._board.run(lambda: self._board.arm(fault))
        return fault

    def _arm_counting(
        self,
        kind: FaultKind,
        after: int,
        times: int,
        hub: str | None,
        side: Side,
        hit: Callable[[AmqpConnection, Link], None],
        *,
        acknowledges: bool = True,
    ) -> InjectedFault:
        _check_times(times)
        _check_side(side)
        if after < 0:
            raise ValueError(f"{after} events cannot have passed: 0 or more can.")

        def act(passed_by: object) -> None:
            for connection, link, app in self._entity_links():
                if passed_by in _places(app):
                    hit(connection, link)

        def now() -> None:
            found = [
                (connection, link)
                for connection, link, app in self._entity_links()
                if fault.concerns(_hub_of(app)) and side in (_side_of(app), "both")
            ]
            for connection, link in found:
                hit(connection, link)
            # Several links of one connection are dropped by one blow.
            units = {connection for connection, _ in found} if kind is FaultKind.DROP else found
            fault.strike(len(units))

        fault = CountingFault(
            self._board,
            kind,
            after=after,
            times=times,
            hub=hub,
            side=side,
            act=act,
            acknowledges=acknowledges,
        )
        if after:
            return self._arm(fault)
        self._board.run(now)
        return fault

    def _expire(self, fault: InjectedFault) -> None:
        assert self._door is not None
        assert self._rejudge is not None
        before = list(self._entity_links())
        for connection in self._door.connections:
            connection.links.grants = ConnectionGrants()
        self._rejudge()
        left = sum(1 for _ in self._entity_links())
        fault.strike(len(before) - left)

    def _entity_links(self) -> Iterator[tuple[AmqpConnection, Link, EntityLinkHandler]]:
        assert self._door is not None
        for connection in list(self._door.connections):
            for link, app in list(connection.links.handlers.items()):
                if isinstance(app, EntityLinkHandler):
                    yield connection, link, app


def _places(app: EntityLinkHandler) -> tuple[object, ...]:
    """What a hub knows of the link's client."""
    if isinstance(app, PublishLink):
        return tuple(place for place in (app.sender, app.producer) if place is not None)
    return (app.reader,) if isinstance(app, ReadLink) and app.reader is not None else ()


def _hub_of(app: EntityLinkHandler) -> str:
    if isinstance(app, PublishLink):
        return app.hub.entity.name
    reader = app.reader if isinstance(app, ReadLink) else None
    return reader.hub.name if isinstance(reader, FaultyReader) else ""


def _side_of(app: EntityLinkHandler) -> Side:
    return "send" if isinstance(app, PublishLink) else "receive"


def _check_times(times: int | None) -> None:
    if times is not None and times < 1:
        raise ValueError(f"{times} times is invalid: a fault strikes once or more often.")


def _check_side(side: str) -> None:
    if side not in _SIDES:
        raise ValueError(f"side is {side!r}: one of {', '.join(_SIDES)} is meant.")
