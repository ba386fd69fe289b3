"""Did the broker keep its promises? What was sent, what was answered, what was read, compared.

Publishers write down every publication before they hear of it, readers every event they get, and
the test says when the broker died (`crash`). `check` is called when everything there is has been
read, that is, when an event published last of all was; what does not fit is an `Anomaly`.

    acknowledged            every one of its events is read, once, in the partition it was sent to
    not acknowledged        there or not, but whole or absent, and whatever was seen once stays
    a partition             numbers without a gap, offsets that grow, times that never go back
    a sender, a partition   in the order of sending
    after a crash           the same event at every place that was read before it

Nothing here waits or reads a clock: a doctored history is judged like a real one.
"""

from __future__ import annotations

import struct
from enum import IntEnum, StrEnum
from zlib import crc32

import msgspec

ANOMALIES_MAX = 1000  # a broker that lost everything is known by then
BODY_BYTES_MIN = 24

_TAG = struct.Struct(">4sIIHHI")
_MAGIC = b"PnHy"


class Outcome(IntEnum):
    UNKNOWN = 0  # nothing was heard: it may be stored or not
    ACKNOWLEDGED = 1
    REFUSED = 2  # the service said no: it may still be stored, as after a failed flush


class AnomalyKind(StrEnum):
    LOST = "lost"  # acknowledged, and not there
    VANISHED = "vanished"  # read before a crash, not there after it
    MOVED = "moved"  # another event at a place that was read before
    TWICE = "twice"
    REORDERED = "reordered"
    HALF = "half"  # some events of a publication, not all; or not side by side
    GAP = "gap"
    GHOST = "ghost"  # nobody sent it, or it comes back after it was found absent
    ALTERED = "altered"  # not the bytes, or not the key, that were sent
    MISROUTED = "misrouted"
    OFFSET = "offset"
    TIME = "time"


class Anomaly(msgspec.Struct, frozen=True):
    kind: AnomalyKind
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class Publication(msgspec.Struct, gc=False):
    """One transfer of one sender: `count` events that are stored together or not at all."""

    sender: int
    number: int
    count: int
    life: int
    outcome: Outcome = Outcome.UNKNOWN
    found: int = 0  # of its events, so far
    partition: int = -1  # where the first of them was found
    first_sequence: int = -1

    def __str__(self) -> str:
        return f"publication {self.number} of sender {self.sender} ({self.count} events)"

    def body(self, index: int, size: int = BODY_BYTES_MIN) -> bytes:
        """What the event `index` carries: who it is, and bytes that follow from that."""
        return event_body(self.sender, self.number, index, self.count, size)


class SenderRecord(msgspec.Struct, gc=False):
    """One who publishes, to one partition, under one key, or wherever the service likes."""

    id: int
    partition: int | None
    key: str | None
    is_ordered: bool  # a batch that a failing partition passes on may overtake: not then
    published: int = 0


class Seen(msgspec.Struct, frozen=True, gc=False):
    """An event as a reader got it; `sender` is -1 when its body tells nothing we ever sent."""

    offset: int
    enqueued_ms: int
    key: str | None
    sender: int
    number: int
    index: int
    count: int


