"""A batch: one publication, stored whole or not at all, its bytes made as events are added."""

from __future__ import annotations

from penstock.client.event_data import EventData
from penstock.client.idempotence import ProducerState, annotations_section, write_stamp
from penstock.model import limits
from penstock.model.errors import ArgumentError

# header(durable=true): the service did not route by a key without it (protocol.md 4.5).
_HEADER = b"\x00\x53\x70\xc0\x02\x01\x41"
_KEY_CHARACTERS_MAX = 128
_SHORT_BINARY = 0xA0


class EventDataBatch:
    """Made by `create_batch`, which knows how large it may be. A batch is sent once at a time; it
    may be sent again, which publishes its events again."""

    def __init__(
        self,
        max_size_in_bytes: int,
        *,
        partition_id: str | None = None,
        partition_key: str | None = None,
        stamped: bool = False,
    ) -> None:
        """`stamped` leaves room for an idempotent producer's numbers."""
        check_route(partition_id, partition_key)
        self.max_size_in_bytes = max_size_in_bytes
        self.partition_id = partition_id
        self.partition_key = partition_key
        self.lane = partition_id  # the partition whose link it takes; None: the hub's
        self._stamped = stamped
        # An event's own annotations equal the envelope's: a broker then stores it as it is.
        self._annotations = annotations_section(partition_key, stamped=stamped)
        self._data = bytearray(_HEADER + self._annotations)
        self._envelope_size = len(self._data)
        self._count = 0
        self._starts: list[int] = []  # of the events' annotations, when they are stamped

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"<EventDataBatch {self._count} events, {len(self._data)} bytes>"

    @property
    def size_in_bytes(self) -> int:
        """What it takes on the wire, exactly."""
        return len(self._data)

    def add(self, event: EventData) -> None:
        """Raises ValueError when the event has no room; the batch is then as before."""
        if not self.try_add(event):
            raise ValueError(
                f"The event does not fit: the batch has {len(self._data)} of at most "
                f"{self.max_size_in_bytes} bytes and {self._count} of at most "
                f"{limits.BATCH_EVENTS_MAX} events."
            )

    def try_add(self, event: EventData, *, partition_key: str | None = None) -> bool:
        """False when the event has no room. A `partition_key` of its own an event may have only
        in a batch for a partition."""
        data = self._data
        before = len(data)
        is_full = self._count >= limits.BATCH_EVENTS_MAX
        if is_full or before + len(event.body) > self.max_size_in_bytes:
            return False
        own = self._annotations
        if partition_key is not None:
            check_route(None, partition_key)
            own = annotations_section(partition_key, stamped=self._stamped)
        event.append_to(data, own)
        if len(data) > self.max_size_in_bytes:
            del data[before:]
            return False
        if self._stamped:
            self._starts.append(before + (5 if data[before + 3] == _SHORT_BINARY else 8))
        self._count += 1
        return True

    # --- for producers --------------------------------------------------------------------------

    @property
    def is_stamped(self) -> bool:
        return self._stamped

    def stamp(self, producer: ProducerState) -> None:
        """Number the events from behind what `producer` has published; the envelope repeats the
        first number (protocol.md 4.7)."""
        assert self._stamped
        number = producer.after(1)
        write_stamp(self._data, len(_HEADER), producer, number)
        for start in self._starts:
            write_stamp(self._data, start, producer, number)
            number += 1

    def payload(self) -> bytes:
        """The message of format 0x80013700."""
        return bytes(self._data)

    def single(self) -> bytes:
        """The only event as a message of its own."""
        assert self._count == 1
        start = self._envelope_size
        return bytes(self._data[start + (5 if self._data[start + 3] == _SHORT_BINARY else 8) :])


def check_route(partition_id: str | None, partition_key: str | None) -> None:
    if partition_key is None:
        return
    if partition_id is not None:
        raise ArgumentError("A partition id and a partition key exclude each other.")
    if not isinstance(partition_key, str) or len(partition_key) > _KEY_CHARACTERS_MAX:
        raise ArgumentError(f"A partition key is text of at most {_KEY_CHARACTERS_MAX} characters.")
