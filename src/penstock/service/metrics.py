"""`/metrics` in Prometheus' format. Numbers are read when somebody asks; nothing is kept twice.

Cardinality is bounded by what exists: namespaces, hubs, partitions, groups with a reader or a
checkpoint, and statuses of HTTP that this service gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.broker import LATENCY_BOUNDS_MS, Broker, HubCounters
from penstock.broker.lag import LagRow
from penstock.service.flushes import FLUSH_BOUNDS_S, FlushTimes

if TYPE_CHECKING:
    from prometheus_client.core import Metric

NAMESPACE = ("namespace",)
HUB = ("namespace", "hub")
PARTITION = (*HUB, "partition")
GROUP = ("namespace", "hub", "group", "partition")

# name -> (what it counts, the field of HubCounters)
HUB_COUNTERS = {
    "penstock_incoming_messages": ("events acknowledged", "incoming_messages"),
    "penstock_incoming_bytes": ("bytes of acknowledged publications", "incoming_bytes"),
    "penstock_outgoing_messages": ("events delivered to readers", "outgoing_messages"),
    "penstock_outgoing_bytes": ("bytes of frames delivered to readers", "outgoing_bytes"),
    "penstock_successful_requests": ("publications acknowledged", "successful_requests"),
    "penstock_throttled_requests": ("publications refused with ServerBusy", "throttled_requests"),
    "penstock_user_errors": ("publications refused for the sender's fault", "user_errors"),
    "penstock_server_errors": ("publications failed for the service's fault", "server_errors"),
}

# name -> (what it says, the field of LagRow)
LAG_GAUGES = {
    "penstock_consumer_lag_events": (
        "events after the group's checkpoint, else not delivered to its last reader",
        "lag_events",
    ),
    "penstock_consumer_lag_bytes": ("about, from the checkpoint to the newest event", "lag_bytes"),
    "penstock_consumer_lag_seconds": ("age of the oldest such event in memory", "lag_seconds"),
    "penstock_consumer_checkpoint_sequence_number": (
        "of the checkpoint that the service keeps",
        "checkpoint_sequence_number",
    ),
    "penstock_consumer_readers": ("readers connected", "readers"),
    "penstock_consumer_epoch": ("of the exclusive reader that is connected", "epoch"),
}


class BrokerCollector:
    """Everything the broker knows, as metric families."""

    def __init__(
        self,
        broker: Broker,
        *,
        lag: Callable[[], list[LagRow]],
        connections: Callable[[], int],
        connections_opened: Callable[[], int],
        flushes: FlushTimes,
        answered: Mapping[int, int],
    ) -> None:
        """`answered`: HTTPS requests by the status of their answers."""
        self._broker = broker
        self._rows = lag
        self._connections = connections
        self._connections_opened = connections_opened
        self._flushes = flushes
        self._answered = answered

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        yield from self._hub_counters()
        yield self._publish_latency()
        yield self._flush_latency()
        yield self._https_requests()
        yield from self._partitions()
        yield from self._lag()
        yield from self._units()
        opened = CounterMetricFamily("penstock_opened_connections", "AMQP connections accepted")
        opened.add_metric([], self._connections_opened())
        yield opened
        active = GaugeMetricFamily("penstock_active_connections", "AMQP connections now")
        active.add_metric([], self._connections())
        yield active

    def _counters(self) -> Iterable[tuple[list[str], HubCounters]]:
        for hub in self._broker.hubs():
            yield [hub.entity.namespace, hub.entity.name], hub.counters

    def _hub_counters(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily

        for name, (meaning, field) in HUB_COUNTERS.items():
            family = CounterMetricFamily(name, meaning, labels=HUB)
            for labels, counters in self._counters():
                family.add_metric(labels, getattr(counters, field))
            yield family

    def _publish_latency(self) -> Metric:
        from prometheus_client.core import HistogramMetricFamily

        family = HistogramMetricFamily(
            "penstock_publish_latency_seconds", "from taking to acknowledging", labels=HUB
        )
        for labels, counters in self._counters():
            latencies = counters.publish_latency
            buckets = _buckets((bound / 1000 for bound in LATENCY_BOUNDS_MS), latencies.counts)
            family.add_metric(labels, buckets, latencies.total_ms / 1000)
        return family

    def _flush_latency(self) -> Metric:
        from prometheus_client.core import HistogramMetricFamily

        family = HistogramMetricFamily(
            "penstock_flush_latency_seconds", "of one round of commits, all its partitions at once"
        )
        family.add_metric([], _buckets(FLUSH_BOUNDS_S, self._flushes.counts), self._flushes.total_s)
        return family

    def _https_requests(self) -> Metric:
        from prometheus_client.core import CounterMetricFamily

        family = CounterMetricFamily(
            "penstock_https_requests",
            "requests to publish over HTTPS, answered",
            labels=("status",),
        )
        for status, count in sorted(self._answered.items()):
            family.add_metric([str(status)], count)
        return family

    def _partitions(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        last = GaugeMetricFamily(
            "penstock_partition_last_sequence_number", "of the newest event", labels=PARTITION
        )
        size = GaugeMetricFamily(
            "penstock_partition_size_bytes", "of the retained log", labels=PARTITION
        )
        failed = GaugeMetricFamily(
            "penstock_partition_failed", "1 when it takes nothing any more", labels=PARTITION
        )
        for hub in self._broker.hubs():
            for index, partition in enumerate(hub.partition_ids):
                status = hub.status(index)
                labels = [hub.entity.namespace, hub.entity.name, partition]
                last.add_metric(labels, status.last_sequence)
                size.add_metric(labels, status.size_bytes)
                failed.add_metric(labels, 0 if status.failed is None else 1)
        yield from (last, size, failed)

    def _lag(self) -> Iterator[Metric]:
        """Of groups that have a checkpoint or a reader; what is not known is left out."""
        from prometheus_client.core import GaugeMetricFamily

        rows = self._rows()
        for name, (meaning, field) in LAG_GAUGES.items():
            family = GaugeMetricFamily(name, meaning, labels=GROUP)
            for row in rows:
                value = getattr(row, field)
                if value is not None and (row.readers or row.lag_events is not None):
                    family.add_metric([row.namespace, row.hub, row.group, row.partition], value)
            yield family

    def _units(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        hour = GaugeMetricFamily(
            "penstock_throughput_units",
            "of the running hour: the most held, or needed where they are not enforced",
            labels=NAMESPACE,
        )
        limit = GaugeMetricFamily(
            "penstock_throughput_units_limit", "enforced now; absent: none", labels=NAMESPACE
        )
        for account in self._broker.accounts.accounts():
            hour.add_metric([account.namespace], account.meter.units)
            if account.throttle.units is not None:
                limit.add_metric([account.namespace], account.throttle.units)
        yield from (hour, limit)


def _buckets(bounds_s: Iterable[float], counts: list[int]) -> list[tuple[str, float]]:
    """Prometheus' are cumulative; the last of `counts` is everything beyond the bounds."""
    names = [*(str(bound) for bound in bounds_s), "+Inf"]
    return list(zip(names, accumulate(counts), strict=True))


class Collector(Protocol):
    def collect(self) -> Iterator[Metric]: ...


def metrics_route(*collectors: Collector) -> Route:
    async def metrics(request: Request) -> Response:
        # Imported late: a service that nobody watches does not pay for it.
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

        registry = CollectorRegistry(auto_describe=False)
        for collector in collectors:
            registry.register(collector)
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return Route("/metrics", metrics)
