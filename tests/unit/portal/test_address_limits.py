"""Whose request it is behind proxies, and how often an address may ask before it signs in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from starlette.requests import Request

from penstock.model.clock import ManualClock
from penstock.portal.address_limits import (
    REQUESTS_BURST,
    REQUESTS_PER_S,
    client_address,
    limit_key,
)
from penstock.portal.application import PortalApplication
from penstock.portal.sessions import BACKOFF_AFTER

if TYPE_CHECKING:
    from tests.unit.portal.conftest import Browser

    from penstock.portal.settings import PortalSettings


@pytest.mark.parametrize(
    ("proxies", "header", "address"),
    [
        (0, "203.0.113.9", "192.0.2.1"),  # off by default: the header is the client's own
        (1, "", "192.0.2.1"),
        (1, "203.0.113.9", "203.0.113.9"),
        (1, "10.0.0.1, 203.0.113.9", "203.0.113.9"),  # the left one is forged
        (2, "10.0.0.1, 203.0.113.9, 192.0.2.2", "203.0.113.9"),
        (2, "203.0.113.9", "203.0.113.9"),
        (1, "203.0.113.9:4711", "203.0.113.9"),
        (1, "[2001:db8::1]:4711", "2001:db8::1"),
        (1, "2001:db8::1", "2001:db8::1"),
        (1, "unknown", "192.0.2.1"),
        (1, "<script>", "192.0.2.1"),
    ],
)
def test_client_is_that_many_entries_from_the_right(
    proxies: int, header: str, address: str
) -> None:
    headers = [(b"x-forwarded-for", header.encode())] if header else []
    scope = {"type": "http", "headers": headers, "client": ("192.0.2.1", 1)}
    assert client_address(Request(scope), trusted_proxies=proxies) == address


def test_ipv6_clients_are_limited_by_their_network() -> None:
    assert limit_key("2001:db8::1") == limit_key("2001:db8::ffff:1") == "2001:db8::/64"
    assert limit_key("::1") == "::1"
    assert limit_key("::ffff:192.0.2.1") == limit_key("192.0.2.1") == "192.0.2.1"
    assert limit_key("?") == "?"


async def test_guesses_count_by_the_client_behind_a_proxy(
    browser: Browser, settings: PortalSettings, clock: ManualClock
) -> None:
    settings = msgspec.structs.replace(settings, trusted_proxies=1)
    application = PortalApplication(settings, clock)
    proxied = type(browser)(application)
    wrong = {"name": "alice", "password": "guess"}
    statuses = [
        (await proxied.post("/signin", wrong, x_forwarded_for=f"{n}.0.0.1, 203.0.113.9")).status
        for n in range(BACKOFF_AFTER + 2)
    ]
    assert statuses == [401] * (BACKOFF_AFTER + 1) + [429]
    right = {"name": "alice", "password": browser.password}
    assert (await proxied.post("/signin", right, x_forwarded_for="203.0.113.8")).status == 303
    application.close()


async def test_requests_before_signing_in_have_a_rate_per_address(
    browser: Browser, clock: ManualClock
) -> None:
    seen = [(await browser.get("/signin")).status for _ in range(REQUESTS_BURST + 1)]
    assert seen == [200] * REQUESTS_BURST + [429]
    assert (await browser.get("/alive")).status == 200  # the service's own look has no limit
    other = type(browser)(browser.application)
    other.address = "192.0.2.7"
    assert (await other.sign_in()).status == 303
    other.address = browser.address
    assert (await other.get("/static/portal.css")).status == 200  # signed in: no limit
    clock.advance(1000)
    again = [(await browser.get("/signin")).status for _ in range(REQUESTS_PER_S + 1)]
    assert again == [200] * REQUESTS_PER_S + [429]
