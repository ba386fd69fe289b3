"""The base of producer and consumer: one hub, one connection that is opened when needed, and the
properties of hub and partitions from `$management` (protocol.md 3.2)."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime
from typing import Self, TypedDict

from penstock.amqp.message import Message, ValueBody
from penstock.client.connection import TOKEN_S, Connection, Transport, connect
from penstock.client.errors import ClientClosed, ClientError, ClientTimedOut
from penstock.client.event_position import to_datetime
from penstock.client.retry import RetryPolicy, with_retry
from penstock.model.connection_string import parse_connection_string
from penstock.model.errors import ArgumentError

_FIRST_DAY = datetime(1, 1, 1, tzinfo=UTC)


class EventHubProperties(TypedDict):
    eventhub_name: str
    created_at: datetime
    partition_ids: list[str]


class PartitionProperties(TypedDict):
    """An empty partition that never had events has sequence number -1, offset "-1", and a time in
    the year 1."""

    eventhub_name: str
    id: str
    beginning_sequence_number: int
    last_enqueued_sequence_number: int
    last_enqueued_offset: str
    last_enqueued_time_utc: datetime
    is_empty: bool


class LastEnqueued(TypedDict):
    """The end of a partition at the time when its newest received event was delivered."""

    sequence_number: int
    offset: str
    enqueued_time: datetime
    retrieval_time: datetime


class ClientOptions(TypedDict, total=False):
    """Options of every client. `eventhub_name` is needed where the connection string has no
    EntityPath. `ca_file` or `ssl_context` state which certificates are trusted; `timeout_s`, 60 by
    default, bounds each attempt."""

    eventhub_name: str | None
    ssl_context: ssl.SSLContext | None
    ca_file: str | None
    retry: RetryPolicy
    timeout_s: float
    transport: Transport


class HubClient:
    """Opens connections to one hub, keeps one of its own, and reads properties over it."""

    token_s = TOKEN_S  # lifetime of the tokens that it creates

    def __init__(
        self,
        connection_string: str,
        *,
        eventhub_name: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        ca_file: str | None = None,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008  # frozen
        timeout_s: float = 60,
        transport: Transport = "amqp",
    ) -> None:
        """Raises ArgumentError. The options are `ClientOptions`."""
        self._endpoint = parse_connection_string(connection_string)
        self.eventhub_name = eventhub_name or self._endpoint.hub or ""
        if not self.eventhub_name:
            raise ArgumentError("No hub is named: give eventhub_name, or EntityPath in the string.")
        if not timeout_s > 0:
            raise ArgumentError(f"timeout_s is {timeout_s}: it must be above 0.")
        self.fully_qualified_namespace = self._endpoint.host
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

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def get_eventhub_properties(self) -> EventHubProperties:
        """Raises ClientError, as the other methods do."""
        value = await self._read("com.microsoft:eventhub")
        ids = value.get("partition_ids", [])
        return {
            "eventhub_name": str(value.get("name")),
            "created_at": _parse_time(value.get("created_at")),
            "partition_ids": [str(each) for each in ids] if isinstance(ids, list) else [],
        }

    async def get_partition_ids(self) -> list[str]:
        return (await self.get_eventhub_properties())["partition_ids"]

    async def get_partition_properties(self, partition_id: str) -> PartitionProperties:
        """Where the partition begins and ends now."""
        value = await self._read("com.microsoft:partition", partition=partition_id)
        last_number = value.get("last_enqueued_sequence_number")
        return {
            "eventhub_name": str(value.get("name")),
            "id": str(value.get("partition")),
            "beginning_sequence_number": _parse_number(value.get("begin_sequence_number")),
            "last_enqueued_sequence_number": _parse_number(last_number),
            "last_enqueued_offset": str(value.get("last_enqueued_offset")),
            "last_enqueued_time_utc": _parse_time(value.get("last_enqueued_time_utc")),
            "is_empty": bool(value.get("is_partition_empty")),
        }

    async def get_service_product(self) -> str:
        """`Penstock`, or the name that another service gives itself; empty where it has none."""
        connection = await with_retry(self._retry, self._own_connection)
        return connection.product

    async def close(self) -> None:
        """Pending calls raise ClientError. A second call does nothing."""
        self._is_closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    # --- inside ---------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("The client is closed.")

    async def _connect(self, path: str) -> Connection:
        """A new connection with a token for `path`. The caller closes it."""
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
        """The client's own connection, opened where there is no usable one."""
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

        async def read() -> Message:
            connection = await self._own_connection()
            try:
                return await connection.manage(properties, hub=self.eventhub_name)
            except ClientTimedOut:
                connection.abort()  # the retry opens another socket
                raise

        answer = await with_retry(self._retry, read)
        value = answer.body.value if isinstance(answer.body, ValueBody) else None
        if not isinstance(value, dict):
            raise ClientError("$management answered without a map of properties.")
        return value


def _parse_number(value: object) -> int:
    return int(value) if isinstance(value, int) else -1


def _parse_time(value: object) -> datetime:
    """The time of a partition without events is the first day of the year 1 (protocol.md 3.2)."""
    try:
        return to_datetime(int(value)) if isinstance(value, int) else _FIRST_DAY
    except OverflowError:
        return _FIRST_DAY
