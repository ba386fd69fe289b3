"""What lies in a hub, opened: for a test's assertions, not for the way of an event."""

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
    the application's; `system` has message_id, content_type and their like, where given."""

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
    """The events of one stored batch. Raises AmqpError for one that is no AMQP message."""
    for index, (position, message) in enumerate(messages(batch.sections)):
        yield _event(decode_message(message), batch, partition, index, position)


def _event(
    message: Message, batch: StoredBatch, partition: int, index: int, position: int
) -> PublishedEvent:
    annotations = message.message_annotations or {}
    given = message.properties
    named = {} if given is None else msgspec.structs.asdict(given)
    partition_key = annotations.get(_PARTITION_KEY)
    return PublishedEvent(
        body=_message_body(message),
        properties=dict(message.application_properties or {}),
        partition=partition,
        sequence=batch.first_sequence + index,
        offset=str(batch.base_offset + position),
        enqueued_ms=batch.enqueued_ms,
        partition_key=None if partition_key is None else str(partition_key),
        system={name: value for name, value in named.items() if value is not None},
    )


def _message_body(message: Message) -> object:
    body = message.body
    if isinstance(body, DataBody):
        return b"".join(bytes(chunk) for chunk in body.chunks)
    if isinstance(body, ValueBody):
        return body.value
    if isinstance(body, SequenceBody):
        return [list(each) for each in body.lists]
    raise AmqpError("The stored event has no body.")
