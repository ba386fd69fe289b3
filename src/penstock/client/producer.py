"""The producer: batches, single events, keys, partitions; idempotent on request."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import Iterable

from penstock.amqp.performatives import Error
from penstock.amqp.types import Int, Long, Short, Symbol
from penstock.client.batch import EventDataBatch, check_route
from penstock.client.connection import Connection, Sender, Transport
from penstock.client.errors import ClientError, ClientTimedOut, failure
from penstock.client.event_data import EventData
from penstock.client.hub_client import HubClient
from penstock.client.idempotence import (
    PRODUCER_EPOCH,
    PRODUCER_ID,
    PRODUCER_SEQUENCE,
    ProducerState,
)
from penstock.client.retry import RetryPolicy, with_retry
from penstock.client.transfer_frames import BATCH_FORMAT
from penstock.model import limits
from penstock.model.errors import ArgumentError
from penstock.model.partitioner import partition_for_key

_IDEMPOTENT = "com.microsoft:idempotent-producer"
_EPOCH_MAX = 2**15 - 1


class _PartitionSender:
    """One link of the producer: to the hub, or to a partition. An idempotent producer sends one
    batch at a time on it, so that numbers follow each other whatever is lost."""

    def __init__(self) -> None:
        self.sender: Sender | None = None
        self.attaching = asyncio.Lock()
        self.sending = asyncio.Lock()
        self.state: ProducerState | None = None
        self.in_doubt: EventDataBatch | None = None  # sent, and nobody knows what became of it


class EventHubProducerClient(HubClient):
    """Publishes to one hub over one connection, which opens itself and reopens when it is lost.

    An awaited send is stored by the service. Without `idempotent` a send whose answer was lost is
    sent again, and may then be there twice.
    """

    def __init__(
        self,
        connection_string: str,
        *,
        eventhub_name: str | None = None,
        idempotent: bool = False,
        producer_id: int | None = None,
        ssl_context: ssl.SSLContext | None = None,
        ca_file: str | None = None,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008  # frozen
        timeout_s: float = 60,
        transport: Transport = "amqp",
    ) -> None:
        """`eventhub_name` is needed where the connection string has no EntityPath. `ca_file` or
        `ssl_context` say whom to trust; `timeout_s` bounds each try. An idempotent producer whose
        `producer_id` is known from before goes on with its numbers (`producer_state`) and takes
        the place of whoever still publishes under that id."""
        super().__init__(
            connection_string,
            eventhub_name=eventhub_name,
            ssl_context=ssl_context,
            ca_file=ca_file,
            retry=retry,
            timeout_s=timeout_s,
            transport=transport,
        )
        self._idempotent = idempotent
        self._producer_id = producer_id
        self._lanes: dict[str | None, _PartitionSender] = {}
        self._partition_ids: list[str] = []
        self._turn = itertools.count()

    async def create_batch(
        self,
        *,
        partition_id: str | None = None,
        partition_key: str | None = None,
        max_size_in_bytes: int | None = None,
    ) -> EventDataBatch:
        """An empty batch as large as the service takes, or as `max_size_in_bytes` says.

        An idempotent producer needs a partition for each batch: where none is given it chooses
        one, by the key or in turn.
        """
        check_route(partition_id, partition_key)
        place = partition_id
        if self._idempotent and partition_id is None:
            place = await self._chosen_partition(partition_key)
        allowed = await self._max_message_size(place)
        if max_size_in_bytes is None:
            max_size_in_bytes = allowed
        elif not 0 < max_size_in_bytes <= allowed:
            raise ValueError(
                f"max_size_in_bytes is {max_size_in_bytes}: 1 to {allowed} are allowed here."
            )
        batch = EventDataBatch(
            max_size_in_bytes,
            partition_id=None if partition_key is not None else place,
            partition_key=partition_key,
            stamped=self._idempotent,
        )
        batch.lane = place
        return batch

    async def send_batch(
        self,
        batch: EventDataBatch | Iterable[EventData],
        *,
        partition_id: str | None = None,
        partition_key: str | None = None,
    ) -> None:
        """Returns when the batch is stored. Events instead of a batch must fit into one, else
        ValueError; only then the two options mean something."""
        self._check_open()
        if not isinstance(batch, EventDataBatch):
            events = batch
            batch = await self.create_batch(partition_id=partition_id, partition_key=partition_key)
            for event in events:
                batch.add(event)
        elif partition_id is not None or partition_key is not None:
            raise ArgumentError("A batch knows its partition: create_batch takes id and key.")
        if len(batch) == 0:
            return  # an empty batch is not sent (protocol.md 4.4)
        if batch.is_stamped != self._idempotent:
            raise ArgumentError("The batch was made by a producer of another kind.")
        if self._idempotent:
            await self._send_numbered(batch)
            return
        payload = batch.payload()
        await self._send(batch.lane, payload, BATCH_FORMAT)

    async def producer_state(self, partition_id: str) -> ProducerState:
        """Id and epoch of an idempotent producer in that partition, and the number of its last
        event there; 0 for a new one, whose events begin with 1."""
        if not self._idempotent:
            raise ArgumentError("Only an idempotent producer's events have numbers.")
        self._check_open()
        await self._max_message_size(partition_id)  # attached, when this returns
        state = self._lane(partition_id).state
        assert state is not None
        return ProducerState(state.id, state.epoch, state.published)

    async def send_event(
        self,
        event: EventData,
        *,
        partition_id: str | None = None,
        partition_key: str | None = None,
    ) -> None:
        """Returns when the event is stored."""
        if self._idempotent:
            await self.send_batch([event], partition_id=partition_id, partition_key=partition_key)
            return
        self._check_open()
        batch = await self.create_batch(partition_id=partition_id, partition_key=partition_key)
        batch.add(event)
        await self._send(batch.lane, batch.single(), 0)

    # --- inside ---------------------------------------------------------------------------------

    async def _send(self, place: str | None, payload: bytes, message_format: int) -> None:
        lane = self._lane(place)

        async def once() -> None:
            error = await self._deliver(lane, place, payload, message_format)
            if error is not None:
                raise _rejection_error(error)

        await with_retry(self._retry, once)

    async def _deliver(
        self, lane: _PartitionSender, place: str | None, payload: bytes, message_format: int
    ) -> Error | None:
        """The service's outcome; raises ClientError when there is none."""
        sender = await self._sender(lane, place)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await sender.deliver(payload, message_format=message_format)
        except TimeoutError:
            # A service that takes bytes and says nothing: the next try begins with another socket.
            sender.connection.abort()
            raise ClientTimedOut(
                f"The service did not acknowledge within {self._timeout_s} s."
            ) from None

    def _lane(self, place: str | None) -> _PartitionSender:
        lane = self._lanes.get(place)
        if lane is None:
            lane = self._lanes[place] = _PartitionSender()
        return lane

    async def _sender(self, lane: _PartitionSender, place: str | None) -> Sender:
        sender = lane.sender
        if sender is not None and sender.error is None:
            return sender
        async with lane.attaching:
            sender = lane.sender
            if sender is None or sender.error is not None:
                lane.sender = None
                connection = await self._own_connection()
                try:
                    sender = lane.sender = await self._attach(connection, lane, place)
                except ClientTimedOut:
                    connection.abort()  # the next try begins with another socket
                    raise
            return sender

    async def _attach(
        self, connection: Connection, lane: _PartitionSender, place: str | None
    ) -> Sender:
        hub = self.eventhub_name
        address = hub if place is None else f"{hub}/Partitions/{place}"
        if not self._idempotent:
            return await connection.sender(address)
        sender = await connection.sender(
            address,
            properties=_producer_request(
                lane.state, self._producer_id, is_in_doubt=lane.in_doubt is not None
            ),
            desired_capabilities=[_IDEMPOTENT],
        )
        if lane.state is None:
            lane.state = _parse_producer_state(sender.attach_properties)
        return sender

    async def _max_message_size(self, place: str | None) -> int:
        lane = self._lane(place)
        if lane.sender is None or lane.sender.error is not None:

            async def once() -> Sender:
                return await self._sender(lane, place)

            sender = await with_retry(self._retry, once)
        else:
            sender = lane.sender
        return min(sender.max_message_size or limits.CLIENT_MESSAGE_BYTES_MAX, 2**31)

    # --- idempotent -----------------------------------------------------------------------------

    async def _chosen_partition(self, partition_key: str | None) -> str:
        if not self._partition_ids:
            self._partition_ids = await self.get_partition_ids()
        ids = self._partition_ids
        if partition_key is not None:
            return ids[partition_for_key(partition_key, len(ids))]
        return ids[next(self._turn) % len(ids)]

    async def _send_numbered(self, batch: EventDataBatch) -> None:
        """A batch keeps its numbers until it is known to be stored, however often it is sent: so
        the service knows what it has already (protocol.md 4.7)."""
        place = batch.lane
        lane = self._lane(place)

        async def once() -> None:
            if lane.in_doubt is not None and lane.in_doubt is not batch:
                self._begin_epoch(lane)
            sender = await self._sender(lane, place)
            assert sender is lane.sender
            assert lane.state is not None
            batch.stamp(lane.state)
            lane.in_doubt = batch
            error = await self._deliver(lane, place, batch.payload(), BATCH_FORMAT)
            refused = None if error is None else _rejection_error(error)
            if refused is not None:
                if not refused.is_final:
                    lane.in_doubt = None  # it says itself that it took nothing
                raise refused

        async with lane.sending:
            await with_retry(self._retry, once)
            assert lane.state is not None
            lane.state.published = lane.state.after(len(batch))
            lane.in_doubt = None

    def _begin_epoch(self, lane: _PartitionSender) -> None:
        """Another batch follows one whose fate nobody knows: the service says where it is."""
        if lane.sender is not None and lane.sender.error is None:
            lane.sender.connection.drop(lane.sender)
        lane.sender = lane.state = lane.in_doubt = None


