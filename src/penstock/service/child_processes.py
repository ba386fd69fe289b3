"""Child processes that the service starts and watches: the portal, Capture.

A child that ends, or that no longer answers, is started again, later each time it does so soon. It
leads a process group of its own, which goes with it, and it does not outlive us, however we end.
Nothing a child does or writes can hold up the broker: its output is read in bounded lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from penstock.model import names
from penstock.model.backoff import Backoff
from penstock.model.clock import Clock

BACKOFF = Backoff(1.0, 60.0)
LIVED_S = 60.0  # a child that lived this long starts again as if it were new
GRACE_S = 5.0  # from SIGTERM to SIGKILL
PROBE_EVERY_S = 10.0
PROBE_S = 5.0  # a child that does not answer in this time did not
PROBES_MISSED_MAX = 3
START_S = 60.0  # a child that has not answered once by then hangs, unless it may take longer
LINE_BYTES_MAX = 8192

# Runs in the child before its program: asks the kernel to kill us when the thread that started us
# is gone (PR_SET_PDEATHSIG is 1), and looks whether that has happened already. A program of its own
# and not `preexec_fn`, because code between fork and exec can deadlock in a process with threads.
# A child is nicer than we are: where cores are few, the broker comes first.
_LAUNCH = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.nice(5)
os.execvp(sys.argv[2], sys.argv[2:])
"""
_LEVELS = {name: getattr(logging, name) for name in ("DEBUG", "INFO", "WARNING", "ERROR")}

Probe = Callable[[], Awaitable[bool]]
Pause = Callable[[asyncio.Event, float], Awaitable[None]]


