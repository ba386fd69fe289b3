"""From stored events to transfer frames, for delivery.

One event is one settled delivery. What a reader gets (protocol.md 5.4, 13):

    <size u32> 02 00 <channel u16>                               frame header (AMQP 2.3)
    00 53 14 c0 <size> 0b <handle> 70 <delivery-id u32>          transfer, always 11 fields (E2)
             a0 00  43  41  42  40 40 40 40 41                   empty tag, format 0 (E8), settled
    [00 53 71 …]                                                 runtime metrics, or the stored ones
    00 53 72 c1 <size> <count>  <four pairs>  <the sender's own pairs>
    <the other stored sections as they are, without the header>

The stored bytes were checked at ingest; only the lengths that are read here are checked again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

import msgspec

from penstock.kernels._pure.messages import (
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    annotations_section,
)
from penstock.kernels._pure.values import LIST0, LIST8, LIST32, MAP8, MAP32, KernelError

_DATA8 = 0x005375A0
_DATA32 = 0x005375B0
_MESSAGE_BYTES_MIN = 4  # 00 53 7x and a value
_DESCRIBED = 0x0053  # every canonical section begins with 00 53
_HEAD8 = struct.Struct(">IBHB").unpack_from
_HEAD32 = struct.Struct(">IHB").unpack_from
_U32 = struct.Struct(">I").unpack_from

# After the delivery-id: tag, format, settled, more, rcv-settle-mode, state, resume, aborted,
# batchable.
_LAST = b"\xa0\x00\x43\x41\x42\x40\x40\x40\x40\x41"
_MORE = b"\xa0\x00\x43\x41\x41\x40\x40\x40\x40\x41"

_EPOCH_AND_SEQUENCE = (
    b"\xa3\x1bx-opt-sequence-number-epoch\x54\xff" + b"\xa3\x15x-opt-sequence-number\x81"
)
_OFFSET = b"\xa3\x0cx-opt-offset\xa1"
_ENQUEUED = b"\xa3\x13x-opt-enqueued-time\x83"
_OWNED_COUNT = 8
# The four pairs without the offset's digits.
_OWNED_BYTES = len(_EPOCH_AND_SEQUENCE) + 8 + len(_OFFSET) + 1 + len(_ENQUEUED) + 8
_MAP8_SIZE = _OWNED_BYTES + 1  # and the count's byte
_OWN_BYTES_MAX = 0xFF - _MAP8_SIZE - 20  # own pairs fit into a map8, with the longest offset

_KINDS = {
    HEADER: (LIST0, LIST8, LIST32),
    DELIVERY_ANNOTATIONS: (MAP8, MAP32),
    MESSAGE_ANNOTATIONS: (MAP8, MAP32),
}

_DELIVERY_ID_MASK = 0xFFFFFFFF


class FramedDeliveries(msgspec.Struct, frozen=True, gc=False):
    """Frames ready for the socket; `position` is where the next event's data section starts."""

    data: bytes
    events: int
    frames: int
    position: int


def frame_events(
    sections: bytes,
    position: int,
    *,
    events_max: int,
    frames_max: int,
    bytes_max: int,
    channel: int,
    handle: int,
    delivery_id: int,
    frame_bytes_max: int,
    sequence: int,
    base_offset: int,
    enqueued_ms: int,
    runtime: bytes,
) -> FramedDeliveries:
    """Frame events as settled transfers, one delivery each.

    The event whose data section starts at `position` has the number `sequence`; its offset is
    `base_offset + position`. Stops at the end, after `events_max` events, before an event whose
    frames would not all fit into `frames_max`, or once the output has `bytes_max` bytes, which the
    first event may exceed. `runtime` is a whole delivery-annotations section or empty.

    Raises KernelError where the stored bytes are damaged.
    """
    if not 0 <= position <= len(sections):
        raise KernelError(f"no event at byte {position} of {len(sections)}")
    link = _FrameLink(channel, handle, frame_bytes_max, enqueued_ms, runtime)
    limits = (events_max, frames_max, bytes_max)
    try:
        return _frame(sections, position, limits, link, delivery_id, sequence, base_offset)
    except (IndexError, struct.error):
        raise KernelError(f"a stored event is cut off at byte {len(sections)}") from None


