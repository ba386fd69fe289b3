"""Contracts of the catalog (namespaces, hubs, consumer groups, rules, revoked publishers, quota
grants, audit log), the usage ledger and the metric store.

Catalog reads come from memory and do not block; writes are durable when they return. Names are
compared without case and keep the spelling of their creation. The catalog is used on the owner's
thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from penstock.model.entities import (
    AuditEntry,
    AuthorizationRule,
    ConsumerGroup,
    Hub,
    Namespace,
    RevokedPublisher,
)
from penstock.model.metrics import MetricSample, MetricSeries
from penstock.model.quotas import QuotaGrant, QuotaKind
from penstock.model.usage import Usage

Unsubscribe = Callable[[], None]
Entity = Namespace | Hub | ConsumerGroup | AuthorizationRule | RevokedPublisher | QuotaGrant


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


class Catalog(Protocol):
    """`put_*` creates or replaces. Both `put_*` and `delete_*` raise NotFound for a missing parent,
    `delete_*` also for a missing entity. Limits raise QuotaExceeded for counts and for values that
    need a quota grant, ArgumentOutOfRange for other values, NotAllowed for a change of the
    partition count of a hub."""

    def namespaces(self) -> list[Namespace]: ...
    def namespace(self, name: str) -> Namespace | None: ...

    def put_namespace(self, namespace: Namespace, *, audit: AuditEntry | None = None) -> None:
        """Units above the self-service limit need a quota grant, unless the namespace holds them
        already. `audit` is stored in the same transaction."""
        ...

    def delete_namespace(self, name: str) -> None: ...

    def hubs(self, namespace: str) -> list[Hub]: ...
    def hub(self, namespace: str, name: str) -> Hub | None: ...

    def put_hub(self, hub: Hub) -> None:
        """A new hub gets its `$Default` group in the same transaction."""
        ...

    def delete_hub(self, namespace: str, name: str) -> None: ...

    def groups(self, namespace: str, hub: str) -> list[ConsumerGroup]: ...
    def group(self, namespace: str, hub: str, name: str) -> ConsumerGroup | None: ...
    def put_group(self, group: ConsumerGroup) -> None: ...

    def delete_group(self, namespace: str, hub: str, name: str) -> None:
        """Raises NotAllowed for `$Default`."""
        ...

    def rules(self, namespace: str, hub: str | None = None) -> list[AuthorizationRule]:
        """Rules of exactly that level: of the namespace, or of the hub."""
        ...

    def rule(self, namespace: str, hub: str | None, name: str) -> AuthorizationRule | None: ...
    def put_rule(self, rule: AuthorizationRule) -> None: ...
    def delete_rule(self, namespace: str, hub: str | None, name: str) -> None: ...

    def revoked_publishers(self, namespace: str, hub: str) -> list[RevokedPublisher]: ...
    def revoked_publisher(self, namespace: str, hub: str, name: str) -> RevokedPublisher | None: ...
    def put_revoked_publisher(self, publisher: RevokedPublisher) -> None: ...
    def delete_revoked_publisher(self, namespace: str, hub: str, name: str) -> None: ...

    def quota_grants(self, namespace: str) -> list[QuotaGrant]: ...
    def quota_grant(self, namespace: str, kind: QuotaKind) -> QuotaGrant | None: ...

    def put_quota_grant(self, grant: QuotaGrant) -> None:
        """Store the grant and its audit entry in one transaction."""
        ...

    def delete_quota_grant(self, namespace: str, kind: QuotaKind, *, by: str, now_ms: int) -> None:
        """Withdraw the grant, with an audit entry. Units and partitions that exist stay."""
        ...

    def append_audit(self, entry: AuditEntry) -> None:
        """The audit log is append-only; deleting a namespace removes nothing from it."""
        ...

    def audit(self, *, newest: int = ...) -> list[AuditEntry]:
        """The newest entries, newest first. Reads the storage and may block briefly."""
        ...

    def subscribe(self, on_change: OnChange) -> Unsubscribe:
        """Call `on_change` after each committed write."""
        ...

    def close(self) -> None: ...


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

    def read(
        self,
        namespace: str,
        hub: str | None,
        *,
        names: Sequence[str],
        since_ms: int,
        until_ms: int,
        points: int,
        now_ms: int,
    ) -> MetricSeries:
        """At most `points` steps with since_ms <= start < until_ms, in the finest resolution that
        is retained that long; for a hub also the lag of each of its groups."""
        ...

    def close(self) -> None: ...
