"""What runs: Spark jobs, connections; who did what; how the service is."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from penstock.portal.application import Done, Route, Visit
from penstock.portal.components import badge, card, form, live, submit, table, tile, tiles
from penstock.portal.html import Html, el
from penstock.portal.layout import page
from penstock.portal.texts import ago, count, moment, seconds, size, whole
from penstock.portal.users import Role

_JOB_TONES = {"Running": "good", "Starting": "warn", "Lost": "bad", "Failed": "bad"}
_AUDIT_SHOWN = 200
_AUDIT_SEARCHED = 1000


async def jobs(visit: Visit) -> Response:
    found = await visit.backend.shared("jobs", lambda client: client.jobs())
    now_ms = visit.portal.clock.now_ms()
    rows = [
        (
            each["name"],
            each["kind"],
            badge(each["state"], _JOB_TONES.get(each["state"], "")),
            count(each.get("rows_per_second")),
            seconds(each.get("batch_seconds")),
            count(each.get("lag_events")),
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
            ago(each["updated_ms"], now_ms),
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
        tile("Running", whole(running), tone="good" if running else ""),
        tile("Failed or lost", whole(failed), tone="bad" if failed else "good"),
        tile("Rows", f"{count(sum(each.get('rows_per_second') or 0 for each in found))}/s"),
    )
    empty = "No job has reported itself. Capture and pipelines do while they run."
    return await page(
        visit,
        "Spark jobs",
        live("tiles", head),
        card("", live("jobs", table(heads, rows, empty=empty, numbers=(3, 4, 5)))),
        active="jobs",
    )


async def connections(visit: Visit) -> Response:
    found = await visit.backend.shared("connections", lambda client: client.connections())
    here = [
        each
        for each in found
        if each["namespace"].casefold() == visit.namespace.casefold() or not each["namespace"]
    ]
    rows = [_connection(visit, each) for each in here]
    heads = ("Client", "Program", "Links", "Open for", "Events in", "Events out", "In", "Out", "")
    shown = table(heads, rows, empty="Nobody is connected.", numbers=(3, 4, 5, 6, 7))
    head = tiles(
        tile("Connections", whole(len(here))),
        tile("Sending", whole(sum(_has(each, "send") for each in here))),
        tile("Receiving", whole(sum(_has(each, "receive") for each in here))),
    )
    return await page(
        visit,
        "Connections",
        live("tiles", head),
        card("", live("connections", shown)),
        active="connections",
    )


def _has(connection: dict[str, Any], role: str) -> bool:
    return any(link["role"] == role for link in connection["hub_links"])


def _connection(visit: Visit, each: dict[str, Any]) -> tuple[object, ...]:
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
        if visit.may(Role.OPERATOR)
        else ""
    )
    return (
        el("span", each["peer"], el("br"), el("small", each["container_id"])),
        each["user_agent"],
        el("span", *(el("div", text) for text in links[:8]), "…" if len(links) > 8 else None),
        seconds(each["age_seconds"]),
        whole(each["events_in"]),
        whole(each["events_out"]),
        size(each["bytes_in"]),
        size(each["bytes_out"]),
        close,
    )


async def close_connection(visit: Visit) -> Response:
    ident = visit.words["connection"]
    await visit.backend.act(visit.session, lambda client: client.kill_connection(ident))
    raise Done(visit.link("connections"), "The connection is closed; its client may come back.")


async def audit(visit: Visit) -> Response:
    wanted = visit.query.get("find", "").casefold()
    newest = _AUDIT_SEARCHED if wanted else _AUDIT_SHOWN
    found = await visit.backend.ask(visit.session, lambda client: client.audit(newest=newest))
    rows = [
        (moment(each["at_ms"]), each["who"], each["what"], each["detail"])
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


async def health(visit: Visit) -> Response:
    found = await visit.backend.health()
    rows = [
        (part, badge(state, "good" if state in ("ok", "off") else "warn"))
        for part, state in found.checks.items()
    ]
    fine = found.status == "ready"
    head = tiles(
        tile("Service", found.status, tone="good" if fine else "bad"),
        tile("Answered in", f"{found.took_ms} ms"),
        tile("Warnings", whole(len(found.warnings)), tone="warn" if found.warnings else "good"),
    )
    notes = [(text,) for text in found.warnings]
    return await page(
        visit,
        "Health",
        live("tiles", head),
        card("Parts", live("parts", table(("Part", "State"), rows, empty="None."))),
        card("Warnings", live("warnings", table(("What",), notes, empty="None: all is well."))),
        card("Metrics", _metrics_help(visit)),
        active="health",
    )


def _metrics_help(visit: Visit) -> Html:
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
    Route("GET", "/jobs", jobs),
    Route("GET", "/connections", connections),
    Route("POST", "/connections/{connection}/close", close_connection, Role.OPERATOR),
    Route("GET", "/audit", audit, Role.OPERATOR),
    Route("GET", "/health", health),
)
