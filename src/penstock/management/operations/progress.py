"""How far consumer groups are: lag, and moving the checkpoints that the service keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from penstock.broker import HubRuntime
from penstock.broker.lag import LagRow
from penstock.broker.seek import checkpoint_for_position
from penstock.formats.positions import parse_log_position
from penstock.management.errors import GroupInUse
from penstock.management.operations.base import OperationGroup, format_path
from penstock.management.permissions import Action
from penstock.model import names
from penstock.model.checkpoints import Checkpoint, Ownership
from penstock.model.entities import Hub
from penstock.model.errors import NotFound
from penstock.model.positions import Position

# Processors renew every 10 to 30 seconds: who did not for this long, and reads nothing, is gone.
LEASE_FRESH_MS = 60_000


class MovedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One partition's checkpoint before and after. Numbers are those of the next event that the
    group sees; None where the service kept no checkpoint."""

    partition: str
    from_sequence_number: int | None
    to_sequence_number: int
    delta: int | None  # below zero: so many are seen again; above: so many are passed over


class ConsumerProgressOperations(OperationGroup):
    async def lag(
        self, namespace: str, hub: str | None = None, group: str | None = None
    ) -> list[LagRow]:
        """Of one hub, or of all of the namespace; of one group, or of all."""
        self._permit(Action.GROUP_READ, namespace, hub, group)
        self._namespace(namespace)
        found = self._catalog.hubs(namespace) if hub is None else [self._hub(namespace, hub)]
        for each in found:
            self._administration.broker.hub(namespace, each.name)  # open, or it has no row
            if group is not None and hub is not None:
                self._group(each, group)
        rows = await self._administration.lag.measure(namespace, hub)
        if group is None:
            return rows
        return [row for row in rows if names.fold_name(row.group) == names.fold_name(group)]

    async def seek(
        self,
        namespace: str,
        hub: str,
        group: str,
        to: str,
        *,
        partition: str | None = None,
        dry_run: bool = False,
        force: bool = False,
    ) -> list[MovedCheckpoint]:
        """Move the checkpoints of all partitions, or of one, so that `to` comes next: 'earliest',
        'latest', a sequence number, or a time in ISO 8601. GroupInUse while a processor holds a
        lease, unless forced: it would write its own checkpoint over this one."""
        action = Action.GROUP_READ if dry_run else Action.GROUP_SEEK
        self._permit(action, namespace, hub, group)
        entity = self._hub(namespace, hub)
        group = self._group(entity, group)
        position = parse_log_position(to)
        runtime = self._administration.broker.hub(namespace, hub)
        indexes = (
            range(runtime.partition_count)
            if partition is None
            else [runtime.partition_index(partition)]
        )
        wanted = await self._targets(runtime, indexes, position)
        moved = self._moved_checkpoints(entity, group, wanted)
        if dry_run:
            return moved
        if not force:
            self._refuse_in_use(runtime, group, {each.partition_id for each in wanted})
        # Nothing was awaited since: nobody has claimed a partition in between.
        await self._administration.checkpoints.save(entity.id, group, wanted)
        where = "all partitions" if partition is None else f"partition {partition}"
        how = ", forced" if force else ""
        self._record(
            Action.GROUP_SEEK,
            f"{format_path(entity.namespace, entity.name, group)}: {where} to "
            f"{names.quote_text(to)}{how}",
        )
        return moved

    async def _targets(
        self, runtime: HubRuntime, indexes: Sequence[int], position: Position
    ) -> list[Checkpoint]:
        asked = [
            (runtime.log(index), runtime.status(index), runtime.partition_ids[index])
            for index in indexes
        ]

        def locate() -> list[Checkpoint]:
            return [checkpoint_for_position(*each, position) for each in asked]

        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._administration.reads, locate)

    def _moved_checkpoints(
        self, hub: Hub, group: str, wanted: Sequence[Checkpoint]
    ) -> list[MovedCheckpoint]:
        kept = {
            each.partition_id: each.sequence_number + 1
            for each in self._administration.checkpoints.checkpoints(hub.id, group)
        }
        made = []
        for each in wanted:
            before, after = kept.get(each.partition_id), each.sequence_number + 1
            made.append(
                MovedCheckpoint(
                    partition=each.partition_id,
                    from_sequence_number=before,
                    to_sequence_number=after,
                    delta=None if before is None else after - before,
                )
            )
        return made

    def _refuse_in_use(self, runtime: HubRuntime, group: str, partitions: set[str]) -> None:
        hub, now_ms = runtime.entity, self._now_ms()
        read = {
            runtime.partition_ids[reader.partition]
            for reader in runtime.readers()
            if names.fold_name(reader.group) == names.fold_name(group)
        }
        for each in self._administration.checkpoints.ownerships(hub.id, group):
            is_held = _is_fresh(each, now_ms) or (each.owner_id and each.partition_id in read)
            if is_held and each.partition_id in partitions:
                raise GroupInUse(
                    f"The event processor '{names.quote_text(each.owner_id)}' holds partition "
                    f"{each.partition_id} of the consumer group '{names.quote_text(group)}' "
                    "and would "
                    f"write its own checkpoint over this one. Stop it, wait "
                    f"{LEASE_FRESH_MS // 1000} seconds, or force it and restart the processor."
                )

    def _group(self, hub: Hub, name: str) -> str:
        group = self._catalog.group(hub.namespace, hub.name, name)
        if group is None:
            raise NotFound(f"The consumer group '{names.quote_text(name)}' does not exist.")
        return group.name


def _is_fresh(lease: Ownership, now_ms: int) -> bool:
    return bool(lease.owner_id) and now_ms - lease.modified_ms < LEASE_FRESH_MS
