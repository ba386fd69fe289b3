"""Children: started again when they end or hang, gone when we are, their output in our log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.model.clock import ManualClock
from penstock.service.child_processes import (
    BACKOFF,
    LINE_BYTES_MAX,
    ChildProcess,
    ChildState,
    ChildStatus,
)

DEADLINE_S = 30
SLEEPS = "import time; print('here', flush=True); time.sleep(600)"


class Pauses:
    """In place of waiting: notes how long it would have been, and goes on when it is let."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._free = asyncio.Semaphore(0)

    def let_go(self, times: int = 1) -> None:
        for _ in range(times):
            self._free.release()

    async def __call__(self, until: asyncio.Event, seconds: float) -> None:
        self.seconds.append(seconds)
        tasks = [asyncio.create_task(until.wait()), asyncio.create_task(self._free.acquire())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


Python = Callable[..., ChildProcess]


@pytest.fixture
async def python(clock: ManualClock, pauses: Pauses) -> AsyncIterator[Python]:
    """Makes children that run Python code; they are stopped after the test."""
    children: list[ChildProcess] = []

    def make(code: str, **options: Any) -> ChildProcess:
        command = (sys.executable, "-c", code)
        defaults: dict[str, Any] = {"environ": os.environ, "grace_s": 20, "pause": pauses}
        children.append(ChildProcess("job", command, clock=clock, **defaults | options))
        return children[-1]

    yield make
    await asyncio.gather(*(child.stop() for child in children))


async def seen(child: ChildProcess, what: Callable[[ChildStatus], bool]) -> ChildStatus:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if what(child.status):
                return child.status
            await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    """Not merely a name that nobody has collected yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def until(what: Callable[[], bool]) -> None:
    """The kernel tells nobody: ask until it is so."""
    async with asyncio.timeout(DEADLINE_S):
        while not what():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def gone(pid: int) -> None:
    await until(lambda: not alive(pid))


async def test_child_runs_until_it_is_stopped(python: Python) -> None:
    child = python(SLEEPS)
    child.start()
    status = await seen(child, lambda s: s.state is ChildState.RUNNING)
    assert status.pid is not None
    assert alive(status.pid)
    await child.stop()
    assert not alive(status.pid)
    assert (child.status.state, child.is_started) == (ChildState.STOPPED, False)


async def test_child_is_nicer_than_we_are(python: Python) -> None:
    """Where cores are few, the broker comes first."""
    child = python(SLEEPS)
    child.start()
    wanted = min(os.nice(0) + 5, 19)

    def is_nicer(status: ChildStatus) -> bool:
        # The launcher takes its place before it becomes the program.
        return status.pid is not None and os.getpriority(os.PRIO_PROCESS, status.pid) == wanted

    assert (await seen(child, is_nicer)).pid is not None


async def test_child_that_ends_is_started_again_later_each_time(
    python: Python, pauses: Pauses
) -> None:
    child = python("raise SystemExit(3)")
    child.start()
    for times in range(8):
        status = await seen(child, lambda s: s.state is ChildState.WAITING)
        assert (status.restarts, status.last_exit, status.pid) == (times, 3, None)
        pauses.let_go()
        await seen(child, lambda s, times=times: s.restarts == times + 1)  # type: ignore[misc]
    await seen(child, lambda s: s.state is ChildState.WAITING)
    assert pauses.seconds == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert (BACKOFF.first_s, BACKOFF.max_s) == (1, 60)


async def test_child_that_lived_for_a_minute_starts_again_soon(
    python: Python, pauses: Pauses, clock: ManualClock
) -> None:
    child = python(SLEEPS)
    child.start()
    for _ in range(2):
        first = await seen(child, lambda s: s.state is ChildState.RUNNING)
        assert first.pid is not None
        clock.advance(60_000)
        os.kill(first.pid, signal.SIGKILL)
        again = await seen(child, lambda s: s.state is ChildState.WAITING)
        assert again.last_exit == -signal.SIGKILL
        pauses.let_go()
        await seen(child, lambda s: s.state is not ChildState.WAITING)
    assert pauses.seconds == [1, 1]


async def test_child_that_does_not_answer_is_killed_and_started_again(
    python: Python, pauses: Pauses
) -> None:
    answers = [True]

    async def probe() -> bool:
        if not answers[0]:
            raise ConnectionRefusedError
        return True

    child = python("import signal; signal.pause()", probe=probe)
    child.start()
    first = await seen(child, lambda s: s.state is ChildState.RUNNING)
    answers[0] = False
    pauses.let_go(3)  # three probes in a row are missed
    status = await seen(child, lambda s: s.state is ChildState.WAITING)
    assert status.last_exit == -signal.SIGKILL
    assert first.pid is not None
    assert not alive(first.pid)
    answers[0] = True
    pauses.let_go()
    second = await seen(child, lambda s: s.state is ChildState.RUNNING)
    assert second.pid != first.pid


async def test_probing_ends_when_it_is_canceled_in_the_turn_of_an_answer(
    python: Python,
) -> None:
    """`asyncio.wait_for` of Python 3.11 returns the answer, and probing never ends."""
    asked = asyncio.Event()
    answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def probe() -> bool:
        asked.set()
        return await answer

    child = python(SLEEPS, probe=probe)
    child.start()
    async with asyncio.timeout(DEADLINE_S):
        await asked.wait()
    (probing,) = [task for task in asyncio.all_tasks() if "_until_hung" in repr(task.get_coro())]
    answer.set_result(True)
    probing.cancel()
    await asyncio.wait([probing], timeout=DEADLINE_S)
    assert probing.cancelled()


async def test_child_that_never_answers_is_started_again_after_a_minute(
    python: Python, pauses: Pauses, clock: ManualClock
) -> None:
    async def probe() -> bool:
        return False

    child = python(SLEEPS, probe=probe)
    child.start()
    status = await seen(child, lambda s: s.pid is not None)
    assert status.state is ChildState.STARTING
    await until(lambda: pauses.seconds != [])  # it was asked once, and did not answer
    clock.advance(60_000)
    pauses.let_go()
    await seen(child, lambda s: s.state is ChildState.WAITING)


async def test_child_that_needs_longer_to_answer_first_is_given_it(
    python: Python, pauses: Pauses, clock: ManualClock
) -> None:
    async def probe() -> bool:
        return False

    child = python(SLEEPS, probe=probe, start_s=300.0)
    child.start()
    await until(lambda: len(pauses.seconds) == 1)
    clock.advance(299_000)
    pauses.let_go()
    await until(lambda: len(pauses.seconds) == 2)
    assert child.status.state is ChildState.STARTING
    clock.advance(1_000)
    pauses.let_go()
    await seen(child, lambda s: s.state is ChildState.WAITING)


async def test_ends_in_a_row_are_counted_until_a_child_was_well_for_a_minute(
    python: Python, pauses: Pauses, clock: ManualClock
) -> None:
    heard: list[ChildStatus] = []
    answers = [False]

    async def probe() -> bool:
        return answers[0]

    child = python("import signal; signal.pause()", probe=probe, on_status=heard.append)
    child.start()
    for times in range(1, 4):
        status = await seen(child, lambda s: s.pid is not None)
        assert status.pid is not None
        clock.advance(60_000)  # it lives, and never answers
        os.kill(status.pid, signal.SIGKILL)
        status = await seen(child, lambda s: s.state is ChildState.WAITING)
        assert (status.in_vain, status.last_exit) == (times, -signal.SIGKILL)
        answers[0] = times == 3
        pauses.let_go(2)
        await seen(child, lambda s: s.state is not ChildState.WAITING)
    status = await seen(child, lambda s: s.state is ChildState.RUNNING)
    assert (status.in_vain, status.pid is not None) == (3, True)
    clock.advance(60_000)
    os.kill(status.pid or 0, signal.SIGKILL)
    status = await seen(child, lambda s: s.state is ChildState.WAITING)
    assert status.in_vain == 1
    states = [ChildState.STARTING, ChildState.WAITING]
    assert [each.state for each in heard] == [
        *states * 3,
        ChildState.STARTING,
        ChildState.RUNNING,
        ChildState.WAITING,
    ]
    assert heard[-1] == status


async def test_child_that_ignores_sigterm_is_killed(python: Python) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPS
    child = python(deaf, grace_s=0.05)
    child.start()
    status = await seen(child, lambda s: s.pid is not None)
    async with asyncio.timeout(DEADLINE_S):
        await child.stop()
    assert status.pid is not None
    assert not alive(status.pid)


async def test_what_a_child_started_goes_with_it(python: Python, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = (
        "import os, pathlib, subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "new = pathlib.Path(os.environ['NOTE'] + '.new'); new.write_text(str(p.pid))\n"
        "new.rename(os.environ['NOTE'])\n"
        "time.sleep(600)\n"
    )
    child = python(code, environ={**os.environ, "NOTE": str(note)})
    child.start()
    await until(note.exists)
    grandchild = int(note.read_text())
    assert alive(grandchild)
    await child.stop()
    await gone(grandchild)


async def test_lines_of_a_child_come_into_our_log(
    python: Python, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "penstock.child.job")
    code = (
        "import sys\n"
        "print('plain \\x1b[31m words')\n"
        "print('WARNING something', file=sys.stderr)\n"
        f"print('x' * {LINE_BYTES_MAX * 3})\n"
    )
    child = python(code)
    child.start()
    await seen(child, lambda s: s.state is ChildState.WAITING)
    said = [(r.levelname, r.getMessage()) for r in caplog.records]
    assert ("WARNING", "something") in said
    assert any(text.startswith("plain ") and "\x1b" not in text for _, text in said)
    assert any("left out" in text for _, text in said)


async def test_program_that_is_missing_is_tried_again(python: Python) -> None:
    child = python(SLEEPS)
    child.command = ("/does/not/exist",)
    child.start()
    status = await seen(child, lambda s: s.state is ChildState.WAITING)
    assert status.last_exit == 1


async def test_child_is_started_once(python: Python) -> None:
    child = python(SLEEPS)
    child.start()
    with pytest.raises(ValueError, match="stop it first"):
        child.start()


async def test_stopping_what_is_not_started_does_nothing(python: Python) -> None:
    child = python(SLEEPS)
    await child.stop()
    assert child.status.state is ChildState.STOPPED


async def test_repr_of_a_child_keeps_its_secrets(python: Python) -> None:
    assert "hunter2" not in repr(python(SLEEPS, environ={"TOKEN": "hunter2"}))


_PARENT = """
import asyncio, os, sys
from penstock.model.clock import SystemClock
from penstock.service.child_processes import ChildProcess

async def main():
    command = (sys.executable, "-c", "import time; time.sleep(600)")
    child = ChildProcess("job", command, os.environ, SystemClock())
    child.start()
    while (pid := child.status.pid) is None:
        await asyncio.sleep(0.01)
    print(pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_child_does_not_outlive_a_parent_that_is_killed() -> None:
    with subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as parent:
        assert parent.stdout is not None
        pid = int(await asyncio.to_thread(parent.stdout.readline))
        try:
            assert alive(pid)
            parent.kill()
            await gone(pid)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def test_child_that_cannot_be_started_is_tried_again(
    python: Python, pauses: Pauses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error "can't start new thread" is no OSError, and ended the supervision before."""
    spawn = asyncio.create_subprocess_exec

    async def fail(*args: object, **more: object) -> object:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", fail)
    child = python(SLEEPS)
    child.start()
    await seen(child, lambda s: s.state is ChildState.WAITING)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", spawn)
    pauses.let_go()
    await seen(child, lambda s: s.state is ChildState.RUNNING)
