"""Open segment files: few at a time, closed by the last user."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.unit.log.embedded.bench import SIZE, Bench, WatchedFiles, batch

from penstock.log.embedded import file_handles
from penstock.log.embedded.file_handles import FileHandleCache
from penstock.log.embedded.segment import SEGMENT_HEADER_BYTES, Segment, SegmentHeader
from penstock.model.errors import InternalError


def _raise(code: int) -> int:
    raise OSError(code, os.strerror(code))


def test_few_files_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_handles, "HANDLES_MAX", 8)
    monkeypatch.setattr(FileHandleCache.__init__, "__kwdefaults__", {"handles_max": 8})
    bench = Bench(tmp_path, segment_bytes=SEGMENT_HEADER_BYTES + SIZE)
    for index in range(20):
        bench.append(*[batch(number) for number in range(5)], index=index)
    assert len(bench.files.open_fds) <= 8
    for index in range(20):
        for sequence in range(5):
            assert bench.partition(index).read(sequence, bytes_max=1)
    assert len(bench.files.open_fds) <= 8
    bench.store.close()
    assert bench.files.open_fds == set()


def test_handle_in_use_outlives_being_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"hello")
    files = WatchedFiles()
    cache = FileHandleCache(files)
    segment = Segment(path, SegmentHeader(0, 0, -1, 0, 0, 0))
    handle = cache.acquire(segment)
    assert cache.acquire(segment) is handle
    path.unlink()
    cache.forget(segment)
    cache.forget(segment)
    assert files.pread(handle.fd, 5, 0) == b"hello"
    cache.release(handle)
    cache.release(handle)
    assert files.open_fds == set()
    assert len(cache) == 0


def test_read_only_file_system_still_serves(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.append(batch(0))
    bench.store._handles.close()
    opened = bench.files.open

    def read_only(path: Path, *, create: bool = False, write: bool = True) -> int:
        if write:
            raise OSError(errno.EROFS, "read-only file system", str(path))
        return opened(path, create=create, write=write)

    with monkeypatch.context() as patch:
        patch.setattr(bench.files, "open", read_only)
        assert len(bench.partition().read(0, bytes_max=1)) == 1
        patch.setattr(bench.files, "open", lambda *_, **__: _raise(errno.EMFILE))
        bench.store._handles.close()
        with pytest.raises(InternalError, match="cannot be read"):
            bench.partition().read(0, bytes_max=1)
