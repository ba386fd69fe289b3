"""Pictures of pages made small: a palette of 256 colours instead of three bytes a pixel.

A page has few colours and many shades of text on them. 256 are kept, the others become the nearest
of those, which nobody sees; a picture shrinks to less than half.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterator

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOURS_MAX = 256
_COMMON_MAX = 128
_PIXEL_BYTES = {2: 3, 6: 4}  # by PNG's type of colour: with and without transparency


def smaller(png: bytes) -> bytes:
    """The same picture (8 bits a channel, not interlaced) with a palette; opaque."""
    width, height, pixel, data = _read(png)
    rows = [
        [row[at : at + 3] for at in range(0, len(row), pixel)]
        for row in _unfiltered(data, width * pixel, pixel)
    ]
    common = Counter(colour for row in rows for colour in row).most_common()
    palette = _palette(common)
    index = {colour: number for number, colour in enumerate(palette)}
    for colour, _ in common:
        if colour not in index:
            index[colour] = min(range(len(palette)), key=lambda at: _distance(colour, palette[at]))
    lines = b"".join(b"\x00" + bytes(index[colour] for colour in row) for row in rows)
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = (
        (b"IHDR", head),
        (b"PLTE", b"".join(palette)),
        (b"IDAT", zlib.compress(lines, 9)),
        (b"IEND", b""),
    )
    return _SIGNATURE + b"".join(_chunk(kind, content) for kind, content in chunks)


def _palette(common: list[tuple[bytes, int]]) -> list[bytes]:
    """The commonest, and then whichever is furthest from all of them, the commoner the sooner: a
    small mark of a colour of its own keeps it."""
    palette = [colour for colour, _ in common[:_COMMON_MAX]]
    rest = {
        colour: (count, min(_distance(colour, each) for each in palette))
        for colour, count in common[_COMMON_MAX:]
    }
    while rest and len(palette) < _COLOURS_MAX:
        chosen = max(rest, key=lambda colour: rest[colour][1] * rest[colour][0] ** 0.5)
        del rest[chosen]
        palette.append(chosen)
        for colour, (count, nearest) in rest.items():
            rest[colour] = (count, min(nearest, _distance(colour, chosen)))
    return palette


def _read(png: bytes) -> tuple[int, int, int, bytes]:
    """Width, height, bytes of a pixel, and the filtered rows."""
    assert png.startswith(_SIGNATURE)
    at, data, width, height, pixel = len(_SIGNATURE), b"", 0, 0, 0
    while at < len(png):
        size, kind = struct.unpack_from(">I4s", png, at)
        content = png[at + 8 : at + 8 + size]
        at += 12 + size
        if kind == b"IHDR":
            width, height, bits, colour, _, _, interlaced = struct.unpack(">IIBBBBB", content)
            assert (bits, interlaced) == (8, 0)
            pixel = _PIXEL_BYTES[colour]
        elif kind == b"IDAT":
            data += content
    return width, height, pixel, zlib.decompress(data)


def _unfiltered(data: bytes, stride: int, pixel: int) -> Iterator[bytes]:
    """PNG writes each byte as the difference from one of its neighbours (PNG 9.2)."""
    above = bytearray(stride)
    for at in range(0, len(data), stride + 1):
        row = bytearray(data[at + 1 : at + 1 + stride])
        kind = data[at]
        for place in range(stride) if kind else ():
            left = row[place - pixel] if place >= pixel else 0
            corner = above[place - pixel] if place >= pixel else 0
            guess = _guess(kind, left, above[place], corner)
            row[place] = (row[place] + guess) & 0xFF
        yield bytes(row)
        above = row


def _guess(kind: int, left: int, above: int, corner: int) -> int:
    match kind:
        case 1:
            return left
        case 2:
            return above
        case 3:
            return (left + above) >> 1
        case _:  # Paeth: whichever is nearest to the plane through the three
            plane = left + above - corner
            near = (abs(plane - left), abs(plane - above), abs(plane - corner))
            return (left, above, corner)[near.index(min(near))]


def _distance(one: bytes, other: bytes) -> int:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))


def _chunk(kind: bytes, content: bytes) -> bytes:
    check = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)
