"""What every partition log does, whichever backend keeps it (log/api.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest

from penstock.log.api import LogStore, PartitionLog, PartitionStatus
from penstock.log.embedded.files import Files
from penstock.log.embedded.store import EmbeddedLogStore
from penstock.log.memory import MemoryLogStore
from penstock.model import limits
from penstock.model.errors import (
    ArgumentError,
    MessageTooLarge,
    OperationCancelled,
    PenstockError,
)
from penstock.model.events import EventBatch, ProducerStamp, Receipt, StoredBatch
from penstock.model.positions import EARLIEST, LATEST, Position, PositionKind

HEADER = 64  # what a record costs beside its sections
NOW = 1_700_000_000_000
DEADLINE_S = 20


class QuickFiles(Files):
    """Nothing here loses power, so nothing needs to wait for the disk."""

    def fdatasync(self, fd: int) -> None:
        pass

    def fsync_directory(self, path: Path) -> None:
        pass


class Owner:
    """The owner's thread: runs what the log hands over when it is turned."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.wake: Callable[[Callable[[], None]], None] = self._queue.put

    def turn(self, until: Callable[[], bool]) -> None:
        while not until():
            self._queue.get(timeout=DEADLINE_S)()

    def turn_all(self) -> None:
        try:
            while True:
                self._queue.get_nowait()()
        except Empty:
            return


class Bench:
    """A store on a backend, and the hand that turns its owner's thread."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.owner = Owner()
        self._directory = directory
        self.store = self._open()

    def _open(self) -> LogStore:
        if self.kind == "memory":
            return MemoryLogStore(self.owner.wake)
        flush = "os" if self.kind == "embedded-os" else "disk"
        return EmbeddedLogStore(
            self._directory,
            wake=self.owner.wake,
            files=QuickFiles(),
            flush=flush,  # type: ignore[arg-type]  # mypy widens the conditional to str
            segment_bytes=4096 if self.kind == "embedded-small" else limits.SEGMENT_BYTES,
        )

    def reopen(self) -> LogStore:
        self.store.close()
        self.store = self._open()
        return self.store

    def partition(self, index: int = 0) -> PartitionLog:
        return self.store.partition("hub", index)

    def append(
        self, log: PartitionLog, batch: EventBatch, *, now_ms: int = NOW
    ) -> Receipt | PenstockError:
        outcomes: list[Receipt | PenstockError] = []
        log.append(batch, now_ms=now_ms, done=outcomes.append)
        self.owner.turn(lambda: bool(outcomes))
        return outcomes[0]

    def publish(self, log: PartitionLog, batch: EventBatch, *, now_ms: int = NOW) -> Receipt:
        outcome = self.append(log, batch, now_ms=now_ms)
        assert isinstance(outcome, Receipt)
        return outcome

    def settle(self) -> None:
        """Let everything that was asked of the store happen: what a round leaves to be done is
        done before the next round's outcome is told."""
        for _ in range(2):
            self.publish(self.store.partition("settling", 0), events("x"))
        self.owner.turn_all()


KINDS = ["memory", "embedded", "embedded-os", "embedded-small"]


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(request.param, tmp_path / "data")
    yield made
    made.store.close()


on_disk = pytest.mark.parametrize("bench", KINDS[1:], indirect=True)


def section(body: str) -> bytes:
    message = body.encode()
    if len(message) < 256:
        return b"\x00\x53\x75\xa0" + bytes([len(message)]) + message
    return b"\x00\x53\x75\xb0" + len(message).to_bytes(4, "big") + message


def events(*bodies: str, producer: ProducerStamp | None = None) -> EventBatch:
    return EventBatch(b"".join(map(section, bodies)), len(bodies), producer=producer)


def read_all(
    log: PartitionLog, sequence: int = 0, *, bytes_max: int = 1 << 20
) -> list[StoredBatch]:
    found: list[StoredBatch] = []
    while batches := log.read(sequence, bytes_max=bytes_max):
        found += batches
        sequence = batches[-1].next_sequence
    return found


