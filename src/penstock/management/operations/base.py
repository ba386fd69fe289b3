"""What all operations share: their context, the permission check, the audit entry."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import Protocol

import msgspec

from penstock.broker.broker import Broker
from penstock.broker.hub import HubRuntime
from penstock.broker.lag import CheckpointReader, LagRow
from penstock.broker.seek import checkpoint_for_position
from penstock.catalog.api import Catalog, UsageLedger, require_entity
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
from penstock.management.resources import AdminToken
from penstock.management.router import OWN
from penstock.model import entities, limits, names
from penstock.model.checkpoints import Checkpoint
from penstock.model.clock import Clock
from penstock.model.errors import NotFound
from penstock.model.metrics import MetricRequest, MetricSeries
from penstock.model.names import HubName, NamespaceName, RuleName
from penstock.model.positions import Position

# Paths of Penstock's own routes.
OWN_NAMESPACE = OWN + "/namespaces/{namespace}"
OWN_HUB = OWN_NAMESPACE + "/eventhubs/{hub}"


class LinkView(msgspec.Struct, frozen=True, kw_only=True):
    """A link of a connection to a hub."""

    hub: str
    role: str  # send, receive, manage
    group: str | None = None
    partition: str | None = None
    publisher: str | None = None


class ConnectionView(msgspec.Struct, frozen=True, kw_only=True):
    """A connection as operators see it."""

    id: str
    peer: str
    namespace: str  # empty before the client named it
    container_id: str
    user_agent: str
    opened_ms: int
    age_seconds: float
    links: int
    hub_links: list[LinkView]  # only the first ones of many
    events_in: int
    events_out: int
    bytes_in: int
    bytes_out: int


class ConnectionRegistry(Protocol):
    """The connections of the gateways."""

    def list(self) -> list[ConnectionView]: ...

    def kill(self, connection_id: str) -> bool:
        """Close the connection with an error; False when there is none with that id."""
        ...


class CheckpointAccess(CheckpointReader, Protocol):
    """The leases and checkpoints that the service stores, by hub id and group name."""

    async def save(self, hub_id: str, group: str, checkpoints: Sequence[Checkpoint]) -> None:
        """Durable on return. Raises ServerBusy, and PenstockError where the disk fails."""
        ...


class PortalAccess(Protocol):
    """What the management API needs from the web portal."""

    def sign_in_link(self, user: str, role: AdminRole, *, now_ms: int) -> str:
        """An address that signs `user` in once. Raises NotFound when the portal is off."""
        ...

    def token_holder(self, token: str) -> Verified | None:
        """Subject and roles of an admin token; None for an invalid one."""
        ...


class AdminTokens(Protocol):
    """Issues and revokes admin tokens."""

    def issue(self, *, subject: str, role: str, lifetime_s: int) -> AdminToken: ...

    def revoke(self, token_id: str) -> None:
        """Durable on return. Raises QuotaExceeded, DataDirectoryError."""
        ...

    def revoked(self) -> Sequence[str]:
        """The ids of revoked tokens."""
        ...


class ManagementContext(msgspec.Struct, frozen=True, kw_only=True):
    """What the operations work on. `units_needed` returns the units that a namespace needed in the
    current hour (docs/reference/management.md); `measure_lag` returns the lag of the groups of a
    namespace or of one hub; `reads` runs functions that wait for the disk."""

    catalog: Catalog
    broker: Broker
    clock: Clock
    connections: ConnectionRegistry
    ledger: UsageLedger
    measure_lag: Callable[[str, str | None], Awaitable[list[LagRow]]]
    checkpoints: CheckpointAccess
    read_metrics: Callable[[MetricRequest], Awaitable[MetricSeries]]
    jobs: JobRegistry
    reads: Executor
    new_key: Callable[[], entities.Secret]
    new_hub_id: Callable[[], str]
    units_needed: Callable[[str], int]
    tokens: AdminTokens
    portal: PortalAccess
    limit_set: entities.LimitSet = entities.LimitSet.SPECIFICATION  # of new namespaces
    captures: CaptureRegistry = msgspec.field(default_factory=CaptureRegistry)


class OperationGroup:
    """Operations of one actor. They run on the event loop's thread."""

    def __init__(self, context: ManagementContext, actor: Actor) -> None:
        self._context = context
        self._catalog = context.catalog
        self._actor = actor

    def _permit(self, action: Action, *path: str | None) -> None:
        """Raises Forbidden. A refused change or look at keys is written to the audit log."""
        if self._actor.may(action) and self._is_in_scope(action, *path):
            return
        if not action.endswith("/read"):
            self._record(action, f"denied: {format_path(*path)}")
        raise Forbidden(self._actor.explain_refusal(action))

    def _is_in_scope(self, action: Action, *path: str | None) -> bool:
        """Whether the actor may see `path`. The capture job may report itself, and read captured
        hubs and the policies with which it reads their events. An entity that does not exist is in
        scope: the operation raises NotFound."""
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
            entity = self._catalog.hub(namespace, hub)
            return entity is None or entity.has_capture_runs
        # A policy of the namespace is valid for each hub. The job needs no list of all hubs.
        return action is not Action.HUB_READ and any(
            entity.has_capture_runs for entity in self._catalog.hubs(namespace)
        )

    def _record(self, action: Action, detail: str) -> None:
        self._catalog.append_audit(self._entry(action, detail))

    def _entry(self, action: Action, detail: str) -> entities.AuditEntry:
        return entities.AuditEntry(
            at_ms=self._now_ms(),
            who=names.quote_text(self._actor.name, most=limits.AUDIT_WHO_MAX // 4),
            what=action.value,
            detail=detail[: limits.AUDIT_DETAIL_MAX],
        )

    def _now_ms(self) -> int:
        return self._context.clock.now_ms()

    def _namespace(self, name: str) -> entities.Namespace:
        return require_entity(self._catalog.namespace(name), "namespace", name)

    def _new_rule(
        self, namespace: NamespaceName, hub: HubName | None, name: RuleName, rights: entities.Right
    ) -> entities.AuthorizationRule:
        """A rule with random keys, not stored yet."""
        now_ms = self._now_ms()
        return entities.AuthorizationRule(
            namespace=namespace,
            hub=hub,
            name=name,
            rights=rights,
            primary_key=self._context.new_key(),
            secondary_key=self._context.new_key(),
            created_ms=now_ms,
            updated_ms=now_ms,
        )

    def _find_hub(self, action: Action, namespace: str, hub: str, *path: str) -> entities.Hub:
        """The hub, after the permission check for `path` below it. Raises Forbidden, NotFound."""
        self._permit(action, namespace, hub, *path)
        return self._hub(namespace, hub)

    def _hub(self, namespace: str, name: str) -> entities.Hub:
        self._namespace(namespace)
        hub = self._catalog.hub(namespace, name)
        if hub is None:
            raise NotFound(
                f"The event hub '{names.quote_text(name)}' does not exist in the namespace "
                f"'{names.quote_text(namespace)}'."
            )
        return hub

    async def _checkpoints_at(
        self, runtime: HubRuntime, position: Position, partition: str | None = None
    ) -> list[Checkpoint]:
        """The checkpoints at `position`, of one partition or of all. The log is read in a
        thread."""
        ids = runtime.partition_ids if partition is None else [partition]
        indexes = [runtime.partition_index(partition_id) for partition_id in ids]
        logs = [
            (runtime.log(index), runtime.status(index), runtime.partition_ids[index])
            for index in indexes
        ]

        def locate() -> list[Checkpoint]:
            return [checkpoint_for_position(*log, position) for log in logs]

        return await asyncio.get_running_loop().run_in_executor(self._context.reads, locate)


def format_path(*parts: str | None) -> str:
    """The path of an entity in texts: `contoso/events/readers`."""
    return "/".join(names.quote_text(part, most=limits.HUB_NAME_MAX) for part in parts if part)
