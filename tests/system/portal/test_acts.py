"""What people change and look into beside hubs: keys, rights, units, connections, spans."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from azure.eventhub import EventData, EventHubProducerClient
from azure.eventhub.exceptions import EventHubError
from playwright.sync_api import expect
from tests.system.portal.conftest import choose, flood, press

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page
    from tests.system.portal.conftest import OpenPage, Service

expect.set_options(timeout=45_000)


def test_key_is_regenerated_and_the_old_one_is_refused(
    open_page: OpenPage, service: Service
) -> None:
    hub = service.make_hub("rotated")
    with service.client as client:
        client.put_rule("penstock", hub, "sender", ["Send"])
    page = open_page(f"/hubs/{hub}/policies")
    page.get_by_role("button", name="Show connection strings").click()
    codes = page.locator("#policy-sender code")
    expect(codes.nth(2)).not_to_be_empty()
    old, second = codes.nth(2).text_content() or "", codes.nth(3).text_content() or ""
    assert _publishes(service, hub, old)
    page.get_by_role("button", name="Regenerate primary key").click()
    expect(codes.nth(2)).not_to_have_text(old)
    new = codes.nth(2).text_content() or ""
    assert f"SharedAccessKey={new}" in (codes.nth(0).text_content() or "")
    assert codes.nth(3).text_content() == second
    assert not _publishes(service, hub, old)
    assert _publishes(service, hub, new)
    assert _publishes(service, hub, second)
    page.goto(f"{service.url}/audit?find=regenerateKeys")
    expect(page.locator("#live-audit")).to_contain_text(f"{hub}/sender")
    expect(page.locator("#live-audit")).not_to_contain_text(new)


def test_rights_are_changed_and_hold_at_once(open_page: OpenPage, service: Service) -> None:
    hub = service.make_hub("rights")
    with service.client as client:
        client.put_rule("penstock", hub, "both", ["Listen"])
        key = client.keys("penstock", hub, "both").primary_key
    assert not _publishes(service, hub, key, policy="both")
    page = open_page(f"/hubs/{hub}/policies")
    card = page.locator("#policy-both")
    choose(page, "Actions for both", "Change its rights…")
    page.get_by_label("Send", exact=True).check()
    page.get_by_role("button", name="Save rights").click()
    expect(page.get_by_role("status")).to_contain_text("The rights of 'both' are saved")
    expect(card.locator(".badge")).to_have_text(["Listen", "Send"])
    assert _publishes(service, hub, key, policy="both")
    choose(page, "Actions for both", "Change its rights…")
    for right in ("Send", "Listen"):
        page.get_by_label(right, exact=True).uncheck()
    page.get_by_role("button", name="Save rights").click()
    expect(page.get_by_role("alert")).to_contain_text("at least one right")
    page.get_by_role("link", name="Cancel").click()
    choose(page, "Actions for both", "Delete…")
    page.get_by_label("Type both to confirm").fill("both")
    page.get_by_role("button", name="Delete policy").click()
    expect(page.get_by_role("status")).to_contain_text("deleted")
    assert not _publishes(service, hub, key, policy="both")


def test_units_inflate_by_themselves_up_to_the_bound(open_page: OpenPage, service: Service) -> None:
    hub = service.make_hub("inflating", partitions=16)
    page = open_page("/scale")
    units = page.locator("#live-usage h2")
    try:
        page.get_by_label("Unlimited").uncheck()
        page.get_by_label("Throughput units").fill("1")
        page.get_by_label("Auto-inflate up to").fill("3")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("status")).to_contain_text("has 1 throughput units")
        expect(units).to_contain_text("1 unit,")
        _until(page, lambda: _inflated(service, hub) == 3)
        expect(units).to_contain_text("3 units,")
        page.goto(f"{service.url}/namespaces")
        row = page.locator("main").get_by_role("row").filter(has_text="penstock").first
        expect(row.locator("td").nth(2)).to_have_text("3")
    finally:
        with service.client as client:
            client.put_namespace("penstock", unlimited=True, maximum_units=0)


def test_bill_ledger_and_forecast_agree_with_the_service(
    open_page: OpenPage, service: Service
) -> None:
    hub = service.make_hub("metered")
    service.send(hub, *(f"metered {number}" for number in range(20)))

    def metered() -> list[dict[str, Any]]:
        with service.client as client:
            return [row for row in client.usage() if row["ingress_events"]]

    page = open_page("/scale")

    def agrees() -> bool:
        """Whoever changes something sees it at once; the ledger is written every few seconds."""
        page.get_by_label("Unlimited").check()
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("status")).to_contain_text("unlimited")
        page.wait_for_load_state()
        row = page.locator("#live-ledger tbody tr").first
        if not metered() or not row.count():
            return False
        newest = max(metered(), key=lambda row: int(row["hour_ms"]))
        shown = row.locator("td").all_text_contents()[2].replace(",", "")
        return shown == str(newest["ingress_events"]) and newest["ingress_events"] >= 20

    _until(page, agrees)
    bill = page.locator("#live-bill")
    hours = int(_tile(bill, "Unit hours this month"))
    assert hours >= 1
    assert int(_tile(bill, "Unit hours, forecast").replace(",", "")) % 730 == 0
    assert _tile(bill, "Cost this month") == f"{hours * 0.026:.2f} EUR"
    assert _tile(bill, "Cost, forecast").endswith(" EUR")


def test_connection_is_seen_and_closed(open_page: OpenPage, service: Service) -> None:
    producer = EventHubProducerClient.from_connection_string(
        service.server["emulator_connection_string"], eventhub_name="events", user_agent="seen-here"
    )
    with producer:
        producer.send_event(EventData("first"))
        page = open_page("/connections")
        row = page.get_by_role("row").filter(has_text="seen-here").filter(has_text="send events")
        expect(row).to_have_count(1)
        row.locator("summary").click()
        row.get_by_role("button", name="Close").click()
        expect(page.get_by_role("status")).to_contain_text("The connection is closed")
        expect(row).to_have_count(0)
        producer.send_event(EventData("its client came back"))
    page.goto(f"{service.url}/audit?find=connections")
    expect(page.locator("#live-audit")).to_contain_text("connections/delete")


def test_sample_data_is_sent(open_page: OpenPage, service: Service) -> None:
    hub = service.make_hub("samples")
    page = open_page()
    for sample, field in (("telemetry", "temperature"), ("clicks", "user"), ("orders", "amount")):
        page.goto(f"{service.url}/hubs/{hub}/send")
        page.get_by_label("Or sample data").select_option(sample)
        page.get_by_label("Repeat").fill("12")
        page.get_by_label("Every (ms)").fill("5")
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_role("status").first).to_contain_text("12 events are stored")
        expect(page.locator("#results tbody tr").last).to_contain_text(field)
    expect(page.locator("#results tbody tr")).to_have_count(36)


def test_form_that_sends_too_much_is_told_so_and_kept(
    open_page: OpenPage, service: Service
) -> None:
    page = open_page("/hubs/events/send")
    page.get_by_label("Body").fill("\n kept as it is")
    page.get_by_label("Repeat").fill("10000")
    page.get_by_label("Every (ms)").fill("60000")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert")).to_contain_text("penstock send --repeat")
    expect(page.get_by_label("Body")).to_have_value("\n kept as it is")


def test_span_of_time_has_an_end(open_page: OpenPage, service: Service) -> None:
    hub = service.make_hub("spans")
    page = open_page(f"/hubs/{hub}/events")
    stamps: list[str] = []
    for number in range(3):
        service.send(hub, *(f"{number}-{each}" for each in range(4)), key="same")
        page.wait_for_timeout(5)  # the next batch has another millisecond, and so has the stamp
        stamps.append(_now())
        page.wait_for_timeout(5)
    rows = page.locator("#results tbody tr")
    page.get_by_label("From").select_option("time")
    page.get_by_label("At", exact=True).fill(stamps[0])
    page.get_by_label("Until").fill(stamps[1])
    page.get_by_role("button", name="Show").click()
    expect(rows).to_have_count(4)
    expect(page.locator("#results")).to_contain_text("1-3")
    expect(page.locator("#results")).not_to_contain_text("2-0")
    expect(page.get_by_label("Until")).to_have_value(stamps[1])
    # The last ones before it, a search within it, and its end by number.
    page.goto(f"{service.url}/hubs/{hub}/events?from=latest&count=6&until={stamps[1]}")
    expect(rows).to_have_count(6)
    expect(rows.last).to_contain_text("1-3")
    page.goto(f"{service.url}/hubs/{hub}/events?find=-3&until={stamps[1]}")
    expect(page.locator("#progress")).to_have_text("Done: 8 events scanned, 2 found")
    page.goto(f"{service.url}/hubs/{hub}/events?from=earliest&until=4")
    expect(rows).to_have_count(5)
    page.goto(f"{service.url}/hubs/{hub}/events?from=earliest&until=tomorrow")
    expect(page.get_by_role("alert")).to_contain_text("'tomorrow' is not a position")


def test_pages_of_events_are_turned_both_ways(open_page: OpenPage, service: Service) -> None:
    hub = service.make_hub("turned", partitions=4)
    for number in range(4):
        service.send(hub, *(f"event {number}-{each}" for each in range(12)), key=f"k{number}")
    page = open_page(f"/hubs/{hub}/events?count=20")
    rows = page.locator("#results tbody tr")
    older, newer = (
        page.get_by_role("link", name="← Older"),
        page.get_by_role("link", name="Newer →"),
    )
    expect(rows).to_have_count(20)
    expect(newer).to_have_count(0)
    seen: list[str] = []
    for count in (20, 20, 8):
        expect(rows).to_have_count(count)
        seen += rows.locator("td:last-child").all_text_contents()
        if count == 20:
            older.click()
    expect(older).to_have_count(0)
    wanted = {f"event {number}-{each}" for number in range(4) for each in range(12)}
    assert sorted(seen) == sorted(wanted)
    newer.click()
    expect(rows).to_have_count(20)
    back = rows.locator("td:last-child").all_text_contents()
    assert not set(back) & set(seen[-8:])


def test_what_a_search_found_is_downloaded(open_page: OpenPage, service: Service) -> None:
    hub = service.make_hub("found")
    service.send(hub, *(f"needle {number}" for number in range(3)), "=1+1 needle", key="a")
    service.send(hub, *(f"straw {number}" for number in range(40)), key="b")
    page = open_page(f"/hubs/{hub}/events")
    page.get_by_label("Find text").fill("needle")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#progress")).to_contain_text("4 found")
    with page.expect_download() as table:
        page.get_by_role("link", name="CSV").click()
    text = table.value.path().read_text(encoding="utf-8-sig")
    read = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [row["body"] for row in read][-1] == "'=1+1 needle"
    assert len(read) == 4
    assert table.value.suggested_filename == f"{hub}.csv"


def test_sign_ins_are_in_the_audit_log(open_page: OpenPage, service: Service) -> None:
    open_page(user="anna")
    page = open_page("/audit?find=signIn")
    row = page.get_by_role("row").filter(has_text="anna").first
    expect(row).to_contain_text("portal/signIn")
    expect(row).to_contain_text(re.compile("from (127.0.0.1|::1)"))


def test_health_is_told_on_the_overview_and_its_page(open_page: OpenPage, service: Service) -> None:
    page = open_page()
    tile = page.locator("#live-tiles .stat", has_text="Health")
    expect(tile).to_contain_text("ready")
    tile.click()
    expect(page.get_by_role("heading", name="Health")).to_be_visible()
    parts = page.locator("#parts")
    for part in ("listeners", "log", "portal"):
        cell = page.get_by_role("rowheader", name=part, exact=True)
        expect(parts.get_by_role("row").filter(has=cell)).to_contain_text("ok")
    expect(page.get_by_text(f"{service.server['admin']}/metrics")).to_be_visible()


def test_everything_is_reached_by_the_keyboard(open_page: OpenPage, service: Service) -> None:
    page = open_page("/hubs")
    press(page, "Tab")
    expect(page.get_by_text("Skip to content")).to_be_focused()
    press(page, "Enter")
    expect(page.locator("main")).to_be_focused()
    press(page, "/")
    expect(page.get_by_label("Filter by name")).to_be_focused()
    press(page, "Control+k")
    page.keyboard.type("create event hub")
    expect(page.locator("#palette li")).to_have_count(1)
    press(page, "Enter")
    expect(page.get_by_role("heading", name="Create an event hub")).to_be_visible()
    press(page, "/")
    expect(page.get_by_label("Name", exact=True)).to_be_focused()
    page.keyboard.type("by-keys")
    press(page, "Enter")
    expect(page.get_by_role("heading", name="by-keys")).to_be_visible()
    for key, path in (("u", "/scale"), ("a", "/capture"), ("e", "/health"), ("o", "/")):
        press(page, "g")
        press(page, key)
        page.wait_for_url(service.url + path)
    press(page, "?")
    expect(page.get_by_role("heading", name="Keyboard shortcuts")).to_be_visible()
    press(page, "Escape")
    expect(page.get_by_role("heading", name="Keyboard shortcuts")).not_to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(open_page: OpenPage, scheme: str) -> None:
    """The contrast that WCAG asks for (AA: 4.5), of everything on the fullest page."""
    page = open_page("/hubs/events", scheme=scheme)
    assert page.evaluate(_WEAKEST) >= 4.5
    assert page.evaluate("getComputedStyle(document.body).colorScheme").startswith(scheme)


_WEAKEST = """() => {
  const numbers = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((each) => each / 255)
    .map((each) => (each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4))
    .reduce((sum, each, index) => sum + each * [0.2126, 0.7152, 0.0722][index], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = numbers(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  let weakest = 21;
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    const style = getComputedStyle(element);
    if (!texts.currentNode.textContent.trim() || element.closest("svg, [disabled]")) continue;
    if (!element.checkVisibility()) continue;
    const pair = [light(numbers(style.color)), light(behind(element))].sort((a, b) => b - a);
    weakest = Math.min(weakest, (pair[0] + 0.05) / (pair[1] + 0.05));
  }
  return weakest;
}"""


# --- beside the browser ---------------------------------------------------------------------------


def _publishes(service: Service, hub: str, key: str, *, policy: str = "sender") -> bool:
    """Whether the official SDK may, with this key."""
    host = service.server["emulator_connection_string"].partition(";")[0]
    producer = EventHubProducerClient.from_connection_string(
        f"{host};SharedAccessKeyName={policy};SharedAccessKey={key};UseDevelopmentEmulator=true",
        eventhub_name=hub,
        retry_total=0,
    )
    try:
        with producer:
            producer.send_event(EventData("by key"))
    except EventHubError as error:
        assert "Unauthorized" in str(error) or "CBS" in str(error), error
        return False
    return True


def _inflated(service: Service, hub: str) -> int:
    """Publish more than one unit takes; how many there are then."""
    flood(service, hub)
    with service.client as client:
        (mine,) = [each for each in client.namespaces() if each.name == "penstock"]
    return mine.capacity


def _tile(place: Locator, label: str) -> str:
    stat = place.locator(".stat").filter(has=place.page.get_by_text(label, exact=True))
    return stat.locator(".value").text_content() or ""


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]


def _until(page: Page, reached: Callable[[], bool]) -> None:
    """Asks again in a moment, as the page does; at most a minute."""
    for _ in range(240):
        if reached():
            return
        page.wait_for_timeout(250)
    raise AssertionError("it did not happen within a minute")
