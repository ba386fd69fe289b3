"""Random histories of one hub: producers and readers come, go, resend and steal from each other.

A seed is a history, the same on every machine. A failure names it:
`pytest tests/simulation -k "seed and 17"`; more of them: `PENSTOCK_SIMULATION_SEEDS=5000`.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from itertools import count

import pytest

from penstock.broker.broker import Broker
from penstock.broker.idempotent_producers import ALREADY_STORED, ProducerLink
from penstock.broker.reader import FetchResult, Reader, ReadState
from penstock.catalog.api import Catalog
from penstock.log.api import AppendDone, LogHealth, PartitionLog, PartitionStatus, Unsubscribe
from penstock.log.memory import MemoryLogStore
from penstock.model.clock import ManualClock
from penstock.model.entities import ConsumerGroup, Hub, Namespace
from penstock.model.errors import (
    LinkStolen,
    OutOfOrderSequence,
    PenstockError,
    ProducerEpochStolen,
    QuotaExceeded,
    ServerBusy,
)
from penstock.model.events import EventBatch, ProducerStamp, Receipt, StoredBatch
from penstock.model.names import GroupName, HubName, NamespaceName
from penstock.model.partitioner import partition_for_key
from penstock.model.positions import EARLIEST, LATEST, Position, PositionKind

SEEDS = int(os.environ.get("PENSTOCK_SIMULATION_SEEDS", "200"))
STEPS = 200
NAMESPACE = NamespaceName("simulated")
HUB = HubName("events")
HUB_ID = "hub0"
HOUR_MS = 3_600_000
Event = tuple[int, bytes]  # sequence number, message


def section(message: bytes) -> bytes:
    return b"\x00\x53\x75\xa0" + bytes([len(message)]) + message


class ColdLog:
    """A memory partition that keeps only its newest events in memory: the rest needs the disk."""

    def __init__(self, inner: PartitionLog, warm_events: int) -> None:
        self._inner = inner
        self._warm_events = warm_events

    def append(self, batch: EventBatch, *, now_ms: int, done: AppendDone) -> None:
        self._inner.append(batch, now_ms=now_ms, done=done)

    def status(self) -> PartitionStatus:
        return self._inner.status()

    def locate(self, position: Position) -> int:
        return self._inner.locate(position)

    def read_cached(self, sequence: int, *, bytes_max: int = 0) -> list[StoredBatch] | None:
        last = self._inner.status().last_sequence
        if sequence <= last - self._warm_events:
            return None
        return self._inner.read_cached(sequence, bytes_max=bytes_max)

    def read(self, sequence: int, *, bytes_max: int) -> list[StoredBatch]:
        return self._inner.read(sequence, bytes_max=min(bytes_max, 100))

    def subscribe(self, on_commit: Callable[[], None]) -> Unsubscribe:
        return self._inner.subscribe(on_commit)

    def producer(self, producer_id: int) -> ProducerStamp | None:
        return self._inner.producer(producer_id)


class ColdStore:
    """The memory store with cold partitions."""

    def __init__(self, inner: MemoryLogStore, warm_events: int) -> None:
        self._inner = inner
        self._warm_events = warm_events
        self._partitions: dict[tuple[str, int], ColdLog] = {}

    def partition(self, hub_id: str, index: int) -> ColdLog:
        inner = self._inner.partition(hub_id, index)
        return self._partitions.setdefault((hub_id, index), ColdLog(inner, self._warm_events))

    def drop(self, hub_id: str) -> None:
        self._inner.drop(hub_id)

    def enforce_retention(self, hub_id: str, *, retention_ms: int, now_ms: int) -> int:
        return self._inner.enforce_retention(hub_id, retention_ms=retention_ms, now_ms=now_ms)

    def health(self) -> LogHealth:
        return self._inner.health()

    def close(self) -> None:
        self._inner.close()


class SimulatedReader:
    """A link as the gateway has it: pumps when woken, while it has credit."""

    def __init__(self, group: str, partition: int, epoch: int | None) -> None:
        self.group = group
        self.partition = partition
        self.epoch = epoch
        self.ended: list[PenstockError] = []
        self.closed = False
        self.runnable = True
        self.fetching: FetchResult | None = None
        self.taken: list[Event] = []
        self.reader: Reader

    @property
    def alive(self) -> bool:
        return not self.closed and not self.ended

    def on_end(self, error: PenstockError) -> None:
        assert self.alive, "told twice, or told after it had left"
        self.ended.append(error)

    def on_ready(self) -> None:
        assert self.alive, "woken after it had left"
        self.runnable = True

    def pump(self, credit: int, *, fetch_later: bool) -> None:
        """Take up to `credit` events; with `fetch_later` the disk's answer comes another time."""
        if self.fetching is not None:
            self.reader.accept_fetch(self.fetching)
            self.fetching = None
        while credit > 0 and self.alive:
            state = self.reader.state()
            if state is ReadState.AT_END:
                self.runnable = False
                return
            if state is ReadState.NEEDS_DISK:
                result = self.reader.fetch()
                if fetch_later:
                    self.fetching = result
                    return
                self.reader.accept_fetch(result)
                continue
            credit -= self._take_one()

    def _take_one(self) -> int:
        reader = self.reader
        sections, position = reader.batch.sections, reader.position
        size = sections[position + 4]
        self.taken.append((reader.sequence, sections[position + 5 : position + 5 + size]))
        reader.advance(1, position + 5 + size)
        return 1


