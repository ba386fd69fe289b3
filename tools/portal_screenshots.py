"""Pictures of every page of the portal, for docs/guides/portal.md: a service with something in it,
and the system's Chromium.

    .venv/bin/python tools/portal_screenshots.py              docs/images/portal/*.png
    .venv/bin/python tools/portal_screenshots.py --all DIR    each page, both themes, both widths
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from azure.eventhub import EventData, EventHubConsumerClient, EventHubProducerClient
from playwright.sync_api import Browser, Page, sync_playwright

from penstock.checkpoints import ServiceCheckpointStore
from penstock.management.client import ManagementClient

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.pictures import smaller

ROOT = Path(__file__).resolve().parents[1]
PENSTOCK = Path(sys.executable).with_name("penstock")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or "/usr/bin/chromium"
CAPTURE_S = 300
WIDTHS = {"wide": (1440, 900), "narrow": (390, 844)}
PAGES = {
    "overview": "/",
    "hubs": "/hubs",
    "hub": "/hubs/orders",
    "events": "/hubs/orders/events?from=latest&count=12",
    "event": "/hubs/orders/events/1/3",
    "send": "/hubs/orders/send",
    "groups": "/hubs/orders/groups",
    "hub-policies": "/hubs/orders/policies",
    "hub-capture": "/hubs/orders/capture",
    "policies": "/policies",
    "scale": "/scale",
    "capture": "/capture",
    "jobs": "/jobs",
    "connections": "/connections",
    "namespaces": "/namespaces",
    "audit": "/audit",
    "health": "/health",
}
# Beside every page as it is by default, wide and light.
SHOWN_TOO = {
    ("overview", "wide", "dark"),
    ("groups", "wide", "dark"),
    ("overview", "narrow", "light"),
}
CONFIG = """
portal_environment = "Demo"
[capture.destinations.archive]
url = "file://{folder}/captured"
[prices]
currency = "EUR"
throughput_unit_hour = 0.026
million_ingress_events = 0.025
[[namespaces]]
name = "contoso"
throughput_units = 4
[[namespaces.hubs]]
name = "orders"
groups = ["billing", "shipping"]
[[namespaces.hubs]]
name = "telemetry"
partition_count = 8
"""


CAPTURE = {
    "enabled": True,
    "encoding": "Avro",
    "intervalInSeconds": 60,
    "sizeLimitInBytes": 10 * 1024 * 1024,
    "skipEmptyArchives": True,
    "destination": {
        "name": "EventHubArchive.AzureBlockBlob",
        "properties": {
            "storageAccountResourceId": "archive",
            "blobContainer": "shop",
            "archiveNameFormat": "{Namespace}/{EventHub}/{PartitionId}/{Year}/{Month}/{Day}/"
            "{Hour}/{Minute}/{Second}",
        },
    },
}


@contextmanager
def service(folder: Path) -> Iterator[dict[str, Any]]:
    config = folder / "penstock.toml"
    config.write_text(CONFIG.format(folder=folder))
    ports = [f"--{door}-port=0" for door in ("amqp", "amqps", "https", "admin", "portal")]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    process = subprocess.Popen(
        [PENSTOCK, "serve", "--json", f"--data={folder / 'data'}", f"--config={config}", *ports],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environ,
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def fill(facts: dict[str, Any], stopping: threading.Event, seconds: int) -> None:
    """Traffic for a while, with the official SDK; a reader that keeps up and one that does not."""
    string = facts["emulator_connection_string"]
    with ManagementClient(facts["admin"], facts["admin_token"]) as client:
        client.put_rule("contoso", "orders", "sender", ["Send"])
        client.put_hub("contoso", "orders", user_metadata="What the shop sold, as it is sold.")
        if importlib.util.find_spec("pyspark") is not None:
            client.put_hub("contoso", "orders", capture=CAPTURE)
    deadline = time.monotonic() + seconds
    with EventHubProducerClient.from_connection_string(string, eventhub_name="orders") as producer:
        number = 0
        while time.monotonic() < deadline and not stopping.is_set():
            batch = producer.create_batch(partition_key=f"customer-{number % 7}")
            for _ in range(40):
                number += 1
                event = EventData(json.dumps({"order": f"o-{number:05}", "amount": number % 97}))
                event.properties = {"source": "shop", "attempt": 1}
                event.content_type = "application/json"
                batch.add(event)
            producer.send_batch(batch)
            if number % 2000 == 40:
                _report(facts)
            stopping.wait(0.2)


def _report(facts: dict[str, Any]) -> None:
    with ManagementClient(facts["admin"], facts["admin_token"]) as client:
        client.put_job(
            "orders-by-minute",
            kind="pipeline",
            master="local[2]",
            ui_url="http://localhost:4040",
            rows_per_second=1840.0,
            batch_seconds=0.7,
            lag_events=120,
        )


def read(facts: dict[str, Any], stopping: threading.Event) -> None:
    store = ServiceCheckpointStore(
        facts["emulator_connection_string"], https_url=facts["https"], ca_file=facts["ca_file"]
    )
    consumer = EventHubConsumerClient.from_connection_string(
        facts["emulator_connection_string"],
        "billing",
        eventhub_name="orders",
        checkpoint_store=store,
        load_balancing_interval=1,
    )

    def on_batch(context: Any, events: list[Any]) -> None:
        if events and time.monotonic() < on_batch.until:  # type: ignore[attr-defined]
            context.update_checkpoint(events[-1])

    on_batch.until = time.monotonic() + 20  # type: ignore[attr-defined]

    def stop() -> None:
        stopping.wait()
        consumer.close()

    threading.Thread(target=stop, daemon=True).start()
    consumer.receive_batch(on_batch, starting_position="-1", max_wait_time=1)


def wait_for_files(facts: dict[str, Any]) -> None:
    """Until Capture has written files, or its deadline: on a busy machine Spark starts slowly."""
    deadline = time.monotonic() + CAPTURE_S
    with ManagementClient(facts["admin"], facts["admin_token"]) as client:
        while time.monotonic() < deadline:
            if all(status.files for status in client.capture_status()):
                return
            time.sleep(1)
    sys.stderr.write(f"Capture has written no file within {CAPTURE_S} s\n")


def signed_in(browser: Browser, facts: dict[str, Any], theme: str, width: str) -> Page:
    size = WIDTHS[width]
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if theme == "dark" else "light",
        device_scale_factor=1,
    )
    page = context.new_page()
    page.goto(facts["portal"] + "/signin")
    page.locator("input:visible").first.fill(facts["admin_token"])
    page.keyboard.press("Enter")
    page.wait_for_url(facts["portal"] + "/")
    return page


def picture(page: Page, facts: dict[str, Any], address: str, file: Path) -> None:
    page.goto(facts["portal"] + address)
    page.wait_for_load_state("networkidle")
    wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    if wide > 0:
        sys.stderr.write(f"{file.name}: {wide} px are cut off at the right\n")
    page.screenshot(path=file, full_page=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", type=Path, help="each page, both themes and widths, into DIR")
    parser.add_argument("--seconds", type=int, default=150, help="of traffic before the pictures")
    given = parser.parse_args()
    target: Path = given.all or ROOT / "docs" / "images" / "portal"
    target.mkdir(parents=True, exist_ok=True)
    stopping = threading.Event()
    with (
        tempfile.TemporaryDirectory(prefix="penstock-portal-") as name,
        service(Path(name)) as facts,
    ):
        threads = [
            threading.Thread(target=fill, args=(facts, stopping, given.seconds + 400)),
            threading.Thread(target=read, args=(facts, stopping)),
        ]
        for thread in threads:
            thread.start()
        try:
            time.sleep(given.seconds)
            wait_for_files(facts)
            with sync_playwright() as play:
                browser = play.chromium.launch(
                    executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
                )
                take(browser, facts, target, everything=given.all is not None)
                browser.close()
        finally:
            stopping.set()
            for thread in threads:
                thread.join(30)
    if given.all is None:
        for file in target.glob("*.png"):
            file.write_bytes(smaller(file.read_bytes()))


def take(browser: Browser, facts: dict[str, Any], target: Path, *, everything: bool) -> None:
    plain = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme="light")
    plain.goto(facts["portal"] + "/signin")
    plain.screenshot(path=target / "signin.png")
    for width in WIDTHS:
        for theme in ("light", "dark"):
            page = signed_in(browser, facts, theme, width)
            for name, address in PAGES.items():
                usual = width == "wide" and theme == "light"
                chosen = usual or (name, width, theme) in SHOWN_TOO
                if everything or chosen:
                    suffix = (
                        "" if usual else f"-{theme}" if width == "wide" else f"-{width}-{theme}"
                    )
                    picture(page, facts, address, target / f"{name}{suffix}.png")


if __name__ == "__main__":
    main()
