"""The events explorer: a page of events, search, live tail, one event, downloads."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.responses import Response

from penstock.formats import body_view
from penstock.formats.body_view import escape_invisible
from penstock.formats.event_view import EventView
from penstock.formats.filters import compile_filter, format_value, text_filter
from penstock.formats.positions import StartKind, StartPosition
from penstock.formats.quantities import format_size, format_time
from penstock.model.errors import ArgumentError, NotFound, PenstockError
from penstock.portal import components as ui
from penstock.portal import responses
from penstock.portal.event_browser import EventPage, EventSource, EventTest
from penstock.portal.event_query import COUNT_MAX, EventQuery, format_numbers, parse_query
from penstock.portal.html import Html, el, path
from penstock.portal.layout import page
from penstock.portal.page_request import PageRequest

_FROM = {
    "latest": "the end (the last ones)",
    "earliest": "the start",
    "sequence": "a sequence number",
    "offset": "an offset",
    "time": "a time (UTC)",
}
_COUNT = 50
_WHERE_EXAMPLE = "json.temperature >= 30 and key == d7"
_TEXT_MAX = 1000  # characters of a search
_PREVIEWED_MAX = 64 * 1024  # bytes of a packed body
_KINDS = {
    StartKind.EARLIEST: "earliest",
    StartKind.SEQUENCE_NUMBER: "sequence",
    StartKind.OFFSET: "offset",
    StartKind.TIME: "time",
}
_HEADS = ("Partition", "Sequence", "Time (UTC)", "Key", "Size", "Properties", "Body")


class _ExplorerQuery(msgspec.Struct, frozen=True):
    """The parameters of the address."""

    source: EventSource
    query: EventQuery
    count: int
    is_match: EventTest | None

    @property
    def search_query(self) -> EventQuery:
        """A search reads everything unless the address says where to start."""
        if not self.query.is_backwards:
            return self.query
        return msgspec.structs.replace(self.query, start=StartPosition(StartKind.EARLIEST))


async def _parse_address(visit: PageRequest) -> _ExplorerQuery:
    hub = await visit.hub()
    existing = [str(index) for index in range(hub.partition_count)]
    partition = visit.query.get("partition", "")
    if partition and partition not in existing:
        raise NotFound(f"There is no partition '{partition[:20]}'. Use 0 to {existing[-1]}.")
    count = visit.query.get("count", "") or str(_COUNT)
    if not count.isascii() or not count.isdigit() or not 1 <= int(count[:9]) <= COUNT_MAX:
        raise ArgumentError(f"The number of events must be 1 to {COUNT_MAX}.")
    query = parse_query(
        *(visit.query.get(name, "") for name in ("from", "at", "until")),
        count=int(count),
        now_ms=visit.portal.clock.now_ms(),
    )
    is_match = compile_search(visit.query.get("find", ""), visit.query.get("where", ""))
    partitions = [partition] if partition else existing
    source = EventSource(visit.namespace, hub.name, partitions, visit.mask)
    return _ExplorerQuery(source, query, int(count), is_match)


def compile_search(text: str, expression: str) -> EventTest | None:
    """The test for `find` and `where`; None if both are empty. Raises ArgumentError."""
    if len(text) > _TEXT_MAX or len(expression) > _TEXT_MAX:
        raise ArgumentError(f"A search has at most {_TEXT_MAX} characters.")
    tests: list[EventTest] = []
    if text:
        tests.append(text_filter(text))
    if expression.strip():
        # A pattern of one user could stop the portal for all.
        tests.append(compile_filter(expression, patterns=False))
    return (lambda event: all(test(event) for test in tests)) if tests else None


async def explorer(visit: PageRequest) -> Response:
    problem, shown_page = "", EventPage([], {}, {})
    try:
        parsed = await _parse_address(visit)
        if parsed.is_match is None:
            browser = visit.portal.events
            shown_page = await browser.page(parsed.source, parsed.query, parsed.count)
    except PenstockError as error:
        problem = str(error)
    rows = [_build_row(visit, event) for event in shown_page.events]
    table = ui.table(rows, empty="No events here.", numbers=("Sequence", "Size"))
    return await page(
        visit,
        ui.card("", _form(visit, (await visit.hub()).partition_count)),
        ui.error_box(problem) if problem else None,
        ui.card(
            "",
            _bar(visit, shown_page),
            el("div", table, id="results", data_heads=json.dumps(_HEADS)),
            _downloads(visit),
        ),
    )


def _form(visit: PageRequest, count: int) -> Html:
    query = visit.query
    position = query.get("from", "")
    chosen, at = position or "latest", query.get("at", "")
    if chosen in ("before", "after"):  # an older or newer page: the form starts again
        chosen, at = "latest", ""
    elif chosen not in _FROM:  # a position alone, as in ?from=42
        chosen, at = _guess_start(visit, position), position

    def text_field(label: str, name: str, placeholder: str, **attributes: Any) -> Html:
        value = at if name == "at" else query.get(name, "")
        fixed = {"placeholder": placeholder, "autocomplete": "off"}
        return ui.field(visit, label, name, value, **fixed, **attributes)

    return el(
        "form",
        ui.hidden("namespace", query["namespace"]) if "namespace" in query else None,
        ui.partition_select(visit, count, "all partitions", query.get("partition", "")),
        ui.select(visit, "From", "from", _FROM, chosen),
        text_field("At", "at", "2026-01-31T12:00, -15min"),
        text_field("Until", "until", "the end; or as At"),
        text_field("Find text", "find", "in body, key, properties"),
        text_field("Where", "where", "json.amount >= 30 and …", title=_WHERE_EXAMPLE),
        ui.number(visit, "How many", "count", query.get("count", _COUNT), (1, COUNT_MAX)),
        ui.submit("Show"),
        method="get",
        action=path("hubs", visit.words["hub"], "events"),
        class_="form",
        id="explorer",
    )


def _guess_start(visit: PageRequest, text: str) -> str:
    """The entry of the form's list that fits a position."""
    try:
        query = parse_query(text, "", count=_COUNT, now_ms=visit.portal.clock.now_ms())
    except PenstockError:
        return "latest"
    return _KINDS.get(query.start.kind, "latest")