class StoredEvents(Protocol):
    """What framing needs of a stored batch. All are plain attributes."""

    @property
    def first_sequence(self) -> int: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def enqueued_ms(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def sections(self) -> bytes: ...


def frame_run(
    batches: Sequence[StoredEvents],
    position: int,
    *,
    events_max: int,
    frames_max: int,
    bytes_max: int,
    channel: int,
    handle: int,
    delivery_id: int,
    frame_bytes_max: int,
    sequence: int,
    runtime: bytes,
) -> FramedDeliveries:
    """Frame events of several stored batches like `frame_events`.

    The first batch is framed from the event `sequence` at `position` on, the others from their
    beginning. The returned position is in the batch of the last event. A batch with fewer events
    than its `count` ends the run.

    Raises KernelError if any batch that is reached is damaged, although the first may be intact.
    """
    parts: list[bytes] = []
    events = frames = size = 0
    for batch in batches:
        if events:
            if events >= events_max or frames >= frames_max or size >= bytes_max:
                break
            position, sequence = 0, batch.first_sequence
        left = batch.first_sequence + batch.count - sequence
        framed = frame_events(
            batch.sections,
            position,
            events_max=min(events_max - events, left),
            frames_max=frames_max - frames,
            bytes_max=bytes_max - size,
            channel=channel,
            handle=handle,
            delivery_id=(delivery_id + events) & _DELIVERY_ID_MASK,
            frame_bytes_max=frame_bytes_max,
            sequence=sequence,
            base_offset=batch.base_offset,
            enqueued_ms=batch.enqueued_ms,
            runtime=runtime,
        )
        parts.append(framed.data)
        events += framed.events
        frames += framed.frames
        size += len(framed.data)
        position = framed.position
        if framed.events < left:
            break
    return FramedDeliveries(b"".join(parts), events, frames, position)


class _FrameLink:
    """What all frames of one call have in common."""

    __slots__ = ("enqueued", "frame_bytes_max", "head", "middle", "overhead", "room", "runtime")

    def __init__(
        self, channel: int, handle: int, frame_bytes_max: int, enqueued_ms: int, runtime: bytes
    ) -> None:
        if handle == 0:
            encoded = b"\x43"
        elif handle <= 0xFF:
            encoded = b"\x52" + handle.to_bytes(1, "big")
        else:
            encoded = b"\x70" + handle.to_bytes(4, "big")
        fields = 1 + len(encoded) + 5 + len(_LAST)  # the count, handle, delivery-id, the others
        self.head = (
            b"\x02\x00"
            + channel.to_bytes(2, "big")
            + b"\x00\x53\x14\xc0"
            + bytes((fields, 11))
            + encoded
            + b"\x70"
        )
        self.overhead = 4 + len(self.head) + 4 + len(_LAST)
        assert frame_bytes_max > self.overhead
        self.frame_bytes_max = frame_bytes_max
        self.room = frame_bytes_max - self.overhead  # for a part of the message in one frame
        self.runtime = runtime
        self.middle = _LAST + runtime + b"\x00\x53\x72\xc1"
        self.enqueued = _ENQUEUED + struct.pack(">q", enqueued_ms)


def _frame(
    sections: bytes,
    position: int,
    limits: tuple[int, int, int],
    link: _FrameLink,
    delivery_id: int,
    sequence: int,
    base_offset: int,
) -> FramedDeliveries:
    events_max, frames_max, bytes_max = limits
    head, middle, enqueued = link.head, link.middle, link.enqueued
    frame_bytes_max = link.frame_bytes_max
    out: list[bytes] = []
    events = frames = size = digits = 0
    end = len(sections)
    while position < end and events < events_max and (size < bytes_max or not events):
        outer, length, mark, code = _HEAD8(sections, position)
        first = position + 5
        if outer != _DATA8:
            length, mark, code = _HEAD32(sections, position + 4)
            first = position + 8
            if outer != _DATA32:
                mark = 0
        stop = first + length
        if mark != _DESCRIBED or length < _MESSAGE_BYTES_MIN or stop > end:
            raise KernelError(f"the stored event at byte {position} is damaged")
        offset = b"%d" % (base_offset + position)
        if len(offset) != digits:
            digits = len(offset)
            pack = _template(len(head), len(middle), digits)
            offset_key = _OFFSET + bytes((digits,))
            fixed = link.overhead + len(link.runtime) + 6 + _OWNED_BYTES + digits
        if code > MESSAGE_ANNOTATIONS:
            own = count = 0
            stored = sections[first:stop]
        else:
            own, count, stored = _own_annotations(sections, first, stop)
        frame_size = fixed + len(stored)
        if own < _OWN_BYTES_MAX and frame_size <= frame_bytes_max:
            if frames >= frames_max:
                break
            out.append(
                pack(
                    frame_size, head, delivery_id, middle, own + digits + _MAP8_SIZE, count + 8,
                    _EPOCH_AND_SEQUENCE, sequence, offset_key, offset, enqueued,
                )
            )  # fmt: skip
            out.append(stored)
            frames += 1
        else:
            payload = _payload(link, sections[first:stop], sequence, offset)
            needed = -(-len(payload) // link.room)
            if frames + needed > frames_max:
                break
            frame_size = _append_frames(out, link, payload, delivery_id)
            frames += needed
        size += frame_size
        position = stop
        events += 1
        sequence += 1
        delivery_id = (delivery_id + 1) & _DELIVERY_ID_MASK
    return FramedDeliveries(b"".join(out), events, frames, position)


@lru_cache(maxsize=256)
def _template(head: int, middle: int, digits: int) -> Callable[..., bytes]:
    """One pack per event: frame header, performative and annotations, as drawn above."""
    return struct.Struct(
        f">I{head}sI{middle}sBB{len(_EPOCH_AND_SEQUENCE)}sq{len(_OFFSET) + 1}s{digits}s"
        f"{len(_ENQUEUED) + 8}s"
    ).pack


def _own_annotations(sections: bytes, first: int, stop: int) -> tuple[int, int, bytes]:
    """Size and count of the sender's own pairs, and the message from these on.

    _OWN_BYTES_MAX as a size says that the message is not of the usual form: it has
    delivery-annotations, or more annotations than fit into a map8 together with the service's.
    """
    if sections[first + 2] == HEADER:
        # Many clients write an empty or short header. Readers do not get it.
        if sections[first + 3] == LIST0:
            first += 4
        elif sections[first + 3] == LIST8:
            first += 5 + sections[first + 4]
        if first == stop:
            return 0, 0, b""
        if first + 4 > stop or not sections.startswith(b"\x00\x53", first):
            raise KernelError(f"the stored header before byte {first} is damaged")
        if sections[first + 2] > MESSAGE_ANNOTATIONS:
            return 0, 0, sections[first:stop]
    if sections[first + 2] != MESSAGE_ANNOTATIONS or sections[first + 3] != MAP8:
        return _OWN_BYTES_MAX, 0, b""
    own = sections[first + 4] - 1
    if own < 0 or first + 6 + own > stop:
        raise KernelError(f"the stored annotations at byte {first} are damaged")
    return own, sections[first + 5], sections[first + 6 : stop]


def _payload(link: _FrameLink, message: bytes, sequence: int, offset: bytes) -> bytes:
    """A delivered message of any form."""
    annotations, count, pairs, rest = _stored_parts(message)
    pairs = b"".join(
        (
            _EPOCH_AND_SEQUENCE,
            struct.pack(">q", sequence),
            _OFFSET,
            bytes((len(offset),)),
            offset,
            link.enqueued,
            pairs,
        )
    )
    section = annotations_section(count + _OWNED_COUNT, pairs)
    return b"".join((link.runtime or annotations, section, rest))


def _stored_parts(message: bytes) -> tuple[bytes, int, bytes, bytes]:
    """Delivery-annotations, count and bytes of the sender's annotations, all that follows."""
    delivery = pairs = b""
    count = position = 0
    end = len(message)
    while position < end and message[position + 2] <= MESSAGE_ANNOTATIONS:
        code, kind = message[position + 2], message[position + 3]
        if kind == LIST0:
            body = after = position + 4
        elif kind in (LIST8, MAP8):
            body, after = position + 6, position + 5 + message[position + 4]
            number = message[position + 5]
        else:
            body, after = position + 12, position + 8 + _U32(message, position + 4)[0]
            number = _U32(message, position + 8)[0]
        if kind not in _KINDS.get(code, ()) or not body <= after <= end:
            raise KernelError(f"the stored section 0x{code:x} at byte {position} is damaged")
        if code == DELIVERY_ANNOTATIONS:
            delivery = message[position:after]
        elif code == MESSAGE_ANNOTATIONS:
            count, pairs = number, message[body:after]
        position = after
    return delivery, count, pairs, message[position:]


def _append_frames(out: list[bytes], link: _FrameLink, payload: bytes, delivery_id: int) -> int:
    """Cut one delivery into frames; continuations repeat id, tag and format (E20)."""
    size = 0
    for start in range(0, len(payload), link.room):
        chunk = payload[start : start + link.room]
        fields = _MORE if start + link.room < len(payload) else _LAST
        frame_size = link.overhead + len(chunk)
        out += struct.pack(">I", frame_size), link.head, struct.pack(">I", delivery_id)
        out += fields, chunk
        size += frame_size
    return size
