"""What people do in the portal, from the first sign-in to the deletion of a hub."""

from __future__ import annotations

import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from tests.system.portal.conftest import choose, flood

if TYPE_CHECKING:
    from playwright.sync_api import Page
    from tests.conftest import ServerFactory
    from tests.system.portal.conftest import OpenPage, Service

expect.set_options(timeout=45_000)

PAGES = (
    "/", "/hubs", "/hubs/events", "/hubs/events/events", "/hubs/events/send",
    "/hubs/events/groups", "/hubs/events/policies", "/hubs/events/capture", "/policies", "/scale",
    "/capture", "/jobs", "/connections", "/namespaces", "/audit", "/health", "/search",
    "/new-hub", "/new-namespace", "/new-policy", "/new-token", "/hubs/events/delete",
    "/hubs/events/new-group", "/hubs/events/groups/$Default/seek", "/nothing-here",
)  # fmt: skip


def test_first_run_shows_the_way_and_where_one_is(
    open_page: OpenPage, start_server: ServerFactory
) -> None:
    environ = {"PENSTOCK_PORTAL_ENVIRONMENT": "Production"}
    page = open_page(server=start_server("--portal-port", "0", environ=environ))
    expect(page.get_by_role("heading", name="First steps")).to_be_visible()
    expect(page.locator(".environment.prod")).to_have_text("Production")
    expect(page.locator(".who")).to_contain_text("admin")
    page.get_by_role("link", name="Take a connection string").click()
    expect(page.get_by_role("heading", name="Access policies")).to_be_visible()


def test_hub_is_created_changed_and_deleted_with_its_name_typed(open_page: OpenPage) -> None:
    page = open_page("/hubs")
    page.get_by_role("link", name="Create event hub").click()
    page.get_by_label("Name", exact=True).fill("bad name!")
    page.get_by_role("button", name="Create event hub").click()
    expect(page.get_by_role("alert")).to_contain_text("bad name!")
    expect(page.get_by_label("Name", exact=True)).to_have_value("bad name!")
    page.get_by_label("Name", exact=True).fill("made-here")
    page.get_by_label("Partitions").fill("3")
    page.get_by_role("button", name="Create event hub").click()
    expect(page.get_by_role("heading", name="made-here")).to_be_visible()
    expect(page.locator("#live-partitions tbody tr")).to_have_count(3)
    page.get_by_label("Retention (hours)").fill("48")
    page.get_by_label("User metadata").fill("ours")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status")).to_contain_text("saved")
    expect(page.get_by_text("48 hours")).to_be_visible()
    choose(page, "More actions for made-here", "Delete event hub…")
    delete = page.get_by_role("button", name="Delete event hub")
    expect(delete).to_be_disabled()
    page.get_by_label("Type made-here to confirm").fill("made-here")
    delete.click()
    expect(page.get_by_role("status")).to_contain_text("deleted")
    expect(page.locator("#live-hubs").get_by_text("made-here")).to_have_count(0)
    page.goto(page.url.replace("/hubs", "/hubs/made-here"))
    expect(page.get_by_text("There is no event hub 'made-here'")).to_be_visible()


def test_chart_moves_when_the_official_sdk_publishes(open_page: OpenPage, service: Service) -> None:
    hub = service.make_hub("moving")
    page = open_page(f"/hubs/{hub}")
    expect(page.locator("#live-partitions")).to_contain_text("never")
    service.send(hub, *(f"event {number}" for number in range(50)))
    # Without loading the page again: it keeps itself up to date.
    expect(page.locator("#live-partitions")).to_contain_text("49")

    def drawn() -> float:
        data = json.loads(page.locator("[data-chart]").first.get_attribute("data-chart") or "{}")
        return max((value or 0 for value in data["series"][0]["values"]), default=0)

    _until(page, lambda: drawn() > 0)
    expect(page.locator(".chart").first).not_to_be_empty()


