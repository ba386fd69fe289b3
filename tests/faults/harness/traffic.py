"""Publishers and readers that write down all they do: the load of a fault test.

Through the front door alone (AMQP), so that it works against any Event Hubs. Nothing is sent twice:
what was not acknowledged is left as it is, and the `History` judges.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

import msgspec
from tests.faults.harness.history import (
    BODY_BYTES_MIN,
    Anomaly,
    History,
    Outcome,
    Publication,
    SenderRecord,
)

from penstock.amqp.events import TransfersReceived
from penstock.amqp.message import DataBody, Message, encode_message
from penstock.amqp.performatives import Error
from penstock.client import ClientError, Connection, Sender, connect
from penstock.kernels import decode_events
from penstock.model.connection_string import parse_connection_string

BATCH_FORMAT = 0x80013700  # protocol.md 4.4
DEADLINE_S = 60.0  # for what takes milliseconds on a machine that is not busy
_CREDIT = 5000
_KEY = "x-opt-partition-key"


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What publications look like: chosen by chance within these bounds."""

    events_max: int = 12
    bytes_max: int = 600
    singles: float = 0.4  # share of publications that are single events
    in_flight: int = 16


class Publisher:
    """Keeps some publications on their way over one link, until it is stopped or refused."""

    def __init__(
        self,
        link: Sender,
        record: SenderRecord,
        history: History,
        chance: random.Random,
        shape: Shape,
        *,
        on_outcome: Callable[[Publication], None],
    ) -> None:
        self.record = record
        self.under_way = 0
        self.refusals: Counter[str] = Counter()  # by condition and text
        self._link = link
        self._history = history
        self._chance = chance
        self._shape = shape
        self._on_outcome = on_outcome
        self._is_stopped = True  # until it is started
        self._next: tuple[Publication, bytes, int] | None = None
        link.on_room_callback = self.fill

    @property
    def is_lost(self) -> bool:
        """Whether the link is no more."""
        return self._link.error is not None

    def start(self) -> None:
        self._is_stopped = False
        self.fill()

    def stop(self) -> None:
        """Send nothing more; what is under way is still waited for."""
        self._is_stopped = True

    def fill(self) -> None:
        while (
            not self._is_stopped
            and not self.is_lost
            and self.under_way < self._shape.in_flight
            and self._send(self._drawn())
        ):
            self._next = None
        self._link.connection.schedule_flush()

    async def send_marker(self) -> Publication:
        """One small event, as soon as the service grants credit."""
        async with asyncio.timeout(DEADLINE_S):
            await self._link.wait_for_credit()
        drawn = self._made(1, BODY_BYTES_MIN, is_batch=False)
        if not self._send(drawn):
            raise ClientError("There is no room for a single event on a new link.")
        self._link.connection.flush()
        return drawn[0]

    def _send(self, drawn: tuple[Publication, bytes, int]) -> bool:
        """False when there is no room; then it was not sent."""
        publication, payload, message_format = drawn

        def settled(error: Error | None) -> None:
            self._settled(publication, error)

        if not self._link.send(payload, message_format=message_format, on_settled=settled):
            return False
        self._history.sent(publication)
        self.under_way += 1
        return True

    def _drawn(self) -> tuple[Publication, bytes, int]:
        if self._next is None:
            shape, chance = self._shape, self._chance
            size = chance.randint(BODY_BYTES_MIN, max(BODY_BYTES_MIN, shape.bytes_max))
            is_batch = chance.random() >= shape.singles
            count = chance.randint(1, shape.events_max) if is_batch else 1
            self._next = self._made(count, size, is_batch=is_batch)
        return self._next

    def _made(self, count: int, size: int, *, is_batch: bool) -> tuple[Publication, bytes, int]:
        publication = self._history.prepare(self.record, count)
        key = self.record.key
        annotations: dict[object, object] | None = None if key is None else {_KEY: key}
        events = [
            encode_message(
                Message(
                    message_annotations=annotations,
                    body=DataBody([publication.body(index, size)]),
                )
            )
            for index in range(count)
        ]
        if not is_batch:
            return publication, events[0], 0
        envelope = Message(message_annotations=annotations, body=DataBody(events))
        return publication, encode_message(envelope), BATCH_FORMAT

    def _settled(self, publication: Publication, error: Error | None) -> None:
        self.under_way -= 1
        if error is None:
            publication.outcome = Outcome.ACKNOWLEDGED
        elif not self.is_lost:  # else nobody said anything: the link is gone
            publication.outcome = Outcome.REFUSED
            text = (error.description or "").partition(" TrackingId:")[0]
            self.refusals[f"{error.condition}: {text}"] += 1
        self._on_outcome(publication)
        self.fill()


