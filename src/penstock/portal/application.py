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
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from penstock.model.errors import NotFound, PenstockError
from penstock.model.host_names import HostNames
from penstock.portal.address_limits import limit_key
from penstock.portal.html import path
from penstock.portal.layout import error_page, retry_page
from penstock.portal.page_request import (
    ActionCompleted,
    FlashMessage,
    PageRequest,
    PageRoute,
    Portal,
    current_session,
    renew_session,
)
from penstock.portal.sessions import PortalSession
from penstock.portal.users import PortalRole

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
_FLASHES_MAX = 1000
_WORD = re.compile(r"\{(\w+)\}")


class PageRouter:
    """Finds the route of a path, and the values of its words; None when there is none."""

    def __init__(self, routes: Sequence[PageRoute]) -> None:
        self._routes = [(route, route.pattern.strip("/").split("/")) for route in routes]

    def find(self, method: str, segments: list[str]) -> tuple[PageRoute, dict[str, str]] | None:
        for route, parts in self._routes:
            if route.method != method or len(parts) != len(segments):
                continue
            words: dict[str, str] = {}
            for part, segment in zip(parts, segments, strict=True):
                word = _WORD.fullmatch(part)
                if word is not None:
                    words[word[1]] = segment
                elif part != segment:
                    break
            else:
                return route, words
        return None


class PortalApplication:
    """The ASGI application. The `public` routes need no session."""

    def __init__(
        self, portal: Portal, routes: Sequence[PageRoute], public: Sequence[PageRoute]
    ) -> None:
        self._portal = portal
        self._hosts = HostNames(portal.settings.hosts)
        self._router = PageRouter(routes)
        self._public = PageRouter(public)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return
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
            response = self._plain(500, "Something went wrong here; the portal's log says what.")
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        if self._portal.settings.is_secure:
            response.headers["strict-transport-security"] = "max-age=31536000"
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
        segments = [unquote(each) for each in raw.decode("ascii", "replace").strip("/").split("/")]
        method = "GET" if request.method == "HEAD" else request.method
        form: dict[str, str] = {}
        if segments != ["alive"] and not self._is_own_host(request):
            return self._plain(
                421,
                "The portal does not answer for this host name: use localhost, a name of its "
                "machine, or start the service with --public-host NAME.",
            )
        if method == "POST":
            if not is_same_origin(request):
                return self._plain(403, "The request comes from another site: refused.")
            fields = await read_form(request)
            if fields is None:
                return self._plain(413, f"A form has at most {_FORM_BYTES_MAX} bytes.")
            form = fields
        query = dict(request.query_params)
        public = self._public.find(method, segments)
        session = current_session(self._portal, request)
        visit = PageRequest(
            portal=self._portal,
            request=request,
            session=session or _NO_SESSION,
            words={} if public is None else public[1],
            query=query,
            form=form,
        )
        if session is None and not self._is_within_rate(visit, segments):
            response = self._plain(429, "Too many requests from your address: wait a moment.")
            response.headers["retry-after"] = "1"
            return response
        if public is not None:
            return await public[0].handler(visit)
        if session is None:
            return _to_sign_in(request)
        chosen = self._router.find(method, segments)
        if chosen is None:
            return await error_page(visit, 404, "There is no such page.")
        return await self._run_handler(visit, *chosen)

    def _is_own_host(self, request: Request) -> bool:
        server = request.scope.get("server") or (None,)
        return self._hosts.allows(request.headers.get("host", ""), server=server[0])

    def _is_within_rate(self, visit: PageRequest, segments: list[str]) -> bool:
        """`/alive` has no limit: the service checks the portal with it."""
        portal = self._portal
        return segments == ["alive"] or portal.rate.take(
            limit_key(visit.address), now_ms=portal.clock.monotonic_ms()
        )

    async def _run_handler(
        self, visit: PageRequest, route: PageRoute, words: dict[str, str]
    ) -> Response:
        visit.words = words
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
            response = await route.handler(visit)
        except ActionCompleted as done:
            self._store_flash(visit, done.flash)
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
            self._store_flash(visit, FlashMessage(str(error), True, values))
            response = RedirectResponse(back, status_code=303)
        return renew_session(self._portal, visit, response)

    async def _namespace(self, visit: PageRequest) -> str:
        requested = visit.query.get("namespace") or visit.form.get("namespace")
        for _ in range(2):
            existing = [each.name for each in await visit.backend.namespaces()]
            if not requested:
                # Links without a namespace mean the default one, even when others are created.
                own = self._portal.settings.namespace
                return own if own in existing else existing[0] if existing else ""
            for name in existing:
                if name.casefold() == requested.casefold():
                    return name
            visit.backend.forget("namespaces")
        # Never another one instead: the next action would change the wrong namespace.
        visit.query.pop("namespace", None)
        raise NotFound(f"There is no namespace '{requested}'.")

    def _store_flash(self, visit: PageRequest, flash: FlashMessage | None) -> None:
        flashes = self._portal.flashes
        if flash is not None:
            flashes[visit.session.id] = flash
        while len(flashes) > _FLASHES_MAX:
            flashes.pop(next(iter(flashes)))

    def _plain(self, status: int, text: str) -> Response:
        return Response(text + "\n", status_code=status, media_type="text/plain")


_NO_SESSION = PortalSession(id="", user="", role=PortalRole.VIEWER, began_ms=0, seen_ms=0)


def access_denied_reason(visit: PageRequest, route: PageRoute) -> str | None:
    """Why this user may not send the request; None when they may."""
    if visit.portal.settings.read_only and route.role > PortalRole.VIEWER:
        return "The portal is in read-only mode: nothing can be changed here."
    if visit.session.role < route.role:
        return (
            f"You are signed in as '{visit.session.user}' with the role "
            f"{visit.session.role.name.lower()}: this needs {route.role.name.lower()}."
        )
    hub = visit.words.get("hub")
    if (
        hub is None
        and visit.session.hubs
        and route.role > PortalRole.VIEWER
        and route.pattern != "/hubs"
    ):
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


def _to_sign_in(request: Request) -> Response:
    """A link from another site comes without the cookie (SameSite=Strict). A page of our own then
    requests the same address again, with the cookie."""
    if request.method == "POST" or "text/event-stream" in request.headers.get("accept", ""):
        return Response("Sign in first.\n", status_code=401, media_type="text/plain")
    target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    if request.headers.get("sec-fetch-site") == "cross-site":
        return retry_page()
    return RedirectResponse(path("signin", to=target if target != "/" else None), 303)
