"""The data directory's own files: who may read them, and what is stale."""

from __future__ import annotations

import base64
import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.io.runtime_file import read_runtime
from penstock.model.errors import DataDirectoryError
from penstock.service.data_directory import DataDirectory

FACTS = {"namespace": "penstock", "pid": 1, "portal": None}


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    return DataDirectory(tmp_path / "a" / "data")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_directory_is_made_for_its_owner_alone(data: DataDirectory) -> None:
    assert mode(data.path) == 0o700
    assert DataDirectory(data.path).path == data.path


def test_existing_directory_is_made_private(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o755)
    DataDirectory(tmp_path)
    assert mode(tmp_path) == 0o700
    assert f"directory={tmp_path} mode=755 to=700" in caplog.text
    caplog.clear()
    DataDirectory(tmp_path)
    assert caplog.text == ""


def test_directory_of_another_owner_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a volume that a container is given."""
    tmp_path.chmod(0o775)

    def refuse(path: Path, mode: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "chmod", refuse)
    DataDirectory(tmp_path)
    assert "readable by others" in caplog.text
    assert mode(tmp_path) == 0o775


def test_key_of_version_0_1_gets_a_checksum(data: DataDirectory) -> None:
    file = data.path / "admin.secret"
    file.write_text("a key without a checksum\n")
    tenant = data.admin_tokens().tenant_id
    assert len(file.read_text().splitlines()) == 2
    assert mode(file) == 0o600
    assert data.admin_tokens().tenant_id == tenant


@pytest.mark.parametrize("name", ["root.key", "admin.secret"])
def test_no_changed_byte_of_a_key_goes_unnoticed(data: DataDirectory, name: str) -> None:
    data.root_key()
    data.admin_tokens()
    file = data.path / name
    whole = file.read_bytes()
    for at in range(len(whole) - 1):  # the last byte is white space
        content = bytearray(whole)
        content[at] ^= 1
        file.write_bytes(content)
        with pytest.raises(DataDirectoryError, match=name):
            data.root_key() if name == "root.key" else data.admin_tokens()


def test_directory_is_told_from_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert DataDirectory(Path("data")).path == tmp_path / "data"


def test_a_file_in_its_place_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirectoryError, match="is a file; name a directory with --data"):
        DataDirectory(tmp_path / "file")
    with pytest.raises(DataDirectoryError, match=r"Cannot make .* \(Not a directory\)"):
        DataDirectory(tmp_path / "file" / "data")


def test_a_directory_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, wanted: False)  # root may write everywhere
    with pytest.raises(DataDirectoryError, match="cannot be written"):
        DataDirectory(tmp_path)


def test_root_key_is_drawn_once_and_kept(data: DataDirectory) -> None:
    key = data.root_key()
    assert len(base64.b64decode(key.reveal(), validate=True)) == 32
    assert data.root_key() == DataDirectory(data.path).root_key() == key
    assert mode(data.path / "root.key") == 0o600
    assert {file.name for file in data.path.iterdir()} == {"root.key"}


def test_two_directories_have_two_keys(data: DataDirectory, tmp_path: Path) -> None:
    assert DataDirectory(tmp_path / "b").root_key() != data.root_key()


def test_a_key_put_there_by_hand_is_used(data: DataDirectory) -> None:
    (data.path / "root.key").write_text("chosen\n")
    assert data.root_key().reveal() == "chosen"


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\x00", b"k" * 257, b"k" * 5000])
def test_a_key_file_that_holds_no_key_is_one_sentence(data: DataDirectory, content: bytes) -> None:
    (data.path / "root.key").write_bytes(content)
    with pytest.raises(DataDirectoryError, match=r"root\.key does not hold a key"):
        data.root_key()


def test_admin_tokens_stay_good_over_restarts(data: DataDirectory, tmp_path: Path) -> None:
    token = data.admin_token(now_ms=1_000)
    again = DataDirectory(data.path).admin_tokens()
    assert again.verify(token, now_ms=2_000).roles == ("Owner",)
    assert again.tenant_id != DataDirectory(tmp_path / "b").admin_tokens().tenant_id
    assert mode(data.path / "admin.secret") == 0o600


def test_runtime_tells_what_runs_and_goes_with_it(data: DataDirectory) -> None:
    assert read_runtime(data.path) is None

    data.write_runtime(FACTS)

    assert read_runtime(data.path) == FACTS
    assert json.loads((data.path / "runtime.json").read_text()) == FACTS
    assert mode(data.path / "runtime.json") == 0o600
    data.remove_runtime()
    assert list(data.path.iterdir()) == []
    assert read_runtime(data.path) is None
    data.remove_runtime()


def test_reading_runtime_does_not_make_it_stale(data: DataDirectory) -> None:
    data.write_runtime(FACTS)
    assert [read_runtime(data.path) for _ in range(3)] == [FACTS] * 3
    data.remove_runtime()


def test_runtime_may_be_written_again(data: DataDirectory) -> None:
    data.write_runtime(FACTS)
    data.write_runtime({**FACTS, "pid": 2})
    assert read_runtime(data.path) == {**FACTS, "pid": 2}
    data.remove_runtime()


def test_runtime_of_a_killed_process_is_stale(data: DataDirectory) -> None:
    script = (
        "import os, pathlib, signal\n"
        "from penstock.service.data_directory import DataDirectory\n"
        f"DataDirectory(pathlib.Path({str(data.path)!r})).write_runtime({{'pid': os.getpid()}})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], check=False)
    assert ended.returncode == -9
    assert (data.path / "runtime.json").exists()
    assert read_runtime(data.path) is None

    data.write_runtime(FACTS)
    assert read_runtime(data.path) == FACTS
    data.remove_runtime()


def test_a_later_owners_runtime_is_left_alone(data: DataDirectory) -> None:
    data.write_runtime(FACTS)
    later = DataDirectory(data.path)
    later.write_runtime({**FACTS, "pid": 2})
    data.remove_runtime()
    assert read_runtime(data.path) == {**FACTS, "pid": 2}
    later.remove_runtime()


@pytest.mark.parametrize("content", ["", "{", "[]", "5"])
def test_a_damaged_runtime_file_tells_nothing(data: DataDirectory, content: str) -> None:
    data.write_runtime(FACTS)
    (data.path / "runtime.json").write_text(content)
    assert read_runtime(data.path) is None
    data.remove_runtime()


def test_a_runtime_that_cannot_be_read_is_one_sentence(data: DataDirectory) -> None:
    (data.path / "runtime.json").mkdir()
    with pytest.raises(DataDirectoryError, match=r"Cannot read .*runtime\.json"):
        read_runtime(data.path)
    with pytest.raises(DataDirectoryError, match=r"Cannot write .*runtime\.json"):
        data.write_runtime(FACTS)
    data.remove_runtime()
