"""Every call to the disk fails in turn, with every error, while records of mixed sizes are appended
and retention closes segments; then the log is read through every path, restarted and compared."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from tests.conftest import Sized
from tests.faults.test_log_faults import NOW, Bench, FaultyFiles

from penstock.log.embedded.partition import EmbeddedPartition
from penstock.log.embedded.verify import LogFinding, verify_directory
from penstock.model.errors import LogFailed
from penstock.model.events import EventBatch, ProducerStamp, Receipt, StoredBatch

SEGMENT_BYTES = 2000
BODY_BYTES = (10, 600, 30, 900, 8, 300, 1200, 20)
CODES = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENOMEM)
PASSING = set(CODES) - {errno.EIO}
HOUR_MS = 3_600_000
Events = list[tuple[int, bytes]]


def batch(number: int) -> EventBatch:
    body = f"event {number} ".encode().ljust(BODY_BYTES[number % len(BODY_BYTES)], b".")
    head = b"\x00\x53\x75\xb0" + len(body).to_bytes(4, "big")
    return EventBatch(head + body, 1, producer=ProducerStamp(number % 3, 1, number, number))


class Play:
    """One life of a partition: flights of records, and a retention pass now and then that closes
    the active segment. `acknowledged` has the number and the bytes of each acknowledged record."""

    def __init__(self, directory: Path, files: FaultyFiles) -> None:
        self.bench = Bench(directory, files, segment_bytes=SEGMENT_BYTES)
        self.acknowledged: Events = []
        self._now_ms = NOW
        self._sent = 0

    def run(self) -> None:
        for flight in range(10):
            self.publish(1 + flight % 3)
            if flight % 3 == 2:
                self.roll()

    def publish(self, count: int) -> None:
        for item in [batch(self._sent + i) for i in range(count)]:
            self.bench.partition().append(
                item,
                now_ms=self._now_ms,
                done=lambda outcome, sections=item.sections: self._settle(outcome, sections),  # type: ignore[misc]  # a lambda's default has no type
            )
        self._sent += count
        self.wait()

    def roll(self) -> None:
        """A quarter of the retention passes, so retention closes the active segment."""
        self._now_ms += HOUR_MS + 1
        self.bench.store.enforce_retention("hub", retention_ms=4 * HOUR_MS, now_ms=self._now_ms)
        self.wait()

    def wait(self) -> None:
        """The committer works in order: an answer from another partition comes last."""
        self.bench.append(batch(0), index=1)
        self.bench.append(batch(0), index=1)

    def _settle(self, outcome: object, sections: bytes) -> None:
        if isinstance(outcome, Receipt):
            self.acknowledged.append((outcome.first_sequence, sections))
        else:
            assert isinstance(outcome, LogFailed)


def read_every_way(log: EmbeddedPartition) -> Events:
    """From the disk alone, and as a consumer does: from memory where possible. Both agree."""
    ways: list[Events] = []
    for is_cached, bytes_max in ((False, 1 << 20), (False, 1), (True, 700), (True, 1 << 16)):
        found: list[StoredBatch] = []
        sequence = 0
        while True:
            batches = log.read_cached(sequence, bytes_max=bytes_max) if is_cached else None
            if batches is None:
                batches = log.read(sequence, bytes_max=bytes_max)
            if not batches:
                break
            found += batches
            sequence = batches[-1].next_sequence
        ways.append([(item.first_sequence, item.sections) for item in found])
    assert all(way == ways[0] for way in ways)
    return ways[0]


def calls_of_a_whole_play(directory: Path) -> list[int]:
    """The numbers of the calls that change something of the partition, when nothing fails."""
    files = FaultyFiles()
    play = Play(directory, files)
    opened = len(files.calls)
    play.run()
    assert len(play.acknowledged) == 19
    assert (
        len(list((directory / "hub" / "0").glob("*.log"))) == 7
    )  # three of them begun by retention
    play.bench.store.close()
    calls = list(enumerate(files.calls))[opened:]
    return [n for n, (call, path) in calls if call in files.CHANGING and "/hub/0" in path]


def check_after_restart(directory: Path, acknowledged: Events) -> None:
    """Nothing acknowledged is lost or renumbered; the log goes on, also over one more restart."""
    assert [
        item
        for item in verify_directory(directory)
        if isinstance(item, LogFinding) and item.is_loss
    ] == []
    play = Play(directory, FaultyFiles())
    log = play.bench.partition()
    assert log.damage == ()
    assert log.status().failed is None
    kept = read_every_way(log)
    assert [sequence for sequence, _ in kept] == list(range(len(kept)))
    assert kept[: len(acknowledged)] == acknowledged
    play.publish(3)
    play.roll()
    play.publish(2)
    assert [sequence for sequence, _ in play.acknowledged] == [len(kept) + i for i in range(5)]
    play.bench.store.close()
    play = Play(directory, FaultyFiles())
    assert read_every_way(play.bench.partition())[: len(kept)] == kept
    assert play.bench.partition().status().last_sequence == len(kept) + 4
    play.bench.store.close()


@pytest.mark.sized("faults")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("is_lasting", [False, True], ids=["once", "from then on"])
def test_every_call_may_fail_and_nothing_acknowledged_is_lost(
    tmp_path: Path, is_lasting: bool, sized: Sized
) -> None:
    """In `make test` each call fails with one of the errors, in `make test-full` with each."""
    numbers = calls_of_a_whole_play(tmp_path / "whole")
    assert len(numbers) > 100
    errors = sized(short=1, full=len(CODES))
    for number in numbers:
        for code in [CODES[(number + i) % len(CODES)] for i in range(errors)]:
            directory = tmp_path / f"fault-{number}-{code}"
            files = FaultyFiles()
            play = Play(directory, files)

            def fault(
                call: str,
                path: str,
                files: FaultyFiles = files,
                number: int = number,
                code: int = code,
            ) -> int | None:
                passed = len(files.calls) - 1
                is_due = passed == number or (is_lasting and passed > number)
                return code if is_due and call in files.CHANGING else None

            files.fault = fault
            play.run()
            log = play.bench.partition()
            if not is_lasting:
                assert read_every_way(log) == play.acknowledged
                assert code not in PASSING or len(play.acknowledged) >= 16
            play.bench.store.close()
            check_after_restart(directory, play.acknowledged)
