"""Measures the parts one after the other, each in a process of its own, on an idle machine.

Each part is stored when it is done, so that an interrupted run goes on with `--resume`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.figures import catalog
from benchmarks.report import machine

ROOT = Path(__file__).resolve().parents[2]
LOAD_MAX = 0.3
IDLE_WAIT_S = 600.0
BUSY_CORES_MAX = 0.15  # between two parts the load average still shows the first
BUSY_LOOK_S = 2.0
BUSY_WAIT_S = 120.0
PART_S = 1800.0
RESUME = timedelta(hours=12)

# The module of each part; its function `measure_PART` returns the part's figures.
_MODULES = {
    "throughput": "throughput",
    **dict.fromkeys(("start", "memory", "disk", "backup"), "service"),
    **dict.fromkeys(("install", "setup", "testing", "cli"), "packages"),
    **dict.fromkeys(("https", "client", "checkpoints", "portal", "log"), "interfaces"),
    **dict.fromkeys(("spark", "capture"), "pipelines"),
}
Tell = Callable[[str], None]
Measure = Callable[[Path, bool, Tell], dict[str, Any]]


class NotIdle(Exception):
    """Other programs use the machine."""


class PartFailed(Exception):
    """A part could not be measured; the parts before it are stored."""


def measure(
    parts: Sequence[str], file: Path, *, resume: bool, trial: bool, directory: Path | None = None
) -> dict[str, Any]:
    """Returns the content of the file after each of the parts was measured and stored."""
    from tools import figures as results  # which imports this module

    found: dict[str, Any] = results.read(file) if file.exists() else {"about": {}, "parts": {}}
    commit = _git("rev-parse", "--short=12", "HEAD")
    began_s = time.monotonic()
    load = os.getloadavg()[0] if trial else wait_until_idle()
    for part in parts:
        if resume and _is_recent(found["parts"].get(part)):
            _tell(f"{part}: measured at {found['parts'][part]['at']}, kept")
            continue
        if not trial:
            wait_until_quiet()
        part_began_s = time.monotonic()
        _tell(f"{part} ...")
        found[part] = in_process(part, trial=trial, directory=directory)
        took_s = time.monotonic() - part_began_s
        now = datetime.now(UTC)
        found["parts"][part] = {
            "at": now.isoformat(timespec="seconds"),
            "date": now.date().isoformat(),
            "seconds": round(took_s),
            "load_average": round(load, 2),
            "commit": commit,
            "trial": trial,
        }
        found["about"] = _about(found)
        results.store(found, file)
        _tell(f"{part}: {took_s:.0f} s")
    _tell(f"{file}: written in {time.monotonic() - began_s:.0f} s")
    return found


def _about(found: dict[str, Any]) -> dict[str, Any]:
    parts = found["parts"].values()
    newest = max(parts, key=lambda part: str(part["at"]))
    return {
        **machine.about(),
        "date": newest["date"],
        "commit": newest["commit"],
        "load_average": max(part["load_average"] for part in parts),
    }


def wait_until_idle() -> float:
    """Returns the load average, which is below 0.3; raises NotIdle after ten minutes."""
    deadline_s = time.monotonic() + IDLE_WAIT_S
    while (load := os.getloadavg()[0]) >= LOAD_MAX:
        if time.monotonic() >= deadline_s:
            raise NotIdle(
                f"The load average is {load:.2f} after {IDLE_WAIT_S:.0f} s; figures need an idle "
                f"machine (below {LOAD_MAX}). `--trial` measures on any machine and stores nothing."
            )
        _tell(f"waiting until the load average is below {LOAD_MAX}: {load:.2f}")
        time.sleep(10)
    return load


def wait_until_quiet() -> None:
    """Until other programs take less than 0.15 of a core; raises NotIdle after two minutes."""
    deadline_s = time.monotonic() + BUSY_WAIT_S
    while (busy := busy_cores(BUSY_LOOK_S)) >= BUSY_CORES_MAX:
        if time.monotonic() >= deadline_s:
            raise NotIdle(f"Other programs use {busy:.2f} cores; continue with `--resume`.")
        _tell(f"waiting for other programs, which use {busy:.2f} cores")


def busy_cores(seconds: float) -> float:
    """Cores that all programs together use in the next `seconds`."""
    before = _busy_ticks()
    time.sleep(seconds)
    return (_busy_ticks() - before) / os.sysconf("SC_CLK_TCK") / seconds


def _busy_ticks() -> int:
    user, nice, system, _, _, irq, soft, steal, *_ = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    )
    return user + nice + system + irq + soft + steal


def in_process(part: str, *, trial: bool, directory: Path | None) -> dict[str, Any]:
    """Pinned cores and loaded modules end with the part."""
    command = [sys.executable, "-m", "benchmarks.figures.run", part]
    command += ["--trial"] if trial else []
    command += ["--directory", str(directory)] if directory else []
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, cwd=ROOT, check=False, timeout=PART_S, text=True
        )
    except subprocess.TimeoutExpired:
        raise PartFailed(f"The part {part} took more than {PART_S:.0f} s.") from None
    if done.returncode != 0:
        raise PartFailed(f"The part {part} failed, see above; go on with `--resume`.")
    figures: dict[str, Any] = json.loads(done.stdout)
    wanted = {key.partition(".")[2] for key in catalog.figures() if key.startswith(part + ".")}
    missing = {key for key in wanted if "." not in key} - figures.keys()
    if missing:
        raise PartFailed(f"The part {part} did not measure {', '.join(sorted(missing))}.")
    return figures


def _is_recent(part: dict[str, Any] | None) -> bool:
    if part is None or part["trial"]:
        return False
    return datetime.now(UTC) - datetime.fromisoformat(part["at"]) < RESUME


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def _tell(text: str) -> None:
    sys.stderr.write(f"figures: {text}\n")
    sys.stderr.flush()


def main() -> None:
    """One part, as JSON on stdout."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("part", choices=tuple(_MODULES))
    parser.add_argument("--trial", action="store_true")
    parser.add_argument("--directory", type=Path)
    given = parser.parse_args()
    module = importlib.import_module(f"benchmarks.figures.{_MODULES[given.part]}")
    act: Measure = getattr(module, f"measure_{given.part}")
    stdout = os.dup(1)
    os.dup2(2, 1)  # what a scenario or its children print is for the terminal
    with tempfile.TemporaryDirectory(dir=given.directory, prefix="penstock-figures-") as place:
        found = act(Path(place), given.trial, _tell)
    with os.fdopen(stdout, "w") as out:
        json.dump(found, out)


if __name__ == "__main__":
    main()
