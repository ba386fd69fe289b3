"""The catalog in one SQLite file: flushed at every commit, checked when it is opened.

A committed row never vanishes without an error. Each commit is moved from the write-ahead log into
the database file before it counts, so a damaged log costs at most a change that was never
confirmed; row sums (`penstock.io.sqlite`) detect a damaged database file.

The schema is the list of migrations at the end. Tables have each name twice: `key` is case-folded,
for lookups; `name` is the spelling given at creation. `STRICT` makes SQLite refuse other types.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec

from penstock.catalog.api import Catalog, Entity, Record
from penstock.io.database import DatabaseFormat, DatabaseUnusable, open_database
from penstock.io.sqlite import transaction
from penstock.model import entities
from penstock.model.errors import DataDirectoryError
from penstock.model.names import fold_name
from penstock.model.quotas import QuotaGrant

_BUSY_S = 1.0  # another process with the file open is a mistake; do not block the loop for long

_R = TypeVar("_R", bound=msgspec.Struct)
_Statement = tuple[str, tuple[str | int | None, ...]]  # and its values


class SqliteCatalog(Catalog):
    """The catalog in a file; reads come from the copy in memory.

    Raises DataDirectoryError, which names the file, if it cannot be opened, is damaged or was
    written by a newer Penstock, or if a write fails. One process at a time: the lock of the data
    directory ensures that.
    """

    def __init__(self, path: Path) -> None:
        self._name = f"The catalog {path}"
        with translate_errors(self._name):
            self._connection = open_database(path, DATABASE_FORMAT, busy_s=_BUSY_S)
            try:
                empty_log(self._connection)
                super().__init__(load_entities(self._connection))
            except BaseException:
                self._connection.close()
                raise

    def audit(self, *, newest: int = 100) -> list[entities.AuditEntry]:
        with translate_errors(self._name):
            return list(
                _load(self._connection, entities.AuditEntry, f"ORDER BY id DESC LIMIT {newest:d}")
            )

    def deleted_hubs(self) -> list[str]:
        with translate_errors(self._name):
            return [row[0] for row in self._connection.execute("SELECT id FROM deleted_hubs")]

    def forget_deleted_hubs(self, ids: Collection[str]) -> None:
        self._write(*(("DELETE FROM deleted_hubs WHERE id = ?", (hub_id,)) for hub_id in ids))

    def close(self) -> None:
        super().close()
        self._connection.close()

    def _store(self, records: Sequence[Record]) -> None:
        self._write(*map(_put_statement, records))

    def _store_deletion(self, entity: Entity, audit: Sequence[entities.AuditEntry]) -> None:
        # Children are deleted by ON DELETE CASCADE.
        self._write(_delete_statement(entity), *map(_put_statement, audit))

    def _write(self, *statements: _Statement) -> None:
        """All of them in one transaction."""
        with translate_errors(self._name):
            with transaction(self._connection):
                for statement, values in statements:
                    self._connection.execute(statement, values)
            empty_log(self._connection)


@contextmanager
def translate_errors(name: str) -> Iterator[None]:
    """Raise DataDirectoryError for SQLite errors and invalid values. `name` names the file."""
    try:
        yield
    except DatabaseUnusable as error:
        raise DataDirectoryError(str(error)) from error
    except (sqlite3.Error, ValueError, msgspec.MsgspecError) as error:
        raise DataDirectoryError(f"{name} cannot be used: {error}") from error


def empty_log(connection: sqlite3.Connection) -> None:
    """Move the write-ahead log into the database file, flush it, and empty the log.

    SQLite does nothing while another connection reads or writes. That is no error: the other
    connection, or the next write, empties the log.
    """
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()


# --- rows: a field is the column of the same name; parents are stored by their keys ---------------

_CHILD_KEYS = {"namespace_key": "namespace", "hub_key": "hub", "key": "name"}
# The table of each kind, and the field of which each key column has the folded name.
_TABLES: dict[type[msgspec.Struct], tuple[str, dict[str, str]]] = {
    entities.Namespace: ("namespaces", {"key": "name"}),
    entities.Hub: ("hubs", {"namespace_key": "namespace", "key": "name"}),
    entities.ConsumerGroup: ("groups", _CHILD_KEYS),
    entities.AuthorizationRule: ("rules", _CHILD_KEYS),
    entities.RevokedPublisher: ("revoked_publishers", _CHILD_KEYS),
    QuotaGrant: ("quota_grants", {"namespace_key": "namespace", "kind": "kind"}),
    entities.AuditEntry: ("audit", {}),
}
_PARENT_NAMES = {
    "namespace": "(SELECT name FROM namespaces WHERE key = t.namespace_key)",
    "hub": "(SELECT name FROM hubs WHERE namespace_key = t.namespace_key AND key = t.hub_key)",
}
_JSON_FIELDS = ("hosts", "metadata")


def _put_statement(record: Record) -> _Statement:
    """Insert, or update the row of the same key: a REPLACE would delete the rows below it."""
    table, keys = _TABLES[type(record)]
    fields: dict[str, Any] = msgspec.to_builtins(record, enc_hook=entities.Secret.reveal)
    for name in _JSON_FIELDS:
        if name in fields:
            fields[name] = msgspec.json.encode(fields[name]).decode()
    row = _keys(record) | {k: v for k, v in fields.items() if k not in _PARENT_NAMES}
    statement = (
        f"INSERT INTO {table} ({', '.join(row)}) "  # noqa: S608 - names of this module
        f"VALUES ({', '.join('?' * len(row))})"
    )
    if keys:
        # As in the unique index of `rules`, where NULL stands for the namespace.
        target = ["ifnull(hub_key, '')" if table == "rules" and k == "hub_key" else k for k in keys]
        updates = ", ".join(f"{name} = excluded.{name}" for name in row if name not in keys)
        statement += f" ON CONFLICT ({', '.join(target)}) DO UPDATE SET {updates}"
    return statement, tuple(row.values())


def _delete_statement(entity: Entity) -> _Statement:
    keys = _keys(entity)
    condition = " AND ".join(f"{name} IS ?" for name in keys)
    statement = f"DELETE FROM {_TABLES[type(entity)][0]} WHERE {condition}"  # noqa: S608 - the same
    return statement, tuple(keys.values())


def load_entities(connection: sqlite3.Connection) -> list[Entity]:
    """All entities, parents before children, as `Entity` lists the kinds. Raises ValueError when a
    value fits no type."""
    return [entity for kind in get_args(Entity) for entity in _load(connection, kind)]


def _load(connection: sqlite3.Connection, kind: type[_R], order: str = "") -> Iterator[_R]:
    names = kind.__struct_fields__
    columns = ", ".join(_PARENT_NAMES.get(name, name) for name in names)
    query = f"SELECT {columns} FROM {_TABLES[kind][0]} AS t {order}"  # noqa: S608 - the same
    for row in connection.execute(query):
        fields = dict(zip(names, row, strict=True))
        for name in _JSON_FIELDS:
            if name in fields:
                fields[name] = msgspec.json.decode(fields[name])
        yield msgspec.convert(fields, kind, dec_hook=lambda _, text: entities.Secret(text))


def _keys(record: Record) -> dict[str, str | None]:
    """The folded names in the key columns; None for the hub of a namespace's own rule."""
    _, keys = _TABLES[type(record)]
    names = {column: getattr(record, field) for column, field in keys.items()}
    return {column: None if name is None else fold_name(name) for column, name in names.items()}


