"""Requests as AMQP messages (protocol.md 7.1, 4.4): headers, `BrokerProperties` and JSON batches.

An event that was published over HTTPS is read over AMQP like any other. So a publisher can state
here what it can state there: the partition key, the standard properties, and its own properties.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator
from functools import lru_cache
from typing import TypeVar

import msgspec

from penstock.amqp.message import Message, Properties, encode_message
from penstock.amqp.types import Symbol, Ulong
from penstock.model import limits, names
from penstock.model.errors import ArgumentError, MessageTooLarge, NotAllowed

CONTENT_TYPE = b"application/vnd.microsoft.servicebus.json"
EVENTS_PER_STEP = 500  # a few milliseconds; other tasks run in between

_BOM = b"\xef\xbb\xbf"
_LONG_MIN, _LONG_MAX, _ULONG_MAX = -(2**63), 2**63 - 1, 2**64 - 1

PARTITION_KEY = Symbol("x-opt-partition-key")

# Publishers repeat their headers in every request.
_HEADS_CACHED = 256

# Headers that describe the request, not the event.
_REQUEST_HEADERS = frozenset(
    b"accept authorization brokerproperties cache-control connection content-encoding "
    b"content-length content-type content-language content-location content-md5 content-range "
    b"cookie date dnt expect forwarded from host keep-alive max-forwards origin pragma "
    b"range referer te trailer transfer-encoding upgrade upgrade-insecure-requests user-agent "
    b"via warning servicebusauthorization x-real-ip".split()
)
_REQUEST_HEADER_PREFIXES = (
    *(b"accept-", b"access-control-", b"if-", b"proxy-"),
    *(b"sec-", b"x-forwarded-", b"x-ms-"),
)

# A Priority header of HTTP (RFC 9218), as browsers send it; any other is a property of the event.
_REQUEST_PRIORITY = re.compile(rb"(?:u=[0-7])?(?:, ?)?(?:i(?:=\?[01])?)?")

_ESCAPED = re.compile(r'\\(["\\])')

Pairs = tuple[tuple[bytes, bytes], ...]

_T = TypeVar("_T")


class BrokerProperties(msgspec.Struct, frozen=True, gc=False, rename="pascal"):
    """Those that have a meaning for a hub; others (TimeToLive, State ...) are ignored."""

    partition_key: str | None = None
    message_id: str | None = None
    correlation_id: str | None = None
    content_type: str | None = None
    label: str | None = None
    to: str | None = None
    reply_to: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None


NO_PROPERTIES = BrokerProperties()
_broker_properties = msgspec.json.Decoder(BrokerProperties)


def parse_broker_properties(value: bytes) -> BrokerProperties:
    """The header's JSON object. Raises ArgumentError."""
    return decode_json(_broker_properties, value, "The BrokerProperties header")


def decode_json(decoder: msgspec.json.Decoder[_T], data: bytes, what: str) -> _T:
    """Raises ArgumentError. The decoder refuses numbers that do not fit, NaN and deep nesting; of a
    repeated name the last value counts."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{what} cannot be read: {names.quote_text(str(error))}.") from None
    except RecursionError:
        raise ArgumentError(f"{what} cannot be read: it is nested too deeply.") from None


def user_headers(headers: list[tuple[bytes, bytes]]) -> Pairs:
    """The headers that become properties of the event, names as the client wrote them."""
    return tuple(pair for pair in headers if not _is_request_header(pair[0].lower(), pair[1]))


@lru_cache(maxsize=_HEADS_CACHED)
def message_head(
    content_type: bytes | None,
    content_encoding: bytes | None,
    broker_properties: bytes | None,
    headers: Pairs,
) -> bytes:
    """The encoded sections of a single event before its data. Raises ArgumentError."""
    stated = NO_PROPERTIES
    if broker_properties is not None:
        stated = parse_broker_properties(broker_properties)
    own_type = stated.content_type if content_type is None else _decode_header(content_type)
    properties = standard_properties(
        stated, own_type, None if content_encoding is None else _decode_header(content_encoding)
    )
    own: dict[str, object] = {}
    for name, value in headers:
        # A repeated header is one list of values (RFC 9110 5.3).
        text = _unquote(_decode_header(value))
        earlier = own.get(_decode_header(name))
        own[_decode_header(name)] = text if earlier is None else f"{earlier}, {text}"
    return encode_message_head(stated.partition_key, properties, own)


def encode_message_head(
    partition_key: str | None, properties: Properties | None, own: dict[str, object] | None
) -> bytes:
    annotations: dict[object, object] | None = None
    if partition_key is not None:
        annotations = {PARTITION_KEY: partition_key}
    return encode_message(
        Message(
            message_annotations=annotations,
            properties=properties,
            application_properties=own or None,
        )
    )


def standard_properties(
    stated: BrokerProperties, content_type: str | None, content_encoding: str | None = None
) -> Properties | None:
    """The properties section; None if it would be empty, as for most events."""
    for what, text in (("content type", content_type), ("content encoding", content_encoding)):
        if text is not None and not text.isascii():  # symbols, by AMQP 3.2.4
            raise ArgumentError(f"The {what} '{names.quote_text(text)}' is not ASCII text.")
    properties = Properties(
        message_id=stated.message_id,
        to=stated.to,
        subject=stated.label,
        reply_to=stated.reply_to,
        correlation_id=stated.correlation_id,
        content_type=content_type,
        content_encoding=content_encoding,
        group_id=stated.session_id,
        reply_to_group_id=stated.reply_to_session_id,
    )
    return None if properties == _NOTHING else properties


_NOTHING = Properties()


def _is_request_header(name: bytes, value: bytes) -> bool:
    if name == b"priority":
        return _REQUEST_PRIORITY.fullmatch(value) is not None
    return name in _REQUEST_HEADERS or name.startswith(_REQUEST_HEADER_PREFIXES)


def _decode_header(value: bytes) -> str:
    """Headers declare no encoding: UTF-8 if valid (curl), otherwise Latin-1 (RFC 9110)."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _unquote(text: str) -> str:
    """A quoted string is the string in the quotes, as Service Bus REST writes strings. Anything
    else is text as well: no type is derived from the look of a value."""
    if len(text) >= 2 and text[0] == text[-1] == '"':
        return _ESCAPED.sub(r"\1", text[1:-1])
    return text