class History:
    """Everything that was sent to one hub and read from it, over any number of crashes."""

    def __init__(self, partition_count: int) -> None:
        self.anomalies: list[Anomaly] = []
        self.life = 0
        self.acknowledged_events = 0  # found so far
        self.unacknowledged_events = 0  # found so far
        self.partition_count = partition_count
        self._senders: list[SenderRecord] = []
        self._open: dict[tuple[int, int], Publication] = {}  # not yet found whole
        self._whole: dict[tuple[int, int], Publication] = {}
        self._checked: list[list[Seen]] = [[] for _ in range(partition_count)]
        self._live: list[dict[int, Seen]] = [{} for _ in range(partition_count)]
        self._earlier: list[dict[int, Seen]] = [{} for _ in range(partition_count)]
        self._homes: dict[str, int] = {}  # of keys
        self._newest: dict[tuple[int, int], int] = {}  # (sender, partition) -> publication

    # --- written down ---------------------------------------------------------------------------

    def sender(
        self, *, partition: int | None = None, key: str | None = None, is_ordered: bool = True
    ) -> SenderRecord:
        """A new sender; each has numbers of its own."""
        record = SenderRecord(len(self._senders), partition, key, is_ordered)
        self._senders.append(record)
        return record

    def prepare(self, sender: SenderRecord, count: int) -> Publication:
        """What the sender would publish next; it counts once it is `sent`."""
        return Publication(sender.id, sender.published, count, self.life)

    def sent(self, publication: Publication) -> None:
        sender = self._senders[publication.sender]
        assert publication.number == sender.published
        sender.published += 1
        self._open[publication.sender, publication.number] = publication

    def next_sequence(self, partition: int) -> int:
        """Where a reader of the current life has to begin."""
        return len(self._checked[partition])

    def newest_ms(self, partition: int) -> int:
        """When the newest event that was checked was enqueued; 0 if there is none."""
        checked = self._checked[partition]
        return checked[-1].enqueued_ms if checked else 0

    def observe(
        self,
        partition: int,
        *,
        sequence: int,
        offset: int,
        enqueued_ms: int,
        key: str | None,
        body: bytes,
    ) -> Seen:
        """A reader got this event. Compared with what was seen at its place before."""
        seen = _seen(offset, enqueued_ms, key, body)
        if seen.sender < 0:
            self._note(AnomalyKind.ALTERED, f"{_at(partition, sequence)} reads {body[:64]!r}")
        checked, live = self._checked[partition], self._live[partition]
        if sequence < len(checked):
            self._compare(partition, sequence, checked[sequence], seen)
            return seen
        for known in (live.get(sequence), self._earlier[partition].get(sequence)):
            if known is not None:
                self._compare(partition, sequence, known, seen)
        live[sequence] = seen
        return seen

    def crash(self) -> None:
        """The broker died: whatever was read has to be read again, and be the same."""
        self.life += 1
        for earlier, live in zip(self._earlier, self._live, strict=True):
            earlier.update(live)
            live.clear()

    def rewind(self) -> None:
        """Let everything be read, and judged, once more from the beginning."""
        self.crash()
        self.acknowledged_events = self.unacknowledged_events = 0
        for partition, checked in enumerate(self._checked):
            known = {n: seen for n, seen in enumerate(checked) if seen is not _NOTHING}
            self._earlier[partition].update(known)
            checked.clear()
        self._open.update(self._whole)
        self._whole.clear()
        self._newest.clear()
        for publication in self._open.values():
            publication.found, publication.partition, publication.first_sequence = 0, -1, -1

    # --- judged ---------------------------------------------------------------------------------

    def check(self) -> list[Anomaly]:
        """Everything that is there was read: judge it. All anomalies so far."""
        for partition in range(self.partition_count):
            self._check_partition(partition)
        gone = []
        for name, publication in self._open.items():
            if publication.found:
                self._note(
                    AnomalyKind.HALF, f"{publication.found} events are there of {publication}"
                )
            elif publication.outcome is Outcome.ACKNOWLEDGED:
                self._note(AnomalyKind.LOST, f"{publication} was acknowledged and is not there")
            if publication.life < self.life or publication.outcome is Outcome.ACKNOWLEDGED:
                gone.append(name)  # it was told, or it is absent: then it stays so
        for name in gone:
            del self._open[name]
        return self.anomalies

    def acknowledged_so_far(self) -> int:
        """Events of acknowledged publications, found or not."""
        everything = (*self._open.values(), *self._whole.values())
        return sum(p.count for p in everything if p.outcome is Outcome.ACKNOWLEDGED)

    def kinds(self) -> set[AnomalyKind]:
        return {anomaly.kind for anomaly in self.anomalies}

    def summary(self) -> str:
        total = sum(len(checked) for checked in self._checked)
        return (
            f"{total} events read in {self.partition_count} partitions: "
            f"{self.acknowledged_events} acknowledged, {self.unacknowledged_events} stored "
            f"without an acknowledgement; {len(self.anomalies)} anomalies"
        )

    def _check_partition(self, partition: int) -> None:
        checked, live = self._checked[partition], self._live[partition]
        earlier = self._earlier[partition]
        for sequence in sorted(earlier.keys() - live.keys()):
            where = _at(partition, sequence)
            self._note(AnomalyKind.VANISHED, f"{where} was read before the crash, not after it")
        for sequence in sorted(live):
            if sequence != len(checked):
                self._note(
                    AnomalyKind.GAP,
                    f"partition {partition} goes on with {sequence} after {len(checked) - 1}",
                )
                checked.extend([_NOTHING] * (sequence - len(checked)))
            seen = live[sequence]
            if checked:
                self._compare_neighbours(partition, sequence, checked[-1], seen)
            checked.append(seen)
            if seen.sender >= 0:
                self._check_event(partition, sequence, seen)
        live.clear()
        earlier.clear()

    def _compare_neighbours(self, partition: int, sequence: int, before: Seen, seen: Seen) -> None:
        where = _at(partition, sequence)
        if seen.offset <= before.offset:
            text = f"{where} has offset {seen.offset} after {before.offset}"
            self._note(AnomalyKind.OFFSET, text)
        if seen.enqueued_ms < before.enqueued_ms:
            text = f"{where} was enqueued at {seen.enqueued_ms}, after {before.enqueued_ms}"
            self._note(AnomalyKind.TIME, text)

    def _check_event(self, partition: int, sequence: int, seen: Seen) -> None:
        name, where = (seen.sender, seen.number), _at(partition, sequence)
        publication = self._open.get(name)
        if publication is None:
            known = self._whole.get(name)
            if known is None:
                text = f"{where} is event {seen.index} of {name}, which should not be there"
                self._note(AnomalyKind.GHOST, text)
            else:
                self._note(AnomalyKind.TWICE, f"{where} has an event again of {known}")
            return
        if publication.found == 0 and seen.index == 0:
            self._begin(publication, partition, sequence)
        if (
            seen.index != publication.found
            or seen.count != publication.count
            or (partition, sequence)
            != (publication.partition, publication.first_sequence + seen.index)
        ):
            text = f"{where} has event {seen.index} out of its place, of {publication}"
            self._note(AnomalyKind.HALF, text)
        publication.found += 1
        self._check_route(self._senders[seen.sender], partition, sequence, seen)
        if publication.found >= publication.count:
            self._whole[name] = self._open.pop(name)
            if publication.outcome is Outcome.ACKNOWLEDGED:
                self.acknowledged_events += publication.count
            else:
                self.unacknowledged_events += publication.count

    def _begin(self, publication: Publication, partition: int, sequence: int) -> None:
        publication.partition, publication.first_sequence = partition, sequence
        link = (publication.sender, partition)
        newest = self._newest.get(link, -1)
        if publication.number < newest and self._senders[publication.sender].is_ordered:
            self._note(
                AnomalyKind.REORDERED,
                f"{_at(partition, sequence)} begins {publication}, behind its number {newest}",
            )
        self._newest[link] = max(newest, publication.number)

    def _check_route(self, sender: SenderRecord, partition: int, sequence: int, seen: Seen) -> None:
        where = _at(partition, sequence)
        if seen.key != sender.key:
            text = f"{where} has the key {seen.key!r}, sent was {sender.key!r}"
            self._note(AnomalyKind.ALTERED, text)
        home = sender.partition
        if sender.key is not None:
            home = self._homes.setdefault(sender.key, partition)
        if home is not None and home != partition:
            text = f"{where} belongs to partition {home} (sender {sender.id})"
            self._note(AnomalyKind.MISROUTED, text)

    def _compare(self, partition: int, sequence: int, known: Seen, seen: Seen) -> None:
        if known != seen and known is not _NOTHING:
            text = f"{_at(partition, sequence)} was {known} once and is {seen}"
            self._note(AnomalyKind.MOVED, text)

    def _note(self, kind: AnomalyKind, text: str) -> None:
        if len(self.anomalies) < ANOMALIES_MAX:
            self.anomalies.append(Anomaly(kind, text))