class IdempotentClient:
    """A producer that numbers its events and may resend, reconnect and lose acknowledgements."""

    def __init__(self, name: str, partition: int) -> None:
        self.name = name
        self.partition = partition
        self.link: ProducerLink | None = None
        self.ended: list[PenstockError] = []
        self.batches: list[tuple[int, int]] = []  # (first number, count), accepted so far
        self.acknowledged: set[int] = set()

    def body(self, number: int) -> bytes:
        return f"{self.name}:{number}".encode()

    @property
    def next_number(self) -> int:
        return self.batches[-1][0] + self.batches[-1][1] if self.batches else 1


class Simulation:
    """One hub, its world, and what must be true of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.wakes: list[Callable[[], None]] = []
        self.partition_count = self.random.randint(2, 4)
        self.retention = self.random.random() < 0.3
        # Some histories crowd one partition with shared readers, some fight over it with epochs.
        self.epochs: list[int | None] = self.random.choice(
            [[*[None] * 20, 0], [None, None, 0, 1, 2], [0, 0, 1]]
        )
        self.catalog = self._catalog()
        store = MemoryLogStore(self.wakes.append)
        self.logs = ColdStore(store, self.random.choice([0, 3, 20, 10_000]))
        self.broker = Broker(self.catalog, self.logs, self.clock, producer_ids=count(100).__next__)
        self.hub = self.broker.hub(NAMESPACE, HUB)
        self.readers: list[SimulatedReader] = []
        self.clients = [
            IdempotentClient(f"i{number}", self.random.randrange(self.partition_count))
            for number in range(3)
        ]
        self.published = count()
        self.acknowledged: dict[tuple[int, int], bytes] = {}  # (partition, sequence) -> body
        self.refused: set[bytes] = set()
        self.offered: set[bytes] = set()

    def _catalog(self) -> Catalog:
        catalog = Catalog()
        units = self.random.choice([None, None, 1, 3])
        catalog.put_namespace(
            Namespace(name=NAMESPACE, created_ms=0, updated_ms=0, throughput_units=units)
        )
        catalog.put_hub(
            Hub(
                id=HUB_ID,
                namespace=NAMESPACE,
                name=HUB,
                partition_count=self.partition_count,
                created_ms=0,
                updated_ms=0,
                retention_hours=1,
            )
        )
        catalog.put_group(
            ConsumerGroup(
                namespace=NAMESPACE, hub=HUB, name=GroupName("second"), created_ms=0, updated_ms=0
            )
        )
        return catalog

    # --- What may happen ------------------------------------------------------------------------

    def step(self) -> None:
        actions: list[tuple[Callable[[], None], int]] = [
            (self.publish, 30),
            (self.commit, 25),
            (self.pump, 30),
            (self.open_reader, 12),
            (self.close_reader, 4),
            (self.send_idempotent, 15),
            (self.resend_idempotent, 6),
            (self.reconnect_idempotent, 3),
            (self.let_time_pass, 8),
        ]
        chosen = self.random.choices([a for a, _ in actions], [weight for _, weight in actions])
        chosen[0]()
        self.check_ownership()

    def publish(self) -> None:
        """A plain publication: to a partition, by key or in turn."""
        number = next(self.published)
        size = self.random.randint(1, 5)
        kind = self.random.choice(["key", "partition", "turn"])
        key = self.random.choice(["a", "b", "key1", "日本語"]) if kind == "key" else None
        partition = self.random.randrange(self.partition_count) if kind == "partition" else None
        lane = key if key is not None else f"p{partition}" if partition is not None else "turn"
        bodies = [f"{lane}:{number}:{index}:{size}".encode() for index in range(size)]
        expected = partition if key is None else partition_for_key(key, self.partition_count)
        self._offer(bodies, key, partition, expected)

    def _offer(
        self, bodies: list[bytes], key: str | None, partition: int | None, expected: int | None
    ) -> None:
        batch = EventBatch(b"".join(map(section, bodies)), len(bodies), key)
        outcomes: list[Receipt | PenstockError] = []

        def done(outcome: Receipt | PenstockError) -> None:
            assert not outcomes, "acknowledged twice"
            outcomes.append(outcome)
            assert isinstance(outcome, Receipt)
            self._acknowledged(outcome, bodies, expected)

        try:
            self.hub.publish(batch, size_bytes=len(batch.sections), partition=partition, done=done)
        except ServerBusy:
            self.refused.update(bodies)
            return
        assert not outcomes, "acknowledged before publish returned"
        self.offered.update(bodies)

    def _acknowledged(self, receipt: Receipt, bodies: list[bytes], partition: int | None) -> None:
        assert receipt.last_sequence - receipt.first_sequence + 1 == len(bodies)
        if partition is None:  # went in turn: where, only reading will tell
            return
        for index, body in enumerate(bodies):
            place = (partition, receipt.first_sequence + index)
            assert place not in self.acknowledged, "two events in one place"
            self.acknowledged[place] = body

    def commit(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            if self.wakes:
                self.wakes.pop(0)()

    def let_time_pass(self) -> None:
        self.clock.advance(self.random.choice([1, 50, 500]))
        if self.retention and self.random.random() < 0.3:
            self.clock.advance(HOUR_MS // 2)
            self.broker.enforce_retention()

    def pump(self) -> None:
        runnable = [reader for reader in self.readers if reader.alive and reader.runnable]
        if runnable:
            reader = self.random.choice(runnable)
            if self.random.random() < 0.1 and reader.fetching is None:
                reader.reader.release_memory()
            reader.pump(self.random.randint(1, 30), fetch_later=self.random.random() < 0.5)

    def open_reader(self) -> None:
        crowded = self.random.random() < 0.6
        partition = 0 if crowded else self.random.randrange(self.partition_count)
        group = self.random.choice(["$Default", "$default"] if crowded else ["$Default", "second"])
        epoch = self.random.choice(self.epochs)
        new = SimulatedReader(group.casefold(), partition, epoch)
        there = self._alive(new.group, partition)
        try:
            new.reader = self.hub.open_reader(
                group=group,
                partition=partition,
                position=self._position(partition),
                epoch=epoch,
                name=self.random.choice([None, "name"]),
                on_end=new.on_end,
                on_ready=new.on_ready,
            )
        except QuotaExceeded:
            assert epoch is None
            assert [reader.epoch for reader in there] == [None] * 5
            return
        except LinkStolen:
            assert len(there) == 1
            assert there[0].epoch is not None
            assert epoch is None or epoch < there[0].epoch
            return
        for old in there:
            assert old.alive == (epoch is None), "an epoch reader takes all places, others none"
            assert all(isinstance(error, LinkStolen) for error in old.ended)
        self.readers.append(new)

    def _position(self, partition: int) -> Position:
        """Any start that exists: what may lie beyond the end is the unit tests' subject."""
        status = self.hub.status(partition)
        positions = [EARLIEST, LATEST, Position(PositionKind.ENQUEUED_TIME, self.clock.now_ms())]
        if status.last_sequence >= 0:
            sequence = self.random.randint(0, status.last_sequence)
            inclusive = self.random.random() < 0.5
            positions.append(Position(PositionKind.SEQUENCE, sequence, inclusive))
            positions.append(Position(PositionKind.OFFSET, status.last_offset, inclusive))
        return self.random.choice(positions)

    def close_reader(self) -> None:
        alive = [reader for reader in self.readers if reader.alive]
        if alive:
            leaving = self.random.choice(alive)
            leaving.closed = True
            leaving.reader.close()

    # --- Idempotent producers -------------------------------------------------------------------

    def send_idempotent(self) -> None:
        client = self.random.choice(self.clients)
        link = client.link or self._attach(client, None)
        first, size = client.next_number, self.random.randint(1, 4)
        if self.random.random() < 0.1:
            with pytest.raises(OutOfOrderSequence):
                self._send(client, link, first + 1, size)
            return
        try:
            self._send(client, link, first, size)
        except ServerBusy:
            return
        client.batches.append((first, size))
        self.offered.update(client.body(first + index) for index in range(size))

    def resend_idempotent(self) -> None:
        """The client did not see the acknowledgement, so it sends an old batch once more."""
        client = self.random.choice(self.clients)
        if client.link is not None and client.batches:
            self._send(client, client.link, *self.random.choice(client.batches))

    def reconnect_idempotent(self) -> None:
        client = self.random.choice(self.clients)
        old = client.link
        if old is None:
            return
        epoch = self.random.choice([None, old.epoch, old.epoch + 1])
        if self.random.random() < 0.5:
            old.close()
            new = self._attach(client, epoch)
        else:
            new = self._attach(client, epoch)
            assert [type(error) for error in client.ended] == [ProducerEpochStolen]
            with pytest.raises(ProducerEpochStolen):
                self._send(client, old, client.next_number, 1)
        client.ended.clear()
        assert new.sequence == client.next_number - 1

    def _attach(self, client: IdempotentClient, epoch: int | None) -> ProducerLink:
        client.link = self.hub.open_producer(
            partition=client.partition,
            producer_id=None if client.link is None else client.link.id,
            epoch=epoch,
            sequence=None,
            on_end=client.ended.append,
        )
        return client.link

    def _send(self, client: IdempotentClient, link: ProducerLink, first: int, size: int) -> None:
        bodies = [client.body(first + index) for index in range(size)]
        stamp = ProducerStamp(link.id, link.epoch, first, first + size - 1)
        sections = b"".join(map(section, bodies))

        def done(outcome: Receipt | PenstockError) -> None:
            assert isinstance(outcome, Receipt)
            if outcome is ALREADY_STORED:
                assert first in client.acknowledged, "a duplicate was acknowledged before its first"
                return
            client.acknowledged.add(first)
            self._acknowledged(outcome, bodies, client.partition)

        link.publish(EventBatch(sections, size, None, stamp), len(sections), done)

    # --- What must be true ----------------------------------------------------------------------

    def _alive(self, group: str, partition: int) -> list[SimulatedReader]:
        return [
            reader
            for reader in self.readers
            if reader.alive and (reader.group, reader.partition) == (group, partition)
        ]

    def check_ownership(self) -> None:
        seats: dict[tuple[str, int], list[int | None]] = {}
        for view in (view for hub in self.broker.hubs() for view in hub.readers()):
            seats.setdefault((view.group.casefold(), view.partition), []).append(view.epoch)
        for (group, partition), epochs in seats.items():
            assert len(epochs) <= 5
            assert len(epochs) == 1 or epochs == [None] * len(epochs)
            assert epochs == [reader.epoch for reader in self._alive(group, partition)]
        assert sum(map(len, seats.values())) == sum(reader.alive for reader in self.readers)

    def finish(self) -> None:
        while self.wakes:
            self.wakes.pop(0)()
        for reader in self.readers:
            while reader.alive and reader.runnable:
                reader.pump(1000, fetch_later=self.random.random() < 0.3)
        logs = [self._whole_log(index) for index in range(self.partition_count)]
        self.check_events(logs)
        for log in logs:
            self.check_order(log)
            self.check_batches(log)
        for reader in self.readers:
            self.check_reader(reader, dict(logs[reader.partition]))

    def _whole_log(self, partition: int) -> list[Event]:
        """The retained events, read past the broker."""
        log = self.logs.partition(HUB_ID, partition)
        status = log.status()
        events: list[Event] = []
        sequence = max(status.begin_sequence, 0)
        while batches := log.read(sequence, bytes_max=2**30):
            for batch in batches:
                position = 0
                for index in range(batch.count):
                    size = batch.sections[position + 4]
                    body = batch.sections[position + 5 : position + 5 + size]
                    events.append((batch.first_sequence + index, body))
                    position += 5 + size
            sequence = batches[-1].next_sequence
        first = sequence - len(events)
        assert [number for number, _ in events] == list(range(first, sequence)), "numbers have gaps"
        return events

    def check_events(self, logs: list[list[Event]]) -> None:
        """No ghosts, no duplicates, nothing acknowledged lost or moved."""
        bodies = Counter(body for log in logs for _, body in log)
        assert not [body for body, times in bodies.items() if times > 1], "duplicates"
        assert bodies.keys() <= self.offered, "events that nobody published"
        assert not bodies.keys() & self.refused
        if not self.retention:
            assert bodies.keys() == self.offered, "events were lost"
        for partition, log in enumerate(logs):
            for sequence, body in log:
                assert self.acknowledged.get((partition, sequence), body) == body

    def check_order(self, log: list[Event]) -> None:
        """Events of one key, one partition sender or one idempotent producer keep their order."""
        last: dict[bytes, int] = {}
        for _, body in log:
            lane, number = body.split(b":")[:2]
            assert last.get(lane, -1) <= int(number), "out of order"
            last[lane] = int(number)

    def check_batches(self, log: list[Event]) -> None:
        """A batch is contiguous and whole or absent. (Each batch is a segment of its own in the
        memory log, so retention never cuts one.)"""
        expected: bytes | None = None
        for _, body in log:
            assert expected is None or body == expected
            parts = body.split(b":")
            expected = None
            if len(parts) == 4:
                lane, number, index, size = parts
                following = int(index) + 1
                if following < int(size):
                    expected = b":".join((lane, number, b"%d" % following, size))
        assert expected is None, "the log ends inside a batch"

    def check_reader(self, reader: SimulatedReader, log: dict[int, bytes]) -> None:
        """It saw what the log holds, in its order, without gaps unless retention made them."""
        numbers = [sequence for sequence, _ in reader.taken]
        assert numbers == sorted(set(numbers))
        for sequence, body in reader.taken:
            assert log.get(sequence, body) == body
        if numbers and not self.retention:
            assert numbers == list(range(numbers[0], numbers[-1] + 1)), "the reader missed events"
        if reader.alive:
            assert reader.reader.lag_events == 0, "a wake was lost"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_history_keeps_every_promise_for_seed(seed: int) -> None:
    simulation = Simulation(seed)
    for _ in range(STEPS):
        simulation.step()
    simulation.finish()
