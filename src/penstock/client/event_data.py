"""Events and batches as users see them. Received events are decoded when needed."""

from __future__ import annotations

import struct
from datetime import datetime
from typing import Any

import msgspec

from penstock.amqp.composite import SPECS, read_composite, write_composite
from penstock.amqp.decoder import DEFAULT, DecodeBudget, decode
from penstock.amqp.encoder import encode
from penstock.amqp.errors import AmqpDecodeError, LocalError
from penstock.amqp.message import MessageId, Properties
from penstock.amqp.types import Timestamp
from penstock.client.errors import ClientError
from penstock.client.event_position import to_datetime, to_milliseconds
from penstock.client.idempotence import ProducerState, annotations_section, write_stamp
from penstock.client.transfer_frames import data_section
from penstock.kernels import Columns, append_event
from penstock.model import limits
from penstock.model.errors import ArgumentError

_DATA = 0x75
_BODY_TYPES = {_DATA: "data", 0x76: "sequence", 0x77: "value"}
_FIELDS = b"\x00\x53\x73"
_APPLICATION_PROPERTIES = b"\x00\x53\x74"
_NO_PROPERTIES = Properties()
# header(durable=true): without it Event Hubs did not route by the key (protocol.md 4.5).
_HEADER = b"\x00\x53\x70\xc0\x02\x01\x41"
_KEY_CHARACTERS_MAX = 128
_SHORT_BINARY = 0xA0


class EventData:
    """One event. What the service assigns (`sequence_number`, `offset`, …) is None before that.

    Properties and annotations of a received event are decoded at first use. Changing `properties`
    of an event does not change a batch that contains it.
    """

    __slots__ = (
        "_body_kind",
        "_enqueued_ms",
        "_fields",
        "_fields_raw",
        "_properties",
        "_properties_raw",
        "_system_raw",
        "body",
        "offset",
        "partition_key",
        "sequence_number",
    )

    def __init__(
        self,
        body: bytes | str = b"",
        *,
        properties: dict[str, Any] | None = None,
        content_type: str | None = None,
        message_id: MessageId | None = None,
        correlation_id: MessageId | None = None,
    ) -> None:
        self.body = body.encode() if isinstance(body, str) else bytes(body)
        self._properties = properties
        self._fields: Properties | None = None
        if content_type is not None or message_id is not None or correlation_id is not None:
            self._fields = Properties(
                content_type=content_type, message_id=message_id, correlation_id=correlation_id
            )
        self.sequence_number: int | None = None
        self.offset: str | None = None
        self.partition_key: str | None = None
        self._enqueued_ms: int | None = None
        self._body_kind = _DATA
        self._properties_raw = b""
        self._system_raw = b""
        self._fields_raw = b""

    def __repr__(self) -> str:
        return f"<EventData {len(self.body)} bytes, sequence number {self.sequence_number}>"

    def __str__(self) -> str:
        return self.body_as_str("replace")

    def body_as_str(self, errors: str = "strict") -> str:
        """The body as UTF-8."""
        return self.body.decode("utf-8", errors)

    @property
    def body_type(self) -> str:
        """ "data"; or "sequence", "value", "none": then `body` is the encoded sections."""
        return _BODY_TYPES.get(self._body_kind, "none")

    @property
    def properties(self) -> dict[str, Any]:
        """The application properties. Integers keep their AMQP type (`penstock.amqp.types`)."""
        if self._properties is None:
            self._properties = _decode_map(self._properties_raw)
        return self._properties

    @property
    def system_properties(self) -> dict[str, Any]:
        """The annotations of the service: sequence number, offset, time and others."""
        return _decode_map(self._system_raw)

    @property
    def enqueued_time(self) -> datetime | None:
        """When the service stored it, in UTC."""
        return None if self._enqueued_ms is None else to_datetime(self._enqueued_ms)

    @property
    def message_id(self) -> MessageId | None:
        return self._message_properties().message_id

    @property
    def correlation_id(self) -> MessageId | None:
        return self._message_properties().correlation_id

    @property
    def content_type(self) -> str | None:
        return self._message_properties().content_type

    def _message_properties(self) -> Properties:
        if self._fields is None:
            self._fields = _NO_PROPERTIES
            if self._fields_raw:
                raw = self._fields_raw
                spec = SPECS[Properties]
                try:
                    read, _ = read_composite(spec, raw, 0, len(raw), DecodeBudget(DEFAULT))
                except (AmqpDecodeError, IndexError, struct.error) as error:
                    raise _damaged_event_error(error) from None
                assert isinstance(read, Properties)
                self._fields = read
        return self._fields

    # --- encoding -------------------------------------------------------------------------------

    def append_to(self, out: bytearray, annotations: bytes) -> None:
        """Append this event to a batch, after the encoded annotations. A received event keeps the
        bytes of its sections. Raises ArgumentError for values that AMQP cannot encode."""
        sections = self._fields_section()
        if self._properties is None and self._properties_raw:
            sections += _APPLICATION_PROPERTIES + self._properties_raw
        body = self.body
        if self._body_kind == _DATA:
            if append_event(out, annotations, sections, self._properties, body):
                return
            body = data_section(body)
        out += data_section(annotations + sections + self._properties_section() + body)

    def _fields_section(self) -> bytes:
        if self._fields_raw:
            return _FIELDS + self._fields_raw
        if self._fields is None:
            return b""
        out = bytearray()
        try:
            write_composite(out, self._fields)
        except LocalError as error:
            raise ArgumentError(f"The event's properties cannot be sent: {error}") from None
        return bytes(out)

    def _properties_section(self) -> bytes:
        if not self._properties:
            return b""
        if not all(isinstance(name, str) for name in self._properties):
            raise ArgumentError("The names of an event's properties are strings.")
        pairs = {str(name): _to_amqp(value) for name, value in self._properties.items()}
        try:
            return _APPLICATION_PROPERTIES + encode(pairs)
        except LocalError as error:
            raise ArgumentError(f"The event's properties cannot be sent: {error}") from None


