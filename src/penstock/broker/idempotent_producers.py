"""Idempotent producers of one partition (protocol.md 4.7).

A producer numbers its events; a batch is taken when it follows the last one, acknowledged without
storing when it is there already, refused when it leaves a gap. What was appended last is known by
the log itself and so survives restarts; here are only the links that are attached now, and
appends that are not yet on disk: a duplicate of one of those is acknowledged with it, not before.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from enum import IntEnum

from penstock.broker.reader import OnEnd
from penstock.log.api import AppendDone, PartitionLog
from penstock.model import limits
from penstock.model.errors import (
    ArgumentError,
    ArgumentOutOfRange,
    OperationCancelled,
    OutOfOrderSequence,
    PenstockError,
    ProducerEpochStolen,
)
from penstock.model.events import EventBatch, ProducerStamp, Receipt

PRODUCER_ID_MAX = 2**63 - 1  # AMQP long
EPOCH_MAX = 2**15 - 1  # AMQP short
SEQUENCE_MAX = 2**31 - 1  # AMQP int; after it comes 0
_CYCLE = SEQUENCE_MAX + 1

ALREADY_STORED = Receipt(first_sequence=-1, last_sequence=-1, base_offset=-1, enqueued_ms=0)
"""The receipt of a duplicate: it lies where its first copy does, and nobody remembers where."""

Append = Callable[[EventBatch, int, AppendDone, "ProducerLink"], None]
"""(batch, size in bytes, done, who sends): into the partition by way of its throttle."""


class SequenceCheck(IntEnum):
    """How a batch stands to what was published last."""

    NEXT = 0
    DUPLICATE = 1
    GAP = 2


def check_sequence(first: int, last: int, published: int) -> SequenceCheck:
    """Numbers run 0 … 2147483647 and then from 0 again; what lies less than half a cycle behind
    counts as past. A batch that is half known and half new is no duplicate and leaves a gap."""
    if first == (published + 1) % _CYCLE:
        return SequenceCheck.NEXT
    half = _CYCLE // 2
    if (published - last) % _CYCLE < half and (published - first) % _CYCLE < half:
        return SequenceCheck.DUPLICATE
    return SequenceCheck.GAP


def _nothing(_: object) -> None:
    """The link has gone."""


class ProducerLink:
    """An idempotent producer attached to a partition. `sequence` is the last published number:
    what the attach reply tells, and 0 for a new producer, whose first event is then number 1."""

    __slots__ = ("_continues", "_ended", "_on_end", "_producers", "epoch", "id", "sequence")

    def __init__(
        self,
        producers: IdempotentProducers,
        *,
        producer_id: int,
        epoch: int,
        sequence: int,
        continues: bool,
        on_end: OnEnd,
    ) -> None:
        self.id = producer_id
        self.epoch = epoch
        self.sequence = sequence
        self._continues = continues  # numbers go on where an older epoch left them
        self._producers = producers
        self._on_end = on_end
        self._ended: PenstockError | None = None

    def publish(self, batch: EventBatch, size_bytes: int, done: AppendDone) -> None:
        """Into the partition, or acknowledged as a duplicate: then `done` gets ALREADY_STORED,
        before this returns if the first copy is on disk. Raises ArgumentError for a batch whose
        stamp does not fit the link, OutOfOrderSequence, ProducerEpochStolen, ServerBusy."""
        if self._ended is not None:
            # A fresh one each time: an exception raised twice drags its old traceback along.
            raise type(self._ended)(*self._ended.args)
        stamp = self._checked_stamp(batch)
        published = self._producers.last_stamp(self.id)
        if published is not None and (published.epoch == self.epoch or self._continues):
            follows = check_sequence(
                stamp.first_sequence, stamp.last_sequence, published.last_sequence
            )
            last = published.last_sequence
        else:
            follows = check_sequence(stamp.first_sequence, stamp.last_sequence, self.sequence)
            last = self.sequence
            if follows is SequenceCheck.DUPLICATE:  # the client says so; the log does not know it
                follows = SequenceCheck.GAP
        if follows is SequenceCheck.NEXT:
            self._producers.append(self, batch, stamp, size_bytes, done)
        elif follows is SequenceCheck.DUPLICATE and not self._producers.has_lost(self.id):
            self._producers.acknowledge(self.id, done)
        else:
            raise OutOfOrderSequence(
                f"The producer '{self.id}' sent the sequence numbers {stamp.first_sequence} to "
                f"{stamp.last_sequence}, but the last one published is {last}: "
                f"{(last + 1) % _CYCLE} is expected."
            )

    def close(self) -> None:
        """The link has gone. Harmless when done before."""
        if self._ended is None:
            self._ended = OperationCancelled("The producer's link is closed.")
            self._on_end = _nothing  # refers to the link, which refers to this
            self._producers.remove_link(self)

    def end(self, error: PenstockError) -> None:
        """The service takes the link away and says why."""
        if self._ended is None:
            on_end, self._on_end = self._on_end, _nothing
            self._ended = error
            self._producers.remove_link(self)
            on_end(error)

    def _checked_stamp(self, batch: EventBatch) -> ProducerStamp:
        stamp = batch.producer
        if stamp is None:
            raise ArgumentError(
                "An event on an idempotent producer's link carries no producer sequence number: "
                "each needs com.microsoft:producer-id, -epoch and -sequence-number."
            )
        if stamp.id != self.id or stamp.epoch != self.epoch:
            raise ArgumentError(
                f"The events are stamped with producer '{stamp.id}' and epoch '{stamp.epoch}', "
                f"but the link is attached as producer '{self.id}' with epoch '{self.epoch}'."
            )
        if not 0 <= stamp.first_sequence <= SEQUENCE_MAX:
            raise ArgumentError(
                f"The producer sequence number {stamp.first_sequence} is invalid: "
                f"0 to {SEQUENCE_MAX} are allowed."
            )
        if stamp.last_sequence != (stamp.first_sequence + batch.count - 1) % _CYCLE:
            raise ArgumentError(
                f"The batch holds {batch.count} events, but its producer sequence numbers run "
                f"from {stamp.first_sequence} to {stamp.last_sequence}."
            )
        return stamp


class _PendingBatch:
    """An append on its way to the disk, and the duplicates of it that came meanwhile."""

    __slots__ = ("duplicates",)

    def __init__(self) -> None:
        self.duplicates: list[AppendDone] = []


class IdempotentProducers:
    """The idempotent producers of one partition."""

    def __init__(self, log: PartitionLog, append: Append, producer_ids: Callable[[], int]) -> None:
        self._log = log
        self._append = append
        self._producer_ids = producer_ids
        self._links: dict[int, ProducerLink] = {}
        self._in_flight: dict[int, deque[_PendingBatch]] = {}
        # Producers one of whose appends failed, and its first number: the log may still name it
        # as published, so nothing is taken for a duplicate until that number was stored after
        # all. The log forgets producers at the same count.
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
        """None means "the service chooses". A link of the same id with the same or a lower epoch
        is ended with ProducerEpochStolen; a higher one refuses the new link with it.

        A producer that states a number behind the last one published in its epoch is refused with
        OutOfOrderSequence: it does not know what it has published, and its next events would be
        taken for duplicates or stored twice. One that left a publication in doubt leaves the
        number out and learns it from the answer."""
        _check_range("producer id", producer_id, 0, PRODUCER_ID_MAX)
        _check_range("producer epoch", epoch, 0, EPOCH_MAX)
        _check_range("producer sequence number", sequence, 0, SEQUENCE_MAX)
        if producer_id is None:
            producer_id = self._producer_ids()
        published = self._log.producer(producer_id)
        current = self._links.get(producer_id)
        epoch = _chosen_epoch(producer_id, epoch, published, current)
        continues = published is not None and (
            published.epoch == epoch or sequence in (None, published.last_sequence)
        )
        if published is not None and continues:
            self._check_not_behind(published, sequence)
            start = published.last_sequence
        else:
            start = sequence or 0
            self._lost.pop(producer_id, None)  # a new epoch that counts anew
        link = ProducerLink(
            self,
            producer_id=producer_id,
            epoch=epoch,
            sequence=start,
            continues=continues,
            on_end=on_end,
        )
        self._links[producer_id] = link
        if current is not None:
            current.end(
                ProducerEpochStolen(
                    f"A new producer '{producer_id}' with epoch '{epoch}' is created hence the "
                    f"current producer with epoch '{current.epoch}' is getting disconnected."
                )
            )
        return link

    def _check_not_behind(self, published: ProducerStamp, sequence: int | None) -> None:
        # After a failed append the log may name a number that was never stored.
        if sequence is None or sequence == published.last_sequence or self.has_lost(published.id):
            return
        if check_sequence(sequence, sequence, published.last_sequence) is SequenceCheck.DUPLICATE:
            raise OutOfOrderSequence(
                f"The producer '{published.id}' with epoch '{published.epoch}' states "
                f"{sequence} as its last sequence number, but {published.last_sequence} was "
                "published: state that number, none, or a higher epoch."
            )

    def remove_link(self, link: ProducerLink) -> None:
        if self._links.get(link.id) is link:
            del self._links[link.id]

    def last_stamp(self, producer_id: int) -> ProducerStamp | None:
        return self._log.producer(producer_id)

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
        entry = _PendingBatch()

        def finished(outcome: Receipt | PenstockError) -> None:
            self._remove_pending(link.id, entry)
            if isinstance(outcome, PenstockError):
                self._mark_lost(link.id, stamp.first_sequence)
            else:
                link.sequence = stamp.last_sequence
            done(outcome)
            for duplicate_done in entry.duplicates:
                duplicate_done(outcome if isinstance(outcome, PenstockError) else ALREADY_STORED)

        self._append(batch, size_bytes, finished, link)
        if self._lost.get(link.id) == stamp.first_sequence:
            del self._lost[link.id]
        self._in_flight.setdefault(link.id, deque()).append(entry)

    def acknowledge(self, producer_id: int, done: AppendDone) -> None:
        """A duplicate waits for the newest append under way: its first copy is no later."""
        in_flight = self._in_flight.get(producer_id)
        if in_flight:
            in_flight[-1].duplicates.append(done)
        else:
            done(ALREADY_STORED)

    def _remove_pending(self, producer_id: int, entry: _PendingBatch) -> None:
        in_flight = self._in_flight[producer_id]
        in_flight.remove(entry)  # the first one: the log finishes appends in their order
        if not in_flight:
            del self._in_flight[producer_id]

    def _mark_lost(self, producer_id: int, first_sequence: int) -> None:
        self._lost.setdefault(producer_id, first_sequence)  # appends fail in order: the earliest
        if len(self._lost) > limits.PRODUCERS_PER_PARTITION_MAX:
            self._lost.popitem(last=False)


def _chosen_epoch(
    producer_id: int,
    epoch: int | None,
    published: ProducerStamp | None,
    current: ProducerLink | None,
) -> int:
    known = max(
        -1 if published is None else published.epoch, -1 if current is None else current.epoch
    )
    if epoch is None:
        # One more than the last, so that the last owner cannot come back under its old epoch.
        return min(known + 1, EPOCH_MAX)
    if epoch < known:
        raise ProducerEpochStolen(
            f"The producer '{producer_id}' with epoch '{epoch}' cannot be created: one with the "
            f"higher epoch '{known}' has published to this partition or is attached to it."
        )
    return epoch


def _check_range(what: str, value: int | None, least: int, most: int) -> None:
    if value is not None and not least <= value <= most:
        raise ArgumentOutOfRange(f"The {what} {value} is invalid: {least} to {most} are allowed.")
