"""A hub as planners see it: where partitions begin and end, what a position is as a number."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from penstock.client.ranges import HubReader, RangeSettings
from penstock.model.errors import ArgumentError
from penstock.model.names import PRODUCT
from penstock.spark.errors import events_gone, position_beyond_end
from penstock.spark.eventhubs.options import ReadOptions
from penstock.spark.eventhubs.planner import PartitionBounds
from penstock.spark.eventhubs.positions import Position, PositionKind


def range_settings(options: ReadOptions) -> RangeSettings:
    target = options.target
    return RangeSettings(
        connection_string=target.connection_string.reveal(),
        eventhub_name=target.eventhub_name,
        consumer_group=options.consumer_group,
        ca_file=target.ca_file,
        insecure=target.insecure,
        transport="websocket" if target.websocket else "amqp",
        timeout_s=options.receiver_timeout_s,
        prefetch=options.prefetch,
        owner_level=options.owner_level,
    )


class ReadPlanner:
    """Asks one hub. Blocking; keeps a connection until it is closed."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._name = options.target.eventhub_name
        self._reader = HubReader(range_settings(options))

    def close(self) -> None:
        self._reader.close()

    def bounds(self) -> dict[str, PartitionBounds]:
        """Of every partition, in the order of their numbers."""
        told = self._reader.partitions()
        found: dict[str, PartitionBounds] = {}
        for partition_id in sorted(told, key=lambda each: (len(each), each)):
            about = told[partition_id]
            end = about["last_enqueued_sequence_number"] + 1
            begin = end if about["is_empty"] else about["beginning_sequence_number"]
            found[partition_id] = PartitionBounds(begin, end, about["last_enqueued_offset"])
        return found

    def is_penstock(self) -> bool:
        return self._reader.service_product() == PRODUCT

    def created_at(self) -> datetime:
        return self._reader.properties()["created_at"]

    def offset_of(self, partition_id: str, number: int) -> str | None:
        return self._reader.offset_of(partition_id, number)

    def starts(self, bounds: Mapping[str, PartitionBounds], default: Position) -> dict[str, int]:
        """The first event of each partition."""
        options = self._options
        self._check_partitions("startingPositions", options.starts, bounds)
        found: dict[str, int] = {}
        for partition_id, known in bounds.items():
            position = options.starts.get(partition_id) or options.start or default
            number = self._number(partition_id, position, known, is_start=True)
            if (
                options.start_must_exist
                and position.kind is PositionKind.TIME
                and number >= known.end
            ):
                raise ArgumentError(
                    f"Partition {partition_id} of hub {self._name!r} has no event at or behind "
                    "startingTimestamp: set startingTimestampStrategy=latest to begin at its end."
                )
            found[partition_id] = self._clamp_start(partition_id, number, known)
        return found

    def ends(self, bounds: Mapping[str, PartitionBounds]) -> dict[str, int]:
        """Behind the last event of each partition."""
        options = self._options
        self._check_partitions("endingPositions", options.ends, bounds)
        found: dict[str, int] = {}
        for partition_id, known in bounds.items():
            position = options.ends.get(partition_id) or options.end
            number = self._number(partition_id, position, known, is_start=False)
            if number > known.end:
                if options.fail_on_data_loss:
                    raise position_beyond_end(self._name, partition_id, number - 1, known.end)
                number = known.end
            found[partition_id] = number
        return found

    def _clamp_start(self, partition_id: str, number: int, known: PartitionBounds) -> int:
        """A start within what is there, or DataLoss."""
        if number < known.begin:
            if self._options.fail_on_data_loss:
                begins = known.begin if known.end > known.begin else None
                raise events_gone(self._name, partition_id, number, known.begin, begins)
            return known.begin
        if number > known.end:
            if self._options.fail_on_data_loss:
                raise position_beyond_end(self._name, partition_id, number, known.end)
            return known.end
        return number

    def _number(
        self, partition_id: str, position: Position, known: PartitionBounds, *, is_start: bool
    ) -> int:
        """Starts include their event unless it says otherwise, ends never do."""
        kind = position.kind
        if kind is PositionKind.EARLIEST:
            return known.begin
        if kind is PositionKind.LATEST:
            return known.end
        inclusive = position.inclusive or not is_start
        if kind is PositionKind.SEQUENCE:
            return position.number + (0 if inclusive else 1)
        if kind is PositionKind.TIME:
            return self._reader.sequence_at(partition_id, position.number)
        return self._reader.sequence_at_offset(partition_id, position.offset, inclusive=inclusive)

    def _check_partitions(
        self, option: str, named: Mapping[str, Position], bounds: Mapping[str, PartitionBounds]
    ) -> None:
        strange = [each for each in named if each not in bounds]
        if strange:
            raise ArgumentError(
                f"{option} names partition {strange[0]}: the hub {self._name!r} has "
                f"{', '.join(bounds)}."
            )
