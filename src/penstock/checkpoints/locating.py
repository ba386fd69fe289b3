"""Where the service is and who asks: connection string, environment, `runtime.json`."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from penstock.checkpoints.records import host_key
from penstock.model import limits
from penstock.model.connection_string import parse_connection_string
from penstock.model.entities import Secret
from penstock.model.errors import ArgumentError

HTTPS_PORT = 8443
_RUNTIME_BYTES_MAX = 64 * limits.KB


class ServiceEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where to ask, and with what. Either a key and its policy, or a signature that was given."""

    host: str
    port: int
    namespace_host: str  # what tokens name
    key_name: str = ""
    key: Secret | None = None
    signature: Secret | None = None
    ca_file: str | None = None


def locate_service(
    connection_string: str,
    *,
    https_url: str | None = None,
    ca_file: str | os.PathLike[str] | None = None,
) -> ServiceEndpoint:
    """The address is `https_url`, else PENSTOCK_HTTPS_URL, else that of the service on this
    machine, else port 8443 of the host. Raises ArgumentError, which never quotes the connection
    string."""
    endpoint = parse_connection_string(connection_string, ignore_unknown=True)
    host = endpoint.host.lower()
    runtime = read_runtime(host, endpoint.port)
    reported_url = str(runtime.get("https", "")) or _default_url(host)
    url = https_url or os.environ.get("PENSTOCK_HTTPS_URL") or reported_url
    where = urlsplit(url)
    if where.scheme != "https" or not where.hostname:
        raise ArgumentError(f"'{url}' is not a URL that begins with https:// and names a host.")
    port = _port(where) or 443
    known_ca = runtime.get("ca_file") if _is_same(where.hostname, port, reported_url) else None
    ca = os.fspath(ca_file) if ca_file is not None else known_ca
    return ServiceEndpoint(
        host=where.hostname,
        port=port,
        namespace_host=host,
        key_name=endpoint.key_name or "",
        key=endpoint.key,
        signature=endpoint.signature,
        ca_file=None if ca is None else str(ca),
    )


def _port(url: Any) -> int | None:
    try:
        port: int | None = url.port
    except ValueError:
        raise ArgumentError("The port of the service is not 1 to 65535.") from None
    return port


def _default_url(host: str) -> str:
    return f"https://[{host}]:{HTTPS_PORT}" if ":" in host else f"https://{host}:{HTTPS_PORT}"


def _is_same(host: str, port: int, url: str) -> bool:
    other = urlsplit(url)
    return host_key(host) == host_key(other.hostname or "") and port == (other.port or 443)


def read_runtime(host: str, amqp_port: int) -> dict[str, Any]:
    """What the service tells that runs on the data directory here, if it is the one that the
    connection string means; a file that nobody holds is what a crash left behind."""
    file = Path(os.environ.get("PENSTOCK_DATA", "penstock-data")) / "runtime.json"
    try:
        with file.open("rb") as opened:
            if is_stale(opened.fileno()):
                return {}
            facts = json.loads(opened.read(_RUNTIME_BYTES_MAX))
    except (OSError, ValueError):
        return {}
    if not isinstance(facts, dict):
        return {}
    doors = [str(facts.get(door)).rpartition(":") for door in ("amqps", "amqp") if facts.get(door)]
    meant = any(
        host_key(host) == host_key(named.strip("[]")) and port == str(amqp_port)
        for named, _, port in doors
    )
    return facts if meant else {}


def is_stale(opened: int) -> bool:
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
