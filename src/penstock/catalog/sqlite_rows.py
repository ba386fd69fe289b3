"""Records as rows of the SQLite catalog. A field of a record is the column of the same name, but
for the parents' names: a row has their keys."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from penstock.catalog.api import Entity, Record
from penstock.model.entities import (
    AuditEntry,
    AuthorizationRule,
    ConsumerGroup,
    Hub,
    Namespace,
    RevokedPublisher,
    Secret,
)
from penstock.model.names import fold_name
from penstock.model.quotas import QuotaGrant

Values = tuple[str | int | None, ...]
_R = TypeVar("_R", bound=msgspec.Struct)

_CHILD_KEYS = {"namespace_key": "namespace", "hub_key": "hub", "key": "name"}
# The table of each kind, and the field of which each key column has the folded name.
_TABLES: dict[type[msgspec.Struct], tuple[str, dict[str, str]]] = {
    Namespace: ("namespaces", {"key": "name"}),
    Hub: ("hubs", {"namespace_key": "namespace", "key": "name"}),
    ConsumerGroup: ("groups", _CHILD_KEYS),
    AuthorizationRule: ("rules", _CHILD_KEYS),
    RevokedPublisher: ("revoked_publishers", _CHILD_KEYS),
    QuotaGrant: ("quota_grants", {"namespace_key": "namespace", "kind": "kind"}),
    AuditEntry: ("audit", {}),
}
_PARENT_NAMES = {
    "namespace": "(SELECT name FROM namespaces WHERE key = t.namespace_key)",
    "hub": "(SELECT name FROM hubs WHERE namespace_key = t.namespace_key AND key = t.hub_key)",
}
_JSON_FIELDS = ("hosts", "metadata")


def put_statement(record: Record) -> tuple[str, Values]:
    """Insert, or update the row of the same key: a REPLACE would delete the rows below it."""
    table, keys = _TABLES[type(record)]
    fields: dict[str, Any] = msgspec.to_builtins(record, enc_hook=_reveal)
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


def delete_statement(entity: Entity) -> tuple[str, Values]:
    keys = _keys(entity)
    condition = " AND ".join(f"{name} IS ?" for name in keys)
    statement = f"DELETE FROM {_TABLES[type(entity)][0]} WHERE {condition}"  # noqa: S608 - the same
    return statement, tuple(keys.values())


def load_entities(connection: sqlite3.Connection) -> list[Entity]:
    """Everything there is, parents before children. ValueError when a value fits no type."""
    return [
        *_load(connection, Namespace),
        *_load(connection, Hub),
        *_load(connection, ConsumerGroup),
        *_load(connection, AuthorizationRule),
        *_load(connection, RevokedPublisher),
        *_load(connection, QuotaGrant),
    ]


def load_audit(connection: sqlite3.Connection, newest: int) -> list[AuditEntry]:
    return list(_load(connection, AuditEntry, f"ORDER BY id DESC LIMIT {newest:d}"))


def _load(connection: sqlite3.Connection, kind: type[_R], order: str = "") -> Iterator[_R]:
    names = kind.__struct_fields__
    columns = ", ".join(_PARENT_NAMES.get(name, name) for name in names)
    query = f"SELECT {columns} FROM {_TABLES[kind][0]} AS t {order}"  # noqa: S608 - the same
    for row in connection.execute(query):
        fields = dict(zip(names, row, strict=True))
        for name in _JSON_FIELDS:
            if name in fields:
                fields[name] = msgspec.json.decode(fields[name])
        yield msgspec.convert(fields, kind, dec_hook=lambda _, text: Secret(text))


def _keys(record: Record) -> dict[str, str | None]:
    """The folded names in the key columns; None for the hub of a namespace's own rule."""
    _, keys = _TABLES[type(record)]
    names = {column: getattr(record, field) for column, field in keys.items()}
    return {column: None if name is None else fold_name(name) for column, name in names.items()}


def _reveal(secret: Any) -> str:
    assert isinstance(secret, Secret)
    return secret.reveal()
