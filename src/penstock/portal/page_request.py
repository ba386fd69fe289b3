"""One request of a signed-in user, as a page's function gets it, and what all requests share."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.management.client import ManagementClient
from penstock.management.permissions import AdminRole
from penstock.management.resources import EventHubResource
from penstock.model.clock import Clock
from penstock.model.errors import ArgumentError, NotFound, PenstockError
from penstock.portal.address_limits import RequestRate, client_address
from penstock.portal.event_browser import EventBrowser
from penstock.portal.field_mask import FieldMask
from penstock.portal.revocations import Revocations
from penstock.portal.service_client import PortalServiceClient
from penstock.portal.sessions import FailedSignIns, PortalSession, SessionCookies
from penstock.portal.settings import PortalSettings
from penstock.portal.signing import Signer
from penstock.portal.urls import path
from penstock.portal.users import PasswordChecks, User, Users, can_see_hub

log = logging.getLogger("penstock.portal")

T = TypeVar("T")
_INTEGER_MAX = 999_999_999
_FLASHES_MAX = 1000
_OPEN_MAX = 50  # unfolded rows
_RENEW_AFTER_MS = 5 * 60_000  # the age of a cookie that is written again


class FlashMessage(msgspec.Struct, frozen=True):
    """Shown once, on the next page: what happened, and the form's values if it was refused."""

    text: str
    is_error: bool = False
    values: dict[str, str] = {}


def cookie_name(request: Request) -> str:
    """One per port: browsers store cookies by host, and two services may share one."""
    return f"penstock_portal_{request.url.port or 0}"


