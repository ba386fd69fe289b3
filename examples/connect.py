"""Where the examples connect to, from the environment.

PENSTOCK_CONNECTION_STRING   either string that `penstock serve` prints
PENSTOCK_CA_FILE             for the TLS string: what verifies the development certificate
PENSTOCK_HUB                 the event hub; `events` without it
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
        sys.exit("Set PENSTOCK_CONNECTION_STRING to a string that 'penstock serve' prints.")
    arguments: dict[str, Any] = {"conn_str": text, "eventhub_name": HUB}
    if "UseDevelopmentEmulator=true" in text:
        return arguments  # plain TCP; the SDK takes the port from the string
    if ca_file := os.environ.get("PENSTOCK_CA_FILE"):
        arguments["connection_verify"] = ca_file
    endpoint = dict(part.split("=", 1) for part in text.split(";") if part)["Endpoint"]
    if urlsplit(endpoint).port is not None:  # with TLS the SDK needs to be led to another port
        arguments["custom_endpoint_address"] = endpoint.rstrip("/")
        arguments["transport_type"] = TransportType.Amqp
    return arguments
