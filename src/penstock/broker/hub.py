"""One event hub at work: its partitions, who publishes to them and who reads them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from penstock.broker import error_messages
from penstock.broker.accounts import Account
from penstock.broker.counters import HubCounters
from penstock.broker.idempotent_producers import IdempotentProducers, ProducerLink
from penstock.broker.reader import OnEnd, OnReady, Reader
from penstock.broker.reader_registry import ReaderIdentity, ReaderRegistry
from penstock.broker.senders import SenderLink, SenderRegistry
from penstock.broker.throttle import Throttle
from penstock.catalog.api import Catalog
from penstock.kernels import count_metered_events
from penstock.log.api import AppendDone, LogStore, PartitionLog, PartitionStatus
from penstock.model import limits, slow_operations
from penstock.model.clock import Clock
from penstock.model.entities import Hub, HubStatus, Namespace
from penstock.model.errors import ArgumentError, LogFailed, PenstockError, ServerBusy
from penstock.model.events import EventBatch, Receipt
from penstock.model.metrics import FAST_MS
from penstock.model.names import CAPTURE_GROUP, GroupName, HubName, NamespaceName, fold_name
from penstock.model.partitioner import RoundRobin, partition_for_key
from penstock.model.positions import Position

_SENDING_STOPS = (HubStatus.DISABLED, HubStatus.SEND_DISABLED)
_RECEIVING_STOPS = (HubStatus.DISABLED, HubStatus.RECEIVE_DISABLED)

# Long enough that a dead partition costs nothing, short enough that one whose disk has room again
# is back before its neighbours notice.
_PASSED_OVER_MS = 1000

_STEP_BYTES = limits.USAGE_STEP_BYTES

Refusal = Callable[[], PenstockError]


class ReaderView(msgspec.Struct, frozen=True):
    """A reader as operators see it: who reads what, and how far behind."""

    namespace: NamespaceName
    hub: HubName
    group: GroupName
    partition: int
    name: str | None
    epoch: int | None
    sequence: int
    lag_events: int


class _PartitionRuntime:
    """One partition's log with everybody who is attached to it."""

    __slots__ = ("index", "log", "ownerships", "producers", "throttle")

    def __init__(self, index: int, log: PartitionLog, throttle: Throttle) -> None:
        self.index = index
        self.log = log
        self.throttle = throttle
        self.ownerships: dict[str, ReaderRegistry[Reader]] = {}  # by the group's key
        self.producers: IdempotentProducers | None = None  # made for the first idempotent producer

    def readers(self) -> list[Reader]:
        return [
            reader for ownership in self.ownerships.values() for _, reader in ownership.readers()
        ]

    def producer_links(self) -> list[ProducerLink]:
        return [] if self.producers is None else self.producers.links()


