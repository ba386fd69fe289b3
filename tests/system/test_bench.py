"""`penstock bench`: its figures are what the log holds, its exit codes are the documented ones."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.log.embedded.store import EmbeddedLogStore

PENSTOCK = str(Path(sys.executable).with_name("penstock"))
StartServer = Callable[..., Any]


def bench(*arguments: object, code: int = 0) -> dict[str, Any]:
    done = subprocess.run(
        [PENSTOCK, "bench", *map(str, arguments), "-o", "json"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)[0]
    return result


def refused(*arguments: object) -> tuple[int, str]:
    done = subprocess.run(
        [PENSTOCK, "bench", *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr.strip()


def stored(data: Path) -> dict[int, int]:
    """Events per partition, read offline."""
    store = EmbeddedLogStore(data / "log", wake=lambda act: act())
    try:
        hub = next(path for path in (data / "log").iterdir() if path.is_dir())
        partitions = sorted(int(path.name) for path in hub.iterdir() if path.is_dir())
        return {
            index: store.partition(hub.name, index).status().last_sequence + 1
            for index in partitions
        }
    finally:
        store.close()


def test_send_reports_exactly_what_the_log_holds(start_server: StartServer) -> None:
    server = start_server()
    data = ("--data", server.data)
    singles = bench("send", *data, "--partition", 0, "--batch", 1, "--duration", 0.5)
    batches = bench("send", *data, "--partition", 1, "--size", 1024, "--duration", 0.5)
    large = bench("send", *data, "--partition", 2, "--size", 200_000, "--batch", 1, "--count", 20)
    spread = bench("send", *data, "--partition", 3, "--connections", 3, "--count", 1000)
    counted = bench("recv", *data, "--partition", 0, "--count", singles["events"])
    for result in (singles, batches, large, spread):
        assert result["errors"] == 0
        assert result["events"] > 0
        assert 0 < result["p50_ms"] <= result["p99_ms"] <= result["p999_ms"]
    assert counted["events"] == singles["events"]
    server.stop()
    assert stored(server.data) == {
        0: singles["events"],
        1: batches["events"],
        2: 20,
        3: spread["events"],
    }
    assert 1000 <= spread["events"] <= 1300  # whole publications, of each connection


def test_singles_without_partition_are_acknowledged_from_all(start_server: StartServer) -> None:
    server = start_server()
    sent = bench("send", "--data", server.data, "--batch", 1, "--connections", 8, "--count", 20_000)
    server.stop()
    assert sent["events"] == 20_000
    assert sum(stored(server.data).values()) == 20_000


def test_end_to_end_reads_every_event_that_it_sent(start_server: StartServer) -> None:
    server = start_server()
    for batch, rate in ((1, 500), (10, 5000)):
        result = bench(
            "e2e", "--data", server.data, "--rate", rate, "--batch", batch, "--duration", 1
        )
        assert result["events_read"] == result["events"]
        assert rate * 0.5 <= result["events"] <= rate * 1.1 + batch
        assert 0 < result["e2e_p50_ms"] <= result["e2e_p99_ms"] <= result["e2e_p999_ms"]


def test_bench_runs_over_tls(start_server: StartServer) -> None:
    server = start_server()
    string = ("--data", server.data, "--connection-string", server.connection_string(tls=True))
    sent = bench("send", *string, "--partition", 0, "--batch", 1, "--count", 5000)
    read = bench("recv", *string, "--count", 5000)
    assert (sent["events"], read["events"]) == (5000, 5000)


def test_table_is_for_people(start_server: StartServer) -> None:
    server = start_server()
    done = subprocess.run(
        [PENSTOCK, "bench", "send", "--data", str(server.data), "--count", "100"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert "events per s" in done.stdout
    assert "send 100 x 100 B" in done.stdout


def test_refusals_have_their_exit_codes(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server()
    data = ("--data", server.data)
    code, text = refused("send", *data, "--hub", "nowhere", "--duration", 0.2)
    assert code == 3, text
    wrong = server.connection_string(key="d3JvbmcgYnV0IGJhc2U2NA==")
    code, text = refused("send", "--connection-string", wrong, "--duration", 0.2)
    assert code == 4, text
    code, text = refused("recv", *data, "--partition", 77)
    assert code == 1, text
    code, text = refused("send", "--data", tmp_path / "nobody")
    assert code == 3, text
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    gone = f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=x;SharedAccessKey=y;UseDevelopmentEmulator=true"
    code, text = refused("send", "--connection-string", gone)
    assert code == 1, text


@pytest.mark.parametrize("arguments", [("send", "--batch", 0), ("recv", "--credit", 0), ("e2e",)])
def test_arguments_that_cannot_be_used_are_refused(arguments: tuple[object, ...]) -> None:
    extra = ("--size", 15) if arguments == ("e2e",) else ()
    assert refused(*arguments, *extra)[0] == 2


def test_throttled_run_shows_its_figures_and_exits_as_throttled(start_server: StartServer) -> None:
    server = start_server("--throughput-units", "1")
    result = bench("send", "--data", server.data, "--partition", 0, "--count", 50_000, code=5)
    assert result["errors"] > 0
    assert result["first_error"].startswith("com.microsoft:server-busy")
    server.stop()
    assert stored(server.data) == {0: result["events"]}


def test_benchmarks_run_and_report(tmp_path: Path) -> None:
    """`make bench` at its smallest: the figures it writes are those that it shows."""
    root = Path(__file__).resolve().parents[2]
    file = tmp_path / "results.json"
    flags = ("--rounds=1", "--seconds=0.1", "--no-peers", "--part=rounds")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks.run",
            *flags,
            f"--json={file}",
            f"--directory={tmp_path}",
        ],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(file.read_text())
    found = {(row["workload"], row["subject"]): row for row in results["rows"]}
    wanted = {
        f"{what} {size}{kind}"
        for size in ("100 B", "1 KB")
        for what, kind in (("publish", " singles"), ("publish", " batches"), ("deliver", ""))
    }
    assert {name for name, _ in found} == wanted
    for row in found.values():
        assert row["events_per_s"] > 0
        assert row["runs"] == 1
        assert row["workload"] in done.stdout
    assert results["ceilings"]["loopback_64kb_mb_per_s"] > 0
    assert "NATS: skipped" in done.stdout
    assert results["subjects"] == {"Penstock": "fdatasync before every acknowledgement"}
    assert not list(tmp_path.glob("penstock-bench-*"))
