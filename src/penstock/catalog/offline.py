"""A data directory's catalog without the service: read beside one, changed where none runs.

For the command line: `penstock usage`, `penstock grant` and `penstock log verify`.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from urllib.parse import quote

from penstock.catalog.sqlite import SqliteCatalog
from penstock.catalog.usage_ledger import TIME_MS_MAX, read_usage
from penstock.model.errors import DataDirectoryError, NotFound
from penstock.model.quotas import QuotaGrant
from penstock.model.usage import Usage

_BUSY_S = 5.0
FILE = "catalog.sqlite"
_HUB_NAMES = """
    SELECT hubs.id, namespaces.name || '/' || hubs.name
    FROM hubs JOIN namespaces ON namespaces.key = hubs.namespace_key
"""


def read_usage_offline(
    data: Path, *, since_ms: int = 0, until_ms: int = TIME_MS_MAX
) -> list[Usage]:
    """The ledger's hours, runs added up. Nothing is written, whatever state the file is in."""
    file = _find_catalog_file(data)
    try:
        return _read_usage_rows(file, "mode=ro", since_ms, until_ms)
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            raise DataDirectoryError(
                f"{file} is of an older Penstock, which kept no ledger; `penstock serve` brings it "
                "up to date."
            ) from error
        if (file.parent / f"{file.name}-wal").exists():
            raise _unusable(file, error) from error
    except sqlite3.Error as error:
        raise _unusable(file, error) from error
    try:
        # A directory that cannot be written: without a write-ahead log the file itself is whole.
        return _read_usage_rows(file, "immutable=1", since_ms, until_ms)
    except sqlite3.Error as error:
        raise _unusable(file, error) from error


def hub_names(data: Path) -> dict[str, str]:
    """`namespace/hub` by hub id; empty where there is no catalog that can be read, as beside a copy
    of the log alone. Nothing is written."""
    file = data / FILE
    for mode in ("mode=ro", "immutable=1"):
        try:
            connection = sqlite3.connect(_uri(file, mode), uri=True, timeout=_BUSY_S)
        except sqlite3.Error:
            continue
        try:
            return dict(connection.execute(_HUB_NAMES).fetchall())
        except sqlite3.Error:
            continue
        finally:
            connection.close()
    return {}


def store_grant_offline(data: Path, given: QuotaGrant) -> None:
    """Record a grant. No service may run on the directory: it would not see it."""
    catalog = SqliteCatalog(_find_catalog_file(data))
    try:
        catalog.put_quota_grant(given)
    finally:
        catalog.close()


def _find_catalog_file(data: Path) -> Path:
    file = data / FILE
    if not file.is_file():
        raise NotFound(f"There is no catalog in {data}: `penstock serve --data {data}` makes one.")
    return file


def _read_usage_rows(file: Path, mode: str, since_ms: int, until_ms: int) -> list[Usage]:
    connection = sqlite3.connect(_uri(file, mode), uri=True, timeout=_BUSY_S)
    try:
        return read_usage(connection, since_ms=since_ms, until_ms=until_ms)
    finally:
        connection.close()


def _uri(file: Path, mode: str) -> str:
    return f"file:{quote(str(file.absolute()))}?{mode}"


def _unusable(file: Path, error: sqlite3.Error) -> DataDirectoryError:
    return DataDirectoryError(f"The catalog {file} cannot be read: {error}")
