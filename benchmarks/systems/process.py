"""Brokers as child processes: one core for them, one for us; what they use while they are measured.

Only the broker that is being measured runs: the others are stopped (SIGSTOP) meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

_TICKS = os.sysconf("SC_CLK_TCK")
_STOP_S = 20.0
FILES_MAX = 65536


def cores() -> tuple[int, int]:
    """The broker's and the generator's; the same one where there is no other."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[-1]


BROKER_CORE, GENERATOR_CORE = cores()


def pin_generator() -> None:
    os.sched_setaffinity(0, {GENERATOR_CORE})


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Broker:
    """A process that was started for measuring, and its children."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        environ: dict[str, str] | None = None,
        stdout: int | IO[bytes] = subprocess.DEVNULL,
        stderr: int | IO[bytes] = subprocess.DEVNULL,
        is_pinned: bool = True,
    ) -> None:
        self.process = subprocess.Popen(
            [str(part) for part in command],
            env={**os.environ, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,  # so that signals reach its children too
            preexec_fn=_as_broker if is_pinned else None,
        )

    @property
    def pids(self) -> list[int]:
        """Every living process of its session."""
        session = self.process.pid
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if os.getsid(int(entry.name)) == session:
                        found.append(int(entry.name))
        return found

    def cpu_s(self) -> float:
        total = 0.0
        for pid in self.pids:
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                total += (int(fields[11]) + int(fields[12])) / _TICKS
        return total

    def rss_kb(self) -> int:
        total = 0
        for pid in self.pids:
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                    if line.startswith("VmRSS:"):
                        total += int(line.split()[1])
        return total

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self, wanted: signal.Signals = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.resume()
            self.process.send_signal(wanted)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_STOP_S)
        self._signal(signal.SIGKILL)
        self.process.wait(_STOP_S)

    def _signal(self, wanted: signal.Signals) -> None:
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, wanted)


def _as_broker() -> None:
    import resource

    os.sched_setaffinity(0, {BROKER_CORE})
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(FILES_MAX, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def wait_for_port(port: int, broker: Broker, *, deadline_s: float) -> None:
    """Until the port takes connections; raises when the process ends before that."""
    until = time.monotonic() + deadline_s
    while True:
        if broker.process.poll() is not None:
            raise RuntimeError(f"it ended with {broker.process.returncode} before it listened")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        if time.monotonic() > until:
            raise TimeoutError(f"it did not listen on port {port} within {deadline_s:.0f} s")
        time.sleep(0.05)


@contextlib.contextmanager
def measured(broker: Broker) -> Iterator[Callable[[], float]]:
    """Let it run; the value is a function that gives the CPU seconds it used since."""
    broker.resume()
    before = broker.cpu_s()
    try:
        yield lambda: broker.cpu_s() - before
    finally:
        broker.pause()
