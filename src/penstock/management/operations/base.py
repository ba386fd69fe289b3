"""What all acts share: the things they act on, the check of rights, the audit entry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Protocol

import msgspec

from penstock.broker import Broker
from penstock.broker.lag import CheckpointReader, LagRow
from penstock.catalog.api import Catalog, UsageLedger
from penstock.management.capture_registry import CaptureRegistry
from penstock.management.jobs import CAPTURE_JOB, JobRegistry
from penstock.management.permissions import (
    Action,
    Actor,
    AdminRole,
    Forbidden,
    ProcessRole,
    Verified,
)
from penstock.model import limits, names
from penstock.model.checkpoints import Checkpoint
from penstock.model.clock import Clock
from penstock.model.entities import AuditEntry, Hub, LimitSet, Namespace, Secret
from penstock.model.errors import NotFound
from penstock.model.metrics import MetricSeries


class LinkView(msgspec.Struct, frozen=True, kw_only=True):
    """What a connection sends to or receives from."""

    hub: str
    role: str  # send, receive, manage
    group: str | None = None
    partition: str | None = None
    publisher: str | None = None


class ConnectionView(msgspec.Struct, frozen=True, kw_only=True):
    """A connection as operators see it. Texts of the peer's are shown as text only."""

    id: str
    peer: str
    namespace: str  # empty until it is known
    container_id: str
    user_agent: str
    opened_ms: int
    age_seconds: float
    links: int
    hub_links: list[LinkView]  # the first of them, where there are many
    events_in: int
    events_out: int
    bytes_in: int
    bytes_out: int


class ConnectionRegistry(Protocol):
    """The doors' connections, handed in by the service."""

    def list(self) -> list[ConnectionView]: ...

    def kill(self, connection_id: str) -> bool:
        """End it with a word of why; False when there is none of that id."""
        ...


class LagSource(Protocol):
    """How far consumer groups are behind."""

    async def measure(
        self, namespace: str | None = None, hub: str | None = None
    ) -> list[LagRow]: ...


class MetricHistoryReader(Protocol):
    """Numbers over time."""

    async def read(
        self,
        namespace: str,
        hub: str | None,
        *,
        names: Sequence[str],
        since_ms: int,
        until_ms: int,
        points: int,
    ) -> MetricSeries: ...


class CheckpointAccess(CheckpointReader, Protocol):
    """The leases and checkpoints that the service keeps, by the hub's id and the group's name."""

    async def save(self, hub_id: str, group: str, checkpoints: Sequence[Checkpoint]) -> None:
        """Durable on return. Raises ServerBusy, and PenstockError where the disk fails."""
        ...


class PortalAccess(Protocol):
    """What the management API needs to know for the web portal."""

    def sign_in_link(self, user: str, role: AdminRole, *, now_ms: int) -> str:
        """An address that signs `user` in once. Raises NotFound when the portal is off."""
        ...

    def token_holder(self, token: str) -> Verified | None:
        """Whose admin token it is; None for one that is not valid."""
        ...


class IssuedToken(msgspec.Struct, frozen=True, kw_only=True):
    """A new admin token. `id` names it when it is revoked."""

    id: str
    token: Secret
    subject: str
    role: str
    expires_ms: int


class AdminTokens(Protocol):
    """Admin tokens of the service, all under one secret."""

    def issue(self, *, subject: str, role: str, lifetime_s: int) -> IssuedToken: ...

    def revoke(self, token_id: str) -> None:
        """Durable on return. Raises QuotaExceeded, DataDirectoryError."""
        ...

    def revoked(self) -> Sequence[str]:
        """The ids."""
        ...


class ManagementContext(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to administer. `units_needed` tells how many units the namespace's hour
    needed, for one whose units are not enforced (docs/management.md); `reads` runs what waits for
    the disk."""

    catalog: Catalog
    broker: Broker
    clock: Clock
    connections: ConnectionRegistry
    ledger: UsageLedger
    lag: LagSource
    checkpoints: CheckpointAccess
    history: MetricHistoryReader
    jobs: JobRegistry
    reads: Executor
    new_key: Callable[[], Secret]
    new_hub_id: Callable[[], str]
    units_needed: Callable[[str], int]
    tokens: AdminTokens
    portal: PortalAccess | None = None
    limit_set: LimitSet = LimitSet.SPECIFICATION  # of new namespaces
    captures: CaptureRegistry = msgspec.field(default_factory=CaptureRegistry)


class OperationGroup:
    """One noun's acts by one actor."""

    def __init__(self, administration: ManagementContext, actor: Actor) -> None:
        self._administration = administration
        self._catalog = administration.catalog
        self._actor = actor

    def _permit(self, action: Action, *path: str | None) -> None:
        """Raises Forbidden. A refused change, and a refused look at keys, is recorded."""
        if self._actor.may(action) and self._is_in_scope(action, *path):
            return
        if not action.endswith("/read"):
            self._record(action, f"denied: {format_path(*path)}")
        raise Forbidden(self._actor.explain_refusal(action))

    def _is_in_scope(self, action: Action, *path: str | None) -> bool:
        """Whether `path` is within the actor's reach. The capture job reports itself, and of
        entities it sees captured hubs and the policies by which it reads them. What does not exist
        is in scope: the operation says that it does not."""
        if self._actor.process is not ProcessRole.CAPTURE:
            return True
        if action is Action.JOB_REPORT:
            return path == (CAPTURE_JOB,)
        if action not in (Action.HUB_READ, Action.RULE_READ, Action.KEYS_LIST):
            return True
        namespace, hub = (*path, None)[:2]
        if namespace is None or self._catalog.namespace(namespace) is None:
            return True
        if hub is not None:
            found = self._catalog.hub(namespace, hub)
            return found is None or found.has_capture_runs
        # A namespace's policy opens each of its hubs; a list of all hubs is not needed.
        return action is not Action.HUB_READ and any(
            each.has_capture_runs for each in self._catalog.hubs(namespace)
        )

    def _record(self, action: Action, detail: str) -> None:
        self._catalog.append_audit(self._entry(action, detail))

    def _entry(self, action: Action, detail: str) -> AuditEntry:
        return AuditEntry(
            at_ms=self._now_ms(),
            who=names.quote_text(self._actor.name, most=limits.AUDIT_WHO_MAX // 4),
            what=action.value,
            detail=detail[: limits.AUDIT_DETAIL_MAX],
        )

    def _now_ms(self) -> int:
        return self._administration.clock.now_ms()

    def _namespace(self, name: str) -> Namespace:
        namespace = self._catalog.namespace(name)
        if namespace is None:
            raise NotFound(f"The namespace '{names.quote_text(name)}' does not exist.")
        return namespace

    def _hub(self, namespace: str, name: str) -> Hub:
        self._namespace(namespace)
        hub = self._catalog.hub(namespace, name)
        if hub is None:
            raise NotFound(
                f"The event hub '{names.quote_text(name)}' does not exist in the namespace "
                f"'{names.quote_text(namespace)}'."
            )
        return hub


def format_path(*parts: str | None) -> str:
    """An entity's path for people: `contoso/events/readers`."""
    return "/".join(names.quote_text(part, most=limits.HUB_NAME_MAX) for part in parts if part)
