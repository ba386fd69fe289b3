"""The checkpoint that a consumer group gets when an operator moves it.

A checkpoint names the last processed event: the group continues with the next one.
"""

from __future__ import annotations

from penstock.log.api import PartitionLog, PartitionStatus
from penstock.model.checkpoints import Checkpoint
from penstock.model.errors import ArgumentOutOfRange
from penstock.model.positions import Position, PositionKind
from penstock.model.sections import section_position

# Offset that SDKs use for the start of the partition (protocol.md 5.3).
_BEFORE_ALL = "-1"


def checkpoint_for_position(
    log: PartitionLog, status: PartitionStatus, partition_id: str, position: Position
) -> Checkpoint:
    """The checkpoint from which a group continues at `position`. `status` is the status of `log`.
    Raises ArgumentOutOfRange for a sequence number above the next one, LogCorrupt, and
    InternalError if the disk fails. May read the disk; any thread."""
    following = _locate_next_event(log, status, partition_id, position)
    processed = following - 1
    if processed == status.last_sequence:
        offset = str(status.last_offset)
    elif status.is_empty or processed < status.begin_sequence:
        offset = _BEFORE_ALL
    else:
        offset = _find_offset(log, processed)
    return Checkpoint(partition_id=partition_id, offset=offset, sequence_number=processed)


def _locate_next_event(
    log: PartitionLog, status: PartitionStatus, partition_id: str, position: Position
) -> int:
    """Sequence number of the next event for the group."""
    following = status.last_sequence + 1
    if position.kind is PositionKind.SEQUENCE and position.value >= following:
        if position.value > following:
            raise ArgumentOutOfRange(
                f"The sequence number {position.value} is beyond the end of partition "
                f"{partition_id}: {following} is the next to come there."
            )
        return following
    return log.locate(position)


def _find_offset(log: PartitionLog, sequence: int) -> str:
    batches = log.read(sequence, bytes_max=1)
    if not batches or not batches[0].first_sequence <= sequence < batches[0].next_sequence:
        return _BEFORE_ALL  # retention removed it meanwhile
    batch = batches[0]
    position = section_position(batch.sections, sequence - batch.first_sequence)
    return str(batch.base_offset + position)
