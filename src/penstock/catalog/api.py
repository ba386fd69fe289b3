"""The contract of the catalog: namespaces, hubs, consumer groups, rules, revoked publishers,
grants, the audit log; and those of the usage ledger and the metric history beside it.

Reads come from memory and never block; writes are durable when they return. Names compare
case-insensitively and are kept as they were given. Everything runs on the owner's thread.
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
    """One committed write: the entity before and after it; None: it was or is absent. Entities
    below a deleted one are gone too, without changes of their own."""

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
        # A new namespace or hub can make a token fit another entity; a deleted one takes its
        # rules with it.
        return isinstance(self.entity, Namespace | Hub)


OnChange = Callable[[CatalogChange], None]


class Catalog(Protocol):
    """`put_*` creates or replaces; `delete_*` of what is not there raises NotFound, and so does
    putting below a parent that is not there. Limits (counts, ranges) are checked: QuotaExceeded
    for counts, ArgumentOutOfRange for values, NotAllowed for changing a hub's partition count;
    QuotaExceeded too for what needs an operator's grant and has none."""

    def namespaces(self) -> list[Namespace]: ...
    def namespace(self, name: str) -> Namespace | None: ...

    def put_namespace(self, namespace: Namespace, *, audit: AuditEntry | None = None) -> None:
        """More units than anybody may take need a grant, unless they are held already. `audit`
        is recorded in the same transaction."""
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
        """`$Default` cannot be deleted: NotAllowed."""
        ...

    def rules(self, namespace: str, hub: str | None = None) -> list[AuthorizationRule]:
        """Rules of exactly that level: the namespace's own, or the hub's own."""
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
        """Recorded in the audit log in the same transaction."""
        ...

    def delete_quota_grant(self, namespace: str, kind: QuotaKind, *, by: str, now_ms: int) -> None:
        """Withdraw it, recorded as well; what is held by it stays until it is changed."""
        ...

    def append_audit(self, entry: AuditEntry) -> None:
        """The log only grows; deleting a namespace takes nothing out of it."""
        ...

    def audit(self, *, newest: int = ...) -> list[AuditEntry]:
        """The newest entries, newest first. Read from the store: it may block for a moment."""
        ...

    def subscribe(self, on_change: OnChange) -> Unsubscribe:
        """Call `on_change` after each committed write, with what it changed."""
        ...

    def close(self) -> None: ...


class UsageLedger(Protocol):
    """What each namespace used, hour by hour. One thread at a time, whichever."""

    def record(self, counts: Sequence[Usage]) -> None:
        """Durable, and all of them, when it returns; none when it raises. Each is the whole count
        of its (namespace, hour, run), which only grows: recorded again, it counts once."""
        ...

    def usage(self, *, since_ms: int = ..., until_ms: int = ...) -> list[Usage]:
        """Hours that begin in since_ms <= hour < until_ms, runs added up, by hour and name."""
        ...

    def close(self) -> None: ...


class MetricStore(Protocol):
    """Numbers over time at falling resolution (model/metrics.py). One thread at a time, whichever.
    Raises DataDirectoryError."""

    def record(self, at_ms: int, samples: Sequence[MetricSample]) -> None:
        """Add what was counted in the step that began at `at_ms`, to every resolution, all of it
        or nothing; what has grown too old goes. The last seconds may be lost in a power cut."""
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
        """At most `points` steps of since_ms <= t < until_ms, in the finest resolution that is
        kept for so long; of a hub also the lag of each of its groups."""
        ...

    def close(self) -> None: ...
