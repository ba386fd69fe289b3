"""A normal client's publish rate alone, and beside 64 connections that misbehave.

    benchmarks/hostile.py                        a mix of everything
    benchmarks/hostile.py --kinds flows,garbage  64 connections of these alone
    benchmarks/hostile.py --each                 64 connections of each kind in turn

The broker runs as a user runs it, on one core. The client and, when it idles, the peers that
misbehave share another: they send as fast as the broker lets them, and come back when they
are thrown out. docs/security.md has the defences.

`share` is of the rates, and means something on a quiet machine only. `cpu us` is what the broker
works for one event of the normal client, everything else that it does included: beside others it
holds on a busy one too.
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

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.misbehaving import APART, KINDS, Target, misbehave  # noqa: E402 - the path comes first
from benchmarks.ours import HUB, Penstock  # noqa: E402
from benchmarks.process import pin_generator  # noqa: E402
from benchmarks.subject import run  # noqa: E402

from penstock.client.load import Load, publish  # noqa: E402

CONNECTIONS = 64
_SETTLE_S = 2.0  # until they are all there and have spent what a newcomer may


def main() -> None:
    given = _arguments()
    pin_generator()
    usual = [kind for kind in KINDS if kind not in APART]
    chosen = [[kind] for kind in usual] if given.each else [given.kinds or usual]
    results = []
    for kinds in chosen:
        with tempfile.TemporaryDirectory(dir=given.directory) as place:
            results.append(_measure(Path(place), kinds, given))
        if given.output == "text":
            _show(results[-1])
    if given.output == "json":
        sys.stdout.write(json.dumps(results) + "\n")


def _measure(place: Path, kinds: list[str], given: argparse.Namespace) -> dict[str, object]:
    penstock = Penstock(place / "data")
    penstock.start()
    alone: list[tuple[float, float]] = []
    beside: list[tuple[float, float]] = []
    rss_kb = [0]
    try:
        _publish(penstock, given)  # the first is slower: nothing is warm
        before_kb = penstock.broker.rss_kb()
        for _ in range(given.rounds):
            alone.append(_publish(penstock, given))
            with _Crowd(penstock, kinds, given.connections):
                beside.append(_publish(penstock, given))
                rss_kb.append(penstock.broker.rss_kb())
    finally:
        penstock.close()
    rates = (
        statistics.median(rate for rate, _ in alone),
        statistics.median(rate for rate, _ in beside),
    )
    return {
        "kinds": kinds if len(kinds) + len(APART) < len(KINDS) else ["all"],
        "connections": given.connections,
        "events_per_s_alone": round(rates[0]),
        "events_per_s_beside": round(rates[1]),
        "share": round(rates[1] / rates[0], 3),
        "cpu_us_alone": round(statistics.median(cpu for _, cpu in alone), 2),
        "cpu_us_beside": round(statistics.median(cpu for _, cpu in beside), 2),
        "rss_mb_before": round(before_kb / 1024, 1),
        "rss_mb_beside": round(max(rss_kb) / 1024, 1),
    }


def _publish(penstock: Penstock, given: argparse.Namespace) -> tuple[float, float]:
    """Events a second, and microseconds of the broker's processor for each."""
    assert penstock.endpoint is not None
    load = Load(
        hub=HUB,
        partition="0",
        size=given.size,
        batch=given.batch,
        in_flight=given.in_flight,
        duration_s=given.seconds,
    )
    before_s = penstock.broker.cpu_s()
    result = run(publish(penstock.endpoint, load, tls=None))
    if result.errors:
        raise SystemExit(f"publishing failed: {result.first_error}")
    used_s = penstock.broker.cpu_s() - before_s
    return result.events / result.seconds, used_s / result.events * 1e6


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
        if not self._there.wait(30):
            raise SystemExit("the peers that misbehave did not start")
        time.sleep(_SETTLE_S)

    def __exit__(self, *_: object) -> None:
        if not self._process.is_alive():
            raise SystemExit("the peers that misbehave have ended by themselves")
        self._process.kill()
        self._process.join()


def _crowd(target: Target, kinds: list[str], connections: int, there: Event) -> None:
    # They have what the client leaves of its core, and give way at once: what they cost is to be
    # what they cost the broker.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    run(misbehave(target, kinds, connections, context, there.set))


def _show(result: dict[str, object]) -> None:
    kinds = result["kinds"]
    assert isinstance(kinds, list)
    sys.stdout.write(
        f"{', '.join(kinds):24} alone {result['events_per_s_alone']:>9,} events/s   "
        f"beside {result['connections']} {result['events_per_s_beside']:>9,}   "
        f"share {result['share']:.2f}   "
        f"cpu us {result['cpu_us_alone']} -> {result['cpu_us_beside']}   "
        f"memory {result['rss_mb_before']} -> {result['rss_mb_beside']} MB\n"
    )
    sys.stdout.flush()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kinds", type=lambda text: text.split(","), help=", ".join(KINDS))
    parser.add_argument("--each", action="store_true", help="each kind by itself")
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--size", type=int, default=1024, help="bytes of an event's body")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--directory", type=Path, help="where the data goes [a temporary one]")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    return parser.parse_args()


if __name__ == "__main__":
    main()
