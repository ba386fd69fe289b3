"""Which requests are the management's, on a port that serves others too."""

from __future__ import annotations

from collections.abc import Awaitable

from starlette.types import ASGIApp, Receive, Scope, Send

# In lower case. Nothing else stands under these on the administration port.
_EXACT = ("/subscriptions", "/tenants", "/metadata/endpoints", "/openapi.json")
_BELOW = (
    "/subscriptions/",
    "/providers/microsoft.eventhub/",
    "/providers/penstock/",
    "/metadata/identity/",
)
_ATOM_METHODS = ("GET", "PUT", "DELETE")


def is_management(path: str) -> bool:
    """Empty segments do not count here, as in `paths.canonical`; other paths stay strict."""
    lowered = "/" + "/".join(part for part in path.lower().split("/") if part)
    return lowered in _EXACT or lowered.startswith(_BELOW)


class ManagementMount:
    """`management` where the path is its own; `atom`, if given, for the older management of hubs;
    `others` for the rest. A hub may be called 'subscriptions': publishing is told apart by its
    method and its last word, which no path of the management has together."""

    def __init__(
        self, management: ASGIApp, others: ASGIApp, *, atom: ASGIApp | None = None
    ) -> None:
        self._management = management
        self._others = others
        self._atom = atom

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self._select_app(scope)(scope, receive, send)

    def _select_app(self, scope: Scope) -> ASGIApp:
        if scope["type"] != "http":
            return self._others
        path: str = scope["path"]
        words = path.lower().strip("/").split("/")
        if scope["method"] == "POST" and words[-1] == "messages":
            return self._others
        if is_management(path):
            return self._management
        if self._atom is None or scope["method"] not in _ATOM_METHODS or _is_data_plane(words):
            return self._others
        return self._atom


def _is_data_plane(words: list[str]) -> bool:
    """Publishing and revoked publishers have a door of their own (protocol.md 7.1)."""
    return words[-1] in ("messages", "") or "revokedpublishers" in words[-2:]
