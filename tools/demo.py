"""`make demo`: a service, a fleet of devices, a Spark pipeline and its result, in one terminal.

    make demo                          about two minutes, three at most
    make demo ARGS="--seconds 20"      a shorter look
    make demo ARGS="--keep"            the data directory stays

Everything runs on this machine, on free ports, in a temporary directory that goes at the end. The
parts are those that users have: `penstock serve`, the official SDK (examples/pipelines/fleet.py)
and `penstock pipeline run examples/pipelines/windows.py`. This program starts them, reads what they
say and checks the outcome: every reading that was acknowledged is counted in one window.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.demo_screen import Screen, View, summary

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples" / "pipelines"
PENSTOCK = Path(sys.executable).parent / "penstock"
DEADLINE_S = 165.0  # of everything, so that three minutes are kept
DRAIN_S = 30.0  # kept of it for what is still to be read when the fleet is done
START_S = 30.0
STOP_S = 20.0
TICK_S = 0.25
HUB, WINDOW = "telemetry", "10 seconds"

# The child's program comes after this: it ends when we end, however that happens.
LAUNCH = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""


class DemoFailed(Exception):
    """One of the parts did not do what it should; the text says which, and what it said."""


class Part:
    """One process, whose stdout is lines of JSON."""

    def __init__(
        self, name: str, command: list[str], environ: dict[str, str], folder: Path
    ) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        self.lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", LAUNCH, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environ,
                start_new_session=True,  # Ctrl-C is ours: the parts end in their order
            )
        assert self.process.stdout is not None
        threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True).start()

    def _read(self, stdout: IO[bytes]) -> None:
        for line in stdout:
            with suppress(ValueError):
                self.lines.put(json.loads(line))
        self.lines.put(None)

    def taken(self) -> Iterator[dict[str, Any]]:
        """What it said since it was asked last."""
        while True:
            try:
                found = self.lines.get_nowait()
            except queue.Empty:
                return
            if found is not None:
                yield found

    def first(self, deadline_s: float) -> dict[str, Any]:
        try:
            found = self.lines.get(timeout=deadline_s)
        except queue.Empty:
            found = None
        if found is None:
            raise DemoFailed(f"{self.name} did not start:\n{self.said()}")
        return found

    def check(self) -> None:
        """It runs, or ended well."""
        if self.process.poll() not in (None, 0):
            raise DemoFailed(f"{self.name} ended with {self.process.returncode}:\n{self.said()}")

    def said(self) -> str:
        return self._log.read_text(errors="replace")[-2000:].strip() or "(it said nothing)"

    def stop(self, deadline_s: float = STOP_S) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Demo:
    """The parts, and what is known of them at this moment."""

    def __init__(self, given: argparse.Namespace, folder: Path, stack: ExitStack) -> None:
        self._given = given
        self._stack = stack
        self._began_s = time.monotonic()
        clean = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
        self._folder = folder
        self._data = folder / "data"
        self._clean = clean
        self.view = View(folder=str(folder), devices=given.devices, rate=given.rate)
        self.service = self._start(
            "service",
            [
                *(str(PENSTOCK), "serve", "--json", "--data", str(self._data)),
                *("--hub", f"{HUB}:4", "--amqp-port", "0", "--amqps-port", "0"),
                *("--https-port", "0", "--admin-port", "0", "--no-portal"),
            ],
            clean,
        )
        facts = self.service.first(START_S)
        self.view.endpoint = str(facts["amqp"])
        self._environ = {
            **clean,
            "PENSTOCK_CONNECTION_STRING": str(facts["emulator_connection_string"]),
            "PENSTOCK_ADMIN_URL": str(facts["admin"]),
            "PENSTOCK_ADMIN_TOKEN": str(facts["admin_token"]),
            "PENSTOCK_DATA": str(self._data),
            "PENSTOCK_HTTPS_URL": str(facts["https"]),
        }
        self.pipeline = self._start("pipeline", self._pipeline_command(), self._environ)
        self.fleet = self._start("fleet", self._fleet_command(), self._environ)

    def _start(self, name: str, command: list[str], environ: dict[str, str]) -> Part:
        part = Part(name, command, environ, self._folder)
        self._stack.callback(part.stop)
        return part

    def _pipeline_command(self) -> list[str]:
        conf = "spark.sql.shuffle.partitions=2"  # two cores, and a state of some hundred rows
        return [
            *(str(PENSTOCK), "pipeline", "run", str(EXAMPLES / "windows.py"), "-o", "jsonl"),
            *("--from", "earliest", "--set", f"hub={HUB}", "--set", f"window={WINDOW}"),
            *("--checkpoint", str(self._folder / "checkpoint"), "--stop-timeout", "15s"),
            *("--conf", conf, "--conf", "spark.driver.memory=1g"),
            # C1 alone: a JVM that lives for two minutes would spend them compiling.
            *("--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"),
        ]

    def _fleet_command(self) -> list[str]:
        given = self._given
        return [
            *(sys.executable, str(EXAMPLES / "fleet.py"), "--hub", HUB),
            *("--devices", str(given.devices), "--rate", str(given.rate)),
            *("--seconds", str(DEADLINE_S)),
        ]

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began_s

    @property
    def _is_enough(self) -> bool:
        """The fleet goes on for so long beside the first result, however slowly Spark started."""
        first_s = self.view.first_row_s
        is_seen = first_s is not None and self.seconds - first_s >= self._given.seconds
        return is_seen or self.seconds >= DEADLINE_S - DRAIN_S

    def run(self, screen: Screen) -> None:
        """Until every reading is in its window, or the time is over."""
        screen.show(self.view)
        is_told = False
        while not (self.view.is_fleet_done and self.view.counted >= self.view.readings):
            self._look()
            screen.show(self.view)
            if self.seconds >= DEADLINE_S:
                break
            if self._is_enough and not is_told:
                is_told = True  # once: it says what it sent, and ends
                self.fleet.process.send_signal(signal.SIGTERM)
            threading.Event().wait(TICK_S)
        self.view.is_ending = True
        screen.show(self.view)
        self.pipeline.stop()
        self._look()

    def _look(self) -> None:
        self.view.seconds = self.seconds
        for said in self.fleet.taken():
            self.view.heard_fleet(said)
        for said in self.pipeline.taken():
            self.view.heard_pipeline(said)
        for part in (self.service, self.fleet, self.pipeline):
            part.check()
        if self.service.process.poll() is not None:
            raise DemoFailed(f"service ended:\n{self.service.said()}")


@contextmanager
def folder(given: argparse.Namespace) -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    try:
        yield made
    finally:
        if not given.keep:
            shutil.rmtree(made, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60, help="of results beside the fleet")
    parser.add_argument("--devices", type=int, default=20)
    parser.add_argument("--rate", type=float, default=500, help="readings a second")
    parser.add_argument("--keep", action="store_true", help="keep the data directory and logs")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    screen = Screen()
    with ExitStack() as stack:
        where = stack.enter_context(folder(given))
        stack.enter_context(screen)
        try:
            demo = Demo(given, where, stack)
            demo.run(screen)
        except KeyboardInterrupt:
            screen.close()
            print("Interrupted: everything that was started is being stopped.", file=sys.stderr)
            return 130
        except DemoFailed as failed:
            screen.close()
            print(f"demo: {failed}", file=sys.stderr)
            return 1
        demo.view.seconds = demo.seconds
        screen.close()
        summary(demo.view, is_kept=given.keep)
        return 0 if demo.view.is_exact else 1


if __name__ == "__main__":
    sys.exit(main())
