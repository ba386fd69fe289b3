"""The events explorer: look, search, tail, open one, download."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from starlette.responses import Response

from penstock.client import EventData
from penstock.model.errors import ArgumentError, NotFound, PenstockError
from penstock.portal import bodies
from penstock.portal.finding import compile_search, shown_value
from penstock.portal.html import Html, el
from penstock.portal.layout import page
from penstock.portal.parts import card, code, facts, field, select, table
from penstock.portal.reading import COUNT_MAX, Row, Start, parse_start
from penstock.portal.streams import EventStream, said
from penstock.portal.texts import size, whole
from penstock.portal.web import Route, Visit

_FROM = {
    "latest": "the end (the last ones)",
    "earliest": "the start",
    "sequence": "a sequence number",
    "offset": "an offset",
    "time": "a time (UTC)",
}
_HEADS = ("Partition", "Sequence", "Time (UTC)", "Key", "Size", "Properties", "Body")
_DOWNLOADS = {"jsonl": "JSON lines", "avro": "Avro"}


class _Wish(msgspec.Struct, frozen=True):
    """What the address asks for."""

    partitions: list[str]
    partition: str  # empty: all
    start: Start
    count: int
    find: str
    where: str


async def _wish(visit: Visit, *, count: int = 50) -> _Wish:
    hub = await visit.backend.hub(visit.namespace, visit.hub)
    known = [str(index) for index in range(hub.partition_count)]
    partition = visit.query.get("partition", "")
    if partition and partition not in known:
        raise NotFound(f"There is no partition '{partition[:20]}': 0 to {known[-1]} are there.")
    text = visit.query.get("count", "") or str(count)
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= COUNT_MAX:
        raise ArgumentError(f"1 to {COUNT_MAX} events are shown at once.")
    return _Wish(
        partitions=[partition] if partition else known,
        partition=partition,
        start=parse_start(visit.query.get("from", ""), visit.query.get("at", ""), count=int(text)),
        count=int(text),
        find=visit.query.get("find", ""),
        where=visit.query.get("where", ""),
    )


async def explorer(visit: Visit) -> Response:
    problem, rows = "", []
    hub = await visit.backend.hub(visit.namespace, visit.hub)
    try:
        wish = await _wish(visit)
        compile_search(wish.find, wish.where)
        if not wish.find and not wish.where:
            rows = await visit.portal.events.page(
                visit.namespace, hub.name, wish.partitions, wish.start, wish.count
            )
    except PenstockError as error:
        problem = str(error)
    shown = table(
        _HEADS,
        [_cells(visit, hub.name, row) for row in rows],
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
            _bar(visit, hub.name),
            el("div", shown, id="results", data_heads=json.dumps(_HEADS)),
            _downloads(visit, hub.name),
        ),
        active="hubs",
        hub=hub.name,
        tab="events",
    )


def _form(visit: Visit, partition_count: int) -> Html:
    partitions = {"": "all partitions"} | {
        str(index): f"partition {index}" for index in range(partition_count)
    }
    asked = visit.query.get("from", "")
    chosen = asked if asked in _FROM else ("latest" if not asked else "")
    if not chosen:  # the value alone, as in ?from=42
        start = parse_start(asked, "", count=50) if _parses(asked) else Start("latest")
        chosen = start.kind if start.kind in _FROM else "latest"
    at = visit.query.get("at", "") or (asked if asked not in _FROM else "")
    kept = [
        el("input", type="hidden", name="namespace", value=visit.query["namespace"])
        if "namespace" in visit.query
        else None
    ]
    return el(
        "form",
        *kept,
        select("Partition", "partition", partitions, visit.query.get("partition", "")),
        select("From", "from", _FROM, chosen),
        field("At", "at", at, placeholder="42 or 2026-01-31T12:00:00", autocomplete="off"),
        field(
            "How many",
            "count",
            visit.query.get("count", "50"),
            type_="number",
            min=1,
            max=COUNT_MAX,
        ),
        field(
            "Find text",
            "find",
            visit.query.get("find", ""),
            placeholder="in body, key, properties",
            autocomplete="off",
        ),
        field(
            "Where",
            "where",
            visit.query.get("where", ""),
            placeholder="json.temperature >= 30 and key == d7",
            autocomplete="off",
        ),
        el("button", "Show", type="submit", class_="primary"),
        method="get",
        action=visit.link("hubs", visit.hub, "events").partition("?")[0],
        class_="form",
        id="explorer",
    )


def _parses(text: str) -> bool:
    try:
        parse_start(text, "", count=1)
    except PenstockError:
        return False
    return True


def _bar(visit: Visit, hub: str) -> Html:
    stream = visit.link("hubs", hub, "events", "stream")
    return el(
        "div",
        el("button", "Live tail", type="button", data_tail=stream, id="tail"),
        el("button", "Stop", type="button", id="stop", hidden=True),
        el("span", aria_live="polite", id="progress", class_="soft"),
        class_="row",
    )


def _downloads(visit: Visit, hub: str) -> Html:
    kept = {k: v for k, v in visit.query.items() if k not in ("format", "namespace")}
    links = [
        el(
            "a",
            label,
            href=visit.link("hubs", hub, "events", "download", **{**kept, "format": key}),
            class_="button small",
        )
        for key, label in _DOWNLOADS.items()
    ]
    return el("p", "Download these events: ", *links, class_="row")


def _cells(visit: Visit, hub: str, row: Row) -> tuple[object, ...]:
    cells = _plain(row)
    link = _event_link(visit, hub, row)
    return (
        cells[0],
        el("a", cells[1], href=link),
        *cells[2:5],
        el("span", cells[5], class_="clip"),
        el("span", cells[6], class_="clip mono"),
    )


def _event_link(visit: Visit, hub: str, row: Row) -> str:
    return visit.link("hubs", hub, "events", row.partition, str(row.event.sequence_number))


def _plain(row: Row) -> tuple[str, ...]:
    """A row's texts, in the order of `_HEADS`; the live tail sends the same."""
    event = row.event
    return (
        row.partition,
        str(event.sequence_number),
        _time(event),
        event.partition_key or "",
        size(len(event.body)),
        ", ".join(f"{name}={value}" for name, value in _properties(event)[:8])[:200],
        bodies.preview(event.body),
    )


