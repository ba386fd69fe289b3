"""Signing in and out: by the admin token, or by name and password of the user file."""

from __future__ import annotations

import hmac
import logging

from starlette.responses import RedirectResponse, Response

from penstock.management.permissions import AdminRole, role_from_claims
from penstock.model import names
from penstock.model.errors import PenstockError, ServerBusy
from penstock.portal.address_limits import limit_key
from penstock.portal.page_request import PageRequest, cookie_name
from penstock.portal.sessions import PortalSession
from penstock.portal.settings import hash_token
from penstock.portal.shell import bare_page
from penstock.portal.signing import LINK_PARAMETER, read_link

log = logging.getLogger("penstock.portal")

_TOKEN_MAX = 8192
_BUSY_MS = 1_000


async def open_sign_in(visit: PageRequest) -> Response:
    """`GET /signin`: the page, or a link for one sign-in."""
    text = visit.query.get(LINK_PARAMETER, "")
    if not text:
        return sign_in_page(visit)
    headers = visit.request.headers
    looks_ahead = "prefetch" in headers.get("sec-purpose", headers.get("purpose", ""))
    if visit.request.method != "GET" or looks_ahead:
        # A preview or a prefetch must not use the link up.
        return Response(status_code=204)
    return _with_link(visit, text)


def sign_in_page(visit: PageRequest, error: str = "", status: int = 200) -> Response:
    """User name and password, if there is a file of users; or the admin token."""
    return bare_page(
        visit,
        "signin.html",
        status=status,
        error=error,
        to=_target(visit.query.get("to") or visit.form.get("to") or "/"),
        has_users=visit.portal.settings.users_file is not None,
    )


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


def _with_link(visit: PageRequest, text: str) -> Response:
    """Used up before anything else happens: of several requests with one link, one signs in."""
    portal = visit.portal
    now_ms = portal.clock.now_ms()
    link = read_link(text, portal.signer, now_ms=now_ms)
    if link is None or not portal.revocations.revoke(
        link.id, issued_ms=link.issued_ms, expires_ms=link.expires_ms, now_ms=now_ms
    ):
        log.warning("sign-in refused: by=link from=%s", visit.address)
        return sign_in_page(
            visit,
            "The link was used already, has expired or is not complete. "
            "The command penstock portal url --sign-in prints a new one.",
            401,
        )
    return _start_session(visit, link.user, link.role)


async def _with_token(visit: PageRequest, token: str) -> Response:
    """The service's own admin token never waits, whatever others tried from its address: it cannot
    be guessed. Each other one costs the service a request, so these are counted as guesses."""
    portal = visit.portal
    now_ms, place = portal.clock.now_ms(), f"token {limit_key(visit.address)}"
    own_hash = portal.settings.admin_token_hash
    if token.isascii() and hmac.compare_digest(hash_token(token), own_hash):
        return _start_session(visit, "admin", AdminRole.ADMIN)
    wait_ms = portal.guesses.begin(place, now_ms=now_ms)
    if wait_ms:
        return _wait_page(visit, wait_ms)
    holder = None
    if len(token) <= _TOKEN_MAX and token.isascii():
        try:
            holder = await portal.backend.token_holder(token)
        except ServerBusy:
            return _wait_page(visit, _BUSY_MS, "Too many people are signing in")
        except PenstockError as error:
            log.warning("token not checked: reason=%s", error)
    if holder is None:
        return _failed_sign_in(visit, "a token", "The token is not one of this service's.")
    portal.guesses.right(place)
    role = max(role_from_claims(holder[1]), AdminRole.VIEWER)
    return _start_session(visit, holder[0][:64], role)


async def _with_password(visit: PageRequest, name: str, password: str) -> Response:
    portal = visit.portal
    now_ms, address = portal.clock.now_ms(), limit_key(visit.address)
    places = (f"user {address}", f"user {address} {names.quote_text(name)}")
    wait_ms = portal.guesses.begin(*places, now_ms=now_ms)
    if wait_ms:
        return _wait_page(visit, wait_ms)
    user = portal.find_user(name)
    try:
        is_right = await portal.password_checks.matches(password, user)
    except ServerBusy:
        return _wait_page(visit, _BUSY_MS, "Too many people are signing in")
    if user is None or not is_right:
        # A name that is nobody's may be a password in the wrong field: it is not written down.
        who = "an unknown name" if user is None else user.name
        return _failed_sign_in(visit, who, "Name or password is wrong.")
    portal.guesses.right(*places)
    return _start_session(visit, user.name, user.role, user.stamp, user.hubs)


def _start_session(
    visit: PageRequest, user: str, role: AdminRole, stamp: str = "", hubs: tuple[str, ...] = ()
) -> Response:
    """A new id in a new cookie, whatever the browser brought."""
    portal, now_ms = visit.portal, visit.portal.clock.now_ms()
    if visit.session.id:
        portal.sessions.end(visit.session, now_ms=now_ms)
    session = PortalSession(
        user=user, role=role, stamp=stamp, hubs=hubs, began_ms=now_ms, seen_ms=now_ms
    )
    name = names.quote_text(user)
    log.info("signed in: user=%s role=%s from=%s", name, role.name.lower(), visit.address)
    portal.backend.note_sign_in(session, visit.address, None)
    response = RedirectResponse(_target(visit.form.get("to", "/")), status_code=303)
    visit.set_cookie(response, session)
    return response


def _failed_sign_in(visit: PageRequest, who: str, text: str) -> Response:
    log.warning("sign-in refused: from=%s", visit.address)
    visit.portal.backend.note_sign_in(None, visit.address, who)
    return sign_in_page(visit, text, 401)


def _wait_page(visit: PageRequest, wait_ms: int, why: str = "Too many wrong attempts") -> Response:
    wait_s = -(-wait_ms // 1000)
    response = sign_in_page(visit, f"{why}: try again in {wait_s} s.", 429)
    response.headers["retry-after"] = str(wait_s)
    return response


def _target(to: str) -> str:
    """A page of ours, never another site's."""
    fine = to.startswith("/") and not to.startswith(("//", "/\\", "/signin"))
    return to if fine and to.isprintable() else "/"
