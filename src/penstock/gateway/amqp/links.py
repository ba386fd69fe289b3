"""What the driver knows of a link's application object, whatever the link is for."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.amqp.events import TransferOversized, TransfersReceived
from penstock.amqp.link import Link
from penstock.auth import Grant, missing_claim_text
from penstock.gateway.amqp.addresses import LinkAddress
from penstock.model import names
from penstock.model.entities import Right
from penstock.model.errors import PenstockError, Unauthorized

if TYPE_CHECKING:
    from penstock.gateway.amqp.connection import AmqpConnection


class LinkHandler:
    """Defaults for the calls that a kind of link does not care about."""

    ends_ms: int | None = None  # when the link ends unless another grant is found for it

    def __init__(self, connection: AmqpConnection, link: Link) -> None:
        self.connection = connection
        self.link = link

    def start(self) -> None:
        """The attach reply went out: grant credit, begin to deliver."""

    def on_transfers(self, event: TransfersReceived) -> None:
        raise AssertionError(f"{type(self).__name__} receives no transfers")

    def on_oversized(self, event: TransferOversized) -> None:
        raise AssertionError(f"{type(self).__name__} receives no transfers")

    def send_pending(self, bytes_max: int) -> int:
        """Credit, window or socket have room: send up to so many bytes (the last delivery may go
        beyond) and say how many. Who has more to send asks for another turn."""
        return 0

    def flush(self) -> None:
        """Send dispositions and credit that have gathered."""

    def release_memory(self) -> None:
        """Called now and then; who has not moved since the last time lets memory go."""

    def renew(self, now_ms: int) -> PenstockError | None:
        """The grant may be over: find another one, or say why the link must end."""
        return None

    def close(self) -> None:
        """The link is gone, whoever ended it. Said once."""


class EntityLinkHandler(LinkHandler):
    """A link to a hub or a part of it: it lives by a grant for `right`, the right that its attach
    asked for, and knows its place in messages."""

    def __init__(
        self,
        connection: AmqpConnection,
        link: Link,
        *,
        address: LinkAddress,
        grant: Grant,
        right: Right,
        tracker: str,
    ) -> None:
        super().__init__(connection, link)
        self.right = right
        self.ends_ms = self._end_of(grant)
        self.tracker = tracker
        self._address = address

    @property
    def address(self) -> LinkAddress:
        return self._address

    def renew(self, now_ms: int) -> PenstockError | None:
        # An expired token opens nothing new, but a link that has been opened with one lives on
        # for the grace period, so that a late renewal does not cost the link.
        grace_ms = self.connection.context.expiry_grace_ms
        grant = self.connection.grants.find(
            self._address.path, self.right, now_ms=now_ms - grace_ms
        )
        if grant is None:
            return unauthorized_error(self.connection, self._address, self.right)
        self.ends_ms = self._end_of(grant)
        return None

    def _end_of(self, grant: Grant) -> int | None:
        if grant.expires_ms is None:
            return None
        return grant.expires_ms + self.connection.context.expiry_grace_ms

    def end(self, error: PenstockError) -> None:
        """The broker ended this link: hub deleted or changed, its place taken by another. A hub
        may have thousands of links: a bounded number is detached per event-loop turn."""
        self.connection.context.ended_links.run(partial(self._detach, error))

    def _detach(self, error: PenstockError) -> None:
        self.connection.run_turn(partial(self.connection.detach, self.link, error))


def unauthorized_error(
    connection: AmqpConnection, address: LinkAddress, right: Right
) -> Unauthorized:
    """The same words whether the entity exists or not: who holds no grant learns nothing."""
    resource = f"sb://{connection.host}/{'/'.join(address.path)}"
    return Unauthorized(missing_claim_text(right, names.quote_text(resource, most=200)))