def event_body(sender: int, number: int, index: int, count: int, size: int) -> bytes:
    """At least BODY_BYTES_MIN: a tag, then filling that no other event has."""
    assert size >= BODY_BYTES_MIN
    tag = _TAG.pack(_MAGIC, sender, number, index, count, size)
    check = struct.pack(">I", crc32(tag))
    return tag + (check * ((size - _TAG.size) // 4 + 1))[: size - _TAG.size]


def read_body(body: bytes) -> tuple[int, int, int, int] | None:
    """Sender, publication, index, count; None if a single bit is not as it was sent."""
    if len(body) < BODY_BYTES_MIN:
        return None
    magic, sender, number, index, count, size = _TAG.unpack_from(body)
    if magic != _MAGIC or size != len(body):
        return None
    if event_body(sender, number, index, count, size) != body:
        return None
    return sender, number, index, count


def _seen(offset: int, enqueued_ms: int, key: str | None, body: bytes) -> Seen:
    tag = read_body(body)
    if tag is None:
        return Seen(offset, enqueued_ms, key, -1, 0, 0, 0)
    return Seen(offset, enqueued_ms, key, *tag)


def _at(partition: int, sequence: int) -> str:
    return f"partition {partition} number {sequence}"


_NOTHING = Seen(-1, 0, None, -1, 0, 0, 0)  # stands where a gap is


assert _TAG.size + 4 == BODY_BYTES_MIN
