"""Avro object container files: enough to write one schema and to read any (Avro 1.11 spec).

    4f 62 6a 01  <map of metadata>  <sync: 16 bytes>
    { <count: long> <size: long> <block> <sync> } ...

Written by hand: the library would build a dictionary of each event, and cost the export more than
the network does. What we read may be from anybody, so every length is checked before it is used.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from penstock.cli.sections import InvalidEvent

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_HEADER_BYTES_MAX = 1024 * 1024
_BLOCK_BYTES_MAX = 256 * 1024 * 1024  # before and after inflating; Capture's have about 1 MB
_VARINT_BYTES_MAX = 10
_DEPTH_MAX = 32
_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")

Read = Callable[["Reader"], Any]


def write_long(out: bytearray, value: int) -> None:
    """Zigzag, seven bits a byte."""
    rest = (value << 1) ^ (value >> 63)
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


def write_bytes(out: bytearray, value: bytes) -> None:
    write_long(out, len(value))
    out += value


def write_double(out: bytearray, value: float) -> None:
    out += _DOUBLE.pack(value)


class AvroContainerWriter:
    """Puts blocks of encoded records into a file."""

    def __init__(self, file: BinaryIO, schema: str, *, deflate: bool) -> None:
        self._file = file
        self._deflate = deflate
        self._sync = os.urandom(_SYNC_BYTES)
        header = bytearray(_MAGIC)
        codec = b"deflate" if deflate else b"null"
        write_long(header, 2)
        for name, value in ((b"avro.codec", codec), (b"avro.schema", schema.encode())):
            write_bytes(header, name)
            write_bytes(header, value)
        write_long(header, 0)
        file.write(header + self._sync)

    def write_block(self, count: int, records: bytes) -> None:
        if count == 0:
            return
        if self._deflate:
            squeeze = zlib.compressobj(6, zlib.DEFLATED, -15)
            records = squeeze.compress(records) + squeeze.flush()
        head = bytearray()
        write_long(head, count)
        write_long(head, len(records))
        self._file.write(head + records + self._sync)


class Reader:
    """A cursor over bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._position

    def long(self) -> int:
        value = 0
        for place in range(_VARINT_BYTES_MAX):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
        raise InvalidEvent("an Avro number is longer than 64 bits")

    def take(self, size: int) -> bytes:
        if not 0 <= size <= self.left:
            raise InvalidEvent(f"an Avro value of {size} bytes where {self.left} are left")
        start = self._position
        self._position += size
        return self._data[start : self._position]

    def bytes(self) -> bytes:
        return self.take(self.long())

    def string(self) -> str:
        try:
            return self.bytes().decode()
        except UnicodeDecodeError:
            raise InvalidEvent("an Avro string is not UTF-8") from None

    def double(self) -> float:
        return float(_DOUBLE.unpack(self.take(8))[0])

    def blocks(self) -> Iterator[None]:
        """Once per item of an array or map."""
        while count := self.long():
            if count < 0:
                count = -count
                self.long()  # the block's size in bytes
            if count > self.left:
                raise InvalidEvent(
                    f"an Avro block of {count} items where {self.left} bytes are left"
                )
            for _ in range(count):
                yield


def read_container(file: BinaryIO) -> tuple[Any, Iterator[tuple[int, bytes]]]:
    """The schema, and blocks of so many encoded records. Raises BadEvent."""
    head = file.read(_HEADER_BYTES_MAX)
    reader = Reader(head)
    if reader.left < len(_MAGIC) or reader.take(len(_MAGIC)) != _MAGIC:
        raise InvalidEvent("this is no Avro container file")
    metadata = {reader.string(): reader.bytes() for _ in reader.blocks()}
    sync = reader.take(_SYNC_BYTES)
    codec = metadata.get("avro.codec", b"null")
    if codec not in (b"null", b"deflate"):
        raise InvalidEvent(f"the Avro codec {codec!r} is not known here: null and deflate are")
    try:
        schema = json.loads(metadata.get("avro.schema", b""))
    except (ValueError, RecursionError):
        raise InvalidEvent("the Avro file's schema is no JSON") from None
    rest = _Buffered(file, head[len(head) - reader.left :])
    return schema, _blocks(rest, sync, inflate=codec == b"deflate")


def _blocks(rest: _Buffered, sync: bytes, *, inflate: bool) -> Iterator[tuple[int, bytes]]:
    while not rest.is_over():
        count, size = rest.long(), rest.long()
        if count < 0 or not 0 <= size <= _BLOCK_BYTES_MAX:
            raise InvalidEvent(f"an Avro block of {count} records in {size} bytes")
        block = rest.take(size)
        if rest.take(_SYNC_BYTES) != sync:
            raise InvalidEvent(
                "an Avro block does not end with the file's mark: the file is damaged"
            )
        block = _inflated(block) if inflate else block
        if count > len(block):
            raise InvalidEvent(f"an Avro block of {count} records in {len(block)} bytes")
        yield count, block


