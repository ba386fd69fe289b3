"""Events as users see them: made by a producer, or received, and then opened only when asked."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.amqp.composite import SPECS, read_composite, write_composite
from penstock.amqp.decoder import DEFAULT, DecodeBudget, decode
from penstock.amqp.encoder import encode
from penstock.amqp.errors import AmqpDecodeError, LocalError
from penstock.amqp.message import MessageId, Properties
from penstock.amqp.types import Timestamp
from penstock.client.errors import ClientError
from penstock.client.transfer_frames import data_section
from penstock.kernels import Columns, append_event
from penstock.model.errors import ArgumentError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATA = 0x75
_BODY_TYPES = {_DATA: "data", 0x76: "sequence", 0x77: "value"}
_FIELDS = b"\x00\x53\x73"
_APPLICATION_PROPERTIES = b"\x00\x53\x74"
_NO_PROPERTIES = Properties()


class EventData:
    """One event. What the service gives (`sequence_number`, `offset`, …) is None before that.

    Of a received event body and place are there at once; properties and annotations are decoded
    when they are asked for. Changing `properties` of an event that is in a batch changes nothing.
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

    body: bytes
    sequence_number: int | None
    offset: str | None
    partition_key: str | None

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
        self.sequence_number = None
        self.offset = None
        self.partition_key = None
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
        """ "data"; or "sequence", "value", "none": then `body` are the encoded sections."""
        return _BODY_TYPES.get(self._body_kind, "none")

    @property
    def properties(self) -> dict[str, Any]:
        """The application properties. Integers remember their AMQP type (`penstock.amqp.types`)."""
        if self._properties is None:
            self._properties = _decode_map(self._properties_raw)
        return self._properties

    @property
    def system_properties(self) -> dict[str, Any]:
        """The annotations as the service gave them: sequence number, offset, time and others."""
        return _decode_map(self._system_raw)

    @property
    def enqueued_time(self) -> datetime | None:
        """When the service stored it, UTC."""
        if self._enqueued_ms is None:
            return None
        return _EPOCH + timedelta(milliseconds=self._enqueued_ms)

    @property
    def message_id(self) -> MessageId | None:
        return self._message_properties().message_id

    @property
    def correlation_id(self) -> MessageId | None:
        return self._message_properties().correlation_id

    @property
    def content_type(self) -> str | None:
        return self._message_properties().content_type

    @property
    def raw_properties(self) -> bytes:
        """The encoded application-properties map as received, empty when there is none."""
        return self._properties_raw

    @property
    def raw_system_properties(self) -> bytes:
        """The encoded message-annotations map as received."""
        return self._system_raw

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

    # --- towards the wire -----------------------------------------------------------------------

    def append_to(self, out: bytearray, annotations: bytes) -> None:
        """Append this event to a batch, behind encoded annotations. An event that was received
        keeps the bytes of its sections. Raises ArgumentError for what AMQP cannot hold."""
        fields = self._fields_section()
        if self._body_kind == _DATA:
            properties = self._properties
            if properties is None and self._properties_raw:
                fields += _APPLICATION_PROPERTIES + self._properties_raw
            if append_event(out, annotations, fields, properties, self.body):
                return
            body = data_section(self.body)
        else:
            body = self.body
        message = annotations + self._fields_section() + self._properties_section() + body
        out += data_section(message)

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
        if self._properties is None and self._properties_raw:
            return _APPLICATION_PROPERTIES + self._properties_raw
        if not self._properties:
            return b""
        if not all(isinstance(name, str) for name in self._properties):
            raise ArgumentError("The names of an event's properties are strings.")
        pairs = {str(name): _wire(value) for name, value in self._properties.items()}
        try:
            return _APPLICATION_PROPERTIES + encode(pairs)
        except LocalError as error:
            raise ArgumentError(f"The event's properties cannot be sent: {error}") from None


class ReceivedEvent(EventData):
    """A row of columns; its sections stay closed."""

    __slots__ = ()

    def __init__(  # not EventData's: this is the cost of an event received
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


def to_events(columns: Columns) -> list[EventData]:
    """One EventData per row."""
    rows = zip(
        columns.sequence_numbers,
        columns.offsets,
        columns.enqueued_ms,
        columns.partition_keys,
        columns.bodies,
        columns.properties,
        columns.system,
        columns.message_properties,
        columns.body_kinds,
        strict=True,
    )
    return [ReceivedEvent(*row) for row in rows]


def _decode_map(encoded: bytes) -> dict[str, Any]:
    if not encoded:
        return {}
    try:
        value, _ = decode(encoded)
    except (AmqpDecodeError, IndexError, struct.error) as error:
        raise _damaged_event_error(error) from None
    assert isinstance(value, dict)  # the kernel saw a map
    return value


def _damaged_event_error(error: Exception) -> ClientError:
    return ClientError(f"The properties of an event are damaged: {error}")


def _wire(value: object) -> object:
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return Timestamp((aware - _EPOCH) // timedelta(milliseconds=1))
    return value
