"""`make demo`: the whole product in one terminal, in two minutes.

    make demo                          about two minutes, three at most
    make demo ARGS="--seconds 20"      a shorter look
    make demo ARGS="--keep"            the data directory stays

A broker with its portal, a fleet of devices that publishes through the official SDK
(examples/pipelines/fleet.py), a Spark pipeline (examples/pipelines/windows.py) and Capture run on
this machine, on free ports, in a temporary directory. While they work, the broker is killed with
`kill -9` and started again on the same directory. At the end every event that was acknowledged is
looked for in the hub, and Spark's windows must contain each stored event exactly once.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.demo_parts import DemoFailed, Part, ReadBack, stop_all
from tools.demo_screen import Screen, View, summary

from penstock.capture.status import CaptureState, CaptureStatus
from penstock.management.client import ManagementClient
from penstock.model.errors import PenstockError

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples" / "pipelines"
PENSTOCK = Path(sys.executable).parent / "penstock"
DEADLINE_S = 165.0  # of everything, so that three minutes are kept
DRAIN_S = 35.0  # of it, kept for what is to be read after the fleet's end
START_S = 30.0
TICK_S = 0.25
CAPTURE_START_S, CAPTURE_END_S = 8.0, 20.0  # waited for at the end: its start, its last files
STATUS_S = 1.0  # between two looks at Capture
CAPTURE_WINDOW_S = 60  # the shortest that Event Hubs has
HUB, WINDOW, LATE = "telemetry", "10 seconds", "40 seconds"
DESTINATION, CONTAINER = "files", "lake"
LISTENERS = ("amqp", "amqps", "https", "admin", "portal")


class Demo:
    """The parts, and the state of each at this moment."""

    def __init__(
        self, given: argparse.Namespace, folder: Path, stack: ExitStack, screen: Screen
    ) -> None:
        self._given, self._folder, self._screen = given, folder, screen
        self._began_s = time.monotonic()
        self._clean = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
        self._acknowledged = folder / "acknowledged"
        self._next_status_s = 0.0
        self._is_captured = False  # Capture was switched on
        self.parts: list[Part] = []
        stack.callback(lambda: stop_all(self.parts))
        self.view = View(folder=str(folder), devices=given.devices, rate=given.rate)
        self.view.note("starting the broker and its portal")
        config = folder / "penstock.toml"
        url = (folder / "captured").as_uri()
        config.write_text(f'[capture.destinations.{DESTINATION}]\nurl = "{url}"\n')
        self.service, facts = self._start_service(dict.fromkeys(LISTENERS, 0))
        self._ports = {
            name: int(str(facts[name]).rpartition(":")[2].strip("/")) for name in LISTENERS
        }
        self.view.endpoint = str(facts["amqp"])
        self.view.note(f"broker ready after {self.seconds:.1f} s: sb://{facts['amqp']}")
        self.client = ManagementClient(facts["admin"], str(facts["admin_token"]))
        stack.callback(self.client.close)
        self._string = str(facts["emulator_connection_string"])
        self._namespace = str(facts["namespace"])
        self._environ = {
            **self._clean,
            "PENSTOCK_CONNECTION_STRING": self._string,
            "PENSTOCK_ADMIN_URL": str(facts["admin"]),
            "PENSTOCK_ADMIN_TOKEN": str(facts["admin_token"]),
            "PENSTOCK_DATA": str(folder / "data"),
            "PENSTOCK_HTTPS_URL": str(facts["https"]),
        }
        self._show_portal()
        heard = self.view.heard_fleet
        self.fleet = self._start("fleet", self._fleet_command(), self._environ, heard)
        self._start("pipeline", self._pipeline_command(), self._environ, self.view.heard_pipeline)
        self.view.note("the fleet and Spark start")

    def _start(
        self,
        name: str,
        command: list[str],
        environ: dict[str, str],
        heard: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> Part:
        part = Part(name, command, environ, self._folder, heard)
        self.parts.append(part)
        return part

    def _start_service(self, ports: dict[str, int]) -> tuple[Part, dict[str, Any]]:
        command = [
            *(str(PENSTOCK), "serve", "--json", "--data", str(self._folder / "data")),
            *("--hub", f"{HUB}:4", "--config", str(self._folder / "penstock.toml")),
            *(f"--{door}-port={port}" for door, port in ports.items()),
        ]
        part = self._start("service", command, self._clean)
        self.view.is_down = True
        facts = part.first(START_S, self._tick)
        self.view.is_down = False
        return part, facts

    def _pipeline_command(self) -> list[str]:
        conf = "spark.sql.shuffle.partitions=2"  # two cores, and a state of some hundred rows
        return [
            *(str(PENSTOCK), "pipeline", "run", str(EXAMPLES / "windows.py"), "-o", "jsonl"),
            *("--from", "earliest", "--set", f"hub={HUB}", "--set", f"window={WINDOW}"),
            *("--set", f"late={LATE}", "--stop-timeout", "15s"),
            *("--checkpoint", str(self._folder / "checkpoint")),
            *("--conf", conf, "--conf", "spark.driver.memory=1g"),
            # C1 alone: a JVM that lives for two minutes would spend them compiling.
            *("--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"),
        ]

    def _fleet_command(self) -> list[str]:
        given = self._given
        return [
            *(sys.executable, str(EXAMPLES / "fleet.py"), "--hub", HUB),
            *("--devices", str(given.devices), "--rate", str(given.rate)),
            *("--seconds", str(DEADLINE_S), "--acknowledged", str(self._acknowledged)),
        ]

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began_s

    # --- the acts, in their order -----------------------------------------------------------------

    def run(self) -> None:
        """Until every event is where it must be, or the time is over."""
        view, given = self.view, self._given
        self._until(lambda: bool(view.ui_url))
        if not given.no_capture:
            self._switch_capture(is_on=True)
        self._until(lambda: view.first_row_s is not None)
        first_s = self.seconds
        if view.first_row_s is not None:
            view.note("Spark shows its first windows")
        # Killed when Capture has written files too, so that they are seen to go on.
        self._until(
            lambda: (
                self.seconds >= first_s + given.seconds
                or (view.files > 0 and self.seconds >= first_s + given.seconds / 3)
            )
        )
        self._kill_and_restart()
        restarted_s = self.seconds
        self._until(lambda: self.seconds >= restarted_s + max(3.0, given.seconds * 0.4))
        self._finish()

    def _until(self, is_done: Callable[[], bool], deadline_s: float = DEADLINE_S - DRAIN_S) -> bool:
        while not is_done() and self.seconds < deadline_s:
            self._tick()
        return is_done()

    def _tick(self) -> None:
        self._look()
        self._screen.show(self.view)
        threading.Event().wait(TICK_S)

    def _kill_and_restart(self) -> None:
        view, pid = self.view, self.service.process.pid
        view.note(f"kill -9 {pid}: the broker dies with {view.sent:,} events acknowledged")
        killed_s = self.seconds
        self.service.process.kill()
        self.service.process.wait()
        self.parts.remove(self.service)
        self.service, _ = self._start_service(self._ports)
        view.restart_s = self.seconds - killed_s
        view.note(f"broker ready again {view.restart_s:.1f} s later, same directory and ports")
        self._show_portal()

    def _finish(self) -> None:
        """Stop the fleet, then look for every event that was acknowledged."""
        view = self.view
        view.note("the fleet stops")
        self.fleet.process.send_signal(signal.SIGTERM)
        self._until(lambda: view.is_fleet_done, DEADLINE_S)
        if self._is_captured:
            self._switch_capture(is_on=False)
        view.note("reading every event back")
        check = ReadBack(self._string, HUB, self._acknowledged)
        self._until(lambda: check.is_done or check.follow(view), DEADLINE_S)
        check.finish(view)
        view.note(f"{view.acknowledged:,} acknowledged, {view.lost:,} lost")
        self._until(lambda: view.counted >= view.stored, DEADLINE_S)
        if view.is_exact:
            view.note("every stored event is in exactly one of Spark's windows")
        if self._is_captured:
            # Its job starts again with the broker; on a busy machine it is not ready yet.
            is_ready = view.capture_state != CaptureState.STARTING
            until_s = self.seconds + (CAPTURE_END_S if is_ready else CAPTURE_START_S)
            self._until(lambda: view.capture_state == CaptureState.OFF, min(DEADLINE_S, until_s))
            view.note(f"Capture: {view.captured:,} events in {view.files:,} files")
        view.is_ending = True
        view.note("everything stops")
        for part in self.parts:
            part.terminate()
        self._until(lambda: all(part.process.poll() is not None for part in self.parts), DEADLINE_S)

    # --- what is shown ----------------------------------------------------------------------------

    def _look(self) -> None:
        view = self.view
        view.seconds = self.seconds
        for part in self.parts:
            if part.name != "service":  # which says one line, when it is ready
                part.listen()
            if not view.is_ending:
                part.check()
        if view.is_down or view.is_ending:
            return
        if self.service.process.poll() is not None:
            raise DemoFailed(f"service ended:\n{self.service.last_output()}")
        if self._is_captured and self.seconds >= self._next_status_s:
            self._next_status_s = self.seconds + STATUS_S
            self._look_at_capture()

    def _look_at_capture(self) -> None:
        with suppress(PenstockError, OSError):  # the service has just started
            status: CaptureStatus = self.client.capture_status()[0]
            self.view.heard_capture(status)
        self.view.look_for_files(self._folder / "captured")

    def _switch_capture(self, *, is_on: bool) -> None:
        description = {
            "enabled": is_on,
            "encoding": "Parquet",
            "intervalInSeconds": CAPTURE_WINDOW_S,
            "sizeLimitInBytes": 10 * 1024 * 1024,
            "skipEmptyArchives": True,
            "destination": {
                "properties": {"storageAccountResourceId": DESTINATION, "blobContainer": CONTAINER}
            },
        }
        self.client.put_hub(self._namespace, HUB, capture=description)
        self._is_captured = True
        window = f"Parquet files, a window of {CAPTURE_WINDOW_S} s"
        self.view.note(f"Capture on: {window}" if is_on else "Capture off: the last files follow")

    def _show_portal(self) -> None:
        with suppress(PenstockError):
            self.view.portal = self.client.sign_in_link()
            self._screen.say_portal(self.view)


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
    parser.add_argument("--seconds", type=float, default=60, help="after Spark's first result")
    parser.add_argument("--devices", type=int, default=20)
    parser.add_argument("--rate", type=float, default=500, help="readings a second")
    parser.add_argument("--no-capture", action="store_true", help="without Capture's own Spark")
    parser.add_argument("--keep", action="store_true", help="keep the data directory and logs")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    screen = Screen()
    with ExitStack() as stack:
        where = stack.enter_context(folder(given))
        stack.enter_context(screen)
        try:
            demo = Demo(given, where, stack, screen)
            demo.run()
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
