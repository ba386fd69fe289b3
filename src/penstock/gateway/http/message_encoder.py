"""A JSON batch as one AMQP publication of format 0x80013700 (protocol.md 7.1, 4.4)."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator

import msgspec

from penstock.amqp.types import Ulong
from penstock.gateway.http.properties import (
    BrokerProperties,
    decode_json,
    encode_message_head,
    standard_properties,
)
from penstock.model import limits
from penstock.model.errors import ArgumentError, MessageTooLarge, NotAllowed

CONTENT_TYPE = b"application/vnd.microsoft.servicebus.json"
EVENTS_PER_STEP = 500  # a millisecond or a few; others have their turn in between

_BOM = b"\xef\xbb\xbf"
_LONG_MIN, _LONG_MAX, _ULONG_MAX = -(2**63), 2**63 - 1, 2**64 - 1

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
    """Encodes in steps. Raises ArgumentError, NotAllowed or MessageTooLarge, each as soon as
    it is certain. `key` is the whole batch's, from the request's own BrokerProperties."""

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
        """What was encoded: an envelope with the batch's partition key, if there is one, and the
        events."""
        envelope = encode_message_head(self._key, None, None)
        message = b"".join([envelope, *self._parts])
        if len(message) > self._bytes_max:
            raise batch_too_large(len(message), self._bytes_max)
        return message

    def _message(self, entry: BatchEntry) -> bytes:
        body = _base64(entry.body) if entry.is_body_base64 else entry.body.encode()
        data = data_section_header(len(body)) + body
        given = entry.broker_properties
        if given is None and not entry.user_properties:
            return data
        properties = None
        key = None
        if given is not None:
            key = given.partition_key
            self._agree(key)
            properties = standard_properties(given, given.content_type)
        own = {name: _value(each) for name, each in (entry.user_properties or {}).items()}
        return encode_message_head(key, properties, own) + data

    def _agree(self, key: str | None) -> None:
        """A batch goes to one partition as a whole, so its events cannot have different keys."""
        if key is None or key == self._key:
            return
        if self._key is not None:
            raise NotAllowed(
                "The events of the batch have different partition keys: a batch goes to one "
                "partition. Send one batch for each key."
            )
        self._key = key


def data_section_header(length: int) -> bytes:
    """The head of a data section (AMQP 3.2.6)."""
    if length <= 0xFF:
        return b"\x00\x53\x75\xa0" + length.to_bytes(1, "big")
    return b"\x00\x53\x75\xb0" + length.to_bytes(4, "big")


def batch_too_large(size: int, bytes_max: int, *, more: bool = False) -> MessageTooLarge:
    return MessageTooLarge(
        f"The publication has {'more than ' if more else ''}{size} bytes as an AMQP message, "
        f"which exceeds the limit ({bytes_max} bytes) of the namespace."
    )


def _base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise ArgumentError("A Body with IsBodyBase64 is not base64.") from None


def _value(value: Scalar) -> object:
    """A JSON number without fraction is a long, with one a double."""
    if type(value) is int and not _LONG_MIN <= value <= _LONG_MAX:
        if 0 <= value <= _ULONG_MAX:
            return Ulong(value)
        raise ArgumentError("A number among the UserProperties has more than 64 bits.")
    return value
