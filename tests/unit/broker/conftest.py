"""A broker over the memory catalog and the memory log, with time and commits turned by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import msgspec
import pytest

from penstock.broker.broker import Broker
from penstock.broker.hub import HubRuntime, ReaderView
from penstock.broker.idempotent_producers import ProducerLink
from penstock.broker.reader import Reader, ReadState
from penstock.catalog.api import Catalog
from penstock.log.api import AppendDone, PartitionLog, Unsubscribe
from penstock.log.memory import MemoryLogStore
from penstock.model.clock import ManualClock
from penstock.model.entities import ConsumerGroup, Hub, HubStatus, Namespace
from penstock.model.errors import PenstockError
from penstock.model.events import EventBatch, ProducerStamp, Receipt, StoredBatch
from penstock.model.names import GroupName, HubName, NamespaceName
from penstock.model.positions import EARLIEST, Position

NAMESPACE = NamespaceName("unit-test")
HUB = HubName("events")


def section(message: bytes) -> bytes:
    """One event's data section in canonical form (model.events)."""
    if len(message) < 256:
        return b"\x00\x53\x75\xa0" + bytes([len(message)]) + message
    return b"\x00\x53\x75\xb0" + len(message).to_bytes(4, "big") + message


def messages(sections: bytes) -> list[bytes]:
    """The events of a run of data sections."""
    found = []
    position = 0
    while position < len(sections):
        size, start = sections[position + 4], position + 5
        if sections[position + 3] == 0xB0:
            size, start = int.from_bytes(sections[position + 4 : position + 8], "big"), position + 8
        found.append(sections[start : start + size])
        position = start + size
    return found


class ScriptedLog:
    """A partition whose older batches must come from the disk, and whose disk may fail."""

    def __init__(self, inner: PartitionLog) -> None:
        self._inner = inner
        self.cached_from = 0  # what lies before it is not in memory
        self.failing: PenstockError | None = None  # the outcome of every append from now on
        self.reads = 0
        self.subscribers = 0
        self.status = inner.status
        self.locate = inner.locate
        self.producer = inner.producer

    def append(self, batch: EventBatch, *, now_ms: int, done: AppendDone) -> None:
        failing = self.failing
        if failing is None:
            self._inner.append(batch, now_ms=now_ms, done=done)
        else:
            self._inner.append(batch, now_ms=now_ms, done=lambda outcome: done(failing))

    def read_cached(self, sequence: int, *, bytes_max: int = 0) -> list[StoredBatch] | None:
        if sequence < self.cached_from and sequence <= self.status().last_sequence:
            return None
        return self._inner.read_cached(sequence, bytes_max=bytes_max)

    def subscribe(self, on_commit: Callable[[], None]) -> Unsubscribe:
        unsubscribe = self._inner.subscribe(on_commit)
        self.subscribers += 1

        def leave() -> None:
            unsubscribe()
            self.subscribers -= 1

        return leave

    def read(self, sequence: int, *, bytes_max: int) -> list[StoredBatch]:
        self.reads += 1
        return self._inner.read(sequence, bytes_max=bytes_max)


class Probe:
    """A reader and everything that it was told."""

    def __init__(self) -> None:
        self.ended: list[PenstockError] = []
        self.woken = 0
        self.reader: Reader

    def on_end(self, error: PenstockError) -> None:
        self.ended.append(error)

    def on_ready(self) -> None:
        self.woken += 1

    def take(self, events: int = 2**31) -> list[tuple[int, bytes]]:
        """Deliver up to so many events, as a door would: (sequence number, message)."""
        taken: list[tuple[int, bytes]] = []
        while len(taken) < events:
            match self.reader.state():
                case ReadState.AT_END:
                    break
                case ReadState.NEEDS_DISK:
                    self.reader.accept_fetch(self.reader.fetch())
                case ReadState.READY:
                    taken += self._take_batch(events - len(taken))
        return taken

    def bodies(self) -> list[bytes]:
        return [message for _, message in self.take()]

    def _take_batch(self, most: int) -> list[tuple[int, bytes]]:
        reader = self.reader
        rest = messages(reader.batch.sections[reader.position :])
        assert len(rest) == reader.remaining
        chosen = rest[:most]
        first = reader.sequence
        size = sum(len(section(message)) for message in chosen)
        reader.advance(len(chosen), reader.position + size)
        return [(first + index, message) for index, message in enumerate(chosen)]


