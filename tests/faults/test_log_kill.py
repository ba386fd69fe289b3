"""kill -9 of a process that appends: every acknowledged event is there afterwards."""

from __future__ import annotations

import hashlib
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import Sized

from penstock.log.embedded.store import EmbeddedLogStore
from penstock.model.events import StoredBatch

DEADLINE_S = 60

APPENDER = """
import hashlib, os, sys
from pathlib import Path
from queue import SimpleQueue
from penstock.log.embedded.store import EmbeddedLogStore
from penstock.model.events import EventBatch, ProducerStamp

turns = SimpleQueue()
store = EmbeddedLogStore(Path(sys.argv[1]), wake=turns.put, segment_bytes=300_000)
log = store.partition("hub", 0)
number = log.status().last_sequence + 1
under_way = 0

def body(number):
    seed = hashlib.sha256(b"%d" % number).digest()
    return (seed * 8)[: 20 + number % 200]

def done(outcome):
    global under_way
    under_way -= 1
    os.write(1, b"%d\\n" % outcome.last_sequence)  # fails loudly if the outcome is an error

while True:
    while under_way < 20:
        count = number % 3 + 1
        bodies = [body(number + i) for i in range(count)]
        sections = b"".join(b"\\x00\\x53\\x75\\xa0" + bytes([len(b)]) + b for b in bodies)
        stamp = ProducerStamp(5, 0, number, number)
        log.append(EventBatch(sections, count, producer=stamp), now_ms=number, done=done)
        number += count
        under_way += 1
    turns.get()()
"""


def expected_sections(batch: StoredBatch) -> bytes:
    found = b""
    for number in range(batch.first_sequence, batch.next_sequence):
        body = (hashlib.sha256(b"%d" % number).digest() * 8)[: 20 + number % 200]
        found += b"\x00\x53\x75\xa0" + bytes([len(body)]) + body
    return found


def append_until_killed(directory: Path, lines: int) -> int:
    """Run the appender and kill it after `lines` acknowledgements. Returns the last number."""
    with subprocess.Popen(
        [sys.executable, "-c", APPENDER, str(directory)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        acknowledged = [process.stdout.readline() for _ in range(lines)]
        assert all(acknowledged), "the appender ended by itself"
        process.send_signal(signal.SIGKILL)
        remaining = process.stdout.read().split(b"\n")[:-1]  # without an incomplete last line
        assert process.wait(timeout=DEADLINE_S) == -signal.SIGKILL
    return int((acknowledged + remaining)[-1])


@pytest.mark.sized("faults")
@pytest.mark.timeout(3600)
def test_killed_appender_leaves_everything_that_was_acknowledged(
    tmp_path: Path, sized: Sized
) -> None:
    chance = random.Random(20)
    last = -1
    for _ in range(sized(short=5, full=200, long=1_000)):
        last = append_until_killed(tmp_path, chance.randint(1, 1500))
        store = EmbeddedLogStore(tmp_path, wake=lambda _: None)
        log = store.partition("hub", 0)
        assert store.damage == []
        assert log.status().last_sequence >= last
        sequence = 0
        while batches := log.read_cached(sequence, bytes_max=1 << 16) or log.read(
            sequence, bytes_max=1 << 16
        ):
            for batch in batches:
                assert batch.first_sequence == sequence
                assert batch.sections == expected_sections(batch)
                sequence = batch.next_sequence
        assert sequence == log.status().last_sequence + 1
        stamp = log.producer(5)
        assert stamp is not None
        assert stamp.last_sequence <= log.status().last_sequence
        store.close()
    assert last > 0