# --- the schema -----------------------------------------------------------------------------------

# "PENS": distinguishes a catalog from any other SQLite file at its path.
APPLICATION_ID = 0x50454E53

# A released migration is never changed: `PRAGMA user_version` of a file counts the applied ones.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE namespaces (
            key TEXT PRIMARY KEY,
            name TEXT NOT NULL,
            created_ms INTEGER NOT NULL, updated_ms INTEGER NOT NULL,
            hosts TEXT NOT NULL, -- JSON array
            tier TEXT NOT NULL,
            throughput_units INTEGER -- NULL: counted, not enforced
        ) STRICT
        """,
        """
        CREATE TABLE hubs (
            namespace_key TEXT NOT NULL REFERENCES namespaces (key) ON DELETE CASCADE,
            key TEXT NOT NULL,
            id TEXT NOT NULL UNIQUE,
            name TEXT NOT NULL,
            partition_count INTEGER NOT NULL,
            created_ms INTEGER NOT NULL, updated_ms INTEGER NOT NULL,
            retention_hours INTEGER NOT NULL, status TEXT NOT NULL, user_metadata TEXT NOT NULL,
            PRIMARY KEY (namespace_key, key)
        ) STRICT
        """,
        """
        CREATE TABLE groups (
            namespace_key TEXT NOT NULL, hub_key TEXT NOT NULL, key TEXT NOT NULL,
            name TEXT NOT NULL,
            created_ms INTEGER NOT NULL, updated_ms INTEGER NOT NULL,
            user_metadata TEXT NOT NULL,
            PRIMARY KEY (namespace_key, hub_key, key),
            FOREIGN KEY (namespace_key, hub_key) REFERENCES hubs (namespace_key, key)
                ON DELETE CASCADE
        ) STRICT
        """,
        """
        CREATE TABLE rules (
            namespace_key TEXT NOT NULL REFERENCES namespaces (key) ON DELETE CASCADE,
            hub_key TEXT, -- NULL: a rule of the namespace
            key TEXT NOT NULL,
            name TEXT NOT NULL,
            rights INTEGER NOT NULL, primary_key TEXT NOT NULL, secondary_key TEXT NOT NULL,
            created_ms INTEGER NOT NULL, updated_ms INTEGER NOT NULL,
            FOREIGN KEY (namespace_key, hub_key) REFERENCES hubs (namespace_key, key)
                ON DELETE CASCADE
        ) STRICT
        """,
        # NULL differs from NULL in a primary key, so the namespace's rules need an expression.
        "CREATE UNIQUE INDEX rules_by_name ON rules (namespace_key, ifnull(hub_key, ''), key)",
    ),
    (
        """
        CREATE TABLE revoked_publishers (
            namespace_key TEXT NOT NULL, hub_key TEXT NOT NULL, key TEXT NOT NULL,
            name TEXT NOT NULL,
            revoked_ms INTEGER NOT NULL,
            PRIMARY KEY (namespace_key, hub_key, key),
            FOREIGN KEY (namespace_key, hub_key) REFERENCES hubs (namespace_key, key)
                ON DELETE CASCADE
        ) STRICT
        """,
    ),
    (
        # NULL: auto-inflate is off
        "ALTER TABLE namespaces ADD COLUMN maximum_throughput_units INTEGER",
        """
        CREATE TABLE quota_grants (
            namespace_key TEXT NOT NULL REFERENCES namespaces (key) ON DELETE CASCADE,
            kind TEXT NOT NULL, value INTEGER NOT NULL,
            granted_by TEXT NOT NULL, granted_ms INTEGER NOT NULL, note TEXT NOT NULL,
            PRIMARY KEY (namespace_key, kind)
        ) STRICT
        """,
        """
        CREATE TABLE audit (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            at_ms INTEGER NOT NULL, who TEXT NOT NULL, what TEXT NOT NULL, detail TEXT NOT NULL
        ) STRICT
        """,
        """
        CREATE TRIGGER audit_is_never_changed BEFORE UPDATE ON audit
        BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END
        """,
        """
        CREATE TRIGGER audit_is_never_deleted BEFORE DELETE ON audit
        BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END
        """,
        # No reference to namespaces: usage remains when the namespace is deleted.
        """
        CREATE TABLE usage (
            hour_ms INTEGER NOT NULL, namespace_key TEXT NOT NULL, run TEXT NOT NULL,
            namespace TEXT NOT NULL,
            units INTEGER NOT NULL,
            ingress_events INTEGER NOT NULL, ingress_messages INTEGER NOT NULL,
            ingress_bytes INTEGER NOT NULL, egress_bytes INTEGER NOT NULL,
            capture_hours INTEGER NOT NULL,
            PRIMARY KEY (hour_ms, namespace_key, run)
        ) STRICT, WITHOUT ROWID
        """,
    ),
    (
        # What the management API keeps beside what the broker needs: a JSON object.
        "ALTER TABLE namespaces ADD COLUMN metadata TEXT NOT NULL DEFAULT '{}'",
        "ALTER TABLE hubs ADD COLUMN metadata TEXT NOT NULL DEFAULT '{}'",
    ),
    ("ALTER TABLE namespaces ADD COLUMN limits TEXT NOT NULL DEFAULT 'specification'",),
    (
        # Hubs that were deleted and whose log may still be on disk: written by the transaction that
        # deletes them, also when a namespace takes its hubs along.
        "CREATE TABLE deleted_hubs (id TEXT PRIMARY KEY) STRICT, WITHOUT ROWID",
        """
        CREATE TRIGGER hub_deletion_is_recorded AFTER DELETE ON hubs
        BEGIN INSERT OR IGNORE INTO deleted_hubs (id) VALUES (OLD.id); END
        """,
    ),
)
DATABASE_FORMAT = DatabaseFormat(
    name="catalog",
    application_id=APPLICATION_ID,
    migrations=MIGRATIONS,
    summed_tables=(*(table for table, _ in _TABLES.values()), "usage", "deleted_hubs"),
)
