"""`broker.faults`: the faults that a test may inject."""

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
    FaultBoard,
    FaultKind,
    InjectedFault,
    Side,
    error_for_condition,
)
from penstock.testing.faulty_hub import FaultyReader

DETACH_FORCED = "amqp:link:detach-forced"
_TEXT = "The service ended this link (a fault that the test asked for)."


class Faults:
    """Each method arms one fault and returns it: `count`, `wait()`, `cancel()`, or a `with` block.
    May be called by any thread. `hub` None means every hub. Wrong arguments raise ValueError."""

    def __init__(self, board: FaultBoard) -> None:
        self._board = board
        self._server: AmqpServer | None = None
        self._recheck_tokens: Callable[[], None] | None = None

    def attach(self, server: AmqpServer, recheck_tokens: Callable[[], None]) -> None:
        """The broker has started; `recheck_tokens` has every link check its tokens again."""
        self._server, self._recheck_tokens = server, recheck_tokens

    def server_busy(self, times: int | None = 1, *, hub: str | None = None) -> InjectedFault:
        """The next `times` publications (None: all) are refused as throttled ones are:
        `com.microsoft:server-busy` over AMQP, 503 with Retry-After over HTTPS. Nothing of them is
        stored."""
        return self._arm(InjectedFault(self._board, FaultKind.BUSY, times=times, hub=hub))

    def slow(self, delay_s: float, *, hub: str | None = None, side: Side = "both") -> InjectedFault:
        """Acknowledge each publication with this delay (it is stored at once), and deliver events
        to readers with this delay."""
        if not delay_s > 0:
            raise ValueError(f"delay_s is {delay_s}: it must be more than 0 seconds.")
        fault = InjectedFault(
            self._board, FaultKind.SLOW, times=None, hub=hub, side=side, delay_s=delay_s
        )
        return self._arm(fault)

    def detach(
        self,
        after: int = 0,
        *,
        condition: str = DETACH_FORCED,
        times: int = 1,
        hub: str | None = None,
        side: Side = "both",
    ) -> InjectedFault:
        """After `after` events have been acknowledged or delivered, detach the link by which the
        last of them went, with this AMQP condition. This happens `times` times, and the count of
        events restarts after each.
        With 0: detach every link that is attached to a hub, now and only once."""

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
        """As `detach`, but close the socket without an AMQP close. With `acknowledge=False` the
        publication that reaches the number is stored but not acknowledged: a sender that sends it
        again creates a duplicate."""

        def cut(connection: AmqpConnection, link: Link) -> None:
            connection.backpressure.pause(PauseReason.SHUTDOWN)
            connection.life.hang_up()

        return self._arm_counting(
            FaultKind.DROP, after_events, times, hub, side, cut, acknowledges=acknowledge
        )

    def refuse_connections(self, times: int | None = 1) -> InjectedFault:
        """Close the next `times` connections (None: all), AMQP or HTTPS, as soon as they are
        accepted. Existing connections stay open."""
        return self._arm(InjectedFault(self._board, FaultKind.CONNECTIONS, times=times))

    def refuse_tokens(self, times: int | None = 1) -> InjectedFault:
        """Refuse the next `times` tokens (None: all), put over AMQP or sent with an HTTPS request,
        as expired: 401."""
        return self._arm(InjectedFault(self._board, FaultKind.TOKENS, times=times))

    def expire_token(self) -> InjectedFault:
        """Expire every token that an AMQP connection holds: its links are detached with
        `amqp:unauthorized-access` until it puts another. `count` is the number of links. Over
        HTTPS each request has its own token: see `refuse_tokens`."""
        fault = InjectedFault(self._board, FaultKind.EXPIRY, times=None)
        self._board.run(lambda: self._expire(fault))
        return fault

    def clear(self) -> None:
        """Cancel every fault."""
        self._board.run(self._board.disarm_all)

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
        def hit_link_of(client: object) -> None:
            for connection, link, app in self._entity_links():
                if client in _clients(app):
                    hit(connection, link)

        def hit_all() -> None:
            links = [
                (connection, link)
                for connection, link, app in self._entity_links()
                if fault.matches(_hub_of(app), _side_of(app))
            ]
            for connection, link in links:
                hit(connection, link)
            # Several links of one connection are dropped at once.
            units = {connection for connection, _ in links} if kind is FaultKind.DROP else links
            fault.strike(len(units))

        fault = InjectedFault(
            self._board,
            kind,
            times=times,
            hub=hub,
            side=side,
            after=after,
            hit=hit_link_of,
            acknowledges=acknowledges,
        )
        if after:
            return self._arm(fault)
        self._board.run(hit_all)
        return fault

    def _expire(self, fault: InjectedFault) -> None:
        assert self._server is not None
        assert self._recheck_tokens is not None
        before = list(self._entity_links())
        for connection in self._server.connections:
            connection.links.grants = ConnectionGrants()
        self._recheck_tokens()
        left = sum(1 for _ in self._entity_links())
        fault.strike(len(before) - left)

    def _entity_links(self) -> Iterator[tuple[AmqpConnection, Link, EntityLinkHandler]]:
        assert self._server is not None
        for connection in list(self._server.connections):
            for link, app in list(connection.links.handlers.items()):
                if isinstance(app, EntityLinkHandler):
                    yield connection, link, app


def _clients(app: EntityLinkHandler) -> tuple[object, ...]:
    """The objects by which a hub knows the client of the link."""
    if isinstance(app, PublishLink):
        return tuple(client for client in (app.sender, app.producer) if client is not None)
    return (app.reader,) if isinstance(app, ReadLink) and app.reader is not None else ()


def _hub_of(app: EntityLinkHandler) -> str:
    if isinstance(app, PublishLink):
        return app.hub.entity.name
    reader = app.reader if isinstance(app, ReadLink) else None
    return reader.hub.name if isinstance(reader, FaultyReader) else ""


def _side_of(app: EntityLinkHandler) -> Side:
    return "send" if isinstance(app, PublishLink) else "receive"
