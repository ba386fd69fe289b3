"""Consumer groups: create, change, list, show, delete, lag; moving their checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.broker.hub import HubRuntime
from penstock.broker.lag import LagRow
from penstock.catalog.api import require_entity
from penstock.formats.positions import parse_log_position
from penstock.management.errors import GroupInUse
from penstock.management.operations.base import (
    OWN_HUB,
    OWN_NAMESPACE,
    OperationGroup,
    format_path,
)
from penstock.management.permissions import Action
from penstock.management.resources import SeekBody
from penstock.management.router import RouteTable
from penstock.model import names
from penstock.model.checkpoints import Checkpoint
from penstock.model.entities import ConsumerGroup, Hub

# Event processors renew their leases every 10 to 30 seconds. An older lease without a connected
# reader belongs to a processor that has ended.
LEASE_FRESH_MS = 60_000

ROUTES = RouteTable("groups")


class LagQuery(msgspec.Struct, frozen=True):
    group: Annotated[str, Meta(max_length=256)] | None = None


class MovedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint of one partition before and after a seek. The numbers are those of the next
    event that the group reads; None where the service stored no checkpoint."""

    partition: str
    from_sequence_number: int | None
    to_sequence_number: int
    delta: int | None  # negative: events are read again; positive: events are skipped


class ConsumerGroupOperations(OperationGroup):
    def list(self, namespace: str, hub: str) -> list[ConsumerGroup]:
        self._find_hub(Action.GROUP_READ, namespace, hub)
        return self._catalog.groups(namespace, hub)

    def show(self, namespace: str, hub: str, name: str) -> ConsumerGroup:
        """Raises NotFound."""
        self._find_hub(Action.GROUP_READ, namespace, hub, name)
        return self._group(namespace, hub, name)

    def put(
        self, namespace: str, hub: str, name: str, *, user_metadata: str | None = None
    ) -> ConsumerGroup:
        """Create or change the group. Raises QuotaExceeded beyond 20 groups besides `$Default`."""
        parent = self._find_hub(Action.GROUP_WRITE, namespace, hub, name)
        old = self._catalog.group(namespace, hub, name)
        now_ms = self._now_ms()
        if old is None:
            group = ConsumerGroup(
                namespace=parent.namespace,
                hub=parent.name,
                name=names.group_name(name),
                created_ms=now_ms,
                updated_ms=now_ms,
                user_metadata=user_metadata or "",
            )
        elif user_metadata is None or user_metadata == old.user_metadata:
            return old
        else:
            group = msgspec.structs.replace(old, user_metadata=user_metadata, updated_ms=now_ms)
        self._catalog.put_group(group)
        self._record(Action.GROUP_WRITE, format_path(parent.namespace, parent.name, group.name))
        return self._group(namespace, hub, name)

    def delete(self, namespace: str, hub: str, name: str) -> None:
        """Raises NotFound, and NotAllowed for `$Default`."""
        self._find_hub(Action.GROUP_DELETE, namespace, hub, name)
        group = self._group(namespace, hub, name)
        self._catalog.delete_group(namespace, hub, name)
        self._record(Action.GROUP_DELETE, format_path(group.namespace, group.hub, group.name))

    @ROUTES.add("GET", f"{OWN_NAMESPACE}/lag")
    @ROUTES.add("GET", f"{OWN_HUB}/lag", name="list_hub_lag")
    async def list_lag(
        self, namespace: str, hub: str | None = None, *, query: LagQuery
    ) -> Sequence[LagRow]:
        """The lag of one hub or of all hubs of the namespace, of one group or of all."""
        group = query.group
        self._permit(Action.GROUP_READ, namespace, hub, group)
        self._namespace(namespace)
        hubs = self._catalog.hubs(namespace) if hub is None else [self._hub(namespace, hub)]
        for entity in hubs:
            self._context.broker.hub(namespace, entity.name)  # a hub that is not open has no row
            if group is not None and hub is not None:
                self._group(namespace, hub, group)
        rows = await self._context.measure_lag(namespace, hub)
        if group is None:
            return rows
        return [row for row in rows if names.fold_name(row.group) == names.fold_name(group)]

    @ROUTES.add("POST", OWN_HUB + "/consumergroups/{group}/seek")
    async def seek_consumer_group(
        self, namespace: str, hub: str, group: str, body: SeekBody
    ) -> Sequence[MovedCheckpoint]:
        """Move the checkpoints of one partition or of all so that the group reads `to` next:
        'earliest', 'latest', a sequence number or an ISO 8601 time. Raises GroupInUse while an
        event processor holds a lease, unless `force` is set: the processor would overwrite the
        checkpoint."""
        action = Action.GROUP_READ if body.dry_run else Action.GROUP_SEEK
        entity = self._find_hub(action, namespace, hub, group)
        group = self._group(namespace, hub, group).name
        position = parse_log_position(body.to)
        runtime = self._context.broker.hub(namespace, hub)
        targets = await self._checkpoints_at(runtime, position, body.partition)
        moved = self._moved_checkpoints(entity, group, targets)
        if body.dry_run:
            return moved
        if not body.force:
            self._refuse_in_use(runtime, group, {target.partition_id for target in targets})
        # Nothing is awaited between the check and this call, so no processor claims a partition.
        await self._context.checkpoints.save(entity.id, group, targets)
        where = "all partitions" if body.partition is None else f"partition {body.partition}"
        how = ", forced" if body.force else ""
        self._record(
            Action.GROUP_SEEK,
            f"{format_path(entity.namespace, entity.name, group)}: {where} to "
            f"{names.quote_text(body.to)}{how}",
        )
        return moved

    def _moved_checkpoints(
        self, hub: Hub, group: str, targets: Sequence[Checkpoint]
    ) -> Sequence[MovedCheckpoint]:
        stored = {
            checkpoint.partition_id: checkpoint.sequence_number + 1
            for checkpoint in self._context.checkpoints.checkpoints(hub.id, group)
        }
        moved = []
        for target in targets:
            before, after = stored.get(target.partition_id), target.sequence_number + 1
            moved.append(
                MovedCheckpoint(
                    partition=target.partition_id,
                    from_sequence_number=before,
                    to_sequence_number=after,
                    delta=None if before is None else after - before,
                )
            )
        return moved

    def _refuse_in_use(self, runtime: HubRuntime, group: str, partitions: set[str]) -> None:
        """Raises GroupInUse for a lease that was renewed lately, or whose partition is read."""
        now_ms = self._now_ms()
        read = {
            runtime.partition_ids[reader.partition]
            for reader in runtime.readers()
            if names.fold_name(reader.group) == names.fold_name(group)
        }
        for lease in self._context.checkpoints.ownerships(runtime.entity.id, group):
            is_fresh = now_ms - lease.modified_ms < LEASE_FRESH_MS
            is_held = lease.owner_id and (is_fresh or lease.partition_id in read)
            if is_held and lease.partition_id in partitions:
                raise GroupInUse(
                    f"The event processor '{names.quote_text(lease.owner_id)}' holds partition "
                    f"{lease.partition_id} of the consumer group '{names.quote_text(group)}' "
                    "and would write its own checkpoint over this one. Stop it, wait "
                    f"{LEASE_FRESH_MS // 1000} seconds, or force it and restart the processor."
                )

    def _group(self, namespace: str, hub: str, name: str) -> ConsumerGroup:
        return require_entity(self._catalog.group(namespace, hub, name), "consumer group", name)
