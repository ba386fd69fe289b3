"""Records as rows of the SQLite catalog: one statement to put, to delete and to load each kind."""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec

from penstock.catalog.index import Entity, Record
from penstock.model.entities import (
    AuditEntry,
    AuthorizationRule,
    ConsumerGroup,
    Hub,
    HubStatus,
    LimitSet,
    Namespace,
    RevokedPublisher,
    Right,
    Secret,
    Tier,
)
from penstock.model.names import (
    GroupName,
    HubName,
    NamespaceName,
    PublisherName,
    RuleName,
    fold_name,
)
from penstock.model.quotas import QuotaGrant, QuotaKind

Values = tuple[str | int | None, ...]

_PUT_NAMESPACE = """
    INSERT INTO namespaces (key, name, created_ms, updated_ms, hosts, tier, throughput_units,
        maximum_throughput_units, metadata, limits)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (key) DO UPDATE SET name = excluded.name, created_ms = excluded.created_ms,
        updated_ms = excluded.updated_ms, hosts = excluded.hosts, tier = excluded.tier,
        throughput_units = excluded.throughput_units,
        maximum_throughput_units = excluded.maximum_throughput_units,
        metadata = excluded.metadata, limits = excluded.limits
"""
_PUT_HUB = """
    INSERT INTO hubs (namespace_key, key, id, name, partition_count, created_ms, updated_ms,
        retention_hours, status, user_metadata, metadata)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (namespace_key, key) DO UPDATE SET name = excluded.name,
        created_ms = excluded.created_ms, updated_ms = excluded.updated_ms,
        retention_hours = excluded.retention_hours, status = excluded.status,
        user_metadata = excluded.user_metadata, metadata = excluded.metadata
"""
_PUT_GROUP = """
    INSERT INTO groups (namespace_key, hub_key, key, name, created_ms, updated_ms, user_metadata)
    VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (namespace_key, hub_key, key) DO UPDATE SET name = excluded.name,
        created_ms = excluded.created_ms, updated_ms = excluded.updated_ms,
        user_metadata = excluded.user_metadata
"""
_PUT_RULE = """
    INSERT INTO rules (namespace_key, hub_key, key, name, rights, primary_key, secondary_key,
        created_ms, updated_ms)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (namespace_key, ifnull(hub_key, ''), key) DO UPDATE SET name = excluded.name,
        rights = excluded.rights, primary_key = excluded.primary_key,
        secondary_key = excluded.secondary_key, created_ms = excluded.created_ms,
        updated_ms = excluded.updated_ms
"""
_PUT_REVOKED_PUBLISHER = """
    INSERT INTO revoked_publishers (namespace_key, hub_key, key, name, revoked_ms)
    VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (namespace_key, hub_key, key) DO UPDATE SET name = excluded.name,
        revoked_ms = excluded.revoked_ms
"""
_PUT_QUOTA_GRANT = """
    INSERT INTO quota_grants (namespace_key, kind, value, granted_by, granted_ms, note)
    VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (namespace_key, kind) DO UPDATE SET value = excluded.value,
        granted_by = excluded.granted_by, granted_ms = excluded.granted_ms, note = excluded.note
"""
_PUT_AUDIT = "INSERT INTO audit (at_ms, who, what, detail) VALUES (?, ?, ?, ?)"
_LOAD_AUDIT = "SELECT at_ms, who, what, detail FROM audit ORDER BY id DESC LIMIT ?"
_LOAD_NAMESPACES = """
    SELECT name, created_ms, updated_ms, hosts, tier, throughput_units, maximum_throughput_units,
        metadata, limits
    FROM namespaces
"""
_LOAD_HUBS = """
    SELECT n.name, h.id, h.name, h.partition_count, h.created_ms, h.updated_ms, h.retention_hours,
        h.status, h.user_metadata, h.metadata
    FROM hubs AS h JOIN namespaces AS n ON n.key = h.namespace_key
"""
_LOAD_GROUPS = """
    SELECT n.name, h.name, g.name, g.created_ms, g.updated_ms, g.user_metadata
    FROM groups AS g JOIN namespaces AS n ON n.key = g.namespace_key
    JOIN hubs AS h ON h.namespace_key = g.namespace_key AND h.key = g.hub_key
"""
_LOAD_RULES = """
    SELECT n.name, h.name, r.name, r.rights, r.primary_key, r.secondary_key, r.created_ms,
        r.updated_ms
    FROM rules AS r JOIN namespaces AS n ON n.key = r.namespace_key
    LEFT JOIN hubs AS h ON h.namespace_key = r.namespace_key AND h.key = r.hub_key
"""
_LOAD_REVOKED_PUBLISHERS = """
    SELECT n.name, h.name, p.name, p.revoked_ms
    FROM revoked_publishers AS p JOIN namespaces AS n ON n.key = p.namespace_key
    JOIN hubs AS h ON h.namespace_key = p.namespace_key AND h.key = p.hub_key
"""

