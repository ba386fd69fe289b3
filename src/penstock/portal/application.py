"""One request's way: who is it, may they, is it really they; then a page's function.

What a page is given (`Visit`) is checked already. Every answer carries the same strict headers:
no script, style, frame or connection but our own, nothing kept by caches.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from penstock.model.clock import Clock
from penstock.model.errors import NotFound, PenstockError
from penstock.model.host_names import HostNames
from penstock.portal.address_limits import RequestRate, client_address, limit_key
from penstock.portal.event_browser import EventBrowser
from penstock.portal.field_mask import FieldMask
from penstock.portal.html import path
from penstock.portal.revocations import Revocations
from penstock.portal.service_client import PortalServiceClient
from penstock.portal.sessions import FailedSignIns, PortalSession, SessionCookies
from penstock.portal.settings import PortalSettings
from penstock.portal.signing import Signer
from penstock.portal.users import PasswordChecks, PortalRole, Users, can_see_hub

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


class FlashMessage(msgspec.Struct, frozen=True):
    """Shown once, on the next page: what happened, and what was filled in when it went wrong."""

    text: str
    is_error: bool = False
    values: dict[str, str] = {}


class Portal(msgspec.Struct, kw_only=True):
    """What all visits share."""

    settings: PortalSettings
    backend: PortalServiceClient
    sessions: SessionCookies
    signer: Signer
    revocations: Revocations
    users: Users
    hashing: PasswordChecks
    guesses: FailedSignIns
    rate: RequestRate
    clock: Clock
    events: EventBrowser
    mask: FieldMask = FieldMask("")
    flashes: dict[str, FlashMessage] = {}


class PageRequest(msgspec.Struct, kw_only=True):
    """One request of somebody who is known."""

    portal: Portal
    request: Request
    session: PortalSession
    words: dict[str, str]  # of the path
    query: dict[str, str]
    form: dict[str, str] = {}
    flash: FlashMessage | None = None
    namespace: str = ""  # the one in view, as it is spelled

    @property
    def backend(self) -> PortalServiceClient:
        return self.portal.backend

    @property
    def is_live(self) -> bool:
        """A page that keeps itself up to date: nobody is there, perhaps."""
        return "x-live" in self.request.headers

    @property
    def hub(self) -> str:
        return self.words["hub"]

    def may(self, role: PortalRole) -> bool:
        return self.session.role >= role and not (
            self.portal.settings.read_only and role > PortalRole.VIEWER
        )

    def sees(self, hub: str) -> bool:
        return can_see_hub(self.session.hubs, hub)

    @property
    def mask(self) -> FieldMask | None:
        """What is hidden from this visitor in events."""
        return None if self.session.role >= PortalRole.ADMIN else self.portal.mask

    @property
    def form_token(self) -> str:
        return self.portal.sessions.form_token(self.session)

    @property
    def address(self) -> str:
        """The client's, also behind trusted proxies."""
        return client_address(self.request, trusted_proxies=self.portal.settings.trusted_proxies)

    def link(self, *segments: str, **query: object) -> str:
        """An address that stays in this namespace; the default one is not named."""
        chosen = self.query.get("namespace")
        return path(*segments, **query, namespace=chosen)

    def form_value(self, name: str, default: object = "") -> str:
        """What a form's field begins with: what was typed before it was refused."""
        if self.flash is not None and name in self.flash.values:
            return self.flash.values[name]
        return str(default)


Handler = Callable[[PageRequest], Awaitable[Response]]


class PageRoute(msgspec.Struct, frozen=True):
    """`{word}` in a pattern is one segment, unescaped after the path is split: a hub may have a
    slash in its name. `role` is what the request needs at least."""

    method: str
    pattern: str
    handler: Handler
    role: PortalRole = PortalRole.VIEWER


class ActionCompleted(Exception):  # no fault: a form was handled
    """Leads to another page, which says so."""

    def __init__(self, to: str, text: str = "", *, is_error: bool = False) -> None:
        super().__init__(text)
        self.to = to
        self.flash = FlashMessage(text, is_error) if text else None


