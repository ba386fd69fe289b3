"""Signing in and out: by the admin token, or by name and password of the user file."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import logging

import msgspec
from starlette.responses import RedirectResponse, Response

from penstock.model import names
from penstock.model.errors import PenstockError
from penstock.portal import users
from penstock.portal.html import Html, el
from penstock.portal.layout import bare
from penstock.portal.parts import field
from penstock.portal.sessions import Session
from penstock.portal.users import Role, User
from penstock.portal.web import Visit, cookie_name, set_cookie

log = logging.getLogger("penstock.portal")

# Azure's names of its built-in roles, and ours, as the service knows them.
_ROLES = {
    "owner": Role.ADMIN,
    "admin": Role.ADMIN,
    "contributor": Role.OPERATOR,
    "operator": Role.OPERATOR,
    "reader": Role.VIEWER,
    "viewer": Role.VIEWER,
}
_TOKEN_MAX = 8192
_HASHING = asyncio.Semaphore(2)  # each takes 16 MB: guesses wait for each other


async def sign_in_page(visit: Visit, error: str = "", status: int = 200) -> Response:
    """The first field takes the admin token."""
    to = _target(visit.query.get("to") or visit.form.get("to") or "/")
    hidden = el("input", type="hidden", name="to", value=to)
    forms = [
        el(
            "form",
            hidden,
            field(
                "Administration token",
                "token",
                type_="password",
                autocomplete="off",
                autofocus=True,
                required=True,
                help_="penstock serve prints it; runtime.json of the data directory holds it.",
            ),
            el("button", "Sign in", type="submit", class_="primary"),
            method="post",
            action="/signin",
            class_="form",
        )
    ]
    if visit.portal.users.is_there:
        forms.append(_by_password(hidden))
    environment = visit.portal.settings.environment
    body = el(
        "body",
        el(
            "main",
            el("div", el("span", class_="logo", aria_hidden="true"), "Penstock", class_="brand"),
            el("p", environment, class_="environment") if environment else None,
            el("h1", "Sign in"),
            el("div", error, class_="flash error", role="alert") if error else None,
            *forms,
            class_="bare signin",
        ),
    )
    return bare(visit, "Sign in", body, status=status)


def _by_password(hidden: Html) -> Html:
    return el(
        "form",
        el("p", "or as a user", class_="divider"),
        hidden,
        field("Name", "name", autocomplete="username", required=True),
        field(
            "Password", "password", type_="password", autocomplete="current-password", required=True
        ),
        el("button", "Sign in as user", type="submit"),
        method="post",
        action="/signin",
        class_="form",
    )


async def sign_in(visit: Visit) -> Response:
    token = visit.form.get("token", "").strip()
    if token:
        return await _with_token(visit, token)
    return await _with_password(visit, visit.form.get("name", ""), visit.form.get("password", ""))


async def sign_out(visit: Visit) -> Response:
    """Needs the form's token: nobody else ends a session."""
    portal, session = visit.portal, visit.session
    if session.id and portal.sessions.is_form_token(session, visit.form.get("form_token", "")):
        portal.sessions.end(session)
        portal.flashes.pop(session.id, None)
    response = RedirectResponse("/signin", status_code=303)
    response.delete_cookie(cookie_name(visit.request), path="/")
    return response


async def _with_token(visit: Visit, token: str) -> Response:
    """A good token is never made to wait, whatever others tried from its address: it cannot be
    guessed. Bad ones cost the service a look each, and so they are."""
    portal = visit.portal
    now_ms, place = portal.clock.now_ms(), f"token {_address(visit)}"
    known = token.isascii() and hmac.compare_digest(token, portal.settings.admin_token)
    if not known:
        wait_ms = portal.guesses.wait_ms(place, now_ms=now_ms)
        if wait_ms:
            return await _later(visit, wait_ms)
        try:
            if len(token) > _TOKEN_MAX or not token.isascii():
                raise ValueError
            await portal.backend.check_token(token)
        except (PenstockError, ValueError):
            return await _wrong(
                visit, [place], "a token", "The token is not one of this service's."
            )
    portal.guesses.right(place)
    user, role = claims(token)
    return await _begun(visit, portal.sessions.begin(user, role, now_ms=now_ms))


