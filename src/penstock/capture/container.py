"""Avro object container files as Capture writes them (Avro 1.11; protocol.md 9).

    4f 62 6a 01  <map: avro.codec, avro.schema>  <sync: 16 bytes>
    { <count: long> <size: long> <block> <sync> } ...

The file of a window without events is a header alone: valid, no block, at most 508 bytes, by which
the official samples recognize it. The sync marker follows from the window's name, so a file that is
written again is the same file.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from penstock.model.errors import PenstockError

MAGIC = b"Obj\x01"
SYNC_BYTES = 16
EMPTY_BYTES_MAX = 508
BLOCK_BYTES = 1024 * 1024
"""About the size of a block before compression."""
_BLOCK_BYTES_MAX = 256 * 1024 * 1024  # of files that are read, before and after inflating
_HEADER_BYTES_MAX = 1024 * 1024
_READ_BYTES = 1024 * 1024
_VARINT_BYTES_MAX = 10
_LEVEL = 1  # of isal: fourteen times as fast as zlib's level 6, and nine percent larger

_UNION = ["long", "double", "string", "bytes"]
SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "EventData",
        "namespace": "Microsoft.ServiceBus.Messaging",
        "fields": [
            {"name": "SequenceNumber", "type": "long"},
            {"name": "Offset", "type": "string"},
            {"name": "EnqueuedTimeUtc", "type": "string"},
            {"name": "SystemProperties", "type": {"type": "map", "values": _UNION}},
            {"name": "Properties", "type": {"type": "map", "values": _UNION}},
            {"name": "Body", "type": ["null", "bytes"]},
        ],
    },
    separators=(",", ":"),
)


class DamagedAvroFile(PenstockError):
    """A captured file is invalid."""


def encode_long(value: int) -> bytes:
    """Zigzag, seven bits a byte.

    >>> encode_long(-1), encode_long(64)
    (b'\\x01', b'\\x80\\x01')
    """
    remaining = (value << 1) ^ (value >> 63)
    out = bytearray()
    while remaining > 0x7F:
        out.append(remaining & 0x7F | 0x80)
        remaining >>= 7
    out.append(remaining)
    return bytes(out)


def sync_marker(name: str) -> bytes:
    return hashlib.md5(name.encode(), usedforsecurity=False).digest()


def encode_header(sync: bytes, *, deflate: bool) -> bytes:
    assert len(sync) == SYNC_BYTES
    codec = b"deflate" if deflate else b"null"
    pairs = ((b"avro.codec", codec), (b"avro.schema", SCHEMA.encode()))
    body = b"".join(encode_long(len(part)) + part for pair in pairs for part in pair)
    return MAGIC + encode_long(len(pairs)) + body + encode_long(0) + sync


def encode_block_header(count: int, size: int) -> bytes:
    assert count > 0
    return encode_long(count) + encode_long(size)


def deflate(records: bytes) -> bytes:
    """A raw deflate stream, always the same for the same bytes (one library, one level)."""
    from isal import isal_zlib

    squeeze = isal_zlib.compressobj(_LEVEL, isal_zlib.DEFLATED, -15)
    return bytes(squeeze.compress(records) + squeeze.flush())


# --- reading --------------------------------------------------------------------------------------


class AvroContainerReader:
    """Reads the header, then each block once. Raises DamagedAvroFile."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._held = b""
        self._position = 0
        if self._read(len(MAGIC)) != MAGIC:
            raise DamagedAvroFile("This is not an Avro container file.")
        self.metadata = self._read_pairs()
        self._sync = self._read(SYNC_BYTES)
        self.codec = self.metadata.get("avro.codec", b"null").decode("ascii", "replace")
        if self.codec not in ("null", "deflate"):
            raise DamagedAvroFile(f"The codec '{self.codec[:32]}' is not one of null and deflate.")
        try:
            self.schema = json.loads(self.metadata.get("avro.schema", b""))
        except (ValueError, RecursionError):
            raise DamagedAvroFile("The file's schema is not JSON.") from None

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """Number of records, and their bytes."""
        while self._fill(1):
            count, size = self._read_long(), self._read_long()
            if count < 1 or not 0 < size <= _BLOCK_BYTES_MAX:
                raise DamagedAvroFile(f"A block of {count} records in {size} bytes.")
            block = self._read(size)
            if self._read(SYNC_BYTES) != self._sync:
                raise DamagedAvroFile("A block does not end with the file's sync marker.")
            yield count, _inflate(block) if self.codec == "deflate" else block

    def _read_pairs(self) -> dict[str, bytes]:
        pairs: dict[str, bytes] = {}
        while count := self._read_long():
            if count < 0:
                count = -count
                self._read_long()
            if count > _HEADER_BYTES_MAX:
                raise DamagedAvroFile(f"A header of {count} entries.")
            for _ in range(count):
                name = self._read_bytes().decode("utf-8", "replace")
                pairs[name] = self._read_bytes()
        return pairs

    def _read_bytes(self) -> bytes:
        size = self._read_long()
        if not 0 <= size <= _HEADER_BYTES_MAX:
            raise DamagedAvroFile(f"A header's entry of {size} bytes.")
        return self._read(size)

    def _read_long(self) -> int:
        value = 0
        for place in range(_VARINT_BYTES_MAX):
            byte = self._read(1)[0]
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
        raise DamagedAvroFile("A number is longer than 64 bits.")

    def _read(self, size: int) -> bytes:
        if not self._fill(size):
            raise DamagedAvroFile("The file is cut off.")
        start = self._position
        self._position += size
        return self._held[start : self._position]

    def _fill(self, size: int) -> bool:
        left = len(self._held) - self._position
        if left < size:
            more = self._file.read(max(_READ_BYTES, size - left))
            self._held = self._held[self._position :] + more
            self._position = 0
            while len(self._held) < size and more:
                more = self._file.read(size - len(self._held))
                self._held += more
        return len(self._held) - self._position >= size


def _inflate(block: bytes) -> bytes:
    expand = zlib.decompressobj(-15)
    try:
        data = expand.decompress(block, _BLOCK_BYTES_MAX)
    except zlib.error as error:
        raise DamagedAvroFile(f"A block cannot be inflated: {error}.") from None
    if expand.unconsumed_tail or not expand.eof:
        raise DamagedAvroFile(f"A block is cut off, or has more than {_BLOCK_BYTES_MAX} bytes.")
    return data
