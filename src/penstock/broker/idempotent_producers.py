"""Idempotent producers of one partition (protocol.md 4.7).

A producer numbers its events, and the log stores the stamp (id, epoch, last number) of each
producer's newest batch. The first number of a batch decides what happens to it:

- It follows the stored number: the batch is appended.
- It is not above the stored number: the batch is a retry of a stored one, because a producer sends
  each number in order and repeats only what was not acknowledged. It is acknowledged, not stored.
- It leaves a gap: the batch is refused. Events in between are missing; if this batch were stored,
  the stored number would pass them, and their retry would be taken for a duplicate and lost.

Stamps are in the log and survive restarts. This module holds only attached links and appends that
are not yet durable: a duplicate of a pending append is acknowledged with that append, not before.
Everything runs on the thread of the broker's owner.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from penstock.broker.reader import OnEnd
from penstock.broker.round_queue import RoundQueue
from penstock.log.api import AppendDone, PartitionLog
from penstock.model import errors, limits
from penstock.model.events import EventBatch, ProducerStamp, Receipt

PRODUCER_ID_MAX = 2**63 - 1  # AMQP long
EPOCH_MAX = 2**15 - 1  # AMQP short
SEQUENCE_MAX = 2**31 - 1  # AMQP int; after it comes 0
_CYCLE = SEQUENCE_MAX + 1

ALREADY_STORED = Receipt(first_sequence=-1, last_sequence=-1, base_offset=-1, enqueued_ms=0)
"""Receipt of a duplicate. The position of the stored copy is not remembered."""

Append = Callable[[EventBatch, int, AppendDone, "ProducerLink"], None]
"""(batch, size in bytes, done, link): append to the partition, subject to its throttle."""


class SequenceCheck(IntEnum):
    """How the numbers of a batch relate to the last published number."""

    NEXT = 0
    DUPLICATE = 1
    GAP = 2


def check_sequence(first: int, last: int, published: int) -> SequenceCheck:
    """Numbers run from 0 to 2,147,483,647 and then start at 0 again, so a number counts as past if
    it is less than half a cycle before `published`. A batch that is partly published and partly new
    is a gap: storing it would store the published part twice."""
    if first == (published + 1) % _CYCLE:
        return SequenceCheck.NEXT
    half = _CYCLE // 2
    if (published - last) % _CYCLE < half and (published - first) % _CYCLE < half:
        return SequenceCheck.DUPLICATE
    return SequenceCheck.GAP


def ignore_end(_: object) -> None:
    """Replaces `on_end` of a closed link."""


@dataclass(eq=False)
class ProducerLink:
    """An idempotent producer attached to a partition.

    `sequence` is the last published number, which the attach reply contains. It is 0 for a new
    producer, so its first event has number 1.
    """

    id: int
    epoch: int
    sequence: int
    _continues: bool  # numbers go on where an older epoch ended
    _producers: IdempotentProducers
    _on_end: OnEnd
    _ended: errors.PenstockError | None = None

    def publish(self, batch: EventBatch, size_bytes: int, done: AppendDone) -> None:
        """Append the batch, or acknowledge a duplicate: `done` then gets ALREADY_STORED. Raises
        ArgumentError if the stamp does not match the link, OutOfOrderSequence for a gap,
        ProducerEpochStolen, ServerBusy."""
        if self._ended is not None:
            # A new exception each time: one that is raised again keeps its old traceback.
            raise type(self._ended)(*self._ended.args)
        stamp = self._check_stamp(batch)
        published = self._producers.log.producer(self.id)
        if published is not None and (published.epoch == self.epoch or self._continues):
            last = published.last_sequence
            check = check_sequence(stamp.first_sequence, stamp.last_sequence, last)
        else:
            # Only the client stated `sequence`. The log has no stored copy of earlier numbers, so a
            # batch with one of them must not be acknowledged as a duplicate.
            last = self.sequence
            check = check_sequence(stamp.first_sequence, stamp.last_sequence, last)
            if check is SequenceCheck.DUPLICATE:
                check = SequenceCheck.GAP
        if check is SequenceCheck.NEXT:
            self._producers.append(self, batch, stamp, size_bytes, done)
        elif check is SequenceCheck.DUPLICATE and not self._producers.has_lost(self.id):
            self._producers.acknowledge(self.id, done)
        else:
            raise errors.OutOfOrderSequence(
                f"The producer '{self.id}' sent the sequence numbers {stamp.first_sequence} to "
                f"{stamp.last_sequence}, but the last one published is {last}: "
                f"{(last + 1) % _CYCLE} is expected."
            )

    def close(self) -> None:
        """The client's link is closed. Idempotent."""
        if self._ended is None:
            self._ended = errors.OperationCancelled("The producer's link is closed.")
            self._on_end = ignore_end  # breaks the reference cycle with the link
            self._producers.remove_link(self)

    def end(self, error: errors.PenstockError) -> None:
        """Close the link from the service's side and notify its owner."""
        if self._ended is None:
            on_end, self._on_end = self._on_end, ignore_end
            self._ended = error
            self._producers.remove_link(self)
            on_end(error)

    def _check_stamp(self, batch: EventBatch) -> ProducerStamp:
        stamp = batch.producer
        if stamp is None:
            raise errors.ArgumentError(
                "An event on an idempotent producer's link carries no producer sequence number: "
                "each needs com.microsoft:producer-id, -epoch and -sequence-number."
            )
        if stamp.id != self.id or stamp.epoch != self.epoch:
            raise errors.ArgumentError(
                f"The events are stamped with producer '{stamp.id}' and epoch '{stamp.epoch}', "
                f"but the link is attached as producer '{self.id}' with epoch '{self.epoch}'."
            )
        if not 0 <= stamp.first_sequence <= SEQUENCE_MAX:
            raise errors.ArgumentError(
                f"The producer sequence number {stamp.first_sequence} is invalid: "
                f"0 to {SEQUENCE_MAX} are allowed."
            )
        if stamp.last_sequence != (stamp.first_sequence + batch.count - 1) % _CYCLE:
            raise errors.ArgumentError(
                f"The batch holds {batch.count} events, but its producer sequence numbers run "
                f"from {stamp.first_sequence} to {stamp.last_sequence}."
            )
        return stamp


