"""`make bench`: what this machine, this Penstock and its peers do, in one run, side by side.

Every broker runs as its users run it, alone on one core; the load generator on another where there
is one. Figures of two machines are not to be compared; shares and ratios are. docs/benchmarks.md
has the method.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import against
from benchmarks.report import machine
from benchmarks.report.report import Report, wide_console
from benchmarks.report.results import Results
from benchmarks.scenarios import (
    comparison,
    hostile_clients,
    idle_connections,
    large_log,
    penstock_only,
    stalls,
)
from benchmarks.scenarios.comparison import Tell
from benchmarks.systems.process import pin_generator
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("rounds", "latency", "connections", "slow", "large", "idle", "stalls")
HOSTILE = "hostile"  # five minutes, with a bar of its own: only when asked for


def main() -> None:
    given = _arguments()
    if given.against is not None:
        sys.exit(_compare_builds(given))
    if HOSTILE in given.parts:
        pin_generator()
        hostile_clients.bar(rounds=given.rounds, directory=given.directory)
        given.parts.remove(HOSTILE)
        if not given.parts:
            return
    console = wide_console()
    results = Results()
    results.about = {
        **machine.about(),
        "kernels": _kernels(),
        "rounds": given.rounds,
        "when": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    pin_generator()
    with (
        tempfile.TemporaryDirectory(dir=given.directory, prefix="penstock-bench-") as place,
        _progress() as progress,
    ):
        task = progress.add_task("the machine's ceilings")

        def tell(text: str) -> None:
            progress.update(task, description=text)

        results.add_ceilings(machine.ceilings(Path(place)))
        _measure(given, Path(place), results, tell)
        tell("the machine's ceilings")
        results.add_ceilings(machine.ceilings(Path(place)))
    if given.json is not None:
        results.write(given.json)
    Report(results.as_dict()).show(console)


def _compare_builds(given: argparse.Namespace) -> int:
    pin_generator()
    with (
        tempfile.TemporaryDirectory(dir=given.directory, prefix="penstock-bench-") as place,
        _progress() as progress,
    ):
        task = progress.add_task("")
        comparisons = against.compare_builds(
            given.against,
            Path(place),
            repository=ROOT,
            count=max(given.rounds, against.ROUNDS_MIN),
            seconds=given.seconds,
            tell=lambda text: progress.update(task, description=text),
        )
    wide_console().print(against.to_table(comparisons, given.against))
    return against.exit_code(comparisons)


def _progress() -> Progress:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _measure(given: argparse.Namespace, place: Path, results: Results, tell: Tell) -> None:
    count, seconds = given.rounds, given.seconds
    few = min(count, 3)  # where nobody is compared
    if "rounds" in given.parts:
        comparison.publish_and_deliver(
            place, results, rounds=count, seconds=seconds, peers=not given.no_peers, tell=tell
        )
    if "latency" in given.parts:
        longer = max(seconds, 2.0) if not given.quick else 1.0
        penstock_only.latency(place, results, rounds=few, seconds=longer, tell=tell)
    if "connections" in given.parts:
        counts = (64,) if given.quick else penstock_only.CONNECTIONS
        penstock_only.many_connections(
            place, results, rounds=few, seconds=seconds, tell=tell, counts=counts
        )
    if "slow" in given.parts:
        penstock_only.slow_reader(place, results, rounds=few, seconds=seconds, tell=tell)
    if "large" in given.parts:
        large_log.large_log(place, results, log_gb=given.log_gb, tell=tell, starts=few)
    if "idle" in given.parts:
        idle_connections.idle_connections(place, results, count=given.idle, tell=tell)
    if "stalls" in given.parts:
        hubs, connections = (200, 300) if given.quick else (stalls.HUBS, stalls.CONNECTIONS)
        stalls.event_loop_stalls(place, results, hubs=hubs, connections=connections, tell=tell)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="one short round: under a minute, for a look")
    add("--rounds", type=int, help="medians are of so many [5, quick: 1]")
    add("--seconds", type=float, help="per publishing run [1.5, quick: 0.7]")
    add("--log-gb", type=float, help="the large log [10, quick: 0.25]")
    add("--idle", type=int, help="idle connections [2000, quick: 400]")
    add("--no-peers", action="store_true", help="Penstock alone")
    add("--part", dest="parts", action="append", choices=(*PARTS, HOSTILE), help="only these [all]")
    add("--against", metavar="REF", help="compare this build with the build of this commit")
    add("--json", type=Path, help="also write the results here")
    add("--directory", type=Path, help="on which disk [the temporary directory's]")
    given = parser.parse_args()
    for name, full, quick in (
        ("rounds", 5, 1),
        ("seconds", 1.5, 0.7),
        ("log_gb", 10.0, 0.25),
        ("idle", 2000, 400),
    ):
        if getattr(given, name) is None:
            setattr(given, name, quick if given.quick else full)
    given.parts = given.parts or list(PARTS)
    if given.directory is not None and not given.directory.is_dir():
        parser.error(f"{given.directory} is no directory")
    return given


def _kernels() -> str:
    import penstock.kernels

    return str(penstock.kernels.KERNEL)


if __name__ == "__main__":
    main()
