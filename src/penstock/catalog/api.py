"""The catalog (namespaces, hubs, consumer groups, rules, revoked publishers, quota grants, audit
log), and the contracts of the usage ledger and of the metric store.

Catalog reads come from memory and do not block; writes are durable when they return. Names are
compared without case and keep the spelling of their creation: later writes and children get that
spelling. The catalog is used on the owner's thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar, get_args

import msgspec

from penstock.catalog import validation
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
from penstock.model.metrics import MetricRequest, MetricSample, MetricSeries
from penstock.model.names import DEFAULT_GROUP, HubName, NamespaceName, fold_name, quote_text
from penstock.model.quotas import QuotaGrant, QuotaKind
from penstock.model.usage import Usage

Unsubscribe = Callable[[], None]
Entity = Namespace | Hub | ConsumerGroup | AuthorizationRule | RevokedPublisher | QuotaGrant
Record = Entity | AuditEntry

_AUDIT_MAX = 10_000  # entries in memory

_E = TypeVar("_E", bound=Entity)
# The folded names of an entity's parents and its own. Without a hub a rule is the namespace's own.
_Path = tuple[str | None, ...]


class CatalogChange(msgspec.Struct, frozen=True):
    """One committed write: the entity before and after it, None where it did not or does not exist.
    Entities below a deleted one are deleted too, without changes of their own."""

    before: Entity | None
    after: Entity | None

    @property
    def entity(self) -> Entity:
        entity = self.before if self.after is None else self.after
        assert entity is not None
        return entity

    @property
    def affects_links(self) -> bool:
        """Whether a link or a token that was accepted may have to be refused now."""
        before, after = self.before, self.after
        if isinstance(self.entity, AuthorizationRule):
            return True
        if isinstance(before, Namespace) and isinstance(after, Namespace):
            return before.hosts != after.hosts
        if isinstance(before, Hub) and isinstance(after, Hub):
            return before.status is not after.status
        # With a new namespace or hub a token may match another entity; a deleted one loses its
        # rules.
        return isinstance(self.entity, Namespace | Hub)


OnChange = Callable[[CatalogChange], None]


class _Entities(Generic[_E]):
    """The entities of one kind, by the path of their parent and their own name."""

    def __init__(self) -> None:
        self._levels: dict[_Path, dict[str | None, _E]] = {}

    def __iter__(self) -> Iterator[_E]:
        return (entity for level in self._levels.values() for entity in level.values())

    def below(self, *parents: str | None) -> list[_E]:
        """Sorted by name."""
        level = self._levels.get(_fold(*parents), {})
        return [level[key] for key in sorted(level, key=str)]

    def count_below(self, *parents: str | None) -> int:
        return len(self._levels.get(_fold(*parents), ()))

    def find(self, *names: str | None) -> _E | None:
        path = _fold(*names)
        return self._levels.get(path[:-1], {}).get(path[-1])

    def put(self, entity: _E) -> None:
        path = _path(entity)
        self._levels.setdefault(path[:-1], {})[path[-1]] = entity

    def remove(self, path: _Path) -> None:
        """The entity of that path, if it is of this kind, and those of this kind below it."""
        self._levels.get(path[:-1], {}).pop(path[-1], None)
        self._levels.pop(path, None)
        self._levels.pop((*path, None), None)


class Catalog:
    """`put_*` creates or replaces. Both `put_*` and `delete_*` raise NotFound for a missing parent,
    `delete_*` also for a missing entity. Limits raise QuotaExceeded for counts and for values that
    need a quota grant, ArgumentOutOfRange for other values, NotAllowed for a change of the
    partition count of a hub.

    This class keeps everything in memory: for tests, and for brokers without a disk. SqliteCatalog
    stores each change in a file too; it overrides the methods below `storage`."""

    def __init__(self, records: Iterable[Entity] = ()) -> None:
        self._kinds: dict[type, _Entities[Any]] = {kind: _Entities() for kind in get_args(Entity)}
        self._namespaces: _Entities[Namespace] = self._kinds[Namespace]
        self._hubs: _Entities[Hub] = self._kinds[Hub]
        self._groups: _Entities[ConsumerGroup] = self._kinds[ConsumerGroup]
        self._rules: _Entities[AuthorizationRule] = self._kinds[AuthorizationRule]
        self._revoked: _Entities[RevokedPublisher] = self._kinds[RevokedPublisher]
        self._grants: _Entities[QuotaGrant] = self._kinds[QuotaGrant]
        self._reserved: Mapping[tuple[str, str], str] = {}
        self._subscribers: dict[object, OnChange] = {}
        self._audit: deque[AuditEntry] = deque(maxlen=_AUDIT_MAX)
        for record in records:
            self._kinds[type(record)].put(record)

    # --- namespaces -----------------------------------------------------------------------------

    def namespaces(self) -> list[Namespace]:
        return self._namespaces.below()

    def namespace(self, name: str) -> Namespace | None:
        return self._namespaces.find(name)

    def put_namespace(self, namespace: Namespace, *, audit: AuditEntry | None = None) -> None:
        """Units above the self-service limit need a quota grant, unless the namespace holds them
        already. `audit` is stored in the same transaction."""
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
        self._delete(self._parent_namespace(name))

    # --- hubs -----------------------------------------------------------------------------------

    def hubs(self, namespace: str | None = None) -> list[Hub]:
        """The hubs of one namespace, or of all."""
        if namespace is None:
            return [hub for parent in self.namespaces() for hub in self.hubs(parent.name)]
        return self._hubs.below(namespace)

    def hub(self, namespace: str, name: str) -> Hub | None:
        return self._hubs.find(namespace, name)

    def put_hub(self, hub: Hub) -> None:
        """A new hub gets its `$Default` group in the same transaction."""
        namespace = self._parent_namespace(hub.namespace)
        old = self.hub(hub.namespace, hub.name)
        if old is None:
            self._create_hub(msgspec.structs.replace(hub, namespace=namespace.name), namespace)
            return
        if hub.partition_count != old.partition_count:
            raise NotAllowed(
                f"The event hub '{old.name}' has {old.partition_count} partitions: "
                f"the count is fixed at creation and cannot become {hub.partition_count}."
            )
        if hub.id != old.id:
            raise NotAllowed(
                f"The event hub '{old.name}' keeps its id; delete and create it again."
            )
        # The count is not checked again: the limits may have changed since the hub was created.
        validation.check_hub(hub)
        self._put(msgspec.structs.replace(hub, namespace=namespace.name, name=old.name))

    def _create_hub(self, hub: Hub, namespace: Namespace) -> None:
        reason = self._reserved.get((fold_name(hub.namespace), fold_name(hub.name)))
        if reason is not None:
            raise AlreadyExists(f"The event hub '{hub.name}' cannot be created. {reason}")
        validation.check_hub(hub)
        grant = self.quota_grant(namespace.name, QuotaKind.PARTITIONS)
        validation.check_partition_count(hub.partition_count, namespace.limits, grant)
        self._check_granted(namespace, QuotaKind.PARTITIONS, hub.partition_count)
        if any(hub.id == other.id for other in self._hubs):
            raise AlreadyExists(f"The hub id '{hub.id}' belongs to another event hub.")
        group = ConsumerGroup(
            namespace=hub.namespace,
            hub=hub.name,
            name=DEFAULT_GROUP,
            created_ms=hub.created_ms,
            updated_ms=hub.created_ms,
        )
        self._put(hub, group)

    def reserve_hubs(self, reasons: Mapping[tuple[str, str], str]) -> None:
        """Refuse to create these hubs (folded names of namespace and hub), with a reason each."""
        self._reserved = reasons

    def delete_hub(self, namespace: str, name: str) -> None:
        self._delete(self._parent_hub(namespace, name))

    # --- consumer groups ------------------------------------------------------------------------

    def groups(self, namespace: str, hub: str) -> list[ConsumerGroup]:
        return self._groups.below(namespace, hub)

    def group(self, namespace: str, hub: str, name: str) -> ConsumerGroup | None:
        return self._groups.find(namespace, hub, name)

    def put_group(self, group: ConsumerGroup) -> None:
        validation.check_group(group)
        hub = self._parent_hub(group.namespace, group.hub)
        count = self._groups.count_below(hub.namespace, hub.name) - 1
        owner = f"The event hub '{hub.name}' has {count} consumer groups beside {DEFAULT_GROUP}"
        self._refuse_more(group, owner, count, limits.CONSUMER_GROUPS_MAX)
        self._put_child(group, hub.namespace, hub.name)

    def delete_group(self, namespace: str, hub: str, name: str) -> None:
        """Raises NotAllowed for `$Default`."""
        self._parent_hub(namespace, hub)
        group = require_entity(self.group(namespace, hub, name), "consumer group", name)
        if group.name == DEFAULT_GROUP:
            raise NotAllowed(f"The consumer group {DEFAULT_GROUP} cannot be deleted.")
        self._delete(group)

    # --- authorization rules --------------------------------------------------------------------

    def rules(self, namespace: str, hub: str | None = None) -> list[AuthorizationRule]:
        """Rules of exactly that level: of the namespace, or of the hub."""
        return self._rules.below(namespace, hub)

    def rule(self, namespace: str, hub: str | None, name: str) -> AuthorizationRule | None:
        return self._rules.find(namespace, hub, name)

    def put_rule(self, rule: AuthorizationRule) -> None:
        validation.check_rule(rule)
        namespace = self._parent_namespace(rule.namespace).name
        hub = None if rule.hub is None else self._parent_hub(namespace, rule.hub).name
        count = self._rules.count_below(namespace, hub)
        owner = f"'{hub or namespace}' has {count} authorization rules"
        self._refuse_more(rule, owner, count, limits.AUTHORIZATION_RULES_MAX)
        self._put_child(rule, namespace, hub)

    def delete_rule(self, namespace: str, hub: str | None, name: str) -> None:
        self._parent_namespace(namespace)
        if hub is not None:
            self._parent_hub(namespace, hub)
        self._delete(require_entity(self.rule(namespace, hub, name), "authorization rule", name))

    # --- revoked publishers ---------------------------------------------------------------------

    def revoked_publishers(self, namespace: str, hub: str) -> list[RevokedPublisher]:
        return self._revoked.below(namespace, hub)

    def revoked_publisher(self, namespace: str, hub: str, name: str) -> RevokedPublisher | None:
        return self._revoked.find(namespace, hub, name)

    def put_revoked_publisher(self, publisher: RevokedPublisher) -> None:
        validation.check_revoked_publisher(publisher)
        hub = self._parent_hub(publisher.namespace, publisher.hub)
        count = self._revoked.count_below(hub.namespace, hub.name)
        owner = f"The event hub '{hub.name}' has {count} revoked publishers"
        self._refuse_more(publisher, owner, count, limits.REVOKED_PUBLISHERS_MAX)
        self._put_child(publisher, hub.namespace, hub.name)

    def delete_revoked_publisher(self, namespace: str, hub: str, name: str) -> None:
        self._parent_hub(namespace, hub)
        publisher = self.revoked_publisher(namespace, hub, name)
        self._delete(require_entity(publisher, "revoked publisher", name))

    # --- grants and the audit log ---------------------------------------------------------------

    def quota_grants(self, namespace: str) -> list[QuotaGrant]:
        return self._grants.below(namespace)

    def quota_grant(self, namespace: str, kind: QuotaKind) -> QuotaGrant | None:
        return self._grants.find(namespace, kind)

    def put_quota_grant(self, grant: QuotaGrant) -> None:
        """Store the grant and its audit entry in one transaction."""
        validation.check_quota_grant(grant)
        namespace = self._parent_namespace(grant.namespace)
        grant = msgspec.structs.replace(grant, namespace=namespace.name)
        self._put(grant, validation.grant_audit_entry(grant))

    def delete_quota_grant(self, namespace: str, kind: QuotaKind, *, by: str, now_ms: int) -> None:
        """Withdraw the grant, with an audit entry. Units and partitions that exist stay."""
        self._parent_namespace(namespace)
        grant = require_entity(self.quota_grant(namespace, kind), "grant", f"{kind} of {namespace}")
        entry = validation.withdrawal_audit_entry(grant, by=by, now_ms=now_ms)
        validation.check_audit(entry)
        self._delete(grant, entry)

    def append_audit(self, entry: AuditEntry) -> None:
        """The audit log is append-only; deleting a namespace removes nothing from it."""
        validation.check_audit(entry)
        self._store((entry,))

    def _check_granted(self, namespace: Namespace, kind: QuotaKind, requested: int | None) -> None:
        grant = self.quota_grant(namespace.name, kind)
        validation.check_granted(namespace.name, kind, requested, grant)

    # --- storage: each write is one transaction, without effect if it raises ---------------------

    def audit(self, *, newest: int = 100) -> list[AuditEntry]:
        """The newest entries, newest first. May block briefly."""
        return list(reversed(self._audit))[:newest]

    def deleted_hubs(self) -> list[str]:
        """Ids of deleted hubs whose log may still be on disk."""
        return []

    def forget_deleted_hubs(self, ids: Collection[str]) -> None:
        """The logs of these hubs are deleted."""

    def close(self) -> None:
        self._subscribers.clear()

    def _store(self, records: Sequence[Record]) -> None:
        """Insert or replace; a parent precedes its children."""
        self._audit.extend(record for record in records if isinstance(record, AuditEntry))

    def _store_deletion(self, entity: Entity, audit: Sequence[AuditEntry]) -> None:
        """Remove the entity and all entities below it, and append the audit entries."""
        self._audit.extend(audit)

    # --------------------------------------------------------------------------------------------

    def subscribe(self, on_change: OnChange) -> Unsubscribe:
        """Call `on_change` after each committed write."""
        ticket = object()
        self._subscribers[ticket] = on_change

        def unsubscribe() -> None:
            self._subscribers.pop(ticket, None)

        return unsubscribe

    def _put(self, entity: Entity, *others: ConsumerGroup | AuditEntry) -> None:
        """Store first, then apply: if the storage raises, nothing has changed in memory. `others`,
        which are written along with the entity, are not reported as changes."""
        before = self._find(entity)
        self._store((entity, *others))
        for record in (entity, *others):
            if not isinstance(record, AuditEntry):
                self._kinds[type(record)].put(record)
        self._notify(CatalogChange(before, entity))

    def _put_child(
        self,
        entity: ConsumerGroup | AuthorizationRule | RevokedPublisher,
        namespace: NamespaceName,
        hub: HubName | None,
    ) -> None:
        """Store it with the names of its parents and its own as they were spelled at creation."""
        old = self._find(entity)
        name = entity.name if old is None else old.name
        self._put(msgspec.structs.replace(entity, namespace=namespace, hub=hub, name=name))

    def _refuse_more(self, entity: Entity, owner: str, count: int, most: int) -> None:
        if count >= most and self._find(entity) is None:
            raise QuotaExceeded(f"{owner}: at most {most} are allowed.")

    def _find(self, entity: _E) -> _E | None:
        """The stored entity that `entity` replaces."""
        return self._kinds[type(entity)].find(*_path(entity))

    def _delete(self, entity: Entity, *audit: AuditEntry) -> None:
        """Delete it with all entities below it."""
        self._store_deletion(entity, audit)
        if isinstance(entity, Namespace):
            for hub in self.hubs(entity.name):
                self._remove(hub)
        self._remove(entity)
        self._notify(CatalogChange(entity, None))

    def _remove(self, entity: Entity) -> None:
        for entities in self._kinds.values():
            entities.remove(_path(entity))

    def _parent_namespace(self, name: str) -> Namespace:
        return require_entity(self.namespace(name), "namespace", name)

    def _parent_hub(self, namespace: str, name: str) -> Hub:
        self._parent_namespace(namespace)
        return require_entity(self.hub(namespace, name), "event hub", name)

    def _notify(self, change: CatalogChange) -> None:
        for on_change in tuple(self._subscribers.values()):
            on_change(change)


def _path(entity: Entity) -> _Path:
    match entity:
        case Namespace():
            return _fold(entity.name)
        case Hub():
            return _fold(entity.namespace, entity.name)
        case QuotaGrant():
            return _fold(entity.namespace, entity.kind)
        case _:
            return _fold(entity.namespace, entity.hub, entity.name)


def _fold(*names: str | None) -> _Path:
    return tuple(None if name is None else fold_name(name) for name in names)


def require_entity(entity: _E | None, what: str, name: str) -> _E:
    """The entity. Raises NotFound for None."""
    if entity is None:
        raise NotFound(f"The {what} '{quote_text(name)}' does not exist.")
    return entity


class UsageLedger(Protocol):
    """Usage of each namespace per hour. Any thread, one at a time."""

    def record(self, counts: Sequence[Usage]) -> None:
        """Store all counts durably, or none if it raises. Each is the total of its (namespace,
        hour, run) and only grows, so recording one again has no effect."""
        ...

    def usage(self, *, since_ms: int = ..., until_ms: int = ...) -> list[Usage]:
        """Hours with since_ms <= start < until_ms, runs added up, sorted by hour and namespace."""
        ...

    def close(self) -> None: ...


class MetricStore(Protocol):
    """Metrics over time, older ones in larger steps (model/metrics.py). Any thread, one at a time.
    Raises DataDirectoryError."""

    def record(self, at_ms: int, samples: Sequence[MetricSample]) -> None:
        """Add the samples of the step that began at `at_ms` to every resolution, all or none, and
        delete expired ones. A power cut may lose the last seconds."""
        ...

    def read(self, request: MetricRequest, *, now_ms: int) -> MetricSeries:
        """The steps in the finest resolution that is retained that long; for a hub also the lag of
        each of its groups."""
        ...
