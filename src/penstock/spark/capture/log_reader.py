"""The log as Capture's policy asks for it: by the front door, one event at most for each answer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from penstock.capture.windows import EventLocation, PartitionEnd
from penstock.client.errors import ClientError
from penstock.client.event_position import EventPosition
from penstock.client.ranges import HubReader

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_BEYOND_END = "com.microsoft:argument-error"


class CaptureLogReader(HubReader):
    """Ends of partitions, and single events that boundaries are made of."""

    def ends(self) -> dict[str, PartitionEnd]:
        return {
            partition: PartitionEnd(
                told["last_enqueued_sequence_number"] + 1,
                _offset(told["last_enqueued_offset"]),
                (told["last_enqueued_time_utc"] - _EPOCH) // _MS,
                told["is_empty"],
            )
            for partition, told in self.partitions().items()
        }

    def first(self, partition: str, position: EventPosition) -> EventLocation | None:
        """The first event there; None when there is none yet."""
        return self._ask(self._first(partition, position))

    async def _first(self, partition: str, position: EventPosition) -> EventLocation | None:
        try:
            async with self._client.open_partition(partition, position, prefetch=1) as reader:
                found = await reader.receive_columns()
        except ClientError as error:
            if error.error is not None and error.error.condition == _BEYOND_END:
                return None  # a position behind the end is refused
            raise
        if not found.sequence_numbers:
            return None
        offset = _offset(found.offsets[0])
        return EventLocation(found.sequence_numbers[0], offset, found.enqueued_ms[0])


class CapturePartitionLog:
    """`capture.windows.Log` of one partition. Asks nothing twice while it lives."""

    def __init__(self, reader: CaptureLogReader, partition: str) -> None:
        self._reader = reader
        self._partition = partition
        self._known: dict[EventPosition, EventLocation] = {}

    def at(self, sequence: int) -> EventLocation | None:
        return self._ask(EventPosition.from_sequence_number(sequence, inclusive=True))

    def beyond(self, offset: int) -> EventLocation | None:
        return self._ask(EventPosition.from_offset(offset, inclusive=True))

    def since(self, time_ms: int) -> EventLocation | None:
        return self._ask(EventPosition.from_enqueued_ms(max(0, time_ms - 1)))

    def _ask(self, position: EventPosition) -> EventLocation | None:
        found = self._known.get(position)
        if found is None:
            found = self._reader.first(self._partition, position)
            if found is not None:
                self._known[position] = found
        return found


def _offset(text: str) -> int:
    """Of some of Azure's namespaces it is no number: their windows close by time alone."""
    try:
        return int(text)
    except ValueError:
        return -1