def _bar(visit: PageRequest, shown_page: EventPage) -> Html:
    same = {name: visit.query.get(name) or None for name in ("partition", "count", "until")}
    turns = (("← Older", "before", shown_page.older), ("Newer →", "after", shown_page.newer))
    links = []
    for text, kind, numbers in turns:
        to = visit.page_link(**same, from_=kind, at=format_numbers(numbers))
        links.append(el("a", text, href=to, class_="button") if numbers else None)
    stream = visit.hub_link("events", "stream")
    return el(
        "div",
        el("button", "Live tail", type="button", data_tail=stream, id="tail"),
        el("button", "Stop", type="button", id="stop", hidden=True),
        el("span", *links, id="turn", class_="row"),
        el("span", aria_live="polite", id="progress", class_="soft"),
        class_="row",
    )


def _downloads(visit: PageRequest) -> Html:
    same = {k: v for k, v in visit.query.items() if k not in ("format", "namespace")}
    links = []
    for key, label in responses.DOWNLOAD_FORMATS.items():
        to = visit.hub_link("events", "download", **{**same, "format": key})
        links.append(el("a", label, href=to, class_="button small", data_download=key))
    return el("p", "Download these events: ", *links, class_="row")


def _build_row(visit: PageRequest, event: EventView) -> dict[str, object]:
    cells: dict[str, object] = dict(zip(_HEADS, _row_texts(event), strict=True))
    return cells | {
        "Sequence": el("a", cells["Sequence"], href=_event_link(visit, event)),
        "Properties": el("span", cells["Properties"] or "–", class_="clip"),
        "Body": el("span", cells["Body"] or "–", class_="clip mono"),
    }


def _event_link(visit: PageRequest, event: EventView, *more: str, **query: object) -> str:
    number = str(event.sequence_number)
    return visit.hub_link("events", event.partition, number, *more, **query)


def _row_texts(event: EventView) -> tuple[str, ...]:
    """The texts of a row in the order of `_HEADS`; the live tail sends the same."""
    return (
        event.partition,
        str(event.sequence_number),
        _format_stored(event),
        event.partition_key or "",
        format_size(len(event.body)),
        ", ".join(f"{name}={value}" for name, value in _pairs(event, "properties")[:8])[:200],
        body_view.preview(event.read_body(_PREVIEWED_MAX)[0]),
    )


def _format_stored(event: EventView) -> str:
    return format_time(event.enqueued_ms).replace("T", " ").removesuffix("Z")


def _pairs(event: EventView, attribute: str) -> list[tuple[str, str]]:
    """Names and values of `properties` or `annotations` as text."""
    try:
        values = getattr(event, attribute)
    except PenstockError as error:
        return [("(damaged)", str(error))]
    return [(name, format_value(value)) for name, value in values.items()]


# --- one event ------------------------------------------------------------------------------------


