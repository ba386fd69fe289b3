"""From transfers to publications: check every event and bring it into canonical form.

Most clients send canonical messages, which are stored as they arrived; all others are rewritten.
"""

from __future__ import annotations

import struct

import msgspec

from penstock.kernels._pure import messages as pure_messages
from penstock.kernels._pure import values
from penstock.kernels._pure.columns import message_bounds
from penstock.kernels._pure.messages import (
    BARE,
    DATA,
    MESSAGE_ANNOTATIONS,
    SEQUENCE,
    VALUE,
    Annotations,
    AnnotationsCache,
    MessageFunctions,
    annotations_section,
    service_annotations,
)
from penstock.kernels._pure.values import ELEMENTS_MAX, KernelError, KeyConflict

_EVENTS_MAX = 65_536
_BATCH_BYTES_MAX = 4 * 1024 * 1024  # one record of the log, all events in canonical form
_SINGLES_BYTES = 1024 * 1024  # a coalesced publication is closed once it is this long
_SINGLE_BYTES_MIN = _SINGLES_BYTES // _EVENTS_MAX  # added to each, so that at most _EVENTS_MAX fit

_NUMBER_MAX = 0x7FFFFFFF  # producer numbers are int32 and begin again at 0 (protocol.md 4.7)

_Stamp = tuple[int, int, int] | None
_Run = tuple[int, int, int, int] | None


class Publication(msgspec.Struct, frozen=True, gc=False):
    """Events for one partition, canonical and ready to be stored.

    `producer` is (producer id, epoch, first number, last number) of protocol.md 4.7; None also
    when the events' numbers are not one consecutive run of one producer.
    """

    sections: bytes
    count: int
    partition_key: str | None
    producer: tuple[int, int, int, int] | None


class RefusedEvent(msgspec.Struct, frozen=True):
    """Malformed messages, at their position among the publications."""

    count: int
    error: KernelError


def split_batch(
    data: bytes,
    start: int,
    end: int,
    *,
    publisher: str | None = None,
    events_max: int = _EVENTS_MAX,
    bytes_max: int = _BATCH_BYTES_MAX,
    messages: MessageFunctions = pure_messages,
) -> Publication:
    """Split one message of format 0x80013700, data[start:end], into its events.

    The whole batch goes to one partition: by `publisher`, else by the envelope's partition key,
    else by the first event's (protocol.md 4.4). Raises KernelError, and KeyConflict where a key
    differs from the publisher; then no event of the batch may be stored. `messages` is the
    implementation of the checks: the compiled kernels pass theirs.
    """
    if not 0 <= start <= end <= len(data):
        raise KernelError(f"no message at bytes {start} to {end} of {len(data)}")
    try:
        envelope, events = _outer(data, start, end, events_max, messages)
        wanted = _CanonicalForm.of_batch(envelope, publisher, messages)
        return _assemble(data, events, wanted, bytes_max)
    except (IndexError, struct.error):
        raise KernelError(f"the batch is cut off in a value at byte {end}") from None


def split_singles(
    data: bytes,
    bounds: list[int],
    *,
    publisher: str | None = None,
    messages: MessageFunctions = pure_messages,
) -> list[Publication | RefusedEvent]:
    """Combine the single messages data[bounds[2 * i]:bounds[2 * i + 1]] of one socket read.

    Consecutive messages with the same partition key and consecutive producer numbers share a
    publication. A malformed message becomes a RefusedEvent. The order of messages is preserved, and
    the counts add up to their number.
    """
    split: list[Publication | RefusedEvent] = []
    run = _CoalescedSingles()
    wanted = _CanonicalForm(publisher, publisher, messages)
    seen = AnnotationsCache()
    for start, end in message_bounds(data, bounds):
        try:
            annotations = messages.inspect_message(data, start, end, seen)
            message = wanted.apply(data, start, end, annotations)
        except KernelError as error:
            run.close(split)
            split.append(RefusedEvent(1, error))
            continue
        if annotations is not run.last or run.size >= _SINGLES_BYTES:
            key = annotations.key if publisher is None else publisher
            run.admit(key, annotations, split)
        run.add(message)
    run.close(split)
    return split


