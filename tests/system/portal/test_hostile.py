"""Text of attackers, wherever text is allowed: shown as what it is, in pages and in files, and
nothing of it runs, leads away or changes what the page is made of."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import fastavro
import pytest
from playwright.sync_api import expect
from tests.system.portal.hostile import PAYLOADS

from penstock.client import EventData, EventHubProducerClient
from penstock.formats.body_view import escape_invisible, preview
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from playwright.sync_api import Page
    from tests.system.portal.conftest import OpenPage, Service

expect.set_options(timeout=45_000)

KEY_MAX = 128
METADATA_MAX = 1024
TURNING = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
# What pages are made of; anything else came from somebody's text.
TAGS = (
    "html head meta title link script body a aside header footer span form label select option "
    "button div input small details summary nav main h1 h2 h3 p section table thead tr th tbody td "
    "dialog dl dt dd hr i kbd ul ol li strong figure textarea time pre code br fieldset legend b "
    "svg use g line circle text path rect"
)
STRANGE = """(words) => {
  const found = [], tags = words.split(" ");
  const once = {main: 1, h1: 1, script: 4, link: 2, body: 1, title: 1};
  for (const [tag, most] of Object.entries(once))
    if (document.querySelectorAll(tag).length !== most) found.push(`another ${tag}`);
  for (const element of document.querySelectorAll("*")) {
    if (!tags.includes(element.localName)) found.push(element.localName);
    for (const {name, value} of element.attributes) {
      if (name.startsWith("on") || ["style", "srcdoc", "http-equiv"].includes(name))
        found.push(`${element.localName} ${name}`);
      if (["href", "src", "action", "formaction", "xlink:href"].includes(name)
          && new URL(value, location.href).origin !== location.origin
          && !(element.rel === "noreferrer noopener" && /^https?:/.test(value)))  // Spark's pages
        found.push(`${name} ${value}`);
    }
  }
  if (window.pwned !== undefined || ({}).pwned !== undefined) found.push("it ran");
  return found;
}"""
CELLS = """rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"""


def assert_inert(page: Page) -> None:
    assert page.evaluate(STRANGE, TAGS) == [], page.url


def parsed(text: str) -> str:
    """As a browser has it after it read it: one kind of line end."""
    return escape_invisible(text).replace("\r\n", "\n").replace("\r", "\n")


def commands(character: str) -> bool:
    """Whether a terminal obeys it, or a line ends or turns around by it."""
    is_turning = unicodedata.bidirectional(character) in TURNING
    kind = unicodedata.category(character)
    return is_turning or (kind in ("Cc", "Cs", "Zl", "Zp") and character not in "\r\n\t")


@pytest.fixture(scope="module")
def hub(service: Service) -> str:
    """Each payload as a body, a key, a property's name and its value; and one event whose
    properties are all of them, and whose body is."""
    hub = service.make_hub("hostile")
    everything = {payload: payload for payload in PAYLOADS}

    async def send() -> None:
        async with EventHubProducerClient(
            service.server["emulator_connection_string"], eventhub_name=hub
        ) as producer:
            for payload in PAYLOADS:
                event = EventData(payload, properties={payload[:200]: payload[:200]})
                await producer.send_event(event, partition_key=payload[:KEY_MAX])
            event = EventData(json.dumps(everything), properties=dict(everything))
            await producer.send_event(event, partition_id="0")

    with ThreadPoolExecutor(1) as thread:  # the browser's driver has this thread's loop
        thread.submit(lambda: asyncio.run(send())).result(120)
    return hub


def test_keys_properties_and_bodies_are_shown_in_the_list(
    open_page: OpenPage, service: Service, hub: str
) -> None:
    page = open_page(f"/hubs/{hub}/events?from=earliest&count=1000")
    rows = page.locator("#results tbody tr")
    expect(rows).to_have_count(len(PAYLOADS) + 1)
    assert_inert(page)
    cells: list[list[str]] = rows.evaluate_all(CELLS)
    seen = {(row[3], row[6]) for row in cells}
    for payload in PAYLOADS:
        wanted = (parsed(payload[:KEY_MAX]), parsed(preview(payload.encode())) or "–")
        assert wanted in seen
    properties = {row[5] for row in cells}
    for payload in PAYLOADS:
        assert parsed(f"{payload[:200]}={payload[:200]}"[:200]) in properties


def test_rows_that_a_script_shows_are_the_same(open_page: OpenPage, hub: str) -> None:
    """The search's and the tail's come as data, and become text."""
    page = open_page(f"/hubs/{hub}/events?where=size+%3E%3D+0&from=earliest")
    expect(page.locator("#progress")).to_contain_text("Done")
    rows = page.locator("#results tbody tr")
    assert rows.count() >= 500
    assert_inert(page)
    known = {escape_invisible(payload[:KEY_MAX]) for payload in PAYLOADS} | {"–"}
    cells: list[list[str]] = rows.evaluate_all(CELLS)
    assert {row[3] for row in cells} <= known


def test_event_with_every_payload_is_shown_in_every_view(
    open_page: OpenPage, service: Service, hub: str
) -> None:
    with service.client as client:
        last = client.partitions("penstock", hub)[0]["last_sequence"]
    page = open_page()
    for view in ("json", "text", "hex"):
        page.goto(f"{service.url}/hubs/{hub}/events/0/{last}?as={view}")
        assert_inert(page)
        expect(page.locator("#body")).not_to_be_empty()
        rows = page.locator("#properties tbody tr")
        cells: list[list[str]] = rows.evaluate_all(CELLS)
        shown = {(row[0], row[1]) for row in cells}
        assert {(parsed(payload), parsed(payload)) for payload in PAYLOADS} <= shown


def test_metadata_of_hubs_and_groups_is_text(open_page: OpenPage, service: Service) -> None:
    texts = _joined(PAYLOADS, METADATA_MAX)
    with service.client as client:
        kept = [text for index, text in enumerate(texts) if _takes(client, index, text)]
    assert sum(len(text) for text in kept) > 20_000
    page = open_page()
    for text in kept:
        hub = f"hostile-{texts.index(text)}"
        page.goto(f"{service.url}/hubs/{hub}", wait_until="domcontentloaded")
        expect(page.locator("main .facts dd").last).to_have_js_property("textContent", parsed(text))
        assert_inert(page)
    for some in (kept[:20], kept[20:40]):
        hub = f"hostile-{texts.index(some[0])}"
        with service.client as client:
            for index, text in enumerate(some):
                client.put_group("penstock", hub, f"g{index}", user_metadata=text)
        opened = "&".join(f"open=g{index}" for index in range(len(some)))
        page.goto(f"{service.url}/hubs/{hub}/groups?{opened}")
        assert {parsed(text) for text in some} <= set(page.locator(".metadata").all_text_contents())
        assert_inert(page)
    with service.client as client:  # other tests look at short lists
        for text in kept:
            client.delete_hub("penstock", f"hostile-{texts.index(text)}")


def test_names_that_are_refused_come_back_as_text(open_page: OpenPage, service: Service) -> None:
    page = open_page()
    token = page.locator("input[name=form_token]").first.get_attribute("value") or ""
    for payload in PAYLOADS[::60]:
        for path in ("/namespaces", "/hubs/events/groups"):
            form = {"name": payload, "back": path}
            page.request.post(
                service.url + path,
                form={**form, "form_token": token},
                headers={"origin": service.url},
                max_redirects=0,
            )
            page.goto(service.url + path, wait_until="domcontentloaded")
            expect(page.locator(".notice.bad")).to_be_visible()
            assert_inert(page)


def test_what_clients_and_jobs_say_of_themselves_is_text(
    open_page: OpenPage, service: Service
) -> None:
    from azure.eventhub import EventHubProducerClient as Official

    printable = [payload for payload in PAYLOADS if payload.isprintable() and payload.isascii()]
    said = "".join(printable[::40])[:400]
    with service.client as client:
        for index, payload in enumerate(PAYLOADS[::100]):
            client.put_job(f"job-{index}", last_error=payload, kind=payload[:64], master=payload)
    page = open_page("/jobs")
    expect(page.locator("#live-jobs")).to_contain_text("job-0")
    assert_inert(page)
    producer = Official.from_connection_string(
        service.server["emulator_connection_string"], eventhub_name="events", user_agent=said
    )
    with producer:
        producer.get_eventhub_properties()
        producer.send_batch(producer.create_batch(), timeout=30)
        page.goto(f"{service.url}/connections")
        expect(page.locator("#live-connections")).to_contain_text(said[:60])
        assert_inert(page)
    for path in ("/audit", "/", "/hubs", "/namespaces", "/health", "/capture"):
        page.goto(service.url + path)
        assert_inert(page)


def test_addresses_are_answered_and_inert(open_page: OpenPage, service: Service) -> None:
    page = open_page()
    some = PAYLOADS[::70]
    paths = [f"/hubs/{quote(payload, safe='')}" for payload in some]
    paths += [f"/hubs/events/events?find={quote(p)}&where={quote(p)}&at={quote(p)}" for p in some]
    paths += [f"/hubs/events/events?partition={quote(p)}&from={quote(p)}" for p in some[::3]]
    paths += [f"/audit?find={quote(p)}" for p in some[::3]]
    paths += [f"/?namespace={quote(p)}&range={quote(p)}" for p in some[::3]]
    paths += ["/hubs/%00/..%2f..%2fetc", "/static/..%2f__main__.py", "/%ff%fe", "/hubs/%ff"]
    for path in paths:
        answer = page.goto(service.url + path, wait_until="domcontentloaded")
        assert answer is not None
        assert answer.status in (200, 400, 404), path
        if "html" in answer.headers["content-type"]:
            assert_inert(page)


def test_files_hold_what_was_sent_and_no_formula(
    open_page: OpenPage, service: Service, hub: str
) -> None:
    page = open_page()
    address = f"{service.url}/hubs/{hub}/events/download?from=earliest&count=1000&format="
    lines = page.request.get(address + "jsonl")
    assert "attachment" in lines.headers["content-disposition"]
    text = lines.body().decode()
    assert not any(commands(each) for each in text)
    records = [json.loads(line) for line in text.split("\n")[:-1]]
    assert {record["body"] for record in records} >= set(PAYLOADS)
    assert {record["partition_key"] for record in records} >= {p[:KEY_MAX] for p in PAYLOADS}
    table = page.request.get(address + "csv").body().decode("utf-8-sig")
    read = list(csv.DictReader(io.StringIO(table, newline="")))
    assert len(read) == len(PAYLOADS) + 1
    for cell in (cell for row in read for cell in row.values()):
        assert not cell.lstrip().startswith(("=", "+", "-", "@", "\uff1d"))
        assert not any(commands(each) for each in cell)
    container = io.BytesIO(page.request.get(address + "avro").body())
    kept: list[Any] = list(fastavro.reader(container))
    assert {record["Body"] for record in kept} >= {payload.encode() for payload in PAYLOADS}


def _joined(payloads: tuple[str, ...], most: int) -> list[str]:
    """Several in a text, none of them cut but those that are too long by themselves."""
    texts, text = [], ""
    for payload in payloads:
        if text and len(text) + 1 + len(payload) > most:
            texts.append(text)
            text = ""
        text = f"{text} {payload}" if text else payload[:most]
    return [*texts, text]


def _takes(client: Any, index: int, text: str) -> bool:
    """Some characters are refused there: then they cannot be shown either."""
    try:
        client.put_hub("penstock", f"hostile-{index}", partition_count=2, user_metadata=text)
    except PenstockError:
        return False
    return True
