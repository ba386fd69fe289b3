"""`penstock usage`: what each namespace used, by the ledger of a data directory."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from penstock.model.usage import PriceList, Usage

_FORMATS = ["%Y-%m-%d", "%Y-%m-%dT%H", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%SZ"]
_PRICE_STEP = Decimal("0.000001")
_COUNTED = ("ingress_events", "ingress_bytes", "egress_bytes")
_DETAILS = ("ingress_messages", "capture_hours")

Row = dict[str, object]


class UsageOutput(StrEnum):
    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"


class Period(StrEnum):
    """By what hours are added up; the name of the first column."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


def usage(
    day: Annotated[bool, typer.Option("--day", help="By day instead of by hour")] = False,
    month: Annotated[bool, typer.Option("--month", help="By month instead of by hour")] = False,
    namespace: Annotated[str | None, typer.Option(help="Of one namespace alone")] = None,
    since: Annotated[
        datetime | None, typer.Option(help="From this time on (UTC)", formats=_FORMATS)
    ] = None,
    until: Annotated[
        datetime | None, typer.Option(help="Up to this time (UTC)", formats=_FORMATS)
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Plain events and capture hours too")
    ] = False,
    data: Annotated[
        Path | None, typer.Option(help="Data directory [default: ./penstock-data]")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with a price list")] = None,
    output: Annotated[
        UsageOutput, typer.Option("-o", "--output", help="table, json, jsonl or csv")
    ] = UsageOutput.TABLE,
) -> None:
    """Units, events and bytes by the hour: what a bill is made of.

    Hours are those of UTC. Read from the data directory, also beside a running service, which
    writes every two seconds.
    """
    from penstock.catalog import offline
    from penstock.model.names import fold_name
    from penstock.service.config.loader import read_price_list

    if day and month:
        raise typer.BadParameter("--day and --month contradict each other: give one.")
    period = Period.DAY if day else Period.MONTH if month else Period.HOUR
    file = config or _path("PENSTOCK_CONFIG")
    prices, of_file = read_price_list(file) if file is not None else (None, None)
    found = offline.read_usage_offline(
        data or _path("PENSTOCK_DATA") or of_file or Path("penstock-data"),
        **_bounds(since, until),
    )
    if namespace is not None:
        found = [each for each in found if fold_name(each.namespace) == fold_name(namespace)]
    rows = sum_usage_rows(found, period, prices, details=details)
    _print(rows, output, columns(period, prices, details=details), prices)


def columns(period: Period, prices: PriceList | None, *, details: bool = False) -> list[str]:
    units = ["units"] if period is Period.HOUR else ["units", "unit_hours"]
    names = [period.value, "namespace", *units, *_COUNTED]
    return [*names, *(_DETAILS if details else ()), *(("price",) if prices else ())]


def sum_usage_rows(
    hours: Sequence[Usage], period: Period, prices: PriceList | None, *, details: bool = False
) -> list[Row]:
    """Rows by period and namespace, in the order of time. Of several hours `units` are the most
    that were held, `unit_hours` those of all hours together."""
    groups: dict[tuple[str, str], list[Usage]] = {}
    for hour in hours:
        groups.setdefault((_period_label(hour.hour_ms, period), hour.namespace), []).append(hour)
    rows: list[Row] = []
    for (when, namespace), parts in groups.items():
        counted = (*_COUNTED, *(_DETAILS if details else ()))
        row: Row = {
            period.value: when,
            "namespace": namespace,
            "units": max(part.units for part in parts),
            "unit_hours": sum(part.units for part in parts),
            **{name: sum(getattr(part, name) for part in parts) for name in counted},
        }
        if prices is not None:
            # Rounded once, at the end: a month is worth what its hours are worth.
            price = sum((prices.cost(part) for part in parts), Decimal(0)).quantize(_PRICE_STEP)
            row["price"] = float(price)
        rows.append({name: row[name] for name in columns(period, prices, details=details)})
    return rows


def _period_label(hour_ms: int, period: Period) -> str:
    when = datetime.fromtimestamp(hour_ms / 1000, UTC)
    formats = {Period.HOUR: "%Y-%m-%dT%H:00:00Z", Period.DAY: "%Y-%m-%d", Period.MONTH: "%Y-%m"}
    return when.strftime(formats[period])


def _bounds(since: datetime | None, until: datetime | None) -> dict[str, int]:
    def milliseconds(when: datetime) -> int:
        return int(when.replace(tzinfo=UTC).timestamp() * 1000)

    found = {"since_ms": since, "until_ms": until}
    return {name: milliseconds(when) for name, when in found.items() if when is not None}


def _path(variable: str) -> Path | None:
    text = os.environ.get(variable)
    return Path(text) if text else None


def _print(
    rows: list[Row], output: UsageOutput, names: list[str], prices: PriceList | None
) -> None:
    if output is UsageOutput.JSON:
        typer.echo(json.dumps(rows))
    elif output is UsageOutput.JSONL:
        for row in rows:
            typer.echo(json.dumps(row))
    elif output is UsageOutput.CSV:
        writer = csv.DictWriter(sys.stdout, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, **_exact(row)} for row in rows)
    else:
        from penstock.cli.output import OutputFormat as Shown
        from penstock.cli.output import print_rows

        if rows and prices is not None and prices.currency:
            typer.echo(f"Usage ({prices.currency})")
        print_rows([{**row, **_exact(row)} for row in rows], Shown.TABLE, title="Usage")


def _exact(row: Row) -> Row:
    """No exponent, no float's last digits."""
    return {"price": f"{row['price']:.6f}"} if "price" in row else {}