def _time(event: EventData) -> str:
    when = event.enqueued_time
    return "" if when is None else when.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _properties(event: EventData) -> list[tuple[str, str]]:
    try:
        return [(str(name), shown_value(value)) for name, value in event.properties.items()]
    except PenstockError as error:
        return [("(damaged)", str(error))]


# --- one event ------------------------------------------------------------------------------------


async def event_page(visit: Visit) -> Response:
    hub = await visit.backend.hub(visit.namespace, visit.hub)
    row = await _one(visit)
    event = row.event
    content, note = bodies.unpacked(event.body)
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
            card("Properties", _pairs(_properties(event), "It has no properties.")),
            class_="columns",
        ),
        card(
            "Body",
            el("p", note) if note else None,
            el("pre", bodies.shown(content, view), class_="body-view", id="body"),
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
        card("System properties", _pairs(_system(event), "None.")),
        card(
            "Link to this event", code(str(visit.request.base_url).rstrip("/") + visit.link(*here))
        ),
        active="hubs",
        hub=hub.name,
        tab="events",
    )


async def _one(visit: Visit) -> Row:
    number, partition = visit.words["number"], visit.words["partition"]
    hub = await visit.backend.hub(visit.namespace, visit.hub)
    if not (partition.isascii() and partition.isdigit() and int(partition) < hub.partition_count):
        raise NotFound(f"There is no partition '{partition[:20]}'.")
    if not (number.isascii() and number.isdigit() and len(number) < 19):
        raise NotFound(f"'{number[:40]}' is no sequence number.")
    row = await visit.portal.events.event(visit.namespace, hub.name, partition, int(number))
    if row is None:
        raise NotFound(
            f"Event {number} of partition {partition} is not there: not yet, or no longer retained."
        )
    return row


def _neighbours(visit: Visit, hub: str, row: Row) -> Html:
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