def test_tail_shows_events_as_they_come_and_stops(open_page: OpenPage, service: Service) -> None:
    hub = service.make_hub("tailed")
    page = open_page(f"/hubs/{hub}/events")
    page.get_by_role("button", name="Live tail").click()
    expect(page.get_by_text("Waiting for events…")).to_be_visible()
    _until(page, lambda: _readers(service, hub) == 2)
    service.send(hub, "first of the tail", key="k1", colour="blue")
    row = page.locator("#results tbody tr")
    expect(row).to_have_count(1)
    expect(row.first).to_contain_text("first of the tail")
    expect(row.first).to_contain_text("k1")
    expect(row.first).to_contain_text("colour=blue")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("Stopped: 1 events scanned")).to_be_visible()
    _until(page, lambda: _readers(service, hub) == 0)


def test_event_is_found_by_text_and_opened(open_page: OpenPage, service: Service) -> None:
    hub = service.make_hub("searched")
    service.send(hub, *(json.dumps({"number": number}) for number in range(300)), key="a")
    service.send(hub, '{"number": 300, "word": "Needle"}', key="b", kind="rare")
    page = open_page(f"/hubs/{hub}/events")
    page.get_by_label("Find text").fill("needle")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text(re.compile("Done: 301 events scanned, 1 found"))).to_be_visible()
    page.locator("#results tbody a").first.click()
    expect(page.locator("#body")).to_contain_text('"word": "Needle"')
    expect(page.get_by_text("rare")).to_be_visible()
    page.get_by_role("link", name="Hex").click()
    expect(page.locator("#body")).to_contain_text("7b 22 6e 75")
    page.goto(f"{service.url}/hubs/{hub}/events?from=earliest&where=json.number+%3E%3D+298")
    expect(page.get_by_text("3 found")).to_be_visible()


def test_deep_links_lead_to_partition_and_event(open_page: OpenPage, service: Service) -> None:
    hub = service.make_hub("deep/link")
    service.send(hub, "zero", "one", "two", key="same")
    with service.client as client:
        (partition,) = [
            each["id"] for each in client.partitions("penstock", hub) if each["last_sequence"] >= 0
        ]
    page = open_page(f"/hubs/deep%2Flink/events?partition={partition}&from=earliest")
    expect(page.locator("#results tbody tr")).to_have_count(3)
    page.goto(f"{service.url}/hubs/deep%2Flink/events/{partition}/1")
    expect(page.locator("#body")).to_have_text("one")
    page.get_by_role("link", name="Next →").click()
    expect(page.locator("#body")).to_have_text("two")
    page.get_by_role("link", name="Next →").click()
    expect(page.get_by_text("does not exist yet")).to_be_visible()


def test_events_are_sent_and_downloaded(open_page: OpenPage, service: Service) -> None:
    hub = service.make_hub("by-hand")
    page = open_page(f"/hubs/{hub}/send")
    page.get_by_label("Body").fill('{"number": {n}}')
    page.get_by_label("Partition key").fill("k")
    page.get_by_label("Properties").fill("colour=red")
    page.get_by_label("Repeat").fill("5")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("status").first).to_contain_text("5 events are stored")
    expect(page.locator("#results tbody tr")).to_have_count(5)
    with page.expect_download() as lines:
        page.get_by_role("link", name="JSON lines").click()
    records = [json.loads(line) for line in lines.value.path().read_text().splitlines()]
    assert [json.loads(record["body"])["number"] for record in records] == [1, 2, 3, 4, 5]
    assert records[0]["properties"] == {"colour": "red"}
    with page.expect_download() as avro:
        page.get_by_role("link", name="Avro").click()
    assert avro.value.path().read_bytes().startswith(b"Obj\x01")


