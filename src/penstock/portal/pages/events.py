"""The events explorer: look, search, tail, open one, download."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from starlette.responses import Response

from penstock.client import EventData
from penstock.model.errors import ArgumentError, NotFound, PenstockError
from penstock.portal import bodies, downloads
from penstock.portal.components import card, code, facts, field, select, table
from penstock.portal.downloads import properties, stored_at
from penstock.portal.event_browser import EventPage, EventRow
from penstock.portal.finding import compile_search, format_value
from penstock.portal.html import Html, el, escape_invisible
from penstock.portal.layout import page
from penstock.portal.page_request import PageRequest, PageRoute
from penstock.portal.spans import COUNT_MAX, EventQuery, format_offsets, parse_span
from penstock.portal.streams import ServerSentEvents, encode_server_sent_event
from penstock.portal.texts import format_integer, format_size

_FROM = {
    "latest": "the end (the last ones)",
    "earliest": "the start",
    "sequence": "a sequence number",
    "offset": "an offset",
    "time": "a time (UTC)",
}
_COUNT = 50
_KEY = "x-opt-partition-key"
_HEADS = ("Partition", "Sequence", "Time (UTC)", "Key", "Size", "Properties", "Body")
_NOTHING = EventPage([], {}, {})


class _ExplorerQuery(msgspec.Struct, frozen=True):
    """What the address asks for."""

    partitions: list[str]
    partition: str  # empty: all
    span: EventQuery
    count: int
    find: str
    where: str

    @property
    def search_query(self) -> EventQuery:
        """A search looks at everything, unless it is told where to begin."""
        if not self.span.is_backwards:
            return self.span
        return msgspec.structs.replace(self.span, kind="earliest", value="")


async def _wish(visit: PageRequest) -> _ExplorerQuery:
    hub = await visit.backend.hub(visit.namespace, visit.hub)
    known = [str(index) for index in range(hub.partition_count)]
    partition = visit.query.get("partition", "")
    if partition and partition not in known:
        raise NotFound(f"There is no partition '{partition[:20]}': 0 to {known[-1]} are there.")
    text = visit.query.get("count", "") or str(_COUNT)
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= COUNT_MAX:
        raise ArgumentError(f"1 to {COUNT_MAX} events are shown at once.")
    return _ExplorerQuery(
        partitions=[partition] if partition else known,
        partition=partition,
        span=parse_span(
            *(visit.query.get(name, "") for name in ("from", "at", "until")),
            count=int(text),
            now_ms=visit.portal.clock.now_ms(),
        ),
        count=int(text),
        find=visit.query.get("find", ""),
        where=visit.query.get("where", ""),
    )


async def explorer(visit: PageRequest) -> Response:
    problem, found = "", _NOTHING
    hub = await visit.backend.hub(visit.namespace, visit.hub)
    try:
        wish = await _wish(visit)
        compile_search(wish.find, wish.where)
        if not wish.find and not wish.where:
            found = await visit.portal.events.page(
                visit.namespace, hub.name, wish.partitions, wish.span, wish.count, mask=visit.mask
            )
    except PenstockError as error:
        problem = str(error)
    shown = table(
        _HEADS,
        [_cells(visit, hub.name, row) for row in found.rows],
        empty="No events here.",
        numbers=(1, 4),
    )
    notice = el("div", problem, class_="flash error", role="alert") if problem else None
    return await page(
        visit,
        "Events",
        card("", _form(visit, hub.partition_count)),
        notice,
        card(
            "",
            _bar(visit, hub.name, found),
            el("div", shown, id="results", data_heads=json.dumps(_HEADS)),
            _downloads(visit, hub.name),
        ),
        active="hubs",
        hub=hub.name,
        tab="events",
    )


def _form(visit: PageRequest, partition_count: int) -> Html:
    partitions = {"": "all partitions"} | {
        str(index): f"partition {index}" for index in range(partition_count)
    }
    query = visit.query
    asked = query.get("from", "")
    chosen, at = asked or "latest", query.get("at", "")
    if chosen in ("before", "after"):  # a page on the way: the form begins anew
        chosen, at = "latest", ""
    elif chosen not in _FROM:  # the value alone, as in ?from=42
        chosen, at = _guess_start(asked), asked
    kept = [
        el("input", type="hidden", name="namespace", value=query["namespace"])
        if "namespace" in query
        else None
    ]
    return el(
        "form",
        *kept,
        select("Partition", "partition", partitions, query.get("partition", "")),
        select("From", "from", _FROM, chosen),
        field("At", "at", at, placeholder="2026-01-31T12:00, -15min", autocomplete="off"),
        field(
            "Until",
            "until",
            query.get("until", ""),
            placeholder="the end; or as At",
            autocomplete="off",
        ),
        field(
            "Find text",
            "find",
            query.get("find", ""),
            placeholder="in body, key, properties",
            autocomplete="off",
        ),
        field(
            "Where",
            "where",
            query.get("where", ""),
            placeholder="json.amount >= 30 and …",
            title="json.temperature >= 30 and key == d7",
            autocomplete="off",
        ),
        field(
            "How many",
            "count",
            query.get("count", str(_COUNT)),
            type_="number",
            min=1,
            max=COUNT_MAX,
        ),
        el("button", "Show", type="submit", class_="primary"),
        method="get",
        action=visit.link("hubs", visit.hub, "events").partition("?")[0],
        class_="form",
        id="explorer",
    )


def _guess_start(text: str) -> str:
    """What the form shows for it."""
    try:
        kind = parse_span(text, "", count=_COUNT).kind
    except PenstockError:
        return "latest"
    return kind if kind in _FROM else "latest"


def _bar(visit: PageRequest, hub: str, found: EventPage) -> Html:
    stream = visit.link("hubs", hub, "events", "stream")
    kept = {
        name: value
        for name, value in visit.query.items()
        if name in ("partition", "count", "until") and value
    }

    def turn(text: str, kind: str, places: dict[str, int]) -> Html | None:
        if not places:
            return None
        to = {**kept, "from": kind, "at": format_offsets(places)}
        return el("a", text, href=visit.link("hubs", hub, "events", **to), class_="button")

    return el(
        "div",
        el("button", "Live tail", type="button", data_tail=stream, id="tail"),
        el("button", "Stop", type="button", id="stop", hidden=True),
        el(
            "span",
            turn("← Older", "before", found.older),
            turn("Newer →", "after", found.newer),
            id="turn",
            class_="row",
        ),
        el("span", aria_live="polite", id="progress", class_="soft"),
        class_="row",
    )


def _downloads(visit: PageRequest, hub: str) -> Html:
    kept = {k: v for k, v in visit.query.items() if k not in ("format", "namespace")}
    links = [
        el(
            "a",
            label,
            href=visit.link("hubs", hub, "events", "download", **{**kept, "format": key}),
            class_="button small",
            data_download=key,
        )
        for key, label in downloads.FORMATS.items()
    ]
    return el("p", "Download these events: ", *links, class_="row")


def _cells(visit: PageRequest, hub: str, row: EventRow) -> tuple[object, ...]:
    cells = _row_cells(row)
    link = _event_link(visit, hub, row)
    return (
        cells[0],
        el("a", cells[1], href=link),
        *cells[2:5],
        el("span", cells[5] or "–", class_="clip"),
        el("span", cells[6] or "–", class_="clip mono"),
    )


def _event_link(visit: PageRequest, hub: str, row: EventRow) -> str:
    return visit.link("hubs", hub, "events", row.partition, str(row.event.sequence_number))


def _row_cells(row: EventRow) -> tuple[str, ...]:
    """A row's texts, in the order of `_HEADS`; the live tail sends the same."""
    event = row.event
    return (
        row.partition,
        str(event.sequence_number),
        stored_at(event),
        event.partition_key or "",
        format_size(len(event.body)),
        ", ".join(f"{name}={value}" for name, value in properties(event)[:8])[:200],
        bodies.preview(event),
    )


