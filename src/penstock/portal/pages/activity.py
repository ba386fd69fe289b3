"""What runs: Spark jobs, connections; who did what; how the service is."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from penstock.formats.quantities import (
    format_age,
    format_count,
    format_duration,
    format_moment,
    format_size,
)
from penstock.management.client import ManagementClient
from penstock.management.permissions import AdminRole
from penstock.portal import components as ui
from penstock.portal.html import el
from penstock.portal.layout import page
from penstock.portal.page_request import ActionCompleted, PageRequest

_JOB_TONES = {"Running": "good", "Starting": "warn", "Lost": "bad", "Failed": "bad"}
_AUDIT_SHOWN = 200
_AUDIT_SEARCHED = 1000


async def jobs(visit: PageRequest) -> Response:
    found = await visit.backend.read(ManagementClient.jobs)
    now_ms = visit.portal.clock.now_ms()
    outside = {"rel": "noreferrer noopener", "target": "_blank"}
    rows = [
        {
            "Job": job["name"],
            "Kind": job["kind"],
            "State": ui.badge(job["state"], _JOB_TONES.get(job["state"], "")),
            "Rows/s": format_count(job.get("rows_per_second")),
            "Batch": format_duration(job.get("batch_seconds")),
            "Behind": format_count(job.get("lag_events")),
            "Master": job["master"],
            "More": job["ui_url"] and el("a", "Spark's pages", href=job["ui_url"], **outside),
            "Heard of": format_age(job["updated_ms"], now_ms),
            "Last error": job["last_error"],
        }
        for job in found
    ]
    running = sum(job["state"] == "Running" for job in found)
    failed = sum(job["state"] in ("Failed", "Lost") for job in found)
    rate = format_count(sum(job.get("rows_per_second") or 0 for job in found))
    tiles = ui.tiles(
        ui.tile("Running", running, tone="good" if running else ""),
        ui.tile("Failed or lost", failed, tone="bad" if failed else "good"),
        ui.tile("Rows", f"{rate}/s"),
    )
    empty = "No job has reported itself. Capture and pipelines do while they run."
    table = ui.table(rows, empty=empty, numbers=("Rows/s", "Batch", "Behind"))
    return await page(
        visit, ui.live_element("tiles", tiles), ui.card("", ui.live_element("jobs", table))
    )


async def connections(visit: PageRequest) -> Response:
    found = await visit.backend.read(ManagementClient.connections)
    own = (visit.namespace.casefold(), "")
    here = [each for each in found if each["namespace"].casefold() in own]
    rows = [_connection(visit, each) for each in here]
    numbers = ("Open for", "Events in", "Events out", "In", "Out")
    table = ui.table(rows, empty="There are no connections.", numbers=numbers)
    tiles = ui.tiles(
        ui.tile("Connections", len(here)),
        ui.tile("Sending", sum(_has(each, "send") for each in here)),
        ui.tile("Receiving", sum(_has(each, "receive") for each in here)),
    )
    return await page(
        visit, ui.live_element("tiles", tiles), ui.card("", ui.live_element("connections", table))
    )


def _has(connection: dict[str, Any], role: str) -> bool:
    return any(link["role"] == role for link in connection["hub_links"])


def _connection(visit: PageRequest, connection: dict[str, Any]) -> dict[str, object]:
    links = [_format_link(link) for link in connection["hub_links"] if visit.sees(link["hub"])]
    close: object = ""
    if visit.may(AdminRole.OPERATOR):
        to = visit.link("connections", connection["id"], "close")
        close = ui.action_button(visit, to, "Close", back=visit.link("connections"))
    return {
        "Client": el("span", connection["peer"], el("br"), el("small", connection["container_id"])),
        "Program": connection["user_agent"],
        "Links": el("span", *(el("div", text) for text in links[:8]), "…" if links[8:] else None),
        "Open for": format_duration(connection["age_seconds"]),
        "Events in": connection["events_in"],
        "Events out": connection["events_out"],
        "In": format_size(connection["bytes_in"]),
        "Out": format_size(connection["bytes_out"]),
        "": close,
    }


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
    rows = [
        {
            "When (UTC)": format_moment(entry["at_ms"]),
            "Who": entry["who"],
            "What": entry["what"],
            "Detail": entry["detail"],
        }
        for entry in await visit.act(lambda client: client.audit(newest=newest))
        if wanted in f"{entry['who']} {entry['what']} {entry['detail']}".casefold()
    ]
    card = ui.card("", ui.table(rows, empty="Nothing yet."))
    return await page(visit, card, aside=ui.find_form(visit, "/audit"))


async def health(visit: PageRequest) -> Response:
    found = await visit.backend.health()
    parts = [
        {"Part": part, "State": ui.badge(state, "good" if state in ("ok", "off") else "warn")}
        for part, state in found.checks.items()
    ]
    warnings = [{"What": text} for text in found.warnings]
    tiles = ui.tiles(
        ui.tile("Service", found.status, tone="good" if found.status == "ready" else "bad"),
        ui.tile("Answered in", f"{found.took_ms} ms"),
        ui.tile("Warnings", len(warnings), tone="warn" if warnings else "good"),
    )
    parts_table = ui.table(parts, empty="None.")
    warnings_table = ui.table(warnings, empty="None: all is well.")
    url = visit.portal.settings.admin_url.rstrip("/")
    metrics = el("code", f"{url}/metrics")
    probes = (el("code", f"{url}/health"), " and ", el("code", f"{url}/ready"))
    return await page(
        visit,
        ui.live_element("tiles", tiles),
        ui.card("Parts", ui.live_element("parts", parts_table)),
        ui.card("Warnings", ui.live_element("warnings", warnings_table)),
        ui.card("Metrics", el("p", "Prometheus reads ", metrics, "; probes read ", *probes, ".")),
    )
