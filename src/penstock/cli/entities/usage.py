"""`penstock usage`: what each namespace used, from the usage ledger of a data directory."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penstock.cli.options import option
from penstock.cli.output import TABLE, OutputFormat

if TYPE_CHECKING:
    from penstock.model.usage import PriceList, Usage

_FORMATS = ["%Y-%m-%d", "%Y-%m-%dT%H", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%SZ"]
_PRICE_STEP = Decimal("0.000001")
_COUNTED = ("ingress_events", "ingress_bytes", "egress_bytes")
_DETAILS = ("ingress_messages", "capture_hours")

Row = dict[str, object]
UsageOutput = Literal["table", "json", "jsonl", "csv"]


Period = Literal["hour", "day", "month"]  # of one row; also the name of the first column

_LABELS: dict[Period, str] = {"hour": "%Y-%m-%dT%H:00:00Z", "day": "%Y-%m-%d", "month": "%Y-%m"}


def usage(
    day: Annotated[bool, option("--day", "One row per day instead of hour")] = False,
    month: Annotated[bool, option("--month", "One row per month instead of hour")] = False,
    namespace: Annotated[str | None, option("TEXT", "Only this namespace")] = None,
    since: Annotated[
        datetime | None,
        option("TIME", "Start at this time (UTC), such as 2026-11-16T06", formats=_FORMATS),
    ] = None,
    until: Annotated[
        datetime | None, option("TIME", "End before this time (UTC)", formats=_FORMATS)
    ] = None,
    details: Annotated[
        bool, option("--details", "Also the number of publications and Capture hours")
    ] = False,
    data: Annotated[Path | None, option("DIR", "Data directory [default: ./penstock-data]")] = None,
    config: Annotated[Path | None, option("FILE", "Configuration file with a price list")] = None,
    output: Annotated[
        UsageOutput, option("-o --output", "A table, a JSON list, JSON lines or CSV")
    ] = "table",
) -> None:
    """Show units, events and bytes by hour, day or month.

    Hours, days and months are those of UTC. The command reads the data directory, also while a
    service runs on it; the service writes every two seconds.

    Examples:
        penstock usage --day --since 2026-11-01
        penstock usage --month --config penstock.toml -o csv
    """
    from penstock.catalog import offline
    from penstock.model.names import fold_name
    from penstock.service.config.loader import read_price_list

    if day and month:
        raise typer.BadParameter("--day and --month exclude each other.")
    period: Period = "day" if day else "month" if month else "hour"
    file = config or _environment_path("PENSTOCK_CONFIG")
    prices, data_of_file = read_price_list(file) if file is not None else (None, None)
    hours = offline.read_usage_offline(
        data or _environment_path("PENSTOCK_DATA") or data_of_file or Path("penstock-data"),
        **{
            name: int(time.replace(tzinfo=UTC).timestamp() * 1000)
            for name, time in (("since_ms", since), ("until_ms", until))
            if time is not None
        },
    )
    if namespace is not None:
        hours = [hour for hour in hours if fold_name(hour.namespace) == fold_name(namespace)]
    rows = sum_usage_rows(hours, period, prices, details=details)
    _print(rows, output, columns(period, prices, details=details), prices)


def columns(period: Period, prices: PriceList | None, *, details: bool = False) -> list[str]:
    """The columns of the result, in order."""
    units = ["units"] if period == "hour" else ["units", "unit_hours"]
    names = [period, "namespace", *units, *_COUNTED]
    return [*names, *(_DETAILS if details else ()), *(("price",) if prices else ())]


def sum_usage_rows(
    hours: Sequence[Usage], period: Period, prices: PriceList | None, *, details: bool = False
) -> list[Row]:
    """One row per period and namespace, in the order of time. `units` is the maximum of the hours,
    `unit_hours` their sum."""
    groups: dict[tuple[str, str], list[Usage]] = {}
    for hour in hours:
        label = datetime.fromtimestamp(hour.hour_ms / 1000, UTC).strftime(_LABELS[period])
        groups.setdefault((label, hour.namespace), []).append(hour)
    rows: list[Row] = []
    for (label, namespace), parts in groups.items():
        counted = (*_COUNTED, *(_DETAILS if details else ()))
        row: Row = {
            period: label,
            "namespace": namespace,
            "units": max(part.units for part in parts),
            "unit_hours": sum(part.units for part in parts),
            **{name: sum(getattr(part, name) for part in parts) for name in counted},
        }
        if prices is not None:
            # Rounded once, at the end, so that a month costs the sum of its hours.
            price = sum((prices.cost(part) for part in parts), Decimal(0)).quantize(_PRICE_STEP)
            row["price"] = float(price)
        rows.append({name: row[name] for name in columns(period, prices, details=details)})
    return rows


def _environment_path(variable: str) -> Path | None:
    text = os.environ.get(variable)
    return Path(text) if text else None


def _print(
    rows: list[Row], output: UsageOutput, names: list[str], prices: PriceList | None
) -> None:
    if output in ("json", "jsonl"):
        OutputFormat(output).print_rows(rows, title="Usage")
        return
    # As text: a float would be written with an exponent, or with digits that are not the price's.
    rows = [row | {"price": f"{row['price']:.6f}"} if "price" in row else row for row in rows]
    if output == "csv":
        writer = csv.DictWriter(sys.stdout, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return
    if rows and prices is not None and prices.currency:
        typer.echo(f"Usage ({prices.currency})")
    TABLE.print_rows(rows, title="Usage")