class ReceivedEvent(EventData):
    """A row of columns, in the order of `Columns`; its sections are not decoded yet."""

    __slots__ = ()

    def __init__(  # does not call EventData's: it runs once per received event
        self,
        number: int,
        offset: str,
        enqueued_ms: int,
        key: str | None,
        body: bytes,
        properties: bytes,
        system: bytes,
        fields: bytes,
        kind: int,
    ) -> None:
        self.body = body
        self.sequence_number = number
        self.offset = offset
        self.partition_key = key
        self._enqueued_ms = enqueued_ms
        self._properties = self._fields = None
        self._properties_raw = properties
        self._system_raw = system
        self._fields_raw = fields
        self._body_kind = kind


class EventDataBatch:
    """One publication, stored whole or not at all; it is encoded while events are added.

    Created by `create_batch`, which knows how large it may be. A batch may be sent again, but not
    concurrently; that publishes its events again.
    """

    def __init__(
        self,
        max_size_in_bytes: int,
        *,
        partition_id: str | None = None,
        partition_key: str | None = None,
        stamped: bool = False,
    ) -> None:
        """`stamped` leaves room for the numbers of an idempotent producer."""
        check_route(partition_id, partition_key)
        self.max_size_in_bytes = max_size_in_bytes
        self.partition_id = partition_id
        self.partition_key = partition_key
        self.lane = partition_id  # the partition whose link sends it; None: the hub's link
        self.is_stamped = stamped
        # Each event repeats the annotations of the envelope, so that a broker stores it unchanged.
        self._annotations = annotations_section(partition_key, stamped=stamped)
        self._data = bytearray(_HEADER + self._annotations)
        self._envelope_size = len(self._data)
        self._count = 0
        self._starts: list[int] = []  # of the events' annotations, where the batch is stamped

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"<EventDataBatch {self._count} events, {len(self._data)} bytes>"

    @property
    def size_in_bytes(self) -> int:
        """The exact size of the encoded batch."""
        return len(self._data)

    def add(self, event: EventData) -> None:
        """Raises ValueError where the event does not fit; the batch stays as it was."""
        if not self.try_add(event):
            raise ValueError(
                f"The event does not fit: the batch has {len(self._data)} of at most "
                f"{self.max_size_in_bytes} bytes and {self._count} of at most "
                f"{limits.BATCH_EVENTS_MAX} events."
            )

    def try_add(self, event: EventData, *, partition_key: str | None = None) -> bool:
        """False where the event does not fit. `partition_key` is for one event of a batch for a
        partition."""
        data = self._data
        before = len(data)
        is_full = self._count >= limits.BATCH_EVENTS_MAX
        if is_full or before + len(event.body) > self.max_size_in_bytes:
            return False
        annotations = self._annotations
        if partition_key is not None:
            check_route(None, partition_key)
            annotations = annotations_section(partition_key, stamped=self.is_stamped)
        event.append_to(data, annotations)
        if len(data) > self.max_size_in_bytes:
            del data[before:]
            return False
        if self.is_stamped:
            self._starts.append(_content_start(data, before))
        self._count += 1
        return True

    # --- for producers --------------------------------------------------------------------------

    def stamp(self, producer: ProducerState) -> None:
        """Write the numbers after those that `producer` has published; the envelope repeats the
        first one (protocol.md 4.7)."""
        assert self.is_stamped
        number = producer.after(1)
        write_stamp(self._data, len(_HEADER), producer, number)
        for start in self._starts:
            write_stamp(self._data, start, producer, number)
            number += 1

    def payload(self) -> bytes:
        """The message of format 0x80013700."""
        return bytes(self._data)

    def single(self) -> bytes:
        """The only event as a single message."""
        assert self._count == 1
        return bytes(self._data[_content_start(self._data, self._envelope_size) :])


def to_events(columns: Columns) -> list[EventData]:
    """One EventData per row."""
    rows = zip(*msgspec.structs.astuple(columns), strict=True)
    return [ReceivedEvent(*row) for row in rows]


def _decode_map(encoded: bytes) -> dict[str, Any]:
    if not encoded:
        return {}
    try:
        value, _ = decode(encoded)
    except (AmqpDecodeError, IndexError, struct.error) as error:
        raise _damaged_event_error(error) from None
    assert isinstance(value, dict)  # the kernel checked that it is a map
    return value


def _damaged_event_error(error: Exception) -> ClientError:
    return ClientError(f"The properties of an event are damaged: {error}")


def _to_amqp(value: object) -> object:
    return Timestamp(to_milliseconds(value)) if isinstance(value, datetime) else value


def _content_start(data: bytearray, section_start: int) -> int:
    """Where the content of a data section begins."""
    return section_start + (5 if data[section_start + 3] == _SHORT_BINARY else 8)


def check_route(partition_id: str | None, partition_key: str | None) -> None:
    """Raises ArgumentError."""
    if partition_key is None:
        return
    if partition_id is not None:
        raise ArgumentError("A partition id and a partition key exclude each other.")
    if not isinstance(partition_key, str) or len(partition_key) > _KEY_CHARACTERS_MAX:
        raise ArgumentError(f"A partition key is text of at most {_KEY_CHARACTERS_MAX} characters.")
