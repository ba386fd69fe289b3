"""Whole messages (AMQP 3.2), for the small ones of `$cbs` and `$management`.

Events are never decoded here: they stay encoded messages from producer to consumer.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from penstock.amqp import types as t
from penstock.amqp.composite import (
    SPECS,
    Binary,
    Composite,
    FieldCodec,
    String,
    SymbolText,
    Timestamp,
    Uint,
    composite,
    read_composite,
    read_descriptor,
    write_composite,
)
from penstock.amqp.decoder import DEFAULT, DecodeBudget, DecodeLimits, read_value
from penstock.amqp.encoder import write_binary, write_ulong, write_value
from penstock.amqp.errors import AmqpDecodeError, LocalError

# The value keeps its AMQP type (a ulong is a types.Ulong), so that a request's message-id becomes
# the answer's correlation-id with the same type (protocol.md E16).
MessageId: TypeAlias = int | str | bytes | uuid.UUID


def _read_message_id(
    data: bytes, pos: int, end: int, budget: DecodeBudget
) -> tuple[MessageId, int]:
    value, pos = read_value(data, pos, end, budget)
    if isinstance(value, bool) or not isinstance(value, int | str | bytes | uuid.UUID):
        raise AmqpDecodeError(f"{type(value).__name__} where ulong, uuid, binary or string must be")
    return value, pos


def _write_message_id(out: bytearray, value: MessageId) -> None:
    if isinstance(value, bool) or not isinstance(value, int | str | bytes | uuid.UUID):
        raise TypeError
    if type(value) is int:
        write_ulong(out, value)
    else:
        write_value(out, value, 0)


MessageIdField = Annotated[MessageId, FieldCodec("message-id", _read_message_id, _write_message_id)]


@composite("amqp:properties:list", 0x73)
class Properties(Composite, kw_only=True):
    message_id: MessageIdField | None = None
    user_id: Binary | None = None
    to: String | None = None
    subject: String | None = None
    reply_to: String | None = None
    correlation_id: MessageIdField | None = None
    content_type: SymbolText | None = None
    content_encoding: SymbolText | None = None
    absolute_expiry_time: Timestamp | None = None
    creation_time: Timestamp | None = None
    group_id: String | None = None
    group_sequence: Uint | None = None
    reply_to_group_id: String | None = None


class DataBody(msgspec.Struct):
    """One or more data sections."""

    chunks: list[bytes]

    def __repr__(self) -> str:
        return f"DataBody({len(self.chunks)} sections)"


class ValueBody(msgspec.Struct):
    """One amqp-value section."""

    value: object

    def __repr__(self) -> str:
        return f"ValueBody({type(self.value).__name__})"


class SequenceBody(msgspec.Struct):
    """One or more amqp-sequence sections."""

    lists: list[list[object]]

    def __repr__(self) -> str:
        return f"SequenceBody({len(self.lists)} sections)"


Body: TypeAlias = DataBody | ValueBody | SequenceBody


class Message(msgspec.Struct, kw_only=True):
    """The sections of a message; None for a section that is absent.

    Keys of annotations are encoded as symbols, keys of application properties as strings. The body
    or an application property may be a token, so the repr shows no contents.
    """

    header: list[object] | None = None
    delivery_annotations: dict[Any, object] | None = None
    message_annotations: dict[Any, object] | None = None
    properties: Properties | None = None
    application_properties: dict[str, object] | None = None
    body: Body | None = None
    footer: dict[Any, object] | None = None

    def __repr__(self) -> str:
        present = [name for name in self.__struct_fields__ if getattr(self, name) is not None]
        return f"Message({', '.join(present)})"


_HEADER: Final = 0x70
_DELIVERY_ANNOTATIONS: Final = 0x71
_MESSAGE_ANNOTATIONS: Final = 0x72
_PROPERTIES: Final = 0x73
_APPLICATION_PROPERTIES: Final = 0x74
_DATA: Final = 0x75
_SEQUENCE: Final = 0x76
_VALUE: Final = 0x77
_FOOTER: Final = 0x78

# Section code -> (attribute of Message, symbolic descriptor), in the order of AMQP 3.2.
_SECTIONS: Final[dict[int, tuple[str, str]]] = {
    _HEADER: ("header", "amqp:header:list"),
    _DELIVERY_ANNOTATIONS: ("delivery_annotations", "amqp:delivery-annotations:map"),
    _MESSAGE_ANNOTATIONS: ("message_annotations", "amqp:message-annotations:map"),
    _PROPERTIES: ("properties", "amqp:properties:list"),
    _APPLICATION_PROPERTIES: ("application_properties", "amqp:application-properties:map"),
    _DATA: ("body", "amqp:data:binary"),
    _SEQUENCE: ("body", "amqp:amqp-sequence:list"),
    _VALUE: ("body", "amqp:amqp-value:*"),
    _FOOTER: ("footer", "amqp:footer:map"),
}
_CODES: Final[dict[str, int]] = {symbol: code for code, (_, symbol) in _SECTIONS.items()}


# --- writing ---------------------------------------------------------------------------------


def encode_message(message: Message) -> bytes:
    """Encode the sections in the order of AMQP 3.2, descriptors as smallulong (E1).

    Raises LocalError if a value cannot be encoded.
    """
    out = bytearray()
    if message.header is not None:
        _append_section(out, _HEADER, message.header)
    _append_annotations(out, _DELIVERY_ANNOTATIONS, message.delivery_annotations)
    _append_annotations(out, _MESSAGE_ANNOTATIONS, message.message_annotations)
    if message.properties is not None:
        write_composite(out, message.properties)
    if message.application_properties is not None:
        _append_section(
            out, _APPLICATION_PROPERTIES, _check_property_names(message.application_properties)
        )
    _append_body(out, message.body)
    _append_annotations(out, _FOOTER, message.footer)
    return bytes(out)


def _append_section(out: bytearray, code: int, value: object) -> None:
    out += bytes((t.DESCRIBED, t.SMALL_ULONG, code))
    write_value(out, value, 0)


def _append_annotations(out: bytearray, code: int, value: dict[Any, object] | None) -> None:
    if value is None:
        return
    annotations = {
        t.Symbol(key) if isinstance(key, str) else key: item for key, item in value.items()
    }
    _append_section(out, code, annotations)


def _check_property_names(pairs: dict[str, object]) -> dict[str, object]:
    if not all(isinstance(key, str) for key in pairs):
        raise LocalError("application-properties: every key must be a str")
    return {str(key): value for key, value in pairs.items()}


def _append_body(out: bytearray, body: Body | None) -> None:
    if body is None:
        return
    if isinstance(body, ValueBody):
        _append_section(out, _VALUE, body.value)
    elif isinstance(body, DataBody):
        for chunk in body.chunks:
            out += bytes((t.DESCRIBED, t.SMALL_ULONG, _DATA))
            write_binary(out, chunk)
    else:
        for sequence in body.lists:
            _append_section(out, _SEQUENCE, sequence)


# --- reading ---------------------------------------------------------------------------------


def decode_message(data: bytes, *, limits: DecodeLimits = DEFAULT) -> Message:
    """Decode a message whose sections are in any order (protocol.md 4.6).

    Only data and sequence sections may occur more than once, and a body may not mix them. The
    limits hold for all sections together. Raises AmqpDecodeError.
    """
    budget = DecodeBudget(limits)
    message = Message()
    pos, end = 0, len(data)
    while pos < end:
        code, pos = _read_section_code(data, pos)
        budget.take(1)  # data and sequence sections may repeat
        try:
            pos = _READERS[code](message, data, pos, end, code, budget)
        except AmqpDecodeError as error:
            raise AmqpDecodeError(f"section {_SECTIONS[code][1]}: {error}") from None
        except (IndexError, struct.error):
            raise AmqpDecodeError(f"section {_SECTIONS[code][1]} is cut short") from None
    return message


def _read_section_code(data: bytes, pos: int) -> tuple[int, int]:
    try:
        descriptor, next_pos = read_descriptor(data, pos, len(data))
    except (IndexError, struct.error):
        raise AmqpDecodeError(f"section at position {pos} is cut short") from None
    code = _CODES.get(descriptor) if isinstance(descriptor, str) else descriptor
    if code not in _SECTIONS:
        raise AmqpDecodeError(f"no message section at position {pos}")
    return code, next_pos


def _read_once(
    message: Message, data: bytes, pos: int, end: int, code: int, budget: DecodeBudget
) -> int:
    attribute = _SECTIONS[code][0]
    if getattr(message, attribute) is not None:
        raise AmqpDecodeError("comes twice, or beside another kind of body")
    value: object
    if code == _PROPERTIES:
        value, pos = read_composite(SPECS[Properties], data, pos, end, budget)
    else:
        value, pos = read_value(data, pos, end, budget)
        value = _CONVERTERS[code](value)
    setattr(message, attribute, value)
    return pos


def _read_data(
    message: Message, data: bytes, pos: int, end: int, code: int, budget: DecodeBudget
) -> int:
    chunk, pos = read_value(data, pos, end, budget)
    if type(chunk) is not bytes:
        raise AmqpDecodeError(f"{type(chunk).__name__} where binary must be")
    if message.body is None:
        message.body = DataBody([])
    if not isinstance(message.body, DataBody):
        raise AmqpDecodeError("comes beside another kind of body")
    message.body.chunks.append(chunk)
    return pos


def _read_sequence(
    message: Message, data: bytes, pos: int, end: int, code: int, budget: DecodeBudget
) -> int:
    value, pos = read_value(data, pos, end, budget)
    values = _as_list(value)
    if message.body is None:
        message.body = SequenceBody([])
    if not isinstance(message.body, SequenceBody):
        raise AmqpDecodeError("comes beside another kind of body")
    message.body.lists.append(values)
    return pos


def _as_list(value: object) -> list[object]:
    if type(value) is not list:
        raise AmqpDecodeError(f"{type(value).__name__} where a list must be")
    return value


def _as_map(value: object) -> dict[object, object]:
    if type(value) is not dict:
        raise AmqpDecodeError(f"{type(value).__name__} where a map must be")
    return value


def _as_named_map(value: object) -> dict[object, object]:
    pairs = _as_map(value)
    if not all(isinstance(key, str) for key in pairs):
        raise AmqpDecodeError("key that is not a string")
    return pairs


_CONVERTERS: Final[dict[int, Callable[[object], object]]] = {
    _HEADER: _as_list,
    _DELIVERY_ANNOTATIONS: _as_map,
    _MESSAGE_ANNOTATIONS: _as_map,
    _APPLICATION_PROPERTIES: _as_named_map,
    _VALUE: ValueBody,
    _FOOTER: _as_map,
}

_READERS: Final = dict.fromkeys(_SECTIONS, _read_once) | {
    _DATA: _read_data,
    _SEQUENCE: _read_sequence,
}
