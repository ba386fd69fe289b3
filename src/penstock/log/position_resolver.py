"""What a reader's position means (protocol.md 5.3, 13), the same for every log engine.

| position | first event delivered | refused if |
|---|---|---|
| EARLIEST | the oldest retained one | never |
| LATEST | the next one to come | never |
| SEQUENCE N | N if inclusive, else N + 1; the oldest one if that expired | N > the last |
| OFFSET N | the first at N (inclusive) or beyond; between two events the next | N > the last |
| ENQUEUED_TIME T | the first at T (inclusive) or later; the next to come if none | never |
"""

from __future__ import annotations

from penstock.log.api import PartitionStatus
from penstock.model.errors import ArgumentError
from penstock.model.events import StoredBatch
from penstock.model.positions import Position, PositionKind
from penstock.model.sections import section_positions


def resolve_position(position: Position, status: PartitionStatus) -> int | None:
    """The first sequence number to deliver; None if the log must be searched. Raises ArgumentError
    for an offset or sequence number beyond the end."""
    following = status.last_sequence + 1
    oldest = following if status.is_empty else status.begin_sequence
    if position.kind is PositionKind.EARLIEST:
        return oldest
    if position.kind is PositionKind.LATEST:
        return following
    if position.kind is PositionKind.SEQUENCE:
        _refuse_beyond("sequence number", position.value, status.last_sequence)
        first = position.value if position.inclusive else position.value + 1
        return max(oldest, first)
    if position.kind is PositionKind.OFFSET:
        _refuse_beyond("offset", position.value, status.last_offset)
        if position.value == status.last_offset and not position.inclusive:
            return following  # a reader that resumes at the end: the most common case
    elif position.value > status.last_enqueued_ms:
        return following
    return oldest if status.is_empty else None


def event_at_offset(batch: StoredBatch, position: Position) -> int:
    """Sequence number of the first event of `batch` at the offset or after it, or of the next
    batch."""
    assert position.kind is PositionKind.OFFSET
    for index, start in enumerate(section_positions(batch.sections)):
        offset = batch.base_offset + start
        if offset > position.value or (position.inclusive and offset == position.value):
            return batch.first_sequence + index
    return batch.next_sequence


def is_at_or_after(enqueued_ms: int, position: Position) -> bool:
    """Whether a batch with that enqueued time matches an ENQUEUED_TIME position."""
    assert position.kind is PositionKind.ENQUEUED_TIME
    return enqueued_ms > position.value or (position.inclusive and enqueued_ms == position.value)


def _refuse_beyond(what: str, value: int, last: int) -> None:
    """The text is that of Azure (protocol.md 13); clients match on it."""
    if value > last:
        raise ArgumentError(
            f"The supplied {what} '{value}' is invalid. The last {what} in the system is '{last}'"
        )
