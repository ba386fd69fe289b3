"""A data directory's catalog without the service: read beside one, changed where none runs.

For the command line: `penstock usage`, `penstock grant` and `penstock log verify`.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from penstock.catalog.sqlite import SqliteCatalog
from penstock.catalog.usage_ledger import TIME_MS_MAX, read_usage
from penstock.io.database import open_read_only
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
        with closing(open_read_only(file, busy_s=_BUSY_S)) as connection:
            return read_usage(connection, since_ms=since_ms, until_ms=until_ms)
    except sqlite3.Error as error:
        if "no such table" in str(error):
            raise DataDirectoryError(
                f"{file} is of an older Penstock, which kept no ledger; `penstock serve` brings it "
                "up to date."
            ) from error
        raise DataDirectoryError(f"The catalog {file} cannot be read: {error}") from error


def hub_names(data: Path) -> dict[str, str]:
    """`namespace/hub` by hub id; empty where there is no catalog that can be read, as beside a copy
    of the log alone. Nothing is written."""
    try:
        with closing(open_read_only(data / FILE, busy_s=_BUSY_S)) as connection:
            return dict(connection.execute(_HUB_NAMES).fetchall())
    except sqlite3.Error:
        return {}


def store_grant_offline(data: Path, given: QuotaGrant) -> None:
    """Record a grant. No service may run on the directory: it would not see it."""
    with closing(SqliteCatalog(_find_catalog_file(data))) as catalog:
        catalog.put_quota_grant(given)


def _find_catalog_file(data: Path) -> Path:
    file = data / FILE
    if not file.is_file():
        raise NotFound(f"There is no catalog in {data}: `penstock serve --data {data}` makes one.")
    return file