# --- one event ------------------------------------------------------------------------------------


async def event_page(visit: PageRequest) -> Response:
    hub = await visit.backend.hub(visit.namespace, visit.hub)
    row = await _one(visit)
    event = row.event
    content, note = bodies.read_body(event)
    view = visit.query.get("as", "")
    view = view if view in bodies.VIEWS else bodies.best_view(content)
    here = ("hubs", hub.name, "events", row.partition, str(event.sequence_number))
    return await page(
        visit,
        f"Event {row.partition}/{event.sequence_number}",
        _neighbours(visit, hub.name, row),
        el(
            "div",
            card("Event", _event_facts(row)),
            card("Properties", _pairs_table(properties(event), "It has no properties.")),
            class_="columns",
        ),
        card(
            "Body",
            el("p", note) if note else None,
            el("pre", bodies.format_body(content, view), class_="body-view", id="body"),
            aside=el(
                "div",
                el(
                    "nav",
                    *(
                        el(
                            "a",
                            label,
                            href=visit.link(*here, as_=key),
                            aria_current="true" if key == view else None,
                        )
                        for key, label in bodies.VIEWS.items()
                    ),
                    class_="ranges",
                    aria_label="Shown as",
                ),
                el("a", "Download", href=visit.link(*here, "body"), class_="button small"),
                class_="row",
            ),
        ),
        card("System properties", _pairs_table(_system(event), "None.")),
        card(
            "Link to this event", code(str(visit.request.base_url).rstrip("/") + visit.link(*here))
        ),
        active="hubs",
        hub=hub.name,
        tab="events",
    )


