"""Events between the doors and the log: always whole batches, sealed as encoded AMQP messages.

`sections` is a run of AMQP data sections, one per event, each holding one complete encoded AMQP
message in canonical form (protocol.md E1, E22):

    00 53 75 a0 <len u8>  <message>      when the message is shorter than 256 bytes
    00 53 75 b0 <len u32> <message>      otherwise, or as the client chose

Exactly what a 0x80013700 publication carries after its envelope, so a batch is stored as it came.
"""

from __future__ import annotations

import msgspec


class ProducerStamp(msgspec.Struct, frozen=True, gc=False):
    """Idempotent producer's stamp on a batch (protocol.md 4.7): its first and last number."""

    id: int
    epoch: int
    first_sequence: int
    last_sequence: int


class EventBatch(msgspec.Struct, frozen=True, gc=False):
    """One publication on its way into a partition: contiguous there, whole or absent."""

    sections: bytes
    count: int
    partition_key: str | None = None
    producer: ProducerStamp | None = None


class StoredBatch(msgspec.Struct, frozen=True, gc=False):
    """One record of the log as it is read back.

    Event i has sequence number `first_sequence + i` and offset `base_offset + position`, where
    `position` is where its data section starts in `sections` (so the first event's is base_offset).
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
    """Where an acknowledged batch lies."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    enqueued_ms: int