async def event_page(visit: PageRequest) -> Response:
    event = await _read_event(visit)
    content, note = event.read_body(body_view.UNPACKED_MAX)
    view = visit.query.get("as", "")
    view = view if view in body_view.VIEWS else body_view.best_view(content)
    views = []
    for key, label in body_view.VIEWS.items():
        to = _event_link(visit, event, as_=key)
        views.append(el("a", label, href=to, aria_current=key == view and "true"))
    to = _event_link(visit, event, "body")
    download = el("a", "Download", href=to, class_="button small")
    shown_as = el("nav", *views, class_="ranges", aria_label="Shown as")
    address = str(visit.request.base_url).rstrip("/") + _event_link(visit, event)
    properties = _pairs_table(event, "properties", "It has no properties.")
    cards = (ui.card("Event", _event_facts(event)), ui.card("Properties", properties))
    return await page(
        visit,
        _neighbors(visit, event),
        el("div", *cards, class_="columns"),
        ui.card(
            "Body",
            el("p", note) if note else None,
            el("pre", body_view.format_body(content, view), class_="body-view", id="body"),
            aside=el("div", shown_as, download, class_="row"),
        ),
        ui.card("System properties", _pairs_table(event, "annotations", "None.")),
        ui.card("Link to this event", ui.code(address)),
        title=f"Event {event.partition}/{event.sequence_number}",
    )


async def _read_event(visit: PageRequest) -> EventView:
    number, partition = visit.words["number"], visit.words["partition"]
    hub = await visit.hub()
    if not (partition.isascii() and partition.isdigit() and int(partition) < hub.partition_count):
        raise NotFound(f"There is no partition '{partition[:20]}'.")
    if not (number.isascii() and number.isdigit() and len(number) < 19):
        raise NotFound(f"'{number[:40]}' is not a sequence number.")
    source = EventSource(visit.namespace, hub.name, [partition], visit.mask)
    event = await visit.portal.events.event(source, int(number))
    if event is None:
        raise NotFound(
            f"Event {number} of partition {partition} does not exist yet or is no longer retained."
        )
    return event


def _neighbors(visit: PageRequest, event: EventView) -> Html:
    sequence, partition = event.sequence_number, event.partition
    previous = visit.hub_link("events", partition, str(sequence - 1)) if sequence > 0 else None
    links = {
        "← Previous": previous,
        "Next →": visit.hub_link("events", partition, str(sequence + 1)),
        "In the list": visit.hub_link("events", partition=partition, from_="sequence", at=sequence),
    }
    shown = [el("a", text, href=to, class_="button small") for text, to in links.items() if to]
    return el("p", *shown, class_="row")


def _event_facts(event: EventView) -> Html:
    size, fields = len(event.body), dict(_pairs(event, "fields"))
    names = [n for n in ("content-type", "message-id", "correlation-id") if n in fields]
    return ui.facts(
        ("Partition", event.partition),
        ("Sequence number", event.sequence_number),
        ("Offset", event.offset),
        ("Stored (UTC)", _format_stored(event)),
        ("Partition key", event.partition_key or ""),
        ("Size", f"{format_size(size)} ({size:,} bytes)"),
        ("Body type", event.body_type),
        *((name.replace("-", " ").capitalize(), fields[name]) for name in names),
    )


def _pairs_table(event: EventView, attribute: str, empty: str) -> Html:
    pairs = _pairs(event, attribute)
    rows = [{"Name": ui.mono(name), "Value": ui.mono(value)} for name, value in pairs]
    return ui.table(rows, empty=empty)


async def event_body(visit: PageRequest) -> Response:
    event = await _read_event(visit)
    name = f"event-{event.partition}-{event.sequence_number}.bin"
    return responses.attachment(name, event.body, "application/octet-stream")


# --- streams --------------------------------------------------------------------------------------


async def stream(visit: PageRequest) -> Response:
    """Server-sent events: rows as lists of texts, which the script shows as text."""
    follow = visit.query.get("follow") == "1"
    parsed = await _parse_address(visit)
    query = None if follow else parsed.search_query
    search = visit.portal.events.stream(parsed.source, query, parsed.is_match)

    async def lines() -> AsyncGenerator[bytes, None]:
        async with aclosing(search) as steps:
            yield responses.encode_server_sent_event("begun", {})
            try:
                async for step in steps:
                    rows = [
                        [_event_link(visit, event), *map(escape_invisible, _row_texts(event))]
                        for event in step.events
                    ]
                    data = {"rows": rows, "scanned": step.scanned}
                    yield responses.encode_server_sent_event(
                        "over" if step.is_over else "rows", data
                    )
            except PenstockError as error:
                yield responses.encode_server_sent_event("failed", {"text": str(error)})

    return responses.ServerSentEvents(lines())


async def download(visit: PageRequest) -> Response:
    """The events of the page, or all matches of the search, as a file."""
    parsed = await _parse_address(visit)
    browser, source = visit.portal.events, parsed.source
    if parsed.is_match is None:
        events = (await browser.page(source, parsed.query, parsed.count)).events
    else:
        events = await browser.search(source, parsed.search_query, parsed.is_match)
    return responses.download_response(events, source.hub, visit.query.get("format", ""))
