"""The sections of an event as bytes and as values.

Beside its body and partition key an event has application-properties (`properties`), AMQP's own
properties such as content-type (`fields`), and message-annotations (`annotations`). Each is the
encoded map or list as it was received, or empty.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from penstock.amqp.composite import SPECS, read_composite, write_composite
from penstock.amqp.decoder import DEFAULT, DecodeBudget, read_value, skip
from penstock.amqp.encoder import encode
from penstock.amqp.errors import AmqpDecodeError, LocalError
from penstock.amqp.message import Properties, decode_message
from penstock.amqp.types import Symbol
from penstock.formats.amqp_values import InvalidEvent
from penstock.kernels import encode_map
from penstock.model.errors import ArgumentError

DATA = 0x75
BODY_TYPES = {DATA: "data", 0x76: "sequence", 0x77: "value", 0: "none"}
BODY_KINDS = {name: kind for kind, name in BODY_TYPES.items()}
PARTITION_KEY = "x-opt-partition-key"
# Annotations that every event has, each event with its own values.
POSITION_ANNOTATIONS = frozenset(
    ("x-opt-sequence-number", "x-opt-sequence-number-epoch", "x-opt-offset", "x-opt-enqueued-time")
)
# The service assigns these again when an event is published again.
SERVICE_ANNOTATIONS = (
    POSITION_ANNOTATIONS
    | {PARTITION_KEY}
    | {f"com.microsoft:producer-{name}" for name in ("id", "epoch", "sequence-number")}
)
FIELD_NAMES = {name: name.replace("_", "-") for name in Properties.__struct_fields__}
FIELDS = frozenset(FIELD_NAMES.values())
_MAP8 = 0xC1
_POSITION_COUNT = 2 * len(POSITION_ANNOTATIONS)  # keys and values
_PROPERTIES_SPEC = SPECS[Properties]
_DESCRIPTOR_BYTES = 3


class EventSections(NamedTuple):
    properties: bytes = b""
    fields: bytes = b""
    annotations: bytes = b""


SECTION_NAMES = ("application-properties", "properties", "message-annotations")
"""AMQP's names of the three sections, in the order of EventSections."""


class EventContent(NamedTuple):
    """The parts of an event that are published again. `partition` is where it was stored."""

    body: bytes
    sections: EventSections
    key: str | None = None
    kind: int = DATA
    partition: str | None = None


def check_content(content: EventContent) -> EventContent:
    """Check bytes that come from a file before they are published. Raises InvalidEvent."""
    map_values(content.sections.properties)
    map_values(content.sections.annotations)
    field_values(content.sections.fields)
    if content.kind != DATA:
        try:
            decode_message(content.body)
        except AmqpDecodeError as error:
            body_type = BODY_TYPES[content.kind]
            raise InvalidEvent(f"the body is not a valid {body_type}: {error}") from None
    return content


def own_annotations(
    annotations: bytes, key: str | None, without: Collection[str] = SERVICE_ANNOTATIONS
) -> bytes:
    """The annotations map without the names `without`; the bytes of other pairs are unchanged."""
    if not annotations:
        return b""
    usual_count = _POSITION_COUNT if key is None else _POSITION_COUNT + 2
    if (
        annotations[0] == _MAP8
        and annotations[2] == usual_count
        and b"x-opt-sequence-number-epoch" in annotations
    ):
        return b""  # the service's own annotations only
    pairs: list[bytes] = []
    for pair in split_map(annotations):
        name, _ = read_value(pair, 0, len(pair), DecodeBudget(DEFAULT))
        if not (isinstance(name, str) and name in without):
            pairs.append(pair)
    return join_map(pairs)


def split_map(encoded: bytes) -> list[bytes]:
    """The encoded pairs of an encoded map."""
    pairs, position = [], 3 if encoded[0] == _MAP8 else 9
    while position < len(encoded):
        stop = skip(encoded, skip(encoded, position))
        pairs.append(encoded[position:stop])
        position = stop
    return pairs


def join_map(pairs: list[bytes]) -> bytes:
    """The encoded map of encoded pairs; empty if there is no pair."""
    return encode_map(2 * len(pairs), b"".join(pairs)) if pairs else b""


def map_values(encoded: bytes) -> dict[str, object]:
    """The values of application-properties or annotations. Keys that are not text are left out.

    Raises InvalidEvent.
    """
    if not encoded:
        return {}
    try:
        value, stop = read_value(encoded, 0, len(encoded), DecodeBudget(DEFAULT))
    except AmqpDecodeError as error:
        raise InvalidEvent(f"An event's properties cannot be read: {error}") from None
    if not isinstance(value, dict) or stop != len(encoded):
        raise InvalidEvent(f"An event's properties are a {type(value).__name__}, not one map.")
    return {str(name): item for name, item in value.items() if isinstance(name, str)}


def field_values(encoded: bytes) -> dict[str, object]:
    """AMQP's own properties by name: {"content-type": "text/plain"}. Raises InvalidEvent."""
    if not encoded:
        return {}
    try:
        properties, stop = read_composite(
            _PROPERTIES_SPEC, encoded, 0, len(encoded), DecodeBudget(DEFAULT)
        )
    except (AmqpDecodeError, IndexError) as error:
        raise InvalidEvent(f"An event's properties cannot be read: {error}") from None
    if stop != len(encoded):
        raise InvalidEvent("An event's properties are followed by other bytes.")
    values = ((shown, getattr(properties, name)) for name, shown in FIELD_NAMES.items())
    return {name: value for name, value in values if value is not None}


def encode_properties(values: Mapping[str, object]) -> bytes:
    """Raises ArgumentError for values that AMQP cannot hold, as the next two functions do."""
    return _encode(dict(values)) if values else b""


def encode_annotations(values: Mapping[str, object]) -> bytes:
    return _encode({Symbol(name): value for name, value in values.items()}) if values else b""


def encode_fields(values: Mapping[str, object]) -> bytes:
    if not values:
        return b""
    names = {shown: name for name, shown in FIELD_NAMES.items()}
    out = bytearray()
    try:
        write_composite(out, Properties(**{names[name]: item for name, item in values.items()}))  # type: ignore[arg-type]  # it checks them
    except LocalError as error:
        raise _properties_error(error) from None
    return bytes(out[_DESCRIPTOR_BYTES:])


def _encode(values: Mapping[str, object]) -> bytes:
    try:
        return encode(values)
    except LocalError as error:
        raise _properties_error(error) from None


def _properties_error(error: LocalError) -> ArgumentError:
    return ArgumentError(f"The event's properties cannot be sent: {error}")
