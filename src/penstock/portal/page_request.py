"""One request of a signed-in user, as a page's function gets it, and what all requests share."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.management.client import ManagementClient
from penstock.management.resources import EventHubResource
from penstock.model.clock import Clock
from penstock.model.errors import ArgumentError, PenstockError
from penstock.portal.address_limits import RequestRate, client_address
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

T = TypeVar("T")
_INTEGER_MAX = 999_999_999
_RENEW_AFTER_MS = 5 * 60_000  # the age of a cookie that is written again


class FlashMessage(msgspec.Struct, frozen=True):
    """Shown once, on the next page: what happened, and the form's values if it was refused."""

    text: str
    is_error: bool = False
    values: dict[str, str] = {}


class Portal(msgspec.Struct, kw_only=True):
    """What all requests share."""

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
    """One request of a signed-in user. Access and form token were checked."""

    portal: Portal
    request: Request
    session: PortalSession
    words: dict[str, str]  # the path's segments that the route names
    query: dict[str, str]
    form: dict[str, str] = {}
    flash: FlashMessage | None = None
    namespace: str = ""  # the one that the page shows, in its own spelling

    @property
    def backend(self) -> PortalServiceClient:
        return self.portal.backend

    @property
    def is_live(self) -> bool:
        """Whether a script updates an open page. That does not extend the session."""
        return "x-live" in self.request.headers

    async def hub(self) -> EventHubResource:
        """The hub in the path. Raises NotFound."""
        return await self.backend.hub(self.namespace, self.words["hub"])

    async def visible_hubs(self) -> list[EventHubResource]:
        return [hub for hub in await self.backend.hubs(self.namespace) if self.sees(hub.name)]

    async def act(self, work: Callable[[ManagementClient], T]) -> T:
        """Make a change as the user. All shared reads are discarded."""
        return await self.backend.act(self.session, work)

    def may(self, role: PortalRole) -> bool:
        return self.session.role >= role and not (
            self.portal.settings.read_only and role > PortalRole.VIEWER
        )

    def sees(self, hub: str) -> bool:
        return can_see_hub(self.session.hubs, hub)

    @property
    def mask(self) -> FieldMask | None:
        """The fields of events that this user must not see."""
        return None if self.session.role >= PortalRole.ADMIN else self.portal.mask

    @property
    def form_token(self) -> str:
        return self.portal.sessions.form_token(self.session)

    @property
    def address(self) -> str:
        """The client's address, also behind trusted proxies."""
        return client_address(self.request, trusted_proxies=self.portal.settings.trusted_proxies)

    def link(self, *segments: str, **query: object) -> str:
        """The path of a page that shows the same namespace; the default one is not named."""
        chosen = self.query.get("namespace")
        return path(*segments, **query, namespace=chosen)

    def form_value(self, name: str, default: object = "") -> str:
        """The initial value of a form field: the value of a refused form, or the default."""
        if self.flash is not None and name in self.flash.values:
            return self.flash.values[name]
        return str(default)

    def text(self, name: str) -> str:
        """A field of the posted form, without blanks around it; empty if it is absent."""
        return self.form.get(name, "").strip()

    def integer(self, name: str, what: str, least: int = 0, most: int = _INTEGER_MAX) -> int:
        """A field of the posted form. Raises ArgumentError."""
        text = self.text(name)
        if not (text.isascii() and text.isdigit() and len(text) <= 9):
            raise ArgumentError(f"{what}: '{text[:20]}' is not a whole number.")
        if not least <= int(text) <= most:
            raise ArgumentError(f"{what} is '{text}': {least} to {most} are allowed.")
        return int(text)

    def check_typed(self, name: str) -> None:
        """Raises ArgumentError unless the user typed the name of what is to be deleted."""
        if self.form.get("confirm") != name:
            raise ArgumentError(f"Type '{name}' to delete it: nothing was deleted.")


Handler = Callable[[PageRequest], Awaitable[Response]]


class PageRoute(msgspec.Struct, frozen=True):
    """`{word}` in a pattern is one segment, unescaped after the path is split: a hub may have a
    slash in its name. `role` is the lowest role that may send the request."""

    method: str
    pattern: str
    handler: Handler
    role: PortalRole = PortalRole.VIEWER


class ActionCompleted(Exception):  # not an error
    """Raised by a page that handled a form: redirects to `to`, which shows the text."""

    def __init__(self, to: str, text: str = "", *, is_error: bool = False) -> None:
        super().__init__(text)
        self.to = to
        self.flash = FlashMessage(text, is_error) if text else None


def cookie_name(request: Request) -> str:
    """One per port: browsers store cookies by host, and two services may share one."""
    return f"penstock_portal_{request.url.port or 0}"


def current_session(portal: Portal, request: Request) -> PortalSession | None:
    """The session of the cookie; None also when its user was removed or changed since."""
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
    """Extend a session that is in use: write its cookie again every few minutes."""
    now_ms = portal.clock.now_ms()
    if now_ms - visit.session.seen_ms > _RENEW_AFTER_MS and not visit.is_live:
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