def test_send_only_token_publishes_over_https(open_page: OpenPage, service: Service) -> None:
    hub = service.make_hub("tokens")
    page = open_page(f"/hubs/{hub}/policies")
    page.get_by_role("link", name="Create policy").click()
    page.get_by_label("Name", exact=True).fill("sender")
    page.get_by_label("Listen").uncheck()
    page.get_by_label("Send", exact=True).check()
    page.get_by_role("button", name="Create policy").click()
    expect(page.get_by_role("status")).to_contain_text("created")
    page.get_by_role("link", name="Make a token").click()
    page.get_by_role("button", name="Make token").click()
    token = page.locator("#made-token code").first.text_content() or ""
    assert token.startswith("SharedAccessSignature sr=")
    asked = urllib.request.Request(
        f"{service.server['https']}/{hub}/messages",
        data=b"by token",
        headers={"Authorization": token, "Content-Type": "text/plain"},
    )
    tls = ssl.create_default_context(cafile=service.server["ca_file"])
    with urllib.request.urlopen(asked, context=tls, timeout=30) as answer:
        assert answer.status == 201
    page.goto(f"{service.url}/hubs/{hub}/events")
    expect(page.locator("#results")).to_contain_text("by token")
    # The same token reads nothing.
    page.goto(f"{service.url}/hubs/{hub}/policies")
    page.get_by_role("button", name="Show connection strings").click()
    expect(page.locator("#policy-sender")).to_contain_text(f"EntityPath={hub}")
    page.goto(f"{service.url}/audit")
    expect(page.locator("#live-audit")).to_contain_text("authorizationRules/listKeys")


def test_lag_grows_and_shrinks(open_page: OpenPage, service: Service) -> None:
    from penstock.checkpoints import ServiceCheckpointStore

    hub = service.make_hub("lagging")
    service.send(hub, *(str(number) for number in range(30)), key="same")
    with service.client as client:
        (partition,) = [
            each["id"] for each in client.partitions("penstock", hub) if each["last_sequence"] >= 0
        ]
    store = ServiceCheckpointStore(
        service.server["emulator_connection_string"],
        https_url=service.server["https"],
        ca_file=service.server["ca_file"],
    )

    def checkpoint(number: int) -> None:
        store.update_checkpoint(
            {
                "fully_qualified_namespace": "localhost",
                "eventhub_name": hub,
                "consumer_group": "$Default",
                "partition_id": partition,
                "sequence_number": number,
                "offset": "0",
            }
        )

    page = open_page(f"/hubs/{hub}/groups")
    behind = page.locator("#live-groups tr.row", has_text="$Default").locator("td").nth(1)
    expect(behind).to_have_text("–")
    checkpoint(9)
    expect(behind).to_have_text("20")
    service.send(hub, *(str(number) for number in range(15)), key="same")
    expect(behind).to_have_text("35")
    checkpoint(44)
    expect(behind).to_have_text("0")
    store.close()


def test_units_are_raised_and_throttling_ends(open_page: OpenPage, service: Service) -> None:
    hub = service.make_hub("busy", partitions=16)
    page = open_page("/scale")
    try:
        page.get_by_label("Throughput units").fill("1")
        page.get_by_label("Auto-inflate up to").fill("0")
        page.get_by_label("Unlimited").uncheck()
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("status")).to_contain_text("has 1 throughput units")
        assert flood(service, hub) > 0
        expect(page.locator("#live-usage .throttled")).not_to_have_text("0")
        page.get_by_label("Throughput units").fill("20")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("status")).to_contain_text("has 20 throughput units")
        assert flood(service, hub) == 0
    finally:
        with service.client as client:
            client.put_namespace("penstock", unlimited=True)


def test_grant_is_given_with_a_reason_and_withdrawn(open_page: OpenPage) -> None:
    page = open_page("/scale")
    page.get_by_label("Up to", exact=True).fill("40")
    page.get_by_label("Reason").fill("the big sale")
    page.get_by_role("button", name="Grant").click()
    expect(page.get_by_text("the big sale")).to_be_visible()
    page.get_by_role("button", name="Withdraw").click()
    expect(page.get_by_role("status")).to_contain_text("withdrawn")


def test_consumer_group_is_made_moved_and_deleted(open_page: OpenPage, service: Service) -> None:
    hub = service.make_hub("grouped")
    page = open_page(f"/hubs/{hub}/groups")
    page.get_by_role("link", name="Create consumer group").click()
    page.get_by_label("Name", exact=True).fill("readers")
    page.get_by_role("button", name="Create consumer group").click()
    choose(page, "Actions for readers", "Move checkpoints…")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("status")).to_contain_text("It would be moved (readers)")
    choose(page, "Actions for readers", "Delete…")
    page.get_by_label("Type readers to confirm").fill("readers")
    page.get_by_role("button", name="Delete consumer group").click()
    expect(page.get_by_role("status")).to_contain_text("deleted")


