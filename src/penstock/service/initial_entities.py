"""Create what the configuration names: namespaces, hubs, groups, rules and quota grants."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from penstock.catalog.api import Catalog
from penstock.model import limits, names
from penstock.model.entities import (
    AuditEntry,
    AuthorizationRule,
    ConsumerGroup,
    Hub,
    LimitSet,
    Namespace,
    Right,
    Secret,
    Tier,
)
from penstock.model.names import NamespaceName
from penstock.model.quotas import QuotaGrant, QuotaKind
from penstock.service.config.settings import (
    DEFAULT_HUB,
    HubSettings,
    NamespaceSettings,
    RuleSettings,
    Settings,
)
from penstock.service.management_context import new_key
from penstock.service.unclaimed_logs import UnclaimedLogs

_logger = logging.getLogger(__name__)

NO_UNCLAIMED_LOGS = UnclaimedLogs()
_DEFAULT_HUB = HubSettings(name=DEFAULT_HUB)


def create_initial_entities(
    catalog: Catalog,
    settings: Settings,
    *,
    now_ms: int,
    first_root_key: Callable[[], Secret],
    unclaimed: UnclaimedLogs = NO_UNCLAIMED_LOGS,
) -> AuthorizationRule:
    """Create or update the entities of the configuration. Return the root rule of the first
    namespace; its key is `first_root_key`, those of other namespaces are random. A hub that may
    have one of the `unclaimed` logs is not created."""
    for wanted in settings.namespaces:
        found = catalog.namespace(wanted.name)
        given = settings.namespaces_given or found is None
        keeps = found is not None and not (wanted.throughput_units_given or given)
        _seed_grants(catalog, wanted, now_ms)
        namespace = seed_namespace(
            catalog,
            wanted.name,
            hosts=wanted.hosts if found is None or given else found.hosts,
            tier=wanted.tier if found is None or given else found.tier,
            throughput_units=found.throughput_units
            if found is not None and keeps
            else wanted.throughput_units,
            maximum_throughput_units=wanted.maximum_throughput_units,
            limit_set=wanted.limits,
            now_ms=now_ms,
        )
        is_first = wanted is settings.namespaces[0]
        root_key = first_root_key if is_first else new_key
        _seed_rules(catalog, namespace, wanted.rules, root_key, now_ms)
        for hub in wanted.hubs:
            if not given and hub == _DEFAULT_HUB:
                continue  # created once; an operator may have deleted it since
            is_absent = catalog.hub(namespace.name, hub.name) is None
            if is_absent and unclaimed.may_have(namespace.name, hub.name):
                _logger.error(
                    "event hub not created: namespace=%s hub=%s reason=unclaimed log",
                    *(namespace.name, hub.name),
                )
                continue
            _seed_configured_hub(catalog, namespace, wanted, hub, now_ms)
    root = catalog.rule(settings.namespaces[0].name, None, names.ROOT_RULE)
    assert root is not None
    return root


def _seed_grants(catalog: Catalog, wanted: NamespaceSettings, now_ms: int) -> None:
    """Before units and hubs that need them; a new namespace holds nothing yet."""
    if wanted.grants and catalog.namespace(wanted.name) is None:
        seed_namespace(
            catalog,
            wanted.name,
            hosts=wanted.hosts,
            tier=wanted.tier,
            throughput_units=None,
            limit_set=wanted.limits,
            now_ms=now_ms,
        )
    for grant in wanted.grants:
        seed_grant(
            catalog,
            wanted.name,
            grant.kind,
            grant.value,
            by=grant.by,
            note=grant.note,
            now_ms=now_ms,
        )


def _seed_configured_hub(
    catalog: Catalog,
    namespace: Namespace,
    wanted: NamespaceSettings,
    hub: HubSettings,
    now_ms: int,
) -> None:
    seed_hub(
        catalog,
        namespace.name,
        hub.name,
        partition_count=hub.partition_count,
        retention_hours=hub.retention_hours,
        groups=hub.groups,
        now_ms=now_ms,
    )
    for rule in hub.rules:
        _seed_configured_rule(catalog, namespace, hub.name, rule, now_ms)


def _seed_rules(
    catalog: Catalog,
    namespace: Namespace,
    rules: Sequence[RuleSettings],
    root_key: Callable[[], Secret],
    now_ms: int,
) -> None:
    for rule in rules:
        _seed_configured_rule(catalog, namespace, None, rule, now_ms)
    if catalog.rule(namespace.name, None, names.ROOT_RULE) is None:
        seed_rule(
            catalog,
            namespace.name,
            None,
            names.ROOT_RULE,
            rights=Right.ALL,
            primary=root_key(),
            secondary=new_key(),
            now_ms=now_ms,
        )


def _seed_configured_rule(
    catalog: Catalog, namespace: Namespace, hub: str | None, rule: RuleSettings, now_ms: int
) -> None:
    """Keys that the configuration leaves open stay as stored, or are random for a new rule."""
    found = catalog.rule(namespace.name, hub, rule.name)
    stored_secondary = found.secondary_key if found is not None else None
    seed_rule(
        catalog,
        namespace.name,
        hub,
        rule.name,
        rights=rule.rights,
        primary=rule.primary_key or (found.primary_key if found is not None else new_key()),
        secondary=rule.secondary_key or stored_secondary or new_key(),
        now_ms=now_ms,
    )


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
    limit_set: LimitSet | None = None,
) -> Namespace:
    """Create the namespace, or bring hosts, tier and units up to date (flags still take effect).
    Of `maximum_throughput_units` 0 turns auto-inflate off, None leaves it as it is; what it raised
    units to stays (it never lowers them). `limit_set` None leaves the limits as they are. A
    namespace of the configuration has no scope of its own
    and is found at every one; version 0.1 gave it the scope of the first client that changed it."""
    found = catalog.namespace(name)
    maximum = maximum_throughput_units
    if maximum is None and found is not None:
        maximum = found.maximum_throughput_units
    if limit_set is None:
        limit_set = found.limits if found is not None else LimitSet.SPECIFICATION
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
        metadata=_without_scope(found.metadata) if found else {},
        limits=limit_set,
    )
    if found is not None and msgspec.structs.replace(wanted, updated_ms=found.updated_ms) == found:
        return found
    catalog.put_namespace(wanted, audit=_units_changed(wanted, found))
    return wanted


def _without_scope(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in metadata.items()
        if key not in ("subscription", "resourceGroup")
    }


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
        catalog.put_hub(hub)
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
        catalog.put_hub(changed)
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
