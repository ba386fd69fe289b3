"""The checker's own negative control: every broken promise, doctored into a history, is told."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from tests.faults.harness.history import (
    ANOMALIES_MAX,
    BODY_BYTES_MIN,
    AnomalyKind,
    History,
    Outcome,
    Publication,
    SenderRecord,
    event_body,
    read_body,
)

NOW = 1_700_000_000_000


class Event(msgspec.Struct):
    """What a reader would get."""

    body: bytes
    key: str | None
    offset: int = 0
    enqueued_ms: int = NOW


Log = list[list[Event]]


class Story:
    """A broker in memory that does everything right, for tests to do something wrong."""

    def __init__(self) -> None:
        self.history = History(2)
        self.log: Log = [[], []]
        self.sender = self.history.sender(partition=0)
        self.other = self.history.sender(partition=1)
        self.keyed = self.history.sender(key="k")

    def publish(
        self,
        sender: SenderRecord,
        count: int = 1,
        *,
        partition: int = 0,
        outcome: Outcome = Outcome.ACKNOWLEDGED,
        stored: bool = True,
    ) -> Publication:
        publication = self.history.prepare(sender, count)
        self.history.sent(publication)
        publication.outcome = outcome
        for index in range(count if stored else 0):
            self.log[partition].append(Event(publication.body(index), sender.key))
        for number, event in enumerate(self.log[partition]):
            event.offset = 100 * number
        return publication

    def play(self) -> None:
        """Three batches and two singles, all of them acknowledged."""
        self.publish(self.sender, 3)
        self.publish(self.keyed, 1, partition=1)
        self.publish(self.sender, 1)
        self.publish(self.other, 2, partition=1)
        self.publish(self.sender, 2)

    def read(self, *, skip: tuple[int, ...] = ()) -> None:
        """All of both partitions, but for these sequence numbers of partition 0."""
        for partition, events in enumerate(self.log):
            for sequence, event in enumerate(events):
                if partition == 0 and sequence in skip:
                    continue
                self.history.observe(
                    partition,
                    sequence=sequence,
                    offset=event.offset,
                    enqueued_ms=event.enqueued_ms,
                    key=event.key,
                    body=event.body,
                )

    def verdict(self) -> set[AnomalyKind]:
        self.history.check()
        return self.history.kinds()


@pytest.fixture
def story() -> Story:
    made = Story()
    made.play()
    return made


def test_history_without_fault_is_found_in_order(story: Story) -> None:
    story.read()
    assert story.verdict() == set()
    assert story.history.acknowledged_events == 9
    assert story.history.next_sequence(0) == 6
    assert "0 anomalies" in story.history.summary()


def lose_the_last(log: Log) -> None:
    del log[0][-2:]


def lose_one_of_a_batch(log: Log) -> None:
    del log[0][-1]


def lose_one_in_the_middle(log: Log) -> None:
    del log[0][3]


def store_twice(log: Log) -> None:
    log[0].append(Event(log[0][3].body, None, offset=9000))


def swap_two_publications(log: Log) -> None:
    log[0][:4] = [log[0][3], *log[0][:3]]
    for number, event in enumerate(log[0]):
        event.offset = number


def mix_two_batches(log: Log) -> None:
    log[0][2], log[0][3] = log[0][3], log[0][2]
    log[0][2].offset, log[0][3].offset = log[0][3].offset, log[0][2].offset


def flip_a_bit(log: Log) -> None:
    body = bytearray(log[0][1].body)
    body[-1] ^= 1
    log[0][1].body = bytes(body)


def change_the_key(log: Log) -> None:
    log[1][0].key = "another"


def move_to_another_partition(log: Log) -> None:
    log[1].append(log[0].pop(3))
    for number, event in enumerate(log[1]):
        event.offset = number


def invent_an_event(log: Log) -> None:
    log[0].append(Event(event_body(0, 99, 0, 1, BODY_BYTES_MIN), None, offset=9000))


def go_back_in_time(log: Log) -> None:
    log[0][2].enqueued_ms -= 1


def repeat_an_offset(log: Log) -> None:
    log[0][3].offset = log[0][2].offset


Doctor = Callable[[Log], None]

DOCTORED: tuple[tuple[Doctor, AnomalyKind], ...] = (
    (lose_the_last, AnomalyKind.LOST),
    (lose_one_of_a_batch, AnomalyKind.HALF),
    (lose_one_in_the_middle, AnomalyKind.LOST),
    (store_twice, AnomalyKind.TWICE),
    (swap_two_publications, AnomalyKind.REORDERED),
    (mix_two_batches, AnomalyKind.HALF),
    (flip_a_bit, AnomalyKind.ALTERED),
    (change_the_key, AnomalyKind.ALTERED),
    (move_to_another_partition, AnomalyKind.MISROUTED),
    (invent_an_event, AnomalyKind.GHOST),
    (go_back_in_time, AnomalyKind.TIME),
    (repeat_an_offset, AnomalyKind.OFFSET),
)


@pytest.mark.parametrize(
    ("doctor", "kind"), DOCTORED, ids=lambda part: getattr(part, "__name__", "")
)
def test_doctored_log_is_told(story: Story, doctor: Doctor, kind: AnomalyKind) -> None:
    doctor(story.log)
    story.read()
    assert kind in story.verdict()


@pytest.mark.parametrize(
    ("doctor", "kind"), DOCTORED, ids=lambda part: getattr(part, "__name__", "")
)
def test_doctored_log_is_told_when_everything_is_read_again(
    story: Story, doctor: Doctor, kind: AnomalyKind
) -> None:
    story.read()
    assert story.verdict() == set()
    doctor(story.log)
    story.history.rewind()
    story.read()
    assert kind in story.verdict()


def test_whole_history_read_again_is_the_same(story: Story) -> None:
    story.read()
    story.history.check()
    story.history.rewind()
    story.read()
    assert story.verdict() == set()
    assert story.history.acknowledged_events == 9


def test_reader_that_skips_a_number_is_told(story: Story) -> None:
    story.read(skip=(3,))
    assert AnomalyKind.GAP in story.verdict()


def test_event_seen_before_a_crash_and_not_after_it_has_vanished(story: Story) -> None:
    story.publish(story.sender, 1, outcome=Outcome.UNKNOWN)
    story.read()
    story.history.crash()
    del story.log[0][-1]
    story.read()
    assert story.verdict() == {AnomalyKind.VANISHED}


def test_place_seen_before_a_crash_that_holds_another_event_after_it_has_moved(
    story: Story,
) -> None:
    story.publish(story.sender, 1, outcome=Outcome.UNKNOWN)
    story.read()
    story.history.crash()
    del story.log[0][-1]
    story.publish(story.history.sender(partition=0))
    story.read()
    assert AnomalyKind.MOVED in story.verdict()


@pytest.mark.parametrize("field", ["offset", "enqueued_ms"])
def test_offset_or_time_that_changes_over_a_crash_is_told(story: Story, field: str) -> None:
    story.read()
    story.history.crash()
    setattr(story.log[0][-1], field, getattr(story.log[0][-1], field) + 1)
    story.read()
    assert story.verdict() == {AnomalyKind.MOVED}


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.REFUSED])
@pytest.mark.parametrize("stored", [True, False])
def test_unacknowledged_publication_may_be_there_or_not(
    story: Story, outcome: Outcome, stored: bool
) -> None:
    story.publish(story.sender, 4, outcome=outcome, stored=stored)
    story.history.crash()
    story.read()
    assert story.verdict() == set()
    assert story.history.unacknowledged_events == (4 if stored else 0)


def test_half_of_an_unacknowledged_batch_is_told(story: Story) -> None:
    story.publish(story.sender, 4, outcome=Outcome.UNKNOWN)
    del story.log[0][-2:]
    story.read()
    assert story.verdict() == {AnomalyKind.HALF}


def test_unacknowledged_publication_that_comes_back_later_is_a_ghost(story: Story) -> None:
    late = story.publish(story.sender, 1, outcome=Outcome.UNKNOWN, stored=False)
    story.history.crash()
    story.read()
    assert story.verdict() == set()
    story.log[0].append(Event(late.body(0), None, offset=9000))
    story.read()
    assert story.verdict() == {AnomalyKind.GHOST}


def test_sender_without_a_promise_of_order_may_be_overtaken() -> None:
    story = Story()
    loose = story.history.sender(is_ordered=False)
    story.publish(loose)
    story.publish(loose)
    story.log[0][0].body, story.log[0][1].body = story.log[0][1].body, story.log[0][0].body
    story.read()
    assert story.verdict() == set()


def test_key_that_goes_to_two_partitions_is_told(story: Story) -> None:
    story.publish(story.history.sender(key="k"), partition=0)
    story.read()
    assert story.verdict() == {AnomalyKind.MISROUTED}


def test_list_of_anomalies_is_bounded() -> None:
    story = Story()
    for _ in range(ANOMALIES_MAX + 10):
        story.publish(story.sender, stored=False)
    story.history.check()
    assert len(story.history.anomalies) == ANOMALIES_MAX


@pytest.mark.parametrize("size", [BODY_BYTES_MIN, 25, 26, 27, 28, 100])
def test_no_flipped_bit_of_a_body_is_overlooked(size: int) -> None:
    body = event_body(7, 8, 1, 3, size)
    assert len(body) == size
    assert read_body(body) == (7, 8, 1, 3)
    for bit in range(8 * size):
        flipped = bytearray(body)
        flipped[bit // 8] ^= 1 << bit % 8
        assert read_body(bytes(flipped)) is None
    assert read_body(body[:-1]) is None
    assert read_body(b"") is None
