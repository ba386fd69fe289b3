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


class ChildState(StrEnum):
    STARTING = "Starting"  # its process is there; it has not answered its first probe
    RUNNING = "Running"
    WAITING = "Waiting"  # it ended, and starts again after a pause
    STOPPED = "Stopped"


class ChildProcess(msgspec.Struct, frozen=True):
    """What to run. `environ` is the whole environment; secrets go there and not into `command`,
    which every user of the machine can read. `probe` tells whether it still works; without one
    it does as long as its process lives. `start_s` is how long it may take to its first answer.
    `heard` is told of each new state. `pass_fds` are descriptors that it inherits."""

    name: str
    command: Sequence[str]
    environ: Mapping[str, str]
    probe: Probe | None = None
    pass_fds: Sequence[int] = ()
    start_s: float = START_S
    heard: Callable[[ChildStatus], None] | None = None

    def __repr__(self) -> str:  # the environment holds secrets
        return f"Child({self.name!r})"


class ChildStatus(msgspec.Struct, frozen=True):
    name: str
    state: ChildState
    pid: int | None
    restarts: int
    last_exit: int | None  # as of a process: negative for the signal that ended it
    since_ms: int  # when it came into this state
    in_vain: int = 0  # ends in a row, each before it had been well for a while


class _SupervisedChild:
    """A child and where it is in its life."""

    def __init__(self, child: ChildProcess, now_ms: int) -> None:
        self.child = child
        self.log = logging.getLogger(f"penstock.child.{child.name}")
        self.stopping = asyncio.Event()
        self.status = ChildStatus(child.name, ChildState.STARTING, None, 0, None, now_ms)
        self.task: asyncio.Task[None] | None = None


class ChildProcesses:
    """Every child of this process. `close` ends them all; used on one loop, from its thread."""

    def __init__(self, clock: Clock, *, grace_s: float = GRACE_S, pause: Pause | None = None):
        self._clock = clock
        self._grace_s = grace_s
        self._pause = pause or _pause
        self._kept: dict[str, _SupervisedChild] = {}

    def start(self, child: ChildProcess) -> None:
        """Returns at once; ValueError when one of that name is there."""
        if child.name in self._kept:
            raise ValueError(f"A child '{child.name}' is there already: stop it first.")
        kept = self._kept[child.name] = _SupervisedChild(child, self._clock.now_ms())
        kept.task = asyncio.get_running_loop().create_task(self._keep(kept))

    async def stop(self, name: str) -> None:
        """SIGTERM, then SIGKILL; returns when it is gone. Nothing when there is none."""
        kept = self._kept.get(name)
        if kept is None or kept.task is None:
            return
        kept.stopping.set()
        # The task ends by itself, within the grace: it is not cancelled halfway through.
        await asyncio.wait([kept.task])
        self._kept.pop(name, None)

    def status(self) -> list[ChildStatus]:
        return [kept.status for kept in self._kept.values()]

    async def close(self) -> None:
        await asyncio.gather(*(self.stop(name) for name in list(self._kept)))

    # --- one child's life -----------------------------------------------------------------------

    async def _keep(self, kept: _SupervisedChild) -> None:
        failures = 0  # in a row
        while not kept.stopping.is_set():
            began_ms = self._clock.monotonic_ms()
            try:
                exit_code = await self._live(kept)
            except Exception:  # its supervision goes on, whatever happened to it
                kept.log.exception("child_failed child=%s", kept.child.name)
                exit_code = None
            if kept.stopping.is_set():
                break
            has_lived = self._clock.monotonic_ms() - began_ms >= LIVED_S * 1000
            failures = 1 if has_lived else failures + 1
            delay_s = BACKOFF.pause_s(failures)
            was_well = has_lived and kept.status.state is ChildState.RUNNING
            in_vain = 1 if was_well else kept.status.in_vain + 1
            self._move(kept, ChildState.WAITING, pid=None, last_exit=exit_code, in_vain=in_vain)
            kept.log.warning(
                "ended child=%s exit=%s: starts again in %g s", kept.child.name, exit_code, delay_s
            )
            await self._pause(kept.stopping, delay_s)
            if not kept.stopping.is_set():
                kept.status = msgspec.structs.replace(
                    kept.status, restarts=kept.status.restarts + 1
                )
        self._move(kept, ChildState.STOPPED, pid=None)

    async def _live(self, kept: _SupervisedChild) -> int | None:
        """From start to end of one process; its exit code, None when it could not be started."""
        try:
            process, reading = await _spawn(kept.child, kept.log)
        except Exception as error:  # noqa: BLE001 - no process, no thread, no memory: try again later
            kept.log.error("cannot start child=%s: %r", kept.child.name, error)
            return None
        state = ChildState.RUNNING if kept.child.probe is None else ChildState.STARTING
        self._move(kept, state, pid=process.pid)
        try:
            await self._until_over(kept, process)
        finally:
            code = await self._end(process)
            # A grandchild that left the group may hold the pipe open: it is not waited for.
            await asyncio.wait([reading], timeout=1.0)
            reading.cancel()
        return code

    async def _until_over(
        self, kept: _SupervisedChild, process: asyncio.subprocess.Process
    ) -> None:
        """Until it ended, is to be stopped, or does not answer any more."""
        ended = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(kept.stopping.wait())
        watching = [ended, stopping]
        if kept.child.probe is not None:
            watching.append(asyncio.create_task(self._until_hung(kept, kept.child.probe)))
        try:
            await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
            hung = not ended.done() and not stopping.done()
        finally:
            for task in watching:
                task.cancel()
        if hung:
            kept.log.error("child=%s does not answer: it is killed", kept.child.name)
            _signal_group(process.pid, signal.SIGKILL)

    async def _until_hung(self, kept: _SupervisedChild, probe: Probe) -> bool:
        """Ask every now and then; returns when too many answers in a row were missed."""
        never = asyncio.Event()  # this task is cancelled, the event is not set
        began_ms, missed = self._clock.monotonic_ms(), 0
        while True:
            if await _answers(probe):
                missed = 0
                if kept.status.state is ChildState.STARTING:
                    self._move(kept, ChildState.RUNNING)
            elif kept.status.state is ChildState.STARTING:
                if self._clock.monotonic_ms() - began_ms >= kept.child.start_s * 1000:
                    return True
            else:
                missed += 1
                if missed >= PROBES_MISSED_MAX:
                    return True
            young = kept.status.state is ChildState.STARTING
            await self._pause(never, 0.25 if young else PROBE_EVERY_S)

    async def _end(self, process: asyncio.subprocess.Process) -> int:
        """Politely, then not; and whatever it left of its group."""
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(self._grace_s):
                    await process.wait()
            except TimeoutError:
                _signal_group(process.pid, signal.SIGKILL)
        code = await process.wait()
        _signal_group(process.pid, signal.SIGKILL)
        return code

    def _move(self, kept: _SupervisedChild, state: ChildState, **changed: int | None) -> None:
        kept.status = msgspec.structs.replace(
            kept.status, state=state, since_ms=self._clock.now_ms(), **changed
        )
        if kept.child.heard is not None:
            try:
                kept.child.heard(kept.status)
            except Exception:
                kept.log.exception("child_callback_failed child=%s", kept.child.name)


async def _spawn(
    child: ChildProcess, log: logging.Logger
) -> tuple[asyncio.subprocess.Process, asyncio.Task[None]]:
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
    return process, asyncio.create_task(_forward(ours, log))


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


async def _pause(until: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await until.wait()
