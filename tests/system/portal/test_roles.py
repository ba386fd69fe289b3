"""Who may do what: every form of the portal and every change of the service, by role."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect
from tests.system.portal.conftest import Visitor, as_user

from penstock.management.client import ManagementClient
from penstock.management.permissions import AdminRole
from penstock.model.errors import PenstockError
from penstock.portal.pages import ROUTES

if TYPE_CHECKING:
    from tests.system.portal.conftest import OpenPage, Service

expect.set_options(timeout=45_000)

ROOT = "RootManageSharedAccessKey"
WORDS = {"hub": "events", "group": "$Default", "rule": ROOT, "connection": "0"}
FORMS = [
    (_path, route.role)
    for route in ROUTES
    if route.method == "POST"
    for _path in [re.sub(r"\{(\w+)\}", lambda word: WORDS[word[1]], route.pattern)]
]
# As a form would say it: what could happen, would.
FIELDS = {
    "name": "by-a-form", "partitions": "2", "retention": "24", "confirm": "events", "units": "3",
    "kind": "throughput-units", "value": "40", "note": "x", "which": "PrimaryKey", "body": "x",
    "right_Manage": "yes", "to": "earliest", "force": "yes", "policy": ROOT, "interval_s": "60",
    "size_mb": "10", "sku": "Standard",
}  # fmt: skip


def test_viewer_sees_numbers_and_no_forms(open_page: OpenPage, service: Service) -> None:
    page = open_page("/hubs", user="vera")
    expect(page.locator("#live-hubs")).to_contain_text("events")
    expect(page.get_by_role("link", name="Create event hub")).to_have_count(0)
    page.goto(f"{service.url}/policies")
    expect(page.get_by_role("button", name="Show connection strings")).to_have_count(0)
    page.goto(f"{service.url}/audit")
    expect(page.get_by_text("needs operator")).to_be_visible()


def test_user_of_some_hubs_sees_those_alone(open_page: OpenPage, service: Service) -> None:
    service.make_hub("mine-1")
    page = open_page("/hubs", user="paul")
    expect(page.locator("#live-hubs")).to_contain_text("mine-1")
    expect(page.locator("#live-hubs").get_by_text("events", exact=True)).to_have_count(0)
    for path in ("/hubs/events", "/hubs/events/events", "/hubs/EVENTS/groups"):
        page.goto(service.url + path)
        expect(page.get_by_text("may not see this event hub")).to_be_visible()


def test_acts_carry_the_user_in_the_audit_log(open_page: OpenPage, service: Service) -> None:
    page = open_page("/hubs", user="otto")
    page.get_by_role("link", name="Create event hub").click()
    page.get_by_label("Name", exact=True).fill("by-otto")
    page.get_by_role("button", name="Create event hub").click()
    expect(page.get_by_role("heading", name="by-otto")).to_be_visible()
    with service.client as client:
        (row,) = [row for row in client.audit(newest=200) if "by-otto" in row["detail"]]
    assert (row["who"], row["what"]) == ("otto", "eventhubs/write")


def test_masked_fields_are_for_administrators(open_page: OpenPage, service: Service) -> None:
    hub = service.make_hub("masked")
    body = json.dumps({"order": 7, "card": {"number": "4111-1111", "holder": "Eve"}})
    service.send(hub, body, key="k", secret="hush", colour="red")
    with service.client as client:
        (place,) = [
            each["id"] for each in client.partitions("penstock", hub) if each["last_sequence"] >= 0
        ]
    visitor, admin = Visitor(service.url, as_user("vera")), Visitor(service.url, as_user("anna"))
    at = f"/hubs/{hub}/events"
    shown = ("", f"/{place}/0", f"/{place}/0?as=text", f"/{place}/0/body", "/stream?find=Eve")
    files = ("/download", "/download?format=csv")
    for path in (at + each for each in (*shown, *files)):
        status, text = visitor.get(path)
        assert status == 200, path
        assert "Eve" in text, path
        assert "4111" not in text, path
        assert "hush" not in text, path
        assert "4111-1111" in admin.get(path)[1], path
    # Nor does a search tell: what is behind the mask is not looked at.
    page = open_page(f"{at}?find=4111", user="vera")
    expect(page.locator("#progress")).to_have_text("Done: 1 events scanned, 0 found")


@pytest.mark.parametrize(
    ("user", "role"), [("vera", AdminRole.VIEWER), ("otto", AdminRole.OPERATOR)]
)
def test_every_form_needs_its_role(service: Service, user: str, role: AdminRole) -> None:
    """Even with the form's own token: what is hidden is also forbidden."""
    visitor = Visitor(service.url, as_user(user))
    beyond = [(path, needed) for path, needed in FORMS if needed > role]
    assert len(beyond) >= (20 if role is AdminRole.VIEWER else 14)
    before = _state(service)
    for path, needed in beyond:
        status, text = visitor.act(path, FIELDS)
        assert status == 403, path
        assert f"needs {needed.name.lower()}" in text, path
    assert _state(service) == before


