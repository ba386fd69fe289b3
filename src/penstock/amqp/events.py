"""What the engine tells its driver: everything that one read of the socket meant, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from penstock.amqp.errors import AmqpError
from penstock.amqp.performatives import Disposition, Error, Open

if TYPE_CHECKING:
    from penstock.amqp.link import Link
    from penstock.amqp.session import Session


class SaslInitReceived(msgspec.Struct):
    """The peer chose a mechanism. Nothing more is parsed until `answer_sasl` is called."""

    mechanism: str
    initial_response: bytes
    hostname: str | None

    def __repr__(self) -> str:  # the response may hold a key
        return f"SaslInitReceived(mechanism={self.mechanism!r}, initial_response=***)"


class SaslMechanismsReceived(msgspec.Struct):
    """Client: what the server offers; answer with `init_sasl`."""

    mechanisms: list[str]


class SaslOutcomeReceived(msgspec.Struct):
    """Client: the server accepted us; its additional data."""

    additional_data: bytes


class OpenReceived(msgspec.Struct):
    open: Open


class BeginReceived(msgspec.Struct):
    session: Session


class AttachReceived(msgspec.Struct):
    """Server: call `link.accept` or `link.refuse`. Client: the answer to our attach."""

    link: Link


class FlowReceived(msgspec.Struct):
    """Credit or window changed. `link` is None for a flow of the whole session."""

    session: Session
    link: Link | None


class TransfersReceived(msgspec.Struct):
    """Consecutive whole deliveries on one link: payload i is data[bounds[2i]:bounds[2i+1]] and its
    delivery id is first_delivery_id + i (serial arithmetic)."""

    link: Link
    data: bytes
    bounds: list[int]
    first_delivery_id: int
    count: int
    settled: bool
    message_format: int


class TransferOversized(msgspec.Struct):
    """A delivery above the link's max-message-size; its bytes were thrown away as they came."""

    link: Link
    delivery_id: int
    size: int
    settled: bool


class DispositionReceived(msgspec.Struct):
    session: Session
    disposition: Disposition


class DetachReceived(msgspec.Struct):
    link: Link
    error: Error | None


class EndReceived(msgspec.Struct):
    session: Session
    error: Error | None


class CloseReceived(msgspec.Struct):
    error: Error | None


class ConnectionFailed(msgspec.Struct):
    """The peer broke the protocol or went silent. Write what is queued, then close the socket."""

    error: AmqpError


Event: TypeAlias = (
    SaslInitReceived
    | SaslMechanismsReceived
    | SaslOutcomeReceived
    | OpenReceived
    | BeginReceived
    | AttachReceived
    | FlowReceived
    | TransfersReceived
    | TransferOversized
    | DispositionReceived
    | DetachReceived
    | EndReceived
    | CloseReceived
    | ConnectionFailed
)
