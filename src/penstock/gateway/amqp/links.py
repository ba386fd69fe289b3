"""What the driver knows of a link's application object, whatever the link is for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.amqp.events import TransferOversized, TransfersReceived
from penstock.amqp.link import Link
from penstock.amqp.performatives import Error, Rejected
from penstock.model.errors import MessageTooLarge, PenstockError

if TYPE_CHECKING:
    from penstock.gateway.amqp.driver import AmqpConnection


class LinkApp:
    """Defaults for the calls that a kind of link does not care about."""

    expires_ms: int | None = None  # when the grant ends that this link lives by

    def __init__(self, connection: AmqpConnection, link: Link) -> None:
        self.connection = connection
        self.link = link

    def start(self) -> None:
        """The attach reply went out: grant credit, begin to deliver."""

    def on_transfers(self, event: TransfersReceived) -> None:
        raise AssertionError(f"{type(self).__name__} receives no transfers")

    def on_oversized(self, event: TransferOversized) -> None:
        """A rejection, not a detach (protocol.md 4.3)."""
        if not event.settled:
            error = MessageTooLarge(
                f"The received message (delivery-id:{event.delivery_id}, size:{event.size} bytes) "
                f"exceeds the limit ({self.link.max_message_size} bytes) currently allowed on the "
                "link."
            )
            self.reject(event.delivery_id, event.delivery_id, self.connection.wire_error(error))
        self.flush()

    def on_flow(self) -> None:
        """Credit changed."""

    def pump(self) -> None:
        """Window or socket have room again."""

    def flush(self) -> None:
        """Send dispositions and credit that have gathered."""

    def renew(self, now_ms: int) -> PenstockError | None:
        """The grant expired: find another one, or say why the link must end."""
        return None

    def close(self) -> None:
        """The link is gone, whoever ended it."""

    def reject(self, first: int, last: int, error: Error) -> None:
        self.link.settle(first, last, Rejected(error=error))
