"""The AMQP engine in the other role: what `penstock bench` drives; producer and consumer follow."""

from __future__ import annotations

from penstock.client.connection import ClientError, Connection, Receiver, Sender, connect
from penstock.client.endpoint import Endpoint, parse_connection_string

__all__ = [
    "ClientError",
    "Connection",
    "Endpoint",
    "Receiver",
    "Sender",
    "connect",
    "parse_connection_string",
]
