"""Transfer frames built in advance: a load generator must not encode a delivery a million times.

A block of whole deliveries is kept in memory. The deliveries of a block differ only in their
delivery-id and in the tag, which repeats it. A block for other ids is the same bytes with a few
columns overwritten: one strided assignment per column, and no Python code per delivery.

    <size u32> 02 00 <channel u16>  00 53 14  c0 <size> 0b
    70 <handle> 70 <delivery-id> a0 04 <tag> 70 <message-format> 42 <more> 40 40 42 42 42  <payload>
"""

from __future__ import annotations

import struct

from penstock.amqp.link import Link

BATCH_FORMAT = 0x80013700  # protocol.md 4.4
_BLOCK_BYTES = 256 * 1024  # writes below 64 KB cost throughput; this is four times that
_BLOCK_DELIVERIES_MAX = 256  # so that the low bytes of the ids are the same in every block
_ID_MASK = 0xFFFFFFFF
_LOW_BYTES = bytes(range(256))
_TRUE, _FALSE = b"\x41", b"\x42"
# AMQP 2.7.5, all 11 fields as the official SDKs write them; positions of the two ids.
_ID_AT = 8 + 3 + 3 + 5 + 1
_TAG_AT = _ID_AT + 4 + 2
_HEADER_BYTES = _TAG_AT + 4 + 5 + 7


def encode_publication(size: int, batch: int) -> tuple[bytes, int]:
    """Encoded payload and message format: `batch` events whose bodies have `size` bytes."""
    body = bytes(i % 251 for i in range(size))
    return encode_events(body, batch), 0 if batch == 1 else BATCH_FORMAT


def encode_events(body: bytes, count: int) -> bytes:
    """One event with that body, or a batch of equal ones."""
    message = data_section(body)
    return message if count == 1 else data_section(message) * count


def data_section(body: bytes) -> bytes:
    if len(body) < 256:
        return b"\x00\x53\x75\xa0" + bytes((len(body),)) + body
    return b"\x00\x53\x75\xb0" + struct.pack(">I", len(body)) + body


class TransferFraming:
    """How the deliveries of one link are framed."""

    def __init__(self, link: Link, message_format: int) -> None:
        self._channel = link.session.channel
        self._handle = link.handle
        self._message_format = message_format
        self._room = link.session.frame_bytes_max - _HEADER_BYTES
        assert self._room > 0

    def pieces(self, payload_size: int) -> int:
        """The number of frames of one delivery of that size."""
        return max(1, -(-payload_size // self._room))

    def delivery(self, payload: bytes, delivery_id: int, *, is_settled: bool = False) -> bytes:
        """All frames of one delivery; each repeats the delivery-id, as pyamqp does (E20)."""
        settled = _TRUE if is_settled else _FALSE
        pieces = self.pieces(len(payload))
        if pieces == 1:
            return self._header(len(payload), delivery_id, settled, _FALSE) + payload
        out: list[bytes | memoryview] = []
        view = memoryview(payload)  # without copies until the join below
        for piece in range(pieces):
            chunk = view[piece * self._room : (piece + 1) * self._room]
            more = _TRUE if piece + 1 < pieces else _FALSE
            out += [self._header(len(chunk), delivery_id, settled, more), chunk]
        return b"".join(out)

    def id_columns(self, payload_size: int) -> list[int]:
        """The positions of the 4 bytes of the delivery-id in a delivery."""
        last = self.pieces(payload_size) - 1
        starts = [piece * (self._room + _HEADER_BYTES) for piece in range(last + 1)]
        return [start + at for start in starts for at in (_ID_AT, _TAG_AT)]

    def _header(self, payload_size: int, delivery_id: int, settled: bytes, more: bytes) -> bytes:
        number = struct.pack(">I", delivery_id)
        fields = b"".join(
            (
                b"\x70" + struct.pack(">I", self._handle),
                b"\x70" + number,
                b"\xa0\x04" + number,
                b"\x70" + struct.pack(">I", self._message_format),
                settled + more,
                b"\x40\x40\x42\x42\x42",  # rcv-settle-mode, state, resume, aborted, batchable
            )
        )
        head = struct.pack(">IHH", _HEADER_BYTES + payload_size, 0x0200, self._channel)
        return head + b"\x00\x53\x14\xc0" + bytes((len(fields) + 1, 11)) + fields


class PreparedRun:
    """A block of deliveries with the same payload, renumbered in place."""

    def __init__(self, framing: TransferFraming, payload: bytes) -> None:
        delivery = framing.delivery(payload, 0)
        self.pieces = framing.pieces(len(payload))
        self._stride = len(delivery)
        self._columns = framing.id_columns(len(payload))
        # A power of two, so that the upper three bytes of the ids are the same within a block.
        count = _BLOCK_DELIVERIES_MAX
        while count > 1 and count * self._stride > _BLOCK_BYTES:
            count //= 2
        self._count = count
        self._block = bytearray(delivery * count)
        self._view = memoryview(self._block)
        self._written: list[bytes] = [bytes(count)] * 4  # the ids in the block: all 0

    def take(self, first_id: int, count: int, at_s: float = 0.0) -> bytes:
        """Frames of the deliveries first_id to first_id + count - 1; their time is not used. The
        bytes are a copy, since a socket keeps what it could not write yet."""
        parts = []
        while count > 0:
            index = first_id % self._count
            stop = min(index + count, self._count)
            self._renumber(first_id - index)
            parts.append(bytes(self._view[index * self._stride : stop * self._stride]))
            first_id += stop - index
            count -= stop - index
        return b"".join(parts)

    def _renumber(self, block_id: int) -> None:
        """Write the ids from block_id on into the block; block_id is a multiple of its count."""
        count = self._count
        high, low = divmod(block_id & _ID_MASK, 256)
        columns = [bytes((byte,)) * count for byte in high.to_bytes(3, "big")]
        columns.append(_LOW_BYTES[low : low + count])
        for index, column in enumerate(columns):
            if column != self._written[index]:
                self._written[index] = column
                for start in self._columns:
                    self._block[start + index :: self._stride] = column
