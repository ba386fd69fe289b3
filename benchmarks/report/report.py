"""Results of `make bench` as tables for the terminal and for docs/benchmarks.md, and as a chart."""

from __future__ import annotations

from typing import Any

from benchmarks.report.chart import draw, format_rate, format_ratio
from rich.console import Console
from rich.table import Table

OURS = "Penstock"
_COLUMNS = 150
_COMPARED = 6  # the first workloads, which peers are measured in


class Report:
    """One results file, looked at from several sides."""

    def __init__(self, results: dict[str, Any]) -> None:
        self.results = results
        self.rows: list[dict[str, Any]] = results["rows"]
        self.workloads: dict[str, list[dict[str, Any]]] = {}
        for row in self.rows:
            self.workloads.setdefault(row["workload"], []).append(row)
        for rows in self.workloads.values():
            rows.sort(key=lambda row: (row["subject"] != OURS, -row["events_per_s"]))

    def ours(self, workload: str) -> dict[str, Any] | None:
        rows = self.workloads.get(workload, [])
        return rows[0] if rows and rows[0]["subject"] == OURS else None

    def ratio(self, row: dict[str, Any]) -> float | None:
        """How many times a peer's rate ours is; without a batch API ours one by one counts."""
        ours = self.ours(row["workload"])
        if ours is None or row is ours or not row["events_per_s"]:
            return None
        return float(ours["events_per_s"]) / float(row["events_per_s"])

    def share(self, row: dict[str, Any]) -> str:
        """Payload bytes against what the disk flushes or loopback carries."""
        ceilings = self.results["ceilings"]
        if row["workload"].startswith("publish"):
            ceiling, name = ceilings["fdatasync_1024kb_mb_per_s"], "fsync"
        elif row["workload"].startswith("deliver"):
            ceiling, name = ceilings["loopback_64kb_mb_per_s"], "loopback"
        elif row["workload"].startswith("replay"):
            ceiling, name = self.results["facts"]["disk_read_mb_per_s"], "disk read"
        else:
            return ""
        return f"{row['mb_per_s'] / ceiling:.0%} of {name}"

    def compared(self) -> list[tuple[str, list[dict[str, Any]]]]:
        """Workloads in which a peer was measured too; without any peer the same workloads."""
        shared = [(name, rows) for name, rows in self.workloads.items() if len(rows) > 1]
        return shared or list(self.workloads.items())[:_COMPARED]

    # --- for the terminal -------------------------------------------------------------------------

    def show(self, console: Console) -> None:
        console.print(self._facts_table("This machine", self._machine()))
        console.print(self._rates_table())
        console.print(self._latency_table())
        if self.results["facts"]:
            console.print(self._facts_table("Penstock at rest", self.results["facts"]))
        for name, setting in self.results["subjects"].items():
            console.print(f"[bold]{name}[/bold] acknowledges: {setting}")
        for line in self.results["skipped"]:
            console.print(line)

    def _machine(self) -> dict[str, Any]:
        return {**self.results["about"], **self.results["ceilings"]}

    def _facts_table(self, title: str, facts: dict[str, Any]) -> Table:
        table = Table(title=title, show_header=False)
        table.add_column()
        table.add_column(justify="right")
        for name, value in facts.items():
            table.add_row(name.replace("_", " "), _format_value(value))
        return table

    def _rates_table(self) -> Table:
        table = Table(title="Events per second: medians, broker on one core")
        for name in ("workload", "subject"):
            table.add_column(name)
        for name in ("events/s", "range", "MB/s", "share", "broker", "generator", "ours is"):
            table.add_column(name, justify="right")
        for rows in self.workloads.values():
            for row in rows:
                table.add_row(*self._rate_cells(row), end_section=row is rows[-1])
        return table

    def _rate_cells(self, row: dict[str, Any]) -> list[str]:
        least, most = row["events_per_s_range"]
        ratio = self.ratio(row)
        return [
            row["workload"],
            row["subject"],
            format_rate(row["events_per_s"]),
            f"{format_rate(least)} – {format_rate(most)}",
            _format_value(row["mb_per_s"]),
            self.share(row),
            *(
                f"{row[name]:.0%}" if name in row else ""
                for name in ("broker_cpu_share", "generator_cpu_share")
            ),
            "" if ratio is None else format_ratio(ratio),
        ]

    def _latency_table(self) -> Table:
        table = Table(title="Latency, milliseconds")
        for name in ("workload", "subject"):
            table.add_column(name)
        for name in ("ack p50", "p99", "p99.9", "read p50", "p99", "p99.9"):
            table.add_column(name, justify="right")
        for row in self._with_latency():
            table.add_row(row["workload"], row["subject"], *_latency_cells(row))
        return table

    def _with_latency(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if "ack_p50_ms" in row or "e2e_p50_ms" in row]

    # --- for the docs -----------------------------------------------------------------------------

    def markdown(self) -> str:
        about, facts = self.results["about"], self.results["facts"]
        out = [
            f"Measured {about['when']} on {about['cores']} cores ({about['cpu']}), "
            f"{about['memory_gb']} GB,",
            f"Linux {about['kernel']}, Python {about['python']}, kernels: {about['kernels']}; "
            f"load average before: {about['load_average']}.",
            f"Medians of {about['rounds']} rounds.",
            "",
            "![Events per second, Penstock and its peers](images/benchmarks.svg)",
            "",
            "| Workload | Subject | Events/s | Range | MB/s | Share | Broker's core | Ours is |",
            "|---|---|--:|--:|--:|--:|--:|--:|",
        ]
        for rows in self.workloads.values():
            for row in rows:
                cells = self._rate_cells(row)
                out.append(f"| {' | '.join([*cells[:7], cells[8]])} |")
        out += [
            "",
            "| Latency, ms | Subject | ack p50 | p99 | p99.9 | read p50 | p99 | p99.9 |",
            "|---|---|--:|--:|--:|--:|--:|--:|",
        ]
        for row in self._with_latency():
            cells = [row["workload"], row["subject"], *_latency_cells(row)]
            out.append(f"| {' | '.join(cells)} |")
        out += ["", "| This machine | |", "|---|--:|"]
        for name, value in self.results["ceilings"].items():
            out.append(f"| {name.replace('_', ' ')} | {_format_value(value)} |")
        out += ["", "| Penstock at rest | |", "|---|--:|"]
        for name, value in facts.items():
            out.append(f"| {name.replace('_', ' ')} | {_format_value(value)} |")
        out += ["", "| Subject | Acknowledges under |", "|---|---|"]
        out += [f"| {name} | {setting} |" for name, setting in self.results["subjects"].items()]
        out += ["", *(f"{line}  " for line in self.results["skipped"])]
        return "\n".join(out).rstrip() + "\n"

    def chart(self) -> str:
        about = self.results["about"]
        subtitle = f"{about['cpu']}, medians; Penstock flushes before every acknowledgement"
        return draw(self.compared(), subtitle)


def _latency_cells(row: dict[str, Any]) -> list[str]:
    names = [f"{kind}_{name}_ms" for kind in ("ack", "e2e") for name in ("p50", "p99", "p999")]
    return [_format_value(row[name]) if name in row else "" for name in names]


def _format_value(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    if isinstance(value, list):
        return " – ".join(_format_value(each) for each in value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def wide_console() -> Console:
    """The tables need their columns, also in a file."""
    console = Console()
    return console if console.is_terminal else Console(width=_COLUMNS)
