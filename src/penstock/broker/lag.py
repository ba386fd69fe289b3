"""Lag of every consumer group, per partition.

It is measured from the group's checkpoint if the service stores one, else from the connected reader
with the largest lag. Only `add_lag_seconds` blocks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from penstock.broker.broker import Broker
from penstock.broker.hub import HubRuntime, ReaderView
from penstock.catalog.api import Catalog
from penstock.model.checkpoints import Checkpoint, Ownership
from penstock.model.errors import PenstockError
from penstock.model.events import StoredBatch
from penstock.model.names import fold_name


class CheckpointReader(Protocol):
    """Ownerships and checkpoints that the service stores, by hub id and group name."""

    def ownerships(self, hub_id: str, group: str) -> list[Ownership]: ...
    def checkpoints(self, hub_id: str, group: str) -> list[Checkpoint]: ...


class LagRow(msgspec.Struct, frozen=True, kw_only=True):
    """One consumer group on one partition. None means unknown: a group without readers and without
    a checkpoint has no lag."""

    namespace: str
    hub: str
    group: str
    partition: str
    last_sequence_number: int  # -1: nothing was ever published
    checkpoint_sequence_number: int | None
    lag_events: int | None  # retained events not processed, or not delivered
    lag_bytes: int | None  # approximate: from the event of the checkpoint to the newest one
    lag_seconds: float | None  # age of the oldest of these events
    owner: str | None  # the event processor that holds the lease
    epoch: int | None  # of the connected exclusive reader
    readers: int  # connected ones
    last_seen_ms: int | None = None  # reader, lease renewal or checkpoint; None: never


def hub_rows(
    runtime: HubRuntime, catalog: Catalog, checkpoints: CheckpointReader, *, now_ms: int
) -> list[LagRow]:
    """A row per group and partition of one hub. `lag_seconds` is set where the event is in the tail
    cache; `add_lag_seconds` reads the others from disk."""
    rows: list[LagRow] = []
    entity = runtime.entity
    readers: defaultdict[tuple[str, int], list[ReaderView]] = defaultdict(list)
    for reader in runtime.readers():
        readers[fold_name(reader.group), reader.partition].append(reader)
    for group in catalog.groups(entity.namespace, entity.name):
        owned = {o.partition_id: o for o in checkpoints.ownerships(entity.id, group.name)}
        saved = {c.partition_id: c for c in checkpoints.checkpoints(entity.id, group.name)}
        for index, partition in enumerate(runtime.partition_ids):
            rows.append(
                _build_lag_row(
                    runtime,
                    group.name,
                    index,
                    owned.get(partition),
                    saved.get(partition),
                    readers[fold_name(group.name), index],
                    now_ms,
                )
            )
    return rows


def add_lag_seconds(rows: Iterable[LagRow], broker: Broker, *, now_ms: int) -> list[LagRow]:
    """The rows with every `lag_seconds` that can be determined. Reads the disk; any thread."""
    hubs = {_hub_key(hub.entity.namespace, hub.entity.name): hub for hub in broker.hubs()}
    return [
        _read_lag_seconds(row, hubs.get(_hub_key(row.namespace, row.hub)), now_ms) for row in rows
    ]


def _build_lag_row(
    hub: HubRuntime,
    group: str,
    index: int,
    ownership: Ownership | None,
    checkpoint: Checkpoint | None,
    readers: list[ReaderView],
    now_ms: int,
) -> LagRow:
    status = hub.status(index)
    done = None if checkpoint is None else checkpoint.sequence_number
    lag_events: int | None = None
    if done is not None:
        # Events that retention removed cannot be processed any more and are not counted.
        lag_events = max(0, status.last_sequence + 1 - max(done + 1, status.next_retained))
    elif readers:
        lag_events = max(reader.lag_events for reader in readers)
    row = LagRow(
        namespace=hub.entity.namespace,
        hub=hub.entity.name,
        group=group,
        partition=hub.partition_ids[index],
        last_sequence_number=status.last_sequence,
        checkpoint_sequence_number=done,
        lag_events=lag_events,
        lag_bytes=_lag_bytes(checkpoint, lag_events, status.last_offset),
        lag_seconds=0.0 if lag_events == 0 else None,
        owner=None if ownership is None else ownership.owner_id or None,
        epoch=next((reader.epoch for reader in readers if reader.epoch is not None), None),
        readers=len(readers),
        last_seen_ms=now_ms if readers else _last_report_ms(ownership, checkpoint),
    )
    if not lag_events:
        return row
    batches = hub.log(index).read_cached(_oldest_unread_sequence(row))
    return _set_lag_seconds(row, batches, now_ms)


def _last_report_ms(ownership: Ownership | None, checkpoint: Checkpoint | None) -> int | None:
    times = [record.modified_ms for record in (ownership, checkpoint) if record is not None]
    return max(times, default=0) or None


def _read_lag_seconds(row: LagRow, hub: HubRuntime | None, now_ms: int) -> LagRow:
    if hub is None or row.lag_seconds is not None or not row.lag_events:
        return row
    try:
        # The event, or the oldest one that is retained.
        batches = hub.log(int(row.partition)).read(_oldest_unread_sequence(row), bytes_max=1)
    except PenstockError:
        return row  # unreadable: the age stays unknown
    return _set_lag_seconds(row, batches, now_ms)


def _set_lag_seconds(row: LagRow, batches: Sequence[StoredBatch] | None, now_ms: int) -> LagRow:
    if not batches:
        return row
    return msgspec.structs.replace(row, lag_seconds=max(0, now_ms - batches[0].enqueued_ms) / 1000)


def _oldest_unread_sequence(row: LagRow) -> int:
    assert row.lag_events is not None
    return row.last_sequence_number + 1 - row.lag_events


def _lag_bytes(
    checkpoint: Checkpoint | None, lag_events: int | None, last_offset: int
) -> int | None:
    """Offsets are byte positions, so their difference is the lag in bytes, record headers included.
    Processors may write offsets of another form, which give None."""
    if lag_events == 0:
        return 0
    if checkpoint is None or not checkpoint.offset.isascii() or not checkpoint.offset.isdigit():
        return None
    return max(0, last_offset - int(checkpoint.offset))


def _hub_key(namespace: str, hub: str) -> tuple[str, str]:
    return fold_name(namespace), fold_name(hub)
