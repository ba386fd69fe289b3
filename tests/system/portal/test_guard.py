"""What the portal does not let happen: strangers' scripts, other roles, a death that spreads."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from penstock.model.errors import ArgumentError

if TYPE_CHECKING:
    from tests.conftest import ServerFactory
    from tests.system.portal.conftest import OpenPage, Service

PAYLOADS = (
    "<script>window.pwned=1</script>",
    '"><img src=x onerror="window.pwned=1">',
    "<svg/onload=window.pwned=1>",
    "javascript:window.pwned=1",
    "</td></table><iframe srcdoc='<script>parent.pwned=1</script>'>",
    "</script><script>window.pwned=1</script>",
    "{{constructor.constructor('window.pwned=1')()}}",
    "<style>*{display:none}</style>",
    "<meta http-equiv=refresh content='0;url=http://evil.example'>",
    "<form action=http://evil.example><input name=token autofocus>",
    "\u202e\u0000<b>x</b>",
)


def test_hostile_text_is_shown_and_does_nothing(open_page: OpenPage, service: Service) -> None:
    hub = service.make_hub("hostile")
    corpus = "\n".join(PAYLOADS)
    with service.client as client:
        client.put_hub("penstock", hub, user_metadata=PAYLOADS[0] + PAYLOADS[1])
        client.put_group("penstock", hub, "evil", user_metadata=PAYLOADS[2])
        client.put_job("<b>job</b>", last_error=PAYLOADS[1], kind=PAYLOADS[2])
    for payload in PAYLOADS:
        service.send(
            hub, payload, json.dumps({payload: payload}), key=payload[:100], **{payload: corpus}
        )
    page = open_page(f"/hubs/{hub}/events?from=earliest")
    expect(page.locator("#results tbody tr")).to_have_count(2 * len(PAYLOADS))
    expect(page.locator("#results")).to_contain_text("<script>window.pwned=1</script>")
    links = page.locator("#results tbody a").evaluate_all("all => all.map(a => a.href)")
    for address in [
        *links,
        f"{service.url}/hubs/{hub}",
        f"{service.url}/hubs/{hub}/groups",
        f"{service.url}/jobs",
        f"{service.url}/audit",
        f"{service.url}/hubs",
    ]:
        page.goto(address)
        assert page.evaluate("window.pwned") is None, address
        assert page.locator("iframe, main style, main svg[onload], main img").count() == 0, address
    page.goto(f"{service.url}/hubs/{hub}/events")
    page.get_by_label("Find text").fill("pwned")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#progress")).to_contain_text("Done")
    assert page.evaluate("window.pwned") is None
    assert page.locator("#results iframe, #results img, #results script").count() == 0


def test_hostile_addresses_are_answered_and_inert(open_page: OpenPage, service: Service) -> None:
    page = open_page()
    for path in (
        "/hubs/%3Cscript%3Ewindow.pwned=1%3C%2Fscript%3E",
        "/hubs/events/events?find=%22%3E%3Cscript%3Ewindow.pwned=1%3C/script%3E&where=%3Cb%3E",
        "/hubs/events/events?partition=%3Cimg%20src=x%3E",
        "/audit?find=%22%3E%3Csvg/onload=window.pwned=1%3E",
        "/?namespace=%3Cscript%3Ewindow.pwned=1%3C/script%3E&range=%22%3E%3Cb%3E",
        "/hubs/%00/..%2f..%2fetc",
        "/static/..%2f__main__.py",
        "/%ff%fe",
    ):
        answer = page.goto(service.url + path)
        assert answer is not None
        assert answer.status in (200, 404), path
        assert page.evaluate("window.pwned") is None, path


@pytest.mark.parametrize(
    ("user", "path", "form", "status"),
    [
        ("vera", "/hubs", {"name": "by-vera", "partitions": "2", "retention": "24"}, 403),
        ("vera", "/hubs/events/delete", {"confirm": "events"}, 403),
        ("vera", "/policies/RootManageSharedAccessKey/keys", {}, 403),
        ("otto", "/policies/RootManageSharedAccessKey/keys", {}, 403),
        ("otto", "/namespaces/delete", {"confirm": "penstock"}, 403),
        ("otto", "/scale/grant", {"kind": "throughput-units", "value": "40", "note": "x"}, 403),
        ("paul", "/hubs/events/delete", {"confirm": "events"}, 403),
    ],
)
def test_role_that_is_too_low_is_refused(
    open_page: OpenPage, service: Service, user: str, path: str, form: dict[str, str], status: int
) -> None:
    """Even with the form's own token: what is hidden is also forbidden."""
    page = open_page(user=user)
    token = page.locator("input[name=form_token]").first.get_attribute("value") or ""
    answer = page.request.post(
        service.url + path, form={**form, "form_token": token}, headers={"origin": service.url}
    )
    assert answer.status == status
    assert user in answer.text()


