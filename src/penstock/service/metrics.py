"""`/metrics` in the text format of Prometheus. Values are read at each scrape.

Cardinality is bounded by what exists: namespaces, hubs, partitions, groups with a reader or a
checkpoint, and the HTTP statuses that this service returns. A scrape handles a bounded number of
partitions and rows per event-loop turn, so that it does not delay publications.
"""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from itertools import accumulate

from starlette.types import Receive, Scope, Send

from penstock.broker.broker import Broker
from penstock.broker.hub import HubRuntime
from penstock.broker.lag import LagRow
from penstock.capture.status import CaptureState
from penstock.model.metrics import FLUSH_BOUNDS_S, LATENCY_BOUNDS_MS, FlushLatencies
from penstock.service.capture_process import CaptureMonitor
from penstock.service.periodic_tasks import TurnBudget

_SAMPLES_PER_PIECE = 256  # histograms count as one
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

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


# name -> (what it says, kind, the field of CaptureStatus)
CAPTURE_FAMILIES = {
    "penstock_capture_backlog_events": (
        "events in no captured file yet",
        "gauge",
        "backlog_events",
    ),
    "penstock_capture_backlog_seconds": (
        "age of the oldest such event",
        "gauge",
        "backlog_seconds",
    ),
    "penstock_capture_last_file_timestamp_seconds": (
        "when the newest file's window closed",
        "gauge",
        "last_file_ms",
    ),
    "penstock_capture_files": ("files captured", "counter", "files"),
    "penstock_captured_messages": ("events in those files", "counter", "events"),
    "penstock_capture_lost_messages": ("dropped by retention before", "counter", "lost_events"),
}


class Family:
    """One metric with its samples, as lines of text."""

    def __init__(self, name: str, kind: str, meaning: str, labels: Sequence[str] = ()) -> None:
        self.name = f"{name}_total" if kind == "counter" else name
        self._labels = labels
        self._lines = [f"# HELP {self.name} {meaning}\n# TYPE {self.name} {kind}\n"]

    def add(self, values: Sequence[str], number: float) -> None:
        """`values` are those of the labels, in their order."""
        labels = _format_labels(self._labels, values)
        self.add_formatted(f"{{{labels}}}" if labels else "", number)

    def add_formatted(self, labels: str, number: float) -> None:
        """The same for labels that are formatted already."""
        self._lines.append(f"{self.name}{labels} {number}\n")

    def add_histogram(
        self, labels: str, bounds_s: Iterable[float], counts: Sequence[int], total_s: float
    ) -> None:
        """The last of `counts` is everything beyond the bounds; Prometheus counts cumulatively."""
        prefix = f"{labels}," if labels else ""
        names = [*(str(bound) for bound in bounds_s), "+Inf"]
        lines = [
            f'{self.name}_bucket{{{prefix}le="{name}"}} {count}\n'
            for name, count in zip(names, accumulate(counts), strict=True)
        ]
        suffix = f"{{{labels}}}" if labels else ""
        lines.append(f"{self.name}_count{suffix} {sum(counts)}\n")
        lines.append(f"{self.name}_sum{suffix} {total_s}\n")
        self._lines.append("".join(lines))

    def pieces(self) -> Iterator[bytes]:
        """The text, in pieces of a bounded number of samples."""
        for start in range(0, len(self._lines), _SAMPLES_PER_PIECE):
            yield "".join(self._lines[start : start + _SAMPLES_PER_PIECE]).encode()


Collector = Callable[[], Awaitable[list[Family]]]


class BrokerCollector:
    """Metrics of hubs, partitions, groups, units, connections, flushes and the certificate."""

    def __init__(
        self,
        broker: Broker,
        *,
        lag: Callable[[HubRuntime], list[LagRow]],
        connections: Callable[[], int],
        connections_opened: Callable[[], int],
        flushes: FlushLatencies,
        answered: Mapping[int, int],
        certificate_expires_ms: Callable[[], int],
    ) -> None:
        """`lag`: the rows of one hub. `answered`: HTTPS requests by the status of their answers.
        The certificate is that of the TLS listeners."""
        self._broker = broker
        self._lag = lag
        self._connections = connections
        self._connections_opened = connections_opened
        self._flushes = flushes
        self._answered = answered
        self._certificate_expires_ms = certificate_expires_ms

    async def collect(self) -> list[Family]:
        hubs = _HubFamilies()
        budget = TurnBudget()
        for hub in self._broker.hubs():
            rows = self._lag(hub)
            hubs.add(hub, rows)
            await budget.spend(hub.partition_count + len(rows))
        return [*hubs.families(), *self._whole_service()]

    def _whole_service(self) -> list[Family]:
        flushes = Family(
            "penstock_flush_latency_seconds",
            "histogram",
            "of one round of commits, all its partitions at once",
        )
        flushes.add_histogram("", FLUSH_BOUNDS_S, self._flushes.counts, self._flushes.total_s)
        requests = Family(
            "penstock_https_requests",
            "counter",
            "requests to publish over HTTPS, answered",
            ("status",),
        )
        for status, count in sorted(self._answered.items()):
            requests.add([str(status)], count)
        opened = Family("penstock_opened_connections", "counter", "AMQP connections accepted")
        opened.add((), self._connections_opened())
        active = Family("penstock_active_connections", "gauge", "AMQP connections now")
        active.add((), self._connections())
        certificate = Family(
            "penstock_certificate_expiry_timestamp_seconds",
            "gauge",
            "when the certificate of the TLS listeners expires",
        )
        certificate.add((), self._certificate_expires_ms() / 1000)
        return [flushes, requests, *self._units(), opened, active, certificate]

    def _units(self) -> list[Family]:
        hour = Family(
            "penstock_throughput_units",
            "gauge",
            "of the running hour: the most held, or needed where they are not enforced",
            NAMESPACE,
        )
        limit = Family(
            "penstock_throughput_units_limit", "gauge", "enforced now; absent: none", NAMESPACE
        )
        for account in self._broker.accounts.accounts():
            hour.add([account.namespace], account.meter.units)
            if account.throttle.units is not None:
                limit.add([account.namespace], account.throttle.units)
        return [hour, limit]


