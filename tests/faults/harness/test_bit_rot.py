"""One flipped bit anywhere in the log's files: noticed when it is read, or of no consequence.

Never is anything served that was not stored. The damage costs one batch at most; all others are
read as before, by a store that was open when the bit flipped and by one that is opened after it.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.faults.harness.history import AnomalyKind, History, event_body
from tests.faults.harness.traffic import Clients, Shape

from penstock.log.embedded.files import Files
from penstock.log.embedded.partition import EmbeddedPartition
from penstock.log.embedded.record import RECORD_HEADER_BYTES
from penstock.log.embedded.segment import SEGMENT_HEADER_BYTES
from penstock.log.embedded.store import EmbeddedLogStore
from penstock.log.embedded.verify import LogFinding, verify_directory
from penstock.model.errors import LogCorrupt
from penstock.model.events import EventBatch, ProducerStamp, Receipt, StoredBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Sized
    from tests.faults.harness.conftest import Brokers, Patched, StartRun

    from penstock.model.errors import PenstockError

NOW = 1_700_000_000_000
SEGMENT_BYTES = 6000
BATCHES = 60
PRODUCER_IDS = 5
DEADLINE_S = 20
HUB, PARTITIONS = "faults", 4


class QuickFiles(Files):
    """Nothing is lost but bits here, so nobody waits for a flush."""

    def fdatasync(self, fd: int) -> None:
        pass

    def fsync_directory(self, path: Path) -> None:
        pass


class Store:
    """A store over the directory and its one partition."""

    def __init__(self, directory: Path) -> None:
        self._turns: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.store = EmbeddedLogStore(
            directory, wake=self._turns.put, files=QuickFiles(), segment_bytes=SEGMENT_BYTES
        )
        found = self.store.partition("hub", 0)
        assert isinstance(found, EmbeddedPartition)
        self.log = found

    def close(self) -> None:
        self.store.close()

    def append(self, batch: EventBatch, now_ms: int) -> None:
        outcomes: list[Receipt | PenstockError] = []
        self.log.append(batch, now_ms=now_ms, done=outcomes.append)
        while not outcomes:
            self._turns.get(timeout=DEADLINE_S)()
        assert isinstance(outcomes[0], Receipt)

    def producers(self) -> list[ProducerStamp | None]:
        return [self.log.producer(number) for number in range(PRODUCER_IDS)]

    def read_all(self) -> tuple[list[StoredBatch], set[int]]:
        """What is served, and the sequence numbers for which LogCorrupt is raised; the same whether
        everything is read from the disk or, as consumers do, from memory where possible."""
        from_disk, as_consumers = (self._read_all(is_cached) for is_cached in (False, True))
        assert from_disk == as_consumers
        return from_disk

    def _read_all(self, is_cached: bool) -> tuple[list[StoredBatch], set[int]]:
        served: list[StoredBatch] = []
        refused: set[int] = set()
        sequence, end = 0, self.log.status().last_sequence + 1
        while sequence < end:
            try:
                batches = self.log.read_cached(sequence, bytes_max=2000) if is_cached else None
                if batches is None:
                    batches = self.log.read(sequence, bytes_max=2000 if is_cached else 1 << 20)
            except LogCorrupt:
                refused.add(sequence)
                sequence += 1
                continue
            served += batches
            sequence = batches[-1].next_sequence
        return served, refused


class Span(msgspec.Struct, frozen=True):
    """Bytes of one kind in one file; a record's know which batch they hold."""

    kind: str
    path: Path
    start: int
    stop: int
    batch: int | None = None