class Portal:
    """What all requests share. `backend` must be closed."""

    def __init__(self, settings: PortalSettings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self.backend = PortalServiceClient(settings, clock)
        self.signer = Signer(settings.secret)
        self.revocations = Revocations(settings.revocations_file, now_ms=clock.now_ms())
        lifetime_ms = settings.session_hours * 3_600_000
        self.sessions = SessionCookies(self.signer, self.revocations, lifetime_ms=lifetime_ms)
        self.users = Users(settings.users_file)
        self.password_checks = PasswordChecks()
        self.guesses = FailedSignIns()
        self.rate = RequestRate()
        self.events = EventBrowser(self.backend, settings.ca_file)
        self.mask = FieldMask(settings.mask)
        self.flashes: dict[str, FlashMessage] = {}  # by session

    def current_session(self, request: Request) -> PortalSession | None:
        """The session of the cookie; None also when its user was removed or changed since."""
        cookie = request.cookies.get(cookie_name(request), "")
        session = self.sessions.read(cookie, now_ms=self.clock.now_ms())
        if session is None or not session.stamp:
            return session
        user = self.find_user(session.user)
        return session if user is not None and user.stamp == session.stamp else None

    def find_user(self, name: str) -> User | None:
        """None also when the file of users cannot be used, which is logged."""
        try:
            return self.users.find(name)
        except PenstockError as error:
            log.error("%s", error)
            return None


class PageRoute(msgspec.Struct, frozen=True):
    """`{word}` in a pattern is one segment, unescaped after the path is split: a hub may have a
    slash in its name. `role` is the lowest role that may send the request."""

    method: str
    pattern: str
    handler: Callable[[PageRequest], Awaitable[Response]]
    role: AdminRole = AdminRole.VIEWER


class PageRequest(msgspec.Struct, kw_only=True):
    """One request of a signed-in user. Access and form token were checked."""

    portal: Portal
    request: Request
    session: PortalSession
    route: PageRoute
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

    async def hub(self, name: str = "") -> EventHubResource:
        """The hub in the path, or the one of this name. Raises NotFound."""
        name = name or self.words["hub"]
        hub = await self.backend.find(name, ManagementClient.hubs, self.namespace)
        if hub is None:
            raise NotFound(f"There is no event hub '{name}' in the namespace '{self.namespace}'.")
        return hub

    async def visible_hubs(self) -> list[EventHubResource]:
        hubs = await self.backend.read(ManagementClient.hubs, self.namespace)
        return [hub for hub in hubs if self.sees(hub.name)]

    async def act(self, work: Callable[[ManagementClient], T]) -> T:
        """Make a change, or a read that needs a role or is recorded, as the user."""
        return await self.backend.act(self.session, work)

    def may(self, role: AdminRole) -> bool:
        return self.session.role >= role and not (
            self.portal.settings.read_only and role > AdminRole.VIEWER
        )

    def may_everywhere(self, role: AdminRole) -> bool:
        """Like `may`, for what concerns more than the hubs that the user may see."""
        return self.may(role) and not self.session.hubs

    def sees(self, hub: str) -> bool:
        return can_see_hub(self.session.hubs, hub)

    @property
    def mask(self) -> FieldMask | None:
        """The fields of events that this user must not see."""
        return None if self.session.role >= AdminRole.ADMIN else self.portal.mask

    @property
    def form_token(self) -> str:
        return self.portal.sessions.form_token(self.session)

    @property
    def address(self) -> str:
        """The client's address, also behind trusted proxies."""
        return client_address(self.request, trusted_proxies=self.portal.settings.trusted_proxies)

    def link(self, /, *segments: str, **query: object) -> str:
        """The path of a page that shows the same namespace; the default one is not named."""
        return path(*segments, **query, namespace=self.query.get("namespace"))

    def hub_link(self, /, *segments: str, **query: object) -> str:
        """The path of a page of the same hub, if there is a hub in the path."""
        scope = ("hubs", self.words["hub"]) if "hub" in self.words else ()
        return self.link(*scope, *segments, **query)

    def page_link(self, /, **query: object) -> str:
        """The path of this page."""
        parts = self.route.pattern.strip("/").split("/")
        return self.link(*(part.format(**self.words) for part in parts), **query)

    def here(self, /, **changes: object) -> str:
        """The address of this page with other parameters of its query; None removes one."""
        query: dict[str, object] = {
            name: self.request.query_params.getlist(name)
            for name in self.request.query_params
            if name != "namespace"
        }
        return self.page_link(**(query | changes))

    def is_open(self, key: str) -> bool:
        """Whether the row of this key is unfolded."""
        return key in self.request.query_params.getlist("open")

    def toggled(self, name: str, value: str) -> str:
        """The address of this page with the value added to a parameter, or taken from it."""
        values = self.request.query_params.getlist(name)[-_OPEN_MAX:]
        rest = [each for each in values if each != value]
        return self.here(**{name: rest if len(rest) < len(values) else [*rest, value]})

    def kept_parameters(self, *names: str) -> list[tuple[str, str]]:
        """Names and values of the query but those of `names`, for the hidden fields of a form."""
        pairs = self.request.query_params.multi_items()
        return [(name, value) for name, value in pairs if name not in names]

    @property
    def address_path(self) -> str:
        """The address of this request without the host: it leads to a page of ours at worst."""
        url = self.request.url
        return url.path + (f"?{url.query}" if url.query else "")

    def store_flash(self, text: str, **fields: Any) -> None:
        """Show a `FlashMessage` on the next page."""
        flashes = self.portal.flashes
        flashes[self.session.id] = FlashMessage(text, **fields)
        while len(flashes) > _FLASHES_MAX:
            flashes.pop(next(iter(flashes)))

    def form_value(self, name: str, default: object = "") -> str:
        """The initial value of a form field: the value of a refused form, or the default."""
        if self.flash is not None and name in self.flash.values:
            return self.flash.values[name]
        return str(default)

    def set_cookie(self, response: Response, session: PortalSession) -> None:
        response.set_cookie(
            cookie_name(self.request),
            self.portal.sessions.cookie(session),
            httponly=True,
            samesite="strict",
            secure=self.portal.settings.is_secure,
            path="/",
        )

    def renew_session(self, response: Response) -> None:
        """Extend a session that is in use: write its cookie again every few minutes."""
        now_ms = self.portal.clock.now_ms()
        if now_ms - self.session.seen_ms > _RENEW_AFTER_MS and not self.is_live:
            self.set_cookie(response, msgspec.structs.replace(self.session, seen_ms=now_ms))

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


class ActionCompleted(Exception):  # not an error
    """Raised by a page that handled a form: redirects to `to`, which shows the text."""

    def __init__(self, to: str, text: str) -> None:
        super().__init__(text)
        self.to = to
