"""Lag of the consumer groups by the checkpoints that the service stores; and removal of the
checkpoints of deleted groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

from penstock.broker.broker import Broker
from penstock.broker.hub import HubRuntime
from penstock.broker.lag import CheckpointReader, LagRow, add_lag_seconds, hub_rows
from penstock.catalog.api import Catalog, CatalogChange
from penstock.checkpoints.server_store import ServerCheckpointStore
from penstock.model.clock import Clock
from penstock.model.entities import ConsumerGroup, Hub, Namespace
from penstock.model.names import fold_name


@dataclass(frozen=True)
class LagReport:
    """Lag of every group and partition, for metrics, management and portal."""

    broker: Broker
    catalog: Catalog
    checkpoints: CheckpointReader
    clock: Clock
    reads: Executor

    def hub_rows(self, runtime: HubRuntime) -> list[LagRow]:
        """Rows of one hub. `lag_seconds` is None where the event is not in memory."""
        now_ms = self.clock.now_ms()
        return hub_rows(runtime, self.catalog, self.checkpoints, now_ms=now_ms)

    async def measure(self, namespace: str | None = None, hub: str | None = None) -> list[LagRow]:
        """Rows with `lag_seconds` read from disk where needed. One event-loop turn per hub."""
        rows: list[LagRow] = []
        now_ms = self.clock.now_ms()
        for runtime in self.broker.hubs():
            entity = runtime.entity
            if namespace is not None and fold_name(entity.namespace) != fold_name(namespace):
                continue
            if hub is None or fold_name(entity.name) == fold_name(hub):
                rows += hub_rows(runtime, self.catalog, self.checkpoints, now_ms=now_ms)
                await asyncio.sleep(0)
        if all(row.lag_seconds is not None or not row.lag_events for row in rows):
            return rows
        read = partial(add_lag_seconds, rows, self.broker, now_ms=now_ms)
        return await asyncio.get_running_loop().run_in_executor(self.reads, read)


def follow_catalog(store: ServerCheckpointStore, catalog: Catalog) -> Callable[[], None]:
    """Remove the checkpoints of deleted groups and hubs, now and after each deletion. Return a
    function that ends this."""

    def keep_existing() -> None:
        store.keep_only(
            {
                (hub.id, group.name)
                for hub in catalog.hubs()
                for group in catalog.groups(hub.namespace, hub.name)
            }
        )

    def on_change(change: CatalogChange) -> None:
        deleted = change.before
        if change.after is not None:
            return
        if isinstance(deleted, Namespace):
            keep_existing()
        elif isinstance(deleted, Hub):  # without a walk over the whole catalog
            store.forget(deleted.id)
        elif isinstance(deleted, ConsumerGroup):
            hub = catalog.hub(deleted.namespace, deleted.hub)
            if hub is not None:
                store.forget(hub.id, deleted.name)

    keep_existing()
    return catalog.subscribe(on_change)
