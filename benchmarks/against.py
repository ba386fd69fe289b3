"""`make bench ARGS="--against REF"`: compares this build with the build of another commit.

REF gets an environment of its own below `build/against`. REF is first measured against itself: the
spread of those ratios is the noise of the machine. Then both builds are measured in alternating
rounds with the same load generator, which is the one of this build.
"""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from benchmarks.report.results import Results
from benchmarks.scenarios.comparison import SIZES, Tell, label, measure_once
from benchmarks.systems.penstock import Penstock
from rich.table import Table

ROUNDS_MIN = 7
TOLERANCE = 0.03  # a loss that counts as unchanged however quiet the machine is
SPREAD_MAX = 0.05  # with a larger spread of REF against itself, a ratio means nothing
FIGURES = ("events_per_s", "events_per_broker_cpu_s", "memory_mb")
_LABELS = {
    "events_per_s": "events per second",
    "events_per_broker_cpu_s": "events per CPU second",
    "memory_mb": "memory",
}

Ratios = Mapping[tuple[str, str], Sequence[float]]  # (workload, figure): one ratio per round


class Verdict(Enum):
    UNCHANGED = "unchanged"
    WORSE = "worse"
    NOISY = "too noisy"


@dataclass(frozen=True)
class Comparison:
    """One figure of one workload. A ratio above 1 means that this build is better than REF."""

    workload: str
    figure: str
    ratio: float  # median over the rounds
    spread: float  # of REF against itself: the median distance of its ratios from 1

    @property
    def ratio_min(self) -> float:
        return 1 - max(TOLERANCE, 2 * self.spread)

    @property
    def verdict(self) -> Verdict:
        if self.spread > SPREAD_MAX:
            return Verdict.NOISY
        return Verdict.UNCHANGED if self.ratio >= self.ratio_min else Verdict.WORSE


def judge(noise: Ratios, ratios: Ratios) -> list[Comparison]:
    """`noise` holds the ratios of REF against itself, `ratios` those of this build against REF."""
    return [
        Comparison(
            workload,
            figure,
            statistics.median(values),
            statistics.median(abs(ratio - 1) for ratio in noise[workload, figure]),
        )
        for (workload, figure), values in ratios.items()
    ]


def compare_builds(
    reference: str, place: Path, *, repository: Path, count: int, seconds: float, tell: Tell
) -> list[Comparison]:
    tell(f"build {reference}")
    executable = build(repository, reference)
    tell(f"{reference} against itself")
    again = Penstock(place / "again", executable=executable, name="again")
    base = Penstock(place / "base", executable=executable, name="base")
    noise = measure_ratios(base, again, place, count=count, seconds=seconds, tell=tell)
    this = Penstock(place / "this", name="this build")
    ratios = measure_ratios(base, this, place, count=count, seconds=seconds, tell=tell)
    return judge(noise, ratios)


def build(repository: Path, reference: str) -> Path:
    """Build the commit in an environment of its own; return its `penstock` command."""
    commit = _git(repository, "rev-parse", "--verify", f"{reference}^{{commit}}").decode().strip()
    directory = repository / "build" / "against" / commit[:12]
    if not directory.is_dir():
        directory.mkdir(parents=True)
        archive = _git(repository, "archive", commit)
        subprocess.run(["tar", "-x", "-C", str(directory)], input=archive, check=True)
    subprocess.run(["make", "-s", "-C", str(directory), "setup"], check=True)
    return directory / ".venv" / "bin" / "penstock"


def _git(repository: Path, *arguments: str) -> bytes:
    return subprocess.run(
        ["git", "-C", str(repository), *arguments], check=True, stdout=subprocess.PIPE
    ).stdout


def measure_ratios(
    base: Penstock,
    other: Penstock,
    place: Path,
    *,
    count: int,
    seconds: float,
    tell: Tell,
) -> Ratios:
    """Measure both in turns, `count` times. The one that goes first changes from round to round."""
    results = Results()
    try:
        for system in (base, other):
            system.start()
            system.broker.pause()
        for number in range(count):
            for size in SIZES:
                for system in (base, other) if number % 2 == 0 else (other, base):
                    tell(f"round {number + 1} of {count}: {system.name}, {label(size)}")
                    measure_once(system, size, results, seconds)
    finally:
        base.close()
        other.close()
    ratios: dict[tuple[str, str], list[float]] = {}
    for workload in dict.fromkeys(row.workload for row in results.rows):
        for figure in FIGURES:
            values = [results.row(workload, system.name).values(figure) for system in (other, base)]
            if figure == "memory_mb":
                values.reverse()  # less is better
            ratios[workload, figure] = [a / b for a, b in zip(*values, strict=True)]
    return ratios


def to_table(comparisons: Sequence[Comparison], reference: str) -> Table:
    table = Table(title=f"This build against {reference} (ratio above 1: this build is better)")
    for column in ("workload", "figure", "ratio", "at least", "spread", "verdict"):
        table.add_column(column)
    for comparison in comparisons:
        table.add_row(
            comparison.workload,
            _LABELS[comparison.figure],
            f"{comparison.ratio:.3f}",
            f"{comparison.ratio_min:.3f}",
            f"{comparison.spread:.3f}",
            comparison.verdict.value,
        )
    return table


def exit_code(comparisons: Sequence[Comparison]) -> int:
    """0: unchanged. 1: a figure is worse. 2: none is worse, but some are too noisy to judge."""
    verdicts = {comparison.verdict for comparison in comparisons}
    if Verdict.WORSE in verdicts:
        return 1
    return 2 if Verdict.NOISY in verdicts else 0