def test_empty_log_is_healthy_and_reports_minus_one(bench: Bench) -> None:
    health = bench.store.health()
    assert (health.is_alive, health.queued) == (True, 0)
    status = bench.partition().status()
    assert status == PartitionStatus(-1, -1, -1, 0, 0, None)
    assert status.is_empty
    assert bench.partition().read(0, bytes_max=1000) == []
    assert bench.partition().read_cached(0) == []


def test_partition_is_the_same_object_every_time(bench: Bench) -> None:
    assert bench.partition(1) is bench.partition(1)
    assert bench.partition(1) is not bench.partition(2)


def test_sequence_numbers_have_no_gaps_and_batches_stay_whole(bench: Bench) -> None:
    log = bench.partition()
    receipts = [bench.publish(log, events(*"abcde"[:count])) for count in (1, 5, 2, 1, 4)]
    assert [(r.first_sequence, r.last_sequence) for r in receipts] == [
        (0, 0), (1, 5), (6, 7), (8, 8), (9, 12),
    ]  # fmt: skip
    assert [batch.count for batch in read_all(log)] == [1, 5, 2, 1, 4]


def test_offsets_are_byte_positions_of_records(bench: Bench) -> None:
    log = bench.partition()
    batches = [events("a" * n) for n in (1, 255, 256, 3000)]
    expected = [0]
    for batch in batches:
        assert bench.publish(log, batch).base_offset == expected[-1]
        expected.append(expected[-1] + HEADER + len(batch.sections))
    assert [found.base_offset for found in read_all(log)] == expected[:-1]
    assert log.status().size_bytes == expected[-1]


def test_stored_batch_is_what_was_appended(bench: Bench) -> None:
    log = bench.partition()
    sent = [events("a", "b"), events("c" * 700), events("", "")]
    for batch in sent:
        bench.publish(log, batch)
    assert [found.sections for found in read_all(log)] == [batch.sections for batch in sent]


def test_done_runs_in_the_order_of_appending_and_never_at_once(bench: Bench) -> None:
    log = bench.partition()
    heard: list[int] = []
    for number in range(100):
        log.append(events("x"), now_ms=NOW, done=lambda _, number=number: heard.append(number))  # type: ignore[misc]  # a lambda's default has no type
        assert heard == []
    bench.owner.turn(lambda: len(heard) == 100)
    assert heard == list(range(100))


def test_append_from_a_callback_is_taken(bench: Bench) -> None:
    log = bench.partition()
    receipts: list[Receipt | PenstockError] = []

    def again(outcome: Receipt | PenstockError) -> None:
        receipts.append(outcome)
        if len(receipts) < 5:
            log.append(events("x"), now_ms=NOW, done=again)

    log.append(events("x"), now_ms=NOW, done=again)
    bench.owner.turn(lambda: len(receipts) == 5)
    assert log.status().last_sequence == 4


def test_failing_callback_does_not_prevent_the_others(bench: Bench) -> None:
    log = bench.partition()
    heard: list[Receipt | PenstockError] = []

    def broken(outcome: Receipt | PenstockError) -> None:
        raise ValueError(outcome)

    log.append(events("x"), now_ms=NOW, done=broken)
    log.append(events("y"), now_ms=NOW, done=heard.append)
    bench.owner.turn(lambda: bool(heard))
    assert isinstance(heard[0], Receipt)


def test_enqueued_time_never_goes_back(bench: Bench) -> None:
    log = bench.partition()
    times = [bench.publish(log, events("x"), now_ms=now).enqueued_ms for now in (5, 9, 3, 9, 12)]
    assert times == [5, 9, 9, 9, 12]
    assert [batch.enqueued_ms for batch in read_all(log)] == times


def test_batch_too_large_is_refused_and_takes_no_number(bench: Bench) -> None:
    log = bench.partition()
    huge = EventBatch(bytes(limits.RECORD_PAYLOAD_BYTES_MAX + 1), 1)
    assert isinstance(bench.append(log, huge), MessageTooLarge)
    for count in (0, limits.BATCH_EVENTS_MAX + 1):
        assert isinstance(bench.append(log, EventBatch(b"", count)), ArgumentError)
    assert bench.publish(log, events("x")).first_sequence == 0