class HubRuntime:
    """Lives as long as its entity; made by `Broker.hub`. `entity` and `namespace` are as the
    catalog has them now."""

    def __init__(
        self,
        namespace: Namespace,
        entity: Hub,
        *,
        catalog: Catalog,
        logs: LogStore,
        clock: Clock,
        account: Account,
        producer_ids: Callable[[], int],
    ) -> None:
        self.namespace = namespace
        self.entity = entity
        self.partition_count = entity.partition_count
        self.partition_ids = tuple(str(index) for index in range(entity.partition_count))
        self._catalog = catalog
        self._clock = clock
        self._now_ms = clock.now_ms
        self._finish = HubRuntime._on_append_done  # not bound: to bind it each time costs more
        self._producer_ids = producer_ids
        self._account = account
        self._meter = account.meter
        self.counters = HubCounters()
        self._fast_latencies = self.counters.publish_latency.fast
        self._meter.follow(self.counters)
        self._deleted = False
        self._indexes = {text: index for index, text in enumerate(self.partition_ids)}
        self._partitions = [
            _PartitionRuntime(
                index,
                logs.partition(entity.id, index),
                Throttle(_partition_units(account.throttle), parent=account.throttle),
            )
            for index in range(entity.partition_count)
        ]
        self._round_robin = RoundRobin(self.partition_count, self._is_passed_over)
        self._passed_over: dict[int, int] = {}  # failed partition -> monotonic time to try it again
        self._senders = SenderRegistry(catalog, self._forget_sender)
        self._send_refusal: Refusal | None = None
        self._receive_refusal: Refusal | None = None
        self._set_refusals()

    # --- What it is -----------------------------------------------------------------------------

    def partition_index(self, text: str) -> int:
        """The partition a client names, exactly as in `partition_ids`; else ArgumentOutOfRange."""
        index = self._indexes.get(text)
        if index is None:
            raise error_messages.partition_out_of_range_error(text, self.partition_count)
        return index

    def status(self, index: int) -> PartitionStatus:
        """The partition's committed state; ArgumentOutOfRange if there is no such partition."""
        return self._partition(index).log.status()

    def log(self, index: int) -> PartitionLog:
        """For whoever looks into the log without being a reader of it."""
        return self._partition(index).log

    def enqueued_ms(self, index: int, sequence: int) -> int | None:
        """When that event was enqueued, if memory has it. Never blocks."""
        batches = self._partition(index).log.read_cached(sequence)
        return batches[0].enqueued_ms if batches else None

    def read_enqueued_ms(self, index: int, sequence: int) -> int | None:
        """The same from the disk, or of the oldest event if that one is gone: any thread."""
        batches = self._partition(index).log.read(sequence, bytes_max=1)
        return batches[0].enqueued_ms if batches else None

    def group(self, name: str) -> GroupName:
        """The consumer group's name as it was given at creation, or NotFound. A hub that is
        captured has one more, which nobody made."""
        if fold_name(name) == fold_name(CAPTURE_GROUP) and self._is_captured and not self._deleted:
            return CAPTURE_GROUP
        group = self._catalog.group(self.entity.namespace, self.entity.name, name)
        if self._deleted or group is None:
            raise error_messages.group_not_found_error(
                error_messages.authority(self.namespace), self.entity.name, name
            )
        return group.name

    @property
    def _is_captured(self) -> bool:
        return bool(self.entity.metadata.get("captureRuns"))

    def readers(self) -> list[ReaderView]:
        return [
            ReaderView(
                namespace=self.entity.namespace,
                hub=self.entity.name,
                group=reader.group,
                partition=reader.partition,
                name=reader.identity.name,
                epoch=reader.identity.epoch,
                sequence=reader.sequence,
                lag_events=reader.lag_events,
            )
            for partition in self._partitions
            for reader in partition.readers()
        ]

    # --- Publishing -----------------------------------------------------------------------------

    def publish(
        self,
        batch: EventBatch,
        *,
        size_bytes: int,
        partition: int | None,
        done: AppendDone,
        publisher: str | None = None,
        sender: object = None,
    ) -> None:
        """To the partition that is named, else by the batch's partition key, else in turn.

        `size_bytes` is the publication as it came, for the throttle; `publisher` who sends it, if
        it came by a publisher's address; `sender` who shares the units alike with other senders.
        Raises NotFound once the hub is deleted, EntityDisabled, PublisherRevoked, ArgumentError,
        ArgumentOutOfRange or ServerBusy, and then `done` is not called; otherwise it is, after
        this has returned.
        """
        if publisher is not None:
            self.check_publisher(publisher)
        done = partial(self._finish, self, batch, size_bytes, done)
        if partition is None:
            partition_key = batch.partition_key
            if partition_key is None:
                self._publish_in_turn(batch, size_bytes, done, sender)
                return
            _check_partition_key(partition_key)
            partition = partition_for_key(partition_key, self.partition_count)
        elif not 0 <= partition < self.partition_count:
            raise error_messages.partition_out_of_range_error(str(partition), self.partition_count)
        self._append(self._partitions[partition], batch, size_bytes, done, sender)

    def open_sender(self, *, on_end: OnEnd, publisher: str | None = None) -> SenderLink:
        """Register a plain sender: `on_end` gets NotFound when the hub is deleted, EntityDisabled
        or EntityUpdated when it changes, PublisherRevoked when its publisher is revoked. Raises
        NotFound, EntityDisabled or PublisherRevoked."""
        if publisher is not None:
            self.check_publisher(publisher)
        if self._send_refusal is not None:
            raise self._send_refusal()
        return self._senders.open(on_end, publisher)

    def is_revoked(self, publisher: str) -> bool:
        return self._senders.is_revoked(self.entity, publisher)

    def check_publisher(self, publisher: str) -> None:
        """Raises PublisherRevoked."""
        self._senders.check_publisher(self.entity, publisher)

    def open_producer(
        self,
        *,
        partition: int,
        producer_id: int | None,
        epoch: int | None,
        sequence: int | None,
        on_end: OnEnd,
    ) -> ProducerLink:
        """Attach an idempotent producer (protocol.md 4.7); None lets the service choose. Raises
        NotFound, EntityDisabled, ArgumentOutOfRange, ProducerEpochStolen."""
        if self._send_refusal is not None:
            raise self._send_refusal()
        home = self._partition(partition)
        if home.producers is None:

            def append(
                batch: EventBatch, size_bytes: int, done: AppendDone, link: ProducerLink
            ) -> None:
                counted = partial(self._finish, self, batch, size_bytes, done)
                self._append(home, batch, size_bytes, counted, link)

            home.producers = IdempotentProducers(home.log, append, self._producer_ids)
        return home.producers.attach(
            producer_id=producer_id, epoch=epoch, sequence=sequence, on_end=on_end
        )

    def _forget_sender(self, link: SenderLink) -> None:
        self._account.throttle.forget(link)
        for partition in self._partitions:
            partition.throttle.forget(link)

    def _publish_in_turn(
        self, batch: EventBatch, size_bytes: int, done: AppendDone, sender: object
    ) -> None:
        partition = self._partitions[self._round_robin.next()]
        done = self._publish_to_other_partition(partition, batch, done, self.partition_count - 1)
        self._append(partition, batch, size_bytes, done, sender)

    def _publish_to_other_partition(
        self, partition: _PartitionRuntime, batch: EventBatch, done: AppendDone, others: int
    ) -> AppendDone:
        """Nobody cares which partition it is, so one whose log fails is passed over for a while
        and its batch goes to another, each of them tried once."""

        def finished(outcome: Receipt | PenstockError) -> None:
            if not isinstance(outcome, LogFailed):
                done(outcome)
                return
            self._passed_over[partition.index] = self._clock.monotonic_ms() + _PASSED_OVER_MS
            other = self._partitions[self._round_robin.next()]
            if others == 0 or other.index in self._passed_over:
                done(outcome)
                return
            again = self._publish_to_other_partition(other, batch, done, others - 1)
            # Not by way of the throttle: it was metered when it came.
            other.log.append(batch, now_ms=self._clock.now_ms(), done=again)

        return finished

    def _append(
        self,
        partition: _PartitionRuntime,
        batch: EventBatch,
        size_bytes: int,
        done: AppendDone,
        sender: object,
    ) -> None:
        if self._send_refusal is not None:
            raise self._send_refusal()
        if not 0 < batch.count <= limits.BATCH_EVENTS_MAX:
            raise ArgumentError(
                f"A publication of {batch.count} events is invalid: "
                f"1 to {limits.BATCH_EVENTS_MAX} are allowed."
            )
        throttle = partition.throttle
        if throttle.is_enforced:
            try:
                throttle.admit(size_bytes, batch.count, self._clock.monotonic_ms(), sender)
            except ServerBusy:
                self.counters.throttled_requests += 1
                raise
        partition.log.append(batch, now_ms=self._now_ms(), done=done)

    def _on_append_done(
        self,
        batch: EventBatch,
        size_bytes: int,
        done: AppendDone,
        outcome: Receipt | PenstockError,
    ) -> None:
        """`done`, and the numbers for metrics and the ledger. Every publication comes by here: no
        call is made that is not needed each time."""
        counters = self.counters
        if type(outcome) is not Receipt:
            counters.server_errors += 1
            done(outcome)
            return
        meter, now_ms = self._meter, self._now_ms()
        if now_ms // 1000 != meter.second or not meter.is_changed:
            meter.pass_to(now_ms)  # first: what came before belongs to the second that is over
            meter.change()
        counters.incoming_messages += batch.count
        counters.incoming_bytes += size_bytes
        if size_bytes > _STEP_BYTES:
            counters.incoming_steps += (
                count_metered_events(batch.sections, _STEP_BYTES) - batch.count
            )
        latency_ms = now_ms - outcome.enqueued_ms
        if 0 <= latency_ms < FAST_MS:
            self._fast_latencies[latency_ms] += 1
        else:
            counters.publish_latency.observe(latency_ms)
            entity = self.entity
            slow_operations.warn_if_slow(
                "commit",
                latency_ms,
                namespace=entity.namespace,
                hub=entity.name,
                events=batch.count,
                bytes=size_bytes,
            )
        done(outcome)

    def _is_passed_over(self, index: int) -> bool:
        until_ms = self._passed_over.get(index)
        if until_ms is None:
            return False
        if self._clock.monotonic_ms() < until_ms:
            return True
        del self._passed_over[index]
        return False

    # --- Reading --------------------------------------------------------------------------------

    def open_reader(
        self,
        *,
        group: str,
        partition: int,
        position: Position,
        epoch: int | None,
        name: str | None,
        on_end: OnEnd,
        on_ready: OnReady,
        is_metered: bool = True,
    ) -> Reader:
        """Take a reader's place (protocol.md 5.6). Whoever loses its own to it hears so, through
        its `on_end`, before this returns. LATEST means the end as it is now. Raises NotFound,
        EntityDisabled, ArgumentOutOfRange, ArgumentError, QuotaExceeded, LinkStolen. Not metered
        are the service's own reads for Capture: neither slowed nor counted."""
        if self._receive_refusal is not None:
            raise self._receive_refusal()
        group_name = self.group(group)
        home = self._partition(partition)
        identity = _checked_identity(name, epoch)
        reader = Reader(
            home.log,
            position,
            group=group_name,
            partition=partition,
            identity=identity,
            on_end=on_end,
            on_ready=on_ready,
            on_close=self._reader_closed,
            egress=self._account.egress if is_metered else None,
        )
        ownership = home.ownerships.setdefault(fold_name(group_name), ReaderRegistry())
        for displaced in ownership.admit(identity, reader).displaced:
            displaced.reader.end(displaced.error)
        return reader

    def _reader_closed(self, reader: Reader) -> None:
        ownerships = self._partitions[reader.partition].ownerships
        ownership = ownerships.get(fold_name(reader.group))
        if ownership is not None:
            ownership.release(reader)
            if not ownership:
                del ownerships[fold_name(reader.group)]

    # --- Changes of the entity (called by Broker) -----------------------------------------------

    def update_entity(self, namespace: Namespace, entity: Hub) -> None:
        """The catalog has a new version of this hub, or of what is above or below it. With
        another partition count this runtime is done for; the next one is made for the new."""
        old = self.entity
        self.namespace = namespace
        self.entity = entity
        for partition in self._partitions:
            partition.throttle.units = _partition_units(partition.throttle.parent)
        if entity.status is not old.status or entity.partition_count != old.partition_count:
            self._set_refusals()
            self._end_senders(self._send_refusal or error_messages.entity_updated_error)
            self._end_readers(self._receive_refusal or error_messages.entity_updated_error)
        self._end_readers_of_gone_groups()
        self._senders.end_revoked(entity)

    def end_all(self) -> None:
        """The hub is gone: everybody attached hears so, and nobody attaches again."""
        self._deleted = True
        self._meter.leave(self.counters)
        self._set_refusals()
        self._end_senders(self._not_found)
        self._end_readers(self._not_found)

    def failed_partitions(self) -> list[tuple[int, str]]:
        """Partitions that take nothing any more, and why."""
        return [
            (partition.index, failed)
            for partition in self._partitions
            if (failed := partition.log.status().failed) is not None
        ]

    def _set_refusals(self) -> None:
        if self._deleted:
            self._send_refusal = self._receive_refusal = self._not_found
            return
        if self.entity.partition_count != self.partition_count:
            self._send_refusal = self._receive_refusal = error_messages.entity_updated_error
            return
        status = self.entity.status
        self._send_refusal = self._sending_disabled if status in _SENDING_STOPS else None
        self._receive_refusal = self._receiving_disabled if status in _RECEIVING_STOPS else None

    def _not_found(self) -> PenstockError:
        return error_messages.hub_not_found_error(
            error_messages.authority(self.namespace), self.entity.name
        )

    def _sending_disabled(self) -> PenstockError:
        return error_messages.entity_disabled_error(self.entity, "sending")

    def _receiving_disabled(self) -> PenstockError:
        return error_messages.entity_disabled_error(self.entity, "receiving")

    def _end_senders(self, why: Refusal) -> None:
        for partition in self._partitions:
            for link in partition.producer_links():
                link.end(why())
        self._senders.end_all(why)

    def _end_readers(self, why: Refusal) -> None:
        for partition in self._partitions:
            for reader in partition.readers():
                reader.end(why())

    def _end_readers_of_gone_groups(self) -> None:
        groups = {
            fold_name(group.name)
            for group in self._catalog.groups(self.entity.namespace, self.entity.name)
        }
        if self._is_captured:
            groups.add(fold_name(CAPTURE_GROUP))
        for partition in self._partitions:
            for reader in partition.readers():
                if fold_name(reader.group) not in groups:
                    reader.end(
                        error_messages.group_not_found_error(
                            error_messages.authority(self.namespace), self.entity.name, reader.group
                        )
                    )

    def _partition(self, index: int) -> _PartitionRuntime:
        if not 0 <= index < self.partition_count:
            raise error_messages.partition_out_of_range_error(str(index), self.partition_count)
        return self._partitions[index]


def _partition_units(namespace: Throttle | None) -> int | None:
    """A partition takes at most one unit's worth, where units are enforced at all."""
    return None if namespace is None or namespace.units is None else 1


def _check_partition_key(partition_key: str) -> None:
    if len(partition_key) > limits.PARTITION_KEY_MAX:
        raise ArgumentError(
            f"The partition key has {len(partition_key)} characters: "
            f"at most {limits.PARTITION_KEY_MAX} are allowed."
        )


def _checked_identity(name: str | None, epoch: int | None) -> ReaderIdentity:
    if epoch is not None and epoch < 0:
        raise ArgumentError(f"The receiver epoch {epoch} is invalid: it must not be negative.")
    if name is not None and len(name) > limits.RECEIVER_NAME_MAX:
        raise ArgumentError(
            f"The receiver name has {len(name)} characters: "
            f"at most {limits.RECEIVER_NAME_MAX} are allowed."
        )
    return ReaderIdentity(name, epoch)
