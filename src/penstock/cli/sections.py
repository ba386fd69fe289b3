"""An event's sections as bytes, and as values that JSON and Avro can hold.

What an event carries beside its body and key: application-properties (`properties`), AMQP's own
properties such as content-type (`fields`), and message-annotations that are not the service's
(`annotations`), each the encoded map or list as it came, empty where there is none.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from penstock.amqp.composite import SPECS, read_composite, write_composite
from penstock.amqp.decoder import DEFAULT, DecodeBudget, read_value, skip
from penstock.amqp.encoder import encode
from penstock.amqp.errors import AmqpDecodeError, LocalError
from penstock.amqp.message import Properties
from penstock.amqp.types import Symbol
from penstock.client.event_data import ReceivedEvent
from penstock.client.idempotence import PARTITION_KEY
from penstock.kernels import Columns
from penstock.model.errors import ArgumentError, PenstockError

DATA = 0x75
BODY_KINDS = {DATA: "data", 0x76: "sequence", 0x77: "value", 0: "none"}
# The service gives these to each event; a copy gets others. Stamps number one publication.
SERVICE_ANNOTATIONS = frozenset(
    f"x-opt-{name}"
    for name in (
        "sequence-number",
        "sequence-number-epoch",
        "offset",
        "enqueued-time",
        "partition-key",
    )
) | {f"com.microsoft:producer-{name}" for name in ("id", "epoch", "sequence-number")}
FIELD_NAMES = {
    name: name.replace("_", "-") for name in Properties.__struct_fields__
}  # message_id: message-id
_MAP8, _MAP32 = 0xC1, 0xD1
_PLACE_COUNT = 8  # keys and values of the service's annotations of an event without a key
_ANNOTATIONS, _FIELDS, _PROPERTIES = b"\x00\x53\x72", b"\x00\x53\x73", b"\x00\x53\x74"
_PROPERTIES_SPEC = SPECS[Properties]


class InvalidEvent(PenstockError):
    """A file, or a service, gave something that is no event."""


class EventSections(NamedTuple):
    properties: bytes = b""
    fields: bytes = b""
    annotations: bytes = b""


class EventCopy(ReceivedEvent):
    """An event that is published as it was received, or exported: its sections' bytes stay."""

    __slots__ = ("_annotations", "partition")

    def __init__(
        self,
        body: bytes,
        sections: EventSections,
        *,
        key: str | None = None,
        kind: int = DATA,
        partition: str | None = None,
    ) -> None:
        """`partition` is where it was."""
        super().__init__(-1, "", 0, key, body, sections.properties, b"", sections.fields, kind)
        self.partition = partition
        self._annotations = _with_key(sections.annotations, key)

    def append_to(self, out: bytearray, annotations: bytes) -> None:
        super().append_to(out, self._annotations)


def copy_events(columns: Columns, partition: str) -> list[EventCopy]:
    """One of each row."""
    rows = zip(
        columns.bodies,
        columns.properties,
        columns.message_properties,
        columns.system,
        columns.partition_keys,
        columns.body_kinds,
        strict=True,
    )
    return [
        EventCopy(
            body,
            EventSections(properties, fields, own_annotations(system, key)),
            key=key,
            kind=kind,
            partition=partition,
        )
        for body, properties, fields, system, key, kind in rows
    ]


def own_annotations(system: bytes, key: str | None) -> bytes:
    """The map without what the service put there; the bytes of what stays are untouched."""
    if not system:
        return b""
    usual = _PLACE_COUNT if key is None else _PLACE_COUNT + 2
    if system[0] == _MAP8 and system[2] == usual and b"x-opt-sequence-number-epoch" in system:
        return b""  # as every event has them, and no more
    return _user_annotations(system)


def _user_annotations(system: bytes) -> bytes:
    pairs: list[bytes] = []
    position = 3 if system[0] == _MAP8 else 9
    end = len(system)
    while position < end:
        name, value = read_value(system, position, end, DecodeBudget(DEFAULT))
        stop = skip(system, value)
        if not (isinstance(name, str) and name in SERVICE_ANNOTATIONS):
            pairs.append(system[position:stop])
        position = stop
    return _encode_map(pairs)


def _encode_map(pairs: list[bytes]) -> bytes:
    if not pairs:
        return b""
    inside, count = b"".join(pairs), 2 * len(pairs)
    if len(inside) < 255 and count < 256:
        return bytes((_MAP8, len(inside) + 1, count)) + inside
    return struct.pack(">BII", _MAP32, len(inside) + 4, count) + inside


@lru_cache(maxsize=4096)
def _with_key(annotations: bytes, key: str | None) -> bytes:
    """The whole section, with the key where there is one."""
    pairs = []
    if annotations:
        pairs = _split_map(annotations)
    if key is not None:
        pairs.append(encode(Symbol(PARTITION_KEY)) + encode(key))
    return _ANNOTATIONS + _encode_map(pairs) if pairs else b""


def _split_map(encoded: bytes) -> list[bytes]:
    pairs, position = [], 3 if encoded[0] == _MAP8 else 9
    while position < len(encoded):
        stop = skip(encoded, skip(encoded, position))
        pairs.append(encoded[position:stop])
        position = stop
    return pairs


# --- values ---------------------------------------------------------------------------------------


def map_values(encoded: bytes) -> dict[str, object]:
    """Of application-properties or annotations. Names that are no text are left out."""
    if not encoded:
        return {}
    try:
        value, stop = read_value(encoded, 0, len(encoded), DecodeBudget(DEFAULT))
    except AmqpDecodeError as error:
        raise InvalidEvent(f"An event's properties cannot be read: {error}") from None
    if not isinstance(value, dict) or stop != len(encoded):
        raise InvalidEvent(f"An event's properties are a {type(value).__name__}, no map alone.")
    return {str(name): each for name, each in value.items() if isinstance(name, str)}


def field_values(encoded: bytes) -> dict[str, object]:
    """Of AMQP's own properties: {"content-type": "text/plain"}"""
    if not encoded:
        return {}
    try:
        read, stop = read_composite(
            _PROPERTIES_SPEC, encoded, 0, len(encoded), DecodeBudget(DEFAULT)
        )
    except (AmqpDecodeError, IndexError) as error:
        raise InvalidEvent(f"An event's properties cannot be read: {error}") from None
    if stop != len(encoded):
        raise InvalidEvent("An event's properties have something behind their end.")
    found = ((shown, getattr(read, name)) for name, shown in FIELD_NAMES.items())
    return {name: value for name, value in found if value is not None}


def encode_properties(values: Mapping[str, object]) -> bytes:
    return _encode_properties_map(values) if values else b""


def encode_annotations(values: Mapping[str, object]) -> bytes:
    return (
        _encode_properties_map({Symbol(name): value for name, value in values.items()})
        if values
        else b""
    )


def encode_fields(values: Mapping[str, object]) -> bytes:
    """Raises ArgumentError for a name or a value that AMQP's properties cannot have."""
    if not values:
        return b""
    names = {shown: name for name, shown in FIELD_NAMES.items()}
    out = bytearray()
    try:
        write_composite(out, Properties(**{names[name]: each for name, each in values.items()}))  # type: ignore[arg-type]  # it checks them
    except LocalError as error:
        raise ArgumentError(f"The event's properties cannot be sent: {error}") from None
    return bytes(out[len(_FIELDS) :])


def _encode_properties_map(values: Mapping[str, object]) -> bytes:
    try:
        return encode(dict(values))
    except LocalError as error:
        raise ArgumentError(f"The event's properties cannot be sent: {error}") from None
