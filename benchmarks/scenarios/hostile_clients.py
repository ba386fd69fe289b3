"""An honest client's acknowledgements alone, and beside unauthenticated peers that misbehave.

    make bench ARGS="--part hostile"             the bar: 500 connections, 30 s, median of 5 runs
    python -m benchmarks.scenarios.hostile_clients --each --rounds 1    each kind by itself
    python -m benchmarks.scenarios.hostile_clients --kinds flows,links  only these kinds

The broker runs as a user runs it, on one core. The client and the peers, which come from 127.0.0.2
and run at nice 19, share another. The peers send as fast as the broker reads, and reconnect when
they are closed. The client publishes at a fixed rate, so a stall counts for every event that was
due meanwhile. docs/explanation/security.md has the defences.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import ssl
import statistics
import sys
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path

from benchmarks.scenarios.hostile_input import (
    KINDS,
    UNAUTHENTICATED,
    Target,
    misbehave,
)
from benchmarks.systems.base import run
from benchmarks.systems.penstock import HUB, Penstock
from benchmarks.systems.process import pin_generator

from penstock.client.load.producer import LoadProfile, publish

CONNECTIONS = 500
SECONDS = 30.0
RATE = 1000.0  # events a second of the honest client
P99_MS_ALLOWED = 50.0  # or three times what it is alone
GROWTH_MB_ALLOWED = 100.0


def main() -> None:
    given = _arguments()
    pin_generator()
    chosen = [[kind] for kind in UNAUTHENTICATED] if given.each else [given.kinds]
    results = [measure(kinds, given) for kinds in chosen]
    if given.output == "json":
        sys.stdout.write(json.dumps(results) + "\n")


def measure(kinds: list[str], given: argparse.Namespace) -> dict[str, object]:
    """Medians of all rounds, each with a fresh broker; written as text too, unless told."""
    rounds = []
    for number in range(given.rounds):
        with tempfile.TemporaryDirectory(dir=given.directory) as place:
            rounds.append(_round(Path(place), kinds, given))
        if given.output == "text":
            _show(f"round {number + 1}", rounds[-1])
    result: dict[str, object] = {
        name: round(statistics.median(each[name] for each in rounds), 2) for name in rounds[0]
    }
    allowed = max(P99_MS_ALLOWED, 3 * float(str(result["p99_ms_alone"])))
    result |= {
        "kinds": kinds,
        "connections": given.connections,
        "rounds": given.rounds,
        "p99_ms_allowed": round(allowed, 2),
        "holds": float(str(result["p99_ms_beside"])) < allowed
        and float(str(result["growth_mb"])) < GROWTH_MB_ALLOWED,
    }
    if given.output == "text":
        sys.stdout.write(f"median of {given.rounds}: {json.dumps(result)}\n")
        sys.stdout.flush()
    return result


def _round(place: Path, kinds: list[str], given: argparse.Namespace) -> dict[str, float]:
    penstock = Penstock(place / "data")
    penstock.start()
    try:
        _publish(penstock, given, seconds=2.0)  # nothing is warm before
        alone = _publish(penstock, given, seconds=given.seconds / 3)
        before_kb = penstock.broker.rss_kb()
        with _Crowd(penstock, kinds, given.connections):
            beside = _publish(penstock, given, seconds=given.seconds)
            after_kb = penstock.broker.rss_kb()
    finally:
        penstock.close()
    return {
        "p50_ms_alone": alone[0],
        "p50_ms_beside": beside[0],
        "p99_ms_alone": alone[1],
        "p99_ms_beside": beside[1],
        "cpu_percent_alone": alone[2],
        "cpu_percent_beside": beside[2],
        "growth_mb": (after_kb - before_kb) / 1024,
        "load_average": os.getloadavg()[0],
    }


def _publish(
    penstock: Penstock, given: argparse.Namespace, *, seconds: float
) -> tuple[float, float, float]:
    """The 50th and 99th percentile of acknowledgements, in milliseconds, and the broker's use of
    its core in percent."""
    assert penstock.endpoint is not None
    load = LoadProfile(
        hub=HUB,
        partition="0",
        size=given.size,
        batch=1,
        in_flight=1000,
        duration_s=seconds,
        rate=given.rate,
    )
    before_s, started_s = penstock.broker.cpu_s(), time.perf_counter()
    result = run(publish(penstock.endpoint, load, tls=None))
    used_s = penstock.broker.cpu_s() - before_s
    if result.errors:
        raise SystemExit(f"publishing failed: {result.first_error}")
    p50, p99 = result.latencies.percentile(0.5), result.latencies.percentile(0.99)
    assert p50 is not None
    assert p99 is not None
    return p50, p99, 100 * used_s / (time.perf_counter() - started_s)


class _Crowd:
    """The peers that misbehave, in a process of their own."""

    def __init__(self, penstock: Penstock, kinds: list[str], connections: int) -> None:
        endpoint, facts = penstock.endpoint, penstock.facts
        assert endpoint is not None
        assert endpoint.key_name is not None
        assert endpoint.key is not None
        self._target = Target(
            host=endpoint.host,
            amqp=endpoint.port,
            amqps=int(str(facts["amqps"]).rpartition(":")[2]),
            https=int(str(facts["https"]).rpartition(":")[2]),
            policy=endpoint.key_name,
            key=endpoint.key.reveal(),
            hub=HUB,
        )
        fork = multiprocessing.get_context("spawn")
        self._there: Event = fork.Event()
        self._process = fork.Process(
            target=_crowd, args=(self._target, kinds, connections, self._there), daemon=True
        )

    def __enter__(self) -> None:
        self._process.start()
        if not self._there.wait(60):
            raise SystemExit("the peers that misbehave did not start")

    def __exit__(self, *_: object) -> None:
        if not self._process.is_alive():
            raise SystemExit("the peers that misbehave have ended by themselves")
        self._process.kill()
        self._process.join()


def _crowd(target: Target, kinds: list[str], connections: int, there: Event) -> None:
    # They have what the client leaves of its core: what they cost is what they cost the broker.
    os.nice(19)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    run(misbehave(target, kinds, connections, context, there.set))


def _show(name: str, figures: dict[str, float]) -> None:
    text = "   ".join(f"{key} {value:.1f}" for key, value in figures.items())
    sys.stdout.write(f"{name}: {text}\n")
    sys.stdout.flush()


def bar(*, rounds: int, directory: Path | None) -> None:
    """`make bench ARGS="--part hostile"`."""
    given = _arguments(["--rounds", str(rounds)])
    given.directory = directory
    measure(given.kinds, given)


def _arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--kinds",
        type=lambda text: text.split(","),
        default=list(UNAUTHENTICATED),
        help=", ".join(KINDS),
    )
    parser.add_argument("--each", action="store_true", help="each kind by itself")
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--rate", type=float, default=RATE, help="events a second")
    parser.add_argument("--size", type=int, default=1024, help="bytes of an event's body")
    parser.add_argument("--directory", type=Path, help="where the data goes [a temporary one]")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