async def _with_password(visit: Visit, name: str, password: str) -> Response:
    portal = visit.portal
    now_ms, address = portal.clock.now_ms(), _address(visit)
    places = [f"user {address}", f"user {address} {names.shown(name)}"]
    wait_ms = max(portal.guesses.wait_ms(place, now_ms=now_ms) for place in places)
    if wait_ms:
        return await _later(visit, wait_ms)
    user: User | None = None
    try:
        user = portal.users.find(name)
    except PenstockError as error:
        log.error("%s", error)
    stored = users.NOBODY if user is None else user.password
    async with _HASHING:
        is_right = await asyncio.to_thread(users.matches, password, stored)
    if user is None or not is_right:
        # A name that is nobody's may be a password in the wrong field: it is not written down.
        who = "an unknown name" if user is None else user.name
        return await _wrong(visit, places, who, "Name or password is wrong.")
    for place in places:
        portal.guesses.right(place)
    session = portal.sessions.begin(
        user.name, user.role, now_ms=now_ms, stamp=user.stamp, hubs=user.hubs
    )
    return await _begun(visit, session)


def claims(token: str) -> tuple[str, Role]:
    """Who a token is of. The service has verified it: what stands in it is believed."""
    try:
        body = token.split(".")[1]
        found = msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        roles = [_ROLES.get(str(each).lower()) for each in found.get("roles", [])]
        role = max((each for each in roles if each is not None), default=Role.VIEWER)
        return str(found.get("sub") or "admin")[:64], role
    except (IndexError, binascii.Error, msgspec.MsgspecError, AttributeError, TypeError):
        return "admin", Role.VIEWER


async def _begun(visit: Visit, session: Session) -> Response:
    """A new id in a new cookie, whatever the browser brought."""
    portal = visit.portal
    if visit.session.id:
        portal.sessions.end(visit.session)
    log.info(
        "signed in: user=%s role=%s from=%s",
        names.shown(session.user),
        session.role.name.lower(),
        _address(visit),
    )
    await _noted(visit, session)
    response = RedirectResponse(_target(visit.form.get("to", "/")), status_code=303)
    set_cookie(portal, visit.request, response, portal.sessions.cookie(session))
    return response


async def _wrong(visit: Visit, places: list[str], who: str, text: str) -> Response:
    now_ms = visit.portal.clock.now_ms()
    for place in places:
        visit.portal.guesses.wrong(place, now_ms=now_ms)
    log.warning("sign-in refused: from=%s", _address(visit))
    await _noted(visit, None, who)
    return await sign_in_page(visit, text, 401)


async def _noted(visit: Visit, session: Session | None, refused: str | None = None) -> None:
    """Into the audit log, whoever signed in, or was refused. A service that is away keeps nobody
    out who is let in; it says so itself on every page."""
    try:
        await visit.portal.backend.note_sign_in(session, _address(visit), refused)
    except PenstockError as error:
        log.warning("sign-in not noted: %s", error)


async def _later(visit: Visit, wait_ms: int) -> Response:
    wait_s = -(-wait_ms // 1000)
    text = f"Too many wrong attempts: try again in {wait_s} s."
    response = await sign_in_page(visit, text, 429)
    response.headers["retry-after"] = str(wait_s)
    return response


def _address(visit: Visit) -> str:
    client = visit.request.client
    return client.host if client is not None else "?"


def _target(to: str) -> str:
    """A page of ours, never another site's."""
    fine = to.startswith("/") and not to.startswith(("//", "/\\", "/signin"))
    return to if fine and to.isprintable() else "/"