def test_user_of_some_hubs_changes_no_other(service: Service) -> None:
    visitor = Visitor(service.url, as_user("paul"))
    before = _state(service)
    for path, _ in FORMS:
        if path == "/hubs":  # by the name that it gives
            _, text = visitor.act(path, {**FIELDS, "back": "/hubs"})
            assert "You may not have an event hub" in text
            continue
        status, text = visitor.act(path, FIELDS)
        assert status == 403, path
        assert "paul" in text, path
    assert _state(service) == before


def test_operator_does_what_operators_may(service: Service) -> None:
    visitor = Visitor(service.url, as_user("otto"))
    hub = "by-otto-alone"
    fields = {**FIELDS, "name": hub, "confirm": hub}
    for path, said in (
        ("/hubs", "is created"),
        (f"/hubs/{hub}/edit", "are saved"),
        (f"/hubs/{hub}/groups", "is there"),
        (f"/hubs/{hub}/groups/{hub}/seek", "Moved"),
        (f"/hubs/{hub}/send", "1 event is stored"),
        (f"/hubs/{hub}/groups/{hub}/delete", "is deleted"),
        (f"/hubs/{hub}/delete", "is deleted"),
    ):
        status, text = visitor.act(path, fields)
        assert status == 200, path
        assert said in text, path


@pytest.mark.parametrize(
    ("role", "change"),
    [
        ("viewer", lambda c: c.put_hub("penstock", "by-viewer", partition_count=2)),
        ("viewer", lambda c: c.delete_hub("penstock", "events")),
        ("viewer", lambda c: c.put_group("penstock", "events", "by-viewer")),
        ("viewer", lambda c: c.seek("penstock", "events", "$Default", "earliest")),
        ("viewer", lambda c: c.put_namespace("penstock", units=2)),
        ("viewer", lambda c: c.kill_connection("0")),
        ("viewer", lambda c: c.put_job("by-viewer")),
        ("viewer", lambda c: c.audit()),
        ("operator", lambda c: c.put_namespace("by-operator")),
        ("operator", lambda c: c.delete_namespace("penstock")),
        ("operator", lambda c: c.keys("penstock", None, ROOT)),
        ("operator", lambda c: c.regenerate("penstock", None, ROOT, "PrimaryKey")),
        ("operator", lambda c: c.put_rule("penstock", None, "by-operator", ["Send"])),
        ("operator", lambda c: c.delete_rule("penstock", None, ROOT)),
        ("operator", lambda c: c.grant("penstock", "throughput-units", 40, note="x")),
        ("operator", lambda c: c.withdraw("penstock", "throughput-units")),
    ],
)
def test_service_asks_for_the_role_too(
    service: Service, role: str, change: Callable[[ManagementClient], Any]
) -> None:
    """A portal that forgot to ask would be refused."""
    with service.client as client:
        client.on_behalf_of = f"{role} somebody"
        with pytest.raises(PenstockError) as refused:
            change(client)
    assert refused.value.http_status == 403
    assert "somebody" in str(refused.value)


def test_read_only_portal_changes_nothing(open_page: OpenPage, hung: tuple[Service, int]) -> None:
    service, _ = hung
    admin = Visitor(service.url, {"token": service.server["admin_token"]})
    before = _state(service)
    for path, _ in FORMS:
        status, text = admin.act(path, FIELDS)
        assert status == 403, path
        assert "read-only mode" in text, path
    assert _state(service) == before
    page = open_page("/hubs/events", server=service.server)
    expect(page.locator(".badge", has_text="read-only")).to_be_visible()
    for path in ("/hubs/events", "/hubs", "/policies", "/scale", "/namespaces", "/connections"):
        page.goto(service.url + path)
        expect(page.locator("main form[method=post]")).to_have_count(0)
    page.goto(f"{service.url}/hubs/events/events?from=earliest")
    expect(page.get_by_role("button", name="Live tail")).to_be_visible()


def _state(service: Service) -> object:
    """What forms could change."""
    with service.client as client:
        hubs = [(hub.name, hub.status, hub.retention_hours) for hub in client.hubs("penstock")]
        groups = [each.name for each in client.groups("penstock", "events")]
        rules = [(rule.name, rule.rights) for rule in client.rules("penstock")]
        keys = client.keys("penstock", None, ROOT)
        namespaces = [(each.name, each.capacity) for each in client.namespaces()]
        return hubs, groups, rules, keys, namespaces, client.grants("penstock")
