"""What a run of the benchmarks found: rows of medians, facts, and what was left out and why."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from penstock.client.load.measurements import LoadResult

MB = 1024 * 1024


class Row:
    """One workload of one subject: every figure is the median of its runs."""

    def __init__(self, workload: str, subject: str, *, size: int) -> None:
        self.workload = workload
        self.subject = subject
        self.size = size
        self._figures: dict[str, list[float]] = {}

    def add(self, result: LoadResult, *, broker_cpu_s: float) -> None:
        """CPU is left out where the generator's is not known: then its start is in both."""
        self.note("events_per_s", result.events_per_s)
        self.note("mb_per_s", result.events_per_s * self.size / MB)
        if result.cpu_seconds:
            seconds = max(result.seconds, 1e-9)
            self.note("broker_cpu_share", broker_cpu_s / seconds)
            self.note("events_per_broker_cpu_s", result.events / max(broker_cpu_s, 0.01))
            self.note("generator_cpu_share", result.cpu_seconds / seconds)
        for prefix, latencies in (("ack", result.latencies), ("e2e", result.deliveries)):
            for name, part in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999)):
                value = latencies.percentile(part)
                if value is not None:
                    self.note(f"{prefix}_{name}_ms", value)

    def note(self, name: str, value: float) -> None:
        self._figures.setdefault(name, []).append(value)

    def values(self, name: str) -> list[float]:
        return self._figures[name]

    def median(self, name: str) -> float | None:
        values = self._figures.get(name)
        return statistics.median(values) if values else None

    def as_dict(self) -> dict[str, object]:
        found: dict[str, object] = {
            "workload": self.workload,
            "subject": self.subject,
            "size": self.size,
        }
        for name, values in self._figures.items():
            found[name] = _rounded(statistics.median(values))
        rates = self._figures.get("events_per_s", [])
        if rates:
            found["events_per_s_range"] = [_rounded(min(rates)), _rounded(max(rates))]
            found["runs"] = len(rates)
        return found


class Results:
    """Everything that is written out at the end."""

    def __init__(self) -> None:
        self.about: dict[str, object] = {}
        self._ceilings: dict[str, list[float]] = {}
        self.subjects: dict[str, str] = {}  # name: under which setting it acknowledges
        self.facts: dict[str, object] = {}
        self.skipped: list[str] = []
        self._rows: dict[tuple[str, str], Row] = {}

    def add_ceilings(self, found: dict[str, float]) -> None:
        """The machine's own figures move during a run as much as everybody's."""
        for name, value in found.items():
            self._ceilings.setdefault(name, []).append(value)

    @property
    def rows(self) -> Iterable[Row]:
        return self._rows.values()

    def row(self, workload: str, subject: str, *, size: int = 0) -> Row:
        key = (workload, subject)
        if key not in self._rows:
            self._rows[key] = Row(workload, subject, size=size)
        return self._rows[key]

    def as_dict(self) -> dict[str, Any]:
        return {
            "about": self.about,
            "ceilings": {
                name: _rounded(statistics.median(values)) for name, values in self._ceilings.items()
            },
            "subjects": self.subjects,
            # A row that somebody asked for and whose every run failed has no figures.
            "rows": [row.as_dict() for row in self._rows.values() if row.median("events_per_s")],
            "facts": self.facts,
            "skipped": self.skipped,
        }

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(self.as_dict(), indent=2) + "\n")


def _rounded(value: float) -> float:
    """Four digits are more than a run repeats."""
    return round(value) if value >= 1000 else float(f"{value:.4g}")