class World:
    """One namespace with one hub of four partitions; `turn()` commits what was published."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.catalog = Catalog()
        self._wakes: list[Callable[[], None]] = []
        self.logs = MemoryLogStore(self._wakes.append)
        now_ms = self.clock.now_ms()
        self.catalog.put_namespace(
            Namespace(
                name=NAMESPACE,
                created_ms=now_ms,
                updated_ms=now_ms,
                hosts=("unit-test.example.net", "localhost"),
            )
        )
        self.catalog.put_hub(self.hub_entity(HUB, "hub0"))
        self.producer_ids = itertools.count(1000)
        self.broker = Broker(
            self.catalog, self.logs, self.clock, producer_ids=self.producer_ids.__next__
        )

    @property
    def hub(self) -> HubRuntime:
        return self.broker.hub(NAMESPACE, HUB)

    def readers(self) -> list[ReaderView]:
        return [view for hub in self.broker.hubs() for view in hub.readers()]

    def hub_entity(self, name: str, hub_id: str) -> Hub:
        now_ms = self.clock.now_ms()
        return Hub(
            id=hub_id,
            namespace=NAMESPACE,
            name=HubName(name),
            partition_count=4,
            created_ms=now_ms,
            updated_ms=now_ms,
        )

    def set_status(self, status: HubStatus) -> None:
        self.catalog.put_hub(msgspec.structs.replace(self.hub.entity, status=status))

    def set_units(self, units: int | None) -> None:
        namespace = self.catalog.namespace(NAMESPACE)
        assert namespace is not None
        self.catalog.put_namespace(msgspec.structs.replace(namespace, throughput_units=units))

    def put_group(self, name: str) -> None:
        now_ms = self.clock.now_ms()
        self.catalog.put_group(
            ConsumerGroup(
                namespace=NAMESPACE,
                hub=HUB,
                name=GroupName(name),
                created_ms=now_ms,
                updated_ms=now_ms,
            )
        )

    def turn(self) -> None:
        """Let the log commit and call back until nothing is left to do."""
        while self._wakes:
            self._wakes.pop(0)()

    def batch(
        self, *texts: bytes, key: str | None = None, producer: ProducerStamp | None = None
    ) -> EventBatch:
        return EventBatch(b"".join(map(section, texts)), len(texts), key, producer)

    def publish(
        self, *texts: bytes, partition: int | None = None, key: str | None = None
    ) -> list[Receipt | PenstockError]:
        """Publish and commit one batch."""
        outcomes: list[Receipt | PenstockError] = []
        batch = self.batch(*texts, key=key)
        self.hub.publish(
            batch, size_bytes=len(batch.sections), partition=partition, done=outcomes.append
        )
        assert outcomes == []
        self.turn()
        return outcomes

    def read(
        self,
        partition: int = 0,
        position: Position = EARLIEST,
        *,
        group: str = "$Default",
        epoch: int | None = None,
        name: str | None = None,
    ) -> Probe:
        probe = Probe()
        probe.reader = self.hub.open_reader(
            group=group,
            partition=partition,
            position=position,
            epoch=epoch,
            name=name,
            on_end=probe.on_end,
            on_ready=probe.on_ready,
        )
        return probe

    def produce(
        self,
        producer_id: int | None = None,
        epoch: int | None = None,
        sequence: int | None = None,
        *,
        partition: int = 0,
        on_end: Callable[[PenstockError], None] = lambda error: None,
    ) -> ProducerLink:
        return self.hub.open_producer(
            partition=partition,
            producer_id=producer_id,
            epoch=epoch,
            sequence=sequence,
            on_end=on_end,
        )


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def probe() -> Probe:
    return Probe()


@pytest.fixture
def log(world: World) -> ScriptedLog:
    """Partition 0 of the world's hub, as a reader or producer made by hand may see it."""
    return ScriptedLog(world.logs.partition("hub0", 0))