def test_largest_batch_is_taken_and_read_back(bench: Bench) -> None:
    log = bench.partition()
    largest = events("x" * (limits.RECORD_PAYLOAD_BYTES_MAX - 8))
    assert len(largest.sections) == limits.RECORD_PAYLOAD_BYTES_MAX
    bench.publish(log, events("before"))
    bench.publish(log, largest)
    bench.publish(log, events("after"))
    assert [batch.sections for batch in read_all(log)][1] == largest.sections


def test_partitions_are_independent(bench: Bench) -> None:
    first, second = bench.partition(0), bench.partition(1)
    bench.publish(first, events("a", "b"))
    assert bench.publish(second, events("c")).first_sequence == 0
    assert second.status().last_sequence == 0
    assert first.status().last_sequence == 1


def test_nothing_is_readable_before_it_is_committed(bench: Bench) -> None:
    log = bench.partition()
    outcomes: list[Receipt | PenstockError] = []
    log.append(events("x"), now_ms=NOW, done=outcomes.append)
    assert log.status().is_empty
    assert log.read(0, bytes_max=1000) == []
    assert log.read_cached(0) == []
    bench.owner.turn(lambda: bool(outcomes))
    assert log.status().last_sequence == 0
    assert len(log.read(0, bytes_max=1000)) == 1


def test_callback_finds_its_batch_readable(bench: Bench) -> None:
    log = bench.partition()
    seen: list[list[StoredBatch]] = []
    log.append(events("x"), now_ms=NOW, done=lambda _: seen.append(log.read(0, bytes_max=1000)))
    bench.owner.turn(lambda: bool(seen))
    assert len(seen[0]) == 1


def test_subscriber_is_called_after_each_commit_until_it_leaves(bench: Bench) -> None:
    log = bench.partition()
    calls: list[int] = []
    leave = log.subscribe(lambda: calls.append(log.status().last_sequence))
    bench.publish(log, events("a"))
    bench.publish(log, events("b", "c"))
    bench.owner.turn(lambda: len(calls) == 2)
    assert calls == [0, 2]
    leave()
    leave()
    bench.publish(log, events("d"))
    bench.owner.turn_all()
    assert calls == [0, 2]


def test_subscriber_that_fails_or_leaves_does_not_hurt_others(bench: Bench) -> None:
    log = bench.partition()
    calls: list[str] = []

    def broken() -> None:
        leave_third()
        raise ValueError

    log.subscribe(broken)
    log.subscribe(lambda: calls.append("second"))
    leave_third = log.subscribe(lambda: calls.append("third"))
    bench.publish(log, events("a"))
    bench.owner.turn(lambda: bool(calls))
    assert calls == ["second"]


def test_read_starts_with_the_batch_that_holds_the_event(bench: Bench) -> None:
    log = bench.partition()
    for _ in range(30):
        bench.publish(log, events("a" * 100, "b" * 100, "c" * 100))
    for sequence in range(90):
        for batches in (log.read(sequence, bytes_max=1), log.read_cached(sequence)):
            assert batches is not None
            assert batches[0].first_sequence == sequence - sequence % 3
    assert log.read(90, bytes_max=1) == log.read_cached(90) == []
    assert log.read(1000, bytes_max=1) == log.read_cached(1000) == []


def test_read_takes_at_least_one_batch_and_then_what_fits(bench: Bench) -> None:
    log = bench.partition()
    size = len(events("x" * 500).sections)
    for _ in range(20):
        bench.publish(log, events("x" * 500))
    assert len(log.read(0, bytes_max=0)) == 1
    assert len(log.read(0, bytes_max=size)) == 1
    assert len(log.read(0, bytes_max=2 * size - 1)) == 1
    assert len(log.read(0, bytes_max=2 * size)) == 2
    assert len(log.read(7, bytes_max=1 << 20)) == 13
    assert [b.first_sequence for b in read_all(log, bytes_max=3 * size)] == list(range(20))


