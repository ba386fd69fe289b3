"""Throughput units: how many, how well they are used, what was refused, and what it costs."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from starlette.responses import Response

from penstock.formats.quantities import (
    format_count,
    format_integer,
    format_moment,
    format_plural,
    format_size,
)
from penstock.management.client import NamespaceResource
from penstock.model import limits
from penstock.model.errors import ArgumentError
from penstock.model.quotas import UNITS_TEXT
from penstock.model.usage import PriceList, Usage
from penstock.portal.components import (
    card,
    chart,
    check,
    field,
    form,
    history,
    live_element,
    per_second,
    ranges,
    select,
    submit,
    table,
    tile,
    tiles,
)
from penstock.portal.html import Html, el
from penstock.portal.layout import page
from penstock.portal.page_request import ActionCompleted, PageRequest, PageRoute
from penstock.portal.pages.overview import lately, rate
from penstock.portal.users import PortalRole

_KINDS = {"throughput-units": "throughput units", "partitions": "partitions of an event hub"}
_HOUR_MS = 3_600_000
_HOURS_A_MONTH = 730  # as Azure reckons
_HOURS_SHOWN = 48
_CHARTED = (
    "incoming_bytes",
    "incoming_messages",
    "outgoing_bytes",
    "throttled_requests",
    "throughput_units",
)


async def scale(visit: PageRequest) -> Response:
    namespace = await _current_namespace(visit)
    now = await lately(visit, None)
    series = await history(visit, None, _CHARTED)
    now_ms = visit.portal.clock.now_ms()
    usage = await visit.backend.get_shared(
        "usage",
        lambda client: client.usage(since_ms=now_ms - 31 * 24 * _HOUR_MS),
        ttl_ms=20_000,
    )
    mine = [row for row in usage if row["namespace"].casefold() == namespace.name.casefold()]
    return await page(
        visit,
        "Scale",
        live_element("usage", _tiles(namespace, now)),
        _units_form(visit, namespace) if visit.may(PortalRole.OPERATOR) else None,
        live_element("charts", _charts(namespace, series), tag="section"),
        card("Bill", live_element("bill", *_bill(visit, mine))),
        card("Ledger, the last hours (UTC)", live_element("ledger", _ledger(visit, mine))),
        await _grants(visit),
        active="scale",
        aside=ranges(visit, "scale"),
    )


async def _current_namespace(visit: PageRequest) -> NamespaceResource:
    found = await visit.backend.namespaces()
    return next(each for each in found if each.name == visit.namespace)


def _tiles(namespace: NamespaceResource, now: dict[str, Any]) -> Html:
    units = namespace.capacity
    throttled = sum(value or 0 for value in now["values"].get("throttled_requests", []))
    bounds = (
        ("In", rate(now, "incoming_bytes"), units * limits.UNIT_INGRESS_BYTES_PER_S, format_size),
        (
            "Events in",
            rate(now, "incoming_messages"),
            units * limits.UNIT_INGRESS_EVENTS_PER_S,
            format_count,
        ),
        ("Out", rate(now, "outgoing_bytes"), units * limits.UNIT_EGRESS_BYTES_PER_S, format_size),
    )
    made = [
        tile(
            "Units",
            "unlimited" if namespace.unlimited else format_integer(units),
            "counted, not enforced" if namespace.unlimited else namespace.sku.name,
        )
    ]
    for label, used, bound, text in bounds:
        if namespace.unlimited:
            made.append(
                tile(label, f"{text(used)}/s", f"{_units_needed(used, bound, units)} units' worth")
            )
            continue
        share = 0.0 if used is None else 100 * used / bound
        made.append(
            tile(
                label,
                f"{share:.0f} %",
                f"{text(used)}/s of {text(bound)}/s",
                tone="bad" if share >= 95 else "warn" if share >= 75 else "good",
            )
        )
    made.append(
        tile(
            "Throttled",
            format_integer(throttled),
            "in the last minute",
            tone="bad" if throttled else "good",
        )
    )
    return tiles(*made)


def _units_needed(used: float | None, bound: int, units: int) -> str:
    return "0" if not used else f"{used / (bound / units):.1f}"


def _units_form(visit: PageRequest, namespace: NamespaceResource) -> Html:
    most = max(limits.THROUGHPUT_UNITS_MAX, namespace.capacity)
    value = visit.form_value("units", min(namespace.capacity, most))
    return card(
        "Throughput units",
        form(
            visit,
            visit.link("scale"),
            el(
                "div",
                el("label", "Units ", el("strong", value, data_shows="f-units"), for_="f-units"),
                el(
                    "input",
                    id="f-units",
                    name="units",
                    type="range",
                    min=1,
                    max=limits.THROUGHPUT_UNITS_MAX,
                    value=value,
                ),
                el("small", "each 1 MB/s or 1000 events/s in, and 2 MB/s out"),
                class_="field",
            ),
            field(
                "Or exactly",
                "exact_units",
                visit.form_value("exact_units"),
                type_="number",
                min=1,
                help_=UNITS_TEXT + "; beyond 20 a grant is needed",
            ),
            field(
                "Auto-inflate up to",
                "maximum",
                visit.form_value("maximum", namespace.maximum_units),
                type_="number",
                min=0,
                help_="0: off. Units are raised when they are used up, and never lowered.",
            ),
            check("Unlimited", "unlimited", namespace.unlimited, help_="counted, not enforced"),
            submit("Save"),
        ),
    )


def _charts(namespace: NamespaceResource, series: dict[str, Any]) -> Html:
    values, at_ms, step_ms = series["values"], series["at_ms"], series["step_ms"]
    held = values.get("throughput_units", [])

    def bound(each: int) -> dict[str, list[float | None]]:
        if all(number is None for number in held):
            return {}
        return {"limit": [None if number is None else number * each for number in held]}

    return el(
        "div",
        chart(
            "Bytes in",
            at_ms,
            {"in": per_second(series, "incoming_bytes")} | bound(limits.UNIT_INGRESS_BYTES_PER_S),
            unit="a second",
            step_ms=step_ms,
            bytes_=True,
        ),
        chart(
            "Events in",
            at_ms,
            {"in": per_second(series, "incoming_messages")}
            | bound(limits.UNIT_INGRESS_EVENTS_PER_S),
            unit="a second",
            step_ms=step_ms,
        ),
        chart(
            "Bytes out",
            at_ms,
            {"out": per_second(series, "outgoing_bytes")} | bound(limits.UNIT_EGRESS_BYTES_PER_S),
            unit="a second",
            step_ms=step_ms,
            bytes_=True,
        ),
        chart(
            "Throttled requests",
            at_ms,
            {"throttled": values["throttled_requests"]},
            unit="in each step",
            step_ms=step_ms,
        ),
        class_="columns",
    )


# --- the bill -------------------------------------------------------------------------------------


def cost(visit: PageRequest, row: dict[str, Any]) -> Decimal:
    """The cost of one hour, by the configured price list."""
    prices = visit.portal.settings.prices or PriceList()
    usage = {name: row[name] for name in Usage.__struct_fields__ if name in row}
    return prices.cost(Usage(**usage))


def _bill(visit: PageRequest, usage: list[dict[str, Any]]) -> list[Html]:
    now = datetime.fromtimestamp(visit.portal.clock.now_ms() / 1000, UTC)
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    month_ms = int(month.timestamp() * 1000)
    rows = [row for row in usage if row["hour_ms"] >= month_ms]
    unit_hours = sum(row["units"] for row in rows)
    events = sum(row["ingress_events"] for row in rows)
    recent = sorted(rows, key=lambda row: int(row["hour_ms"]))[-24:]
    hourly = sum((cost(visit, row) for row in recent), Decimal(0)) / max(1, len(recent))
    so_far = sum((cost(visit, row) for row in rows), Decimal(0))
    units_now = recent[-1]["units"] if recent else 1
    made = [
        tile(
            "Unit hours this month",
            format_integer(unit_hours),
            f"in {format_plural(len(rows), 'hour')}",
        ),
        tile("Events this month", format_count(events), "in steps of 64 KB"),
        tile(
            "Unit hours, forecast",
            format_integer(units_now * _HOURS_A_MONTH),
            f"a month, at {format_plural(units_now, 'unit')}",
        ),
    ]
    prices = visit.portal.settings.prices
    note = el(
        "p",
        "Prices are not configured: a [prices] table of the configuration turns this into money.",
        class_="empty",
    )
    if prices is not None:
        currency = prices.currency
        made += [
            tile("Cost this month", _money(so_far, currency), "so far"),
            tile(
                "Cost, forecast",
                _money(hourly * _HOURS_A_MONTH, currency),
                "a month, like the last 24 hours",
            ),
        ]
        note = el("p", "By the price list of the configuration.", class_="empty")
    return [tiles(*made), note]


def _money(amount: Decimal, currency: str) -> str:
    return f"{amount:.2f} {currency}".strip()


def _ledger(visit: PageRequest, usage: list[dict[str, Any]]) -> Html:
    hours: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in usage:
        hours[row["hour_ms"]].append(row)
    rows = []
    for hour_ms in sorted(hours, reverse=True)[:_HOURS_SHOWN]:
        of_hour = hours[hour_ms]
        rows.append(
            (
                format_moment(hour_ms)[:16],
                format_integer(max(row["units"] for row in of_hour)),
                format_integer(sum(row["ingress_events"] for row in of_hour)),
                format_size(sum(row["ingress_bytes"] for row in of_hour)),
                format_size(sum(row["egress_bytes"] for row in of_hour)),
                format_integer(sum(row["capture_hours"] for row in of_hour)),
            )
        )
    heads = ("Hour", "Units", "Events in", "In", "Out", "Capture hours")
    return table(heads, rows, empty="Nothing was metered yet.", numbers=(1, 2, 3, 4, 5))


# --- grants ---------------------------------------------------------------------------------------


async def _grants(visit: PageRequest) -> Html:
    namespace = visit.namespace
    found = await visit.backend.get_shared(
        ("grants", namespace), lambda client: client.grants(namespace), ttl_ms=10_000
    )
    rows = []
    for each in found:
        withdraw = (
            form(
                visit,
                visit.link("scale", "withdraw"),
                el("input", type="hidden", name="kind", value=each["kind"]),
                el("button", "Withdraw", type="submit", class_="danger small"),
                class_="inline",
            )
            if visit.may(PortalRole.ADMIN)
            else ""
        )
        rows.append(
            (
                _KINDS.get(each["kind"], each["kind"]),
                format_integer(each["value"]),
                each["granted_by"],
                format_moment(each["granted_ms"]),
                each.get("note", ""),
                withdraw,
            )
        )
    heads = ("What", "Up to", "By", "When (UTC)", "Note", "")
    grant_form = (
        form(
            visit,
            visit.link("scale", "grant"),
            select("What", "kind", _KINDS, visit.form_value("kind")),
            field(
                "Up to", "value", visit.form_value("value"), type_="number", min=1, required=True
            ),
            field(
                "Reason",
                "note",
                visit.form_value("note"),
                maxlength=limits.GRANT_NOTE_MAX,
                required=True,
            ),
            submit("Grant"),
        )
        if visit.may(PortalRole.ADMIN)
        else None
    )
    return card(
        "Grants beyond the common limits",
        table(heads, rows, empty="None was given.", numbers=(1,)),
        grant_form,
    )


# --- acts -----------------------------------------------------------------------------------------


async def save(visit: PageRequest) -> Response:
    values = visit.form
    unlimited = values.get("unlimited") == "yes"
    units = parse_form_integer(values.get("exact_units") or values.get("units", ""), "Units")
    maximum = parse_form_integer(values.get("maximum") or "0", "Auto-inflate")
    await visit.backend.act(
        visit.session,
        lambda client: client.put_namespace(
            visit.namespace,
            units=None if unlimited else units,
            unlimited=unlimited,
            maximum_units=maximum,
        ),
    )
    text = "unlimited" if unlimited else f"{units}"
    raise ActionCompleted(visit.link("scale"), f"The namespace has {text} throughput units now.")


async def grant(visit: PageRequest) -> Response:
    values = visit.form
    kind, value = values.get("kind", ""), parse_form_integer(values.get("value", ""), "Up to")
    if not values.get("note", "").strip():
        raise ArgumentError("A grant needs a reason.")
    await visit.backend.act(
        visit.session,
        lambda client: client.grant(visit.namespace, kind, value, note=values.get("note", "")),
    )
    raise ActionCompleted(visit.link("scale"), f"Granted: up to {value} {_KINDS.get(kind, kind)}.")


async def withdraw(visit: PageRequest) -> Response:
    kind = visit.form.get("kind", "")
    await visit.backend.act(visit.session, lambda client: client.withdraw(visit.namespace, kind))
    raise ActionCompleted(visit.link("scale"), "The grant is withdrawn.")


def parse_form_integer(text: str, what: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ArgumentError(f"{what}: '{text[:20]}' is no whole number.")
    return int(text)


ROUTES = (
    PageRoute("GET", "/scale", scale),
    PageRoute("POST", "/scale", save, PortalRole.OPERATOR),
    PageRoute("POST", "/scale/grant", grant, PortalRole.ADMIN),
    PageRoute("POST", "/scale/withdraw", withdraw, PortalRole.ADMIN),
)
