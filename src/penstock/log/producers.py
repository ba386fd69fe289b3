"""The newest stamp of each idempotent producer of a partition (protocol.md 4.7), bounded."""

from __future__ import annotations

from penstock.model import limits
from penstock.model.events import Producer


class Producers:
    """The most recently seen producers; the one that has been silent longest is forgotten."""

    __slots__ = ("_stamps",)

    def __init__(self, stamps: dict[int, Producer] | None = None) -> None:
        self._stamps: dict[int, Producer] = {} if stamps is None else stamps

    def __len__(self) -> int:
        return len(self._stamps)

    def get(self, producer_id: int) -> Producer | None:
        return self._stamps.get(producer_id)

    def note(self, stamp: Producer) -> None:
        """Take a newer stamp; a dict keeps the order, so re-inserting moves it to the young end."""
        self._stamps.pop(stamp.id, None)
        self._stamps[stamp.id] = stamp
        if len(self._stamps) > limits.PRODUCERS_PER_PARTITION_MAX:
            del self._stamps[next(iter(self._stamps))]
        assert len(self._stamps) <= limits.PRODUCERS_PER_PARTITION_MAX

    def copy(self) -> Producers:
        return Producers(dict(self._stamps))

    def stamps(self) -> list[Producer]:
        """Oldest first."""
        return list(self._stamps.values())
