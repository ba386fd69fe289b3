"""Throughput units: how many, how well they are used, what was refused, and what it costs."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
from starlette.responses import Response

from penstock.formats.quantities import format_count, format_moment, format_plural, format_size
from penstock.management.client import ManagementClient
from penstock.management.permissions import AdminRole
from penstock.management.resources import NamespaceResource
from penstock.model import limits
from penstock.model.errors import ArgumentError
from penstock.model.quotas import UNITS_TEXT
from penstock.model.usage import HOUR_MS, PriceList, Usage, hour_of
from penstock.portal import components as ui
from penstock.portal.html import Html, el
from penstock.portal.layout import page
from penstock.portal.page_request import ActionCompleted, PageRequest
from penstock.portal.pages.overview import current_namespace, lately, rate, throttled_tile

_KINDS = {"throughput-units": "throughput units", "partitions": "partitions of an event hub"}
_HOURS_A_MONTH = 730  # as Azure reckons
_HOURS_SHOWN = 48
_CHARTED = (
    *("incoming_bytes", "incoming_messages", "outgoing_bytes"),
    *("throttled_requests", "throughput_units"),
)
# What a unit allows per second: (label, metric, amount, how the amount is written).
_ALLOWANCES = (
    ("In", "incoming_bytes", limits.UNIT_INGRESS_BYTES_PER_S, format_size),
    ("Events in", "incoming_messages", limits.UNIT_INGRESS_EVENTS_PER_S, format_count),
    ("Out", "outgoing_bytes", limits.UNIT_EGRESS_BYTES_PER_S, format_size),
)


async def scale(visit: PageRequest) -> Response:
    namespace = await current_namespace(visit)
    now = await lately(visit, None)
    series = await ui.history(visit, None, _CHARTED)
    since_ms = hour_of(visit.portal.clock.now_ms()) - 31 * 24 * HOUR_MS
    usage = await visit.backend.read(ManagementClient.usage, since_ms=since_ms)
    mine = [row for row in usage if row["namespace"].casefold() == namespace.name.casefold()]
    return await page(
        visit,
        ui.live_element("usage", _tiles(namespace, now)),
        _units_form(visit, namespace) if visit.may(AdminRole.OPERATOR) else None,
        ui.live_element("charts", _charts(series), tag="section"),
        ui.card("Bill", ui.live_element("bill", *_bill(visit, mine))),
        ui.card("Ledger, the last hours (UTC)", ui.live_element("ledger", _ledger(mine))),
        await _grants(visit),
        aside=ui.ranges(visit),
    )


def _tiles(namespace: NamespaceResource, now: dict[str, Any]) -> Html:
    units = namespace.capacity
    shown = [ui.tile("Units", units, namespace.sku.name)]
    if namespace.unlimited:
        shown = [ui.tile("Units", "unlimited", "counted, not enforced")]
    for label, metric, allowance, text in _ALLOWANCES:
        used = rate(now, metric)
        if namespace.unlimited:
            needed = f"{used / allowance:.1f}" if used else "0"
            shown.append(ui.tile(label, f"{text(used)}/s", f"{needed} units' worth"))
            continue
        share = 100 * (used or 0) / (units * allowance)
        note = f"{text(used)}/s of {text(units * allowance)}/s"
        tone = "bad" if share >= 95 else "warn" if share >= 75 else "good"
        shown.append(ui.tile(label, f"{share:.0f} %", note, tone=tone))
    return ui.tiles(*shown, throttled_tile(now))


def _units_form(visit: PageRequest, namespace: NamespaceResource) -> Html:
    value = visit.form_value("units", namespace.capacity)
    most = limits.THROUGHPUT_UNITS_MAX
    slider = el("input", id="f-units", name="units", type="range", min=1, max=most, value=value)
    units = ("Units ", el("strong", value, data_shows="f-units"))
    maximum = namespace.maximum_units
    maximum_help = "0: off. Units are raised when they are used up, and never lowered."
    exact_help = UNITS_TEXT + "; beyond 20 a grant is needed"
    fields = (
        ui.labeled(units, "units", slider, "each 1 MB/s or 1000 events/s in, and 2 MB/s out"),
        ui.number(visit, "Or exactly", "exact_units", "", (1, None), help_=exact_help),
        ui.number(visit, "Auto-inflate up to", "maximum", maximum, (0, None), help_=maximum_help),
        ui.check("Unlimited", "unlimited", namespace.unlimited, help_="counted, not enforced"),
        ui.submit("Save"),
    )
    return ui.card("Throughput units", ui.form(visit, visit.page_link(), *fields))


def _charts(series: dict[str, Any]) -> Html:
    held = series["values"].get("throughput_units", [])

    def lines(name: str, index: int) -> dict[str, list[float | None]]:
        _, metric, allowance, _ = _ALLOWANCES[index]
        measured = {name: ui.per_second(series, metric)}
        if all(units is None for units in held):
            return measured
        bounds = [None if units is None else units * allowance for units in held]
        return measured | {"limit": bounds}

    throttled = {"throttled": series["values"]["throttled_requests"]}
    return el(
        "div",
        ui.chart(series, "Bytes in", lines("in", 0), "a second", bytes_=True),
        ui.chart(series, "Events in", lines("in", 1), "a second"),
        ui.chart(series, "Bytes out", lines("out", 2), "a second", bytes_=True),
        ui.chart(series, "Throttled requests", throttled, "in each step"),
        class_="columns",
    )


# --- the bill -------------------------------------------------------------------------------------


def _bill(visit: PageRequest, usage: list[dict[str, Any]]) -> list[Html]:
    now = datetime.fromtimestamp(visit.portal.clock.now_ms() / 1000, UTC)
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    month_ms = int(month.timestamp() * 1000)
    rows = [row for row in usage if row["hour_ms"] >= month_ms]
    recent = sorted(rows, key=lambda row: int(row["hour_ms"]))[-24:]
    units_now = recent[-1]["units"] if recent else 1
    unit_hours, forecast = sum(row["units"] for row in rows), units_now * _HOURS_A_MONTH
    hours, units = format_plural(len(rows), "hour"), format_plural(units_now, "unit")
    events = sum(row["ingress_events"] for row in rows)
    shown = [
        ui.tile("Unit hours this month", unit_hours, f"in {hours}"),
        ui.tile("Events this month", format_count(events), "in steps of 64 KB"),
        ui.tile("Unit hours, forecast", forecast, f"a month, at {units}"),
    ]
    prices = visit.portal.settings.prices
    note = "Prices are not configured: a [prices] table of the configuration turns this into money."
    if prices is not None:
        so_far = _money(_sum_cost(prices, rows), prices.currency)
        hourly = _sum_cost(prices, recent) / max(1, len(recent))
        month_cost = _money(hourly * _HOURS_A_MONTH, prices.currency)
        shown += [
            ui.tile("Cost this month", so_far, "so far"),
            ui.tile("Cost, forecast", month_cost, "a month, like the last 24 hours"),
        ]
        note = "By the price list of the configuration."
    return [ui.tiles(*shown), el("p", note, class_="empty")]


def _sum_cost(prices: PriceList, rows: list[dict[str, Any]]) -> Decimal:
    """The cost of the hours in `rows`."""
    return sum((prices.cost(hour) for hour in msgspec.convert(rows, list[Usage])), Decimal(0))


def _money(amount: Decimal, currency: str) -> str:
    return f"{amount:.2f} {currency}".strip()


def _ledger(usage: list[dict[str, Any]]) -> Html:
    hours: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in usage:
        hours[row["hour_ms"]].append(row)

    def total(hour_ms: int, name: str) -> int:
        return sum(row[name] for row in hours[hour_ms])

    rows = [
        {
            "Hour": format_moment(hour_ms)[:16],
            "Units": max(row["units"] for row in hours[hour_ms]),
            "Events in": total(hour_ms, "ingress_events"),
            "In": format_size(total(hour_ms, "ingress_bytes")),
            "Out": format_size(total(hour_ms, "egress_bytes")),
            "Capture hours": total(hour_ms, "capture_hours"),
        }
        for hour_ms in sorted(hours, reverse=True)[:_HOURS_SHOWN]
    ]
    numbers = ("Units", "Events in", "In", "Out", "Capture hours")
    return ui.table(rows, empty="Nothing was metered yet.", numbers=numbers)


# --- grants ---------------------------------------------------------------------------------------


async def _grants(visit: PageRequest) -> Html:
    is_admin = visit.may(AdminRole.ADMIN)

    def withdraw_button(kind: str) -> Html:
        to = visit.link("scale", "withdraw")
        return ui.action_button(visit, to, "Withdraw", ui.hidden("kind", kind))

    rows = [
        {
            "What": _KINDS.get(each["kind"], each["kind"]),
            "Up to": each["value"],
            "By": each["granted_by"],
            "When (UTC)": format_moment(each["granted_ms"]),
            "Note": each.get("note"),
            "": withdraw_button(each["kind"]) if is_admin else "",
        }
        for each in await visit.backend.read(ManagementClient.grants, visit.namespace)
    ]
    grant_form = ui.form(
        visit,
        visit.link("scale", "grant"),
        ui.select(visit, "What", "kind", _KINDS),
        ui.number(visit, "Up to", "value", "", (1, None), required=True),
        ui.field(visit, "Reason", "note", maxlength=limits.GRANT_NOTE_MAX, required=True),
        ui.submit("Grant"),
    )
    return ui.card(
        "Grants beyond the common limits",
        ui.table(rows, empty="None was given.", numbers=("Up to",)),
        grant_form if is_admin else None,
    )


# --- acts -----------------------------------------------------------------------------------------


async def save(visit: PageRequest) -> Response:
    unlimited = visit.text("unlimited") == "yes"
    units = visit.integer("exact_units" if visit.text("exact_units") else "units", "Units")
    maximum = visit.integer("maximum", "Auto-inflate") if visit.text("maximum") else 0
    enforced = None if unlimited else units
    await visit.act(
        lambda client: client.put_namespace(
            visit.namespace, units=enforced, unlimited=unlimited, maximum_units=maximum
        )
    )
    text = "unlimited" if unlimited else f"{units}"
    raise ActionCompleted(visit.link("scale"), f"The namespace has {text} throughput units now.")


async def grant(visit: PageRequest) -> Response:
    kind, value, note = visit.text("kind"), visit.integer("value", "Up to"), visit.text("note")
    if not note:
        raise ArgumentError("A grant needs a reason.")
    await visit.act(lambda client: client.grant(visit.namespace, kind, value, note=note))
    raise ActionCompleted(visit.link("scale"), f"Granted: up to {value} {_KINDS.get(kind, kind)}.")


async def withdraw(visit: PageRequest) -> Response:
    await visit.act(lambda client: client.withdraw(visit.namespace, visit.text("kind")))
    raise ActionCompleted(visit.link("scale"), "The grant is withdrawn.")
