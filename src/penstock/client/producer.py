"""The producer: batches, single events, partition keys and ids; idempotent on request."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Iterable
from typing import Unpack

from penstock.amqp.performatives import Error
from penstock.amqp.types import Int, Long, Short, Symbol
from penstock.client.connection import Connection
from penstock.client.errors import ClientError, ClientTimedOut, condition_error
from penstock.client.event_data import EventData, EventDataBatch, check_route
from penstock.client.hub_client import ClientOptions, HubClient
from penstock.client.idempotence import (
    PRODUCER_EPOCH,
    PRODUCER_ID,
    PRODUCER_SEQUENCE,
    ProducerState,
)
from penstock.client.links import Sender
from penstock.client.retry import with_retry
from penstock.client.transfer_frames import BATCH_FORMAT
from penstock.model import limits
from penstock.model.errors import ArgumentError
from penstock.model.partitioner import partition_for_key

_IDEMPOTENT = "com.microsoft:idempotent-producer"


class _PartitionSender:
    """One link of the producer: to the hub, or to a partition. An idempotent producer sends one
    batch at a time on it, so that its numbers have no gap, whatever is lost."""

    def __init__(self) -> None:
        self.sender: Sender | None = None
        self.attaching = asyncio.Lock()
        self.sending = asyncio.Lock()
        self.state: ProducerState | None = None
        self.in_doubt: EventDataBatch | None = None  # sent, with unknown outcome


class EventHubProducerClient(HubClient):
    """Publishes to one hub over one connection, which is opened when needed and after a loss.

    When a send returns, the service has stored the events. Without `idempotent` a publication whose
    acknowledgement was lost is sent again, and may then be stored twice.
    """

    def __init__(
        self,
        connection_string: str,
        *,
        idempotent: bool = False,
        producer_id: int | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        """An idempotent producer with the `producer_id` of an earlier one continues its numbers
        (`producer_state`) and displaces a producer that still uses the id."""
        super().__init__(connection_string, **options)
        self._idempotent = idempotent
        self._producer_id = producer_id
        # By partition; None is the hub's link.
        self._lanes: defaultdict[str | None, _PartitionSender] = defaultdict(_PartitionSender)
        self._partition_ids: list[str] = []
        self._reading_ids = asyncio.Lock()
        self._turn = itertools.count()

    async def create_batch(
        self,
        *,
        partition_id: str | None = None,
        partition_key: str | None = None,
        max_size_in_bytes: int | None = None,
    ) -> EventDataBatch:
        """An empty batch of at most `max_size_in_bytes`, by default of the service's limit.

        Every batch of an idempotent producer is for one partition: without `partition_id` the
        producer chooses it, by the key or round robin.
        """
        check_route(partition_id, partition_key)
        lane_id = partition_id
        if self._idempotent and partition_id is None:
            lane_id = await self._choose_partition(partition_key)
        allowed = await self._max_message_size(lane_id)
        if max_size_in_bytes is None:
            max_size_in_bytes = allowed
        elif not 0 < max_size_in_bytes <= allowed:
            raise ValueError(
                f"max_size_in_bytes is {max_size_in_bytes}: 1 to {allowed} are allowed here."
            )
        batch = EventDataBatch(
            max_size_in_bytes,
            partition_id=None if partition_key is not None else lane_id,
            partition_key=partition_key,
            stamped=self._idempotent,
        )
        batch.lane = lane_id
        return batch

    async def send_batch(
        self,
        batch: EventDataBatch | Iterable[EventData],
        *,
        partition_id: str | None = None,
        partition_key: str | None = None,
    ) -> None:
        """Returns when the batch is stored. The two options are for events instead of a batch,
        which must fit into one. Raises ClientError, ValueError, ArgumentError."""
        self._check_open()
        if not isinstance(batch, EventDataBatch):
            events = batch
            batch = await self.create_batch(partition_id=partition_id, partition_key=partition_key)
            for event in events:
                batch.add(event)
        elif partition_id is not None or partition_key is not None:
            raise ArgumentError(
                "A batch has its partition already: pass id or key to create_batch."
            )
        if len(batch) == 0:
            return  # an empty batch is not sent (protocol.md 4.4)
        if batch.is_stamped != self._idempotent:
            raise ArgumentError("The batch was created by a producer of another kind.")
        if self._idempotent:
            await self._send_numbered(batch)
            return
        await self._send(batch.lane, batch.payload(), BATCH_FORMAT)

    async def producer_state(self, partition_id: str) -> ProducerState:
        """Id and epoch of an idempotent producer in that partition, and the number of its last
        event there: 0 for a new producer, whose first event has number 1."""
        if not self._idempotent:
            raise ArgumentError("Only an idempotent producer's events have numbers.")
        self._check_open()
        await self._max_message_size(partition_id)  # attaches the link
        state = self._lanes[partition_id].state
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

    async def _send(self, lane_id: str | None, payload: bytes, message_format: int) -> None:
        async def deliver() -> None:
            error = await self._deliver(lane_id, payload, message_format)
            if error is not None:
                raise _rejection_error(error)

        await with_retry(self._retry, deliver)

    async def _deliver(
        self, lane_id: str | None, payload: bytes, message_format: int
    ) -> Error | None:
        """The outcome from the service. Raises ClientError where there is none."""
        sender = await self._sender(lane_id)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await sender.deliver(payload, message_format=message_format)
        except TimeoutError:
            # The service reads but does not answer: the retry opens another socket.
            sender.connection.abort()
            raise ClientTimedOut(
                f"The service did not acknowledge within {self._timeout_s} s."
            ) from None

    async def _sender(self, lane_id: str | None) -> Sender:
        """The sender of a partition, or with None that of the hub; attached where needed."""
        lane = self._lanes[lane_id]
        async with lane.attaching:
            sender = lane.sender
            if sender is None or sender.error is not None:
                lane.sender = None
                connection = await self._own_connection()
                try:
                    sender = lane.sender = await self._attach(connection, lane, lane_id)
                except ClientTimedOut:
                    connection.abort()  # the retry opens another socket
                    raise
            return sender

    async def _attach(
        self, connection: Connection, lane: _PartitionSender, lane_id: str | None
    ) -> Sender:
        hub = self.eventhub_name
        address = hub if lane_id is None else f"{hub}/Partitions/{lane_id}"
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

    async def _max_message_size(self, lane_id: str | None) -> int:
        sender = await with_retry(self._retry, lambda: self._sender(lane_id))
        return min(sender.max_message_size or limits.CLIENT_MESSAGE_BYTES_MAX, 2**31)

    # --- idempotent -----------------------------------------------------------------------------

    async def _read_partition_ids(self) -> list[str]:
        if not self._partition_ids:
            # One request for all callers; they continue in the order of their calls.
            async with self._reading_ids:
                self._partition_ids = self._partition_ids or await self.get_partition_ids()
        return self._partition_ids

    async def _choose_partition(self, partition_key: str | None) -> str:
        """By the key, or round robin."""
        ids = await self._read_partition_ids()
        if partition_key is not None:
            return ids[partition_for_key(partition_key, len(ids))]
        return ids[next(self._turn) % len(ids)]

    async def _send_numbered(self, batch: EventDataBatch) -> None:
        """A batch keeps its numbers in every retry until it is known to be stored, so the service
        recognizes what it has stored already (protocol.md 4.7)."""
        lane = self._lanes[batch.lane]

        async def deliver() -> None:
            if lane.in_doubt is not None and lane.in_doubt is not batch:
                self._begin_epoch(lane)
            sender = await self._sender(batch.lane)
            assert sender is lane.sender
            assert lane.state is not None
            batch.stamp(lane.state)
            lane.in_doubt = batch
            error = await self._deliver(batch.lane, batch.payload(), BATCH_FORMAT)
            if error is not None:
                rejection = _rejection_error(error)
                if not rejection.is_final:
                    lane.in_doubt = None  # the service states that it stored nothing
                raise rejection

        async with lane.sending:
            await with_retry(self._retry, deliver)
            assert lane.state is not None
            lane.state.published = lane.state.after(len(batch))
            lane.in_doubt = None

    def _begin_epoch(self, lane: _PartitionSender) -> None:
        """Attach again, so that the service states its last number: the outcome of the batch before
        this one is unknown."""
        if lane.sender is not None and lane.sender.error is None:
            lane.sender.connection.drop(lane.sender)
        lane.sender = lane.state = lane.in_doubt = None


def _producer_request(
    state: ProducerState | None, producer_id: int | None, *, is_in_doubt: bool
) -> dict[str, object]:
    """The attach properties. The service chooses what is missing: the next epoch, and the last
    number that it stored. While a batch is in doubt the service may have stored more than `state`
    says, and it refuses a number below its own, so none is stated."""
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
            "The service gave no producer id, epoch and sequence number: it does not support "
            "idempotent producers."
        )
    producer_id, epoch, published = (int(number) for number in numbers if isinstance(number, int))
    return ProducerState(producer_id, epoch, published)


def _rejection_error(error: Error) -> ClientError:
    return condition_error(f"The service refused: {error.condition}: {error.description}", error)