def test_viewer_sees_numbers_and_no_forms(open_page: OpenPage, service: Service) -> None:
    page = open_page("/hubs", user="vera")
    expect(page.locator("#live-hubs")).to_contain_text("events")
    expect(page.get_by_role("button", name="Create event hub")).to_have_count(0)
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
    page.get_by_label("Name").fill("by-otto")
    page.get_by_role("button", name="Create event hub").click()
    expect(page.get_by_role("heading", name="by-otto")).to_be_visible()
    with service.client as client:
        (row,) = [row for row in client.audit(newest=200) if "by-otto" in row["detail"]]
    assert (row["who"], row["what"]) == ("otto", "eventhubs/write")


def test_portal_that_hangs_or_dies_leaves_the_broker_alone(
    open_page: OpenPage, service: Service
) -> None:
    hub = service.make_hub("unharmed")
    page = open_page(f"/hubs/{hub}")
    first = _portal_pid(service)
    os.kill(first, signal.SIGSTOP)  # it hangs: the broker does not notice
    service.send(hub, "while it hangs")
    os.kill(first, signal.SIGKILL)
    service.send(hub, "while it is dead")
    # The visitor waits for a moment, and is still signed in.
    page.goto(f"{service.url}/hubs/{hub}/events?from=earliest")
    expect(page.locator("#results tbody tr")).to_have_count(2)
    assert _portal_pid(service) != first


def test_administration_port_leads_to_the_portal_and_ready_names_it(service: Service) -> None:
    with urllib.request.urlopen(service.server["admin"] + "/", timeout=30) as answer:
        assert answer.url.startswith(service.url)
        assert b"Administration token" in answer.read()
    with urllib.request.urlopen(service.server["admin"] + "/ready", timeout=30) as answer:
        assert "portal" in json.loads(answer.read())["checks"]


def test_token_of_the_portal_is_in_no_argument(service: Service) -> None:
    arguments = Path(f"/proc/{_portal_pid(service)}/cmdline").read_bytes()
    assert b"penstock.portal" in arguments
    assert service.server["admin_token"].encode() not in arguments


def test_read_only_portal_changes_nothing(start_server: ServerFactory, chromium: str) -> None:
    server = start_server("--portal-port", "0", environ={"PENSTOCK_PORTAL_READ_ONLY": "yes"})
    jar = urllib.request.HTTPCookieProcessor()
    opener = urllib.request.build_opener(jar)
    token = server["admin_token"]
    with opener.open(server["portal"] + "/signin", data=f"token={token}".encode()) as answer:
        text = answer.read().decode()
    assert "read-only" in text
    form = text.partition('name="form_token" value="')[2].partition('"')[0]
    with pytest.raises(urllib.error.HTTPError) as refused:
        opener.open(
            server["portal"] + "/hubs", data=f"form_token={form}&name=x&partitions=2".encode()
        )
    with refused.value as answered:
        assert answered.code == 403
        assert b"read-only mode" in answered.read()


def test_portal_beyond_loopback_speaks_tls(start_server: ServerFactory) -> None:
    import ssl

    server = start_server("--portal-port", "0", "--host", "0.0.0.0")
    port = server["portal"].rpartition(":")[2]
    assert server["portal"].startswith("https://")
    tls = ssl.create_default_context(cafile=server["ca_file"])
    with urllib.request.urlopen(
        f"https://localhost:{port}/signin", context=tls, timeout=60
    ) as answer:
        assert answer.headers["strict-transport-security"]
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        urllib.request.urlopen(f"http://localhost:{port}/signin", timeout=30)


def _portal_pid(service: Service) -> int:
    parent = service.server.process.pid
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    for pid in children:
        if b"penstock.portal" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return int(pid)
    raise ArgumentError("The portal does not run.")
