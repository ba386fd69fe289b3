"""The log's directory: one process at a time, and nothing outside of it."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.log.embedded.bench import Bench

from penstock.log.embedded.files import Files
from penstock.log.embedded.store import EmbeddedLogStore
from penstock.model import limits
from penstock.model.errors import DataDirectoryError, PenstockError

DEADLINE_S = 30


def open_store(directory: Path) -> EmbeddedLogStore:
    return EmbeddedLogStore(directory, wake=lambda _: None)


def test_directory_held_by_another_process_is_refused_naming_it(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from penstock.log.embedded.store import EmbeddedLogStore\n"
        "store = EmbeddedLogStore(pathlib.Path(sys.argv[1]), wake=lambda fn: None)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
        "store.close()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(
            DataDirectoryError, match=f"in use by the process with pid {holder.pid}:"
        ):
            open_store(tmp_path)
        holder.communicate(timeout=DEADLINE_S)
    open_store(tmp_path).close()


def test_hub_id_that_leaves_the_directory_is_refused(tmp_path: Path) -> None:
    store = EmbeddedLogStore(tmp_path, wake=lambda _: None)
    for hub_id in ("..", "a/b", "", "x" * 65):
        with pytest.raises(PenstockError, match="cannot name a directory"):
            store.partition(hub_id, 0)
    store.close()


def test_blocks_for_the_next_start_on_a_full_disk_are_kept_after_a_clean_stop(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    lock = tmp_path / "lock"
    bench.store.close()
    if lock.stat().st_blocks * 512 < 512 * limits.KB:
        pytest.skip("this file system does not reserve blocks")
    assert lock.stat().st_size < 4 * limits.KB
    bench = Bench(tmp_path)
    assert lock.stat().st_blocks * 512 <= 4 * limits.KB
    bench.store.close()


def test_reserve_for_the_next_start_takes_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def allocate(files: Files, fd: int, position: int, size: int) -> None:
        sizes.append(size)
        if size > 128 * limits.KB:
            raise OSError(errno.ENOSPC, "No space left on device")

    bench = Bench(tmp_path)
    monkeypatch.setattr(Files, "allocate", allocate)
    bench.store.reserve_space()
    assert sizes == [512 * limits.KB, 256 * limits.KB, 128 * limits.KB]
    bench.store.close()
