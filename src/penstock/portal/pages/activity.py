"""What runs: Spark jobs, connections; who did what; how the service is."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from penstock.formats.quantities import (
    format_age,
    format_count,
    format_duration,
    format_integer,
    format_moment,
    format_size,
)
from penstock.portal.components import badge, card, form, live_element, submit, table, tile, tiles
from penstock.portal.html import Html, el
from penstock.portal.layout import page
from penstock.portal.page_request import ActionCompleted, PageRequest, PageRoute
from penstock.portal.users import PortalRole

_JOB_TONES = {"Running": "good", "Starting": "warn", "Lost": "bad", "Failed": "bad"}
_AUDIT_SHOWN = 200
_AUDIT_SEARCHED = 1000


async def jobs(visit: PageRequest) -> Response:
    found = await visit.backend.get_shared("jobs", lambda client: client.jobs())
    now_ms = visit.portal.clock.now_ms()
    rows = [
        (
            each["name"],
            each["kind"],
            badge(each["state"], _JOB_TONES.get(each["state"], "")),
            format_count(each.get("rows_per_second")),
            format_duration(each.get("batch_seconds")),
            format_count(each.get("lag_events")),
            each["master"],
            el(
                "a",
                "Spark's pages",
                href=each["ui_url"],
                rel="noreferrer noopener",
                target="_blank",
            )
            if each["ui_url"]
            else "",
            format_age(each["updated_ms"], now_ms),
            each["last_error"],
        )
        for each in found
    ]
    heads = (
        "Job", "Kind", "State", "Rows/s", "Batch", "Behind", "Master", "More", "Heard of",
        "Last error",
    )  # fmt: skip
    running = sum(each["state"] == "Running" for each in found)
    failed = sum(each["state"] in ("Failed", "Lost") for each in found)
    head = tiles(
        tile("Running", format_integer(running), tone="good" if running else ""),
        tile("Failed or lost", format_integer(failed), tone="bad" if failed else "good"),
        tile("Rows", f"{format_count(sum(each.get('rows_per_second') or 0 for each in found))}/s"),
    )
    empty = "No job has reported itself. Capture and pipelines do while they run."
    return await page(
        visit,
        "Spark jobs",
        live_element("tiles", head),
        card("", live_element("jobs", table(heads, rows, empty=empty, numbers=(3, 4, 5)))),
        active="jobs",
    )


async def connections(visit: PageRequest) -> Response:
    found = await visit.backend.get_shared("connections", lambda client: client.connections())
    here = [
        each
        for each in found
        if each["namespace"].casefold() == visit.namespace.casefold() or not each["namespace"]
    ]
    rows = [_connection(visit, each) for each in here]
    heads = ("Client", "Program", "Links", "Open for", "Events in", "Events out", "In", "Out", "")
    shown = table(heads, rows, empty="Nobody is connected.", numbers=(3, 4, 5, 6, 7))
    head = tiles(
        tile("Connections", format_integer(len(here))),
        tile("Sending", format_integer(sum(_has(each, "send") for each in here))),
        tile("Receiving", format_integer(sum(_has(each, "receive") for each in here))),
    )
    return await page(
        visit,
        "Connections",
        live_element("tiles", head),
        card("", live_element("connections", shown)),
        active="connections",
    )


def _has(connection: dict[str, Any], role: str) -> bool:
    return any(link["role"] == role for link in connection["hub_links"])


def _connection(visit: PageRequest, each: dict[str, Any]) -> tuple[object, ...]:
    links = [
        " ".join(
            part
            for part in (
                link["role"],
                link["hub"],
                link.get("group") or "",
                f"#{link['partition']}" if link.get("partition") is not None else "",
                link.get("publisher") or "",
            )
            if part
        )
        for link in each["hub_links"]
        if visit.sees(link["hub"])
    ]
    close = (
        form(
            visit,
            visit.link("connections", each["id"], "close"),
            el("button", "Close", type="submit", class_="danger small"),
            class_="inline",
            back=visit.link("connections"),
        )
        if visit.may(PortalRole.OPERATOR)
        else ""
    )
    return (
        el("span", each["peer"], el("br"), el("small", each["container_id"])),
        each["user_agent"],
        el("span", *(el("div", text) for text in links[:8]), "…" if len(links) > 8 else None),
        format_duration(each["age_seconds"]),
        format_integer(each["events_in"]),
        format_integer(each["events_out"]),
        format_size(each["bytes_in"]),
        format_size(each["bytes_out"]),
        close,
    )


async def close_connection(visit: PageRequest) -> Response:
    ident = visit.words["connection"]
    await visit.backend.act(visit.session, lambda client: client.kill_connection(ident))
    raise ActionCompleted(
        visit.link("connections"), "The connection is closed; its client may come back."
    )


async def audit(visit: PageRequest) -> Response:
    wanted = visit.query.get("find", "").casefold()
    newest = _AUDIT_SEARCHED if wanted else _AUDIT_SHOWN
    found = await visit.backend.ask(visit.session, lambda client: client.audit(newest=newest))
    rows = [
        (format_moment(each["at_ms"]), each["who"], each["what"], each["detail"])
        for each in found
        if not wanted or wanted in f"{each['who']} {each['what']} {each['detail']}".casefold()
    ]
    find = el(
        "form",
        el("label", "Find", for_="f-find", class_="visually-hidden"),
        el(
            "input", id="f-find", name="find", value=visit.query.get("find", ""), placeholder="Find"
        ),
        submit("Find"),
        method="get",
        action="/audit",
        class_="inline",
    )
    return await page(
        visit,
        "Audit log",
        card("", table(("When (UTC)", "Who", "What", "Detail"), rows, empty="Nothing yet.")),
        active="audit",
        aside=find,
    )


async def health(visit: PageRequest) -> Response:
    found = await visit.backend.health()
    rows = [
        (part, badge(state, "good" if state in ("ok", "off") else "warn"))
        for part, state in found.checks.items()
    ]
    fine = found.status == "ready"
    head = tiles(
        tile("Service", found.status, tone="good" if fine else "bad"),
        tile("Answered in", f"{found.took_ms} ms"),
        tile(
            "Warnings",
            format_integer(len(found.warnings)),
            tone="warn" if found.warnings else "good",
        ),
    )
    notes = [(text,) for text in found.warnings]
    return await page(
        visit,
        "Health",
        live_element("tiles", head),
        card("Parts", live_element("parts", table(("Part", "State"), rows, empty="None."))),
        card(
            "Warnings",
            live_element("warnings", table(("What",), notes, empty="None: all is well.")),
        ),
        card("Metrics", _metrics_help(visit)),
        active="health",
    )


def _metrics_help(visit: PageRequest) -> Html:
    url = visit.portal.settings.admin_url.rstrip("/")
    return el(
        "p",
        "Prometheus reads ",
        el("code", f"{url}/metrics"),
        "; probes read ",
        el("code", f"{url}/health"),
        " and ",
        el("code", f"{url}/ready"),
        ".",
    )


ROUTES = (
    PageRoute("GET", "/jobs", jobs),
    PageRoute("GET", "/connections", connections),
    PageRoute("POST", "/connections/{connection}/close", close_connection, PortalRole.OPERATOR),
    PageRoute("GET", "/audit", audit, PortalRole.OPERATOR),
    PageRoute("GET", "/health", health),
)