class PageRouter:
    """Finds the route; `None` as its words when only the method is wrong."""

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
    """The ASGI application. `known` tells who somebody is, `denied` what strangers see."""

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
            # There are none here: an upgrade from whatever origin is refused.
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
            found = await read_form(request)
            if found is None:
                return self._plain(413, f"A form has at most {_FORM_BYTES_MAX} bytes.")
            form = found
        query = dict(request.query_params)
        public = self._public.find(method, segments)
        session = current_session(self._portal, request)
        visit = PageRequest(
            portal=self._portal,
            request=request,
            session=session or _STRANGER,
            words={} if public is None else public[1],
            query=query,
            form=form,
        )
        if session is None and not self._may_ask(visit, segments):
            response = self._plain(429, "Too many requests from your address: wait a moment.")
            response.headers["retry-after"] = "1"
            return response
        if public is not None:
            return await public[0].handler(visit)
        if session is None:
            return _to_sign_in(request)
        chosen = self._router.find(method, segments)
        if chosen is None:
            from penstock.portal.layout import error_page

            return await error_page(visit, 404, "There is no such page.")
        return await self._run_handler(visit, *chosen)

    def _is_own_host(self, request: Request) -> bool:
        server = request.scope.get("server") or (None,)
        return self._hosts.allows(request.headers.get("host", ""), server=server[0])

    def _may_ask(self, visit: PageRequest, segments: list[str]) -> bool:
        """The service watches the portal by `/alive`: that has no limit."""
        portal = self._portal
        return segments == ["alive"] or portal.rate.take(
            limit_key(visit.address), now_ms=portal.clock.monotonic_ms()
        )

    async def _run_handler(
        self, visit: PageRequest, route: PageRoute, words: dict[str, str]
    ) -> Response:
        from penstock.portal.layout import error_page

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
            self._keep(visit, done.flash)
            response = RedirectResponse(done.to, status_code=303)
        except PenstockError as error:
            back = visit.form.get("back", "")
            if not posted or not back.startswith("/") or back.startswith("//"):
                return await error_page(visit, error.http_status or 500, str(error))
            kept = {name: value for name, value in visit.form.items() if "key" not in name}
            self._keep(visit, FlashMessage(str(error), True, kept))
            response = RedirectResponse(back, status_code=303)
        return renew_session(self._portal, visit, response)

    async def _namespace(self, visit: PageRequest) -> str:
        wanted = visit.query.get("namespace") or visit.form.get("namespace")
        for _ in range(2):
            known = [each.name for each in await visit.backend.namespaces()]
            if not wanted:
                # Links without a namespace lead to the one of `serve`, whichever others are made.
                own = self._portal.settings.namespace
                return own if own in known else known[0] if known else ""
            for name in known:
                if name.casefold() == wanted.casefold():
                    return name
            visit.backend.forget("namespaces")
        # Never another one instead: what is done next would be done in the wrong place.
        visit.query.pop("namespace", None)
        raise NotFound(f"There is no namespace '{wanted}'.")

    def _keep(self, visit: PageRequest, flash: FlashMessage | None) -> None:
        flashes = self._portal.flashes
        if flash is not None:
            flashes[visit.session.id] = flash
        while len(flashes) > _FLASHES_MAX:
            flashes.pop(next(iter(flashes)))

    def _plain(self, status: int, text: str) -> Response:
        return Response(text + "\n", status_code=status, media_type="text/plain")


_STRANGER = PortalSession(id="", user="", role=PortalRole.VIEWER, began_ms=0, seen_ms=0)


def access_denied_reason(visit: PageRequest, route: PageRoute) -> str | None:
    """Why this visitor may not."""
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


def cookie_name(request: Request) -> str:
    """By port: browsers keep cookies by host alone, and two services may share one."""
    return f"penstock_portal_{request.url.port or 0}"


def current_session(portal: Portal, request: Request) -> PortalSession | None:
    """Whose session the cookie is. Somebody who is out of the user file is out."""
    cookie = request.cookies.get(cookie_name(request), "")
    session = portal.sessions.read(cookie, now_ms=portal.clock.now_ms())
    if session is None or not session.stamp:
        return session
    try:
        user = portal.users.find(session.user)
    except PenstockError as error:
        log.error("%s", error)
        return None
    return session if user is not None and user.stamp == session.stamp else None


def renew_session(portal: Portal, visit: PageRequest, response: Response) -> Response:
    """A session that is used goes on; the cookie is written anew every few minutes."""
    now_ms = portal.clock.now_ms()
    if now_ms - visit.session.seen_ms > 5 * 60_000 and not visit.is_live:
        session = msgspec.structs.replace(visit.session, seen_ms=now_ms)
        set_cookie(portal, visit.request, response, portal.sessions.cookie(session))
    return response


def set_cookie(portal: Portal, request: Request, response: Response, value: str) -> None:
    response.set_cookie(
        cookie_name(request),
        value,
        httponly=True,
        samesite="strict",
        secure=portal.settings.is_secure,
        path="/",
    )


def is_same_origin(request: Request) -> bool:
    """Browsers say where a request comes from. One that says nothing is no browser's, and has no
    cookie that another site could use."""
    origin = request.headers.get("origin")
    if origin is not None:
        return urlsplit(origin).netloc.casefold() == request.headers.get("host", "").casefold()
    return request.headers.get("sec-fetch-site", "none") in ("same-origin", "none")


async def read_form(request: Request) -> dict[str, str] | None:
    """The fields, the last of each name; None when it is too large."""
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
    """A link from another site comes without the cookie (SameSite=Strict): from our own page the
    same address is asked for again, now with it."""
    if request.method == "POST" or "text/event-stream" in request.headers.get("accept", ""):
        return Response("Sign in first.\n", status_code=401, media_type="text/plain")
    target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    if request.headers.get("sec-fetch-site") == "cross-site":
        from penstock.portal.layout import retry_page

        return retry_page()
    return RedirectResponse(path("signin", to=target if target != "/" else None), 303)
