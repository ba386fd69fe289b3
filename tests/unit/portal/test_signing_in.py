"""Signing in, and everything that somebody who did not is refused."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penstock.management.client import ManagementClient
from penstock.model.clock import ManualClock
from penstock.portal import users
from penstock.portal.application import PortalApplication
from penstock.portal.pages import ROUTES
from penstock.portal.sessions import BACKOFF_AFTER

if TYPE_CHECKING:
    from tests.unit.portal.conftest import Browser

    from penstock.portal.settings import PortalSettings


async def test_first_field_takes_the_token_unless_there_are_users(
    browser: Browser, clock: ManualClock, settings: PortalSettings
) -> None:
    async def fields(of: Any) -> list[str]:
        answer = await of.get("/signin?to=/scale")
        assert answer.status == 200
        return re.findall(r'<input(?![^>]*type="hidden")[^>]* name="(\w+)"', answer.text)

    assert await fields(browser) == ["name", "password", "token"]
    application = PortalApplication(msgspec.structs.replace(settings, users_file=None), clock)
    assert await fields(type(browser)(application)) == ["token"]
    application.close()
    done = await browser.post("/signin", {"token": browser.token, "to": "/scale"})
    assert (done.status, done.header("location")) == (303, "/scale")


async def test_cookie_is_out_of_reach_of_scripts_and_other_sites(browser: Browser) -> None:
    cookie = (await browser.sign_in()).header("set-cookie").lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "penstock_portal_5380=" in cookie


async def test_every_page_is_closed_to_strangers(browser: Browser) -> None:
    for route in ROUTES:
        path = re.sub(r"\{\w+\}", "x", route.pattern)
        if route.method == "GET":
            answer = await browser.get(path)
            assert answer.status == 303, path
            assert answer.header("location").startswith("/signin"), path
        else:
            answer = await browser.post(path, {"form_token": "x"})
            assert answer.status == 401, path


async def test_every_answer_has_the_strict_headers(browser: Browser) -> None:
    for path in ("/signin", "/static/portal.css", "/nope", "/alive"):
        answer = await browser.get(path)
        policy = answer.header("content-security-policy")
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.header("x-content-type-options") == "nosniff"


async def test_session_is_new_at_sign_in_whatever_was_planted(browser: Browser) -> None:
    browser.cookies["penstock_portal_5380"] = "planted.cookie"
    await browser.sign_in()
    first = browser.cookies["penstock_portal_5380"]
    assert first != "planted.cookie"
    await browser.sign_in()
    assert browser.cookies["penstock_portal_5380"] != first
    browser.cookies["penstock_portal_5380"] = first  # the old one was ended
    assert (await browser.get("/scale")).status == 303


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:5381"},
        {"origin": "", "sec_fetch_site": "cross-site"},
        {"origin": "", "sec_fetch_site": "same-site"},
    ],
)
async def test_forms_of_other_sites_are_refused(browser: Browser, headers: dict[str, str]) -> None:
    await browser.sign_in()
    answer = await browser.post("/hubs", {"name": "x"}, **headers)
    assert answer.status == 403
    assert "another site" in answer.text
    assert (await browser.post("/signin", {"token": browser.token}, **headers)).status == 403


async def test_forms_need_the_sessions_own_token(browser: Browser) -> None:
    await browser.sign_in()
    for token in ("", "x", "\u00e9"):
        answer = await browser.post("/hubs", {"name": "x", "form_token": token})
        assert answer.status == 403
        assert "not ours" in answer.text


async def test_signing_out_ends_the_session_and_needs_the_form(browser: Browser) -> None:
    await browser.sign_in()
    cookie = dict(browser.cookies)
    await browser.post("/signout", {"form_token": "forged"})
    browser.cookies = dict(cookie)
    page = await browser.get("/scale")  # the service is away, but we are still known
    assert page.status != 303
    session = browser.application._portal.sessions.read(
        cookie["penstock_portal_5380"], now_ms=browser.application._portal.clock.now_ms()
    )
    assert session is not None
    token = browser.application._portal.sessions.form_token(session)
    await browser.post("/signout", {"form_token": token})
    browser.cookies = cookie
    assert (await browser.get("/scale")).status == 303


async def test_signing_out_survives_a_restart(
    browser: Browser, settings: PortalSettings, clock: ManualClock
) -> None:
    await browser.sign_in()
    left = browser.cookies["penstock_portal_5380"]
    await browser.sign_in()  # begins another session, and ends the one that the browser brought
    kept = browser.cookies["penstock_portal_5380"]
    restarted = PortalApplication(settings, clock)
    again = type(browser)(restarted)
    again.cookies["penstock_portal_5380"] = left
    assert (await again.get("/scale")).status == 303
    again.cookies["penstock_portal_5380"] = kept
    assert (await again.get("/scale")).status != 303
    restarted.close()


async def test_wrong_passwords_wait_and_the_token_never_does(
    browser: Browser, clock: ManualClock
) -> None:
    wrong = {"name": "alice", "password": "guess"}
    for _ in range(BACKOFF_AFTER + 1):
        assert (await browser.post("/signin", wrong)).status == 401
    right = {"name": "alice", "password": browser.password}
    held = await browser.post("/signin", right)
    assert held.status == 429
    assert held.header("retry-after") == "1"
    assert (await browser.sign_in()).status == 303
    clock.advance(1000)
    assert (await browser.post("/signin", right)).status == 303


async def test_guesses_in_parallel_are_counted_before_they_are_checked(browser: Browser) -> None:
    others = [type(browser)(browser.application) for _ in range(150)]
    forms = [{"name": "alice", "password": f"guess {number}"} for number in range(149)]
    forms.append({"name": "alice", "password": browser.password})
    answers = await asyncio.gather(
        *(other.post("/signin", form) for other, form in zip(others, forms, strict=True))
    )
    statuses = [each.status for each in answers]
    assert statuses.count(401) == BACKOFF_AFTER + 1
    assert statuses.count(429) == 150 - (BACKOFF_AFTER + 1)
    assert statuses[-1] == 429


async def test_burst_of_wrong_tokens_delays_no_page(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 120 addresses, while the service takes its time to judge a token."""
    backend = browser.application._portal.backend
    judged = threading.Event()
    monkeypatch.setattr(
        ManagementClient, "token_holder", lambda client, token: judged.wait(30) and None
    )
    guessing = []
    for number in range(120):
        other = type(browser)(browser.application)
        other.address = f"192.0.2.{number}"
        guessing.append(asyncio.create_task(other.sign_in("a wrong token")))
    await asyncio.sleep(0)
    assert await backend.read(lambda client: "loaded") == "loaded"
    assert (await browser.sign_in()).status == 303  # the admin token is not asked about
    judged.set()
    statuses = [each.status for each in await asyncio.gather(*guessing)]
    assert statuses.count(429) == 116
    assert statuses.count(401) == 4


