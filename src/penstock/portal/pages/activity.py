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
from penstock.portal import components as ui
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
            ui.badge(each["state"], _JOB_TONES.get(each["state"], "")),
            format_count(each.get("rows_per_second")),
            format_duration(each.get("batch_seconds")),
            format_count(each.get("lag_events")),
            each["master"],
            _spark_link(each["ui_url"]),
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
    head = ui.tiles(
        ui.tile("Running", format_integer(running), tone="good" if running else ""),
        ui.tile("Failed or lost", format_integer(failed), tone="bad" if failed else "good"),
        ui.tile(
            "Rows", f"{format_count(sum(each.get('rows_per_second') or 0 for each in found))}/s"
        ),
    )
    empty = "No job has reported itself. Capture and pipelines do while they run."
    return await page(
        visit,
        "Spark jobs",
        ui.live_element("tiles", head),
        ui.card("", ui.live_element("jobs", ui.table(heads, rows, empty=empty, numbers=(3, 4, 5)))),
        active="jobs",
    )


def _spark_link(url: str) -> Html | str:
    attributes = {"rel": "noreferrer noopener", "target": "_blank"}
    return el("a", "Spark's pages", href=url, **attributes) if url else ""


async def connections(visit: PageRequest) -> Response:
    found = await visit.backend.get_shared("connections", lambda client: client.connections())
    here = [
        each
        for each in found
        if each["namespace"].casefold() == visit.namespace.casefold() or not each["namespace"]
    ]
    rows = [_connection(visit, each) for each in here]
    heads = ("Client", "Program", "Links", "Open for", "Events in", "Events out", "In", "Out", "")
    shown = ui.table(heads, rows, empty="There are no connections.", numbers=(3, 4, 5, 6, 7))
    head = ui.tiles(
        ui.tile("Connections", format_integer(len(here))),
        ui.tile("Sending", format_integer(sum(_has(each, "send") for each in here))),
        ui.tile("Receiving", format_integer(sum(_has(each, "receive") for each in here))),
    )
    return await page(
        visit,
        "Connections",
        ui.live_element("tiles", head),
        ui.card("", ui.live_element("connections", shown)),
        active="connections",
    )


def _has(connection: dict[str, Any], role: str) -> bool:
    return any(link["role"] == role for link in connection["hub_links"])


def _connection(visit: PageRequest, each: dict[str, Any]) -> tuple[object, ...]:
    links = [_format_link(link) for link in each["hub_links"] if visit.sees(link["hub"])]
    close: object = ""
    if visit.may(PortalRole.OPERATOR):
        to = visit.link("connections", each["id"], "close")
        close = ui.action_button(visit, to, "Close", back=visit.link("connections"))
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


def _format_link(link: dict[str, Any]) -> str:
    partition = link.get("partition")
    number = None if partition is None else f"#{partition}"
    parts = (link["role"], link["hub"], link.get("group"), number, link.get("publisher"))
    return " ".join(filter(None, parts))


async def close_connection(visit: PageRequest) -> Response:
    await visit.act(lambda client: client.kill_connection(visit.words["connection"]))
    text = "The connection is closed; its client may come back."
    raise ActionCompleted(visit.link("connections"), text)


async def audit(visit: PageRequest) -> Response:
    wanted = visit.query.get("find", "").casefold()
    newest = _AUDIT_SEARCHED if wanted else _AUDIT_SHOWN
    found = await visit.backend.ask(visit.session, lambda client: client.audit(newest=newest))
    rows = [
        (format_moment(each["at_ms"]), each["who"], each["what"], each["detail"])
        for each in found
        if not wanted or wanted in f"{each['who']} {each['what']} {each['detail']}".casefold()
    ]
    return await page(
        visit,
        "Audit log",
        ui.card("", ui.table(("When (UTC)", "Who", "What", "Detail"), rows, empty="Nothing yet.")),
        active="audit",
        aside=ui.find_form(visit, "/audit"),
    )


async def health(visit: PageRequest) -> Response:
    found = await visit.backend.health()
    rows = [
        (part, ui.badge(state, "good" if state in ("ok", "off") else "warn"))
        for part, state in found.checks.items()
    ]
    fine, notes = found.status == "ready", [(text,) for text in found.warnings]
    head = ui.tiles(
        ui.tile("Service", found.status, tone="good" if fine else "bad"),
        ui.tile("Answered in", f"{found.took_ms} ms"),
        ui.tile("Warnings", format_integer(len(notes)), tone="warn" if notes else "good"),
    )
    fine_text = "None: all is well."
    url = visit.portal.settings.admin_url.rstrip("/")
    metrics = el("code", f"{url}/metrics")
    probes = (el("code", f"{url}/health"), " and ", el("code", f"{url}/ready"))
    return await page(
        visit,
        "Health",
        ui.live_element("tiles", head),
        ui.card(
            "Parts", ui.live_element("parts", ui.table(("Part", "State"), rows, empty="None."))
        ),
        ui.card(
            "Warnings", ui.live_element("warnings", ui.table(("What",), notes, empty=fine_text))
        ),
        ui.card("Metrics", el("p", "Prometheus reads ", metrics, "; probes read ", *probes, ".")),
        active="health",
    )


ROUTES = (
    PageRoute("GET", "/jobs", jobs),
    PageRoute("GET", "/connections", connections),
    PageRoute("POST", "/connections/{connection}/close", close_connection, PortalRole.OPERATOR),
    PageRoute("GET", "/audit", audit, PortalRole.OPERATOR),
    PageRoute("GET", "/health", health),
)
