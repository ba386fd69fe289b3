"""Errors of the AMQP engine: the class says which side is at fault, `condition` goes to the peer.

Messages name types, positions and limits, never the bytes themselves: a value on the wire may be a
token or a password.
"""

from __future__ import annotations

from typing import ClassVar

_QUOTED_CHARACTERS_MAX = 64


class AmqpError(Exception):
    """Anything that the AMQP engine refuses."""

    condition: ClassVar[str] = "amqp:internal-error"


class AmqpDecodeError(AmqpError):
    """The peer's bytes are not a valid AMQP value, or exceed the decode limits."""

    condition = "amqp:decode-error"


class FramingError(AmqpError):
    """The peer's bytes are not a valid frame; the stream cannot be followed any further."""

    condition = "amqp:connection:framing-error"


class LocalError(AmqpError):
    """The engine's caller asked for something that AMQP cannot carry; nothing was sent."""


class ConnectionTimedOut(AmqpError):
    """The peer was silent for twice the announced idle-time-out, or missed another deadline."""

    condition = "amqp:connection:forced"


class AmqpNotAllowed(AmqpError):
    condition = "amqp:not-allowed"


class SaslFailed(AmqpError):
    """Client: the server refused our credentials."""

    condition = "amqp:unauthorized-access"


class RemoteLinkError(AmqpError):
    """The peer broke the rules of a link."""

    condition = "amqp:not-allowed"


class RemoteSessionError(AmqpError):
    """The peer named a handle that is not attached (AMQP 2.8.17)."""

    condition = "amqp:session:unattached-handle"


class HandleInUse(AmqpError):
    """The peer attached a link with a handle that another link has."""

    condition = "amqp:session:handle-in-use"


def quote_peer_text(text: str) -> str:
    """A peer's text for our error messages: ASCII and short, so that every frame can carry it."""
    if len(text) > _QUOTED_CHARACTERS_MAX:
        text = text[:_QUOTED_CHARACTERS_MAX] + "..."
    return ascii(text)