async def test_password_checks_have_a_bounded_queue(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = threading.Event()
    monkeypatch.setattr(users, "verify_password", lambda password, stored: not checked.wait(30))
    guessing = []
    for number in range(120):
        other = type(browser)(browser.application)
        other.address = f"192.0.2.{number}"
        form = {"name": "alice", "password": "guess"}
        guessing.append(asyncio.create_task(other.post("/signin", form)))
    await asyncio.sleep(0)
    checked.set()
    statuses = [each.status for each in await asyncio.gather(*guessing)]
    assert statuses.count(401) == 16
    assert statuses.count(429) == 104


async def test_unknown_names_look_like_wrong_passwords(browser: Browser) -> None:
    one = await browser.post("/signin", {"name": "nobody", "password": "x"})
    two = await browser.post("/signin", {"name": "alice", "password": "x"})
    assert (one.status, one.text) == (two.status, two.text)


async def test_token_that_the_service_does_not_know_is_refused(browser: Browser) -> None:
    for token in ("x", "\u00e9", "x" * 9000, browser.token + "x"):
        assert (await browser.sign_in(token)).status == 401


async def test_user_out_of_the_file_is_out(browser: Browser, users_file: Path) -> None:
    done = await browser.post("/signin", {"name": "alice", "password": browser.password})
    assert done.status == 303
    assert (await browser.get("/scale")).status != 303
    users_file.write_text("[users]\n")  # noqa: ASYNC240
    assert (await browser.get("/scale")).status == 303


async def test_viewer_is_told_what_a_form_needs(browser: Browser) -> None:
    await browser.post("/signin", {"name": "alice", "password": browser.password})
    portal = browser.application._portal
    session = portal.sessions.read(
        browser.cookies["penstock_portal_5380"], now_ms=portal.clock.now_ms()
    )
    assert session is not None
    token = portal.sessions.form_token(session)
    for path, role in (("/hubs", "operator"), ("/policies", "admin"), ("/scale/grant", "admin")):
        answer = await browser.post(path, {"form_token": token})
        assert answer.status == 403
        assert f"needs {role}" in answer.text


@pytest.mark.parametrize("to", ["//evil.example", "https://evil.example", "/\\evil", "x", ""])
async def test_sign_in_leads_to_our_own_pages_alone(browser: Browser, to: str) -> None:
    done = await browser.post("/signin", {"token": browser.token, "to": to})
    assert done.header("location") == "/"


async def test_link_from_another_site_is_asked_for_again_from_ours(browser: Browser) -> None:
    answer = await browser.get("/scale", sec_fetch_site="cross-site")
    assert answer.status == 200
    assert 'http-equiv="refresh"' in answer.text


async def test_foreign_host_name_is_refused_but_for_the_probe(browser: Browser) -> None:
    await browser.sign_in()
    for path in ("/", "/signin", "/static/portal.css", "/hubs"):
        answer = await browser.get(path, host="evil.example:5380")
        assert answer.status == 421, path
        assert "--public-host" in answer.text
    assert (await browser.post("/signin", {"token": "x"}, host="evil.example")).status == 421
    assert (await browser.get("/alive", host="evil.example")).status == 200


async def test_web_sockets_are_refused(browser: Browser) -> None:
    said: list[object] = []

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    async def send(message: object) -> None:
        said.append(message)

    scope = {"type": "websocket", "path": "/", "headers": [(b"origin", b"http://evil.example")]}
    await browser.application(scope, receive, send)
    assert said == [{"type": "websocket.close", "code": 1008}]


async def test_form_that_is_too_large_is_refused(browser: Browser) -> None:
    answer = await browser.post("/signin", {"token": "x" * (3 * 1024 * 1024)})
    assert answer.status == 413


async def test_service_that_is_away_is_said_and_not_a_crash(browser: Browser) -> None:
    await browser.sign_in()
    answer = await browser.get("/")
    assert answer.status == 500
    assert "cannot be reached" in answer.text
    assert browser.token not in answer.text
