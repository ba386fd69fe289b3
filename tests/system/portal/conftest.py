"""The portal in a real browser: the system's Chromium, a service with users and a destination."""

from __future__ import annotations

import asyncio
import functools
import http.client
import http.cookiejar
import json
import os
import signal
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from azure.eventhub import EventData, EventHubProducerClient
from playwright.sync_api import expect
from tests.support import toolchains

from penstock.management.client import ManagementClient
from penstock.portal.users import hash_password

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page
    from tests.conftest import Server, ServerFactory

PASSWORD = "correct horse"
ARTEFACTS = Path(__file__).resolve().parents[3] / "build" / "portal"
TIMEOUT_MS = 45_000  # a loaded machine
CONFIG = """
portal_environment = "Test bench"
portal_users_file = "{users}"
portal_mask = "json.card.number, properties.secret"
[capture.destinations.archive]
url = "file://{folder}/captured"
[prices]
currency = "EUR"
throughput_unit_hour = 0.026
"""


class Service:
    """A running service with its portal, and what tests do beside the browser."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.url = server["portal"]
        # `serve` does not wait for its portal. Its socket is open already: who asks is answered
        # when the process is up.
        with urllib.request.urlopen(self.url, timeout=60) as answer:
            assert answer.status == 200

    @property
    def client(self) -> ManagementClient:
        return ManagementClient(self.server["admin"], self.server["admin_token"])

    @property
    def portal_pid(self) -> int:
        """Of the process that runs now; a test that asks while there is none fails."""
        parent = self.server.process.pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        for pid in children:
            if b"penstock.portal" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
        raise AssertionError("The portal does not run.")

    def make_hub(self, name: str, partitions: int = 2) -> str:
        with self.client as client:
            client.put_hub("penstock", name, partition_count=partitions)
        return name

    def send(
        self, hub: str, *bodies: str | bytes, key: str | None = None, **properties: Any
    ) -> None:
        """With the official SDK."""
        producer = EventHubProducerClient.from_connection_string(
            self.server["emulator_connection_string"], eventhub_name=hub
        )
        with producer:
            batch = producer.create_batch(partition_key=key) if key else producer.create_batch()
            for body in bodies:
                event = EventData(body)
                event.properties = {name: value for name, value in properties.items()}
                batch.add(event)
            producer.send_batch(batch)

    def flood(self, hub: str, size: int) -> None:
        """So many bytes, into one partition."""
        producer = EventHubProducerClient.from_connection_string(
            self.server["emulator_connection_string"], eventhub_name=hub
        )
        with producer:
            for _ in range(-(-size // 200_000)):
                batch = producer.create_batch(partition_key="same")
                for _ in range(10):
                    batch.add(EventData(bytes(20_000)))
                producer.send_batch(batch)


class _From(urllib.request.HTTPHandler):
    """Connections from one of this machine's other addresses."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self._source = source

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        made = functools.partial(http.client.HTTPConnection, source_address=(self._source, 0))
        return self.do_open(made, req)


