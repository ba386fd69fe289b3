"""Nothing in a used data directory is readable by other users, but certificates."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from tests.faults.test_old_data_directory import OldDirectory

from penstock.cli.spark.capture_job import _capture_spark, _lock_state
from penstock.client import EventData
from penstock.spark.capture.job import job_id
from penstock.spark.capture.plan import open_run_state

READABLE = {"tls/ca.pem", "tls/server.pem", "tls/server.json"}
# Written by Spark with modes of its own, in directories of ours that nobody else can enter.
OF_SPARK = ("checkpoint", "local")


def _modes(data: Path) -> dict[str, str]:
    """What other users could read or enter, if they could enter the directories above it."""
    found: dict[str, str] = {}
    for root, folders, names in os.walk(data):
        folders[:] = [name for name in folders if name not in OF_SPARK]
        for path in (Path(root), *(Path(root, name) for name in names)):
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode & 0o077:
                found[str(path.relative_to(data))] = f"{mode:o}"
    return found


@pytest.mark.parametrize("name", ["stopped", "killed"])
async def test_other_users_can_read_nothing_but_certificates(tmp_path: Path, name: str) -> None:
    """Of a directory that version 0.1 wrote with other modes, too."""
    old = OldDirectory(tmp_path, name)
    old.data.chmod(0o755)
    for file in old.data.glob("*.sqlite*"):
        file.chmod(0o644)
    state = old.data / "capture"
    async with old.served() as service, service.producer("orders") as producer:
        await producer.send_event(EventData("of this version"), partition_id="0")
        for folder in state.glob("*-*/"):
            open_run_state(folder, folder.name.partition("-")[0]).close()
        with _lock_state(state), _capture_spark("local", {}, state):
            job_id(state)
        assert _modes(old.data).keys() <= READABLE
    assert _modes(old.data).keys() <= READABLE
