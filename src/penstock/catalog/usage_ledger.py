"""The usage ledger in the SQLite file of the catalog, over a connection of its own.

Counts are written as totals, not as differences (docs/reference/metering.md): repeating a write
whose outcome is unknown changes nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from penstock.catalog.sqlite import empty_log, translate_errors
from penstock.io.database import connect
from penstock.io.sqlite import transaction
from penstock.model.names import fold_name
from penstock.model.usage import Usage

TIME_MS_MAX = 2**63 - 1
_BUSY_S = 5.0  # writes of the catalog take milliseconds, longer when the disk stalls

# The first fields name the namespace, the hour and the run.
_FIELDS = Usage.__struct_fields__
COLUMNS = _FIELDS[_FIELDS.index("units") :]
_COUNTS = COLUMNS[1:]

# Counts of a run only grow, so the larger of two writes is the newer one.
_RECORD = f"""
    INSERT INTO usage (namespace_key, {", ".join(_FIELDS)})
    VALUES (:namespace_key, {", ".join(f":{name}" for name in _FIELDS)})
    ON CONFLICT (hour_ms, namespace_key, run) DO UPDATE SET
        {", ".join(f"{name} = max({name}, excluded.{name})" for name in COLUMNS)}
"""  # noqa: S608 - column names of this module
_READ = f"""
    SELECT {", ".join(_FIELDS)} FROM usage
    WHERE hour_ms >= ? AND hour_ms < ? ORDER BY hour_ms, namespace_key, run
"""  # noqa: S608 - column names of this module


def sum_usage(counts: Iterable[Usage]) -> list[Usage]:
    """The runs of each namespace and hour added up, in the order of their first appearance."""
    hours: dict[tuple[int, str], Usage] = {}
    for count in counts:
        key = (count.hour_ms, fold_name(count.namespace))
        total = hours.get(key)
        if total is None:
            hours[key] = msgspec.structs.replace(count, run="")
        else:
            sums = {name: getattr(total, name) + getattr(count, name) for name in _COUNTS}
            units = max(total.units, count.units)
            hours[key] = msgspec.structs.replace(total, units=units, **sums)
    return list(hours.values())


class SqliteUsageLedger:
    """`catalog.api.UsageLedger` in the file of an open catalog. Its own connection lets it wait for
    the disk in another thread than the catalog's. Raises DataDirectoryError."""

    def __init__(self, path: Path) -> None:
        self._name = f"The usage ledger in {path}"
        with translate_errors(self._name):
            # Any thread may use it, one at a time: the owner ensures that.
            self._connection = connect(path, "usage ledger", busy_s=_BUSY_S)
            self._connection.execute("PRAGMA synchronous = FULL")

    def record(self, counts: Sequence[Usage]) -> None:
        with translate_errors(self._name):
            with transaction(self._connection):
                self._connection.executemany(_RECORD, map(_to_row, counts))
            empty_log(self._connection)

    def usage(self, *, since_ms: int = 0, until_ms: int = TIME_MS_MAX) -> list[Usage]:
        with translate_errors(self._name):
            return read_usage(self._connection, since_ms=since_ms, until_ms=until_ms)

    def close(self) -> None:
        self._connection.close()


def read_usage(
    connection: sqlite3.Connection, *, since_ms: int = 0, until_ms: int = TIME_MS_MAX
) -> list[Usage]:
    """The usage in the catalog file of the connection. Raises sqlite3.Error."""
    rows = connection.execute(_READ, (since_ms, until_ms))
    return sum_usage(Usage(**dict(zip(_FIELDS, row, strict=True))) for row in rows)


def _to_row(count: Usage) -> dict[str, str | int]:
    return {"namespace_key": fold_name(count.namespace), **msgspec.structs.asdict(count)}
