"""Events between the gateways and the log: whole batches of encoded AMQP messages.

`sections` is a run of AMQP data sections, one per event, each holding one complete encoded AMQP
message in canonical form (protocol.md E1, E22):

    00 53 75 a0 <len u8>  <message>      when the message is shorter than 256 bytes
    00 53 75 b0 <len u32> <message>      otherwise, or as the client chose

A publication in the batch format (0x80013700) has the same form, so a batch is stored as received.
"""

from __future__ import annotations

import msgspec


class ProducerStamp(msgspec.Struct, frozen=True, gc=False):
    """Stamp of an idempotent producer on a batch (protocol.md 4.7)."""

    id: int
    epoch: int
    first_sequence: int
    last_sequence: int


class EventBatch(msgspec.Struct, frozen=True, gc=False):
    """A batch to append to a partition: stored contiguously and whole, or not at all."""

    sections: bytes
    count: int
    partition_key: str | None = None
    producer: ProducerStamp | None = None


class StoredBatch(msgspec.Struct, frozen=True, gc=False):
    """One record of the log as it is read back.

    Event i has sequence number `first_sequence + i` and offset `base_offset + position`, where
    `position` is the start of its data section in `sections`.
    """

    first_sequence: int
    base_offset: int
    enqueued_ms: int
    count: int
    sections: bytes

    @property
    def next_sequence(self) -> int:
        return self.first_sequence + self.count


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """Position of an acknowledged batch in the log."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    enqueued_ms: int