class Rot:
    """A log of many closed segments, as it should be, and where its bytes lie."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        chance = random.Random(5)
        made = Store(directory)
        for number in range(BATCHES):
            count = chance.randint(1, 4)
            bodies = [
                event_body(1, number, i, count, chance.randint(24, 200)) for i in range(count)
            ]
            sections = b"".join(b"\x00\x53\x75\xa0" + bytes([len(b)]) + b for b in bodies)
            stamp = ProducerStamp(number % PRODUCER_IDS, 1, number, number) if number % 2 else None
            made.append(EventBatch(sections, count, producer=stamp), NOW + number)
        made.close()
        opened = Store(directory)
        self.batches, refused = opened.read_all()
        self.producers = opened.producers()
        opened.close()
        assert len(self.batches) == BATCHES
        assert refused == set()
        self.folder = directory / "hub" / "0"
        self.whole = {path: path.read_bytes() for path in sorted(self.folder.iterdir())}
        self.spans = list(self._spans())

    def _spans(self) -> Iterator[Span]:
        logs = [path for path in self.whole if path.suffix == ".log"]
        assert len(logs) > 3
        bases = [int(path.stem) for path in logs]
        for path, content in self.whole.items():
            if path.suffix != ".log":
                yield Span(path.suffix[1:], path, 0, len(content))
                continue
            yield Span("segment header", path, 0, SEGMENT_HEADER_BYTES)
        for number, batch in enumerate(self.batches):
            base = max(base for base in bases if base <= batch.base_offset)
            path = logs[bases.index(base)]
            start = SEGMENT_HEADER_BYTES + batch.base_offset - base
            payload = start + RECORD_HEADER_BYTES
            yield Span("record header", path, start, payload, number)
            yield Span("payload", path, payload, payload + len(batch.sections), number)

    def draw(self, chance: random.Random, *kinds: str) -> tuple[Span, int, int]:
        """A byte and a bit: of the whole log every second time, else of each kind as often, so
        that the few bytes of headers and indexes have their turn."""
        if not kinds and chance.random() < 0.5:
            sizes = [span.stop - span.start for span in self.spans]
            [span] = chance.choices(self.spans, sizes)
        else:
            kind = chance.choice(kinds or sorted({span.kind for span in self.spans}))
            span = chance.choice([span for span in self.spans if span.kind == kind])
        return span, chance.randrange(span.start, span.stop), chance.randrange(8)

    def flip(self, path: Path, position: int, bit: int) -> None:
        with path.open("r+b") as file:
            file.seek(position)
            file.write(bytes([self.whole[path][position] ^ 1 << bit]))

    def restore(self) -> None:
        """In place, so that an open store sees it; the index may have been made anew."""
        for path, content in self.whole.items():
            if path.read_bytes() != content:
                path.write_bytes(content)
        for path in set(self.folder.iterdir()) - self.whole.keys():
            path.unlink()

    def judge(self, span: Span, store: Store) -> None:
        """Everything but the flipped batch, if it was one, is served as it was stored."""
        served, refused = store.read_all()
        damaged = [] if span.batch is None else [self.batches[span.batch]]
        assert served == [batch for batch in self.batches if batch not in damaged]
        numbers = [range(batch.first_sequence, batch.next_sequence) for batch in damaged]
        assert refused == {number for batch in numbers for number in batch}


@pytest.fixture(scope="module")
def rot(tmp_path_factory: pytest.TempPathFactory) -> Rot:
    return Rot(tmp_path_factory.mktemp("rot"))


def test_files_of_a_log_are_all_looked_at(rot: Rot) -> None:
    """No byte is out of the flips' reach: closed segments end with their last record."""
    covered = sum(span.stop - span.start for span in rot.spans)
    assert covered == sum(len(content) for content in rot.whole.values())
    assert {span.kind for span in rot.spans} == {
        "segment header",
        "record header",
        "payload",
        "index",
        "producers",
    }


@pytest.mark.sized("faults")
@pytest.mark.timeout(3600)
def test_flipped_bit_is_noticed_or_harmless(rot: Rot, start_run: StartRun, sized: Sized) -> None:
    run = start_run(sized(short=300, full=10_000, long=100_000))
    told: Counter[str] = Counter()
    for number in range(run.count):
        span, position, bit = rot.draw(run.chance)
        where = f"bit {bit} of byte {position} in the {span.kind} of {span.path.name}"
        rot.flip(span.path, position, bit)
        with closing(Store(rot.directory)) as store:
            rot.judge(span, store)
            # What is derived is found again; what stands twice is read from the other copy.
            assert store.producers() == rot.producers, where
        if span.batch is None:
            told[verdict_on_the_rest(rot, span)] += 1
        else:
            told["refused when read"] += 1
        rot.restore()
        run.progress(number + 1, str(dict(told)))
    run.report(f"{run.count} flips: {dict(told)}")
    assert told["refused when read"] > run.count // 3
    assert told.total() == run.count


def verdict_on_the_rest(rot: Rot, span: Span) -> str:
    """A bit that costs nothing was put right by its use, or `penstock log verify` names it."""
    if span.path.read_bytes() == rot.whole[span.path]:
        return "derived anew"
    findings = [found for found in verify_directory(rot.directory) if isinstance(found, LogFinding)]
    assert findings, f"nobody notices the {span.kind} of {span.path.name}"
    assert not any(finding.is_loss for finding in findings)
    return "named by verify"


