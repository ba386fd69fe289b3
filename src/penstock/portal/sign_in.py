"""Signing in and out: by the admin token, or by name and password of the user file."""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
from collections.abc import Iterable
from typing import Any

import msgspec
from starlette.responses import RedirectResponse, Response

from penstock.model import names
from penstock.model.errors import PenstockError, ServerBusy
from penstock.portal.address_limits import limit_key
from penstock.portal.components import error_box, field, hidden, submit
from penstock.portal.html import Html, el
from penstock.portal.layout import LOGO, bare_page
from penstock.portal.page_request import PageRequest, cookie_name, set_cookie
from penstock.portal.sessions import PortalSession
from penstock.portal.settings import hash_token
from penstock.portal.sign_in_links import PARAMETER, read_link
from penstock.portal.users import PortalRole, User

log = logging.getLogger("penstock.portal")

# Azure's names of its built-in roles, and ours, as the service knows them.
_ROLES = {
    "owner": PortalRole.ADMIN,
    "admin": PortalRole.ADMIN,
    "contributor": PortalRole.OPERATOR,
    "operator": PortalRole.OPERATOR,
    "reader": PortalRole.VIEWER,
    "viewer": PortalRole.VIEWER,
}
_TOKEN_MAX = 8192
_BUSY_MS = 1_000


async def open_sign_in(visit: PageRequest) -> Response:
    """`GET /signin`: the page, or a link for one sign-in."""
    text = visit.query.get(PARAMETER, "")
    if not text:
        return await sign_in_page(visit)
    headers = visit.request.headers
    looks_ahead = "prefetch" in headers.get("sec-purpose", headers.get("purpose", ""))
    if visit.request.method != "GET" or looks_ahead:
        # A preview or a prefetch must not use the link up.
        return Response(status_code=204)
    return await _with_link(visit, text)


async def sign_in_page(visit: PageRequest, error: str = "", status: int = 200) -> Response:
    """The first field takes the admin token."""
    to = hidden("to", _target(visit.query.get("to") or visit.form.get("to") or "/"))
    password: dict[str, Any] = {"type_": "password", "required": True}
    token = field(
        visit,
        "Administration token",
        "token",
        autocomplete="off",
        autofocus=True,
        help_="It is admin_token in runtime.json of the data directory. Or run the command "
        "penstock portal url --sign-in and open the link that it prints.",
        **password,
    )
    forms: list[tuple[Html, ...]] = [(to, token, submit("Sign in"))]
    if visit.portal.users.is_there:
        forms.append(
            (
                el("p", "or as a user", class_="divider"),
                to,
                field(visit, "Name", "name", autocomplete="username", required=True),
                field(visit, "Password", "password", autocomplete="current-password", **password),
                submit("Sign in as user", None),
            )
        )
    environment = visit.portal.settings.environment
    body = el(
        "body",
        el(
            "main",
            el("div", LOGO, "Penstock", class_="brand"),
            el("p", environment, class_="environment") if environment else None,
            el("h1", "Sign in"),
            error_box(error) if error else None,
            *(
                el("form", *parts, method="post", action="/signin", class_="form")
                for parts in forms
            ),
            class_="bare signin",
        ),
    )
    return bare_page(visit, "Sign in", body, status=status)


async def sign_in(visit: PageRequest) -> Response:
    token = visit.form.get("token", "").strip()
    if token:
        return await _with_token(visit, token)
    return await _with_password(visit, visit.form.get("name", ""), visit.form.get("password", ""))


async def sign_out(visit: PageRequest) -> Response:
    """Needs the form's token: nobody else ends a session."""
    portal, session = visit.portal, visit.session
    if session.id and portal.sessions.is_form_token(session, visit.form.get("form_token", "")):
        portal.sessions.end(session, now_ms=portal.clock.now_ms())
        portal.flashes.pop(session.id, None)
    response = RedirectResponse("/signin", status_code=303)
    response.delete_cookie(cookie_name(visit.request), path="/")
    return response


async def _with_link(visit: PageRequest, text: str) -> Response:
    """Used up before anything else happens: of several requests with one link, one signs in."""
    portal = visit.portal
    now_ms = portal.clock.now_ms()
    link = read_link(text, portal.signer, now_ms=now_ms)
    if link is None or not portal.revocations.revoke(
        link.id, issued_ms=link.issued_ms, expires_ms=link.expires_ms, now_ms=now_ms
    ):
        log.warning("sign-in refused: by=link from=%s", visit.address)
        return await sign_in_page(
            visit,
            "The link was used already, has expired or is not complete. "
            "The command penstock portal url --sign-in prints a new one.",
            401,
        )
    return await _start_session(visit, portal.sessions.begin(link.user, link.role, now_ms=now_ms))


