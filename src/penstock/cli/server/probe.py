"""Pages of the administration port: /health, /ready, and /metrics, which may need a token."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from penstock.io.http_client import HttpClient

if TYPE_CHECKING:
    from penstock.cli.service_lookup import AdminEndpoint


def fetch(admin: AdminEndpoint, path: str, *, timeout_s: float) -> tuple[int, bytes]:
    """Status and body. Raises OSError, TimeoutError among them, where nobody answers."""
    with HttpClient(admin.url, ca_file=admin.ca_file, timeout_s=timeout_s) as client:
        response = client.request("GET", path, headers=_headers(admin, path))
    return response.status, response.body


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
