"""What the portal does not let happen: forged forms, planted sessions, a death that spreads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from tests.system.portal.conftest import Visitor, as_user, sign_in

from penstock.management.client import ManagementClient
from penstock.management.permissions import Forbidden

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from tests.conftest import ServerFactory
    from tests.system.portal.conftest import OpenPage, Service

expect.set_options(timeout=45_000)


def test_portal_that_dies_leaves_the_broker_alone_and_comes_back(
    open_page: OpenPage, service: Service
) -> None:
    hub = service.make_hub("unharmed")
    page = open_page(f"/hubs/{hub}")
    first = service.portal_pid
    os.kill(first, signal.SIGSTOP)  # it hangs: the broker does not notice
    service.send(hub, "while it hangs")
    os.kill(first, signal.SIGKILL)
    service.send(hub, "while it is dead")
    # The visitor waits for a moment, and is still signed in.
    page.goto(f"{service.url}/hubs/{hub}/events?from=earliest")
    expect(page.locator("#results tbody tr")).to_have_count(2)
    assert service.portal_pid != first


def test_portal_that_hangs_is_killed_and_started_again(hung: tuple[Service, int]) -> None:
    service, stopped = hung
    hub = service.make_hub("unharmed")
    service.send(hub, "while it hangs")
    # Whoever asks waits until it is there again: the socket is the service's.
    with urllib.request.urlopen(f"{service.url}/alive", timeout=150) as answer:
        assert answer.status == 200
    assert service.portal_pid != stopped
    assert "does not answer: it is killed" in service.server.log.read_text()
    service.send(hub, "and after it")
    with service.client as client:
        found = client.partitions("penstock", hub)
    assert sum(each["last_sequence"] + 1 for each in found) == 2


def test_broker_comes_before_its_portal(service: Service) -> None:
    ours = os.getpriority(os.PRIO_PROCESS, service.server.process.pid)
    assert os.getpriority(os.PRIO_PROCESS, service.portal_pid) == min(ours + 5, 19)


def test_administration_port_leads_to_the_portal_and_ready_names_it(service: Service) -> None:
    with urllib.request.urlopen(service.server["admin"] + "/", timeout=30) as answer:
        assert answer.url.startswith(service.url)
        assert b"Administration token" in answer.read()
    with urllib.request.urlopen(service.server["admin"] + "/ready", timeout=30) as answer:
        assert "portal" in json.loads(answer.read())["checks"]


def test_portal_has_a_token_of_its_own_in_a_private_file(service: Service) -> None:
    process = Path(f"/proc/{service.portal_pid}")
    arguments, environ = (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
    assert b"penstock.portal" in arguments
    assert b"eyJ" not in arguments + environ  # how every admin token begins
    file = service.server.data / "portal.token"
    assert file.stat().st_mode & 0o777 == 0o600
    with ManagementClient(service.server["admin"], file) as portal:
        with pytest.raises(Forbidden, match="has the role Portal"):
            portal.namespaces()
        with pytest.raises(Forbidden, match="has the role Portal"):
            portal.issue_admin_token("eve", role="Owner", lifetime_s=600)
    for role in ("portal", "capture"):  # nobody signs in with the token of a process
        token = (service.server.data / f"{role}.token").read_text().strip()
        status, _ = Visitor(service.url).post("/signin", {"token": token})
        assert status == 401


def test_session_that_was_planted_is_nobody(browser: Browser, service: Service) -> None:
    """Whatever cookie somebody put into the browser before: signing in makes another one, and
    what was planted opens nothing, nor does the session that was left."""
    name = f"penstock_portal_{service.url.rpartition(':')[2]}"
    planted = Visitor(service.url, {"token": service.server["admin_token"]})
    context = browser.new_context()
    page = context.new_page()
    context.add_cookies([{"name": name, "value": "planted.by-somebody", "url": service.url}])
    page.goto(service.url + "/scale")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    sign_in(page, service.server)
    (mine,) = [each["value"] for each in context.cookies() if each["name"] == name]
    assert mine != "planted.by-somebody"
    assert mine not in planted.cookies()
    page.locator(".menu.user summary").click()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/signin")
    context.add_cookies([{"name": name, "value": mine, "url": service.url}])
    page.goto(service.url + "/scale")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    context.close()
    assert planted.get("/scale")[0] == 200  # another's session is not touched by it


def test_command_prints_a_link_that_signs_in_once(service: Service) -> None:
    command = [str(Path(sys.executable).with_name("penstock")), "portal", "url", "--sign-in"]
    environ = {**os.environ, "PENSTOCK_DATA": str(service.server.data)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    link = done.stdout.strip()
    assert link.startswith(f"{service.url}/signin?once=")
    visitor, late = Visitor(service.url), Visitor(service.url)
    status, text = visitor.get(link.removeprefix(service.url))
    assert (status, "Sign out" in text) == (200, True)
    assert late.get(link.removeprefix(service.url))[0] == 401
    assert late.get("/scale")[1].count("Administration token") == 1
    assert link.partition("=")[2] not in service.server.log.read_text()


def test_form_of_another_site_changes_nothing(browser: Browser, service: Service) -> None:
    """A visitor who is signed in opens a page that posts a form to us, and one that frames us."""
    context = browser.new_context()
    page = context.new_page()
    sign_in(page, service.server)
    form = f"""<form method=post action={service.url}/hubs><input name=name value=by-evil>
        <input name=partitions value=2><input name=retention value=24></form>
        <iframe src={service.url}/hubs></iframe>"""
    context.route(
        "http://evil.example/**",
        lambda route: route.fulfill(content_type="text/html", body=form),
    )
    page.goto("http://evil.example/", wait_until="domcontentloaded")
    framed = page.frames[1]
    assert "Event hubs" not in framed.content()  # refused: it may stand in no frame
    with page.expect_navigation() as sent:
        page.evaluate("document.forms[0].submit()")
    assert sent.value.status == 403
    expect(page.get_by_text("comes from another site")).to_be_visible()
    context.close()
    with service.client as client:
        assert "by-evil" not in [hub.name for hub in client.hubs("penstock")]


def test_guesses_wait_and_are_in_the_audit_log(service: Service) -> None:
    # From an address of its own: others sign in from the usual one.
    stranger = Visitor(service.url, source="127.0.0.2")
    seen = [stranger.post("/signin", {"name": "otto", "password": f"guess {n}"}) for n in range(9)]
    statuses = [status for status, _ in seen]
    assert statuses[:5] == [401] * 5
    assert 429 in statuses[5:]
    assert "Too many wrong attempts" in seen[-1][1]
    # The right password waits too, a good token never does.
    assert stranger.post("/signin", as_user("otto"))[0] == 429
    assert stranger.post("/signin", {"token": service.server["admin_token"]})[0] == 200
    with service.client as client:
        rows = [row for row in client.audit(newest=200) if row["what"] == "portal/signIn"]
    assert any(row["detail"] == "refused: 'otto' from 127.0.0.2" for row in rows)
    assert any(row["who"] == "admin" and row["detail"] == "from 127.0.0.2" for row in rows)


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
