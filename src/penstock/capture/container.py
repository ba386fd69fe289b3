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
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TypeVar

from penstock.kernels import encode_avro_long
from penstock.model.errors import PenstockError

MAGIC = b"Obj\x01"
SYNC_BYTES = 16
EMPTY_BYTES_MAX = 508
BLOCK_BYTES = 1024 * 1024
"""About the size of a block before compression."""
_BLOCK_BYTES_MAX = 256 * 1024 * 1024  # of files that are read, before and after inflating
_HEADER_BYTES_MAX = 1024 * 1024
_READ_BYTES = 1024 * 1024
_LONG_BYTES_MAX = 10
_LEVEL = 1  # of isal: fourteen times as fast as zlib's level 6, and nine percent larger

T = TypeVar("T")
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


def sync_marker(name: str) -> bytes:
    return hashlib.md5(name.encode(), usedforsecurity=False).digest()


def encode_header(sync: bytes, *, deflate: bool) -> bytes:
    assert len(sync) == SYNC_BYTES
    codec = b"deflate" if deflate else b"null"
    pairs = ((b"avro.codec", codec), (b"avro.schema", SCHEMA.encode()))
    body = b"".join(encode_avro_long(len(part)) + part for pair in pairs for part in pair)
    return MAGIC + encode_avro_long(len(pairs)) + body + encode_avro_long(0) + sync


def encode_block_header(count: int, size: int) -> bytes:
    assert count > 0
    return encode_avro_long(count) + encode_avro_long(size)


def deflate(records: bytes) -> bytes:
    """A raw deflate stream, always the same for the same bytes (one library, one level)."""
    from isal import isal_zlib

    squeeze = isal_zlib.compressobj(_LEVEL, isal_zlib.DEFLATED, -15)
    return bytes(squeeze.compress(records) + squeeze.flush())


class AvroFile:
    """Writes Avro blocks to a file as they come."""

    def __init__(self, path: Path, *, name: str, deflate: bool) -> None:
        self.path = path
        self._sync = sync_marker(name)
        self._digest = hashlib.sha256()
        self._file = path.open("wb")
        self._write(encode_header(self._sync, deflate=deflate))

    def add(self, count: int, block: bytes) -> None:
        for piece in (encode_block_header(count, len(block)), block, self._sync):
            self._write(piece)

    def close(self) -> tuple[int, str]:
        """Flush to disk. Returns size and hexadecimal SHA-256."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return self.path.stat().st_size, self._digest.hexdigest()

    def discard(self) -> None:
        """Delete the file. May be called after `close`, and twice."""
        self._file.close()
        self.path.unlink(missing_ok=True)

    def _write(self, piece: bytes) -> None:
        self._file.write(piece)
        self._digest.update(piece)


# --- reading --------------------------------------------------------------------------------------
# Files are untrusted: every length is checked before it is used. Raises DamagedAvroFile.


class AvroContainerReader:
    """Reads the header, then each block once."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._held = b""
        self._at = 0
        self._fill(_HEADER_BYTES_MAX)
        if not self._held.startswith(MAGIC):
            raise DamagedAvroFile("This is not an Avro container file.")
        self.metadata, self._at = decode_map(self._held, len(MAGIC), decode_bytes)
        self._sync = self._take(SYNC_BYTES)
        self.codec = self.metadata.get("avro.codec", b"null").decode("ascii", "replace")
        if self.codec not in ("null", "deflate"):
            raise DamagedAvroFile(f"The codec '{self.codec[:32]}' is not one of null and deflate.")
        try:
            self.schema = json.loads(self.metadata.get("avro.schema", b""))
        except (ValueError, RecursionError):
            raise DamagedAvroFile("The file's schema is not JSON.") from None

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """Number of records, and their bytes."""
        while self._fill(2 * _LONG_BYTES_MAX):
            count, self._at = decode_long(self._held, self._at)
            size, self._at = decode_long(self._held, self._at)
            if count < 1 or not 0 < size <= _BLOCK_BYTES_MAX:
                raise DamagedAvroFile(f"A block of {count} records in {size} bytes.")
            block = self._take(size)
            if self._take(SYNC_BYTES) != self._sync:
                raise DamagedAvroFile("A block does not end with the file's sync marker.")
            yield count, _inflate(block) if self.codec == "deflate" else block

    def _take(self, size: int) -> bytes:
        if self._fill(size) < size:
            raise DamagedAvroFile("The file is cut off.")
        self._at += size
        return self._held[self._at - size : self._at]

    def _fill(self, size: int) -> int:
        """Hold `size` bytes if the file has them. Returns how many are held."""
        while len(self._held) - self._at < size:
            left = len(self._held) - self._at
            more = self._file.read(max(_READ_BYTES, size - left))
            if not more:
                break
            self._held, self._at = self._held[self._at :] + more, 0
        return len(self._held) - self._at


def decode_long(block: bytes, at: int) -> tuple[int, int]:
    """The number, and where it ends."""
    value = shift = 0
    while True:
        if at >= len(block) or shift > 63:
            raise DamagedAvroFile("A number is cut off, or longer than 64 bits.")
        byte = block[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7


def decode_bytes(block: bytes, at: int) -> tuple[bytes, int]:
    size, at = decode_long(block, at)
    if not 0 <= size <= len(block) - at:
        raise DamagedAvroFile(f"A value of {size} bytes where {len(block) - at} are left.")
    return block[at : at + size], at + size


def decode_text(block: bytes, at: int) -> tuple[str, int]:
    raw, at = decode_bytes(block, at)
    try:
        return raw.decode(), at
    except UnicodeDecodeError:
        raise DamagedAvroFile("A text is not UTF-8.") from None


def decode_map(
    block: bytes, at: int, decode_value: Callable[[bytes, int], tuple[T, int]]
) -> tuple[dict[str, T], int]:
    values: dict[str, T] = {}
    while True:
        count, at = decode_long(block, at)
        if count == 0:
            return values, at
        if count < 0:
            count = -count
            _, at = decode_long(block, at)
        if count > len(block) - at:
            raise DamagedAvroFile(f"A map of {count} entries with {len(block) - at} bytes left.")
        for _ in range(count):
            name, at = decode_text(block, at)
            values[name], at = decode_value(block, at)


def _inflate(block: bytes) -> bytes:
    expand = zlib.decompressobj(-15)
    try:
        data = expand.decompress(block, _BLOCK_BYTES_MAX)
    except zlib.error as error:
        raise DamagedAvroFile(f"A block cannot be inflated: {error}.") from None
    if expand.unconsumed_tail or not expand.eof:
        raise DamagedAvroFile(f"A block is cut off, or has more than {_BLOCK_BYTES_MAX} bytes.")
    return data
