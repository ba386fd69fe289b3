"""What is generated from docs/figures.json: the tables of two documents, and the chart."""

from __future__ import annotations

from typing import Any

from benchmarks.figures import catalog
from benchmarks.report.report import Report


def report(figures: dict[str, Any]) -> Report | None:
    """None before anything was measured."""
    throughput = figures["throughput"]
    if not throughput.get("subjects"):
        return None
    facts = ("log_gb", "log_events", "page_cache_dropped", "start_s", "disk_read_mb_per_s")
    rows = []
    for title, workload in catalog.WORKLOADS.items():
        for subject, slug in catalog.SUBJECTS.items():
            row = throughput.get(workload, {}).get(slug, {})
            measured = {name: value for name, value in row.items() if value is not None}
            if "events_per_s" in measured:
                rows.append({"workload": title, "subject": subject, **measured})
    part = figures["parts"]["throughput"]
    run = {name: throughput[name] for name in ("rounds", "kernels")}
    return Report(
        {
            "about": {**figures["about"], **part, **run, "when": part["date"]},
            "ceilings": {
                name: value
                for name, value in throughput.items()
                if name.startswith(("fdatasync", "loopback"))
            },
            "subjects": throughput["subjects"],
            "rows": rows,
            "facts": {name: throughput.get(name) for name in facts},
            "skipped": throughput["skipped"],
        }
    )


def benchmarks(figures: dict[str, Any]) -> str:
    """The section of docs/benchmarks.md."""
    found = report(figures)
    return "Not measured yet.\n" if found is None else found.markdown()


def chart(figures: dict[str, Any]) -> str | None:
    found = report(figures)
    return None if found is None else found.chart()


def all_figures(figures: dict[str, Any]) -> str:
    """The section of docs/figures.md."""
    known = catalog.figures()
    out: list[str] = []
    single = [key for key in known if not _is_workload(key)]
    for part in ("about", *catalog.PARTS):
        out += [f"## {part}", ""]
        when = figures.get("parts", {}).get(part)
        if when:
            out += [
                f"Measured {when['date']} at commit {when['commit']} in {when['seconds']} s; "
                f"load average before: {when['load_average']}.",
                "",
            ]
        out += ["| Key | Meaning | Value |", "|---|---|--:|"]
        for key in single:
            if key.startswith(part + "."):
                text = catalog.to_text(_value(figures, key), known[key].format)
                out.append(f"| `{key}` | {known[key].meaning} | {text} |")
        out.append("")
        if part == "throughput":
            out += _workloads()
    return "\n".join(out)


def _workloads() -> list[str]:
    out = [
        "And `throughput.WORKLOAD.SUBJECT.FIGURE`, for example",
        "`throughput.publish_1kb_batches.penstock.events_per_s`; the values are in",
        "[benchmarks.md](benchmarks.md#figures).",
        f"SUBJECT is one of {', '.join(f'`{name}`' for name in catalog.SUBJECTS.values())};",
        "the peers are measured in the first six workloads.",
        "",
        "| WORKLOAD | |",
        "|---|---|",
        *(f"| `{slug}` | {title} |" for title, slug in catalog.WORKLOADS.items()),
        "",
        "| FIGURE | |",
        "|---|---|",
        *(f"| `{name}` | {figure.meaning} |" for name, figure in catalog.RATES.items()),
        "",
    ]
    return out


def _is_workload(key: str) -> bool:
    return key.count(".") > 1


def _value(figures: dict[str, Any], key: str) -> Any:
    part, name = key.split(".")
    return figures[part][name]
