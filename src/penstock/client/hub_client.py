"""What producers and consumers share: one hub, one connection that opens itself, reads of
`$management`."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self

from penstock.amqp.message import Message, ValueBody
from penstock.client.connection import TOKEN_S, Connection, Transport, connect
from penstock.client.errors import ClientClosed, ClientError, ClientTimedOut
from penstock.client.properties import EventHubProperties, PartitionProperties
from penstock.client.retry import RetryPolicy, with_retry
from penstock.model.connection_string import Endpoint, parse_connection_string
from penstock.model.errors import ArgumentError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY = datetime(1, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


class HubClient:
    """Opens connections to one hub, keeps one for itself, and asks what the hub is."""

    token_s = TOKEN_S  # how long the tokens that it makes live

    def __init__(
        self,
        connection_string: str,
        *,
        eventhub_name: str | None,
        ssl_context: ssl.SSLContext | None,
        ca_file: str | None,
        retry: RetryPolicy,
        timeout_s: float,
        transport: Transport,
    ) -> None:
        self._endpoint = parse_connection_string(connection_string)
        self.eventhub_name = _hub_name(self._endpoint, eventhub_name)
        self.fully_qualified_namespace = self._endpoint.host
        if not timeout_s > 0:
            raise ArgumentError(f"timeout_s is {timeout_s}: it must be above 0.")
        self._ssl_context = ssl_context
        self._ca_file = ca_file
        self._retry = retry
        self._timeout_s = timeout_s
        self._transport = transport
        self._connection: Connection | None = None
        self._opening = asyncio.Lock()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def get_eventhub_properties(self) -> EventHubProperties:
        """The hub's name, when it was created, its partitions."""
        told = await self._read("com.microsoft:eventhub")
        ids = told.get("partition_ids", [])
        return {
            "eventhub_name": str(told.get("name")),
            "created_at": _to_datetime(told.get("created_at")),
            "partition_ids": [str(each) for each in ids] if isinstance(ids, list) else [],
        }

    async def get_partition_ids(self) -> list[str]:
        return (await self.get_eventhub_properties())["partition_ids"]

    async def get_partition_properties(self, partition_id: str) -> PartitionProperties:
        """Where a partition begins and ends now."""
        told = await self._read("com.microsoft:partition", partition=partition_id)
        return {
            "eventhub_name": str(told.get("name")),
            "id": str(told.get("partition")),
            "beginning_sequence_number": _to_integer(told.get("begin_sequence_number")),
            "last_enqueued_sequence_number": _to_integer(told.get("last_enqueued_sequence_number")),
            "last_enqueued_offset": str(told.get("last_enqueued_offset")),
            "last_enqueued_time_utc": _to_datetime(told.get("last_enqueued_time_utc")),
            "is_empty": bool(told.get("is_partition_empty")),
        }

    async def get_service_product(self) -> str:
        """`Penstock`, or what else the service calls itself; empty where it says nothing."""
        connection = await with_retry(self._retry, self._own_connection)
        return connection.product

    async def close(self) -> None:
        """Harmless when done before. What waits ends with an error."""
        self._is_closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    # --- inside ---------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("The client is closed.")

    async def _connect(self, path: str) -> Connection:
        """A new connection with a token for `path`, the caller's to close."""
        self._check_open()
        connection = await connect(
            self._endpoint,
            tls=await self._tls(),
            timeout_s=self._timeout_s,
            transport=self._transport,
            token_s=self.token_s,
        )
        try:
            await connection.authorise(path)
            self._check_open()
        except BaseException:
            connection.abort()
            raise
        return connection

    async def _own_connection(self) -> Connection:
        """The client's own connection, opened when there is none that can be used."""
        connection = self._connection
        if connection is not None and connection.is_usable:
            return connection
        async with self._opening:
            connection = self._connection
            if connection is None or not connection.is_usable:
                if connection is not None:
                    connection.abort()
                self._connection = None
                connection = self._connection = await self._connect(self.eventhub_name)
            return connection

    async def _tls(self) -> ssl.SSLContext | None:
        if self._endpoint.tls and self._ssl_context is None:
            # A thread: reading the authorities of the system takes tens of milliseconds.
            self._ssl_context = await asyncio.to_thread(
                ssl.create_default_context, cafile=self._ca_file
            )
        return self._ssl_context

    async def _read(self, kind: str, **options: str) -> dict[object, object]:
        properties: dict[str, object] = {
            "operation": "READ",
            "type": kind,
            "name": self.eventhub_name,
            **options,
        }

        async def ask() -> Message:
            connection = await self._own_connection()
            try:
                return await connection.manage(properties, hub=self.eventhub_name)
            except ClientTimedOut:
                connection.abort()  # the next try begins with another socket
                raise

        answer = await with_retry(self._retry, ask)
        value = answer.body.value if isinstance(answer.body, ValueBody) else None
        if not isinstance(value, dict):
            raise ClientError("$management answered without a map of properties.")
        return value


def _hub_name(endpoint: Endpoint, name: str | None) -> str:
    hub = name or endpoint.hub
    if not hub:
        raise ArgumentError("No hub is named: give eventhub_name, or EntityPath in the string.")
    return hub


def _to_integer(value: object) -> int:
    return int(value) if isinstance(value, int) else -1


def _to_datetime(value: object) -> datetime:
    """A partition without events tells the first day of the year 1 (protocol.md 3.2)."""
    try:
        return _EPOCH + int(value) * _MS if isinstance(value, int) else _FIRST_DAY
    except OverflowError:
        return _FIRST_DAY