# --- batches -------------------------------------------------------------------------------------

Scalar = str | int | float | bool | None


class BatchEntry(msgspec.Struct, frozen=True, gc=False, rename="pascal"):
    """One event as the client writes it. Only `Body` is required."""

    body: str
    is_body_base64: bool | None = None
    broker_properties: BrokerProperties | None = None
    user_properties: dict[str, Scalar] | None = None


_entries = msgspec.json.Decoder(list[BatchEntry])


def is_batch(content_type: bytes) -> bool:
    return content_type.partition(b";")[0].strip().lower() == CONTENT_TYPE


class BatchEncoder:
    """Encodes in steps. Raises ArgumentError, NotAllowed or MessageTooLarge as soon as possible.
    `key` is the partition key of the whole batch, from the BrokerProperties of the request."""

    def __init__(self, body: bytes, *, key: str | None, bytes_max: int) -> None:
        self._entries = decode_json(_entries, body.removeprefix(_BOM), "The batch")
        if not 0 < len(self._entries) <= limits.BATCH_EVENTS_MAX:
            raise ArgumentError(
                f"A batch of {len(self._entries)} events: "
                f"1 to {limits.BATCH_EVENTS_MAX} are allowed."
            )
        self._key = key
        self._bytes_max = bytes_max
        self._parts: list[bytes] = []

    def steps(self) -> Iterator[None]:
        """Encode the events, some at a time."""
        count, size = len(self._entries), 0
        for first in range(0, count, EVENTS_PER_STEP):
            if first:
                yield
            for entry in self._entries[first : first + EVENTS_PER_STEP]:
                message = self._message(entry)
                head = data_section_header(len(message))
                self._parts += head, message
                size += len(head) + len(message)
            if size > self._bytes_max:
                raise batch_too_large(size, self._bytes_max, more=first + EVENTS_PER_STEP < count)

    def message(self) -> bytes:
        """The encoded publication: an envelope with the partition key of the batch, if there is
        one, and the events."""
        envelope = encode_message_head(self._key, None, None)
        message = b"".join([envelope, *self._parts])
        if len(message) > self._bytes_max:
            raise batch_too_large(len(message), self._bytes_max)
        return message

    def _message(self, entry: BatchEntry) -> bytes:
        body = _decode_base64(entry.body) if entry.is_body_base64 else entry.body.encode()
        data = data_section_header(len(body)) + body
        stated = entry.broker_properties
        if stated is None and not entry.user_properties:
            return data
        properties = None
        key = None
        if stated is not None:
            key = stated.partition_key
            self._set_key(key)
            properties = standard_properties(stated, stated.content_type)
        own = {name: _to_amqp(value) for name, value in (entry.user_properties or {}).items()}
        return encode_message_head(key, properties, own) + data

    def _set_key(self, key: str | None) -> None:
        """A batch is stored in one partition, so its events cannot have different keys."""
        if key is None or key == self._key:
            return
        if self._key is not None:
            raise NotAllowed(
                "The events of the batch have different partition keys: a batch goes to one "
                "partition. Send one batch for each key."
            )
        self._key = key


def data_section_header(length: int) -> bytes:
    """The bytes before the content of a data section (AMQP 3.2.6)."""
    if length <= 0xFF:
        return b"\x00\x53\x75\xa0" + length.to_bytes(1, "big")
    return b"\x00\x53\x75\xb0" + length.to_bytes(4, "big")


def batch_too_large(size: int, bytes_max: int, *, more: bool = False) -> MessageTooLarge:
    return MessageTooLarge(
        f"The publication has {'more than ' if more else ''}{size} bytes as an AMQP message, "
        f"which exceeds the limit ({bytes_max} bytes) of the namespace."
    )


def _decode_base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise ArgumentError("A Body with IsBodyBase64 is not base64.") from None


def _to_amqp(value: Scalar) -> object:
    """A JSON number without a fraction becomes a long, one with a fraction a double."""
    if type(value) is int and not _LONG_MIN <= value <= _LONG_MAX:
        if 0 <= value <= _ULONG_MAX:
            return Ulong(value)
        raise ArgumentError("A number among the UserProperties has more than 64 bits.")
    return value
