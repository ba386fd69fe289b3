"""The events explorer: a page of events, search, live tail, one event, downloads."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from starlette.responses import Response

from penstock.formats import body_view
from penstock.formats.body_view import escape_invisible
from penstock.formats.event_view import EventView
from penstock.formats.filters import compile_filter, format_value, text_filter
from penstock.formats.positions import StartKind, StartPosition
from penstock.formats.quantities import format_size, format_time
from penstock.model.errors import ArgumentError, NotFound, PenstockError
from penstock.portal import responses
from penstock.portal.event_browser import EventPage, EventSource, EventTest
from penstock.portal.event_query import COUNT_MAX, EventQuery, format_numbers, parse_query
from penstock.portal.json_view import json_lines
from penstock.portal.page_request import PageRequest
from penstock.portal.shell import page

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
_CLASSES = (
    *("num p1", "num", "nowrap", "mono clip p2", "num p1", "clip p2", "ellipsis body-cell"),
)


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


class EventRow(msgspec.Struct, frozen=True):
    """Texts in the order of `_HEADS`, and the address of the event."""

    link: str
    texts: tuple[str, ...]


async def explorer(visit: PageRequest) -> Response:
    problem, shown_page = "", EventPage([], {}, {})
    try:
        parsed = await _parse_address(visit)
        if parsed.is_match is None:
            browser = visit.portal.events
            shown_page = await browser.page(parsed.source, parsed.query, parsed.count)
    except PenstockError as error:
        problem = str(error)
    start, at = _chosen_start(visit)
    return await page(
        visit,
        "events.html",
        problem=problem,
        heads=_HEADS,
        classes=_CLASSES,
        rows=[
            EventRow(_event_link(visit, event), _row_texts(event)) for event in shown_page.events
        ],
        starts=_FROM,
        start=start,
        at=at,
        count=_COUNT,
        count_max=COUNT_MAX,
        where_example=_WHERE_EXAMPLE,
        older=_turn_link(visit, "before", shown_page.older),
        newer=_turn_link(visit, "after", shown_page.newer),
        downloads=_download_links(visit),
    )


def _chosen_start(visit: PageRequest) -> tuple[str, str]:
    """The entry of the form's list and the text beside it."""
    position = visit.query.get("from", "")
    chosen, at = position or "latest", visit.query.get("at", "")
    if chosen in ("before", "after"):  # an older or newer page: the form starts again
        return "latest", ""
    if chosen not in _FROM:  # a position alone, as in ?from=42
        return _guess_start(visit, position), position
    return chosen, at


def _guess_start(visit: PageRequest, text: str) -> str:
    """The entry of the form's list that fits a position."""
    try:
        query = parse_query(text, "", count=_COUNT, now_ms=visit.portal.clock.now_ms())
    except PenstockError:
        return "latest"
    return _KINDS.get(query.start.kind, "latest")


def _turn_link(visit: PageRequest, kind: str, numbers: dict[str, int]) -> str:
    """The address of the older or newer page; empty if there is none."""
    same = {name: visit.query.get(name) or None for name in ("partition", "count", "until")}
    return visit.page_link(**same, from_=kind, at=format_numbers(numbers)) if numbers else ""


def _download_links(visit: PageRequest) -> list[tuple[str, str, str]]:
    """Format, label and address."""
    same = {k: v for k, v in visit.query.items() if k not in ("format", "namespace")}
    return [
        (key, label, visit.hub_link("events", "download", **{**same, "format": key}))
        for key, label in responses.DOWNLOAD_FORMATS.items()
    ]


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
    text = body_view.format_body(content, view)
    return await page(
        visit,
        "event.html",
        event=event,
        facts=_event_facts(event),
        properties=_pairs(event, "properties"),
        annotations=_pairs(event, "annotations"),
        note=note,
        text=text,
        lines=json_lines(text) if view == "json" else None,
        view=view,
        views=[
            (key, label, _event_link(visit, event, as_=key))
            for key, label in body_view.VIEWS.items()
        ],
        body_link=_event_link(visit, event, "body"),
        neighbors=_neighbors(visit, event),
        address=str(visit.request.base_url).rstrip("/") + _event_link(visit, event),
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


def _neighbors(visit: PageRequest, event: EventView) -> list[tuple[str, str]]:
    sequence, partition = event.sequence_number, event.partition
    links = [
        ("Next →", visit.hub_link("events", partition, str(sequence + 1))),
        (
            "In the list",
            visit.hub_link("events", partition=partition, from_="sequence", at=sequence),
        ),
    ]
    if sequence > 0:
        links.insert(0, ("← Previous", visit.hub_link("events", partition, str(sequence - 1))))
    return links


def _event_facts(event: EventView) -> list[tuple[str, str]]:
    fields = dict(_pairs(event, "fields"))
    names = [n for n in ("content-type", "message-id", "correlation-id") if n in fields]
    return [
        ("Partition", event.partition),
        ("Sequence number", str(event.sequence_number)),
        ("Offset", event.offset),
        ("Stored (UTC)", _format_stored(event)),
        ("Partition key", event.partition_key or ""),
        ("Size", format_size(len(event.body))),
        ("Body type", event.body_type),
        *((name.replace("-", " ").capitalize(), fields[name]) for name in names),
    ]


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