async def _with_token(visit: PageRequest, token: str) -> Response:
    """The service's own admin token never waits, whatever others tried from its address: it cannot
    be guessed. Each other one costs the service a request, so these are counted as guesses."""
    portal = visit.portal
    now_ms, place = portal.clock.now_ms(), f"token {limit_key(visit.address)}"
    own_hash = portal.settings.admin_token_hash
    if token.isascii() and hmac.compare_digest(hash_token(token), own_hash):
        user, role = claims(token)
        return await _start_session(visit, portal.sessions.begin(user, role, now_ms=now_ms))
    wait_ms = portal.guesses.begin(place, now_ms=now_ms)
    if wait_ms:
        return await _wait_page(visit, wait_ms)
    holder = None
    if len(token) <= _TOKEN_MAX and token.isascii():
        try:
            holder = await portal.backend.token_holder(token)
        except ServerBusy:
            return await _wait_page(visit, _BUSY_MS, "Too many people are signing in")
        except PenstockError as error:
            log.warning("token not checked: reason=%s", error)
    if holder is None:
        return await _failed_sign_in(visit, "a token", "The token is not one of this service's.")
    portal.guesses.right(place)
    user, role = holder[0][:64], role_of(holder[1])
    return await _start_session(visit, portal.sessions.begin(user, role, now_ms=now_ms))


async def _with_password(visit: PageRequest, name: str, password: str) -> Response:
    portal = visit.portal
    now_ms, address = portal.clock.now_ms(), limit_key(visit.address)
    places = (f"user {address}", f"user {address} {names.quote_text(name)}")
    wait_ms = portal.guesses.begin(*places, now_ms=now_ms)
    if wait_ms:
        return await _wait_page(visit, wait_ms)
    user: User | None = None
    try:
        user = portal.users.find(name)
    except PenstockError as error:
        log.error("%s", error)
    try:
        is_right = await portal.hashing.matches(password, user)
    except ServerBusy:
        return await _wait_page(visit, _BUSY_MS, "Too many people are signing in")
    if user is None or not is_right:
        # A name that is nobody's may be a password in the wrong field: it is not written down.
        who = "an unknown name" if user is None else user.name
        return await _failed_sign_in(visit, who, "Name or password is wrong.")
    portal.guesses.right(*places)
    session = portal.sessions.begin(
        user.name, user.role, now_ms=now_ms, stamp=user.stamp, hubs=user.hubs
    )
    return await _start_session(visit, session)


def claims(token: str) -> tuple[str, PortalRole]:
    """Whose the service's own admin token is: its hash is known, its claims need no check."""
    try:
        body = token.split(".")[1]
        found = msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        return str(found.get("sub") or "admin")[:64], role_of(found.get("roles", []))
    except (IndexError, binascii.Error, msgspec.MsgspecError, AttributeError, TypeError):
        return "admin", PortalRole.VIEWER


def role_of(claimed: Iterable[object]) -> PortalRole:
    """The highest of a token's roles; the lowest role when none is known here."""
    roles = [_ROLES.get(str(each).lower()) for each in claimed]
    return max((each for each in roles if each is not None), default=PortalRole.VIEWER)


async def _start_session(visit: PageRequest, session: PortalSession) -> Response:
    """A new id in a new cookie, whatever the browser brought."""
    portal = visit.portal
    if visit.session.id:
        portal.sessions.end(visit.session, now_ms=portal.clock.now_ms())
    log.info(
        "signed in: user=%s role=%s from=%s",
        names.quote_text(session.user),
        session.role.name.lower(),
        visit.address,
    )
    portal.backend.note_sign_in(session, visit.address, None)
    response = RedirectResponse(_target(visit.form.get("to", "/")), status_code=303)
    set_cookie(portal, visit.request, response, portal.sessions.cookie(session))
    return response


async def _failed_sign_in(visit: PageRequest, who: str, text: str) -> Response:
    log.warning("sign-in refused: from=%s", visit.address)
    visit.portal.backend.note_sign_in(None, visit.address, who)
    return await sign_in_page(visit, text, 401)


async def _wait_page(
    visit: PageRequest, wait_ms: int, reason: str = "Too many wrong attempts"
) -> Response:
    wait_s = -(-wait_ms // 1000)
    response = await sign_in_page(visit, f"{reason}: try again in {wait_s} s.", 429)
    response.headers["retry-after"] = str(wait_s)
    return response


def _target(to: str) -> str:
    """A page of ours, never another site's."""
    fine = to.startswith("/") and not to.startswith(("//", "/\\", "/signin"))
    return to if fine and to.isprintable() else "/"
