"""Connection settings of the examples, from the environment.

PENSTOCK_CONNECTION_STRING   for example of `penstock policy connection-string --plain`
PENSTOCK_CA_FILE             with a TLS connection string: the CA of the certificate
PENSTOCK_HUB                 the event hub, by default `events`
"""

from __future__ import annotations

import os
import sys
from typing import Any
from urllib.parse import urlsplit

from azure.eventhub import TransportType

HUB = os.environ.get("PENSTOCK_HUB", "events")


def connection() -> dict[str, Any]:
    """Arguments for the clients' `from_connection_string`."""
    text = os.environ.get("PENSTOCK_CONNECTION_STRING")
    if not text:
        sys.exit(
            "Set PENSTOCK_CONNECTION_STRING: 'penstock policy connection-string --plain' prints it."
        )
    arguments: dict[str, Any] = {"conn_str": text, "eventhub_name": HUB}
    if "UseDevelopmentEmulator=true" in text:
        return arguments  # plain TCP; the SDK takes the port from the string
    if ca_file := os.environ.get("PENSTOCK_CA_FILE"):
        arguments["connection_verify"] = ca_file
    endpoint = dict(part.split("=", 1) for part in text.split(";") if part)["Endpoint"]
    if urlsplit(endpoint).port is not None:  # with TLS the SDK ignores the string's port
        arguments["custom_endpoint_address"] = endpoint.rstrip("/")
        arguments["transport_type"] = TransportType.Amqp
    return arguments