async def _pause(until: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await until.wait()


class ChildState(StrEnum):
    STARTING = "Starting"  # its process is there; it has not answered its first probe
    RUNNING = "Running"
    WAITING = "Waiting"  # it ended, and starts again after a pause
    STOPPED = "Stopped"


class ChildStatus(msgspec.Struct, frozen=True):
    state: ChildState
    pid: int | None = None
    restarts: int = 0
    last_exit: int | None = None  # as of a process: negative for the signal that ended it
    since_ms: int = 0  # when it came into this state
    in_vain: int = 0  # ends in a row, each before it had been well for a while


@dataclass(eq=False)
class ChildProcess:
    """One child, from `start` to `stop`, after which it can be started again. Used on one loop,
    from its thread.

    `environ` is the whole environment; secrets go there and not into `command`, which every user of
    the machine can read. `probe` tells whether it still works; without one it does as long as its
    process lives. `start_s` is how long it may take to its first answer. `on_status` is called with
    each new state. `pass_fds` are descriptors that it inherits."""

    name: str
    command: Sequence[str]
    environ: Mapping[str, str] = field(repr=False)
    clock: Clock
    probe: Probe | None = None
    pass_fds: Sequence[int] = ()
    start_s: float = START_S
    on_status: Callable[[ChildStatus], None] | None = None
    grace_s: float = GRACE_S
    pause: Pause = _pause

    def __post_init__(self) -> None:
        self.status = ChildStatus(ChildState.STOPPED)
        self.log = logging.getLogger(f"penstock.child.{self.name}")
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_started(self) -> bool:
        return self._task is not None

    def start(self) -> None:
        """Returns at once; ValueError when it is started already."""
        if self._task is not None:
            raise ValueError(f"The child '{self.name}' is there already: stop it first.")
        self._stopping.clear()
        self.status = ChildStatus(ChildState.STARTING, since_ms=self.clock.now_ms())
        self._task = asyncio.get_running_loop().create_task(self._supervise())

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL; returns when it is gone. Nothing when it is not started."""
        if self._task is None:
            return
        self._stopping.set()
        # The task ends by itself, within the grace: it is not cancelled halfway through.
        await asyncio.wait([self._task])
        self._task = None

    async def _supervise(self) -> None:
        failures = 0  # in a row
        while not self._stopping.is_set():
            began_ms = self.clock.monotonic_ms()
            exit_code: int | None
            try:
                exit_code = await self._live()
            except Exception:  # no process, no thread, no memory: it is tried again later
                self.log.exception("child_failed child=%s", self.name)
                exit_code = None
            if self._stopping.is_set():
                break
            has_lived = self.clock.monotonic_ms() - began_ms >= LIVED_S * 1000
            failures = 1 if has_lived else failures + 1
            delay_s = BACKOFF.pause_s(failures)
            was_well = has_lived and self.status.state is ChildState.RUNNING
            in_vain = 1 if was_well else self.status.in_vain + 1
            self._move(ChildState.WAITING, pid=None, last_exit=exit_code, in_vain=in_vain)
            self.log.warning(
                "ended child=%s exit=%s: starts again in %g s", self.name, exit_code, delay_s
            )
            await self.pause(self._stopping, delay_s)
            if not self._stopping.is_set():
                restarts = self.status.restarts + 1
                self.status = msgspec.structs.replace(self.status, restarts=restarts)
        self._move(ChildState.STOPPED, pid=None)

    async def _live(self) -> int:
        """From start to end of one process; its exit code. Raises when it cannot be started."""
        process, reading = await _spawn(self)
        state = ChildState.RUNNING if self.probe is None else ChildState.STARTING
        self._move(state, pid=process.pid)
        try:
            await self._until_over(process)
        finally:
            code = await self._end(process)
            # A grandchild that left the group may hold the pipe open: it is not waited for.
            await asyncio.wait([reading], timeout=1.0)
            reading.cancel()
        return code

    async def _until_over(self, process: asyncio.subprocess.Process) -> None:
        """Until it ended, is to be stopped, or does not answer any more."""
        ended = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(self._stopping.wait())
        watching = [ended, stopping]
        if self.probe is not None:
            watching.append(asyncio.create_task(self._until_hung(self.probe)))
        try:
            await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
            hung = not ended.done() and not stopping.done()
        finally:
            for task in watching:
                task.cancel()
        if hung:
            self.log.error("child=%s does not answer: it is killed", self.name)
            _signal_group(process.pid, signal.SIGKILL)

    async def _until_hung(self, probe: Probe) -> bool:
        """Ask every now and then; returns when too many answers in a row were missed."""
        never = asyncio.Event()  # this task is cancelled, the event is not set
        began_ms, missed = self.clock.monotonic_ms(), 0
        while True:
            if await _answers(probe):
                missed = 0
                if self.status.state is ChildState.STARTING:
                    self._move(ChildState.RUNNING)
            elif self.status.state is ChildState.STARTING:
                if self.clock.monotonic_ms() - began_ms >= self.start_s * 1000:
                    return True
            else:
                missed += 1
                if missed >= PROBES_MISSED_MAX:
                    return True
            young = self.status.state is ChildState.STARTING
            await self.pause(never, 0.25 if young else PROBE_EVERY_S)

    async def _end(self, process: asyncio.subprocess.Process) -> int:
        """Politely, then not; and whatever it left of its group."""
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(self.grace_s):
                    await process.wait()
            except TimeoutError:
                _signal_group(process.pid, signal.SIGKILL)
        code = await process.wait()
        _signal_group(process.pid, signal.SIGKILL)
        return code

    def _move(self, state: ChildState, **changes: int | None) -> None:
        self.status = msgspec.structs.replace(
            self.status, state=state, since_ms=self.clock.now_ms(), **changes
        )
        if self.on_status is not None:
            try:
                self.on_status(self.status)
            except Exception:
                self.log.exception("child_callback_failed child=%s", self.name)


async def _spawn(child: ChildProcess) -> tuple[asyncio.subprocess.Process, asyncio.Task[None]]:
    """The process, and who reads what it writes. The pipe is ours and not asyncio's, whose `wait`
    lasts until it is closed: by a grandchild that may be never."""
    ours, theirs = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid())),
            *child.command,
            env=dict(child.environ),
            pass_fds=tuple(child.pass_fds),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,  # Ctrl-C is for us, who then stop it in order
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return process, asyncio.create_task(_forward(ours, child.log))


async def _forward(descriptor: int, log: logging.Logger) -> None:
    """Every line into our log, at the level that it begins with. A line too long is left out."""
    stream = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(descriptor, "rb", buffering=0)
    )
    try:
        while True:
            try:
                line = await stream.readline()
            except ValueError:
                log.info("(a line of more than %d bytes was left out)", LINE_BYTES_MAX)
                continue
            if not line:
                return
            text = names.quote_text(line.decode(errors="replace").rstrip(), most=LINE_BYTES_MAX)
            word, _, rest = text.partition(" ")
            if word in _LEVELS:
                log.log(_LEVELS[word], "%s", rest)
            elif text:
                log.info("%s", text)
    finally:
        transport.close()


async def _answers(probe: Probe) -> bool:
    try:
        async with asyncio.timeout(PROBE_S):
            return await probe()
    except Exception:  # noqa: BLE001 - whatever the reason: no answer
        return False


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