class IdempotentProducers:
    """The idempotent producers of one partition."""

    def __init__(
        self,
        log: PartitionLog,
        append: Append,
        producer_ids: Callable[[], int],
        rounds: RoundQueue,
    ) -> None:
        self.log = log
        self._append = append
        self._producer_ids = producer_ids
        self._rounds = rounds
        # By producer id: at most one link each, the one with the highest epoch.
        self._links: dict[int, ProducerLink] = {}
        # By producer id, oldest first: an append that is not yet durable, as the callbacks of its
        # duplicates. The log completes appends in order, so the last entry of a producer completes
        # after every copy that a duplicate can refer to.
        self._in_flight: dict[int, deque[list[AppendDone]]] = {}
        # Producer id -> first number of its earliest failed append. The log may still report that
        # number as published, so no batch of the producer is acknowledged as a duplicate until the
        # number was appended again. Bounded like the stamps in the log.
        self._lost: OrderedDict[int, int] = OrderedDict()

    def links(self) -> list[ProducerLink]:
        return list(self._links.values())

    def attach(
        self,
        *,
        producer_id: int | None,
        epoch: int | None,
        sequence: int | None,
        on_end: OnEnd,
    ) -> ProducerLink:
        """None lets the service choose. A link of the same id with the same or a lower epoch is
        ended with ProducerEpochStolen; if it has a higher epoch, the new link is refused with it.

        Raises OutOfOrderSequence if the producer states a number below the last one published in
        its epoch: it does not know what it published, so its next events would be taken for
        duplicates or be stored twice. A producer that is in doubt leaves the number out and learns
        it from the reply."""
        _check_range("producer id", producer_id, 0, PRODUCER_ID_MAX)
        _check_range("producer epoch", epoch, 0, EPOCH_MAX)
        _check_range("producer sequence number", sequence, 0, SEQUENCE_MAX)
        if producer_id is None:
            producer_id = self._producer_ids()
        published = self.log.producer(producer_id)
        current = self._links.get(producer_id)
        epoch = _choose_epoch(producer_id, epoch, published, current)
        continues = published is not None and (
            published.epoch == epoch or sequence in (None, published.last_sequence)
        )
        if published is not None and continues:
            self._check_not_behind(published, sequence)
            start = published.last_sequence
        else:
            start = sequence or 0
            self._lost.pop(producer_id, None)  # a new epoch starts its own numbers
        link = ProducerLink(producer_id, epoch, start, continues, self, on_end)
        self._links[producer_id] = link
        if current is not None:
            current.end(
                errors.ProducerEpochStolen(
                    f"A new producer '{producer_id}' with epoch '{epoch}' is created hence the "
                    f"current producer with epoch '{current.epoch}' is getting disconnected."
                )
            )
        return link

    def _check_not_behind(self, published: ProducerStamp, sequence: int | None) -> None:
        # After a failed append the log may report a number that was never stored.
        if sequence is None or sequence == published.last_sequence or self.has_lost(published.id):
            return
        if check_sequence(sequence, sequence, published.last_sequence) is SequenceCheck.DUPLICATE:
            raise errors.OutOfOrderSequence(
                f"The producer '{published.id}' with epoch '{published.epoch}' states "
                f"{sequence} as its last sequence number, but {published.last_sequence} was "
                "published: state that number, none, or a higher epoch."
            )

    def remove_link(self, link: ProducerLink) -> None:
        if self._links.get(link.id) is link:
            del self._links[link.id]

    def has_lost(self, producer_id: int) -> bool:
        return producer_id in self._lost

    def append(
        self,
        link: ProducerLink,
        batch: EventBatch,
        stamp: ProducerStamp,
        size_bytes: int,
        done: AppendDone,
    ) -> None:
        def on_append_done(outcome: Receipt | errors.PenstockError) -> None:
            # On the log's call stack, before the next append: only `done` waits for the queue.
            in_flight = self._in_flight[link.id]
            duplicates = in_flight.popleft()
            if not in_flight:
                del self._in_flight[link.id]
            if isinstance(outcome, errors.PenstockError):
                self._mark_lost(link.id, stamp.first_sequence)
            else:
                link.sequence = stamp.last_sequence
            self._rounds.complete(done, outcome)
            repeated = outcome if isinstance(outcome, errors.PenstockError) else ALREADY_STORED
            for duplicate_done in duplicates:
                self._rounds.complete(duplicate_done, repeated)

        self._append(batch, size_bytes, on_append_done, link)
        if self._lost.get(link.id) == stamp.first_sequence:
            del self._lost[link.id]
        self._in_flight.setdefault(link.id, deque()).append([])

    def acknowledge(self, producer_id: int, done: AppendDone) -> None:
        """Acknowledge a duplicate when the newest pending append completes: the stored copy is that
        append or an earlier one."""
        in_flight = self._in_flight.get(producer_id)
        if in_flight:
            in_flight[-1].append(done)
        else:
            self._rounds.complete(done, ALREADY_STORED)

    def _mark_lost(self, producer_id: int, first_sequence: int) -> None:
        # Appends fail in order, so the first entry is the earliest.
        self._lost.setdefault(producer_id, first_sequence)
        if len(self._lost) > limits.PRODUCERS_PER_PARTITION_MAX:
            self._lost.popitem(last=False)


def _choose_epoch(
    producer_id: int,
    epoch: int | None,
    published: ProducerStamp | None,
    current: ProducerLink | None,
) -> int:
    newest = max(
        -1 if published is None else published.epoch, -1 if current is None else current.epoch
    )
    if epoch is None:
        # Above the last epoch, so that the previous owner cannot attach with its old one.
        return min(newest + 1, EPOCH_MAX)
    if epoch < newest:
        raise errors.ProducerEpochStolen(
            f"The producer '{producer_id}' with epoch '{epoch}' cannot be created: one with the "
            f"higher epoch '{newest}' has published to this partition or is attached to it."
        )
    return epoch


def _check_range(what: str, value: int | None, least: int, most: int) -> None:
    if value is not None and not least <= value <= most:
        raise errors.ArgumentOutOfRange(
            f"The {what} {value} is invalid: {least} to {most} are allowed."
        )
