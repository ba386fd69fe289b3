"""The events that the engine reports to its caller, all under one import.

`receive_data` returns what one read of the socket meant, in order. Events of links and sessions are
defined with them in `link` and `session`.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from penstock.amqp.errors import AmqpError
from penstock.amqp.link import TransferOversized, TransfersReceived
from penstock.amqp.performatives import Error, Open
from penstock.amqp.session import (
    AttachReceived,
    BeginReceived,
    DetachReceived,
    DispositionReceived,
    EndReceived,
    FlowReceived,
    SessionEvent,
)

__all__ = [
    "AttachReceived",
    "BeginReceived",
    "CloseReceived",
    "ConnectionFailed",
    "DetachReceived",
    "DispositionReceived",
    "EndReceived",
    "Event",
    "FlowReceived",
    "OpenReceived",
    "SaslInitReceived",
    "SaslMechanismsReceived",
    "SaslOutcomeReceived",
    "TransferOversized",
    "TransfersReceived",
]


class SaslInitReceived(msgspec.Struct):
    """Server: the client chose a mechanism. Parsing stops until `answer_sasl` is called."""

    mechanism: str
    initial_response: bytes
    hostname: str | None

    def __repr__(self) -> str:  # the response may hold a key
        return f"SaslInitReceived(mechanism={self.mechanism!r}, initial_response=***)"


class SaslMechanismsReceived(msgspec.Struct):
    """Client: the server's mechanisms; answer with `init_sasl`."""

    mechanisms: list[str]


class SaslOutcomeReceived(msgspec.Struct):
    """Client: the server accepted our credentials."""

    additional_data: bytes


class OpenReceived(msgspec.Struct):
    open: Open


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
    | SessionEvent
    | CloseReceived
    | ConnectionFailed
)
