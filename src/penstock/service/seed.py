"""What must exist before the doors open: the configuration's entities, put into the catalog."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable

import msgspec

from penstock.catalog.api import Catalog
from penstock.model import limits, names
from penstock.model.entities import (
    AuthorizationRule,
    ConsumerGroup,
    Hub,
    Namespace,
    Right,
    Secret,
    Tier,
)
from penstock.model.ledger import AuditEntry, QuotaGrant, QuotaKind
from penstock.model.names import NamespaceName

NewId = Callable[[], str]


def new_hub_id() -> str:
    return secrets.token_hex(16)


def seed_namespace(
    catalog: Catalog,
    name: str,
    *,
    hosts: Iterable[str],
    tier: Tier,
    throughput_units: int | None,
    now_ms: int,
    maximum_throughput_units: int | None = None,
) -> Namespace:
    """Create the namespace, or bring hosts, tier and units up to date (flags still take effect).
    Of `maximum_throughput_units` 0 turns auto-inflate off, None leaves it as it is; what it raised
    units to stays (it never lowers them)."""
    found = catalog.namespace(name)
    maximum = maximum_throughput_units
    if maximum is None and found is not None:
        maximum = found.maximum_throughput_units
    held = found.throughput_units if found is not None else None
    if throughput_units is not None and held is not None and maximum:
        throughput_units = max(throughput_units, min(held, maximum))
    wanted = Namespace(
        name=found.name if found else names.namespace_name(name),
        created_ms=found.created_ms if found else now_ms,
        updated_ms=now_ms,
        hosts=tuple(sorted({host.casefold() for host in hosts})),
        tier=tier,
        throughput_units=throughput_units,
        maximum_throughput_units=maximum or None,
        metadata=found.metadata if found else {},
    )
    if found is not None and msgspec.structs.replace(wanted, updated_ms=found.updated_ms) == found:
        return found
    catalog.put_namespace(wanted, audit=_units_changed(wanted, found))
    return wanted


def _units_changed(wanted: Namespace, found: Namespace | None) -> AuditEntry | None:
    if found is None or found.throughput_units == wanted.throughput_units:
        return None
    before, after = (
        "unlimited" if units is None else str(units)
        for units in (found.throughput_units, wanted.throughput_units)
    )
    return AuditEntry(
        at_ms=wanted.updated_ms,
        who="configuration",
        what="units.changed",
        detail=f"'{wanted.name}' holds {after} throughput units, after {before}",
    )


def seed_grant(
    catalog: Catalog,
    namespace: NamespaceName,
    kind: QuotaKind,
    value: int,
    *,
    by: str,
    note: str,
    now_ms: int,
) -> None:
    """The configuration's grant is the truth; one that is there as it stands is not given again."""
    found = catalog.quota_grant(namespace, kind)
    if found is None or (found.value, found.granted_by, found.note) != (value, by, note):
        catalog.put_quota_grant(
            QuotaGrant(
                namespace=namespace,
                kind=kind,
                value=value,
                granted_by=by,
                granted_ms=now_ms,
                note=note,
            )
        )


def seed_rule(
    catalog: Catalog,
    namespace: NamespaceName,
    hub: str | None,
    name: str,
    *,
    rights: Right,
    primary: Secret,
    secondary: Secret,
    now_ms: int,
) -> None:
    """Keys in the configuration are the truth; a rule that is there with the same keys stays."""
    found = catalog.rule(namespace, hub, name)
    if found is not None and (found.rights, found.primary_key) == (rights, primary):
        return
    catalog.put_rule(
        AuthorizationRule(
            namespace=namespace,
            hub=None if hub is None else names.hub_name(hub),
            name=names.rule_name(name),
            rights=rights,
            primary_key=primary,
            secondary_key=secondary,
            created_ms=found.created_ms if found else now_ms,
            updated_ms=now_ms,
        )
    )


def seed_hub(
    catalog: Catalog,
    namespace: NamespaceName,
    name: str,
    *,
    partition_count: int | None,
    retention_hours: int | None,
    groups: Iterable[str],
    now_ms: int,
    partition_count_min: int = limits.PARTITION_COUNT_MIN,
) -> None:
    """Create the hub if it is absent; its partition count is fixed then. Groups are added."""
    found = catalog.hub(namespace, name)
    if found is None:
        hub = Hub(
            id=new_hub_id(),
            namespace=namespace,
            name=names.hub_name(name),
            partition_count=partition_count or limits.PARTITION_COUNT_DEFAULT,
            created_ms=now_ms,
            updated_ms=now_ms,
            retention_hours=retention_hours or limits.RETENTION_HOURS_DEFAULT,
        )
        catalog.put_hub(hub, partition_count_min=partition_count_min)
    elif (partition_count or found.partition_count, retention_hours or found.retention_hours) != (
        found.partition_count,
        found.retention_hours,
    ):
        changed = msgspec.structs.replace(
            found,
            partition_count=partition_count or found.partition_count,
            retention_hours=retention_hours or found.retention_hours,
            updated_ms=now_ms,
        )
        catalog.put_hub(changed, partition_count_min=partition_count_min)
    for group in groups:
        if catalog.group(namespace, name, group) is None:
            catalog.put_group(
                ConsumerGroup(
                    namespace=namespace,
                    hub=names.hub_name(name),
                    name=names.group_name(group),
                    created_ms=now_ms,
                    updated_ms=now_ms,
                )
            )
