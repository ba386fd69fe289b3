"""The usage ledger: in memory, and in the catalog's SQLite file by a connection of its own.

Counts are written whole, not as differences (docs/metering.md): a write that is repeated, because
nobody knows whether the first one reached the disk, changes nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from penstock.catalog.sqlite import empty_log
from penstock.io.sqlite import register_row_sum, transaction
from penstock.model.errors import DataDirectoryError
from penstock.model.names import NamespaceName, fold_name
from penstock.model.usage import Usage

TIME_MS_MAX = 2**63 - 1
_BUSY_S = 5.0  # the catalog's own writes take milliseconds; a disk that stalls may take longer

_COUNTS = (
    "ingress_events",
    "ingress_messages",
    "ingress_bytes",
    "egress_bytes",
    "capture_hours",
)
_COLUMNS = ("units", *_COUNTS)

# Counts only grow: of two writes of one run the larger is the later, whichever came last.
_RECORD = f"""
    INSERT INTO usage (hour_ms, namespace_key, run, namespace, {", ".join(_COLUMNS)})
    VALUES (?, ?, ?, ?, {", ".join("?" * len(_COLUMNS))})
    ON CONFLICT (hour_ms, namespace_key, run) DO UPDATE SET
        {", ".join(f"{name} = max({name}, excluded.{name})" for name in _COLUMNS)}
"""  # noqa: S608 - the names stand above
_READ = f"""
    SELECT hour_ms, namespace, run, {", ".join(_COLUMNS)} FROM usage
    WHERE hour_ms >= ? AND hour_ms < ? ORDER BY hour_ms, namespace_key, run
"""  # noqa: S608 - the names stand above


def sum_usage(counts: Iterable[Usage]) -> list[Usage]:
    """Runs of one namespace and hour as one, in the order in which each first came."""
    hours: dict[tuple[int, str], Usage] = {}
    for count in counts:
        place = (count.hour_ms, fold_name(count.namespace))
        known = hours.get(place)
        if known is None:
            hours[place] = msgspec.structs.replace(count, run="")
        else:
            sums = {name: getattr(known, name) + getattr(count, name) for name in _COUNTS}
            units = max(known.units, count.units)
            hours[place] = msgspec.structs.replace(known, units=units, **sums)
    return list(hours.values())


class MemoryUsageLedger:
    """`catalog.api.UsageLedger` without durability."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, str, str], Usage] = {}

    def record(self, counts: Sequence[Usage]) -> None:
        for count in counts:
            place = (count.hour_ms, fold_name(count.namespace), count.run)
            known = self._counts.get(place, count)
            largest = {name: max(getattr(known, name), getattr(count, name)) for name in _COLUMNS}
            self._counts[place] = msgspec.structs.replace(known, **largest)

    def usage(self, *, since_ms: int = 0, until_ms: int = TIME_MS_MAX) -> list[Usage]:
        places = sorted(place for place in self._counts if since_ms <= place[0] < until_ms)
        return sum_usage(self._counts[place] for place in places)

    def close(self) -> None:
        pass


class SqliteUsageLedger:
    """`catalog.api.UsageLedger` in a catalog's file, beside a catalog that has it open: its own
    connection lets it wait for the disk on a thread of its own. Raises DataDirectoryError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            # Not bound to a thread: its owner uses one at a time.
            self._connection = sqlite3.connect(
                path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA synchronous = FULL")
            register_row_sum(self._connection)
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def record(self, counts: Sequence[Usage]) -> None:
        try:
            with transaction(self._connection):
                self._connection.executemany(_RECORD, map(_values, counts))
            empty_log(self._connection)
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def usage(self, *, since_ms: int = 0, until_ms: int = TIME_MS_MAX) -> list[Usage]:
        try:
            return read_usage(self._connection, since_ms=since_ms, until_ms=until_ms)
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def close(self) -> None:
        self._connection.close()

    def _unusable(self, error: sqlite3.Error) -> DataDirectoryError:
        return DataDirectoryError(f"The usage ledger in {self._path} cannot be used: {error}")


def read_usage(
    connection: sqlite3.Connection, *, since_ms: int = 0, until_ms: int = TIME_MS_MAX
) -> list[Usage]:
    """`usage` of any connection to a catalog's file. Raises sqlite3.Error."""
    return sum_usage(_usage(*row) for row in connection.execute(_READ, (since_ms, until_ms)))


def _values(count: Usage) -> tuple[str | int, ...]:
    return (
        *(count.hour_ms, fold_name(count.namespace), count.run, count.namespace),
        *(getattr(count, name) for name in _COLUMNS),
    )


def _usage(hour_ms: int, namespace: str, run: str, *values: int) -> Usage:
    columns = dict(zip(_COLUMNS, values, strict=True))
    return Usage(hour_ms=hour_ms, namespace=NamespaceName(namespace), run=run, **columns)
