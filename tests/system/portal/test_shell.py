"""The frame of every page: live updates, links that keep the page, dialogs, go to, preferences."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from playwright.sync_api import expect
from tests.system.portal.conftest import press

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route
    from tests.system.portal.conftest import OpenPage, Service

expect.set_options(timeout=45_000)


def live_requests(page: Page) -> list[str]:
    """The addresses of the requests that update the page, as they are made."""
    seen: list[str] = []
    page.on("request", lambda asked: "x-live" in asked.headers and seen.append(asked.url))
    return seen


def test_update_keeps_rows_focus_scrolling_and_what_is_unfolded(
    open_page: OpenPage, service: Service
) -> None:
    hub = service.make_hub("kept", partitions=16)
    page = open_page(f"/hubs/{hub}")
    rows = page.locator("#live-partitions tbody tr")
    expect(rows).to_have_count(16)
    page.locator("#live-partitions").scroll_into_view_if_needed()
    link = rows.nth(3).get_by_role("link")
    link.focus()
    link.evaluate("element => { element.mark = 'same'; }")
    before = page.evaluate("scrollY")
    assert before > 0
    service.send(hub, *(f"event {number}" for number in range(64)))
    expect(page.locator("#live-partitions")).to_contain_text("63")
    expect(link).to_be_focused()
    assert link.evaluate("element => element.mark") == "same"
    assert page.evaluate("scrollY") == before

    page.goto(f"{service.url}/hubs/{hub}/groups")
    row = page.locator("#live-groups tr.row")
    row.locator("td").first.click()
    page.wait_for_url("**/groups?open=%24Default")
    detail = page.locator("#live-groups tr.detail")
    expect(detail.locator("tbody tr")).to_have_count(16)
    page.locator("#live-groups summary").click()
    detail.evaluate("element => { element.mark = 'same'; }")
    with service.client as client:
        client.put_group("penstock", hub, "another")
    expect(row).to_have_count(2)
    assert detail.evaluate("element => element.mark") == "same"
    expect(page.locator("#live-groups details.menu[open]")).to_have_count(1)
    page.reload()
    expect(detail).to_have_count(1)
    press(page, "j")
    press(page, "Space")
    expect(detail).to_have_count(0)
    assert "open" not in page.url


def test_filter_and_order_are_in_the_address(open_page: OpenPage, service: Service) -> None:
    for name in ("order-a", "order-b"):
        service.make_hub(name)
    page = open_page("/hubs")
    names = page.locator("#live-hubs a.name")
    field = page.get_by_label("Filter by name")
    field.press_sequentially("order-")
    expect(names).to_have_text(["order-a", "order-b"])
    expect(field).to_be_focused()
    expect(field).to_have_value("order-")
    page.get_by_role("columnheader", name="Name").get_by_role("link").click()
    expect(names).to_have_text(["order-b", "order-a"])
    address = page.url
    assert re.search(r"find=order-", address)
    other = open_page(address.removeprefix(service.url))
    expect(other.locator("#live-hubs a.name")).to_have_text(["order-b", "order-a"])
    field.fill("nothing-like-it")
    expect(page.get_by_text("No event hub matches.")).to_be_visible()
    page.get_by_role("link", name="Reset the filter").click()
    expect(names.first).to_be_visible()
    expect(field).to_have_value("")


def test_updates_pause_and_go_on(open_page: OpenPage) -> None:
    page = open_page("/hubs")
    live = page.locator("[data-live-toggle]")
    expect(live).to_have_text("Live")
    press(page, "l")
    expect(live).to_have_text("Paused")
    seen = live_requests(page)
    page.wait_for_timeout(2500)
    assert seen == []
    page.reload()
    expect(live).to_have_text("Paused")
    with page.expect_request(lambda asked: "x-live" in asked.headers):
        live.click()
    expect(live).to_have_text("Live")


def test_service_that_does_not_answer_is_said_and_the_page_stays(open_page: OpenPage) -> None:
    page = open_page("/hubs")
    live = page.locator("[data-live-toggle]")

    def refuse(route: Route) -> None:
        route.fulfill(status=502) if "x-live" in route.request.headers else route.continue_()

    page.route("**/*", refuse)
    expect(live).to_have_text(re.compile("No answer for"))
    expect(page.get_by_role("alert")).to_contain_text("The service does not answer")
    expect(page.locator("#live-hubs")).to_contain_text("events")
    page.unroute("**/*")
    expect(live).to_have_text("Live")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_page_of_somebody_who_signed_out_stays(open_page: OpenPage, service: Service) -> None:
    page = open_page("/hubs", width=1000)
    other = page.context.new_page()
    other.goto(service.url)
    other.locator(".menu.user summary").click()
    other.get_by_role("button", name="Sign out").click()
    other.wait_for_url("**/signin")
    expect(page.locator("[data-live-toggle]")).to_have_text("Signed out")
    expect(page.get_by_role("alert")).to_contain_text("You are signed out")
    expect(page.locator("#live-hubs")).to_contain_text("events")
    other.close()


def test_go_to_leads_to_hubs_and_works_without_the_script(
    open_page: OpenPage, service: Service
) -> None:
    service.make_hub("far-away")
    page = open_page()
    press(page, "Control+k")
    field = page.get_by_label("Go to", exact=True)
    expect(field).to_be_focused()
    field.fill("far-away")
    expect(page.locator("#palette li").first).to_contain_text("far-away")
    press(page, "ArrowDown")
    press(page, "ArrowUp")
    press(page, "Enter")
    page.wait_for_url("**/hubs/far-away")
    page.goto(f"{service.url}/search?find=far-away")
    page.locator("main").get_by_role("link", name=re.compile("^far-away")).click()
    page.wait_for_url("**/hubs/far-away")


def test_dialog_is_left_by_cancel_and_escape(open_page: OpenPage, service: Service) -> None:
    page = open_page("/hubs")
    dialog = page.locator("#dialog")
    for leave in ("Escape", "Cancel"):
        page.get_by_role("link", name="Create event hub").click()
        expect(dialog).to_be_visible()
        expect(page.get_by_label("Name", exact=True)).to_be_focused()
        if leave == "Escape":
            press(page, "Escape")
        else:
            dialog.get_by_role("link", name="Cancel").click()
        expect(dialog).not_to_be_visible()
    assert page.url == f"{service.url}/hubs"


def test_drawer_opens_and_closes_on_a_narrow_screen(open_page: OpenPage) -> None:
    page = open_page(width=390)
    link = page.locator(".nav a[data-key=h]")
    expect(link).not_to_be_visible()
    page.get_by_label("Menu", exact=True).click()
    expect(link).to_be_visible()
    press(page, "Escape")
    expect(link).not_to_be_visible()
    page.get_by_label("Menu", exact=True).click()
    link.click()
    page.wait_for_url("**/hubs")


def test_preferences_are_kept(open_page: OpenPage) -> None:
    page = open_page("/audit")
    zone = page.locator("[data-zone]")
    expect(zone).to_have_text("UTC")
    page.locator(".menu.user summary").click()
    page.get_by_role("button", name="Dense tables").click()
    page.get_by_role("button", name="Show local time").click()
    expect(zone).to_have_text(re.compile(r"UTC[+−]\d\d:\d\d"))
    expect(page.locator("body")).to_have_class(re.compile("dense"))
    page.context.clear_cookies(name=re.compile("penstock_(density|zone)"))
