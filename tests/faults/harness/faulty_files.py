"""What a machine may do to a broker, on demand: a disk that fails or is slow, a clock that is set.

`FaultyFiles` stands between the log and the real files. By itself it only counts; `fail` makes
calls fail, `hold` makes them wait until they are let go. Any thread may be in any method.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from penstock.log.embedded.files import Files

Call = Literal[
    "open",
    "pread",
    "pwritev",
    "fdatasync",
    "allocate",
    "truncate",
    "rename",
    "unlink",
    "mkdir",
    "fsync_directory",
]

GATE_DEADLINE_S = 60.0  # a gate that a failed test forgot must not keep the process for ever


class Gate:
    """Where calls wait. `entered` is set when the first has come."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._opened = threading.Event()

    def let_go(self) -> None:
        """Release all waiting callers; later callers do not wait."""
        self._opened.set()

    def pass_through(self) -> None:
        self.entered.set()
        if not self._opened.wait(GATE_DEADLINE_S):
            raise TimeoutError(f"a call waited {GATE_DEADLINE_S:.0f} s to be let go")


class Fault(msgspec.Struct):
    """What `fail` arranged, and what came of it."""

    call: Call
    part: str
    code: int
    times: int | None  # None: for ever
    hits: int = 0  # calls that failed by it
    later: int = 0  # calls of the same kind after it was used up

    def strikes(self, call: Call, path: str) -> bool:
        if self.call != call or self.part not in path:
            return False
        if self.times is not None and self.hits >= self.times:
            self.later += 1
            return False
        self.hits += 1
        return True


class FaultyFiles(Files):
    """Files that fail and wait where a test says so, and count every call."""

    def __init__(self, inner: Files) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._calls: Counter[tuple[Call, str]] = Counter()
        self._paths: dict[int, str] = {}
        self._faults: list[Fault] = []
        self._gates: list[tuple[Call, str, Gate]] = []

    # --- in the test's hand ---------------------------------------------------------------------

    def fail(
        self, call: Call, part: str = "", *, code: int = errno.EIO, times: int | None = None
    ) -> Fault:
        """Calls on paths that hold `part` end in OSError(code): the next `times`, or all."""
        fault = Fault(call, part, code, times)
        with self._lock:
            self._faults.append(fault)
        return fault

    def hold(self, call: Call, part: str = "") -> Gate:
        """Calls on paths that hold `part` wait from now on, until the gate lets them go."""
        gate = Gate()
        with self._lock:
            self._gates.append((call, part, gate))
        return gate

    def heal(self) -> None:
        """Remove all faults and release all waiting callers."""
        with self._lock:
            self._faults.clear()
            gates, self._gates = self._gates, []
        for _, _, gate in gates:
            gate.let_go()

    def count(self, call: Call, part: str = "") -> int:
        """How often that was called, failed calls included."""
        with self._lock:
            found = self._calls.items()
            return sum(times for (name, path), times in found if name == call and part in path)

    # --- the log's side -------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        self._enter("open", str(path))
        fd = self._inner.open(path, create=create, write=write)
        with self._lock:
            self._paths[fd] = str(path)
        return fd

    def close(self, fd: int) -> None:
        # In this order: once it is closed, another thread may get the same number for its file.
        with self._lock:
            self._paths.pop(fd, None)
        self._inner.close(fd)

    def size(self, fd: int) -> int:
        return self._inner.size(fd)

    def pread_cached(self, fd: int, buffer: memoryview, position: int) -> int:
        return 0  # every read asks the disk, which is in the test's hand

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self._enter_fd("pread", fd)
        return self._inner.pread(fd, size, position)

    def pwritev(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
        self._enter_fd("pwritev", fd)
        return self._inner.pwritev(fd, buffers, position)

    def fdatasync(self, fd: int) -> None:
        self._enter_fd("fdatasync", fd)
        self._inner.fdatasync(fd)

    def allocate(self, fd: int, position: int, size: int) -> None:
        self._enter_fd("allocate", fd)
        self._inner.allocate(fd, position, size)

    def truncate(self, fd: int, size: int) -> None:
        self._enter_fd("truncate", fd)
        self._inner.truncate(fd, size)

    def listdir(self, path: Path) -> list[str]:
        return self._inner.listdir(path)

    def mkdir(self, path: Path) -> None:
        self._enter("mkdir", str(path))
        self._inner.mkdir(path)

    def rename(self, old: Path, new: Path) -> None:
        self._enter("rename", str(new))
        self._inner.rename(old, new)

    def unlink(self, path: Path) -> None:
        self._enter("unlink", str(path))
        self._inner.unlink(path)

    def rmdir(self, path: Path) -> None:
        self._inner.rmdir(path)

    def fsync_directory(self, path: Path) -> None:
        self._enter("fsync_directory", str(path))
        self._inner.fsync_directory(path)

    # --- within ---------------------------------------------------------------------------------

    def _enter_fd(self, call: Call, fd: int) -> None:
        with self._lock:
            path = self._paths.get(fd, "")
        self._enter(call, path)

    def _enter(self, call: Call, path: str) -> None:
        with self._lock:
            self._calls[call, path] += 1
            gates = [g for name, part, g in self._gates if name == call and part in path]
        for gate in gates:
            gate.pass_through()
        with self._lock:
            struck = [fault for fault in self._faults if fault.strikes(call, path)]
        if struck:
            raise OSError(struck[0].code, os.strerror(struck[0].code), path)


class JumpingClock:
    """The machine's clocks, until somebody sets the wall clock; monotonic time goes on as ever."""

    def __init__(self) -> None:
        self._ahead_ms = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._ahead_ms

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def jump(self, milliseconds: int) -> None:
        """Set the wall clock forwards, or backwards."""
        self._ahead_ms += milliseconds