@pytest.mark.sized("faults")
@pytest.mark.timeout(3600)
def test_bit_that_flips_under_an_open_store_is_noticed(
    rot: Rot, start_run: StartRun, sized: Sized
) -> None:
    run = start_run(sized(short=150, full=5_000, long=25_000))
    with closing(Store(rot.directory)) as store:
        for number in range(run.count):
            span, position, bit = rot.draw(run.chance, "record header", "payload")
            rot.flip(span.path, position, bit)
            rot.judge(span, store)
            rot.restore()
            run.progress(number + 1, "all noticed")


def test_bit_rot_shows_wrong_data_when_the_checksum_is_ignored(
    rot: Rot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: every flip in a payload must then be served, and seen to be wrong."""
    monkeypatch.setattr("penstock.log.embedded.record_scanner.is_intact", lambda *ignored: True)
    chance = random.Random(6)
    with closing(Store(rot.directory)) as store:
        for _ in range(50):
            span, position, bit = rot.draw(chance, "payload")
            rot.flip(span.path, position, bit)
            served, _ = store.read_all()
            with pytest.raises(AssertionError):
                rot.judge(span, store)
            rot.restore()
            assert span.batch is not None
            assert served[span.batch] != rot.batches[span.batch], (
                "a flipped bit was served and looks right: this harness cannot see wrong data"
            )


# --- through a broker ---------------------------------------------------------------------------

NO_CHECKSUM = (
    "from penstock.log.embedded import record_scanner\n"
    "record_scanner.is_intact = lambda *ignored: True"
)


async def publish_some(connection_string: str, history: History) -> None:
    async with Clients(connection_string, HUB, history) as clients:
        await clients.read()
        publisher = await clients.publisher(await clients.connect(), partition=0, shape=Shape())
        publisher.start()
        await clients.until(lambda: clients.acknowledged >= 100)
        await clients.drain()
        await clients.catch_up()
        assert history.check() == []


async def read_partition(
    connection_string: str, history: History, sequence: int, end: int
) -> str | None:
    """Read on from there; why it ended before the end, None if it did not."""
    async with Clients(connection_string, HUB, history) as clients:
        await clients.read_from(await clients.connect(), 0, sequence)
        events = end - sequence
        await clients.until(lambda: clients.events_read >= events or bool(clients.reader_errors))
        error = clients.reader_errors.get(0)
        return None if error is None else str(error)


def rotten_broker(data: Path, brokers: Brokers) -> History:
    """Some events in partition 0, then a flipped bit in the middle, while nobody looks."""
    history = History(PARTITIONS)
    broker = brokers(data)
    asyncio.run(publish_some(broker.facts()["emulator_connection_string"], history))
    broker.stop()
    [segment] = data.glob("log/*/0/*.log")
    content = bytearray(segment.read_bytes())
    content[content.index(b"PnHy", len(content) // 2) + 6] ^= 4  # in an event's body
    segment.write_bytes(content)
    history.crash()
    return history


def test_broker_serves_what_is_whole_and_says_where_it_is_not(
    tmp_path: Path, brokers: Brokers
) -> None:
    history = rotten_broker(tmp_path / "data", brokers)
    end = history.next_sequence(0)
    broker = brokers(tmp_path / "data")
    string = broker.facts()["emulator_connection_string"]
    error = asyncio.run(read_partition(string, history, 0, end))
    assert error is not None
    assert "amqp:internal-error" in error
    found = re.search(r"The events (\d+) to (\d+) cannot be read", error)
    assert found is not None
    first, last = int(found[1]), int(found[2])
    assert 0 < first <= last < end - 1
    assert asyncio.run(read_partition(string, history, last + 1, end)) is None
    broker.stop()
    assert history.anomalies == []


def test_broker_that_ignores_checksums_is_found_out(
    tmp_path: Path, brokers: Brokers, patched: Patched
) -> None:
    """The negative control: the same bit, served."""
    history = rotten_broker(tmp_path / "data", brokers)
    broker = brokers(tmp_path / "data", command=patched(NO_CHECKSUM))
    string = broker.facts()["emulator_connection_string"]
    assert asyncio.run(read_partition(string, history, 0, history.next_sequence(0))) is None
    broker.stop()
    assert history.kinds() == {AnomalyKind.ALTERED, AnomalyKind.MOVED}
