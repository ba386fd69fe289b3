"""What `make demo` runs: programs that print lines of JSON, and the check at the end."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from penstock.client import EventHubConsumerClient

if TYPE_CHECKING:
    from tools.demo_screen import View

STOP_S = 20.0

# The child's program comes after this: it ends when we end, however that happens.
_LAUNCH = """
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
    """One process, whose stdout is lines of JSON; `heard` takes them, when `listen` is called."""

    def __init__(
        self,
        name: str,
        command: list[str],
        environ: dict[str, str],
        folder: Path,
        heard: Callable[[dict[str, Any]], None],
    ) -> None:
        self.name = name
        self._heard = heard
        self._log = folder / f"{name}.log"
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _LAUNCH, str(os.getpid()), *command],
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
                self._lines.put(json.loads(line))
        self._lines.put(None)

    def listen(self) -> None:
        with suppress(queue.Empty):
            while (found := self._lines.get_nowait()) is not None:
                self._heard(found)

    def first(self, deadline_s: float, tick: Callable[[], None]) -> dict[str, Any]:
        """Its first line; `tick` is called while it is waited for, and must not call `listen`."""
        until_s = time.monotonic() + deadline_s
        while time.monotonic() < until_s:
            with suppress(queue.Empty):
                found = self._lines.get_nowait()
                if found is None:
                    break
                return found
            tick()
        raise DemoFailed(f"{self.name} did not start:\n{self.last_output()}")

    def check(self) -> None:
        """It runs, or ended well."""
        if self.process.poll() not in (None, 0):
            raise DemoFailed(
                f"{self.name} ended with {self.process.returncode}:\n{self.last_output()}"
            )

    def last_output(self) -> str:
        return self._log.read_text(errors="replace")[-2000:].strip() or "(no output)"

    def terminate(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def close(self, deadline_s: float) -> None:
        """After `terminate`: wait, and kill what does not end."""
        try:
            self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def stop_all(parts: Iterable[Part]) -> None:
    """At once, so that their times do not add up."""
    for part in parts:
        part.terminate()
    until_s = time.monotonic() + STOP_S
    for part in parts:
        part.close(max(0.0, until_s - time.monotonic()))


class ReadBack:
    """Reads the whole hub in a thread, and compares it with the ids that were acknowledged."""

    def __init__(self, connection_string: str, hub: str, acknowledged: Path) -> None:
        self._string, self._hub = connection_string, hub
        self._acknowledged = acknowledged.read_text().split()
        self._stored: Counter[str] = Counter()
        self._events = 0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def follow(self, view: View) -> bool:
        """Show how far it is; False."""
        view.read_back = self._events
        return False

    def finish(self, view: View) -> None:
        if not self.is_done:
            raise DemoFailed(f"only {self._events:,} events were read back in time")
        if self._error is not None:
            raise DemoFailed(f"the events could not be read back: {self._error}")
        view.read_back = view.stored = self._events
        view.acknowledged = len(self._acknowledged)
        view.lost = sum((Counter(self._acknowledged) - self._stored).values())
        view.repeated = self._events - len(self._stored)

    def _run(self) -> None:
        try:
            asyncio.run(self._read())
        except BaseException as error:  # noqa: BLE001  # told by the main thread
            self._error = error

    async def _read(self) -> None:
        async with EventHubConsumerClient(self._string, eventhub_name=self._hub) as consumer:
            for partition in await consumer.get_partition_ids():
                end = await consumer.get_partition_properties(partition)
                if end["is_empty"]:
                    continue
                last = end["last_enqueued_sequence_number"]
                async for columns in consumer.read_range(partition, 0, last):
                    self._stored.update(json.loads(body)["id"] for body in columns.bodies)
                    self._events += len(columns.bodies)
