"""The ASGI application of the portal: checks host, origin, rate, session, form token and role of a
request, then calls the function of its page.

Every response has the same strict headers: only the portal's own scripts, styles and connections,
no frames, no caching.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from urllib.parse import parse_qsl, unquote, urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from penstock.management.client import ManagementClient
from penstock.management.permissions import AdminRole
from penstock.model.clock import Clock
from penstock.model.errors import NotFound, PenstockError
from penstock.model.host_names import HostNames
from penstock.portal.address_limits import limit_key
from penstock.portal.page_request import ActionCompleted, PageRequest, PageRoute, Portal
from penstock.portal.pages import PUBLIC, ROUTES
from penstock.portal.sessions import PortalSession
from penstock.portal.settings import PortalSettings
from penstock.portal.shell import error_page, retry_page
from penstock.portal.urls import path

log = logging.getLogger("penstock.portal")

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=()",
    "cache-control": "no-store",
}
_FORM_BYTES_MAX = 2 * 1024 * 1024
_FIELDS_MAX = 200


class PageRouter:
    """Finds the route of a path, and the values of its words; None when there is none."""

    def __init__(self, routes: Sequence[PageRoute]) -> None:
        self._routes = [
            (route, re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", route.pattern)))
            for route in routes
        ]

    def find(self, method: str, url_path: str) -> tuple[PageRoute, dict[str, str]] | None:
        """`url_path` is escaped: a hub may have a slash in its name."""
        for route, expression in self._routes:
            match = expression.fullmatch(url_path) if route.method == method else None
            if match is not None:
                return route, {word: unquote(text) for word, text in match.groupdict().items()}
        return None


class PortalApplication:
    """The ASGI application. It must be closed."""

    def __init__(self, settings: PortalSettings, clock: Clock) -> None:
        self._portal = Portal(settings, clock)
        self._hosts = HostNames(settings.hosts)
        self._router = PageRouter((*ROUTES, *PUBLIC))

    def close(self) -> None:
        self._portal.backend.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            # The portal has no WebSockets: refuse the upgrade, whatever its origin.
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        request = Request(scope, receive)
        try:
            response = await self._respond(request)
        except ClientDisconnect:
            return
        except Exception:
            log.exception("request failed: path=%s", scope["path"])
            response = _plain(500, "Something went wrong here; the portal's log says what.")
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        if self._portal.settings.is_secure:
            response.headers["strict-transport-security"] = "max-age=31536000"
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        portal = self._portal
        raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
        url_path = "/" + raw.decode("ascii", "replace").strip("/")
        method = "GET" if request.method == "HEAD" else request.method
        form: dict[str, str] = {}
        is_probe = url_path == "/alive"  # the service checks the portal with it
        server = (request.scope.get("server") or (None,))[0]
        if not is_probe and not self._hosts.allows(request.headers.get("host", ""), server=server):
            return _plain(
                421,
                "The portal does not answer for this host name: use localhost, a name of its "
                "machine, or start the service with --public-host NAME.",
            )
        if method == "POST":
            if not is_same_origin(request):
                return _plain(403, "The request comes from another site: refused.")
            fields = await read_form(request)
            if fields is None:
                return _plain(413, f"A form has at most {_FORM_BYTES_MAX} bytes.")
            form = fields
        route, words = self._router.find(method, url_path) or (_MISSING, {})
        session = portal.current_session(request)
        visit = PageRequest(
            portal=portal,
            request=request,
            session=session or _NO_SESSION,
            route=route,
            words=words,
            query=dict(request.query_params),
            form=form,
        )
        if session is None:
            key, now_ms = limit_key(visit.address), portal.clock.monotonic_ms()
            if not is_probe and not portal.rate.take(key, now_ms=now_ms):
                response = _plain(429, "Too many requests from your address: wait a moment.")
                response.headers["retry-after"] = "1"
                return response
            if route.role > AdminRole.NOBODY:
                return _to_sign_in(visit)
        if route is _MISSING or route.role is AdminRole.NOBODY:
            return await route.handler(visit)
        return await self._run_handler(visit)

    async def _run_handler(self, visit: PageRequest) -> Response:
        route = visit.route
        posted = route.method == "POST"
        if posted:
            token = visit.form.pop("form_token", "")
            if not self._portal.sessions.is_form_token(visit.session, token):
                return await error_page(visit, 403, "The form is too old, or not ours: try again.")
        elif not visit.is_live:
            visit.flash = self._portal.flashes.pop(visit.session.id, None)
        refusal = access_denied_reason(visit, route)
        if refusal is not None:
            return await error_page(visit, 403, refusal)
        try:
            visit.namespace = await self._namespace(visit)
            if "hub" in visit.words:
                visit.words["hub"] = (await visit.hub()).name  # in its own spelling
            response = await route.handler(visit)
        except ActionCompleted as done:
            visit.store_flash(str(done))
            response = RedirectResponse(done.to, status_code=303)
        except PenstockError as error:
            back = visit.form.get("back", "")
            if not posted or not back.startswith("/") or back.startswith("//"):
                return await error_page(visit, error.http_status or 500, str(error))
            values = {
                name: value
                for name, value in visit.form.items()
                if name != "confirm" and "key" not in name
            }
            visit.store_flash(str(error), is_error=True, values=values)
            response = RedirectResponse(back, status_code=303)
        visit.renew_session(response)
        return response

    async def _namespace(self, visit: PageRequest) -> str:
        requested = visit.query.get("namespace") or visit.form.get("namespace")
        if not requested:
            # Links without a namespace mean the default one, even when others are created.
            own = self._portal.settings.namespace
            existing = [each.name for each in await visit.backend.read(ManagementClient.namespaces)]
            return own if own in existing else existing[0] if existing else ""
        namespace = await visit.backend.find(requested, ManagementClient.namespaces)
        if namespace is None:
            # Never another one instead: the next action would change the wrong namespace.
            visit.query.pop("namespace", None)
            raise NotFound(f"There is no namespace '{requested}'.")
        return namespace.name


async def _missing_page(visit: PageRequest) -> Response:
    return await error_page(visit, 404, "There is no such page.")


def _plain(status: int, text: str) -> Response:
    return PlainTextResponse(text + "\n", status)


_MISSING = PageRoute("", "", _missing_page)
_NO_SESSION = PortalSession(id="", user="", role=AdminRole.VIEWER, began_ms=0, seen_ms=0)


def access_denied_reason(visit: PageRequest, route: PageRoute) -> str | None:
    """Why this user may not send the request; None when they may."""
    if visit.portal.settings.read_only and route.role > AdminRole.VIEWER:
        return "The portal is in read-only mode: nothing can be changed here."
    if visit.session.role < route.role:
        return (
            f"You are signed in as '{visit.session.user}' with the role "
            f"{visit.session.role.name.lower()}: this needs {route.role.name.lower()}."
        )
    hub = visit.words.get("hub")
    is_for_all = hub is None and route.pattern not in ("/hubs", "/new-hub")
    if is_for_all and route.role > AdminRole.VIEWER and visit.session.hubs:
        return f"You are signed in as '{visit.session.user}', who has some event hubs and no more."
    if hub is not None and not visit.sees(hub):
        return f"You are signed in as '{visit.session.user}', who may not see this event hub."
    return None


def is_same_origin(request: Request) -> bool:
    """Browsers send the origin of a request. A client that sends none is not a browser, and has no
    cookie that another site could use."""
    origin = request.headers.get("origin")
    if origin is not None:
        return urlsplit(origin).netloc.casefold() == request.headers.get("host", "").casefold()
    return request.headers.get("sec-fetch-site", "none") in ("same-origin", "none")


async def read_form(request: Request) -> dict[str, str] | None:
    """The fields, the last of each name; None when the form is too large."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _FORM_BYTES_MAX:
            return None
    if "application/x-www-form-urlencoded" not in request.headers.get("content-type", ""):
        return {}
    try:
        pairs = parse_qsl(
            body.decode("ascii", "replace"), keep_blank_values=True, max_num_fields=_FIELDS_MAX
        )
    except ValueError:
        return {}
    return {name: value.replace("\r\n", "\n") for name, value in pairs}


def _to_sign_in(visit: PageRequest) -> Response:
    """A link from another site comes without the cookie (SameSite=Strict). A page of our own then
    requests the same address again, with the cookie."""
    request = visit.request
    if request.method == "POST" or "text/event-stream" in request.headers.get("accept", ""):
        return _plain(401, "Sign in first.")
    if request.headers.get("sec-fetch-site") == "cross-site":
        return retry_page()
    to = visit.address_path
    return RedirectResponse(path("signin", to=to if to != "/" else None), 303)