def read_blocks(file: BinaryIO) -> Iterator[list[dict[str, Any]]]:
    """The records of a container file, block by block. Raises BadEvent."""
    schema, blocks = read_container(file)
    read = record_reader(schema)
    for count, block in blocks:
        yield read(count, block)


class _Buffered(Reader):
    """A file as a cursor that knows what was read before."""

    def __init__(self, file: BinaryIO, begun: bytes) -> None:
        super().__init__(b"")
        self._file = file
        self._begun = begun

    def take(self, size: int) -> bytes:
        taken, self._begun = self._begun[:size], self._begun[size:]
        if len(taken) < size:
            taken += self._file.read(size - len(taken))
        if len(taken) < size:
            raise InvalidEvent("the Avro file is cut off")
        return taken

    def is_over(self) -> bool:
        if not self._begun:
            self._begun = self._file.read(1)
        return not self._begun


def _inflated(block: bytes) -> bytes:
    expand = zlib.decompressobj(-15)
    try:
        data = expand.decompress(block, _BLOCK_BYTES_MAX)
    except zlib.error as error:
        raise InvalidEvent(f"an Avro block cannot be inflated: {error}") from None
    if expand.unconsumed_tail:
        raise InvalidEvent(f"an Avro block has more than {_BLOCK_BYTES_MAX} bytes")
    return data


# --- schemas --------------------------------------------------------------------------------------


def record_reader(schema: Any) -> Callable[[int, bytes], list[dict[str, Any]]]:
    """What makes dictionaries of a block's records, whatever the schema says that they are."""
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise InvalidEvent("the Avro file does not hold records")
    read = _reader(schema, {}, 0)

    def records(count: int, block: bytes) -> list[dict[str, Any]]:
        reader = Reader(block)
        found = [read(reader) for _ in range(count)]
        if reader.left:
            raise InvalidEvent(f"an Avro block has {reader.left} bytes more than its records")
        return found

    return records


def _reader(schema: Any, named: dict[str, Read], depth: int) -> Read:
    """Schemas that name themselves are not known here: events have none."""
    if depth > _DEPTH_MAX:
        raise InvalidEvent(f"the Avro schema is nested deeper than {_DEPTH_MAX}")
    if isinstance(schema, list):
        branches = [_reader(each, named, depth + 1) for each in schema]
        return lambda reader: _branch(branches, reader)(reader)
    if isinstance(schema, str):
        found = _PRIMITIVES.get(schema) or named.get(schema)
        if found is None:
            raise InvalidEvent(f"the Avro type {schema!r} is not known here")
        return found
    if not isinstance(schema, dict):
        raise InvalidEvent("the Avro schema has a type that is none")
    return _complex_reader(schema, named, depth + 1)


def _complex_reader(schema: dict[str, Any], named: dict[str, Read], depth: int) -> Read:
    kind = schema.get("type")
    read: Read
    try:
        if kind == "record":
            fields = [(f["name"], _reader(f["type"], named, depth)) for f in schema["fields"]]
            read = lambda r: {name: each(r) for name, each in fields}  # noqa: E731
        elif kind == "map":
            value = _reader(schema["values"], named, depth)
            read = lambda r: {r.string(): value(r) for _ in r.blocks()}  # noqa: E731
        elif kind == "array":
            item = _reader(schema["items"], named, depth)
            read = lambda r: [item(r) for _ in r.blocks()]  # noqa: E731
        elif kind == "fixed":
            size = int(schema["size"])
            read = lambda r: r.take(size)  # noqa: E731
        elif kind == "enum":
            symbols = [str(each) for each in schema["symbols"]]
            read = lambda r: _branch(symbols, r)  # noqa: E731
        else:
            return _reader(kind, named, depth)
    except (KeyError, TypeError, ValueError):
        raise InvalidEvent(f"the Avro schema has a {kind} that is none") from None
    if isinstance(schema.get("name"), str):
        named[schema["name"]] = read
    return read


def _branch(branches: list[Any], reader: Reader) -> Any:
    number = reader.long()
    if not 0 <= number < len(branches):
        raise InvalidEvent(f"branch {number} of an Avro union of {len(branches)}")
    return branches[number]


_PRIMITIVES: dict[str, Read] = {
    "null": lambda reader: None,
    "boolean": lambda reader: reader.take(1) != b"\x00",
    "int": Reader.long,
    "long": Reader.long,
    "float": lambda reader: _FLOAT.unpack(reader.take(4))[0],
    "double": Reader.double,
    "bytes": Reader.bytes,
    "string": Reader.string,
}
