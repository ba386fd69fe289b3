"""AMQP values: errors of the kernels."""

from __future__ import annotations


class KernelError(ValueError):
    """Bytes that are not what they claim to be; the message says what, and at which byte."""


class KeyConflict(KernelError):
    """The event's partition key is not the publisher it is sent through (protocol.md 4.1)."""
