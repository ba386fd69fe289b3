"""What `$management` tells (protocol.md 3.2), under the official SDK's names."""

from __future__ import annotations

from datetime import datetime
from typing import TypedDict


class EventHubProperties(TypedDict):
    eventhub_name: str
    created_at: datetime
    partition_ids: list[str]


class PartitionProperties(TypedDict):
    """Of an empty partition: sequence numbers -1, offset "-1", time of the year 1."""

    eventhub_name: str
    id: str
    beginning_sequence_number: int
    last_enqueued_sequence_number: int
    last_enqueued_offset: str
    last_enqueued_time_utc: datetime
    is_empty: bool


class LastEnqueued(TypedDict):
    """The partition's end, as it was when the newest event that we have was delivered."""

    sequence_number: int
    offset: str
    enqueued_time: datetime
    retrieval_time: datetime
