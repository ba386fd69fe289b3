"""Small derived files: what they say can be found again from the records, so a bad one is ignored.

byte  0  magic     8 bytes  which kind of file
      8  version   u32
     12  checksum  u32      CRC-32C of all bytes but these four
     16  body
"""

from __future__ import annotations

import struct

from crc32c import crc32c

SEALED_VERSION = 1
_HEAD = struct.Struct("<8sI")
_CHECKSUM = struct.Struct("<I")
_BODY_AT = _HEAD.size + _CHECKSUM.size


def add_checksum(magic: bytes, body: bytes) -> bytes:
    assert len(magic) == 8
    head = _HEAD.pack(magic, SEALED_VERSION)
    return head + _CHECKSUM.pack(crc32c(body, crc32c(head))) + body


def remove_checksum(magic: bytes, content: bytes) -> bytes | None:
    """The body, or None if the file is of another kind or version, cut or damaged."""
    if len(content) < _BODY_AT:
        return None
    found, version = _HEAD.unpack_from(content)
    if found != magic or version != SEALED_VERSION:
        return None
    body = content[_BODY_AT:]
    if _CHECKSUM.unpack_from(content, _HEAD.size)[0] != crc32c(body, crc32c(content[: _HEAD.size])):
        return None
    return body
