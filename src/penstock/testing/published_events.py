"""The events of a hub, decoded for a test's assertions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from penstock.amqp.errors import AmqpError
from penstock.amqp.message import DataBody, Message, SequenceBody, ValueBody, decode_message
from penstock.model.events import StoredBatch
from penstock.model.sections import messages

_PARTITION_KEY = "x-opt-partition-key"


class PublishedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """`body` is bytes, or the Python value of an amqp-value or amqp-sequence body. `properties` are
    the application's; `system` has message_id, content_type and the like, as far as set."""

    body: Any
    properties: dict[str, Any]
    partition: int
    sequence: int
    offset: str
    enqueued_ms: int
    partition_key: str | None = None
    system: dict[str, Any] = {}

    @property
    def text(self) -> str:
        """The body as UTF-8 text."""
        return self.body.decode() if isinstance(self.body, bytes) else str(self.body)


def decode_published(batch: StoredBatch, partition: int) -> Iterator[PublishedEvent]:
    """The events of one stored batch. Raises AmqpError if one is not an AMQP message."""
    for index, (position, message) in enumerate(messages(batch.sections)):
        decoded = decode_message(message)
        system = {} if decoded.properties is None else msgspec.structs.asdict(decoded.properties)
        partition_key = (decoded.message_annotations or {}).get(_PARTITION_KEY)
        yield PublishedEvent(
            body=_message_body(decoded),
            properties=dict(decoded.application_properties or {}),
            partition=partition,
            sequence=batch.first_sequence + index,
            offset=str(batch.base_offset + position),
            enqueued_ms=batch.enqueued_ms,
            partition_key=None if partition_key is None else str(partition_key),
            system={name: value for name, value in system.items() if value is not None},
        )


def _message_body(message: Message) -> object:
    body = message.body
    if isinstance(body, DataBody):
        return b"".join(bytes(chunk) for chunk in body.chunks)
    if isinstance(body, ValueBody):
        return body.value
    if isinstance(body, SequenceBody):
        return [list(values) for values in body.lists]
    raise AmqpError("The stored event has no body.")
