"""`make figures`: it waits for an idle machine, keeps what was measured, and fills the page."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from benchmarks.figures import catalog, pages, run, throughput
from tools import figures

RESULTS: dict[str, Any] = {
    "about": {},
    "ceilings": {
        "fdatasync_4kb_p50_ms": 0.3,
        "fdatasync_1024kb_mb_per_s": 800.0,
        "loopback_64kb_mb_per_s": 1400.0,
    },
    "subjects": {"Penstock": "fdatasync", "NATS JetStream": "no fsync"},
    "facts": {"log_gb": 10.0, "log_events": 10, "start_s": 1.5, "disk_read_mb_per_s": 900.0},
    "rows": [
        {
            "workload": "publish 1 KB batches",
            "subject": subject,
            "size": 1024,
            "events_per_s": rate,
            "mb_per_s": rate / 1024,
            "events_per_s_range": [rate, rate],
        }
        for subject, rate in (("Penstock", 300_000), ("NATS JetStream", 100_000))
    ],
    "skipped": [],
}


def test_throughput_is_stored_by_the_names_of_the_catalog(tmp_path: Path) -> None:
    part = {**throughput.to_figures(RESULTS), "rounds": 5, "kernels": "compiled"}
    about = {"cpu": "a CPU", "cores": 2, "memory_gb": 8, "kernel": "6", "python": "3.11"}
    measured = {"date": "2026-11-18", "load_average": 0.1, "commit": "abc", "seconds": 5}
    found = {"about": about, "parts": {"throughput": measured}, "throughput": part}
    file = tmp_path / "figures.json"
    figures.store(found, file)
    text = (
        "<!-- figure: throughput.publish_1kb_batches.penstock.events_per_s --><!-- /figure --> is "
        "<!-- figure: throughput.publish_1kb_batches.nats.penstock_ratio --><!-- /figure -->"
    )
    filled = figures.fill(text, figures.read(file))
    assert ">300 k<" in filled and ">3.0x<" in filled
    page = pages.benchmarks(figures.read(file))
    assert "| publish 1 KB batches | NATS JetStream | 100 k |" in page
    assert "load average before: 0.1" in page
    assert all(len(line) < 120 for line in page.splitlines() if not line.startswith("|"))
    chart = pages.chart(figures.read(file))
    assert chart is not None and "prefers-color-scheme:dark" in chart
    ElementTree.fromstring(chart)


def test_every_workload_and_subject_has_its_key() -> None:
    known = catalog.figures()
    assert "throughput.end_to_end_1000.penstock.e2e_p99_ms" in known
    assert "throughput.end_to_end_1000.kafka.e2e_p99_ms" not in known
    assert {key.partition(".")[0] for key in known} == {"about", *catalog.PARTS}


def test_a_busy_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.29, 0.5, 0.5))
    assert run.wait_until_idle() == 0.29
    monkeypatch.setattr(os, "getloadavg", lambda: (0.3, 0.0, 0.0))
    monkeypatch.setattr(run, "IDLE_WAIT_S", 0.0)
    with pytest.raises(run.NotIdle, match=r"load average is 0.30.*below 0.3"):
        run.wait_until_idle()


def test_a_part_is_stored_when_it_is_measured_and_kept_by_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "figures.json"
    asked: list[str] = []

    def measured(part: str, **_: object) -> dict[str, Any]:
        asked.append(part)
        if part == "disk":
            raise run.PartFailed("the disk is full")
        return {"empty_s": 0.5}

    monkeypatch.setattr(run, "in_process", measured)
    monkeypatch.setattr(run, "wait_until_idle", lambda: 0.1)
    monkeypatch.setattr(run, "wait_until_quiet", lambda: None)
    with pytest.raises(run.PartFailed):
        run.measure(["start", "disk"], file, resume=False, trial=False)
    stored = json.loads(file.read_text())
    assert stored["start"]["empty_s"] == 0.5
    assert stored["parts"]["start"]["load_average"] == stored["about"]["load_average"] == 0.1
    with pytest.raises(run.PartFailed):
        run.measure(["start", "disk"], file, resume=True, trial=False)
    assert asked == ["start", "disk", "disk"]


def test_a_part_runs_in_a_process_and_must_measure_all_of_its_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho '{\"first_ms\": 200.0}'\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    with pytest.raises(run.PartFailed, match="testing did not measure broker_ms"):
        run.in_process("testing", trial=True, directory=None)
