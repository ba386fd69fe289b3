"""Headers and `BrokerProperties` as the sections of an AMQP message (protocol.md 7.1).

An event that came by HTTPS is to be read over AMQP like any other, so what a publisher could say
there it can say here: PartitionKey, the standard properties, and properties of its own.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TypeVar

import msgspec

from penstock.amqp.message import Message, Properties, encode_message
from penstock.amqp.types import Symbol
from penstock.model import names
from penstock.model.errors import ArgumentError

PARTITION_KEY = Symbol("x-opt-partition-key")

# Publishers repeat their headers from request to request; a head that is known costs nothing.
_HEADS_CACHED = 256

# Headers that speak of the request and not of the event.
_OF_THE_REQUEST = frozenset(
    b"accept authorization brokerproperties cache-control connection content-encoding "
    b"content-length content-type content-language content-location content-md5 content-range "
    b"cookie date dnt expect forwarded from host keep-alive max-forwards origin pragma "
    b"range referer te trailer transfer-encoding upgrade upgrade-insecure-requests user-agent "
    b"via warning servicebusauthorization x-real-ip".split()
)
_PREFIXES_OF_THE_REQUEST = (
    *(b"accept-", b"access-control-", b"if-", b"proxy-"),
    *(b"sec-", b"x-forwarded-", b"x-ms-"),
)

# A Priority that speaks to HTTP (RFC 9218), as browsers send it; any other is the event's own.
_PRIORITY_OF_THE_REQUEST = re.compile(rb"(?:u=[0-7])?(?:, ?)?(?:i(?:=\?[01])?)?")

_ESCAPED = re.compile(r'\\(["\\])')

Pairs = tuple[tuple[bytes, bytes], ...]

_T = TypeVar("_T")


class BrokerProperties(msgspec.Struct, frozen=True, gc=False, rename="pascal"):
    """Those that mean something to a hub; others (TimeToLive, State ...) are passed over."""

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
    """JSON as its type, or ArgumentError. Numbers that no type holds, NaN and bottomless nesting
    are refused by the decoder; of a name that comes twice the last one counts."""
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
    given = NO_PROPERTIES
    if broker_properties is not None:
        given = parse_broker_properties(broker_properties)
    own_type = given.content_type if content_type is None else _decode_header(content_type)
    properties = standard_properties(
        given, own_type, None if content_encoding is None else _decode_header(content_encoding)
    )
    own: dict[str, object] = {}
    for name, value in headers:
        # A header that comes twice is one list of values (RFC 9110 5.3).
        text = _unquote(_decode_header(value))
        known = own.get(_decode_header(name))
        own[_decode_header(name)] = text if known is None else f"{known}, {text}"
    return encode_message_head(given.partition_key, properties, own)


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
    given: BrokerProperties, content_type: str | None, content_encoding: str | None = None
) -> Properties | None:
    """None when there is nothing to say: most events have no such section."""
    for what, text in (("content type", content_type), ("content encoding", content_encoding)):
        if text is not None and not text.isascii():  # they are symbols in AMQP 3.2.4
            raise ArgumentError(f"The {what} '{names.quote_text(text)}' is not ASCII text.")
    properties = Properties(
        message_id=given.message_id,
        to=given.to,
        subject=given.label,
        reply_to=given.reply_to,
        correlation_id=given.correlation_id,
        content_type=content_type,
        content_encoding=content_encoding,
        group_id=given.session_id,
        reply_to_group_id=given.reply_to_session_id,
    )
    return None if properties == _NOTHING else properties


_NOTHING = Properties()


def _is_request_header(name: bytes, value: bytes) -> bool:
    if name == b"priority":
        return _PRIORITY_OF_THE_REQUEST.fullmatch(value) is not None
    return name in _OF_THE_REQUEST or name.startswith(_PREFIXES_OF_THE_REQUEST)


def _decode_header(value: bytes) -> str:
    """Headers have no declared encoding: UTF-8 where it fits (curl), Latin-1 else (RFC 9110)."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _unquote(text: str) -> str:
    """A quoted string is the string in the quotes, as Service Bus REST writes strings. Anything
    else is text too: no type is guessed from how a value looks."""
    if len(text) >= 2 and text[0] == text[-1] == '"':
        return _ESCAPED.sub(r"\1", text[1:-1])
    return text
