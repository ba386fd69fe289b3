"""Pages of the administration port: /health, /ready, and /metrics, which may need a token."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock.model.errors import ConfigurationError

if TYPE_CHECKING:
    from penstock.cli.service_lookup import AdminEndpoint

_ANSWER_BYTES_MAX = 16 * 1024 * 1024


def fetch(admin: AdminEndpoint, path: str, *, timeout_s: float) -> tuple[int, bytes]:
    """Status and body. Raises OSError, TimeoutError among them, where nobody answers."""
    parts = urlsplit(admin.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(
            f"'{admin.url}' is no URL of a service: http:// or https:// it is."
        )
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        tls = ssl.create_default_context(cafile=admin.ca_file)
        connection = http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=timeout_s, context=tls
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
    try:
        connection.request("GET", path, headers=_headers(admin, path))
        answer = connection.getresponse()
        return answer.status, answer.read(_ANSWER_BYTES_MAX)
    except http.client.HTTPException as error:
        raise OSError(f"{admin.url} does not speak HTTP: {error}") from error
    finally:
        connection.close()


def _headers(admin: AdminEndpoint, path: str) -> dict[str, str]:
    """The token goes where it is needed only: /metrics beyond loopback."""
    if path != "/metrics" or admin.token is None:
        return {}
    return {"Authorization": f"Bearer {admin.token}"}


def readiness(admin: AdminEndpoint, *, timeout_s: float) -> tuple[bool, dict[str, object]]:
    """Whether every part is well, and what each says. Raises OSError."""
    status, body = fetch(admin, "/ready", timeout_s=timeout_s)
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise OSError(f"{admin.url} is no Penstock: /ready answers {status}")
    return status == 200, found