def _producer_request(
    state: ProducerState | None, producer_id: int | None, *, is_in_doubt: bool
) -> dict[str, object]:
    """What is left out the service chooses: the epoch one above the last, the number it knows.
    While a batch is in doubt the service may have published more than `state` says, and it refuses
    a number behind its own: none is stated then."""
    if state is None:
        return {} if producer_id is None else {Symbol(PRODUCER_ID): Long(producer_id)}
    return {
        Symbol(PRODUCER_ID): Long(state.id),
        Symbol(PRODUCER_EPOCH): Short(state.epoch),
        Symbol(PRODUCER_SEQUENCE): None if is_in_doubt else Int(state.published),
    }


def _parse_producer_state(properties: dict[str, object]) -> ProducerState:
    numbers = [properties.get(name) for name in (PRODUCER_ID, PRODUCER_EPOCH, PRODUCER_SEQUENCE)]
    if not all(isinstance(number, int) for number in numbers):
        raise ClientError(
            "The service gave no producer id, epoch and sequence number: it knows no idempotent "
            "producers."
        )
    producer_id, epoch, published = (int(number) for number in numbers if isinstance(number, int))
    return ProducerState(producer_id, epoch, published)


def _rejection_error(error: Error) -> ClientError:
    return failure(f"The service refused: {error.condition}: {error.description}", error)
