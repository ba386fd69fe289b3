"""The fault-injecting files and the clock that jumps, as users of penstock.testing get them."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.harness import faulty_files
from tests.faults.harness.faulty_files import FaultyFiles, JumpingClock

from penstock.log.embedded.files import Files
from penstock.testing import ManualClock

DEADLINE_S = 20


@pytest.fixture
def files() -> Iterator[FaultyFiles]:
    made = FaultyFiles(Files())
    yield made
    made.heal()


def test_files_without_a_fault_are_the_real_ones(files: FaultyFiles, tmp_path: Path) -> None:
    as_the_log_sees_them: Files = files
    as_the_log_sees_them.mkdir(tmp_path / "new")
    fd = as_the_log_sees_them.open(tmp_path / "new" / "a", create=True)
    as_the_log_sees_them.allocate(fd, 0, 4096)
    assert as_the_log_sees_them.pwritev(fd, [b"one", b"two"], 0) == 6
    as_the_log_sees_them.truncate(fd, 5)
    as_the_log_sees_them.fdatasync(fd)
    assert as_the_log_sees_them.pread(fd, 10, 0) == b"onetw"
    assert as_the_log_sees_them.size(fd) == 5
    as_the_log_sees_them.close(fd)
    as_the_log_sees_them.rename(tmp_path / "new" / "a", tmp_path / "new" / "b")
    as_the_log_sees_them.fsync_directory(tmp_path / "new")
    assert as_the_log_sees_them.listdir(tmp_path / "new") == ["b"]
    as_the_log_sees_them.unlink(tmp_path / "new" / "b")
    as_the_log_sees_them.rmdir(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
    assert files.count("fdatasync", "/new/a") == 1
    assert files.count("fdatasync", "/new/b") == 0


def test_chosen_calls_fail_on_chosen_paths_as_often_as_said(
    files: FaultyFiles, tmp_path: Path
) -> None:
    first, second = (files.open(tmp_path / name, create=True) for name in ("a", "b"))
    fault = files.fail("fdatasync", "/a", code=errno.ENOSPC, times=2)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left") as raised:
            files.fdatasync(first)
        assert raised.value.errno == errno.ENOSPC
    files.fdatasync(second)
    files.pwritev(first, [b"x"], 0)
    assert (fault.hits, fault.later) == (2, 0)
    files.fdatasync(first)
    assert (fault.hits, fault.later) == (2, 1)
    for fd in (first, second):
        files.close(fd)


def test_fault_without_an_end_lasts_until_it_is_healed(files: FaultyFiles, tmp_path: Path) -> None:
    files.fail("open")
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output error"):
            files.open(tmp_path / "a", create=True)
    files.heal()
    files.close(files.open(tmp_path / "a", create=True))


def test_held_call_waits_until_it_is_let_go(files: FaultyFiles, tmp_path: Path) -> None:
    fd = files.open(tmp_path / "a", create=True)
    gate = files.hold("fdatasync", "/a")
    done = threading.Event()

    def flush() -> None:
        files.fdatasync(fd)
        done.set()

    waiting = threading.Thread(target=flush)
    waiting.start()
    assert gate.entered.wait(DEADLINE_S)
    assert not done.is_set()
    files.pwritev(fd, [b"x"], 0)  # other calls pass by
    gate.let_go()
    assert done.wait(DEADLINE_S)
    waiting.join(DEADLINE_S)
    files.fdatasync(fd)  # nobody waits there again
    files.close(fd)


def test_forgotten_gate_does_not_hold_a_call_for_ever(
    files: FaultyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faulty_files, "GATE_DEADLINE_S", 0.01)
    fd = files.open(tmp_path / "a", create=True)
    files.hold("fdatasync")
    with pytest.raises(TimeoutError, match="to be let go"):
        files.fdatasync(fd)
    files.close(fd)


def test_jumping_clock_moves_the_wall_alone() -> None:
    clock, manual = JumpingClock(), ManualClock()
    wall_ms, monotonic_ms = clock.now_ms(), clock.monotonic_ms()
    clock.jump(-3_600_000)
    assert clock.now_ms() < wall_ms - 3_500_000
    assert 0 <= clock.monotonic_ms() - monotonic_ms < 60_000
    clock.jump(3_600_000)
    assert clock.now_ms() >= wall_ms
    manual.jump(-5)
    assert manual.monotonic_ms() == 0
