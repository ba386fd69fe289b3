"""Where a consumer group's checkpoint is put when somebody moves it.

A checkpoint names the last event that was processed, so that the group goes on with the next one.
"""

from __future__ import annotations

import struct

from penstock.log.api import PartitionLog, PartitionStatus
from penstock.model.checkpoints import Checkpoint
from penstock.model.errors import ArgumentOutOfRange, LogCorrupt
from penstock.model.events import StoredBatch
from penstock.model.positions import Position, PositionKind

# In the SDKs' own words: what is oldest when the reader comes (protocol.md 5.3).
_BEFORE_ALL = "-1"
_DATA8, _DATA32 = b"\x00\x53\x75\xa0", b"\x00\x53\x75\xb0"
_HEAD8, _HEAD32 = 5, 8  # bytes (model/events.py)


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
    return str(batch.base_offset + _position(batch, sequence - batch.first_sequence))


def _position(batch: StoredBatch, index: int) -> int:
    position = 0
    for _ in range(index):
        kind = batch.sections[position : position + 4]
        if kind == _DATA8:
            position += _HEAD8 + batch.sections[position + 4]
        elif kind == _DATA32:
            position += _HEAD32 + struct.unpack_from(">I", batch.sections, position + 4)[0]
        else:
            raise LogCorrupt(f"A stored batch has no data section at byte {position}.")
    return position
