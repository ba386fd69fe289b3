"""The checkpoints of a data directory, read without its service: nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.checkpoints.records import GroupNames
from penstock.checkpoints.sqlite_file import (
    CheckpointFile,
    CheckpointWrite,
    read_checkpoints_offline,
)
from penstock.model.checkpoints import Checkpoint
from penstock.model.errors import DataDirectoryError


@pytest.mark.parametrize("is_open", [True, False])
def test_checkpoints_are_read_with_and_without_a_service(tmp_path: Path, is_open: bool) -> None:
    file = tmp_path / "checkpoints.sqlite"
    store = CheckpointFile(file, now_ms=lambda: 0, new_etag=lambda: "etag")
    saved = Checkpoint(partition_id="0", offset="435", sequence_number=4, modified_ms=0)
    store.write([CheckpointWrite(GroupNames("", "ab", "billing"), checkpoints=[saved])])
    if not is_open:
        store.close()
    before = sorted(tmp_path.iterdir())
    ((hub_id, group, found),) = read_checkpoints_offline(file)
    assert (hub_id, group) == ("ab", "billing")
    assert (found.partition_id, found.offset, found.sequence_number) == ("0", "435", 4)
    assert sorted(tmp_path.iterdir()) == before
    store.close()


def test_file_that_does_not_exist_has_no_checkpoints(tmp_path: Path) -> None:
    assert read_checkpoints_offline(tmp_path / "checkpoints.sqlite") == []
    assert list(tmp_path.iterdir()) == []


def test_damaged_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "checkpoints.sqlite"
    file.write_bytes(b"nonsense" * 1000)
    with pytest.raises(DataDirectoryError, match=r"checkpoints\.sqlite cannot be read"):
        read_checkpoints_offline(file)