async def _one(visit: PageRequest) -> EventRow:
    number, partition = visit.words["number"], visit.words["partition"]
    hub = await visit.backend.hub(visit.namespace, visit.hub)
    if not (partition.isascii() and partition.isdigit() and int(partition) < hub.partition_count):
        raise NotFound(f"There is no partition '{partition[:20]}'.")
    if not (number.isascii() and number.isdigit() and len(number) < 19):
        raise NotFound(f"'{number[:40]}' is no sequence number.")
    row = await visit.portal.events.event(
        visit.namespace, hub.name, partition, int(number), mask=visit.mask
    )
    if row is None:
        raise NotFound(
            f"Event {number} of partition {partition} is not there: not yet, or no longer retained."
        )
    return row


def _neighbours(visit: PageRequest, hub: str, row: EventRow) -> Html:
    number = row.event.sequence_number or 0
    base = ("hubs", hub, "events", row.partition)
    around = visit.link("hubs", hub, "events", partition=row.partition, from_="sequence", at=number)
    return el(
        "p",
        el("a", "← Previous", href=visit.link(*base, str(number - 1)), class_="button small")
        if number > 0
        else None,
        el("a", "Next →", href=visit.link(*base, str(number + 1)), class_="button small"),
        el("a", "In the list", href=around, class_="button small"),
        class_="row",
    )


def _event_facts(row: EventRow) -> Html:
    event = row.event
    pairs: list[tuple[str, object]] = [
        ("Partition", row.partition),
        ("Sequence number", format_integer(event.sequence_number)),
        ("Offset", event.offset or ""),
        ("Stored (UTC)", stored_at(event)),
        ("Partition key", event.partition_key or ""),
        ("Size", f"{format_size(len(event.body))} ({format_integer(len(event.body))} bytes)"),
        ("Body type", event.body_type),
    ]
    for label, name in (
        ("Content type", "content_type"),
        ("Message id", "message_id"),
        ("Correlation id", "correlation_id"),
    ):
        value = getattr(event, name)
        if value is not None:
            pairs.append((label, format_value(value)))
    return facts(pairs)


def _system(event: EventData) -> list[tuple[str, str]]:
    try:
        found = event.system_properties
    except PenstockError as error:
        return [("(damaged)", str(error))]
    if _KEY in found:
        found[_KEY] = event.partition_key  # which may be masked
    return [(str(name), format_value(value)) for name, value in found.items()]


def _pairs_table(pairs: list[tuple[str, str]], empty: str) -> Html:
    rows = [
        (el("span", name, class_="mono"), el("span", value, class_="mono")) for name, value in pairs
    ]
    return table(("Name", "Value"), rows, empty=empty)


async def event_body(visit: PageRequest) -> Response:
    row = await _one(visit)
    name = f"event-{row.partition}-{row.event.sequence_number}.bin"
    return Response(
        row.event.body,
        media_type="application/octet-stream",
        headers=downloads.attachment_headers(name),
    )


# --- streams --------------------------------------------------------------------------------------


async def stream(visit: PageRequest) -> Response:
    """Server-sent events: rows as lists of texts, which the script shows as text."""
    hub = await visit.backend.hub(visit.namespace, visit.hub)
    follow = visit.query.get("follow") == "1"
    wish = await _wish(visit)
    wanted = compile_search(wish.find, wish.where)
    found = visit.portal.events.stream(
        visit.namespace,
        hub.name,
        wish.partitions,
        EventQuery("latest") if follow else wish.search_query,
        wanted,
        follow=follow,
        mask=visit.mask,
    )

    async def lines() -> AsyncGenerator[bytes, None]:
        async with aclosing(found) as steps:
            yield encode_server_sent_event("begun", {})
            try:
                async for step in steps:
                    shown = [
                        [_event_link(visit, hub.name, row), *map(escape_invisible, _row_cells(row))]
                        for row in step.rows
                    ]
                    data = {"rows": shown, "scanned": step.scanned}
                    yield encode_server_sent_event("over" if step.is_over else "rows", data)
            except PenstockError as error:
                yield encode_server_sent_event("failed", {"text": str(error)})

    return ServerSentEvents(lines())


async def download(visit: PageRequest) -> Response:
    """What is shown: the page, or what the search finds."""
    hub = await visit.backend.hub(visit.namespace, visit.hub)
    wish = await _wish(visit)
    wanted = compile_search(wish.find, wish.where)
    events = visit.portal.events
    where = (visit.namespace, hub.name, wish.partitions)
    if wanted is None:
        rows = (await events.page(*where, wish.span, wish.count, mask=visit.mask)).rows
    else:
        rows = await events.search(*where, wish.search_query, wanted, mask=visit.mask)
    return downloads.download_response(rows, hub.name, visit.query.get("format", ""))


ROUTES = (
    PageRoute("GET", "/hubs/{hub}/events", explorer),
    PageRoute("GET", "/hubs/{hub}/events/stream", stream),
    PageRoute("GET", "/hubs/{hub}/events/download", download),
    PageRoute("GET", "/hubs/{hub}/events/{partition}/{number}", event_page),
    PageRoute("GET", "/hubs/{hub}/events/{partition}/{number}/body", event_body),
)