_LOAD_QUOTA_GRANTS = """
    SELECT n.name, g.kind, g.value, g.granted_by, g.granted_ms, g.note
    FROM quota_grants AS g JOIN namespaces AS n ON n.key = g.namespace_key
"""


def put_statement(record: Record) -> tuple[str, Values]:
    match record:
        case Namespace() as n:
            hosts = msgspec.json.encode(n.hosts).decode()
            return _PUT_NAMESPACE, (
                *(fold_name(n.name), n.name, n.created_ms, n.updated_ms),
                *(hosts, n.tier.value, n.throughput_units, n.maximum_throughput_units),
                *(_json(n.metadata), n.limits.value),
            )
        case Hub() as h:
            return _PUT_HUB, (
                *(fold_name(h.namespace), fold_name(h.name), h.id, h.name, h.partition_count),
                *(h.created_ms, h.updated_ms, h.retention_hours, h.status.value, h.user_metadata),
                _json(h.metadata),
            )
        case ConsumerGroup() as g:
            return _PUT_GROUP, (
                *(fold_name(g.namespace), fold_name(g.hub), fold_name(g.name), g.name),
                *(g.created_ms, g.updated_ms, g.user_metadata),
            )
        case AuthorizationRule() as r:
            return _PUT_RULE, (
                *(
                    fold_name(r.namespace),
                    _key_or_none(r.hub),
                    fold_name(r.name),
                    r.name,
                    int(r.rights),
                ),
                *(r.primary_key.reveal(), r.secondary_key.reveal(), r.created_ms, r.updated_ms),
            )
        case RevokedPublisher() as p:
            return _PUT_REVOKED_PUBLISHER, (
                *(
                    fold_name(p.namespace),
                    fold_name(p.hub),
                    fold_name(p.name),
                    p.name,
                    p.revoked_ms,
                ),
            )
        case QuotaGrant() as q:
            return _PUT_QUOTA_GRANT, (
                *(
                    fold_name(q.namespace),
                    q.kind.value,
                    q.value,
                    q.granted_by,
                    q.granted_ms,
                    q.note,
                ),
            )
        case AuditEntry() as a:
            return _PUT_AUDIT, (a.at_ms, a.who, a.what, a.detail)


def delete_statement(record: Entity) -> tuple[str, Values]:
    match record:
        case Namespace() as n:
            return "DELETE FROM namespaces WHERE key = ?", (fold_name(n.name),)
        case Hub() as h:
            return (
                "DELETE FROM hubs WHERE namespace_key = ? AND key = ?",
                (fold_name(h.namespace), fold_name(h.name)),
            )
        case ConsumerGroup() as g:
            return (
                "DELETE FROM groups WHERE namespace_key = ? AND hub_key = ? AND key = ?",
                (fold_name(g.namespace), fold_name(g.hub), fold_name(g.name)),
            )
        case AuthorizationRule() as r:
            return (
                "DELETE FROM rules WHERE namespace_key = ? AND hub_key IS ? AND key = ?",
                (fold_name(r.namespace), _key_or_none(r.hub), fold_name(r.name)),
            )
        case RevokedPublisher() as p:
            return (
                "DELETE FROM revoked_publishers "
                "WHERE namespace_key = ? AND hub_key = ? AND key = ?",
                (fold_name(p.namespace), fold_name(p.hub), fold_name(p.name)),
            )
        case QuotaGrant() as q:
            return (
                "DELETE FROM quota_grants WHERE namespace_key = ? AND kind = ?",
                (fold_name(q.namespace), q.kind.value),
            )


