"""Publishing and delivery, ours and the peers' in turns: each round measures everybody once.

The order changes from round to round, so that nobody always follows the same one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.report import machine
from benchmarks.report.results import Results
from benchmarks.systems import kafka, nats, rabbitmq
from benchmarks.systems.base import Absent, Subject, run
from benchmarks.systems.penstock import Penstock
from benchmarks.systems.process import measured

from penstock.client.load.measurements import LoadResult

SIZES = (100, 1024)
BATCH = 100
_SETTLE_S = 0.1  # for what the last subject left behind in the kernel
_DELIVER_EVENTS_MAX = {100: 1_500_000, 1024: 500_000}  # about a second of the fastest

Tell = Callable[[str], None]


def label(size: int) -> str:
    return f"{size} B" if size < 1024 else f"{size // 1024} KB"


@contextlib.contextmanager
def subjects(place: Path, results: Results, *, peers: bool, tell: Tell) -> Iterator[list[Subject]]:
    """Ours, and every peer that is on this machine, each paused."""
    found: list[Subject] = []
    try:
        tell("Penstock starts")
        penstock = Penstock(place / "penstock")
        penstock.start()
        penstock.broker.pause()
        found.append(penstock)
        for name, make in (("NATS", _nats), ("RabbitMQ", _rabbitmq), ("Kafka", _kafka)):
            if not peers:
                results.skipped.append(f"{name}: skipped, as asked for.")
                continue
            tell(f"{name} starts")
            try:
                begun = make(place)
            except Absent as absent:
                results.skipped.append(f"{name}: skipped, {absent}.")
            else:
                begun[0].broker.pause()
                found += begun
        results.subjects.update({subject.name: subject.acknowledges for subject in found})
        yield found
    finally:
        for subject in found:
            subject.close()


def _nats(place: Path) -> list[Subject]:
    return [nats.Nats(place)]


def _rabbitmq(place: Path) -> list[Subject]:
    node = rabbitmq.RabbitNode(place)
    return [rabbitmq.RabbitQueue(node), rabbitmq.RabbitStream(node)]


def _kafka(place: Path) -> list[Subject]:
    return [kafka.Kafka(place)]


def publish_and_deliver(
    place: Path, results: Results, *, rounds: int, seconds: float, peers: bool, tell: Tell
) -> None:
    lost: list[Subject] = []  # a peer that fails ends nobody else's run
    with subjects(place, results, peers=peers, tell=tell) as found:
        for number in range(rounds):
            if number:
                results.add_ceilings(machine.ceilings(place))
            turn = number % len(found)
            for size in SIZES:
                for subject in found[turn:] + found[:turn]:
                    if subject in lost:
                        continue
                    tell(f"round {number + 1} of {rounds}: {subject.name}, {label(size)}")
                    try:
                        measure_once(subject, size, results, seconds)
                    except (RuntimeError, OSError, TimeoutError) as error:
                        if subject is found[0]:
                            raise
                        lost.append(subject)
                        results.skipped.append(
                            f"{subject.name}: given up in round {number + 1}: {error!r}."
                        )


def measure_once(subject: Subject, size: int, results: Results, seconds: float) -> None:
    """Publish batches and single events into an empty log, then read the batches back."""
    subject.broker.resume()
    subject.fresh()
    time.sleep(_SETTLE_S)
    stored: LoadResult | None = None
    for batch in subject.kinds:
        kind = "singles" if batch == 1 else "batches"
        row = results.row(f"publish {label(size)} {kind}", subject.name, size=size)
        with measured(subject.broker) as cpu_s:
            result = require_success(
                run(subject.publish(size, batch, seconds=seconds)), subject.name
            )
            row.add(result, broker_cpu_s=cpu_s())
            row.note("memory_mb", subject.broker.rss_kb() / 1024)
        stored = stored or result
    assert stored is not None
    deliver = results.row(f"deliver {label(size)}", subject.name, size=size)
    with measured(subject.broker) as cpu_s:
        events = min(stored.events, _DELIVER_EVENTS_MAX[size])
        read = require_success(run(subject.deliver(size, events=events)), subject.name)
        deliver.add(read, broker_cpu_s=cpu_s())
        deliver.note("memory_mb", subject.broker.rss_kb() / 1024)


def require_success(result: LoadResult, name: str) -> LoadResult:
    """Figures with errors in them are not figures."""
    if result.errors or not result.events:
        raise RuntimeError(
            f"{name}: {result.errors} errors, {result.events} events: {result.first_error}"
        )
    return result
