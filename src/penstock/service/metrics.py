"""`/metrics` in the text format of Prometheus. Values are read at each scrape.

Cardinality is bounded by what exists: namespaces, hubs, partitions, groups with a reader or a
checkpoint, and the HTTP statuses that this service returns. A scrape handles a bounded number of
partitions and rows per event-loop turn, so that it does not delay publications.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from starlette.types import Receive, Scope, Send

from penstock.broker.broker import Broker
from penstock.broker.hub import HubRuntime
from penstock.broker.lag import LagRow
from penstock.capture.status import CaptureState
from penstock.model.metrics import COUNTERS, FLUSH_BOUNDS_S, LATENCY_BOUNDS_MS, FlushLatencies
from penstock.service.capture_process import CaptureMonitor
from penstock.service.periodic_tasks import TurnBudget

_SAMPLES_PER_PIECE = 256  # histograms count as one
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Kind, name without "penstock_", and what it says.
BROKER_METRICS = (
    # Of a hub: the fields of HubCounters.
    ("counter", "incoming_messages", "events acknowledged"),
    ("counter", "incoming_bytes", "bytes of acknowledged publications"),
    ("counter", "outgoing_messages", "events delivered to readers"),
    ("counter", "outgoing_bytes", "bytes of frames delivered to readers"),
    ("counter", "successful_requests", "publications acknowledged"),
    ("counter", "throttled_requests", "publications refused with ServerBusy"),
    ("counter", "user_errors", "publications refused for the sender's fault"),
    ("counter", "server_errors", "publications failed for the service's fault"),
    ("histogram", "publish_latency_seconds", "from taking to acknowledging"),
    ("gauge", "partition_last_sequence_number", "of the newest event"),
    ("gauge", "partition_size_bytes", "of the retained log"),
    ("gauge", "partition_failed", "1 when it takes nothing any more"),
    # Of a group: the fields of LagRow after "consumer_".
    (
        *("gauge", "consumer_lag_events"),
        "events after the group's checkpoint, else not delivered to its last reader",
    ),
    ("gauge", "consumer_lag_bytes", "about, from the checkpoint to the newest event"),
    ("gauge", "consumer_lag_seconds", "age of the oldest such event in memory"),
    ("gauge", "consumer_checkpoint_sequence_number", "of the checkpoint that the service keeps"),
    ("gauge", "consumer_readers", "readers connected"),
    ("gauge", "consumer_epoch", "of the exclusive reader that is connected"),
    # Of the service, or of a namespace.
    ("histogram", "flush_latency_seconds", "of one round of commits, all its partitions at once"),
    ("counter", "https_requests", "requests to publish over HTTPS, answered"),
    ("gauge", "throughput_units", "of this hour: the most held, or needed where not enforced"),
    ("gauge", "throughput_units_limit", "enforced now; absent: none"),
    ("counter", "opened_connections", "AMQP connections accepted"),
    ("gauge", "active_connections", "AMQP connections now"),
    ("gauge", "certificate_expiry_timestamp_seconds", "when the listeners' certificate expires"),
)
_LAG_FIELDS = tuple(
    name.removeprefix("consumer_") for _, name, _ in BROKER_METRICS if name.startswith("consumer_")
)
CAPTURE_METRICS = (
    ("gauge", "capture_backlog_events", "events in no captured file yet"),
    ("gauge", "capture_backlog_seconds", "age of the oldest such event"),
    ("gauge", "capture_last_file_timestamp_seconds", "when the newest file's window closed"),
    ("counter", "capture_files", "files captured"),
    ("counter", "captured_messages", "events in those files"),
    ("counter", "capture_lost_messages", "dropped by retention before"),
    ("gauge", "capture_state", "1 for the state that it is in"),
)


class Family:
    """One metric with its samples, as lines of text."""

    def __init__(self, kind: str, name: str, meaning: str) -> None:
        self._name = f"penstock_{name}_total" if kind == "counter" else f"penstock_{name}"
        self._lines = [f"# HELP {self._name} {meaning}\n# TYPE {self._name} {kind}\n"]

    def add(self, labels: str, number: float) -> None:
        """`labels` are those of `format_labels`; empty where there are none."""
        suffix = f"{{{labels}}}" if labels else ""
        self._lines.append(f"{self._name}{suffix} {number}\n")

    def add_histogram(
        self, labels: str, bounds_s: Sequence[float], counts: Sequence[int], total_s: float
    ) -> None:
        """The last of `counts` is everything beyond the bounds; Prometheus counts cumulatively."""
        prefix = f"{labels}," if labels else ""
        names = [*(str(bound) for bound in bounds_s), "+Inf"]
        lines = [
            f'{self._name}_bucket{{{prefix}le="{name}"}} {count}\n'
            for name, count in zip(names, accumulate(counts), strict=True)
        ]
        suffix = f"{{{labels}}}" if labels else ""
        lines.append(f"{self._name}_count{suffix} {sum(counts)}\n")
        lines.append(f"{self._name}_sum{suffix} {total_s}\n")
        self._lines.append("".join(lines))

    def pieces(self) -> Iterator[bytes]:
        """The text, in pieces of a bounded number of samples."""
        for start in range(0, len(self._lines), _SAMPLES_PER_PIECE):
            yield "".join(self._lines[start : start + _SAMPLES_PER_PIECE]).encode()


Families = dict[str, Family]  # by name, without "penstock_"
Collector = Callable[[], Awaitable[Families]]


def _new_families(metrics: Sequence[tuple[str, str, str]]) -> Families:
    return {name: Family(kind, name, meaning) for kind, name, meaning in metrics}


@dataclass(frozen=True, kw_only=True)
class BrokerCollector:
    """Metrics of hubs, partitions, groups, units, connections, flushes and the certificate."""

    broker: Broker
    lag: Callable[[HubRuntime], list[LagRow]]  # the rows of one hub
    connections: Callable[[], int]
    connections_opened: Callable[[], int]
    flushes: FlushLatencies
    answered: Mapping[int, int]  # HTTPS requests by the status of their answers
    certificate_expires_ms: Callable[[], int]  # that of the TLS listeners

    async def collect(self) -> Families:
        families = _new_families(BROKER_METRICS)
        budget = TurnBudget()
        for hub in self.broker.hubs():
            rows = self.lag(hub)
            _add_hub(families, hub)
            for row in rows:
                _add_lag(families, row)
            await budget.spend(hub.partition_count + len(rows))
        self._add_service(families)
        return families

    def _add_service(self, families: Families) -> None:
        flushes = self.flushes
        families["flush_latency_seconds"].add_histogram(
            "", FLUSH_BOUNDS_S, flushes.counts, flushes.total_s
        )
        for status, count in sorted(self.answered.items()):
            families["https_requests"].add(format_labels(status=str(status)), count)
        for account in self.broker.accounts.accounts():
            labels = format_labels(namespace=account.namespace)
            families["throughput_units"].add(labels, account.meter.units)
            if account.throttle.units is not None:
                families["throughput_units_limit"].add(labels, account.throttle.units)
        families["opened_connections"].add("", self.connections_opened())
        families["active_connections"].add("", self.connections())
        expires_s = self.certificate_expires_ms() / 1000
        families["certificate_expiry_timestamp_seconds"].add("", expires_s)


def _add_hub(families: Families, hub: HubRuntime) -> None:
    namespace, name, counters = hub.entity.namespace, hub.entity.name, hub.counters
    labels = format_labels(namespace=namespace, hub=name)
    for counter in COUNTERS:
        families[counter].add(labels, getattr(counters, counter))
    latency = counters.publish_latency
    families["publish_latency_seconds"].add_histogram(
        labels,
        [bound / 1000 for bound in LATENCY_BOUNDS_MS],
        latency.counts,
        latency.total_ms / 1000,
    )
    for index, partition in enumerate(hub.partition_ids):
        status = hub.status(index)
        labels = format_labels(namespace=namespace, hub=name, partition=partition)
        families["partition_last_sequence_number"].add(labels, status.last_sequence)
        families["partition_size_bytes"].add(labels, status.size_bytes)
        families["partition_failed"].add(labels, 0 if status.failed is None else 1)


def _add_lag(families: Families, row: LagRow) -> None:
    """Only for groups with a checkpoint or a reader; unknown values are omitted."""
    if not row.readers and row.lag_events is None:
        return
    labels = format_labels(
        namespace=row.namespace, hub=row.hub, group=row.group, partition=row.partition
    )
    for field in _LAG_FIELDS:
        value = getattr(row, field)
        if value is not None:
            families[f"consumer_{field}"].add(labels, value)


async def collect_capture(watch: CaptureMonitor) -> Families:
    """Metrics of every captured hub: backlog, files, state."""
    families = _new_families(CAPTURE_METRICS)
    budget = TurnBudget()
    for status in await watch.statuses():
        labels = format_labels(namespace=status.namespace, hub=status.hub)
        families["capture_backlog_events"].add(labels, status.backlog_events)
        families["capture_backlog_seconds"].add(labels, status.backlog_seconds)
        families["capture_last_file_timestamp_seconds"].add(labels, status.last_file_ms / 1000)
        families["capture_files"].add(labels, status.files)
        families["captured_messages"].add(labels, status.events)
        families["capture_lost_messages"].add(labels, status.lost_events)
        for state in CaptureState:
            labels = format_labels(namespace=status.namespace, hub=status.hub, state=state.value)
            families["capture_state"].add(labels, int(status.state is state))
        await budget.spend()
    return families


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
        for collect in self._collectors:
            for family in (await collect()).values():
                for piece in family.pieces():
                    yield piece
                    await budget.spend()


def format_labels(**labels: str) -> str:
    """Sorted by name, as Prometheus' own clients write them."""
    return ",".join(f'{name}="{_escape(labels[name])}"' for name in sorted(labels))


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