def test_cached_batches_are_those_of_the_disk(bench: Bench) -> None:
    log = bench.partition()
    for number in range(40):
        bench.publish(log, events(*(f"event {number}.{i}" for i in range(number % 4 + 1))))
    found = log.read_cached(0)
    assert found is not None
    assert found == read_all(log)[: len(found)]
    assert len(found) == 40


# --- status and positions -------------------------------------------------------------------------


def test_status_follows_the_newest_event(bench: Bench) -> None:
    log = bench.partition()
    bench.publish(log, events("a"), now_ms=NOW)
    bench.publish(log, events("bb", "c" * 300, "d"), now_ms=NOW + 5)
    first = HEADER + len(section("a"))
    assert log.status() == PartitionStatus(
        begin_sequence=0,
        last_sequence=3,
        last_offset=first + len(section("bb")) + len(section("c" * 300)),
        last_enqueued_ms=NOW + 5,
        size_bytes=first + HEADER + len(events("bb", "c" * 300, "d").sections),
        failed=None,
    )


OFFSET, SEQUENCE, TIME = PositionKind.OFFSET, PositionKind.SEQUENCE, PositionKind.ENQUEUED_TIME


def at(kind: PositionKind, value: int, *, inclusive: bool) -> Position:
    return Position(kind, value, inclusive)


# Two batches of two six-byte events: sections of 11 bytes, so the events lie at 0, 11, 86, 97.
LOCATED = [
    (EARLIEST, 0),
    (LATEST, 4),
    (at(SEQUENCE, 0, inclusive=True), 0),
    (at(SEQUENCE, 0, inclusive=False), 1),
    (at(SEQUENCE, 3, inclusive=False), 4),
    (at(SEQUENCE, -1, inclusive=False), 0),
    (at(SEQUENCE, -7, inclusive=True), 0),
    (at(OFFSET, 0, inclusive=True), 0),
    (at(OFFSET, 0, inclusive=False), 1),
    (at(OFFSET, 10, inclusive=False), 1),
    (at(OFFSET, 11, inclusive=True), 1),
    (at(OFFSET, 11, inclusive=False), 2),
    (at(OFFSET, 50, inclusive=True), 2),
    (at(OFFSET, 86, inclusive=True), 2),
    (at(OFFSET, 86, inclusive=False), 3),
    (at(OFFSET, 97, inclusive=True), 3),
    (at(OFFSET, 97, inclusive=False), 4),
    (at(TIME, 0, inclusive=True), 0),
    (at(TIME, NOW, inclusive=True), 0),
    (at(TIME, NOW, inclusive=False), 2),
    (at(TIME, NOW + 5, inclusive=True), 2),
    (at(TIME, NOW + 10, inclusive=True), 2),
    (at(TIME, NOW + 10, inclusive=False), 4),
    (at(TIME, NOW + 10**9, inclusive=True), 4),
]


@pytest.mark.parametrize(("position", "sequence"), LOCATED, ids=repr)
def test_position_is_located(bench: Bench, position: Position, sequence: int) -> None:
    log = bench.partition()
    bench.publish(log, events("aaaaaa", "bbbbbb"), now_ms=NOW)
    bench.publish(log, events("cccccc", "dddddd"), now_ms=NOW + 10)
    assert log.locate(position) == sequence


@pytest.mark.parametrize("inclusive", [True, False])
def test_position_beyond_the_end_is_refused_in_the_services_words(
    bench: Bench, inclusive: bool
) -> None:
    log = bench.partition()
    bench.publish(log, events("aaaaaa", "bbbbbb"))
    with pytest.raises(
        ArgumentError,
        match=r"^The supplied sequence number '2' is invalid\. "
        r"The last sequence number in the system is '1'$",
    ):
        log.locate(at(SEQUENCE, 2, inclusive=inclusive))
    with pytest.raises(
        ArgumentError,
        match=r"^The supplied offset '12' is invalid\. The last offset in the system is '11'$",
    ):
        log.locate(at(OFFSET, 12, inclusive=inclusive))


