"""Errors of the AMQP engine: the class says whose fault, `condition` is what a peer is told.

Messages name types, positions and limits, never the bytes themselves: a value on the wire may be a
token or a password.
"""

from __future__ import annotations

from typing import ClassVar


class AmqpError(Exception):
    """Anything the AMQP engine refuses."""

    condition: ClassVar[str] = "amqp:internal-error"


class AmqpDecodeError(AmqpError):
    """The peer's bytes are not a valid AMQP value, or exceed what we are ready to decode."""

    condition = "amqp:decode-error"


class FramingError(AmqpError):
    """The peer's bytes are not a valid frame; the stream cannot be followed any further."""

    condition = "amqp:connection:framing-error"


class LocalError(AmqpError):
    """Our own caller asked for something AMQP cannot carry; nothing was sent."""


class ConnectionTimedOut(AmqpError):
    """Nothing came from the peer for twice the advertised idle-time-out, or no open in time."""

    condition = "amqp:connection:forced"


class AmqpNotAllowed(AmqpError):
    condition = "amqp:not-allowed"


class SaslFailed(AmqpError):
    """Client: the server did not let us in."""

    condition = "amqp:unauthorized-access"
