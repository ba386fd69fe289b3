"""Which service a command talks to: flag, environment, or the data directory's runtime.json."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from penstock.client import Endpoint, parse_connection_string
from penstock.model.errors import ConfigurationError
from penstock.service.data_directory import read_runtime


def find_endpoint(
    connection_string: str | None, data: Path | None
) -> tuple[Endpoint, ssl.SSLContext | None]:
    """Flags win over environment, environment over what runs on this machine (design.md 7)."""
    given = connection_string or os.environ.get("PENSTOCK_CONNECTION_STRING")
    runtime = read_runtime(data or Path(os.environ.get("PENSTOCK_DATA", "penstock-data")))
    if given is None and runtime is not None:
        text = runtime.get("emulator_connection_string") or runtime.get("connection_string")
        given = str(text)
    if given is None:
        raise ConfigurationError(
            "No service is known: give --connection-string, set PENSTOCK_CONNECTION_STRING, or "
            "run in the directory where `penstock serve` keeps ./penstock-data."
        )
    endpoint = parse_connection_string(given)
    if not endpoint.tls:
        return endpoint, None
    ca_file = str(runtime["ca_file"]) if runtime is not None else None
    return endpoint, ssl.create_default_context(cafile=ca_file)
