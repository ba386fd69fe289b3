"""A real power cut while Capture writes: it continues by itself, every event is in one file.

The data directory is on ext4 in a file, as in tests/faults/harness/test_power_cut.py; the captured
files are on another disk. The cut comes a moment after Spark wrote a batch's offsets, which it does
not flush: afterwards they are empty or not there.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.conftest import PENSTOCK
from tests.faults.harness.conftest import LoopDisk, MakeDisk, make_disk
from tests.spark.conftest import new_hub

if TYPE_CHECKING:
    from tests.conftest import Server, ServerFactory, Sized

__all__ = ["make_disk"]  # the fixture of the fault tests

DISK_BYTES = 512 * 1024 * 1024
DEADLINE_S = 240.0


def batches(data: Path) -> set[tuple[str, int]]:
    """Offsets that Spark has written, of batches with windows."""
    found = set()
    for file in data.glob("capture/*/checkpoint/offsets/[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            if json.loads(file.read_text().splitlines()[2])["cuts"]:
                found.add((str(file), file.stat().st_mtime_ns))
    return found


def wait_for_batch(data: Path, before: set[tuple[str, int]]) -> None:
    """Wait until Spark wrote the offsets of one more batch."""
    deadline = time.monotonic() + DEADLINE_S
    while not batches(data) - before:
        assert time.monotonic() < deadline, "no batch was begun"
        time.sleep(0.01)


def restore_power(disk: LoopDisk) -> None:
    """Mount again as soon as the last process that had a file open has ended."""
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError):
            disk.unmount()
            break
        assert time.monotonic() < deadline, "a process still uses the disk"
        time.sleep(0.02)
    disk.mount()


class Service:
    """`penstock serve` on a disk that loses power, with Capture to another one."""

    def __init__(self, start: ServerFactory, disk: LoopDisk, folder: Path) -> None:
        self._start = start
        self._disk = disk
        self._config = folder / "capture.toml"
        self._config.write_text(
            f"""
            [capture]
            master = "local[2,4]"
            [capture.destinations.here]
            url = "{(folder / "captured").as_uri()}"
            """
        )
        self.data = disk.path / "data"
        self.server = self._started()

    def _started(self) -> Server:
        return self._start("--config", str(self._config), data=self.data)

    def lose_power(self) -> None:
        self._disk.cut_power()
        self.server.kill()
        restore_power(self._disk)
        self.server = self._started()

    def run(self, *words: str) -> str:
        environ = {
            "PATH": os.environ["PATH"],
            "PENSTOCK_DATA": str(self.data),
            "PENSTOCK_CONFIG": str(self._config),
        }
        done = subprocess.run(
            [str(PENSTOCK), *words], capture_output=True, text=True, env=environ, timeout=240
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def wait_until_off(self) -> None:
        """Wait until everything that was published while Capture was on is in files."""
        deadline = time.monotonic() + DEADLINE_S
        while json.loads(self.run("capture", "status", "-o", "json"))[0]["state"] != "Off":
            assert time.monotonic() < deadline, self.run("capture", "status", "-o", "json")
            time.sleep(0.04)


@pytest.mark.full("faults")
@pytest.mark.timeout(3600)
def test_capture_holds_every_event_once_after_power_cuts(
    start_server: ServerFactory, make_disk: MakeDisk, tmp_path: Path, sized: Sized
) -> None:
    service = Service(start_server, make_disk(DISK_BYTES), tmp_path)
    hub = new_hub(service.server, 2, name="cut")
    limits = ("--interval", "15m", "--size", "10MB", "--encoding", "avro-deflate")
    service.run("capture", "enable", "cut", "--destination", "here", "--container", "cut", *limits)
    cuts = sized(short=1, full=3, long=20)
    for _ in range(cuts):
        before = batches(service.data)
        hub.spread(3000, size=9000)  # one window by size in each partition
        wait_for_batch(service.data, before)
        service.lose_power()
        hub.server = service.server
    service.run("capture", "disable", "cut")
    service.wait_until_off()
    (proof,) = json.loads(service.run("capture", "verify", "cut", "-o", "json"))
    assert (proof["missing"], proof["double"], proof["compared"]) == (0, 0, 3000 * cuts)
