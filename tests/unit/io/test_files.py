"""Files that are always complete, and locks that end with their process."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from penstock.io.files import lock_file, write_file_atomically


def test_file_is_kept_or_replaced_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_file_atomically(file, b"1", replace=False)
    write_file_atomically(file, b"2", replace=False)
    assert file.read_bytes() == b"1"
    write_file_atomically(file, b"3", mode=0o640)
    assert file.read_bytes() == b"3"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [file]


def test_failed_write_leaves_no_file(tmp_path: Path) -> None:
    target = tmp_path / "directory"
    target.mkdir()
    with pytest.raises(OSError, match="directory"):
        write_file_atomically(target, b"1")
    assert list(tmp_path.iterdir()) == [target]


def test_lock_has_one_holder(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    with lock_file(file), pytest.raises(BlockingIOError), lock_file(file):
        pass
    with lock_file(file):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
