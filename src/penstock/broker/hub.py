"""One open hub: publish, open readers and senders, follow changes of the catalog."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from penstock.broker import error_messages
from penstock.broker.accounts import Account
from penstock.broker.idempotent_producers import IdempotentProducers, ProducerLink, ignore_end
from penstock.broker.reader import OnEnd, OnReady, Reader
from penstock.broker.reader_registry import register_reader
from penstock.broker.round_queue import RoundQueue
from penstock.broker.throttle import Throttle
from penstock.broker.usage_meter import HubCounters
from penstock.catalog.api import Catalog
from penstock.kernels import count_metered_events
from penstock.log.api import AppendDone, LogStore, PartitionLog, PartitionStatus
from penstock.model import limits, slow_operations
from penstock.model.clock import Clock
from penstock.model.entities import Hub, HubStatus, Namespace
from penstock.model.errors import ArgumentError, LogFailed, NotFound, PenstockError, ServerBusy
from penstock.model.events import EventBatch, Receipt
from penstock.model.metrics import FAST_MS
from penstock.model.names import CAPTURE_GROUP, GroupName, HubName, NamespaceName, fold_name
from penstock.model.partitioner import RoundRobin, partition_for_key
from penstock.model.positions import Position

_SEND_DISABLED = (HubStatus.DISABLED, HubStatus.SEND_DISABLED)
_RECEIVE_DISABLED = (HubStatus.DISABLED, HubStatus.RECEIVE_DISABLED)

# How long round robin avoids a partition after its log failed: long enough that a failed partition
# costs little, short enough that it returns soon after its disk has space again.
_AVOIDED_MS = 1000

_STEP_BYTES = limits.USAGE_STEP_BYTES

Refusal = Callable[[], PenstockError]


class ReaderView(msgspec.Struct, frozen=True):
    """A reader as operators see it: group, partition, position and lag."""

    namespace: NamespaceName
    hub: HubName
    group: GroupName
    partition: int
    name: str | None
    epoch: int | None
    sequence: int
    lag_events: int


class _PartitionRuntime:
    """The log of one partition with the readers and idempotent producers attached to it."""

    __slots__ = ("groups", "index", "log", "producers", "throttle")

    def __init__(self, index: int, log: PartitionLog, throttle: Throttle) -> None:
        self.index = index
        self.log = log
        self.throttle = throttle
        # By folded group name (see register_reader); an empty list is removed.
        self.groups: dict[str, list[Reader]] = {}
        # Created for the first idempotent producer.
        self.producers: IdempotentProducers | None = None

    def readers(self) -> list[Reader]:
        return [reader for readers in self.groups.values() for reader in readers]


@dataclass(eq=False, slots=True)
class SenderLink:
    """Registration of a sender that is not idempotent; `on_end` gets the error when the hub ends
    the link."""

    _on_end: OnEnd
    _on_close: Callable[[SenderLink], None]
    publisher: str | None

    def close(self) -> None:
        """Remove the registration, so that the hub no longer refers to the link. Idempotent."""
        self._on_end = ignore_end
        self._on_close(self)

    def end(self, error: PenstockError) -> None:
        """Close the registration, then notify the owner of the link."""
        on_end = self._on_end
        self.close()
        on_end(error)


class HubRuntime:
    """One hub at work, created by `Broker.hub`. It lives as long as its entity, or until its
    partition count changes: `Broker` then creates another.

    Everything runs on the thread of the broker's owner, the event loop, and does not block; only
    `log` may be called on any thread. So no field needs a lock, and callbacks (`done`, `on_end`,
    `on_ready`) run on that thread too.
    """

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
        rounds: RoundQueue,
    ) -> None:
        # As the catalog has them now: `update_entity` replaces both together.
        self.namespace = namespace
        self.entity = entity
        # Fixed: partition indexes of open links stay valid while this object is in use.
        self.partition_count = entity.partition_count
        self.partition_ids = tuple(str(index) for index in range(entity.partition_count))
        self._catalog = catalog
        self._clock = clock
        self._now_ms = clock.now_ms
        self._finish = HubRuntime._on_append_done  # unbound: binding it per publication costs more
        self._producer_ids = producer_ids
        self._rounds = rounds
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
        self._round_robin = RoundRobin(self.partition_count, self._is_avoided)
        self._avoided: dict[int, int] = {}  # failed partition -> monotonic time to try it again
        self._senders: set[SenderLink] = set()
        # Why senders and readers are refused, or None. `_set_refusals` derives both from `_deleted`
        # and `entity`; call it after a change of either, before links are ended: a client that
        # attaches again in its `on_end` must be refused already.
        self._send_refusal: Refusal | None = None
        self._receive_refusal: Refusal | None = None
        self._set_refusals()

    # --- Description ----------------------------------------------------------------------------

    def partition_index(self, text: str) -> int:
        """Index of the partition id. Raises ArgumentOutOfRange unless it is in `partition_ids`."""
        index = self._indexes.get(text)
        if index is None:
            raise error_messages.partition_out_of_range_error(text, self.partition_count)
        return index

    def next_sequences(self) -> dict[str, int]:
        """The sequence number that the next event of each partition gets."""
        return {
            text: self.status(index).last_sequence + 1
            for index, text in enumerate(self.partition_ids)
        }

    def status(self, index: int) -> PartitionStatus:
        """The committed state of the partition. Raises ArgumentOutOfRange."""
        return self._partition(index).log.status()

    def log(self, index: int) -> PartitionLog:
        """The log of the partition, for callers that read it without registering a reader."""
        return self._partition(index).log

    def group(self, name: str) -> GroupName:
        """The name of the consumer group as it was created. Raises NotFound. A hub with Capture has
        CAPTURE_GROUP too, which is not in the catalog."""
        is_capture = fold_name(name) == fold_name(CAPTURE_GROUP) and self.entity.has_capture_runs
        if is_capture and not self._deleted:
            return CAPTURE_GROUP
        group = self._catalog.group(self.entity.namespace, self.entity.name, name)
        if self._deleted or group is None:
            raise error_messages.entity_not_found_error(self.namespace, self.entity.name, name)
        return group.name

    def readers(self) -> list[ReaderView]:
        return [
            ReaderView(
                namespace=self.entity.namespace,
                hub=self.entity.name,
                group=reader.group,
                partition=reader.partition,
                name=reader.name,
                epoch=reader.epoch,
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
        """Append the batch to `partition`, else to the partition of its key, else round robin.

        `size_bytes` is the size of the publication as received, for the throttle. `publisher` is
        given if it came to a publisher's address. `sender` identifies the sender that gets a fair
        share of the units. Raises NotFound once the hub is deleted, EntityDisabled,
        PublisherRevoked, ArgumentError, ArgumentOutOfRange or ServerBusy; `done` is then not
        called. Otherwise it is called once, after this has returned.
        """
        if publisher is not None:
            self.check_publisher(publisher)
        done = partial(self._finish, self, batch, size_bytes, partial(self._rounds.complete, done))
        if partition is not None:
            runtime = self._partition(partition)
        elif batch.partition_key is not None:
            if len(batch.partition_key) > limits.PARTITION_KEY_MAX:
                raise ArgumentError(
                    f"The partition key has {len(batch.partition_key)} characters: "
                    f"at most {limits.PARTITION_KEY_MAX} are allowed."
                )
            index = partition_for_key(batch.partition_key, self.partition_count)
            runtime = self._partitions[index]
        else:
            runtime = self._partitions[self._round_robin.next()]
            done = self._publish_to_other_partition(runtime, batch, done, self.partition_count - 1)
        self._append(runtime, batch, size_bytes, done, sender)

    def open_sender(self, *, on_end: OnEnd, publisher: str | None = None) -> SenderLink:
        """Register a sender that is not idempotent. `on_end` gets NotFound when the hub is deleted,
        EntityDisabled or EntityUpdated when it changes, PublisherRevoked when the publisher is
        revoked. Raises NotFound, EntityDisabled or PublisherRevoked."""
        if publisher is not None:
            self.check_publisher(publisher)
        if self._send_refusal is not None:
            raise self._send_refusal()
        link = SenderLink(on_end, self._remove_sender, publisher)
        self._senders.add(link)
        return link

    def is_revoked(self, publisher: str) -> bool:
        """The catalog compares names without case, so another spelling is revoked as well."""
        hub = self.entity
        return self._catalog.revoked_publisher(hub.namespace, hub.name, publisher) is not None

    def check_publisher(self, publisher: str) -> None:
        """Raises PublisherRevoked."""
        if self.is_revoked(publisher):
            raise error_messages.publisher_revoked_error(self.entity, publisher)

    def open_producer(
        self,
        *,
        partition: int,
        producer_id: int | None,
        epoch: int | None,
        sequence: int | None,
        on_end: OnEnd,
    ) -> ProducerLink:
        """Attach an idempotent producer (protocol.md 4.7). None lets the service choose. Raises
        NotFound, EntityDisabled, ArgumentOutOfRange, ProducerEpochStolen."""
        if self._send_refusal is not None:
            raise self._send_refusal()
        runtime = self._partition(partition)
        if runtime.producers is None:
            append = partial(self._append_of_producer, runtime)
            runtime.producers = IdempotentProducers(
                runtime.log, append, self._producer_ids, self._rounds
            )
        return runtime.producers.attach(
            producer_id=producer_id, epoch=epoch, sequence=sequence, on_end=on_end
        )

    def _append_of_producer(
        self,
        partition: _PartitionRuntime,
        batch: EventBatch,
        size_bytes: int,
        done: AppendDone,
        link: ProducerLink,
    ) -> None:
        done = partial(self._finish, self, batch, size_bytes, done)
        self._append(partition, batch, size_bytes, done, link)

    def _remove_sender(self, link: SenderLink) -> None:
        self._senders.discard(link)
        self._account.throttle.forget(link)
        for partition in self._partitions:
            partition.throttle.forget(link)

    def _publish_to_other_partition(
        self, partition: _PartitionRuntime, batch: EventBatch, done: AppendDone, others: int
    ) -> AppendDone:
        """A `done` that, after LogFailed, avoids the partition for a while and appends the batch to
        another one; the client did not choose a partition. Each partition is tried at most once."""

        def on_append_done(outcome: Receipt | PenstockError) -> None:
            if not isinstance(outcome, LogFailed):
                done(outcome)
                return
            self._avoided[partition.index] = self._clock.monotonic_ms() + _AVOIDED_MS
            other = self._partitions[self._round_robin.next()]
            if others == 0 or other.index in self._avoided:
                done(outcome)
                return
            retry_done = self._publish_to_other_partition(other, batch, done, others - 1)
            # Past the throttle, which counted the publication when it came in.
            other.log.append(batch, now_ms=self._clock.now_ms(), done=retry_done)

        return on_append_done

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
        if throttle.units is not None:
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
        """Count the publication for the metrics and the ledger, then call `done`. Hot path: every
        publication comes here, so the common case makes no call that it can avoid."""
        counters = self.counters
        if type(outcome) is not Receipt:
            counters.server_errors += 1
            done(outcome)
            return
        meter, now_ms = self._meter, self._now_ms()
        if now_ms // 1000 != meter.second or not meter.is_changed:
            meter.pass_to(now_ms)  # before counting: earlier counts belong to the last second
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

    def _is_avoided(self, index: int) -> bool:
        until_ms = self._avoided.get(index)
        if until_ms is None:
            return False
        if self._clock.monotonic_ms() < until_ms:
            return True
        del self._avoided[index]
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
        """Register a reader (protocol.md 5.6). Readers that it displaces get LinkStolen in their
        `on_end` before this returns. LATEST is the committed end at this moment. `is_metered` is
        False for the service's own reads for Capture, which are neither slowed nor counted. Raises
        NotFound, EntityDisabled, ArgumentOutOfRange, ArgumentError, QuotaExceeded, LinkStolen."""
        if self._receive_refusal is not None:
            raise self._receive_refusal()
        group_name = self.group(group)
        runtime = self._partition(partition)
        _check_identity(name, epoch)
        reader = Reader(
            runtime.log,
            position,
            group=group_name,
            partition=partition,
            name=name,
            epoch=epoch,
            on_end=on_end,
            on_ready=on_ready,
            on_close=self._release_reader,
            rounds=self._rounds,
            egress=self._account.egress if is_metered else None,
        )
        register_reader(runtime.groups.setdefault(fold_name(group_name), []), reader)
        return reader

    def _release_reader(self, reader: Reader) -> None:
        groups, group = self._partitions[reader.partition].groups, fold_name(reader.group)
        readers = groups.get(group, [])
        if reader in readers:  # not displaced
            readers.remove(reader)
            if not readers:
                del groups[group]

    # --- Changes of the entity (called by Broker) -----------------------------------------------

    def update_entity(self, namespace: Namespace, entity: Hub) -> None:
        """Apply a change of the hub, its namespace, groups or revoked publishers. After a change of
        the partition count every link is ended and refused: `Broker` uses a new HubRuntime."""
        old = self.entity
        self.namespace = namespace
        self.entity = entity
        for partition in self._partitions:
            partition.throttle.set_units(_partition_units(partition.throttle.parent))
        if entity.status is not old.status or entity.partition_count != old.partition_count:
            self._set_refusals()
            self._end_senders(self._send_refusal or error_messages.entity_updated_error)
            self._end_readers(self._receive_refusal or error_messages.entity_updated_error)
        self._end_readers_of_deleted_groups()
        for link in list(self._senders):
            if link.publisher is not None and self.is_revoked(link.publisher):
                link.end(error_messages.publisher_revoked_error(entity, link.publisher))

    def end_all(self) -> None:
        """The hub was deleted: end every link with NotFound and refuse new ones."""
        self._deleted = True
        self._meter.leave(self.counters)
        self._set_refusals()
        self._end_senders(self._not_found_error)
        self._end_readers(self._not_found_error)

    def failed_partitions(self) -> list[tuple[int, str]]:
        """Partitions that no longer accept events, and why."""
        return [
            (partition.index, failed)
            for partition in self._partitions
            if (failed := partition.log.status().failed) is not None
        ]

    def _set_refusals(self) -> None:
        if self._deleted:
            self._send_refusal = self._receive_refusal = self._not_found_error
            return
        if self.entity.partition_count != self.partition_count:
            self._send_refusal = self._receive_refusal = error_messages.entity_updated_error
            return
        self._send_refusal = self._disabled_error(_SEND_DISABLED, "sending")
        self._receive_refusal = self._disabled_error(_RECEIVE_DISABLED, "receiving")

    def _not_found_error(self) -> PenstockError:
        return error_messages.entity_not_found_error(self.namespace, self.entity.name)

    def _disabled_error(self, disabled: tuple[HubStatus, HubStatus], act: str) -> Refusal | None:
        """Why the status of the hub refuses the act, or None."""
        if self.entity.status not in disabled:
            return None
        return partial(error_messages.entity_disabled_error, self.entity, act)

    def _end_senders(self, build_error: Refusal) -> None:
        for partition in self._partitions:
            if partition.producers is not None:
                for link in partition.producers.links():
                    link.end(build_error())
        for sender in list(self._senders):
            sender.end(build_error())

    def _end_readers(self, build_error: Refusal) -> None:
        for partition in self._partitions:
            for reader in partition.readers():
                reader.end(build_error())

    def _end_readers_of_deleted_groups(self) -> None:
        for partition in self._partitions:
            for reader in partition.readers():
                try:
                    self.group(reader.group)
                except NotFound as error:
                    reader.end(error)

    def _partition(self, index: int) -> _PartitionRuntime:
        if not 0 <= index < self.partition_count:
            raise error_messages.partition_out_of_range_error(str(index), self.partition_count)
        return self._partitions[index]


def _partition_units(namespace: Throttle | None) -> int | None:
    """A partition accepts the ingress of one unit at most, where units are enforced."""
    return None if namespace is None or namespace.units is None else 1


def _check_identity(name: str | None, epoch: int | None) -> None:
    if epoch is not None and epoch < 0:
        raise ArgumentError(f"The receiver epoch {epoch} is invalid: it must not be negative.")
    if name is not None and len(name) > limits.RECEIVER_NAME_MAX:
        raise ArgumentError(
            f"The receiver name has {len(name)} characters: "
            f"at most {limits.RECEIVER_NAME_MAX} are allowed."
        )