def test_namespace_is_made_and_chosen(open_page: OpenPage) -> None:
    page = open_page("/namespaces")
    page.locator("main").get_by_role("link", name="Create namespace").click()
    page.get_by_label("Name", exact=True).fill("a-second-one")
    page.get_by_role("button", name="Create namespace").click()
    expect(page.locator(".switcher .name").first).to_have_text("a-second-one")
    page.locator(".nav a[data-key=h]").click()
    expect(page.get_by_text("No event hub yet")).to_be_visible()
    page.goto(page.url.replace("/hubs", "/namespaces"))
    row = page.locator("main").get_by_role("row").filter(has_text="a-second-one")
    expect(row.get_by_role("cell").nth(1)).to_have_text("specification")
    choose(page, "Actions for a-second-one", "Delete…")
    page.get_by_label("Type a-second-one to confirm").fill("a-second-one")
    other = open_page("/hubs")  # a link without a namespace
    expect(other.locator(".switcher .name").first).to_have_text("penstock")
    page.get_by_role("button", name="Delete namespace").click()
    expect(page.get_by_role("status")).to_contain_text("deleted")


def test_capture_is_previewed_and_its_settings_are_kept(
    open_page: OpenPage, service: Service
) -> None:
    """Switching it on needs Spark: test_capture.py."""
    hub = service.make_hub("captured")
    page = open_page(f"/hubs/{hub}/capture")
    page.get_by_label("Time window (s)").fill("60")
    expect(page.locator("[data-files]")).to_have_text("2,880")
    expect(page.locator("[data-name]")).to_contain_text(f"penstock/{hub}/0/20")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status")).to_contain_text("Capture is off")
    expect(page.get_by_label("Time window (s)")).to_have_value("60")
    page.get_by_label("Name format").fill("{Namespace}/only")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("{EventHub}")
    page.goto(f"{service.url}/capture")
    expect(page.get_by_text(f"file://{service.folder}/captured").first).to_be_visible()


def test_jobs_and_health_are_shown(open_page: OpenPage, service: Service) -> None:
    with service.client as client:
        client.put_job(
            "query-1", kind="pipeline", rows_per_second=12.0, ui_url="http://localhost:4040"
        )
    page = open_page("/jobs")
    expect(page.locator("#live-jobs")).to_contain_text("query-1")
    assert page.get_by_role("link", name="Spark UI").get_attribute("href")
    page.goto(f"{service.url}/health")
    expect(page.locator("#parts")).to_contain_text("portal")


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_nothing_is_cut_off_at_the_side(open_page: OpenPage, width: int, scheme: str) -> None:
    page = open_page(width=width, scheme=scheme)
    for path in PAGES:
        page.goto(re.sub(r"(://[^/]+).*", r"\1", page.url) + path)
        beyond = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert beyond <= 0, path
        assert page.locator("h1").count() == 1


def test_keys_and_theme(open_page: OpenPage) -> None:
    page = open_page()
    _shortcut(page, "g")
    _shortcut(page, "h")
    page.wait_for_url("**/hubs")
    _shortcut(page, "/")
    assert page.evaluate("document.activeElement.id") == "find"
    page.evaluate("document.activeElement.blur()")
    _shortcut(page, "t")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    _shortcut(page, "?")
    expect(page.get_by_role("heading", name="Keyboard shortcuts")).to_be_visible()
    page.context.clear_cookies(name="penstock_theme")


def _shortcut(page: Page, key: str) -> None:
    """Give a key to the page's own listener, which exists from its load on. test_acts.py has a test
    that uses the keyboard."""
    page.wait_for_load_state()
    page.locator("body").dispatch_event("keydown", {"key": key})


# --- beside the browser ---------------------------------------------------------------------------


def _until(page: Page, reached: Callable[[], bool]) -> None:
    """Asks again in a moment, as the page does; at most a minute."""
    for _ in range(240):
        if reached():
            return
        page.wait_for_timeout(250)
    raise AssertionError("it did not happen within a minute")


def _readers(service: Service, hub: str) -> int:
    with service.client as client:
        return len(client.readers("penstock", hub))
