"""Loss of power on a real ext4: an image mounted by loop, shut down without flushing its journal.

Needs root and loop devices; runs in `make test-full ARGS=faults`. The simulation of
test_log_power_cut.py always runs.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.conftest import Sized

from penstock.log.embedded.store import EmbeddedLogStore

EXT4_IOC_SHUTDOWN = 0x8004587D
WITHOUT_FLUSHING_THE_JOURNAL = 2
DEADLINE_S = 60

APPENDER = """
import hashlib, os, sys
from pathlib import Path
from queue import SimpleQueue
from penstock.log.embedded.store import EmbeddedLogStore
from penstock.model.events import EventBatch

turns = SimpleQueue()
store = EmbeddedLogStore(
    Path(sys.argv[1]), wake=turns.put, flush=sys.argv[2], segment_bytes=3_000_000
)
logs = [store.partition("hub", n) for n in range(3)]
numbers = [log.status().last_sequence + 1 for log in logs]
under_way = [0, 0, 0]

def append(index):
    number = numbers[index]
    body = (hashlib.sha256(b"%d.%d" % (index, number)).digest() * 700)[: number * 37 % 20_000]
    sections = b"\\x00\\x53\\x75\\xb0" + len(body).to_bytes(4, "big") + body
    def done(outcome):
        under_way[index] -= 1
        os.write(1, b"%d %d\\n" % (index, outcome.last_sequence))
    logs[index].append(EventBatch(sections, 1), now_ms=number, done=done)
    numbers[index] += 1
    under_way[index] += 1

while True:
    for index in range(3):
        while under_way[index] < 10:
            append(index)
    turns.get()()
"""


@contextmanager
def mounted(image: Path, folder: Path) -> Iterator[Path]:
    subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def cut_power(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, struct.pack("I", WITHOUT_FLUSHING_THE_JOURNAL))
    finally:
        os.close(fd)


def append_until_cut(folder: Path, lines: int, flush: str) -> list[int]:
    """The last event of each partition that was acknowledged before the power went."""
    last = [-1, -1, -1]
    with subprocess.Popen(
        [sys.executable, "-c", APPENDER, str(folder / "data"), flush],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(lines)]
        cutting = threading.Thread(target=cut_power, args=(folder,))
        cutting.start()
        cutting.join(DEADLINE_S)
        process.send_signal(signal.SIGKILL)
        # What was told after the cut began may or may not have been flushed before it: only what
        # was told before counts.
        process.wait(timeout=DEADLINE_S)
    for line in told:
        index, number = map(int, line.split())
        last[index] = max(last[index], number)
    return last


def lost_events(folder: Path, last: list[int]) -> int:
    """Opens the log, reads all of it, and counts what was acknowledged and is not there."""
    store = EmbeddedLogStore(folder / "data", wake=lambda _: None)
    assert store.damage == []
    lost = 0
    for index in range(3):
        log = store.partition("hub", index)
        sequence = 0
        while batches := log.read(sequence, bytes_max=1 << 20):
            for batch in batches:
                digest = hashlib.sha256(b"%d.%d" % (index, batch.first_sequence)).digest()
                size = batch.first_sequence * 37 % 20_000
                assert batch.first_sequence == sequence
                assert batch.sections[8:] == (digest * 700)[:size]
                sequence = batch.next_sequence
        lost += max(0, last[index] + 1 - sequence)
    store.close()
    return lost


def run(tmp_path: Path, cuts: int, flush: str) -> int:
    image, folder = tmp_path / "image", tmp_path / "mounted"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(512 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    chance = random.Random(7)
    lost = 0
    for _ in range(cuts):
        with mounted(image, folder):
            last = append_until_cut(folder, chance.randint(1, 2000), flush)
        with mounted(image, folder):
            lost += lost_events(folder, last)
            if shutil.disk_usage(folder).free < 200 << 20:
                shutil.rmtree(folder / "data")
    return lost


def skip_without_loop_devices() -> None:
    missing = [tool for tool in ("mkfs.ext4", "mount", "umount") if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing or not Path("/dev/loop-control").exists():
        pytest.skip("needs root, loop devices, mkfs.ext4 and mount")


@pytest.mark.full("faults")
@pytest.mark.timeout(7200)
def test_power_cut_on_ext4_loses_nothing_acknowledged(tmp_path: Path, sized: Sized) -> None:
    skip_without_loop_devices()
    assert run(tmp_path, sized(short=0, full=30, long=500), "disk") == 0


@pytest.mark.full("faults")
@pytest.mark.timeout(600)
def test_power_cut_on_ext4_without_flushes_does_lose(tmp_path: Path) -> None:
    """The control: the method can see a loss."""
    skip_without_loop_devices()
    assert run(tmp_path, 5, "os") > 0