class _HubFamilies:
    """The families that have a sample for each hub, partition or group."""

    def __init__(self) -> None:
        self._counters = {
            field: Family(name, "counter", meaning)
            for name, (meaning, field) in HUB_COUNTERS.items()
        }
        self._latency = Family(
            "penstock_publish_latency_seconds", "histogram", "from taking to acknowledging"
        )
        self._last = Family(
            "penstock_partition_last_sequence_number", "gauge", "of the newest event"
        )
        self._size = Family("penstock_partition_size_bytes", "gauge", "of the retained log")
        self._failed = Family(
            "penstock_partition_failed", "gauge", "1 when it takes nothing any more"
        )
        self._lag = {
            field: Family(name, "gauge", meaning) for name, (meaning, field) in LAG_GAUGES.items()
        }

    def add(self, hub: HubRuntime, rows: Sequence[LagRow]) -> None:
        names = (hub.entity.namespace, hub.entity.name)
        counters, labels = hub.counters, _format_labels(HUB, names)
        for field, family in self._counters.items():
            family.add_formatted(f"{{{labels}}}", getattr(counters, field))
        latency = counters.publish_latency
        bounds_s = (bound / 1000 for bound in LATENCY_BOUNDS_MS)
        self._latency.add_histogram(labels, bounds_s, latency.counts, latency.total_ms / 1000)
        for index, partition in enumerate(hub.partition_ids):
            status = hub.status(index)
            labels = f"{{{_format_labels(PARTITION, (*names, partition))}}}"
            self._last.add_formatted(labels, status.last_sequence)
            self._size.add_formatted(labels, status.size_bytes)
            self._failed.add_formatted(labels, 0 if status.failed is None else 1)
        for row in rows:
            self._add_lag(row)

    def _add_lag(self, row: LagRow) -> None:
        """Only for groups with a checkpoint or a reader; unknown values are omitted."""
        if not row.readers and row.lag_events is None:
            return
        values = (row.namespace, row.hub, row.group, row.partition)
        labels = f"{{{_format_labels(GROUP, values)}}}"
        for field, family in self._lag.items():
            value = getattr(row, field)
            if value is not None:
                family.add_formatted(labels, value)

    def families(self) -> list[Family]:
        return [
            *self._counters.values(),
            self._latency,
            self._last,
            self._size,
            self._failed,
            *self._lag.values(),
        ]


async def collect_capture(watch: CaptureMonitor) -> list[Family]:
    """Metrics of every captured hub: backlog, files, state."""
    families = {
        field: Family(name, kind, meaning, HUB)
        for name, (meaning, kind, field) in CAPTURE_FAMILIES.items()
    }
    states = Family(
        "penstock_capture_state", "gauge", "1 for the state that it is in", (*HUB, "state")
    )
    budget = TurnBudget()
    for status in await watch.statuses():
        names = [status.namespace, status.hub]
        for field, family in families.items():
            value = getattr(status, field)
            family.add(names, value / 1000 if field == "last_file_ms" else value)
        for state in CaptureState:
            states.add([*names, state.value], int(status.state is state))
        await budget.spend()
    return [*families.values(), states]


class MetricsPage:
    """An ASGI application. Starlette's streaming response is not used: it imports anyio's event
    loop when it is first needed, which would delay publications by 30 ms."""

    def __init__(self, *collectors: Collector) -> None:
        self._collectors = collectors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", CONTENT_TYPE.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for piece in self._pieces():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _pieces(self) -> AsyncIterator[bytes]:
        budget = TurnBudget(1)  # an event-loop turn for each piece of text
        for collector in self._collectors:
            for family in await collector():
                for piece in family.pieces():
                    yield piece
                    await budget.spend()


def _format_labels(names: Sequence[str], values: Sequence[str]) -> str:
    """Sorted by name, as Prometheus' own clients write them."""
    pairs = sorted(zip(names, values, strict=True))
    return ",".join(f'{name}="{_escape(value)}"' for name, value in pairs)


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