class Visitor:
    """Somebody without a browser: forms of the portal as they are posted, cookies kept."""

    def __init__(
        self, url: str, form: dict[str, str] | None = None, *, source: str | None = None
    ) -> None:
        """Signs in with the form, if one is given; comes from the address `source`."""
        self.url = url.replace("localhost", "127.0.0.1") if source else url
        self._jar = http.cookiejar.CookieJar()
        handlers: list[urllib.request.BaseHandler] = [_From(source)] if source else []
        cookies = urllib.request.HTTPCookieProcessor(self._jar)
        self._opener = urllib.request.build_opener(cookies, *handlers)
        self._form_token = ""
        if form is not None:
            status, text = self.post("/signin", form)
            assert status == 200, text[:500]
            self._form_token = text.partition('name="form_token" value="')[2].partition('"')[0]
            assert self._form_token

    def cookies(self) -> list[str]:
        return [each.value or "" for each in self._jar]

    def get(self, path: str) -> tuple[int, str]:
        return self._ask(urllib.request.Request(self.url + path))

    def post(self, path: str, form: dict[str, str], **headers: str) -> tuple[int, str]:
        """Redirects are followed."""
        body = urllib.parse.urlencode(form).encode()
        return self._ask(urllib.request.Request(self.url + path, data=body, headers=headers))

    def act(self, path: str, form: dict[str, str]) -> tuple[int, str]:
        """A form of our own, with its token."""
        return self.post(path, {**form, "form_token": self._form_token})

    def _ask(self, request: urllib.request.Request) -> tuple[int, str]:
        try:
            with self._opener.open(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()


def as_user(name: str) -> dict[str, str]:
    return {"name": name, "password": PASSWORD}


@pytest.fixture(scope="session")
def chromium() -> str:
    return toolchains.require("chromium")


@pytest.fixture(scope="module")  # its event loop must not outlive the file: others need one
def browser(chromium: str) -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def service(
    start_session_server: ServerFactory, tmp_path_factory: pytest.TempPathFactory
) -> Service:
    folder = tmp_path_factory.mktemp("portal")
    users = folder / "users.toml"
    stored = hash_password(PASSWORD)
    lines = [
        f'{name} = {{ role = "{role}", password = "{stored}" }}'
        for name, role in (("vera", "viewer"), ("otto", "operator"), ("anna", "admin"))
    ]
    lines.append(f'paul = {{ role = "operator", password = "{stored}", hubs = ["mine-*"] }}')
    users.write_text("[users]\n" + "\n".join(lines))
    config = CONFIG.format(users=users, folder=folder)
    return Service(start_session_server("--portal-port", "0", config=config), folder)


@pytest.fixture(scope="session")
def hung(start_session_server: ServerFactory) -> tuple[Service, int]:
    """A service in read-only mode whose portal is stopped as soon as it runs: it is found out and
    started again within a minute, while other tests run. With the process that was stopped."""
    environ = {"PENSTOCK_PORTAL_READ_ONLY": "yes"}
    server = start_session_server("--portal-port", "0", environ=environ)
    made = Service(server, server.data)
    with urllib.request.urlopen(f"{made.url}/alive", timeout=60):
        pid = made.portal_pid
    # Once it is known to run: before that, a minute is given to a start.
    ready = f"{server['admin']}/ready"
    deadline = time.monotonic() + 60
    while True:
        with urllib.request.urlopen(ready, timeout=60) as answer:
            if json.loads(answer.read())["checks"]["portal"] == "ok":
                break
        assert time.monotonic() < deadline, "The portal was not said to be there."
    os.kill(pid, signal.SIGSTOP)
    return made, pid


OpenPage = Callable[..., "Page"]


@pytest.fixture(scope="module")
def contexts(browser: Browser) -> dict[tuple[Any, ...], BrowserContext]:
    """Of those who signed in before, with their cookies: a password is checked slowly, for a
    reason, and a new context takes longer than a page."""
    return {}


@pytest.fixture
def open_page(
    browser: Browser,
    service: Service,
    contexts: dict[tuple[Any, ...], BrowserContext],
    request: pytest.FixtureRequest,
) -> Iterator[OpenPage]:
    """`open_page(path, user=None, width=1280)`: signed in by the token, or as a user.

    Whatever a test does: no script of a stranger runs, nothing is asked of another host, no policy
    is broken, no script fails. A picture of every page is kept.
    """
    troubles: list[str] = []
    opened: list[Page] = []

    def open_(
        path: str = "/",
        *,
        user: str | None = None,
        width: int = 1280,
        scheme: Any = "light",
        server: Server | None = None,
    ) -> Page:
        server = server or service.server
        url = server["portal"]
        key = (url, user, width, scheme)
        known = contexts.get(key)
        context = known or browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme
        )
        context.set_default_timeout(TIMEOUT_MS)
        page = context.new_page()
        page.on("dialog", lambda dialog: _spoke(troubles, dialog))
        page.on("pageerror", lambda error: troubles.append(f"error {error}"))
        page.on("console", lambda said: _heard(troubles, said))
        page.on("request", lambda asked: _asked(troubles, url, asked.url))
        if known is None:
            sign_in(page, server, user)
            contexts[key] = context
        if known is not None or path != "/":
            page.goto(url + path)
        opened.append(page)
        return page

    yield open_
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    for number, page in enumerate(opened):
        name = f"{request.node.name[:80].replace('/', '-')}-{number}.png"
        height = page.evaluate("document.documentElement.scrollHeight")
        page.screenshot(path=ARTEFACTS / name, full_page=height < 2500)
        page.close()
    assert troubles == []


def sign_in(page: Page, server: Server, user: str | None = None) -> None:
    """By the form: with the administration token, or as a user."""
    page.goto(f"{server['portal']}/signin")
    if user is None:
        if (folded := page.get_by_text("Use the administration token")).count():
            folded.click()
        page.get_by_label("Administration token").fill(server["admin_token"])
        page.keyboard.press("Enter")
    else:
        page.get_by_label("User name").fill(user)
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in", exact=True).click()
    page.wait_for_url(server["portal"] + "/")


def choose(page: Page, menu: str, item: str) -> None:
    """Open the menu of a row, or of the page, and choose an action, which opens a dialog."""
    page.get_by_label(menu, exact=True).click()
    page.get_by_role("link", name=item).locator("visible=true").click()
    expect(page.locator("#dialog")).to_be_visible()


def press(page: Page, key: str) -> None:
    """Press a key when the page is loaded: its script listens from then on."""
    page.wait_for_load_state()
    page.keyboard.press(key)


def _spoke(troubles: list[str], dialog: Any) -> None:
    troubles.append(f"dialog {dialog.message}")
    dialog.dismiss()


def _heard(troubles: list[str], said: Any) -> None:
    # A refusal that a test provokes is told there too, by its status.
    if said.type == "error" and "Failed to load resource" not in said.text:
        troubles.append(f"console {said.text}")


def _asked(troubles: list[str], ours: str, url: str) -> None:
    if not url.startswith((ours, "data:")):
        troubles.append(f"asked for {url}")


def flood(service: Service, hub: str) -> int:
    """How many of twelve publications of 200 KB, each to another partition (which takes one unit's
    worth at most), were refused for being too much."""
    from penstock.client import ClientThrottled, RetryPolicy
    from penstock.client import EventData as Ours
    from penstock.client import EventHubProducerClient as Producer

    async def publish() -> int:
        refused = 0
        async with Producer(
            service.server["emulator_connection_string"],
            eventhub_name=hub,
            retry=RetryPolicy(retry_total=0),
        ) as producer:
            for number in range(12):
                try:
                    await producer.send_event(Ours(bytes(200_000)), partition_id=str(number))
                except ClientThrottled:
                    refused += 1
        return refused

    with ThreadPoolExecutor(1) as thread:  # the browser's driver has this thread's loop
        return thread.submit(lambda: asyncio.run(publish())).result(60)
