"""The catalog in memory: reads, and the rules about counts and parents, for all backends.

A backend adds a `CatalogStorage`, which makes each write durable before it is visible here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar

import msgspec

from penstock.catalog import validation
from penstock.catalog.api import CatalogChange, OnChange, Unsubscribe
from penstock.catalog.api import Entity as Entity
from penstock.model import limits
from penstock.model.entities import (
    AuditEntry,
    AuthorizationRule,
    ConsumerGroup,
    Hub,
    Namespace,
    RevokedPublisher,
)
from penstock.model.errors import AlreadyExists, NotAllowed, NotFound, QuotaExceeded
from penstock.model.names import DEFAULT_GROUP, fold_name, quote_text
from penstock.model.quotas import QuotaGrant, QuotaKind

Record = Entity | AuditEntry

AUDIT_NEWEST = 100

_R = TypeVar("_R", Namespace, Hub, ConsumerGroup, AuthorizationRule, RevokedPublisher)
_Level = tuple[str, str | None]  # keys of namespace and hub; None: the namespace's own


class CatalogStorage(Protocol):
    """Each call is one transaction: durable when it returns, without effect when it raises."""

    def put(self, records: tuple[Record, ...]) -> None:
        """Insert or replace; a parent precedes its children."""
        ...

    def delete(self, record: Entity, *audit: AuditEntry) -> None:
        """Remove the entity and all entities below it, and append the audit entries."""
        ...

    def audit(self, newest: int) -> list[AuditEntry]:
        """Newest first."""
        ...

    def close(self) -> None: ...


class CatalogIndex:
    """Implements `catalog.api.Catalog` over a storage.

    The spelling of a name is fixed at creation: later writes and children get that spelling.
    """

    def __init__(self, store: CatalogStorage, records: Iterable[Record] = ()) -> None:
        self._store = store
        self._namespaces: dict[str, Namespace] = {}
        self._hubs: dict[str, dict[str, Hub]] = {}
        self._groups: dict[_Level, dict[str, ConsumerGroup]] = {}
        self._rules: dict[_Level, dict[str, AuthorizationRule]] = {}
        self._revoked: dict[_Level, dict[str, RevokedPublisher]] = {}
        self._grants: dict[str, dict[QuotaKind, QuotaGrant]] = {}
        self._hub_ids: set[str] = set()
        self._reserved: Mapping[tuple[str, str], str] = {}
        self._subscribers: dict[object, OnChange] = {}
        for record in records:
            self._apply(record)

    # --- namespaces -----------------------------------------------------------------------------

    def namespaces(self) -> list[Namespace]:
        return _sort_by_name(self._namespaces)

    def namespace(self, name: str) -> Namespace | None:
        return self._namespaces.get(fold_name(name))

    def put_namespace(self, namespace: Namespace, *, audit: AuditEntry | None = None) -> None:
        validation.check_namespace(namespace)
        old = self.namespace(namespace.name)
        if old is not None:
            namespace = msgspec.structs.replace(namespace, name=old.name)
        held = () if old is None else (old.throughput_units, old.maximum_throughput_units)
        for requested in (namespace.throughput_units, namespace.maximum_throughput_units):
            if requested not in held:
                self._check_granted(namespace, QuotaKind.THROUGHPUT_UNITS, requested)
        if audit is None:
            self._put(namespace)
        else:
            validation.check_audit(audit)
            self._put(namespace, audit)

    def delete_namespace(self, name: str) -> None:
        namespace = self._parent_namespace(name)
        self._store.delete(namespace)
        for hub in self.hubs(name):
            self._forget_hub(hub)
        self._hubs.pop(fold_name(name), None)
        self._rules.pop((fold_name(name), None), None)
        self._grants.pop(fold_name(name), None)
        del self._namespaces[fold_name(name)]
        self._notify(CatalogChange(namespace, None))

    # --- hubs -----------------------------------------------------------------------------------

    def hubs(self, namespace: str) -> list[Hub]:
        return _sort_by_name(self._hubs.get(fold_name(namespace), {}))

    def hub(self, namespace: str, name: str) -> Hub | None:
        return self._hubs.get(fold_name(namespace), {}).get(fold_name(name))

    def put_hub(self, hub: Hub) -> None:
        namespace = self._parent_namespace(hub.namespace)
        old = self.hub(hub.namespace, hub.name)
        if old is None:
            reason = self._reserved.get((fold_name(hub.namespace), fold_name(hub.name)))
            if reason is not None:
                raise AlreadyExists(f"The event hub '{hub.name}' cannot be created. {reason}")
            validation.check_hub(hub)
            grant = self.quota_grant(namespace.name, QuotaKind.PARTITIONS)
            validation.check_partition_count(hub.partition_count, namespace.limits, grant)
            self._check_granted(namespace, QuotaKind.PARTITIONS, hub.partition_count)
            if hub.id in self._hub_ids:
                raise AlreadyExists(f"The hub id '{hub.id}' belongs to another event hub.")
            hub = msgspec.structs.replace(hub, namespace=namespace.name)
            self._put(hub, _default_group(hub))
            return
        if hub.partition_count != old.partition_count:
            raise NotAllowed(
                f"The event hub '{old.name}' has {old.partition_count} partitions: "
                f"the count is fixed at creation and cannot become {hub.partition_count}."
            )
        if hub.id != old.id:
            raise NotAllowed(f"The event hub '{old.name}' keeps its id; delete it to make it anew.")
        # The count is not checked again: the limits may have changed since the hub was created.
        validation.check_hub(hub)
        self._put(msgspec.structs.replace(hub, namespace=namespace.name, name=old.name))

    def reserve_hubs(self, reasons: Mapping[tuple[str, str], str]) -> None:
        """Refuse to create these hubs (folded names of namespace and hub), with a reason each."""
        self._reserved = reasons

    def delete_hub(self, namespace: str, name: str) -> None:
        hub = self._parent_hub(namespace, name)
        self._store.delete(hub)
        self._forget_hub(hub)
        self._notify(CatalogChange(hub, None))

    # --- consumer groups ------------------------------------------------------------------------

    def groups(self, namespace: str, hub: str) -> list[ConsumerGroup]:
        return _sort_by_name(self._groups.get(_level(namespace, hub), {}))

    def group(self, namespace: str, hub: str, name: str) -> ConsumerGroup | None:
        return self._groups.get(_level(namespace, hub), {}).get(fold_name(name))

    def put_group(self, group: ConsumerGroup) -> None:
        validation.check_group(group)
        hub = self._parent_hub(group.namespace, group.hub)
        old = self.group(group.namespace, group.hub, group.name)
        beside_default = len(self._groups.get(_level(group.namespace, group.hub), {})) - 1
        if old is None and beside_default >= limits.CONSUMER_GROUPS_MAX:
            raise QuotaExceeded(
                f"The event hub '{hub.name}' has {beside_default} consumer groups beside "
                f"{DEFAULT_GROUP}: at most {limits.CONSUMER_GROUPS_MAX} are allowed."
            )
        name = group.name if old is None else old.name
        self._put(msgspec.structs.replace(group, namespace=hub.namespace, hub=hub.name, name=name))

    def delete_group(self, namespace: str, hub: str, name: str) -> None:
        self._parent_hub(namespace, hub)
        group = self.group(namespace, hub, name)
        if group is None:
            raise _not_found_error("consumer group", name)
        if group.name == DEFAULT_GROUP:
            raise NotAllowed(f"The consumer group {DEFAULT_GROUP} cannot be deleted.")
        self._store.delete(group)
        del self._groups[_level(namespace, hub)][fold_name(name)]
        self._notify(CatalogChange(group, None))

    # --- authorization rules --------------------------------------------------------------------

    def rules(self, namespace: str, hub: str | None = None) -> list[AuthorizationRule]:
        return _sort_by_name(self._rules.get(_level(namespace, hub), {}))

    def rule(self, namespace: str, hub: str | None, name: str) -> AuthorizationRule | None:
        return self._rules.get(_level(namespace, hub), {}).get(fold_name(name))

    def put_rule(self, rule: AuthorizationRule) -> None:
        validation.check_rule(rule)
        namespace = self._parent_namespace(rule.namespace)
        hub = None if rule.hub is None else self._parent_hub(rule.namespace, rule.hub).name
        old = self.rule(rule.namespace, rule.hub, rule.name)
        count = len(self._rules.get(_level(rule.namespace, rule.hub), {}))
        if old is None and count >= limits.AUTHORIZATION_RULES_MAX:
            raise QuotaExceeded(
                f"'{hub or namespace.name}' has {count} authorization rules: "
                f"at most {limits.AUTHORIZATION_RULES_MAX} are allowed."
            )
        name = rule.name if old is None else old.name
        self._put(msgspec.structs.replace(rule, namespace=namespace.name, hub=hub, name=name))

    def delete_rule(self, namespace: str, hub: str | None, name: str) -> None:
        self._parent_namespace(namespace)
        if hub is not None:
            self._parent_hub(namespace, hub)
        rule = self.rule(namespace, hub, name)
        if rule is None:
            raise _not_found_error("authorization rule", name)
        self._store.delete(rule)
        del self._rules[_level(namespace, hub)][fold_name(name)]
        self._notify(CatalogChange(rule, None))

    # --- revoked publishers ---------------------------------------------------------------------

    def revoked_publishers(self, namespace: str, hub: str) -> list[RevokedPublisher]:
        return _sort_by_name(self._revoked.get(_level(namespace, hub), {}))

    def revoked_publisher(self, namespace: str, hub: str, name: str) -> RevokedPublisher | None:
        return self._revoked.get(_level(namespace, hub), {}).get(fold_name(name))

    def put_revoked_publisher(self, publisher: RevokedPublisher) -> None:
        validation.check_revoked_publisher(publisher)
        hub = self._parent_hub(publisher.namespace, publisher.hub)
        old = self.revoked_publisher(publisher.namespace, publisher.hub, publisher.name)
        count = len(self._revoked.get(_level(publisher.namespace, publisher.hub), {}))
        if old is None and count >= limits.REVOKED_PUBLISHERS_MAX:
            raise QuotaExceeded(
                f"The event hub '{hub.name}' has {count} revoked publishers: "
                f"at most {limits.REVOKED_PUBLISHERS_MAX} are allowed."
            )
        name = publisher.name if old is None else old.name
        self._put(
            msgspec.structs.replace(publisher, namespace=hub.namespace, hub=hub.name, name=name)
        )

    def delete_revoked_publisher(self, namespace: str, hub: str, name: str) -> None:
        self._parent_hub(namespace, hub)
        publisher = self.revoked_publisher(namespace, hub, name)
        if publisher is None:
            raise _not_found_error("revoked publisher", name)
        self._store.delete(publisher)
        del self._revoked[_level(namespace, hub)][fold_name(name)]
        self._notify(CatalogChange(publisher, None))

    # --- grants and the audit log ---------------------------------------------------------------

    def quota_grants(self, namespace: str) -> list[QuotaGrant]:
        grants = self._grants.get(fold_name(namespace), {})
        return [grants[kind] for kind in sorted(grants)]

    def quota_grant(self, namespace: str, kind: QuotaKind) -> QuotaGrant | None:
        return self._grants.get(fold_name(namespace), {}).get(kind)

    def put_quota_grant(self, grant: QuotaGrant) -> None:
        validation.check_quota_grant(grant)
        namespace = self._parent_namespace(grant.namespace)
        grant = msgspec.structs.replace(grant, namespace=namespace.name)
        self._put(grant, validation.grant_audit_entry(grant))

    def delete_quota_grant(self, namespace: str, kind: QuotaKind, *, by: str, now_ms: int) -> None:
        self._parent_namespace(namespace)
        grant = self.quota_grant(namespace, kind)
        if grant is None:
            raise _not_found_error("grant", f"{kind} of {namespace}")
        entry = validation.withdrawal_audit_entry(grant, by=by, now_ms=now_ms)
        validation.check_audit(entry)
        self._store.delete(grant, entry)
        del self._grants[fold_name(namespace)][kind]
        self._notify(CatalogChange(grant, None))

    def append_audit(self, entry: AuditEntry) -> None:
        validation.check_audit(entry)
        self._store.put((entry,))

    def audit(self, *, newest: int = AUDIT_NEWEST) -> list[AuditEntry]:
        return self._store.audit(newest)

    def _check_granted(self, namespace: Namespace, kind: QuotaKind, requested: int | None) -> None:
        grant = self.quota_grant(namespace.name, kind)
        validation.check_granted(namespace.name, kind, requested, grant)

    # --------------------------------------------------------------------------------------------

    def subscribe(self, on_change: OnChange) -> Unsubscribe:
        ticket = object()
        self._subscribers[ticket] = on_change

        def unsubscribe() -> None:
            self._subscribers.pop(ticket, None)

        return unsubscribe

    def close(self) -> None:
        self._subscribers.clear()
        self._store.close()

    def _put(self, *records: Record) -> None:
        """Store first, then apply: if the storage raises, nothing has changed in memory."""
        before = self._find(records[0])
        self._store.put(records)
        for record in records:
            self._apply(record)
        # Records that are written along with an entity (its audit entry, the first group of a hub)
        # are not reported as changes.
        if not isinstance(records[0], AuditEntry):
            self._notify(CatalogChange(before, records[0]))

    def _find(self, record: Record) -> Entity | None:
        """The stored entity that `record` replaces."""
        match record:
            case Namespace():
                return self.namespace(record.name)
            case Hub():
                return self.hub(record.namespace, record.name)
            case ConsumerGroup():
                return self.group(record.namespace, record.hub, record.name)
            case AuthorizationRule():
                return self.rule(record.namespace, record.hub, record.name)
            case RevokedPublisher():
                return self.revoked_publisher(record.namespace, record.hub, record.name)
            case QuotaGrant():
                return self.quota_grant(record.namespace, record.kind)
        return None

    def _apply(self, record: Record) -> None:
        match record:
            case Namespace():
                self._namespaces[fold_name(record.name)] = record
            case Hub():
                self._hubs.setdefault(fold_name(record.namespace), {})[fold_name(record.name)] = (
                    record
                )
                self._hub_ids.add(record.id)
            case ConsumerGroup():
                groups = self._groups.setdefault(_level(record.namespace, record.hub), {})
                groups[fold_name(record.name)] = record
            case AuthorizationRule():
                rules = self._rules.setdefault(_level(record.namespace, record.hub), {})
                rules[fold_name(record.name)] = record
            case RevokedPublisher():
                revoked = self._revoked.setdefault(_level(record.namespace, record.hub), {})
                revoked[fold_name(record.name)] = record
            case QuotaGrant():
                self._grants.setdefault(fold_name(record.namespace), {})[record.kind] = record
            case AuditEntry():
                pass  # only in the storage

    def _forget_hub(self, hub: Hub) -> None:
        level = _level(hub.namespace, hub.name)
        self._groups.pop(level, None)
        self._rules.pop(level, None)
        self._revoked.pop(level, None)
        self._hub_ids.discard(hub.id)
        del self._hubs[fold_name(hub.namespace)][fold_name(hub.name)]

    def _parent_namespace(self, name: str) -> Namespace:
        namespace = self.namespace(name)
        if namespace is None:
            raise _not_found_error("namespace", name)
        return namespace

    def _parent_hub(self, namespace: str, name: str) -> Hub:
        self._parent_namespace(namespace)
        hub = self.hub(namespace, name)
        if hub is None:
            raise _not_found_error("event hub", name)
        return hub

    def _notify(self, change: CatalogChange) -> None:
        for on_change in tuple(self._subscribers.values()):
            on_change(change)


def _level(namespace: str, hub: str | None) -> _Level:
    return fold_name(namespace), None if hub is None else fold_name(hub)


def _sort_by_name(records: dict[str, _R]) -> list[_R]:
    return [records[name] for name in sorted(records)]


def _default_group(hub: Hub) -> ConsumerGroup:
    return ConsumerGroup(
        namespace=hub.namespace,
        hub=hub.name,
        name=DEFAULT_GROUP,
        created_ms=hub.created_ms,
        updated_ms=hub.created_ms,
    )


def _not_found_error(what: str, name: str) -> NotFound:
    return NotFound(f"The {what} '{quote_text(name)}' does not exist.")
