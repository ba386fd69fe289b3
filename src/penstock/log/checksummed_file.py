"""Small derived files with a checksum. A damaged one is ignored: the records hold the same data.

byte  0  magic     8 bytes  kind of file
      8  version   u32
     12  checksum  u32      CRC-32C of all other bytes
     16  body
"""

from __future__ import annotations

import struct

from crc32c import crc32c

CHECKSUMMED_FILE_VERSION = 1
_HEAD = struct.Struct("<8sI")
_CHECKSUM = struct.Struct("<I")
_BODY_AT = _HEAD.size + _CHECKSUM.size


def add_checksum(magic: bytes, body: bytes) -> bytes:
    assert len(magic) == 8
    head = _HEAD.pack(magic, CHECKSUMMED_FILE_VERSION)
    return head + _CHECKSUM.pack(crc32c(body, crc32c(head))) + body


def remove_checksum(magic: bytes, content: bytes) -> bytes | None:
    """The body; None if the file has another kind or version, or is truncated or damaged."""
    if len(content) < _BODY_AT:
        return None
    found_magic, version = _HEAD.unpack_from(content)
    if found_magic != magic or version != CHECKSUMMED_FILE_VERSION:
        return None
    body = content[_BODY_AT:]
    if _CHECKSUM.unpack_from(content, _HEAD.size)[0] != crc32c(body, crc32c(content[: _HEAD.size])):
        return None
    return body
