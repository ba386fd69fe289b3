"""The portal in a real browser: the system's Chromium, a service with users and a destination."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from azure.eventhub import EventData, EventHubProducerClient

from penstock.management.client import ManagementClient
from penstock.portal.users import hashed

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
    from tests.conftest import Server, ServerFactory

PASSWORD = "correct horse"
ARTEFACTS = Path(__file__).resolve().parents[3] / "build" / "portal"
TIMEOUT_MS = 45_000  # a loaded machine
CONFIG = """
portal_environment = "Test bench"
portal_users_file = "{users}"
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

    @property
    def client(self) -> ManagementClient:
        return ManagementClient(self.server["admin"], self.server["admin_token"])

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


@pytest.fixture(scope="session")
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    return found


@pytest.fixture(scope="session")
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
    stored = hashed(PASSWORD)
    lines = [
        f'{name} = {{ role = "{role}", password = "{stored}" }}'
        for name, role in (("vera", "viewer"), ("otto", "operator"), ("anna", "admin"))
    ]
    lines.append(f'paul = {{ role = "operator", password = "{stored}", hubs = ["mine-*"] }}')
    users.write_text("[users]\n" + "\n".join(lines))
    config = CONFIG.format(users=users, folder=folder)
    return Service(start_session_server("--portal-port", "0", config=config), folder)


OpenPage = Callable[..., "Page"]


@pytest.fixture
def open_page(
    browser: Browser, service: Service, request: pytest.FixtureRequest
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
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        context.set_default_timeout(TIMEOUT_MS)
        page = context.new_page()
        page.on("dialog", lambda dialog: _spoke(troubles, dialog))
        page.on("pageerror", lambda error: troubles.append(f"error {error}"))
        page.on("console", lambda said: _heard(troubles, said))
        page.on("request", lambda asked: _asked(troubles, url, asked.url))
        page.goto(f"{url}/signin")
        if user is None:
            page.locator("input:visible").first.fill(server["admin_token"])
            page.get_by_role("button", name="Sign in", exact=True).click()
        else:
            page.get_by_label("Name").fill(user)
            page.get_by_label("Password").fill(PASSWORD)
            page.get_by_role("button", name="Sign in as user").click()
        page.wait_for_url(url + "/")
        if path != "/":
            page.goto(url + path)
        opened.append(page)
        return page

    yield open_
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    for number, page in enumerate(opened):
        name = f"{request.node.name[:80].replace('/', '-')}-{number}.png"
        page.screenshot(path=ARTEFACTS / name, full_page=True)
        page.context.close()
    assert troubles == []


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
