"""Transfer runs: consecutive single-frame transfers, handled without decoding every frame.

A client that publishes one event per transfer sends thousands of frames that differ only in their
delivery-id and payload. `scan_transfers` returns them as one run. It reports no errors: a frame
that is unusual, malformed or incomplete ends the run, and the engine decodes that frame.

This module is the specification of the compiled implementation, `_transfer_scanner.pyx`.

    <size u32> 02 00 <channel u16>  00 53 14  c0 <size> <count>  <3 to 11 fields>  <payload>

The fields: handle, delivery-id, delivery-tag, message-format, settled, more, rcv-settle-mode,
state, resume, aborted, batchable (AMQP 2.7.5). The last ones may be absent (Proton sends 4).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache

import msgspec

_FRAME = struct.Struct(">IHH").unpack_from  # size, doff and type, channel
_PLAIN = 0x0200  # no extended header, type AMQP
_FRAME_HEADER_BYTES = 8
_TRANSFER = b"\x00\x53\x14"
_LIST8, _LIST32 = 0xC0, 0xD0
_TAG_BYTES_MAX = 32  # AMQP 2.8.7
_FIELDS_MIN, _FIELDS_MAX = 3, 11  # an absent message-format is 0
_U32 = struct.Struct(">I").unpack_from
_ID_MASK = 0xFFFFFFFF

_NULL, _TRUE, _FALSE, _BOOLEAN = 0x40, 0x41, 0x42, 0x56
_UINT0, _UINT8, _UINT32 = 0x43, 0x52, 0x70
_BINARY8, _BINARY32 = 0xA0, 0xB0

_SETTLED = 4
# Field index -> values that a plain transfer may have there.
_FLAGS: dict[int, tuple[bool | None, ...]] = {
    _SETTLED: (None, False, True),
    5: (None, False),  # more: a delivery of several frames
    6: (None,),  # rcv-settle-mode
    7: (None,),  # state
    8: (None, False),  # resume
    9: (None, False),  # aborted
    10: (None, False, True),  # batchable: a hint
}


class TransferRun(msgspec.Struct, frozen=True):
    """Consecutive deliveries of one link; payload i is buffer[bounds[2 * i]:bounds[2 * i + 1]]."""

    channel: int
    handle: int
    first_delivery_id: int
    count: int
    settled: bool
    message_format: int
    bounds: list[int]
    next_position: int


def scan_transfers(
    buffer: bytes, start: int, end: int, *, frame_bytes_max: int, count_max: int = 4096
) -> TransferRun | None:
    """The run of plain transfers that starts at `start`; None if that frame must be decoded.

    All transfers of a run have the same channel, handle, settlement and format, and consecutive
    delivery-ids, which wrap at 2**32. Never raises.
    """
    if not 0 <= start <= end <= len(buffer):
        return None
    first = frame = _read_plain_transfer(buffer, start, end, frame_bytes_max)
    bounds: list[int] = []
    while first is not None and frame is not None and len(bounds) < 2 * count_max:
        following = (first.delivery_id + len(bounds) // 2) & _ID_MASK
        if frame.delivery_id != following or frame.link != first.link:
            break
        bounds += frame.payload, frame.stop
        _scan_same_shape(buffer, frame, end, frame_bytes_max, 2 * count_max, bounds)
        frame = _read_plain_transfer(buffer, bounds[-1], end, frame_bytes_max)
    if first is None or not bounds:
        return None
    channel, handle, settled, message_format = first.link
    count = len(bounds) // 2
    return TransferRun(
        channel, handle, first.delivery_id, count, settled, message_format, bounds, bounds[-1]
    )


class _PlainTransfer(msgspec.Struct, frozen=True):
    """A plain transfer: its fields and the positions of its parts."""

    start: int
    link: tuple[int, int, bool, int]  # channel, handle, settled, message-format
    delivery_id: int
    id_start: int  # the constructor of the delivery-id
    tag_start: int  # the constructor of the delivery-tag
    tag_stop: int
    payload: int
    stop: int


def _scan_same_shape(
    buffer: bytes,
    frame: _PlainTransfer,
    end: int,
    frame_bytes_max: int,
    bounds_max: int,
    bounds: list[int],
) -> None:
    """Add the payloads of the frames after `frame` that have exactly its shape.

    Such frames differ only in size, delivery-id, tag and payload, so that one unpack and three
    comparisons check a frame.
    """
    if buffer[frame.id_start] != _UINT32:
        return  # a short id: the encoding of the next one may be longer
    prefix = buffer[frame.start + 4 : frame.id_start + 1]
    tag = buffer[frame.tag_start : frame.tag_stop]
    tag_head = tag[: 2 if tag[0] == _BINARY8 else 5]
    suffix = buffer[frame.tag_stop : frame.payload]
    unpack, shape_size = _compile_shape(
        len(prefix), len(tag_head), len(tag) - len(tag_head), len(suffix)
    )
    shape = (prefix, tag_head, suffix)
    position = frame.stop
    delivery_id = frame.delivery_id
    while len(bounds) < bounds_max and position + shape_size <= end:
        size, frame_prefix, number, frame_tag_head, frame_suffix = unpack(buffer, position)
        delivery_id = (delivery_id + 1) & _ID_MASK
        stop = position + size
        if (frame_prefix, frame_tag_head, frame_suffix) != shape:
            return
        if number != delivery_id or stop > end:
            return
        if not shape_size <= size <= frame_bytes_max:
            return
        bounds += position + shape_size, stop
        position = stop


@lru_cache(maxsize=256)
def _compile_shape(
    prefix: int, tag_head: int, tag: int, suffix: int
) -> tuple[Callable[[bytes, int], tuple[int, bytes, int, bytes, bytes]], int]:
    shape = struct.Struct(f">I{prefix}sI{tag_head}s{tag}x{suffix}s")
    return shape.unpack_from, shape.size


def _read_plain_transfer(
    buffer: bytes, start: int, end: int, frame_bytes_max: int
) -> _PlainTransfer | None:
    if start + _FRAME_HEADER_BYTES > end:
        return None
    size, plain, channel = _FRAME(buffer, start)
    stop = start + size
    if plain != _PLAIN or size > frame_bytes_max or stop > end:
        return None
    if not buffer.startswith(_TRANSFER, start + _FRAME_HEADER_BYTES):
        return None
    try:
        return _read_fields(buffer, start, stop, channel)
    except (_NotPlain, IndexError, struct.error):
        return None


class _NotPlain(Exception):
    """The engine must decode the frame."""


def _read_fields(buffer: bytes, start: int, stop: int, channel: int) -> _PlainTransfer:
    position = start + _FRAME_HEADER_BYTES + len(_TRANSFER)
    code = buffer[position]
    if code == _LIST8:
        payload, count = position + 2 + buffer[position + 1], buffer[position + 2]
        position += 3
    elif code == _LIST32:
        payload, count = position + 5 + _U32(buffer, position + 1)[0], _U32(buffer, position + 5)[0]
        position += 9
    else:
        raise _NotPlain
    if payload > stop or not _FIELDS_MIN <= count <= _FIELDS_MAX:
        raise _NotPlain
    handle, id_start = _read_uint(buffer, position)
    delivery_id, tag_start = _read_uint(buffer, id_start)
    tag_stop = _skip_tag(buffer, tag_start)
    message_format, position = 0, tag_stop
    if count > _FIELDS_MIN:
        if buffer[tag_stop] == _NULL:
            position = tag_stop + 1
        else:
            message_format, position = _read_uint(buffer, tag_stop)
    settled = False
    for index in range(_SETTLED, count):
        flag, position = _read_flag(buffer, position)
        if flag not in _FLAGS[index]:
            raise _NotPlain
        if index == _SETTLED:
            settled = flag is True
    if position != payload:
        raise _NotPlain
    link = (channel, handle, settled, message_format)
    return _PlainTransfer(start, link, delivery_id, id_start, tag_start, tag_stop, payload, stop)


def _read_uint(buffer: bytes, position: int) -> tuple[int, int]:
    code = buffer[position]
    if code == _UINT0:
        return 0, position + 1
    if code == _UINT8:
        return buffer[position + 1], position + 2
    if code == _UINT32:
        return _U32(buffer, position + 1)[0], position + 5
    raise _NotPlain


def _skip_tag(buffer: bytes, position: int) -> int:
    if buffer[position] == _BINARY8:
        length, head = buffer[position + 1], 2
    elif buffer[position] == _BINARY32:
        length, head = _U32(buffer, position + 1)[0], 5
    else:
        raise _NotPlain
    if length > _TAG_BYTES_MAX:
        raise _NotPlain
    return position + head + length


def _read_flag(buffer: bytes, position: int) -> tuple[bool | None, int]:
    code = buffer[position]
    if code == _BOOLEAN and buffer[position + 1] <= 1:
        return buffer[position + 1] == 1, position + 2
    if code not in (_NULL, _TRUE, _FALSE):
        raise _NotPlain
    return None if code == _NULL else code == _TRUE, position + 1
