"""The broker: opens the hubs of the catalog over the logs of their partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.broker import error_messages
from penstock.broker.accounts import Accounts
from penstock.broker.egress import Later
from penstock.broker.hub import HubRuntime
from penstock.broker.round_queue import RoundQueue, RunSoon
from penstock.catalog.api import Catalog, CatalogChange
from penstock.log.api import LogStore
from penstock.model.clock import Clock
from penstock.model.entities import ConsumerGroup, Hub, Namespace, RevokedPublisher

_HOUR_MS = 3_600_000
PARTITIONS_PER_TURN = 256  # of hubs that follow a change or the deletion of their namespace


class Broker:
    """Follows the catalog: a created hub can be used at once; a deleted one ends its links and its
    log is dropped. Everything runs on the owner's thread."""

    def __init__(
        self,
        catalog: Catalog,
        logs: LogStore,
        clock: Clock,
        *,
        producer_ids: Callable[[], int],
        later: Later | None = None,
        run_soon: RunSoon | None = None,
        new_hub: Callable[..., HubRuntime] = HubRuntime,
    ) -> None:
        """`later` wakes readers that wait for egress units; without it none is slowed. `run_soon`
        runs the RoundQueue. `new_hub` has the signature of HubRuntime: penstock.testing substitutes
        its own."""
        self._catalog = catalog
        self._logs = logs
        self._clock = clock
        self._producer_ids = producer_ids
        self._new_hub = new_hub
        self.rounds = RoundQueue(run_soon)
        self._runtimes: dict[str, HubRuntime] = {}  # by hub id
        self.accounts = Accounts(clock, later=later)
        self.accounts.follow(catalog.namespaces())
        self._later = later
        # Hubs whose namespace changed or was deleted, in order; True: the hub was deleted with it.
        self._outdated: dict[str, bool] = {}
        self._is_updating = False  # whether a later turn goes on with them
        self._hub_ids = {hub.id for hub in catalog.hubs()}
        self._unsubscribe = catalog.subscribe(self._on_catalog_change)

    def hub(self, namespace: str, name: str) -> HubRuntime:
        """The open hub, the same object while the entity exists. Raises NotFound."""
        parent = self._catalog.namespace(namespace)
        entity = None if parent is None else self._catalog.hub(namespace, name)
        if parent is None or entity is None:
            raise error_messages.entity_not_found_error(parent or namespace, name)
        if entity.id in self._outdated:
            self._update_hub(entity.id)
        runtime = self._runtimes.get(entity.id)
        if runtime is None:
            runtime = self._new_hub(
                parent,
                entity,
                catalog=self._catalog,
                logs=self._logs,
                clock=self._clock,
                account=self.accounts.of(parent),
                producer_ids=self._producer_ids,
                rounds=self.rounds,
            )
            self._runtimes[entity.id] = runtime
            self._hub_ids.add(entity.id)
        return runtime

    def enforce_retention(self) -> int:
        """Enforce the retention of every hub at once; return the bytes freed. The service calls
        `enforce_hub_retention` hub by hub instead, so that other work runs in between."""
        return sum(self.enforce_hub_retention(hub) for hub in self.hub_entities())

    def hub_entities(self) -> list[Hub]:
        """Every hub of the catalog, open or not."""
        return self._catalog.hubs()

    def enforce_hub_retention(self, hub: Hub) -> int:
        """Drop the segments of one hub that are older than its retention; return the bytes freed.
        0 for a hub that has been deleted or created again since."""
        current = self._catalog.hub(hub.namespace, hub.name)
        if current is None or current.id != hub.id:
            return 0
        return self._logs.enforce_retention(
            hub.id,
            retention_ms=current.retention_hours * _HOUR_MS,
            now_ms=self._clock.now_ms(),
        )

    def hubs(self) -> list[HubRuntime]:
        """All open hubs."""
        return list(self._runtimes.values())

    def close(self) -> None:
        """Stop following the catalog. The gateways end the links; the owner closes logs and
        catalog."""
        self._unsubscribe()

    def _on_catalog_change(self, change: CatalogChange) -> None:
        entity = change.entity
        if isinstance(entity, Namespace):
            self.accounts.follow(self._catalog.namespaces())
            if change.after is None:
                existing = {hub.id for hub in self._catalog.hubs()}
                self._defer(self._hub_ids - existing, is_deleted=True)
            elif change.before is not None:
                hubs = self._catalog.hubs(entity.name)
                open_hubs = [hub.id for hub in hubs if hub.id in self._runtimes]
                self._defer(open_hubs, is_deleted=False)
        elif isinstance(entity, Hub):
            if change.after is None:
                self._drop_hub(entity.id)
            else:
                self._hub_ids.add(entity.id)
                self._update_hub(entity.id)
        elif isinstance(entity, ConsumerGroup | RevokedPublisher):
            hub = self._catalog.hub(entity.namespace, entity.hub)
            if hub is not None:
                self._update_hub(hub.id)

    def _drop_hub(self, hub_id: str) -> None:
        runtime = self._runtimes.pop(hub_id, None)
        if runtime is not None:
            runtime.end_all()
        self._logs.drop(hub_id)
        self._hub_ids.discard(hub_id)
        self._outdated.pop(hub_id, None)

    def _update_hub(self, hub_id: str) -> None:
        """Give an open hub its entity, its namespace and its groups as they are now."""
        self._outdated.pop(hub_id, None)
        runtime = self._runtimes.get(hub_id)
        if runtime is None:
            return
        namespace = self._catalog.namespace(runtime.entity.namespace)
        hub = self._catalog.hub(runtime.entity.namespace, runtime.entity.name)
        if namespace is None or hub is None or hub.id != hub_id:
            return  # deleted in the meantime
        if hub.partition_count != runtime.partition_count:
            del self._runtimes[hub_id]
        runtime.update_entity(namespace, hub)

    def _defer(self, hub_ids: Iterable[str], *, is_deleted: bool) -> None:
        """Update or drop the hubs of a namespace, a bounded number of partitions at a time. Units
        are enforced for the namespace at once; a hub that is asked for is updated first."""
        self._outdated.update(dict.fromkeys(hub_ids, is_deleted))
        if not self._is_updating:
            self._update_some()

    def _update_some(self) -> None:
        self._is_updating = False
        partitions = 0
        while self._outdated and (partitions < PARTITIONS_PER_TURN or self._later is None):
            hub_id = next(iter(self._outdated))
            runtime = self._runtimes.get(hub_id)
            partitions += 1 if runtime is None else runtime.partition_count
            if self._outdated[hub_id]:
                self._drop_hub(hub_id)
            else:
                self._update_hub(hub_id)
        if self._outdated and self._later is not None:
            self._is_updating = True
            self._later(0, self._update_some)
