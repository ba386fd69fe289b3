"""The broker: every hub of the catalog at work, each over its partitions' logs."""

from __future__ import annotations

from collections.abc import Callable

from penstock.broker import texts
from penstock.broker.accounts import Accounts
from penstock.broker.egress import Later
from penstock.broker.hub import HubRuntime, ReaderView
from penstock.broker.throttle import Ingress
from penstock.catalog.api import Catalog
from penstock.log.api import LogStore
from penstock.model.clock import Clock
from penstock.model.entities import Hub, Namespace
from penstock.model.names import HubName, NamespaceName, key

_HOUR_MS = 3_600_000


class Broker:
    """Follows the catalog: a hub that is created can be used at once, one that is deleted ends
    its links and gives up its log. Everything runs on the owner's thread."""

    def __init__(
        self,
        catalog: Catalog,
        logs: LogStore,
        clock: Clock,
        *,
        producer_ids: Callable[[], int],
        later: Later | None = None,
        new_hub: Callable[..., HubRuntime] = HubRuntime,
    ) -> None:
        """`later` wakes readers that wait for egress units; without it none is slowed. `new_hub`
        is called as HubRuntime is: penstock.testing has hubs of its own."""
        self._catalog = catalog
        self._logs = logs
        self._clock = clock
        self._producer_ids = producer_ids
        self._new_hub = new_hub
        self._runtimes: dict[str, HubRuntime] = {}  # by hub id
        self.accounts = Accounts(clock, later=later)
        self.accounts.follow(catalog.namespaces())
        self._hub_ids: set[str] = set(self._living())
        self._unsubscribe = catalog.subscribe(self._catalog_changed)

    def hub(self, namespace: str, name: str) -> HubRuntime:
        """The hub at work, the same object while the entity lives; or NotFound."""
        parent = self._catalog.namespace(namespace)
        entity = None if parent is None else self._catalog.hub(namespace, name)
        if parent is None or entity is None:
            raise texts.hub_not_found(
                namespace if parent is None else texts.authority(parent), name
            )
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
            )
            self._runtimes[entity.id] = runtime
            self._hub_ids.add(entity.id)
        return runtime

    def enforce_retention(self) -> int:
        """Let every hub's log drop what is older than its retention; the bytes freed."""
        now_ms = self._clock.now_ms()
        return sum(
            self._logs.enforce_retention(
                hub.id, retention_ms=hub.retention_hours * _HOUR_MS, now_ms=now_ms
            )
            for _, hub in self._living().values()
        )

    def hubs(self) -> list[HubRuntime]:
        """Every hub that is open."""
        return list(self._runtimes.values())

    def readers(self) -> list[ReaderView]:
        """Everybody who reads now, and how far behind."""
        return [view for runtime in self._runtimes.values() for view in runtime.readers()]

    def failed_partitions(self) -> list[tuple[NamespaceName, HubName, int, str]]:
        """(namespace, hub, partition, reason) of partitions that take nothing any more."""
        return [
            (runtime.entity.namespace, runtime.entity.name, index, reason)
            for runtime in self._runtimes.values()
            for index, reason in runtime.failed_partitions()
        ]

    def ingress(self, namespace: str) -> Ingress:
        """What was published to the namespace since the broker was made, and what was refused."""
        hubs = [
            hub for hub in self._runtimes.values() if key(hub.entity.namespace) == key(namespace)
        ]
        counters = [hub.counters for hub in hubs]
        return Ingress(
            sum(each.successful_requests for each in counters),
            sum(each.incoming_messages for each in counters),
            sum(each.incoming_bytes for each in counters),
            sum(each.throttled_requests for each in counters),
        )

    def close(self) -> None:
        """Stop following the catalog. Links are the doors' to end, logs and catalog their
        owner's to close."""
        self._unsubscribe()

    def _living(self) -> dict[str, tuple[Namespace, Hub]]:
        return {
            hub.id: (namespace, hub)
            for namespace in self._catalog.namespaces()
            for hub in self._catalog.hubs(namespace.name)
        }

    def _catalog_changed(self) -> None:
        living = self._living()
        self.accounts.follow(self._catalog.namespaces())
        for hub_id in self._hub_ids - living.keys():
            runtime = self._runtimes.pop(hub_id, None)
            if runtime is not None:
                runtime.deleted()
            self._logs.drop(hub_id)
        self._hub_ids = set(living)
        # Over a copy: a link that is told may ask for a hub again.
        for hub_id, runtime in list(self._runtimes.items()):
            namespace, hub = living[hub_id]
            if hub.partition_count != runtime.partition_count:
                del self._runtimes[hub_id]
            runtime.changed(namespace, hub)
