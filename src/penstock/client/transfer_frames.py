"""Transfer frames made ahead: a load generator must not encode what it sends a million times.

A block of whole deliveries lies ready in memory. Deliveries of a block differ in nothing but their
delivery-id (and the tag, which repeats it), so a block for other ids is the same bytes with a few
columns written anew: one strided assignment a column, no Python per delivery.

    <size u32> 02 00 <channel u16>  00 53 14  c0 <size> 0b
    70 <handle> 70 <delivery-id> a0 04 <tag> 70 <message-format> 42 <more> 40 40 42 42 42  <payload>
"""

from __future__ import annotations

import struct

BATCH_FORMAT = 0x80013700  # protocol.md 4.4
_BLOCK_BYTES = 256 * 1024  # writes below 64 KB cost throughput; this is four times that
_BLOCK_DELIVERIES_MAX = 256  # then the low byte of the ids never changes
_ID_MASK = 0xFFFFFFFF
_LOW_BYTES = bytes(range(256))
_TRUE, _FALSE = b"\x41", b"\x42"
# AMQP 2.7.5, all 11 fields as the official SDKs write them; the id stands in both its places.
_ID_AT = 8 + 3 + 3 + 5 + 1
_TAG_AT = _ID_AT + 4 + 2
_HEADER_BYTES = _TAG_AT + 4 + 5 + 7


def encode_publication(size: int, batch: int) -> tuple[bytes, int]:
    """Encoded payload and message format: `batch` events whose bodies have `size` bytes."""
    message = data_section(bytes(i % 251 for i in range(size)))
    if batch == 1:
        return message, 0
    return data_section(message) * batch, BATCH_FORMAT


def data_section(body: bytes) -> bytes:
    if len(body) < 256:
        return b"\x00\x53\x75\xa0" + bytes((len(body),)) + body
    return b"\x00\x53\x75\xb0" + struct.pack(">I", len(body)) + body


class TransferFraming:
    """How one link's deliveries are framed."""

    def __init__(
        self, *, channel: int, handle: int, message_format: int, frame_bytes_max: int
    ) -> None:
        self._channel = channel
        self._handle = handle
        self._message_format = message_format
        self._room = frame_bytes_max - _HEADER_BYTES
        assert self._room > 0

    def pieces(self, payload_size: int) -> int:
        """How many frames one delivery of that size takes."""
        return max(1, -(-payload_size // self._room))

    def delivery(self, payload: bytes, delivery_id: int) -> bytes:
        """All frames of one delivery; every piece repeats the id, as pyamqp does (E20)."""
        pieces = self.pieces(len(payload))
        if pieces == 1:
            return self._header(len(payload), delivery_id, _FALSE) + payload
        out: list[bytes | memoryview] = []
        view = memoryview(payload)  # joined below: a large batch is copied once
        for piece in range(pieces):
            chunk = view[piece * self._room : (piece + 1) * self._room]
            more = _TRUE if piece + 1 < pieces else _FALSE
            out += [self._header(len(chunk), delivery_id, more), chunk]
        return b"".join(out)

    def id_columns(self, payload_size: int) -> list[int]:
        """Where in a delivery the 4 bytes of its id stand."""
        last = self.pieces(payload_size) - 1
        starts = [piece * (self._room + _HEADER_BYTES) for piece in range(last + 1)]
        return [start + at for start in starts for at in (_ID_AT, _TAG_AT)]

    def _header(self, payload_size: int, delivery_id: int, more: bytes) -> bytes:
        number = struct.pack(">I", delivery_id)
        fields = b"".join(
            (
                b"\x70" + struct.pack(">I", self._handle),
                b"\x70" + number,
                b"\xa0\x04" + number,
                b"\x70" + struct.pack(">I", self._message_format),
                _FALSE + more,  # settled, more
                b"\x40\x40\x42\x42\x42",  # rcv-settle-mode, state, resume, aborted, batchable
            )
        )
        head = struct.pack(">IHH", _HEADER_BYTES + payload_size, 0x0200, self._channel)
        return head + b"\x00\x53\x14\xc0" + bytes((len(fields) + 1, 11)) + fields


class PreparedRun:
    """A block of deliveries of one payload, renumbered in place."""

    def __init__(self, framing: TransferFraming, payload: bytes) -> None:
        delivery = framing.delivery(payload, 0)
        self.pieces = framing.pieces(len(payload))
        self._stride = len(delivery)
        self._columns = framing.id_columns(len(payload))
        # A power of two: the upper three bytes of the ids are then the same within a block.
        count = _BLOCK_DELIVERIES_MAX
        while count > 1 and count * self._stride > _BLOCK_BYTES:
            count //= 2
        self._count = count
        self._block = bytearray(delivery * count)
        self._view = memoryview(self._block)
        self._written: list[bytes] = [bytes(count)] * 4  # as `delivery` was made: all ids 0

    def take(self, first_id: int, count_max: int) -> tuple[bytes, int]:
        """Frames of deliveries first_id, first_id + 1, …, and how many: at least one, at most
        `count_max`. The bytes are a copy: sockets keep what they could not write yet."""
        assert count_max > 0
        index = first_id % self._count
        taken = min(count_max, self._count - index)
        self._number(first_id - index)
        stride = self._stride
        return bytes(self._view[index * stride : (index + taken) * stride]), taken

    def _number(self, block_id: int) -> None:
        """Write the ids block_id … into the block; block_id is a multiple of its count."""
        count = self._count
        high, low = divmod(block_id & _ID_MASK, 256)
        columns = [bytes((byte,)) * count for byte in high.to_bytes(3, "big")]
        columns.append(_LOW_BYTES[low : low + count])
        for place, column in enumerate(columns):
            if column != self._written[place]:
                self._written[place] = column
                for start in self._columns:
                    self._block[start + place :: self._stride] = column