def count_metered_events(sections: bytes, step: int) -> int:
    """Count one for each `step` bytes that an event has begun, at least one per event.

    `sections` is a stored batch (penstock.model.events). Raises KernelError if it is damaged.
    """
    steps = position = 0
    end = len(sections)
    while position < end:
        left = end - position
        if left >= 5 and sections[position + 3] == values.BINARY8:
            size, head = sections[position + 4], 5
        elif left >= 8 and sections[position + 3] == values.BINARY32:
            size, head = int.from_bytes(sections[position + 4 : position + 8], "big"), 8
        else:
            raise KernelError(f"the stored event at byte {position} is damaged")
        if head + size > left:
            raise KernelError(f"the stored event at byte {position} ends beyond byte {end}")
        position += head + size
        steps += 1 if size <= step else -(-size // step)
    return steps


class _CanonicalForm:
    """The partition key and the publisher that every stored event of a publication must carry."""

    __slots__ = ("_new", "_old", "key", "messages", "publisher", "section")

    def __init__(self, key: str | None, publisher: str | None, messages: MessageFunctions) -> None:
        self.key = key
        self.publisher = publisher
        self.messages = messages
        self.section = annotations_section(*service_annotations(key, publisher))
        # The annotations of the last event and what replaces them: most events have the same.
        self._old = self._new = b""

    @classmethod
    def of_batch(
        cls, envelope: Annotations, publisher: str | None, messages: MessageFunctions
    ) -> _CanonicalForm:
        if publisher is None:
            return cls(envelope.key, None, messages)
        if envelope.key not in (None, publisher):
            raise KeyConflict("the batch has another partition key than its publisher's name")
        return cls(publisher, publisher, messages)

    def met_by(self, annotations: Annotations) -> bool:
        """Whether a message with these annotations can be stored as it is."""
        return (
            annotations.canonical
            and (self.key is None or annotations.key == self.key)
            and annotations.publisher == self.publisher
        )

    def apply(self, data: bytes, start: int, end: int, annotations: Annotations) -> bytes:
        """The message as it is stored. Raises KeyConflict."""
        if self.met_by(annotations):
            return data[start:end]
        if self.publisher is not None and annotations.key not in (None, self.publisher):
            raise KeyConflict(
                f"the event at byte {start} has another partition key than its publisher's name"
            )
        first = data[start + 2] if start < end else 0
        if annotations is BARE and first > MESSAGE_ANNOTATIONS:
            return self.section + data[start:end]
        if self.key is not None and annotations.canonical and first == MESSAGE_ANNOTATIONS:
            if not self._old or not data.startswith(self._old, start):
                stop = self.messages.read_annotations(data, start + 3, end, [ELEMENTS_MAX])[0]
                self._old = data[start:stop]
                self._new = self.messages.rewrite_message(
                    self._old, 0, stop - start, self.key, self.publisher
                )
            return self._new + data[start + len(self._old) : end]
        return self.messages.rewrite_message(data, start, end, self.key, self.publisher)


class _CoalescedSingles:
    """The publication to which single messages are being added."""

    __slots__ = ("count", "key", "last", "parts", "producer", "size")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.count = 0
        self.size = 0
        self.key: str | None = None
        self.producer: _Run = None
        self.last: Annotations | None = None  # of the last message: an equal one needs no `admit`

    def admit(
        self, key: str | None, annotations: Annotations, split: list[Publication | RefusedEvent]
    ) -> None:
        """Begin a new publication if the next event does not belong to this one."""
        stamp = annotations.producer
        producer = _extend_run(self.producer, stamp)
        interrupted = producer is None and (stamp is not None or self.producer is not None)
        if key != self.key or interrupted or self.size >= _SINGLES_BYTES:
            self.close(split)
            producer = _begin_run(stamp)
        self.key = key
        self.producer = producer
        self.last = annotations if stamp is None else None

    def add(self, message: bytes) -> None:
        self.parts += _data_head(len(message)), message
        self.size += len(message) + _SINGLE_BYTES_MIN
        self.count += 1

    def close(self, split: list[Publication | RefusedEvent]) -> None:
        if self.count:
            split.append(Publication(b"".join(self.parts), self.count, self.key, self.producer))
            self.parts = []
            self.count = self.size = 0
        self.key = self.producer = self.last = None


def leading_envelope(
    data: bytes, start: int, end: int, messages: MessageFunctions
) -> tuple[Annotations, int]:
    """The annotations of the envelope sections before the first event, and where that starts."""
    annotations = BARE
    budget = [ELEMENTS_MAX]
    codes: set[int] = set()
    position = start
    while position < end and not data.startswith(b"\x00\x53\x75", position):
        code, first = messages.read_section_code(data, position, end)
        if code == DATA:
            break
        _check_envelope_code(code, codes)
        if code == MESSAGE_ANNOTATIONS:
            position, annotations = messages.read_annotations(data, first, end, budget)
        else:
            position = messages.check_section(data, code, first, end, budget)
    return annotations, position


def _outer(
    data: bytes, start: int, end: int, events_max: int, messages: MessageFunctions
) -> tuple[Annotations, list[int]]:
    """The envelope's annotations, and three numbers for each event.

    The numbers are where its data section starts (-1 if that is not in canonical form), and where
    the message in it starts and ends. Envelope sections may be anywhere around them.
    """
    annotations = BARE
    budget = [ELEMENTS_MAX]
    codes: set[int] = set()
    events: list[int] = []
    position = start
    while position < end:
        if data.startswith(b"\x00\x53\x75\xa0", position):
            first = position + 5
            stop = first + data[position + 4]
            events += position, first, stop
            position = stop
            continue
        code, first = messages.read_section_code(data, position, end)
        if code == DATA:
            canonical = first == position + 3
            if data[first] not in (values.BINARY8, values.BINARY32):
                raise KernelError(f"an event's data section without binary at byte {first}")
            stop = messages.check_section(data, code, first, end, [1])
            head = 2 if data[first] == values.BINARY8 else 5
            events += (position if canonical else -1), first + head, stop
        else:
            _check_envelope_code(code, codes)
            if code == MESSAGE_ANNOTATIONS:
                stop, annotations = messages.read_annotations(data, first, end, budget)
            else:
                stop = messages.check_section(data, code, first, end, budget)
        position = stop
    if position != end:
        raise KernelError(f"the batch ends at byte {position}, its place at {end}")
    if not 0 < len(events) <= 3 * events_max:
        raise KernelError(f"a batch of {len(events) // 3} events: 1 to {events_max} are allowed")
    return annotations, events


def _check_envelope_code(code: int, codes: set[int]) -> None:
    if code in codes or code in (SEQUENCE, VALUE):
        raise KernelError(f"section 0x{code:x} has no place, or no second one, in an envelope")
    codes.add(code)


def _assemble(
    data: bytes, events: list[int], wanted: _CanonicalForm, bytes_max: int
) -> Publication:
    """Check each event, rewrite those that are not canonical, and join all."""
    seen = AnnotationsCache()
    parts: list[bytes] = []
    size = 0
    key = wanted.key
    producer: _Run = None
    numbers = iter(events)
    for index, (outer, first, stop) in enumerate(zip(numbers, numbers, numbers, strict=True)):
        annotations = wanted.messages.inspect_message(data, first, stop, seen)
        if not index:
            producer = _begin_run(annotations.producer)
            key = annotations.key if key is None else key
        elif producer is not None:
            producer = _extend_run(producer, annotations.producer)
        if outer >= 0 and wanted.met_by(annotations):
            parts.append(data[outer:stop])
            size += stop - outer
        else:
            message = wanted.apply(data, first, stop, annotations)
            parts += _data_head(len(message)), message
            size += len(message) + 8
        # Publisher and key can turn a few bytes into hundreds: check before the parts are joined.
        if size > bytes_max:
            raise KernelError(f"the batch exceeds {bytes_max} bytes in canonical form")
    return Publication(b"".join(parts), len(events) // 3, key, producer)


def _data_head(length: int) -> bytes:
    return b"\x00\x53\x75" + values.variable_head(values.BINARY8, length)


def _begin_run(stamp: _Stamp) -> _Run:
    return None if stamp is None else (*stamp, stamp[2])


def _extend_run(run: _Run, stamp: _Stamp) -> _Run:
    """The run with one more event; None if that is not the producer's next number."""
    if run is None or stamp is None or run[:2] != stamp[:2]:
        return None
    following = 0 if run[3] == _NUMBER_MAX else run[3] + 1
    return (*run[:3], following) if stamp[2] == following else None