def load_entities(connection: sqlite3.Connection) -> list[Record]:
    """Everything there is, parents before children. ValueError when a value fits no type."""
    run = connection.execute
    return [
        *(_namespace_from_row(*row) for row in run(_LOAD_NAMESPACES)),
        *(_hub_from_row(*row) for row in run(_LOAD_HUBS)),
        *(_group_from_row(*row) for row in run(_LOAD_GROUPS)),
        *(_rule_from_row(*row) for row in run(_LOAD_RULES)),
        *(_revoked_publisher(*row) for row in run(_LOAD_REVOKED_PUBLISHERS)),
        *(_quota_grant(*row) for row in run(_LOAD_QUOTA_GRANTS)),
    ]


def load_audit(connection: sqlite3.Connection, newest: int) -> list[AuditEntry]:
    return [
        AuditEntry(at_ms=at_ms, who=who, what=what, detail=detail)
        for at_ms, who, what, detail in connection.execute(_LOAD_AUDIT, (newest,))
    ]


def _json(metadata: dict[str, Any]) -> str:
    return msgspec.json.encode(metadata).decode()


def _key_or_none(name: str | None) -> str | None:
    return None if name is None else fold_name(name)


def _namespace_from_row(
    name: str,
    created_ms: int,
    updated_ms: int,
    hosts: str,
    tier: str,
    units: int | None,
    units_max: int | None,
    metadata: str,
    limit_set: str,
) -> Namespace:
    return Namespace(
        name=NamespaceName(name),
        created_ms=created_ms,
        updated_ms=updated_ms,
        hosts=msgspec.json.decode(hosts, type=tuple[str, ...]),
        tier=Tier(tier),
        throughput_units=units,
        maximum_throughput_units=units_max,
        metadata=msgspec.json.decode(metadata, type=dict[str, Any]),
        limits=LimitSet(limit_set),
    )


def _hub_from_row(
    namespace: str,
    hub_id: str,
    name: str,
    partition_count: int,
    created_ms: int,
    updated_ms: int,
    retention_hours: int,
    status: str,
    user_metadata: str,
    metadata: str,
) -> Hub:
    return Hub(
        id=hub_id,
        namespace=NamespaceName(namespace),
        name=HubName(name),
        partition_count=partition_count,
        created_ms=created_ms,
        updated_ms=updated_ms,
        retention_hours=retention_hours,
        status=HubStatus(status),
        user_metadata=user_metadata,
        metadata=msgspec.json.decode(metadata, type=dict[str, Any]),
    )


def _group_from_row(
    namespace: str, hub: str, name: str, created_ms: int, updated_ms: int, user_metadata: str
) -> ConsumerGroup:
    return ConsumerGroup(
        namespace=NamespaceName(namespace),
        hub=HubName(hub),
        name=GroupName(name),
        created_ms=created_ms,
        updated_ms=updated_ms,
        user_metadata=user_metadata,
    )


def _rule_from_row(
    namespace: str,
    hub: str | None,
    name: str,
    rights: int,
    primary_key: str,
    secondary_key: str,
    created_ms: int,
    updated_ms: int,
) -> AuthorizationRule:
    return AuthorizationRule(
        namespace=NamespaceName(namespace),
        hub=None if hub is None else HubName(hub),
        name=RuleName(name),
        rights=Right(rights),
        primary_key=Secret(primary_key),
        secondary_key=Secret(secondary_key),
        created_ms=created_ms,
        updated_ms=updated_ms,
    )


def _revoked_publisher(namespace: str, hub: str, name: str, revoked_ms: int) -> RevokedPublisher:
    return RevokedPublisher(
        namespace=NamespaceName(namespace),
        hub=HubName(hub),
        name=PublisherName(name),
        revoked_ms=revoked_ms,
    )


def _quota_grant(
    namespace: str, kind: str, value: int, granted_by: str, granted_ms: int, note: str
) -> QuotaGrant:
    return QuotaGrant(
        namespace=NamespaceName(namespace),
        kind=QuotaKind(kind),
        value=value,
        granted_by=granted_by,
        granted_ms=granted_ms,
        note=note,
    )
