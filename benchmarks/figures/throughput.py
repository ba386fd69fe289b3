"""The part `throughput`: what `make bench` measures, Penstock and its peers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.figures import catalog
from benchmarks.figures.run import Tell
from benchmarks.report import machine
from benchmarks.report.report import Report
from benchmarks.report.results import Results
from benchmarks.scenarios import comparison, large_log, penstock_only
from benchmarks.systems.process import pin_generator

ROUNDS, SECONDS, LATENCY_S = 5, 1.5, 2.0
FEW = 3  # rounds where Penstock is not compared
LOG_GB = 10.0


def measure_throughput(place: Path, trial: bool, tell: Tell) -> dict[str, Any]:
    results = Results()
    pin_generator()
    rounds, few = (1, 1) if trial else (ROUNDS, FEW)
    seconds = 0.7 if trial else SECONDS
    results.add_ceilings(machine.ceilings(place))
    comparison.publish_and_deliver(
        place, results, rounds=rounds, seconds=seconds, peers=True, tell=tell
    )
    penstock_only.latency(
        place, results, rounds=few, seconds=1.0 if trial else LATENCY_S, tell=tell
    )
    penstock_only.many_connections(place, results, rounds=few, seconds=seconds, tell=tell)
    penstock_only.slow_reader(place, results, rounds=few, seconds=seconds, tell=tell)
    large_log.large_log(place, results, log_gb=0.25 if trial else LOG_GB, tell=tell, starts=few)
    results.add_ceilings(machine.ceilings(place))
    found = to_figures(results.as_dict())
    return {**found, "rounds": rounds, "kernels": _kernels()}


def to_figures(results: dict[str, Any]) -> dict[str, Any]:
    """The results by the names of the catalog."""
    report = Report(results)
    found: dict[str, Any] = {
        **dict.fromkeys(catalog.THROUGHPUT),  # null: the large log was left out, as `skipped` says
        **results["ceilings"],
        **results["facts"],
        "subjects": results["subjects"],
        "skipped": results["skipped"],
    }
    for row in results["rows"]:
        figures = {name: row[name] for name in row if name not in ("workload", "subject")}
        ratio = report.ratio(row)
        if ratio is not None:
            figures["penstock_ratio"] = ratio
        workload = found.setdefault(catalog.WORKLOADS[row["workload"]], {})
        workload[catalog.SUBJECTS[row["subject"]]] = figures
    return found


def _kernels() -> str:
    import penstock.kernels

    return str(penstock.kernels.KERNEL)
