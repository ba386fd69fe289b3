"""Links for one sign-in: used once, for ten minutes, by nobody who only guesses."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest

from penstock.management.permissions import AdminRole
from penstock.model.clock import ManualClock
from penstock.portal.application import PortalApplication
from penstock.portal.signing import LINK_LIFETIME_MS, issue_link

if TYPE_CHECKING:
    from tests.unit.portal.conftest import Browser

    from penstock.portal.settings import PortalSettings

URL = "http://localhost:5380"


@pytest.fixture
def link(settings: PortalSettings, clock: ManualClock) -> str:
    """Path and query of one for an operator."""
    made = issue_link(URL, settings.secret, "otto", AdminRole.OPERATOR, now_ms=clock.now_ms())
    return made.removeprefix(URL)


async def test_link_signs_its_holder_in_with_its_role(browser: Browser, link: str) -> None:
    answer = await browser.get(link)
    assert (answer.status, answer.header("location")) == (303, "/")
    portal = browser.application._portal
    cookie = browser.cookies["penstock_portal_5380"]
    session = portal.sessions.read(cookie, now_ms=portal.clock.now_ms())
    assert session is not None
    assert (session.user, session.role) == ("otto", AdminRole.OPERATOR)
    assert (await browser.get("/scale")).status != 303


async def test_link_works_once_also_at_the_same_moment(browser: Browser, link: str) -> None:
    others = [type(browser)(browser.application) for _ in range(20)]
    answers = await asyncio.gather(*(each.get(link) for each in others))
    assert sorted(each.status for each in answers) == [303] + [401] * 19
    refused = next(each for each in answers if each.status == 401)
    assert "penstock portal url --sign-in" in refused.text
    assert refused.header("set-cookie") == ""


async def test_link_works_once_also_over_a_restart(
    browser: Browser, link: str, settings: PortalSettings, clock: ManualClock
) -> None:
    assert (await browser.get(link)).status == 303
    restarted = PortalApplication(settings, clock)
    assert (await type(browser)(restarted).get(link)).status == 401
    restarted.close()


async def test_link_expires(browser: Browser, link: str, clock: ManualClock) -> None:
    clock.advance(LINK_LIFETIME_MS)
    assert (await browser.get(link)).status == 401


async def test_link_of_another_service_or_with_a_changed_character_is_refused(
    browser: Browser, link: str, clock: ManualClock
) -> None:
    other = issue_link("", "another secret", "eve", AdminRole.ADMIN, now_ms=clock.now_ms())
    assert (await browser.get(other)).status == 401
    start = link.index("=") + 1
    for at in range(start, len(link), 11):
        changed = link[:at] + ("A" if link[at] != "A" else "B") + link[at + 1 :]
        assert (await browser.get(changed)).status == 401
    assert (await browser.get(link)).status == 303


async def test_cookie_is_no_link_and_link_is_no_cookie(browser: Browser, link: str) -> None:
    await browser.sign_in()
    cookie = browser.cookies["penstock_portal_5380"]
    assert (await browser.get(f"/signin?once={cookie}")).status == 401
    browser.cookies["penstock_portal_5380"] = link.partition("=")[2]
    assert (await browser.get("/scale")).status == 303


async def test_prefetch_does_not_use_the_link_up(browser: Browser, link: str) -> None:
    assert (await browser.get(link, sec_purpose="prefetch;prerender")).status == 204
    assert (await browser._ask("HEAD", link, b"", {})).status == 204
    assert browser.cookies == {}
    assert (await browser.get(link)).status == 303


async def test_link_is_in_no_log(
    browser: Browser, link: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        await browser.get(link)
        await browser.get(link)
    assert "signed in: user=otto" in caplog.text
    assert "sign-in refused: by=link" in caplog.text
    assert link.partition("=")[2] not in caplog.text
