"""The metric history: a thread stores the counters and gauges of all hubs every ten seconds.

A sample is the difference between the counts now and those last stored, so the next write makes up
for one that failed. Hubs and connections are sampled in several event-loop turns, so that a pass
does not delay events.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from penstock.broker.broker import Broker
from penstock.broker.hub import HubRuntime
from penstock.broker.lag import CheckpointReader, hub_rows
from penstock.catalog.api import Catalog, MetricStore
from penstock.io.threads import StartedThreads
from penstock.model.clock import Clock
from penstock.model.metrics import (
    COUNTERS,
    STEP_MS,
    SUBJECTS_MAX,
    MetricRequest,
    MetricSample,
    MetricSeries,
    MetricSubject,
)
from penstock.model.names import fold_name
from penstock.service.periodic_tasks import PeriodicTask, TurnBudget

_PAUSE_S = 0.05

# The namespace of each connection, and the hubs that it has links to.
Connections = Callable[[], Iterable[tuple[str, Iterable[str]]]]
_Counts = tuple[int, ...]
_NOTHING: _Counts = (0,) * len(COUNTERS)


@dataclass(eq=False)
class MetricHistory:
    """Stores samples from the start of `task` to `stop`."""

    broker: Broker
    catalog: Catalog
    checkpoints: CheckpointReader
    store: MetricStore
    connections: Connections
    clock: Clock
    loop: asyncio.AbstractEventLoop

    def __post_init__(self) -> None:
        self._thread = StartedThreads(1, "penstock-history")
        self.task = PeriodicTask(
            "metric history",
            self.note,
            self.clock,
            interval_s=STEP_MS / 1000,
            pause_s=self._pause_s,
            waits_first=True,
        )
        self._noted: dict[str, _Counts] = {}  # by hub id: the counts that the store has

    async def stop(self) -> None:
        """Store the last seconds, too."""
        await self.task.finish()
        self._thread.shutdown()

    async def note(self) -> None:
        """Store what was counted until now, in the step that has just ended or is about to end
        (timers are not exact). Raises PenstockError if it cannot be written."""
        now_ms = self.clock.now_ms()
        connections = await self._count_connections()
        counted: dict[str, _Counts] = {}
        samples: list[MetricSample] = []
        for runtime in self.broker.hubs():
            await asyncio.sleep(0)
            counts = counted[runtime.entity.id] = _counts(runtime)
            samples += self._sample_hub(runtime, counts, connections)
        units = {fold_name(each.name): each.throughput_units for each in self.catalog.namespaces()}
        begin_ms = (now_ms - STEP_MS // 2) // STEP_MS * STEP_MS

        def record() -> None:
            whole = _sum_namespaces(units, samples, connections)
            self.store.record(begin_ms, _limit_subjects([*whole, *samples]))

        await self.loop.run_in_executor(self._thread, record)
        self._noted = counted

    async def read(self, request: MetricRequest) -> MetricSeries:
        read = partial(self.store.read, request, now_ms=self.clock.now_ms())
        return await self.loop.run_in_executor(self._thread, read)

    def _pause_s(self) -> float:
        """A timer may fire slightly early by the wall clock: wait for the next step then."""
        return max((STEP_MS - self.clock.now_ms() % STEP_MS) / 1000, _PAUSE_S)

    async def _count_connections(self) -> Counter[tuple[str, str]]:
        """The number of connections by namespace and hub, and by namespace with an empty hub."""
        counts: Counter[tuple[str, str]] = Counter()
        budget = TurnBudget()
        for namespace, hubs in self.connections():
            if namespace:
                counts[fold_name(namespace), ""] += 1
                counts.update(
                    (fold_name(namespace), hub) for hub in {fold_name(each) for each in hubs}
                )
            await budget.spend()
        return counts

    def _sample_hub(
        self, runtime: HubRuntime, counts: _Counts, connections: Counter[tuple[str, str]]
    ) -> list[MetricSample]:
        """The sample of the hub, and those of its groups with a known lag."""
        entity = runtime.entity
        namespace, hub = fold_name(entity.namespace), fold_name(entity.name)
        lag: Counter[str] = Counter()
        for row in hub_rows(runtime, self.catalog, self.checkpoints, now_ms=self.clock.now_ms()):
            if row.lag_events is not None:
                lag[fold_name(row.group)] += row.lag_events
        size = sum(runtime.status(index).size_bytes for index in range(runtime.partition_count))
        before = self._noted.get(entity.id, _NOTHING)
        done = tuple(now - then for now, then in zip(counts, before, strict=True))
        gauges = (connections[namespace, hub], size, max(lag.values(), default=None), None)
        groups = [
            MetricSample(MetricSubject(namespace, hub, group), _NOTHING, (None, None, behind, None))
            for group, behind in lag.items()
        ]
        return [MetricSample(MetricSubject(namespace, hub), done, gauges), *groups]


def _counts(runtime: HubRuntime) -> _Counts:
    counters = runtime.counters
    return tuple(getattr(counters, name) for name in COUNTERS)


def _sum_namespaces(
    units: Mapping[str, int | None],
    samples: Sequence[MetricSample],
    connections: Counter[tuple[str, str]],
) -> list[MetricSample]:
    """The sums over the hubs of each namespace, and the greatest lag."""
    hubs: defaultdict[str, list[MetricSample]] = defaultdict(list)
    for sample in samples:
        if not sample.subject.group:
            hubs[sample.subject.namespace].append(sample)
    sums_of_namespaces = []
    for name, throughput_units in units.items():
        every = (_NOTHING, *(sample.counters for sample in hubs[name]))
        sums = [sum(numbers) for numbers in zip(*every, strict=True)]
        size = sum(sample.gauges[1] or 0 for sample in hubs[name])
        behind = [lag for sample in hubs[name] if (lag := sample.gauges[2]) is not None]
        gauges = (connections[name, ""], size, max(behind, default=None), throughput_units)
        sums_of_namespaces.append(MetricSample(MetricSubject(name), tuple(sums), gauges))
    return sums_of_namespaces


def _limit_subjects(samples: list[MetricSample]) -> list[MetricSample]:
    """Namespaces, then hubs, then groups; the busiest first."""

    def rank(sample: MetricSample) -> tuple[bool, bool, int]:
        subject = sample.subject
        return bool(subject.hub), bool(subject.group), -sum(sample.counters)

    return sorted(samples, key=rank)[:SUBJECTS_MAX]