async def read_everything(connection_string: str, hub: str, history: History) -> list[Anomaly]:
    """Read all partitions from their beginning and judge all of it again."""
    history.rewind()
    async with Clients(connection_string, hub, history) as clients:
        await clients.read()
        await clients.catch_up()
        return history.check()


class Clients:
    """Everybody who is connected to one life of a broker. For use with `async with`."""

    def __init__(
        self,
        connection_string: str,
        hub: str,
        history: History,
        *,
        chance: random.Random | None = None,
    ) -> None:
        self.publishers: list[Publisher] = []
        self.acknowledged = 0  # publications
        self.acknowledged_events = 0
        self.events_read = 0
        self.refused = 0
        self.lost = 0  # publications whose link went
        self.reader_errors: dict[int, ClientError] = {}  # by partition: reading ended there
        self._endpoint = parse_connection_string(connection_string)
        self._hub = hub
        self._history = history
        self._partitions = range(history.partition_count)
        self._chance = chance or random.Random(0)
        self._connections: list[Connection] = []
        self._markers: set[tuple[int, int]] = set()  # not read yet
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    async def __aenter__(self) -> Clients:
        return self

    async def __aexit__(self, *raised: object) -> None:
        for publisher in self.publishers:
            publisher.stop()
        await asyncio.gather(*(connection.close() for connection in self._connections))

    async def connect(self) -> Connection:
        """One more connection, with a token for the hub."""
        connection = await connect(self._endpoint, timeout_s=DEADLINE_S)
        self._connections.append(connection)
        await connection.authorise(self._hub)
        return connection

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Return once `is_so`, asked whenever an answer or an event has come. Raises ClientError
        when a connection ends first."""
        if is_so():
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((is_so, future))
        async with asyncio.timeout(DEADLINE_S):
            ends = [connection.closed for connection in self._connections]
            await asyncio.wait([future, *ends], return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            raise ClientError("The broker ended a connection that somebody waits on.")

    async def until_acknowledged(self, more: int) -> None:
        """Return once so many more publications were acknowledged."""
        enough = self.acknowledged + more
        await self.until(lambda: self.acknowledged >= enough)

    async def until_gone(self) -> None:
        """The broker is dead: hear what it said before."""
        ends = [connection.closed for connection in self._connections]
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*ends)

    # --- reading --------------------------------------------------------------------------------

    async def read(self, *, partitions: Iterable[int] | None = None) -> None:
        """Read from where the history was not checked yet, and go on reading."""
        connection = await self.connect()
        for partition in self._partitions if partitions is None else partitions:
            await self.read_from(connection, partition, self._history.next_sequence(partition))

    async def read_from(self, connection: Connection, partition: int, sequence: int) -> None:
        receiver = await connection.receiver(
            f"{self._hub}/ConsumerGroups/$Default/Partitions/{partition}",
            credit=_CREDIT,
            on_transfers=partial(self._on_transfers, partition),
            selector=f"amqp.annotation.x-opt-sequence-number > '{sequence - 1}'",
        )

        def ended(future: asyncio.Future[None]) -> None:
            if not future.cancelled() and receiver.error is not None:
                self.reader_errors[partition] = receiver.error
                self._wake()

        receiver.ended.add_done_callback(ended)

    async def catch_up(self, *, partitions: Iterable[int] | None = None) -> None:
        """Return when everything that is there has been read: one more event is put behind all
        others, and awaited. Raises ClientError when a partition takes none or cannot be read."""
        markers = []
        for partition in self._partitions if partitions is None else partitions:
            publisher = await self.publisher(self._connections[0], partition=partition)
            marker = await publisher.send_marker()
            self._markers.add((marker.sender, marker.number))
            markers.append((marker, publisher))
        await self.until(lambda: all(publisher.under_way == 0 for _, publisher in markers))
        for marker, publisher in markers:
            if marker.outcome is not Outcome.ACKNOWLEDGED:
                raise ClientError(f"A marker was refused: {dict(publisher.refusals)}")
        await self.until(lambda: not self._markers or bool(self.reader_errors))
        for partition, error in self.reader_errors.items():
            raise ClientError(f"Reading partition {partition} ended: {error}")

    def _on_transfers(self, partition: int, event: TransfersReceived) -> None:
        columns = decode_events(event.data, event.bounds)
        for row, sequence in enumerate(columns.sequence_numbers):
            seen = self._history.observe(
                partition,
                sequence=sequence,
                offset=int(columns.offsets[row]),
                enqueued_ms=columns.enqueued_ms[row],
                key=columns.partition_keys[row],
                body=columns.bodies[row],
            )
            self._markers.discard((seen.sender, seen.number))
        self.events_read += event.count
        self._wake()

    # --- publishing -----------------------------------------------------------------------------

    async def publisher(
        self,
        connection: Connection,
        *,
        partition: int | None = None,
        key: str | None = None,
        is_ordered: bool = True,
        shape: Shape | None = None,
    ) -> Publisher:
        """A link of its own; it waits to be started."""
        address = self._hub if partition is None else f"{self._hub}/Partitions/{partition}"
        link = await connection.sender(address)
        publisher = Publisher(
            link,
            self._history.sender(partition=partition, key=key, is_ordered=is_ordered),
            self._history,
            self._chance,
            shape or Shape(),
            on_outcome=self._on_outcome,
        )
        self.publishers.append(publisher)
        return publisher

    async def publish(
        self, *, connections: int = 3, shape: Shape | None = None, is_ordered: bool = True
    ) -> None:
        """On each connection one link to a partition, one under a key, one that does not care."""
        started = []
        for _ in range(connections):
            connection = await self.connect()
            partition = self._chance.choice(self._partitions)
            key = f"key {self._chance.randint(1, 20)}"
            started += [
                await self.publisher(connection, partition=partition, shape=shape),
                await self.publisher(connection, key=key, shape=shape),
                await self.publisher(connection, is_ordered=is_ordered, shape=shape),
            ]
        for publisher in started:
            publisher.start()

    async def drain(self) -> None:
        """Send nothing more; return when all that was sent is answered."""
        for publisher in self.publishers:
            publisher.stop()
        await self.until(lambda: all(p.under_way == 0 for p in self.publishers))

    def refusals(self) -> Counter[str]:
        return sum((publisher.refusals for publisher in self.publishers), Counter())

    def _on_outcome(self, publication: Publication) -> None:
        outcome = publication.outcome
        if outcome is Outcome.ACKNOWLEDGED:
            self.acknowledged += 1
            self.acknowledged_events += publication.count
        self.refused += outcome is Outcome.REFUSED
        self.lost += outcome is Outcome.UNKNOWN
        self._wake()

    def _wake(self) -> None:
        for waiting in self._waiting[:]:
            is_so, future = waiting
            if is_so():
                self._waiting.remove(waiting)
                if not future.done():
                    future.set_result(None)
