"""`make bench`: what this machine and this Penstock do, in one run, side by side.

The broker runs as a user runs it, durable, on one core; the load generator (`penstock bench`) on
another where there is one. Figures of two machines are not to be compared; shares and ratios are.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

PENSTOCK = Path(sys.executable).with_name("penstock")
TICKS = os.sysconf("SC_CLK_TCK")


class Row:
    """One measured workload: the median of its runs."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self.rates: list[float] = []
        self.cpu_shares: list[float] = []
        self.p50_ms: list[float] = []
        self.p99_ms: list[float] = []

    def as_dict(self) -> dict[str, object]:
        rate = statistics.median(self.rates)
        return {
            "workload": self.name,
            "events_per_s": round(rate),
            "mb_per_s": round(rate * self.size / 1_048_576, 1),
            "events_per_broker_cpu_s": round(rate / max(statistics.median(self.cpu_shares), 0.01)),
            "broker_cpu_share": round(statistics.median(self.cpu_shares), 2),
            "ack_p50_ms": _median(self.p50_ms),
            "ack_p99_ms": _median(self.p99_ms),
            "runs": len(self.rates),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="runs per workload (median)")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds per publishing run")
    parser.add_argument("--json", type=Path, help="also write the results here")
    parser.add_argument("--directory", type=Path, help="where the data goes [a temporary one]")
    given = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(dir=given.directory) as place:
        machine = machine_figures(Path(place))
        rows = penstock_figures(Path(place), given.runs, given.seconds, console)
    show(console, machine, rows)
    if given.json is not None:
        content = {"machine": machine, "penstock": [row.as_dict() for row in rows]}
        given.json.write_text(json.dumps(content, indent=2) + "\n")


# --- the machine's own ceilings -----------------------------------------------------------------


def machine_figures(place: Path) -> dict[str, float]:
    return {
        "fdatasync_4kb_p50_ms": _fdatasync_ms(place, 4096, 200),
        "fdatasync_1mb_p50_ms": _fdatasync_ms(place, 1 << 20, 50),
        "fdatasync_1mb_mb_per_s": round(1000 / _fdatasync_ms(place, 1 << 20, 50), 1),
        "loopback_64kb_mb_per_s": _loopback_mb_per_s(),
    }


def _fdatasync_ms(place: Path, size: int, count: int) -> float:
    data, took = b"x" * size, []
    with (place / "probe").open("wb", buffering=0) as file:
        for _ in range(count):
            started = time.perf_counter()
            file.write(data)
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - started) * 1000)
    (place / "probe").unlink()
    return round(statistics.median(took), 3)


def _loopback_mb_per_s(total: int = 256 << 20) -> float:
    listener = socket.create_server(("127.0.0.1", 0))

    def drain() -> None:
        connection, _ = listener.accept()
        buffer = bytearray(1 << 18)
        with connection:
            while connection.recv_into(buffer):
                pass

    thread = threading.Thread(target=drain)
    thread.start()
    chunk, started = b"x" * 65536, time.perf_counter()
    with socket.create_connection(listener.getsockname()) as sender:
        for _ in range(total // len(chunk)):
            sender.sendall(chunk)
    thread.join()
    listener.close()
    return round(total / 1_048_576 / (time.perf_counter() - started), 1)


# --- Penstock -----------------------------------------------------------------------------------


def penstock_figures(place: Path, runs: int, seconds: float, console: Console) -> list[Row]:
    rows: list[Row] = []
    workloads = [("publish 100 x 100 B", 100, 100), ("publish 100 x 1 KB", 1024, 100)]
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=runs * 2 * len(workloads))
        for number, (name, size, batch) in enumerate(workloads):
            publish, deliver = Row(name, size), Row(f"deliver {size} B", size)
            for run in range(runs):
                with broker(place / f"data-{number}-{run}") as (pid, data):
                    progress.update(task, description=name)
                    published = _bench(
                        publish, pid, data, "send", "--size", size, "--batch", batch,
                        "--duration", seconds, "--partition", "0",
                    )  # fmt: skip
                    progress.advance(task)
                    progress.update(task, description=deliver.name)
                    count = min(int(str(published["events"])), 2_000_000)
                    _bench(deliver, pid, data, "recv", "--count", count)
                    progress.advance(task)
            rows += [publish, deliver]
    return rows


@contextlib.contextmanager
def broker(data: Path) -> Iterator[tuple[int, Path]]:
    """`penstock serve`, durable, on the first core alone."""
    ports = [f"--{door}-port=0" for door in ("amqp", "amqps", "https", "admin")]
    process = subprocess.Popen(
        [str(PENSTOCK), "serve", "--json", f"--data={data}", "--log-level=warning", *ports],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: _pin(0),
    )
    try:
        assert process.stdout is not None
        facts = json.loads(process.stdout.readline())
        yield int(facts["pid"]), data
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


def _bench(row: Row, pid: int, data: Path, *arguments: object) -> dict[str, object]:
    command = [str(PENSTOCK), "bench", *map(str, arguments), "--data", str(data), "-o", "json"]
    before = _cpu_s(pid)
    done = subprocess.run(
        command, check=True, capture_output=True, timeout=300, preexec_fn=lambda: _pin(1)
    )
    result: dict[str, object] = json.loads(done.stdout)[0]
    if result["errors"]:
        raise SystemExit(f"{row.name}: {result['errors']} errors: {result['first_error']}")
    row.rates.append(float(str(result["events_per_s"])))
    row.cpu_shares.append((_cpu_s(pid) - before) / float(str(result["seconds"])))
    for key, values in (("p50_ms", row.p50_ms), ("p99_ms", row.p99_ms)):
        if result[key] is not None:
            values.append(float(str(result[key])))
    return result


def _pin(core: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[min(core, len(cores) - 1)]})


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _median(values: list[float]) -> float | None:
    return round(statistics.median(values), 2) if values else None


def show(console: Console, machine: dict[str, float], rows: list[Row]) -> None:
    ceilings = Table(title="This machine")
    for name in machine:
        ceilings.add_column(name.replace("_", " "), justify="right")
    ceilings.add_row(*(f"{value:,}" for value in machine.values()))
    console.print(ceilings)
    table = Table(title="Penstock (flush before every acknowledgement, broker on one core)")
    first = rows[0].as_dict()
    for name in first:
        table.add_column(name.replace("_", " "), justify="right" if name != "workload" else "left")
    for row in rows:
        table.add_row(
            *(
                "" if value is None else f"{value:,}" if isinstance(value, int | float) else value
                for value in map(_shown, row.as_dict().values())
            )
        )
    console.print(table)


def _shown(value: object) -> str | float | None:
    return value if isinstance(value, str | int | float) or value is None else str(value)


if __name__ == "__main__":
    main()
