"""Idempotent producers (protocol.md 4.7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.broker.idempotent_producers import (
    ALREADY_STORED,
    EPOCH_MAX,
    PRODUCER_ID_MAX,
    SEQUENCE_MAX,
    IdempotentProducers,
    ProducerLink,
    SequenceCheck,
    check_sequence,
)
from penstock.broker.round_queue import RoundQueue
from penstock.log.api import AppendDone
from penstock.model.errors import (
    ArgumentError,
    ArgumentOutOfRange,
    DiskFull,
    OperationCancelled,
    OutOfOrderSequence,
    PenstockError,
    ProducerEpochStolen,
    ServerBusy,
)
from penstock.model.events import EventBatch, ProducerStamp, Receipt

if TYPE_CHECKING:
    from tests.unit.broker.conftest import ScriptedLog, World

Outcomes = list[Receipt | PenstockError]


def send(world: World, link: ProducerLink, first: int, count: int = 1) -> Outcomes:
    """Hand over a batch numbered from `first`; its outcome comes with `world.turn()`."""
    outcomes: Outcomes = []
    last = (first + count - 1) % (SEQUENCE_MAX + 1)
    stamp = ProducerStamp(link.id, link.epoch, first, last)
    texts = [b"%d" % ((first + index) % (SEQUENCE_MAX + 1)) for index in range(count)]
    link.publish(world.batch(*texts, producer=stamp), 10, outcomes.append)
    return outcomes


def sent(world: World, link: ProducerLink, first: int, count: int = 1) -> Outcomes:
    outcomes = send(world, link, first, count)
    world.turn()
    return outcomes


@pytest.mark.parametrize(
    ("first", "last", "published", "expected"),
    [
        (1, 1, 0, SequenceCheck.NEXT),
        (42, 44, 41, SequenceCheck.NEXT),
        (0, 4, SEQUENCE_MAX, SequenceCheck.NEXT),
        (SEQUENCE_MAX, 3, SEQUENCE_MAX - 1, SequenceCheck.NEXT),
        (41, 41, 41, SequenceCheck.DUPLICATE),
        (1, 5, 41, SequenceCheck.DUPLICATE),
        (SEQUENCE_MAX - 1, 1, 1, SequenceCheck.DUPLICATE),
        (43, 43, 41, SequenceCheck.GAP),
        (41, 42, 41, SequenceCheck.GAP),
        (5, 3, 4, SequenceCheck.NEXT),
        (1, 1, SEQUENCE_MAX, SequenceCheck.GAP),
        (6, 2, 4, SequenceCheck.GAP),
    ],
)
def test_following_judges_numbers_around_the_roll_over(
    first: int, last: int, published: int, expected: SequenceCheck
) -> None:
    assert check_sequence(first, last, published) is expected


def test_new_producer_is_given_everything(world: World) -> None:
    link = world.produce()
    assert (link.id, link.epoch, link.sequence) == (1000, 0, 0)
    assert world.produce().id == 1001


def test_batches_in_order_are_stored(world: World) -> None:
    link = world.produce()
    assert isinstance(sent(world, link, 1, 3)[0], Receipt)
    assert isinstance(sent(world, link, 4)[0], Receipt)
    assert link.sequence == 4
    assert world.read().bodies() == [b"1", b"2", b"3", b"4"]


def test_duplicate_is_acknowledged_and_not_stored(world: World) -> None:
    link = world.produce()
    sent(world, link, 1, 3)
    for first, count in ((1, 3), (2, 1), (1, 1)):
        assert sent(world, link, first, count) == [ALREADY_STORED]
    assert world.read().bodies() == [b"1", b"2", b"3"]


def test_duplicate_of_what_is_not_on_disk_yet_waits_for_it(world: World) -> None:
    link = world.produce()
    first = send(world, link, 1)
    again = send(world, link, 1)
    assert (first, again) == ([], [])
    world.turn()
    assert isinstance(first[0], Receipt)
    assert again == [ALREADY_STORED]


def test_duplicate_over_a_new_link_waits_for_the_old_links_append(world: World) -> None:
    old = world.produce()
    send(world, old, 1)
    new = world.produce(old.id, old.epoch)
    assert new.sequence == 1
    again = send(world, new, 1)
    assert again == []
    world.turn()
    assert again == [ALREADY_STORED]
    assert world.read().bodies() == [b"1"]


def test_duplicate_waits_for_its_own_first_copy_among_several(
    world: World, log: ScriptedLog
) -> None:
    commits: list[AppendDone] = []

    def append(batch: EventBatch, size: int, done: AppendDone, link: ProducerLink) -> None:
        log.append(batch, now_ms=0, done=lambda outcome: None)
        commits.append(done)

    producers = IdempotentProducers(log, append, world.producer_ids.__next__, RoundQueue())
    link = producers.attach(producer_id=None, epoch=None, sequence=None, on_end=lambda error: None)
    send(world, link, 1)
    send(world, link, 2)
    again = send(world, link, 2)
    receipt = Receipt(0, 0, 0, 0)
    commits[0](receipt)
    assert again == []
    commits[1](receipt)
    assert again == [ALREADY_STORED]


def test_batches_may_follow_each_other_before_the_first_is_on_disk(world: World) -> None:
    link = world.produce()
    outcomes = [send(world, link, number) for number in range(1, 6)]
    world.turn()
    assert all(isinstance(outcome[0], Receipt) for outcome in outcomes)
    assert world.read().bodies() == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize(("first", "count"), [(5, 1), (3, 2), (6, 3), (2**30, 1)])
def test_gap_or_half_known_batch_is_refused_naming_what_is_expected(
    world: World, first: int, count: int
) -> None:
    link = world.produce()
    sent(world, link, 1, 3)
    with pytest.raises(OutOfOrderSequence, match="last one published is 3: 4 is expected"):
        send(world, link, first, count)
    assert world.read().bodies() == [b"1", b"2", b"3"]


def test_number_before_the_first_batch_ever_is_no_duplicate(world: World) -> None:
    """Nothing is acknowledged that the log does not know, whatever the client claims."""
    link = world.produce(7, 0, 41)
    for first in (41, 40, 0, SEQUENCE_MAX):
        with pytest.raises(OutOfOrderSequence):
            send(world, link, first)
    assert isinstance(sent(world, link, 42)[0], Receipt)


def test_numbers_roll_over_after_the_largest(world: World) -> None:
    link = world.produce(7, 0, SEQUENCE_MAX - 1)
    assert isinstance(sent(world, link, SEQUENCE_MAX)[0], Receipt)
    assert isinstance(sent(world, link, 0)[0], Receipt)
    assert sent(world, link, SEQUENCE_MAX) == [ALREADY_STORED]
    assert isinstance(sent(world, link, 1)[0], Receipt)


def test_one_batch_may_span_the_roll_over(world: World) -> None:
    link = world.produce(7, 0, SEQUENCE_MAX - 2)
    assert isinstance(sent(world, link, SEQUENCE_MAX - 1, 4)[0], Receipt)
    assert link.sequence == 1
    assert sent(world, link, SEQUENCE_MAX, 2) == [ALREADY_STORED]


# --- Epochs -----------------------------------------------------------------------------------


def test_higher_epoch_ends_the_older_link_whose_sends_then_fail(world: World) -> None:
    heard: list[PenstockError] = []
    old = world.produce(on_end=heard.append)
    sent(world, old, 1)
    new = world.produce(old.id, old.epoch + 1)
    assert [type(error) for error in heard] == [ProducerEpochStolen]
    for _ in range(2):
        with pytest.raises(ProducerEpochStolen):
            send(world, old, 2)
    assert new.sequence == 1
    assert isinstance(sent(world, new, 2)[0], Receipt)


def test_equal_epoch_takes_over_from_a_link_that_may_be_dead(world: World) -> None:
    heard: list[PenstockError] = []
    old = world.produce(7, 3, on_end=heard.append)
    new = world.produce(7, 3)
    assert [type(error) for error in heard] == [ProducerEpochStolen]
    old.close()
    assert isinstance(sent(world, new, 1)[0], Receipt)


def test_lower_epoch_is_refused_while_a_higher_one_is_attached(world: World) -> None:
    world.produce(7, 3)
    with pytest.raises(ProducerEpochStolen, match="higher epoch '3'"):
        world.produce(7, 2)


def test_lower_epoch_is_refused_once_a_higher_one_has_published(world: World) -> None:
    link = world.produce(7, 3)
    sent(world, link, 1)
    link.close()
    with pytest.raises(ProducerEpochStolen):
        world.produce(7, 2)


def test_epoch_left_to_the_service_is_higher_than_any_before(world: World) -> None:
    link = world.produce(7, 3)
    sent(world, link, 1)
    link.close()
    assert world.produce(7).epoch == 4
    assert world.produce(7).epoch == 5
    assert world.produce(8, EPOCH_MAX).epoch == EPOCH_MAX
    assert world.produce(8).epoch == EPOCH_MAX


def test_new_epoch_may_count_anew(world: World) -> None:
    old = world.produce(7, 0)
    sent(world, old, 1, 5)
    new = world.produce(7, 1, 0)
    assert new.sequence == 0
    assert isinstance(sent(world, new, 1)[0], Receipt)
    assert sent(world, new, 1) == [ALREADY_STORED]
    assert world.read().bodies() == [b"1", b"2", b"3", b"4", b"5", b"1"]


def test_new_epoch_that_continues_knows_the_old_ones_duplicates(world: World) -> None:
    old = world.produce(7, 0)
    sent(world, old, 1, 5)
    new = world.produce(7, 1)
    assert new.sequence == 5
    assert sent(world, new, 4, 2) == [ALREADY_STORED]
    assert isinstance(sent(world, new, 6)[0], Receipt)


def test_same_epoch_is_told_what_the_log_knows_whatever_it_claims(world: World) -> None:
    link = world.produce(7, 0)
    sent(world, link, 1, 5)
    assert world.produce(7, 0, 99).sequence == 5


@pytest.mark.parametrize("stated", [0, 2, 4])
def test_same_epoch_that_states_a_number_behind_the_log_is_refused(
    world: World, stated: int
) -> None:
    heard: list[PenstockError] = []
    link = world.produce(7, 0, on_end=heard.append)
    sent(world, link, 1, 5)
    with pytest.raises(OutOfOrderSequence, match=f"states {stated} as .* but 5 was published"):
        world.produce(7, 0, stated)
    assert heard == []  # the attached link keeps its place
    assert isinstance(sent(world, link, 6)[0], Receipt)
    assert world.produce(7, 0, 6).sequence == 6
    assert world.produce(7, 1, stated).sequence == stated  # a higher epoch may count from anywhere


def test_producers_of_other_partitions_are_others(world: World) -> None:
    heard: list[PenstockError] = []
    world.produce(7, 5, partition=0, on_end=heard.append)
    world.produce(7, 0, partition=1)
    assert heard == []


def test_attaching_again_after_closing_goes_on(world: World) -> None:
    link = world.produce()
    sent(world, link, 1, 2)
    link.close()
    with pytest.raises(OperationCancelled):
        send(world, link, 3)
    again = world.produce(link.id, link.epoch, 2)
    assert isinstance(sent(world, again, 3)[0], Receipt)


# --- Refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("producer_id", "epoch", "sequence"),
    [
        (-1, None, None),
        (PRODUCER_ID_MAX + 1, None, None),
        (1, -1, None),
        (1, EPOCH_MAX + 1, None),
        (1, 0, -1),
        (1, 0, SEQUENCE_MAX + 1),
    ],
)
def test_attach_out_of_range_is_refused(
    world: World, producer_id: int, epoch: int | None, sequence: int | None
) -> None:
    with pytest.raises(ArgumentOutOfRange, match="are allowed"):
        world.produce(producer_id, epoch, sequence)


@pytest.mark.parametrize(
    "stamp",
    [
        None,
        ProducerStamp(8, 0, 1, 1),
        ProducerStamp(7, 1, 1, 1),
        ProducerStamp(7, 0, 1, 2),
        ProducerStamp(7, 0, -1, -1),
        ProducerStamp(7, 0, SEQUENCE_MAX + 1, SEQUENCE_MAX + 1),
    ],
)
def test_batch_whose_stamp_does_not_fit_the_link_is_refused(
    world: World, stamp: ProducerStamp | None
) -> None:
    link = world.produce(7, 0)
    with pytest.raises(ArgumentError):
        link.publish(world.batch(b"x", producer=stamp), 1, lambda outcome: None)
    assert world.read().bodies() == []


def test_throttled_batch_may_be_sent_again(world: World) -> None:
    world.set_units(1)
    link = world.produce()
    sent(world, link, 1, 250)
    with pytest.raises(ServerBusy):
        send(world, link, 251)
    world.clock.advance(1000)
    assert isinstance(sent(world, link, 251)[0], Receipt)


def failing_link(world: World, log: ScriptedLog) -> tuple[IdempotentProducers, ProducerLink]:
    """A producer over a log that can be made to fail after it has taken a batch."""

    def append(batch: EventBatch, size: int, done: AppendDone, link: ProducerLink) -> None:
        log.append(batch, now_ms=world.clock.now_ms(), done=done)

    producers = IdempotentProducers(log, append, world.producer_ids.__next__, RoundQueue())
    link = producers.attach(producer_id=None, epoch=None, sequence=None, on_end=lambda error: None)
    return producers, link


def test_batch_that_failed_on_disk_is_never_taken_for_a_duplicate(
    world: World, log: ScriptedLog
) -> None:
    """The log may name a number as appended whose bytes never reached the disk."""
    producers, link = failing_link(world, log)
    sent(world, link, 1)
    log.failing = DiskFull("no room")
    outcomes = sent(world, link, 2)
    assert [type(outcome) for outcome in outcomes] == [DiskFull]
    assert link.sequence == 1
    log.failing = None
    with pytest.raises(OutOfOrderSequence):
        send(world, link, 2)
    fresh = producers.attach(
        producer_id=link.id, epoch=link.epoch + 1, sequence=0, on_end=lambda error: None
    )
    assert isinstance(sent(world, fresh, 1)[0], Receipt)
    assert sent(world, fresh, 1) == [ALREADY_STORED]


def test_producer_whose_append_failed_may_state_what_it_knows(
    world: World, log: ScriptedLog
) -> None:
    """The log names the number of the failed append; the producer knows that it failed."""
    producers, link = failing_link(world, log)
    sent(world, link, 1)
    log.failing = DiskFull("no room")
    sent(world, link, 2)
    again = producers.attach(
        producer_id=link.id, epoch=link.epoch, sequence=1, on_end=lambda error: None
    )
    assert (again.id, again.epoch) == (link.id, link.epoch)


def test_duplicate_hears_when_the_append_it_waits_for_fails(world: World, log: ScriptedLog) -> None:
    _, link = failing_link(world, log)
    log.failing = DiskFull("no room")
    send(world, link, 1)
    again = send(world, link, 1)
    world.turn()
    assert [type(outcome) for outcome in again] == [DiskFull]
