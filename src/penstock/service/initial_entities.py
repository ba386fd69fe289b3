"""Create what the configuration names: namespaces, hubs, groups, rules and quota grants."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence

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
)
from penstock.model.names import NamespaceName
from penstock.model.quotas import QuotaGrant, QuotaKind
from penstock.service.config.settings import (
    DEFAULT_HUB,
    GrantSettings,
    HubSettings,
    NamespaceSettings,
    RuleSettings,
    Settings,
)
from penstock.service.data_directory import new_key
from penstock.service.unclaimed_logs import UnclaimedLog

_logger = logging.getLogger(__name__)

_DEFAULT_HUB = HubSettings(name=DEFAULT_HUB)
_SCOPE_KEYS = ("subscription", "resourceGroup")


def create_initial_entities(
    catalog: Catalog,
    settings: Settings,
    *,
    now_ms: int,
    first_root_key: Callable[[], Secret],
    unclaimed: Sequence[UnclaimedLog] = (),
) -> AuthorizationRule:
    """Create or update the entities of the configuration. Return the root rule of the first
    namespace; its key is `first_root_key`, those of other namespaces are random. A hub that may
    have one of the `unclaimed` logs is not created."""
    for stated in settings.namespaces:
        is_stated = settings.namespaces_given or catalog.namespace(stated.name) is None
        _seed_grants(catalog, stated, now_ms)
        namespace = seed_namespace(catalog, stated, is_stated=is_stated, now_ms=now_ms).name
        for rule in stated.rules:
            _seed_rule(catalog, namespace, None, rule, now_ms)
        if catalog.rule(namespace, None, names.ROOT_RULE) is None:
            key = first_root_key() if stated is settings.namespaces[0] else new_key()
            root = RuleSettings(name=names.ROOT_RULE, rights=Right.ALL, primary_key=key)
            _seed_rule(catalog, namespace, None, root, now_ms)
        for hub in stated.hubs:
            if not is_stated and hub == _DEFAULT_HUB:
                continue  # created once; an operator may have deleted it since
            is_absent = catalog.hub(namespace, hub.name) is None
            if is_absent and any(log.may_belong_to(namespace, hub.name) for log in unclaimed):
                _logger.error(
                    "event hub not created: namespace=%s hub=%s reason=unclaimed log",
                    *(namespace, hub.name),
                )
                continue
            seed_hub(catalog, namespace, hub, now_ms=now_ms)
    first_root = catalog.rule(settings.namespaces[0].name, None, names.ROOT_RULE)
    assert first_root is not None
    return first_root


def new_hub_id() -> str:
    return secrets.token_hex(16)


def seed_namespace(
    catalog: Catalog, stated: NamespaceSettings, *, now_ms: int, is_stated: bool = True
) -> Namespace:
    """Create the namespace, or update its hosts, tier, units and limits.

    `is_stated` False: no configuration file describes it; an existing one keeps its hosts and tier,
    and its units unless a flag states them. Units that auto-inflate has raised are not lowered. A
    namespace of the configuration has no resource scope and is found at every one; version 0.1 gave
    it the scope of the first client that changed it.
    """
    stored = catalog.namespace(stated.name)
    hosts, tier = stated.hosts, stated.tier
    units = stated.throughput_units if isinstance(stated.throughput_units, int) else None
    maximum, limit_set = stated.maximum_throughput_units, stated.limits
    metadata = {}
    if stored is not None:
        if not is_stated:
            hosts, tier = stored.hosts, stored.tier
            if stated.throughput_units is None:
                units = stored.throughput_units
        maximum = stored.maximum_throughput_units if maximum is None else maximum
        limit_set = limit_set or stored.limits
        if units is not None and stored.throughput_units is not None and maximum:
            units = max(units, min(stored.throughput_units, maximum))
        metadata = {key: v for key, v in stored.metadata.items() if key not in _SCOPE_KEYS}
    namespace = Namespace(
        name=stored.name if stored else stated.name,
        created_ms=stored.created_ms if stored else now_ms,
        updated_ms=now_ms,
        hosts=tuple(sorted({host.casefold() for host in hosts})),
        tier=tier,
        throughput_units=units,
        maximum_throughput_units=maximum or None,
        metadata=metadata,
        limits=limit_set or LimitSet.SPECIFICATION,
    )
    if stored and msgspec.structs.replace(namespace, updated_ms=stored.updated_ms) == stored:
        return stored
    catalog.put_namespace(namespace, audit=_audit_units(namespace, stored))
    return namespace


def _audit_units(namespace: Namespace, stored: Namespace | None) -> AuditEntry | None:
    if stored is None or stored.throughput_units == namespace.throughput_units:
        return None
    before, after = (
        "unlimited" if units is None else str(units)
        for units in (stored.throughput_units, namespace.throughput_units)
    )
    return AuditEntry(
        at_ms=namespace.updated_ms,
        who="configuration",
        what="units.changed",
        detail=f"'{namespace.name}' holds {after} throughput units, after {before}",
    )


def _seed_grants(catalog: Catalog, stated: NamespaceSettings, now_ms: int) -> None:
    """Must precede the units and hubs that need them: a new namespace is created without units."""
    if stated.grants and catalog.namespace(stated.name) is None:
        bare = msgspec.structs.replace(stated, throughput_units=None, maximum_throughput_units=None)
        seed_namespace(catalog, bare, now_ms=now_ms)
    for grant in stated.grants:
        seed_grant(catalog, stated.name, grant, now_ms=now_ms)


def seed_grant(
    catalog: Catalog, namespace: NamespaceName, grant: GrantSettings, *, now_ms: int
) -> None:
    """Store the configured quota grants, unless they are stored already."""
    for kind, value in (
        (QuotaKind.THROUGHPUT_UNITS, grant.throughput_units),
        (QuotaKind.PARTITIONS, grant.partitions),
    ):
        stored = catalog.quota_grant(namespace, kind)
        what = (value, grant.by, grant.note)
        if value is None or (stored and (stored.value, stored.granted_by, stored.note) == what):
            continue
        catalog.put_quota_grant(
            QuotaGrant(
                namespace=namespace,
                kind=kind,
                value=value,
                granted_by=grant.by,
                granted_ms=now_ms,
                note=grant.note,
            )
        )


def _seed_rule(
    catalog: Catalog, namespace: NamespaceName, hub: str | None, rule: RuleSettings, now_ms: int
) -> None:
    """Keys of the configuration replace stored ones. Keys that it leaves open stay as stored, or
    are random for a new rule."""
    stored = catalog.rule(namespace, hub, rule.name)
    before = stored or AuthorizationRule(
        namespace=namespace,
        hub=None if hub is None else names.hub_name(hub),
        name=rule.name,
        rights=rule.rights,
        primary_key=new_key(),
        secondary_key=new_key(),
        created_ms=now_ms,
        updated_ms=now_ms,
    )
    after = msgspec.structs.replace(
        before,
        rights=rule.rights,
        primary_key=rule.primary_key or before.primary_key,
        secondary_key=rule.secondary_key or before.secondary_key,
    )
    if after != stored:
        catalog.put_rule(msgspec.structs.replace(after, updated_ms=now_ms))


def seed_hub(
    catalog: Catalog, namespace: NamespaceName, stated: HubSettings, *, now_ms: int
) -> None:
    """Create the hub if it is absent, or update what the configuration states of it. Groups and
    rules are added."""
    stored = catalog.hub(namespace, stated.name)
    hub = stored or Hub(
        id=new_hub_id(),
        namespace=namespace,
        name=stated.name,
        partition_count=limits.PARTITION_COUNT_DEFAULT,
        created_ms=now_ms,
        updated_ms=now_ms,
    )
    hub = msgspec.structs.replace(
        hub,
        partition_count=stated.partition_count or hub.partition_count,
        retention_hours=stated.retention_hours or hub.retention_hours,
    )
    if hub != stored:
        catalog.put_hub(msgspec.structs.replace(hub, updated_ms=now_ms))
    for group in stated.groups:
        if catalog.group(namespace, stated.name, group) is None:
            catalog.put_group(
                ConsumerGroup(
                    namespace=namespace,
                    hub=stated.name,
                    name=group,
                    created_ms=now_ms,
                    updated_ms=now_ms,
                )
            )
    for rule in stated.rules:
        _seed_rule(catalog, namespace, stated.name, rule, now_ms)
