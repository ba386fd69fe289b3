"""Where a consumer group's checkpoint is put when somebody moves it.

A checkpoint names the last event that was processed, so that the group goes on with the next one.
"""

from __future__ import annotations

from penstock.log.api import PartitionLog, PartitionStatus
from penstock.model.checkpoints import Checkpoint
from penstock.model.errors import ArgumentOutOfRange
from penstock.model.positions import Position, PositionKind
from penstock.model.sections import section_position

# In the SDKs' own words: what is oldest when the reader comes (protocol.md 5.3).
_BEFORE_ALL = "-1"


def checkpoint_for_position(
    log: PartitionLog, status: PartitionStatus, partition_id: str, position: Position
) -> Checkpoint:
    """The checkpoint after which `position` comes next; `status` is the log's, taken before.
    Raises ArgumentOutOfRange for a sequence number beyond the next one to come, LogCorrupt and
    InternalError where the disk fails. May read the disk: any thread."""
    following = _locate_next_event(log, status, partition_id, position)
    done = following - 1
    if done == status.last_sequence:
        offset = str(status.last_offset)
    elif status.is_empty or done < status.begin_sequence:
        offset = _BEFORE_ALL
    else:
        offset = _offset_of(log, done)
    return Checkpoint(partition_id=partition_id, offset=offset, sequence_number=done)


def _locate_next_event(
    log: PartitionLog, status: PartitionStatus, partition_id: str, position: Position
) -> int:
    """The next event that the group shall see."""
    following = status.last_sequence + 1
    if position.kind is PositionKind.SEQUENCE and position.value >= following:
        if position.value > following:
            raise ArgumentOutOfRange(
                f"The sequence number {position.value} is beyond the end of partition "
                f"{partition_id}: {following} is the next to come there."
            )
        return following
    return log.locate(position)


def _offset_of(log: PartitionLog, sequence: int) -> str:
    batches = log.read(sequence, bytes_max=1)
    if not batches or not batches[0].first_sequence <= sequence < batches[0].next_sequence:
        return _BEFORE_ALL  # retention took it meanwhile
    batch = batches[0]
    position = section_position(batch.sections, sequence - batch.first_sequence)
    return str(batch.base_offset + position)
