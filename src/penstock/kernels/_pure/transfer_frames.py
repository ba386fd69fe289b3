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
from collections.abc import Sequence
from typing import Protocol

import msgspec

from penstock.kernels._pure import messages, values
from penstock.kernels._pure.values import KernelError

_DATA8 = b"\x00\x53\x75\xa0"
_DATA32 = b"\x00\x53\x75\xb0"
_SECTION = b"\x00\x53"  # every canonical section begins with it
_MESSAGE_BYTES_MIN = 4  # 00 53 7x and a value

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

_KINDS = {
    messages.HEADER: (values.LIST0, values.LIST8, values.LIST32),
    messages.DELIVERY_ANNOTATIONS: (values.MAP8, values.MAP32),
    messages.MESSAGE_ANNOTATIONS: (values.MAP8, values.MAP32),
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
    head = _transfer_head(channel, handle)
    overhead = 4 + len(head) + 4 + len(_LAST)
    part_max = frame_bytes_max - overhead  # for a part of the message in one frame
    assert part_max > 0
    out: list[bytes] = []
    events = frames = size = 0
    while position < len(sections) and events < events_max and (size < bytes_max or not events):
        message, stop = _stored_message(sections, position)
        offset = b"%d" % (base_offset + position)
        try:
            payload = _payload(message, sequence + events, offset, enqueued_ms, runtime)
        except IndexError:
            raise KernelError(f"a stored event is cut off at byte {stop}") from None
        needed = -(-len(payload) // part_max)
        if frames + needed > frames_max:
            break
        id_bytes = struct.pack(">I", (delivery_id + events) & _DELIVERY_ID_MASK)
        for start in range(0, len(payload), part_max):
            chunk = payload[start : start + part_max]
            # Continuations repeat id, tag and format (E20).
            fields = _MORE if start + part_max < len(payload) else _LAST
            out += struct.pack(">I", overhead + len(chunk)), head, id_bytes, fields, chunk
        size += needed * overhead + len(payload)
        frames += needed
        position = stop
        events += 1
    return FramedDeliveries(b"".join(out), events, frames, position)


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


def _transfer_head(channel: int, handle: int) -> bytes:
    """What all frames of one call have between their size and the delivery-id."""
    if handle == 0:
        encoded = b"\x43"
    elif handle <= 0xFF:
        encoded = b"\x52" + handle.to_bytes(1, "big")
    else:
        encoded = b"\x70" + handle.to_bytes(4, "big")
    fields = 1 + len(encoded) + 5 + len(_LAST)  # the count, handle, delivery-id, the others
    frame = b"\x02\x00" + channel.to_bytes(2, "big")
    return frame + b"\x00\x53\x14\xc0" + bytes((fields, 11)) + encoded + b"\x70"


def _stored_message(sections: bytes, position: int) -> tuple[bytes, int]:
    """The message in the data section at `position`, and where that ends."""
    first = position + (8 if sections.startswith(_DATA32, position) else 5)
    length = int.from_bytes(sections[position + 4 : first], "big")
    message = sections[first : first + length]
    if (
        not sections.startswith((_DATA8, _DATA32), position)
        or not message.startswith(_SECTION)
        or not _MESSAGE_BYTES_MIN <= length == len(message)
    ):
        raise KernelError(f"the stored event at byte {position} is damaged")
    return message, first + length


def _payload(
    message: bytes, sequence: int, offset: bytes, enqueued_ms: int, runtime: bytes
) -> bytes:
    """The delivered message."""
    annotations, count, pairs, rest = _stored_parts(message)
    owned = _EPOCH_AND_SEQUENCE + struct.pack(">q", sequence)
    owned += _OFFSET + bytes((len(offset),)) + offset
    owned += _ENQUEUED + struct.pack(">q", enqueued_ms)
    section = messages.annotations_section(count + _OWNED_COUNT, owned + pairs)
    return b"".join((runtime or annotations, section, rest))


def _stored_parts(message: bytes) -> tuple[bytes, int, bytes, bytes]:
    """Delivery-annotations, count and bytes of the sender's annotations, all that follows. The
    header is left out."""
    delivery = b""
    position = 0
    while position < len(message):
        code, kind = message[position + 2], message[position + 3]
        is_section = message.startswith(_SECTION, position)
        if code > messages.MESSAGE_ANNOTATIONS and is_section:
            break
        width = 4 if kind & 0x10 else 1  # of the size and of the count
        if kind == values.LIST0:
            width = 0
        count_at = position + 4 + width
        body = count_at + width
        after = count_at + int.from_bytes(message[position + 4 : count_at], "big")
        is_whole = after <= len(message) and (body <= after or code == messages.HEADER)
        if not (is_section and is_whole and kind in _KINDS.get(code, ())):
            raise KernelError(f"the stored section 0x{code:x} at byte {position} is damaged")
        if code == messages.MESSAGE_ANNOTATIONS:
            count = int.from_bytes(message[count_at:body], "big")
            # An element may take one byte. Ingest checks it; here the bytes may be damaged.
            if count > max(0xFF - _OWNED_COUNT, after - body):
                raise KernelError(f"{count} elements in {after - body} bytes of annotations")
            return delivery, count, message[body:after], message[after:]
        if code == messages.DELIVERY_ANNOTATIONS:
            delivery = message[position:after]
        position = after
    return delivery, 0, b"", message[position:]
