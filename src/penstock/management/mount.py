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


def is_management(path: str) -> bool:
    """Empty segments do not count here, as in `paths.canonical`; other paths stay strict."""
    lowered = "/" + "/".join(part for part in path.lower().split("/") if part)
    return lowered in _EXACT or lowered.startswith(_BELOW)


class ManagementMount:
    """An ASGI application: `management` answers the paths of the management API, `others` the rest.
    An event hub may be named 'subscriptions': a POST whose last word is 'messages' publishes."""

    def __init__(self, management: ASGIApp, others: ASGIApp) -> None:
        self._management = management
        self._others = others

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self._select_app(scope)(scope, receive, send)

    def _select_app(self, scope: Scope) -> ASGIApp:
        if scope["type"] != "http":
            return self._others
        path: str = scope["path"]
        is_publication = scope["method"] == "POST" and path.lower().rstrip("/").endswith(
            "/messages"
        )
        return self._management if is_management(path) and not is_publication else self._others