def test_position_on_an_empty_log(bench: Bench) -> None:
    log = bench.partition()
    assert log.locate(EARLIEST) == log.locate(LATEST) == 0
    assert log.locate(at(TIME, NOW, inclusive=True)) == 0
    assert log.locate(at(SEQUENCE, -1, inclusive=False)) == 0
    with pytest.raises(ArgumentError, match=r"sequence number '0' is invalid\. The last .* '-1'$"):
        log.locate(at(SEQUENCE, 0, inclusive=True))
    with pytest.raises(ArgumentError, match=r"offset '0' is invalid\. The last .* '-1'$"):
        log.locate(at(OFFSET, 0, inclusive=True))


def test_every_event_is_found_by_its_own_offset_number_and_time(bench: Bench) -> None:
    log = bench.partition()
    for number in range(60):
        bodies = [f"{number} {i} " + "x" * (number * 7 % 400) for i in range(number % 5 + 1)]
        bench.publish(log, events(*bodies), now_ms=NOW + number // 3)
    firsts: dict[int, int] = {}
    for batch in read_all(log):
        firsts.setdefault(batch.enqueued_ms, batch.first_sequence)
        position = 0
        for sequence in range(batch.first_sequence, batch.next_sequence):
            offset = batch.base_offset + position
            assert log.locate(at(OFFSET, offset, inclusive=True)) == sequence
            assert log.locate(at(OFFSET, offset, inclusive=False)) == sequence + 1
            assert log.locate(at(SEQUENCE, sequence, inclusive=True)) == sequence
            head = batch.sections[position : position + 8]
            long = head[3] == 0xB0
            position += 8 + int.from_bytes(head[4:8], "big") if long else 5 + head[4]
    for time_ms, sequence in firsts.items():
        assert log.locate(at(TIME, time_ms, inclusive=True)) == sequence


def test_producer_returns_the_newest_stamp_as_soon_as_it_is_appended(bench: Bench) -> None:
    log = bench.partition()
    assert log.producer(7) is None
    outcomes: list[Receipt | PenstockError] = []
    for first in (0, 1):
        stamp = ProducerStamp(7, 3, first, first)
        log.append(events("x", producer=stamp), now_ms=NOW, done=outcomes.append)
        assert log.producer(7) == stamp
    assert log.producer(8) is None
    bench.owner.turn(lambda: len(outcomes) == 2)
    assert log.producer(7) == ProducerStamp(7, 3, 1, 1)


def test_producer_silent_longest_is_forgotten(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PRODUCERS_PER_PARTITION_MAX", 3)
    log = bench.partition()
    for producer_id in (1, 2, 3, 1, 4):
        bench.publish(log, events("x", producer=ProducerStamp(producer_id, 0, 0, 0)))
    assert [log.producer(n) is not None for n in (1, 2, 3, 4)] == [True, False, True, True]


# --- retention, drop, close -----------------------------------------------------------------------


def test_retention_drops_everything_that_is_old_and_keeps_the_numbers(bench: Bench) -> None:
    log = bench.partition()
    for _ in range(20):
        bench.publish(log, events("x" * 500), now_ms=NOW)
    before = log.status()
    freed = bench.store.enforce_retention("hub", retention_ms=1000, now_ms=NOW + 1001)
    bench.settle()
    assert freed == before.size_bytes
    assert log.status() == PartitionStatus(-1, 19, before.last_offset, NOW, 0, None)
    assert log.read(0, bytes_max=1000) == log.read_cached(0) == []
    assert log.locate(EARLIEST) == log.locate(at(OFFSET, 0, inclusive=True)) == 20
    assert log.locate(at(SEQUENCE, 3, inclusive=True)) == 20
    assert bench.publish(log, events("y"), now_ms=NOW + 2000).first_sequence == 20
    assert log.status().begin_sequence == 20


def test_retention_keeps_what_is_young(bench: Bench) -> None:
    log = bench.partition()
    for age in range(20):
        bench.publish(log, events("x" * 500), now_ms=NOW + age)
    bench.store.enforce_retention("hub", retention_ms=100, now_ms=NOW + 110)
    bench.settle()
    status = log.status()
    assert 0 <= status.begin_sequence <= 10
    assert [b.first_sequence for b in read_all(log)] == list(range(status.begin_sequence, 20))
    assert log.read(0, bytes_max=1)[0].first_sequence == status.begin_sequence
    assert log.locate(at(SEQUENCE, 0, inclusive=True)) == status.begin_sequence
    assert log.locate(at(OFFSET, 0, inclusive=True)) == status.begin_sequence
    assert log.locate(at(TIME, 0, inclusive=True)) == status.begin_sequence


def test_retention_leaves_other_hubs_alone(bench: Bench) -> None:
    other = bench.store.partition("other", 0)
    bench.publish(other, events("x"))
    assert bench.store.enforce_retention("hub", retention_ms=1, now_ms=NOW + 100) == 0
    assert other.status().begin_sequence == 0


def test_dropped_hub_is_gone_and_starts_anew(bench: Bench) -> None:
    log = bench.partition()
    bench.publish(log, events("a"))
    outcomes: list[Receipt | PenstockError] = []
    log.append(events("b"), now_ms=NOW, done=outcomes.append)
    bench.store.drop("hub")
    log.append(events("c"), now_ms=NOW, done=outcomes.append)
    bench.owner.turn(lambda: len(outcomes) == 2)
    assert all(isinstance(outcome, OperationCancelled) for outcome in outcomes)
    assert log.read(0, bytes_max=1000) == []
    assert log.status().is_empty
    anew = bench.partition()
    assert anew is not log
    assert anew.status().is_empty
    assert bench.publish(anew, events("d")).first_sequence == 0


def test_drop_of_an_unknown_hub_is_nothing(bench: Bench) -> None:
    bench.store.drop("never")
    assert bench.publish(bench.partition(), events("x")).first_sequence == 0


def test_close_commits_what_is_queued_and_says_so(bench: Bench) -> None:
    log = bench.partition()
    outcomes: list[Receipt | PenstockError] = []
    for _ in range(50):
        log.append(events("x"), now_ms=NOW, done=outcomes.append)
    bench.store.close()
    assert [outcome.first_sequence for outcome in outcomes if isinstance(outcome, Receipt)] == list(
        range(50)
    )
    bench.owner.turn_all()
    assert len(outcomes) == 50
    if bench.kind != "memory":
        bench.store = bench._open()
        assert bench.partition().status().last_sequence == 49


# --- over a restart -------------------------------------------------------------------------------


@on_disk
def test_reopened_log_is_the_same(bench: Bench) -> None:
    log = bench.partition()
    for number in range(50):
        stamp = ProducerStamp(number % 3, 1, number, number) if number % 2 else None
        bench.publish(
            log, events(f"{number}", "x" * (number * 13), producer=stamp), now_ms=NOW + number
        )
    status, batches = log.status(), read_all(log)
    stamps = [log.producer(n) for n in range(3)]
    for _ in range(2):
        bench.reopen()
        log = bench.partition()
        assert log.status() == status
        assert read_all(log) == batches
        assert [log.producer(n) for n in range(3)] == stamps
        assert log.locate(at(TIME, NOW + 20, inclusive=True)) == 40
    assert bench.publish(log, events("next"), now_ms=0).first_sequence == 100
    assert log.status().last_enqueued_ms == NOW + 49


@on_disk
def test_reopened_log_remembers_its_numbers_after_everything_was_dropped(bench: Bench) -> None:
    log = bench.partition()
    bench.publish(log, events("a", "b"), now_ms=NOW)
    bench.store.enforce_retention("hub", retention_ms=10, now_ms=NOW + 100)
    bench.settle()
    status = log.status()
    assert status.is_empty
    bench.reopen()
    assert bench.partition().status() == status
    assert bench.publish(bench.partition(), events("c"), now_ms=NOW).first_sequence == 2


@on_disk
def test_reopened_store_has_no_trace_of_a_dropped_hub(bench: Bench) -> None:
    bench.publish(bench.partition(), events("a"))
    bench.store.drop("hub")
    bench.reopen()
    assert bench.partition().status().is_empty