def _event_facts(row: Row) -> Html:
    event = row.event
    pairs: list[tuple[str, object]] = [
        ("Partition", row.partition),
        ("Sequence number", whole(event.sequence_number)),
        ("Offset", event.offset or ""),
        ("Stored (UTC)", _time(event)),
        ("Partition key", event.partition_key or ""),
        ("Size", f"{size(len(event.body))} ({whole(len(event.body))} bytes)"),
        ("Body type", event.body_type),
    ]
    for label, name in (
        ("Content type", "content_type"),
        ("Message id", "message_id"),
        ("Correlation id", "correlation_id"),
    ):
        value = getattr(event, name)
        if value is not None:
            pairs.append((label, shown_value(value)))
    return facts(pairs)


def _system(event: EventData) -> list[tuple[str, str]]:
    try:
        found = event.system_properties
    except PenstockError as error:
        return [("(damaged)", str(error))]
    return [(str(name), shown_value(value)) for name, value in found.items()]


def _pairs(pairs: list[tuple[str, str]], empty: str) -> Html:
    rows = [
        (el("span", name, class_="mono"), el("span", value, class_="mono")) for name, value in pairs
    ]
    return table(("Name", "Value"), rows, empty=empty)


async def event_body(visit: Visit) -> Response:
    row = await _one(visit)
    name = f"event-{row.partition}-{row.event.sequence_number}.bin"
    return Response(row.event.body, media_type="application/octet-stream", headers=_named(name))


# --- streams --------------------------------------------------------------------------------------


async def stream(visit: Visit) -> Response:
    """Server-sent events: rows as lists of texts, which the script shows as text."""
    hub = await visit.backend.hub(visit.namespace, visit.hub)
    follow = visit.query.get("follow") == "1"
    wish = await _wish(visit)
    wanted = compile_search(wish.find, wish.where)
    start = Start("latest") if follow else wish.start
    if not follow and visit.query.get("from", "") in ("", "latest", "end"):
        start = Start("earliest")  # a search looks at everything, unless it is told where to begin
    found = visit.portal.events.stream(
        visit.namespace, hub.name, wish.partitions, start, wanted, follow=follow
    )

    async def lines() -> AsyncGenerator[bytes, None]:
        async with aclosing(found) as steps:
            yield said("begun", {})
            try:
                async for step in steps:
                    shown = [[_event_link(visit, hub.name, row), *_plain(row)] for row in step.rows]
                    data = {"rows": shown, "scanned": step.scanned}
                    yield said("over" if step.is_over else "rows", data)
            except PenstockError as error:
                yield said("failed", {"text": str(error)})

    return EventStream(lines())


# --- downloads ------------------------------------------------------------------------------------


async def download(visit: Visit) -> Response:
    hub = await visit.backend.hub(visit.namespace, visit.hub)
    wish = await _wish(visit, count=COUNT_MAX)
    wanted = compile_search(wish.find, wish.where)
    rows = await visit.portal.events.page(
        visit.namespace, hub.name, wish.partitions, wish.start, wish.count
    )
    rows = [row for row in rows if wanted is None or wanted(row.partition, row.event)]
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in hub.name)
    if visit.query.get("format") == "avro":
        from penstock.portal.avro import container

        return Response(
            container([row.event for row in rows]),
            media_type="application/octet-stream",
            headers=_named(f"{name}.avro"),
        )
    text = "".join(json.dumps(_record(row), ensure_ascii=False) + "\n" for row in rows)
    return Response(
        text.encode("utf-8", "replace"),
        media_type="application/x-ndjson",
        headers=_named(f"{name}.jsonl"),
    )


def _record(row: Row) -> dict[str, object]:
    event = row.event
    record: dict[str, object] = {
        "partition": row.partition,
        "sequence_number": event.sequence_number,
        "offset": event.offset,
        "enqueued_time": _time(event).replace(" ", "T") + "Z",
        "partition_key": event.partition_key,
        "properties": dict(_properties(event)),
    }
    try:
        record["body"] = event.body.decode()
    except UnicodeDecodeError:
        record["body_base64"] = base64.b64encode(event.body).decode()
    return record


def _named(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{name}"'}


ROUTES = (
    Route("GET", "/hubs/{hub}/events", explorer),
    Route("GET", "/hubs/{hub}/events/stream", stream),
    Route("GET", "/hubs/{hub}/events/download", download),
    Route("GET", "/hubs/{hub}/events/{partition}/{number}", event_page),
    Route("GET", "/hubs/{hub}/events/{partition}/{number}/body", event_body),
)
