"""Where a checkpoint is put: offsets within batches of either form, and where the log has moved."""

from __future__ import annotations

import struct

import pytest

from penstock.broker.seek import checkpoint_for_position
from penstock.log.api import PartitionStatus
from penstock.log.memory import MemoryLogStore
from penstock.model.errors import ArgumentOutOfRange, LogCorrupt
from penstock.model.events import EventBatch, StoredBatch
from penstock.model.positions import EARLIEST, LATEST, Position, PositionKind

SMALL = b"\x00\x53\x75\xa0\x03abc"
LARGE = b"\x00\x53\x75\xb0" + struct.pack(">I", 300) + bytes(300)


def sequence(number: int) -> Position:
    return Position(PositionKind.SEQUENCE, number, inclusive=True)


@pytest.fixture
def logs() -> MemoryLogStore:
    logs = MemoryLogStore(lambda work: work())
    for sections, count in ((SMALL + LARGE + SMALL, 3), (LARGE + LARGE, 2)):
        logs.partition("hub", 0).append(
            EventBatch(sections=sections, count=count), now_ms=1, done=lambda _outcome: None
        )
    return logs


def offset_before(logs: MemoryLogStore, position: Position) -> tuple[int, str]:
    log = logs.partition("hub", 0)
    made = checkpoint_for_position(log, log.status(), "0", position)
    assert made.partition_id == "0"
    return made.sequence_number, made.offset


def test_checkpoint_has_the_offset_of_the_event_before(logs: MemoryLogStore) -> None:
    log = logs.partition("hub", 0)
    first, second = log.read(0, bytes_max=10_000)
    offsets = [
        first.base_offset,
        first.base_offset + len(SMALL),
        first.base_offset + len(SMALL + LARGE),
        second.base_offset,
        second.base_offset + len(LARGE),
    ]
    assert offsets[-1] == log.status().last_offset
    for number, offset in enumerate(offsets):
        assert offset_before(logs, sequence(number + 1)) == (number, str(offset))
        # The reader that goes on after that offset begins with the next event.
        after = Position(PositionKind.OFFSET, offset)
        assert log.locate(after) == number + 1


def test_ends_of_the_log(logs: MemoryLogStore) -> None:
    assert offset_before(logs, EARLIEST) == (-1, "-1")
    assert offset_before(logs, sequence(0)) == (-1, "-1")
    last = logs.partition("hub", 0).status()
    assert offset_before(logs, LATEST) == (4, str(last.last_offset))
    with pytest.raises(ArgumentOutOfRange, match="5 is the next to come"):
        offset_before(logs, sequence(6))
    empty = logs.partition("hub", 1)
    made = checkpoint_for_position(empty, empty.status(), "1", LATEST)
    assert (made.sequence_number, made.offset) == (-1, "-1")


class Moved:
    """A log whose oldest events went, or whose bytes changed, between two looks."""

    def __init__(self, *batches: StoredBatch) -> None:
        self._batches = list(batches)

    def locate(self, position: Position) -> int:
        return position.value

    def read(self, sequence: int, *, bytes_max: int) -> list[StoredBatch]:
        return self._batches


STATUS = PartitionStatus(
    begin_sequence=0,
    last_sequence=99,
    last_offset=9_999,
    last_enqueued_ms=1,
    size_bytes=1,
    failed=None,
)


@pytest.mark.parametrize(
    "batches",
    [
        (),
        (StoredBatch(first_sequence=50, base_offset=7, enqueued_ms=1, count=1, sections=SMALL),),
    ],
    ids=["nothing", "later"],
)
def test_event_that_retention_took_meanwhile_means_from_the_oldest(
    batches: tuple[StoredBatch, ...],
) -> None:
    log = Moved(*batches)
    made = checkpoint_for_position(log, STATUS, "0", sequence(5))  # type: ignore[arg-type]  # what it uses
    assert (made.sequence_number, made.offset) == (4, "-1")


def test_damaged_batch_is_said_so() -> None:
    batch = StoredBatch(
        first_sequence=3, base_offset=7, enqueued_ms=1, count=2, sections=b"nonsense" * 4
    )
    log = Moved(batch)
    with pytest.raises(LogCorrupt, match="no whole data section at byte 0"):
        checkpoint_for_position(log, STATUS, "0", sequence(5))  # type: ignore[arg-type]  # what it uses
