"""Throughput units: how many, how well they are used, what was refused, and what it costs."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
from starlette.responses import Response

from penstock.formats.quantities import format_count, format_plural, format_size
from penstock.management.client import ManagementClient
from penstock.management.resources import NamespaceResource
from penstock.model import limits
from penstock.model.errors import ArgumentError
from penstock.model.quotas import UNITS_TEXT
from penstock.model.usage import HOUR_MS, PriceList, Usage, hour_of
from penstock.portal import charts
from penstock.portal.charts import Chart
from penstock.portal.page_request import ActionCompleted, PageRequest
from penstock.portal.pages.overview import Now, current_namespace, lately
from penstock.portal.shell import page

_KINDS = {"throughput-units": "throughput units", "partitions": "partitions of an event hub"}
_HOURS_A_MONTH = 730  # as Azure reckons
_HOURS_SHOWN = 48
_CHARTED = (
    *("incoming_bytes", "incoming_messages", "outgoing_bytes"),
    *("throttled_requests", "throughput_units"),
)
_ALMOST, _FULL = 75, 95  # percent of what the units allow


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """How much of what the units allow is used in a second."""

    label: str
    used: float | None
    allowed: float
    is_bytes: bool

    @property
    def percent(self) -> float:
        return 100 * (self.used or 0) / self.allowed

    @property
    def tone(self) -> str:
        return "bad" if self.percent >= _FULL else "warn" if self.percent >= _ALMOST else ""


class Bill(msgspec.Struct, frozen=True, kw_only=True):
    """Costs are empty without a price list."""

    hours: int
    unit_hours: int
    events: int
    units_now: int
    forecast: int
    cost: str = ""
    cost_forecast: str = ""


class LedgerHour(msgspec.Struct, frozen=True, kw_only=True):
    hour_ms: int
    units: int
    events_in: int
    bytes_in: int
    bytes_out: int
    capture_hours: int


async def scale(visit: PageRequest) -> Response:
    namespace = await current_namespace(visit)
    now = await lately(visit, None)
    series = await charts.history(visit, None, _CHARTED)
    since_ms = hour_of(visit.portal.clock.now_ms()) - 31 * 24 * HOUR_MS
    usage = await visit.backend.read(ManagementClient.usage, since_ms=since_ms)
    mine = [row for row in usage if row["namespace"].casefold() == namespace.name.casefold()]
    return await page(
        visit,
        "scale.html",
        namespace=namespace,
        now=now,
        uses=_uses(namespace, now),
        charts=_charts(series),
        bill=_bill(visit, mine),
        ledger=_ledger(mine),
        grants=await visit.backend.read(ManagementClient.grants, visit.namespace),
        kinds=_KINDS,
        units_max=limits.THROUGHPUT_UNITS_MAX,
        note_max=limits.GRANT_NOTE_MAX,
        units_text=UNITS_TEXT,
    )


def _uses(namespace: NamespaceResource, now: Now) -> list[Use]:
    """Of one unit where units are not enforced."""
    units = 1 if namespace.unlimited else namespace.capacity
    rows = (
        ("Events in", now.events_in, limits.UNIT_INGRESS_EVENTS_PER_S, False),
        ("Bytes in", now.bytes_in, limits.UNIT_INGRESS_BYTES_PER_S, True),
        ("Bytes out", now.bytes_out, limits.UNIT_EGRESS_BYTES_PER_S, True),
    )
    return [
        Use(label=label, used=used, allowed=units * each, is_bytes=is_bytes)
        for label, used, each, is_bytes in rows
    ]


def _charts(series: dict[str, Any]) -> list[Chart]:
    held = [units for units in series["values"].get("throughput_units", []) if units is not None]
    units = held[-1] if held else 0

    def measured(metric: str, name: str, color: int) -> dict[str, tuple[int, charts.Values]]:
        return {name: (color, charts.per_second(series, metric))}

    def limit(each: int, unit: str = "") -> dict[str, Any]:
        if not units:
            return {}
        amount = units * each
        text = format_size(amount) if unit else format_count(amount)
        return {"limit": amount, "limit_name": f"{format_plural(units, 'unit')}: {text}/s"}

    throttled: dict[str, tuple[int, charts.Values]] = {
        "Throttled": (3, series["values"]["throttled_requests"])
    }
    return [
        charts.chart(
            series,
            "Events in",
            "events/s",
            measured("incoming_messages", "In", charts.IN),
            **limit(limits.UNIT_INGRESS_EVENTS_PER_S),
        ),
        charts.chart(
            series,
            "Bytes in",
            "bytes/s",
            measured("incoming_bytes", "In", charts.IN),
            unit="B",
            **limit(limits.UNIT_INGRESS_BYTES_PER_S, "B"),
        ),
        charts.chart(
            series,
            "Bytes out",
            "bytes/s",
            measured("outgoing_bytes", "Out", charts.OUT),
            unit="B",
            **limit(limits.UNIT_EGRESS_BYTES_PER_S, "B"),
        ),
        charts.chart(
            series,
            "Throttled requests",
            f"requests per {charts.step_label(series)}",
            throttled,
            kind="bars",
            is_count=True,
        ),
    ]


# --- the bill -------------------------------------------------------------------------------------


def _bill(visit: PageRequest, usage: list[dict[str, Any]]) -> Bill:
    now = datetime.fromtimestamp(visit.portal.clock.now_ms() / 1000, UTC)
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    month_ms = int(month.timestamp() * 1000)
    rows = [row for row in usage if row["hour_ms"] >= month_ms]
    recent = sorted(rows, key=lambda row: int(row["hour_ms"]))[-24:]
    units_now = recent[-1]["units"] if recent else 1
    prices = visit.portal.settings.prices
    cost = cost_forecast = ""
    if prices is not None:
        hourly = _sum_cost(prices, recent) / max(1, len(recent))
        cost = _money(_sum_cost(prices, rows), prices.currency)
        cost_forecast = _money(hourly * _HOURS_A_MONTH, prices.currency)
    return Bill(
        hours=len(rows),
        unit_hours=sum(row["units"] for row in rows),
        events=sum(row["ingress_events"] for row in rows),
        units_now=units_now,
        forecast=units_now * _HOURS_A_MONTH,
        cost=cost,
        cost_forecast=cost_forecast,
    )


def _sum_cost(prices: PriceList, rows: list[dict[str, Any]]) -> Decimal:
    """The cost of the hours in `rows`."""
    return sum((prices.cost(hour) for hour in msgspec.convert(rows, list[Usage])), Decimal(0))


def _money(amount: Decimal, currency: str) -> str:
    return f"{amount:.2f} {currency}".strip()


def _ledger(usage: list[dict[str, Any]]) -> list[LedgerHour]:
    hours: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in usage:
        hours[row["hour_ms"]].append(row)

    def total(hour_ms: int, name: str) -> int:
        return sum(row[name] for row in hours[hour_ms])

    return [
        LedgerHour(
            hour_ms=hour_ms,
            units=max(row["units"] for row in hours[hour_ms]),
            events_in=total(hour_ms, "ingress_events"),
            bytes_in=total(hour_ms, "ingress_bytes"),
            bytes_out=total(hour_ms, "egress_bytes"),
            capture_hours=total(hour_ms, "capture_hours"),
        )
        for hour_ms in sorted(hours, reverse=True)[:_HOURS_SHOWN]
    ]


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
