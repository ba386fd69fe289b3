"""A batch: one publication, stored whole or not at all, its bytes made as events are added."""

from __future__ import annotations

from penstock.client.events import EventData


class EventDataBatch:
    """Made by `create_batch`, which knows how large it may be. A batch is sent once at a time; it
    may be sent again, which publishes its events again."""

    def __init__(
        self,
        max_size_in_bytes: int,
        *,
        partition_id: str | None = None,
        partition_key: str | None = None,
    ) -> None:
        self.max_size_in_bytes = max_size_in_bytes
        self.partition_id = partition_id
        self.partition_key = partition_key

    def __len__(self) -> int:
        raise NotImplementedError

    @property
    def size_in_bytes(self) -> int:
        """What it takes on the wire, exactly."""
        raise NotImplementedError

    def add(self, event: EventData) -> None:
        """Raises ValueError when the event has no room; the batch is then as before."""
        raise NotImplementedError

    def try_add(self, event: EventData) -> bool:
        """False when the event has no room."""
        raise NotImplementedError
