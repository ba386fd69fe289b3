"""The parts `install`, `setup`, `testing` and `cli`: what a user waits for before the first event
and at each command."""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import Any

from benchmarks.figures.run import ROOT, Tell
from benchmarks.figures.service import disk_bytes
from benchmarks.systems.penstock import PENSTOCK, Penstock
from benchmarks.systems.process import Broker

KB, MB = 1024, 1024**2
CALLS = 15
BROKERS = 50
LINES = 1_000_000
INSTALL_S = 900.0
_PORTS = tuple(f"--{door}-port=0" for door in ("amqp", "amqps", "https", "admin", "portal"))
_NO_CACHE = {"PIP_NO_CACHE_DIR": "1", "UV_NO_CACHE": "1"}
_TESTING = """
import time
began_s = time.perf_counter()
from penstock.testing import broker
took_ms = []
for _ in range({brokers} + 1):
    with broker():
        took_ms.append((time.perf_counter() - began_s) * 1000)
    began_s = time.perf_counter()
import json
print(json.dumps(took_ms))
"""


# --- install --------------------------------------------------------------------------------------


def measure_install(place: Path, trial: bool, tell: Tell) -> dict[str, Any]:
    tell("the wheel is built")
    source = checkout(place / "source")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(place)]
    subprocess.run([*build, str(source)], check=True, timeout=INSTALL_S)
    (wheel,) = place.glob("*.whl")
    home = place / "environment"
    venv.create(home, with_pip=True)
    (packages,) = home.glob("lib/python*/site-packages")
    before, listed_before = disk_bytes(home), len(list(packages.glob("*.dist-info")))
    tell("pip install")
    began_s = time.perf_counter()
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
    environ = {**os.environ, **_NO_CACHE}
    subprocess.run([*pip, str(wheel)], check=True, timeout=INSTALL_S, env=environ)
    installed_s = time.perf_counter() - began_s
    size = disk_bytes(home) - before
    tell("the first event")
    _first_event(home / "bin" / "penstock", place / "data")
    first_event_s = time.perf_counter() - began_s
    return {
        "seconds": installed_s,
        "mb": size / MB,
        "wheel_kb": wheel.stat().st_size / KB,
        "packages": len(list(packages.glob("*.dist-info"))) - listed_before,
        "first_event_s": first_event_s,
    }


def _first_event(penstock: Path, data: Path) -> None:
    """Start the service, send one event, read it."""
    broker = Broker(
        [penstock, "serve", "--json", f"--data={data}", *_PORTS],
        stdout=subprocess.PIPE,
        is_pinned=False,
    )
    try:
        assert broker.process.stdout is not None
        broker.process.stdout.readline()
        environ = {**os.environ, "PENSTOCK_DATA": str(data)}

        def call(*words: str) -> str:
            done = subprocess.run(
                [str(penstock), *words],
                env=environ,
                check=True,
                timeout=60,
                text=True,
                stdout=subprocess.PIPE,
            )
            return done.stdout

        call("send", "events", "--text", "hello")
        read = call("tail", "events", "--from", "earliest", "--count", "1", "-o", "jsonl")
        if "hello" not in read:
            raise RuntimeError(f"The first event was not read back: {read!r}")
    finally:
        broker.close()


def checkout(target: Path) -> Path:
    """The last commit, without anything that a working tree has besides."""
    target.mkdir()
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "HEAD"], check=True, stdout=subprocess.PIPE
    ).stdout
    subprocess.run(["tar", "-x", "-C", str(target)], input=archive, check=True)
    return target


# --- setup ----------------------------------------------------------------------------------------


def measure_setup(place: Path, trial: bool, tell: Tell) -> dict[str, Any]:
    source = checkout(place / "source")
    tell("make serve in a new clone")
    first_s = _make_serve(source, place / "data")
    size = disk_bytes(source / ".venv")
    tell("make serve again")
    shutil.rmtree(place / "data")
    return {"seconds": first_s, "mb": size / MB, "again_s": _make_serve(source, place / "data")}


def _make_serve(source: Path, data: Path) -> float:
    """Seconds until the service is ready, without caches."""
    arguments = " ".join(("--json", f"--data={data}", *_PORTS))
    began_s = time.perf_counter()
    make = Broker(
        ["make", "-C", source, "serve", f"ARGS={arguments}"],
        environ=_NO_CACHE,
        stdout=subprocess.PIPE,
        is_pinned=False,
    )
    try:
        assert make.process.stdout is not None
        for line in make.process.stdout:
            if line.startswith(b"{"):
                return time.perf_counter() - began_s
        raise RuntimeError(f"make serve ended with {make.process.wait(60)} before it was ready")
    finally:
        make.close()


# --- testing --------------------------------------------------------------------------------------


def measure_testing(place: Path, trial: bool, tell: Tell) -> dict[str, Any]:
    tell(f"{BROKERS} brokers in three processes")
    script = _TESTING.format(brokers=BROKERS)
    first, further = [], []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", script], check=True, stdout=subprocess.PIPE, timeout=120
        )
        took_ms: list[float] = json.loads(done.stdout)
        first.append(took_ms[0])
        further += took_ms[1:]
    return {"first_ms": statistics.median(first), "broker_ms": statistics.median(further)}


# --- cli ------------------------------------------------------------------------------------------


def measure_cli(place: Path, trial: bool, tell: Tell) -> dict[str, Any]:
    calls, lines = (3, 50_000) if trial else (CALLS, LINES)
    penstock = Penstock(place / "data")
    try:
        penstock.fresh()
        environ = {**os.environ, "PENSTOCK_DATA": str(penstock.data)}
        found: dict[str, Any] = {}
        for name, words in {
            "version_ms": ("--version",),
            "hub_list_ms": ("hub", "list"),
            "send_ms": ("send", "bench", "--text", "hello"),
        }.items():
            tell(f"penstock {' '.join(words)}, {calls} times")
            took = [_call(words, environ)[0] for _ in range(calls + 1)][1:]
            found[name] = statistics.median(took) * 1000
        tell(f"penstock send of {lines:,} lines")
        file = place / "lines"
        file.write_text("".join(f"line {number}\n" for number in range(lines)))
        wall_s, cpu_s = _call(("send", "bench", "--lines", str(file), "-q"), environ)
        scale = LINES / lines
        return {**found, "send_million_s": wall_s * scale, "send_million_cpu_s": cpu_s * scale}
    finally:
        penstock.close()


def _call(words: tuple[str, ...], environ: dict[str, str]) -> tuple[float, float]:
    """Wall and CPU seconds of one command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began_s = time.perf_counter()
    subprocess.run(
        [str(PENSTOCK), *words], env=environ, check=True, timeout=300, stdout=subprocess.DEVNULL
    )
    wall_s = time.perf_counter() - began_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
