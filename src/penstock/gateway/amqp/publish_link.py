"""Links on which a client publishes (protocol.md 4)."""

from __future__ import annotations

from functools import partial

from penstock.amqp.events import TransferOversized, TransfersReceived
from penstock.amqp.performatives import Accepted, Rejected
from penstock.amqp.serial import serial_add, serial_distance
from penstock.broker import error_messages
from penstock.broker.hub import HubRuntime, SenderLink
from penstock.broker.idempotent_producers import ProducerLink
from penstock.gateway.amqp.links import EntityLink, EntityLinkHandler
from penstock.kernels import (
    KernelError,
    Publication,
    RefusedEvent,
    split_batch,
    split_singles,
)
from penstock.model import limits
from penstock.model.errors import (
    ArgumentError,
    MessageTooLarge,
    NotAllowed,
    NotImplementedHere,
    PenstockError,
)
from penstock.model.events import EventBatch, ProducerStamp, Receipt

MESSAGE_FORMAT = 0
BATCH_FORMAT = 0x80013700
IDEMPOTENT_NEEDS_PARTITION = (
    "An idempotent producer publishes on a link to a partition, not on one to the event hub or to "
    "a publisher: attach to 'HUB/Partitions/ID'."
)
_ACCEPTED = Accepted()


class PublishLink(EntityLinkHandler):
    """Transfers in, publications to the broker, dispositions back once they are on disk."""

    def __init__(self, entity: EntityLink, hub: HubRuntime, partition: int | None) -> None:
        super().__init__(entity)
        self.hub = hub
        self.producer: ProducerLink | None = None  # one of these two, set by attach
        self.sender: SenderLink | None = None
        self.is_publishing_refused = False  # an idempotent producer's link to the whole hub
        self._partition = partition
        # First and last delivery id, and outcome, of publications that are not yet acknowledged.
        self._settled: list[tuple[int, int, Accepted | Rejected]] = []

    def start(self) -> None:
        self.link.grant(limits.SENDER_CREDIT)  # E10

    def on_transfers(self, event: TransfersReceived) -> None:
        if self.is_publishing_refused:
            self._refuse_all(event, NotAllowed(IDEMPOTENT_NEEDS_PARTITION))
        elif event.message_format == BATCH_FORMAT:
            self._on_batches(event)
        elif event.message_format == MESSAGE_FORMAT:
            self._on_singles(event)
        else:
            text = (
                f"The message format 0x{event.message_format:08x} is not supported: "
                f"0 and 0x{BATCH_FORMAT:08x} are."
            )
            self._refuse_all(event, NotImplementedHere(text))
        # Replenish credit now, not after the fsync: a pipelining sender would stall on every flush.
        # The bytes that wait for the disk are bounded by `backpressure`.
        self.link.replenish(limits.SENDER_CREDIT)

    def on_oversized(self, event: TransferOversized) -> None:
        """A rejection, not a detach (protocol.md 4.3)."""
        error = MessageTooLarge(
            f"The received message (delivery-id:{event.delivery_id}, size:{event.size} bytes) "
            f"exceeds the limit ({self.link.max_message_size} bytes) currently allowed on the link."
        )
        self._refuse(event.delivery_id, event.delivery_id, error, event.settled)

    def _refuse_all(self, event: TransfersReceived, error: PenstockError) -> None:
        last = serial_add(event.first_delivery_id, event.count - 1)
        self._refuse(event.first_delivery_id, last, error, event.settled)

    def _on_batches(self, event: TransfersReceived) -> None:
        bounds, delivery = event.bounds, event.first_delivery_id
        for i in range(0, len(bounds), 2):
            try:
                publication = split_batch(
                    event.data, bounds[i], bounds[i + 1], publisher=self.address.publisher
                )
            except KernelError as error:
                self._refuse(delivery, delivery, error, event.settled)
            else:
                size = bounds[i + 1] - bounds[i]
                self._publish(publication, delivery, delivery, size, event.settled)
            delivery = serial_add(delivery, 1)

    def _on_singles(self, event: TransfersReceived) -> None:
        bounds, delivery, index = event.bounds, event.first_delivery_id, 0
        for part in split_singles(event.data, bounds, publisher=self.address.publisher):
            last = serial_add(delivery, part.count - 1)
            if isinstance(part, RefusedEvent):
                self._refuse(delivery, last, part.error, event.settled)
            else:
                # Ends minus starts, each summed over a slice: no Python step per event.
                end = index + 2 * part.count
                size = sum(bounds[index + 1 : end : 2]) - sum(bounds[index:end:2])
                self._publish(part, delivery, last, size, event.settled)
            index += 2 * part.count
            delivery = serial_add(last, 1)

    def _publish(
        self, publication: Publication, first: int, last: int, size: int, settled: bool
    ) -> None:
        done = partial(self._on_append_done, first, last, size, settled)
        host = self.host
        host.backpressure.hold(size)
        host.events_in += publication.count
        try:
            stamp = None if self.producer is None else _producer_stamp(publication)
            batch = EventBatch(
                publication.sections, publication.count, publication.partition_key, stamp
            )
            if self.producer is not None:
                self.producer.publish(batch, size_bytes=size, done=done)
            else:
                self.hub.publish(
                    batch,
                    size_bytes=size,
                    partition=self._partition,
                    done=done,
                    publisher=self.address.publisher,
                    sender=self.sender,
                )
            host.slot.budget.pay(publication.count, size)
        except PenstockError as error:
            done(error)
        except BaseException:
            host.backpressure.release(size)  # `done` will not be called
            raise

    def _on_append_done(
        self, first: int, last: int, size: int, settled: bool, result: Receipt | PenstockError
    ) -> None:
        """The batch is on disk, or will not be. The acknowledgement is written with those of the
        whole commit round."""
        self.host.backpressure.release(size)
        if isinstance(result, PenstockError):
            self._refuse(first, last, result, settled)
            return
        if not settled:
            self._settled.append((first, last, _ACCEPTED))
        self.host.mark_dirty(self)

    def _refuse(
        self, first: int, last: int, error: PenstockError | KernelError, settled: bool
    ) -> None:
        if isinstance(error, KernelError):
            error = error_messages.translate_kernel_error(error)
        if error.http_status < 500:
            self.hub.counters.user_errors += 1
        self.host.log_refusal("publish", error, self.path)
        if not settled:
            rejected = Rejected(error=self.host.wire_error(error, self.tracker))
            self._settled.append((first, last, rejected))
        self.host.mark_dirty(self)

    def flush(self) -> None:
        """One disposition per contiguous range, then credit (E11)."""
        if not self.link.is_attached:
            return
        for first, last, outcome in _join_ranges(self._settled):
            self.link.settle(first, last, outcome)
        self._settled.clear()
        self.link.replenish(limits.SENDER_CREDIT)

    def close(self) -> None:
        if self.producer is not None:
            self.producer.close()
        if self.sender is not None:
            self.sender.close()


def _join_ranges(
    settled: list[tuple[int, int, Accepted | Rejected]],
) -> list[tuple[int, int, Accepted | Rejected]]:
    """Join contiguous delivery ids with equal outcomes. Partitions commit in any order, and ids
    wrap at 2**32."""
    if len(settled) < 2:
        return settled
    origin = settled[0][0]
    ordered = sorted(settled, key=lambda entry: serial_distance(entry[0], origin))
    ranges = ordered[:1]
    for first, last, outcome in ordered[1:]:
        start, end, previous = ranges[-1]
        if first == serial_add(end, 1) and (outcome is previous or outcome == previous):
            ranges[-1] = (start, last, outcome)
        else:
            ranges.append((first, last, outcome))
    return ranges


def _producer_stamp(publication: Publication) -> ProducerStamp:
    if publication.producer is None:
        raise ArgumentError(
            "Events on an idempotent producer's link need the three com.microsoft:producer-* "
            "annotations; at least one event has none."
        )
    return ProducerStamp(*publication.producer)
