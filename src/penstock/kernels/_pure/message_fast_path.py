"""The common message form, checked without a call per section. Most clients send it.

    [header] [message-annotations as in the event before] [properties] [application-properties] data

It rejects nothing: for any other form it returns None, and the general check in `messages` decides.
What it accepts the general check accepts too; the tests compare both.
"""

from __future__ import annotations

import struct

from penstock.kernels._pure.messages import (
    BARE,
    HEADER_CONSTRUCTORS,
    PROPERTIES_CONSTRUCTORS,
    Annotations,
    AnnotationsCache,
)
from penstock.kernels._pure.values import BOOLEAN, STRING8, SYMBOL8, WIDTH, check_text

# Descriptor and constructor of a section as one number, in the order of the sections.
_HEADER0, _HEADER8, _HEADER_LAST = 0x00537045, 0x005370C0, 0x005370FF
_ANNOTATIONS, _ANNOTATIONS_LAST = 0x00537200, 0x005372FF
_PROPERTIES0, _PROPERTIES8 = 0x00537345, 0x005373C0
_APPLICATION_PROPERTIES8 = 0x005374C1
_DATA8, _DATA32 = 0x005375A0, 0x005375B0

_NULL = 0x40
_U32 = struct.Struct(">I").unpack_from


def inspect_common_message(
    data: bytes, start: int, end: int, seen: AnnotationsCache
) -> Annotations | None:
    """The annotations of a message of the common form; None for any other.

    Errors (IndexError, struct.error, KernelError) mean the same as None: the function may read
    after the message's end, so the cause may be other bytes.
    """
    annotations = BARE
    position = start
    head = _U32(data, position)[0]
    if head <= _HEADER_LAST:
        position = _after_fields(data, position, head, _HEADER0, _HEADER8, HEADER_CONSTRUCTORS)
        head = _U32(data, position)[0]
    if _ANNOTATIONS < head <= _ANNOTATIONS_LAST:
        if not seen.section or not data.startswith(seen.section, position):
            return None
        annotations = seen.annotations
        position += len(seen.section)
        head = _U32(data, position)[0]
    if head <= _PROPERTIES8:
        position = _after_fields(
            data, position, head, _PROPERTIES0, _PROPERTIES8, PROPERTIES_CONSTRUCTORS
        )
        head = _U32(data, position)[0]
    if head == _APPLICATION_PROPERTIES8:
        position = _after_application_properties(data, position + 4)
        head = _U32(data, position)[0]
    if head == _DATA8:
        position += 5 + data[position + 4]
    elif head == _DATA32:
        position += 8 + _U32(data, position + 4)[0]
    else:
        return None
    return annotations if position == end else None


def _after_fields(
    data: bytes, position: int, head: int, list0: int, list8: int, fields: tuple[bytes, ...]
) -> int:
    """The end of a list0 or list8 of nulls, numbers and short texts, each of its field's type.

    For any other value the end of the whole data, where no section can start.
    """
    if head == list0:
        return position + 4
    stop = position + 5 + data[position + 4]
    count = data[position + 5]
    position += 6
    if head != list8 or count > len(fields):
        return len(data)
    index = 0
    while index < count:
        code = data[position]
        if code == _NULL:
            # Most fields are null, and they come in runs.
            rest = data[position:stop]
            run = min(len(rest) - len(rest.lstrip(b"\x40")), count - index) or 1
            position += run
            index += run
            continue
        if code not in fields[index]:
            return len(data)
        width = WIDTH[code]
        if width:
            position += width
        elif code in (STRING8, SYMBOL8):
            text = position + 2
            position = text + data[position + 1]
            if not data[text:position].isascii():
                check_text(data, code, text, position)
        elif code == BOOLEAN and data[position + 1] <= 1:
            position += 2
        else:
            return len(data)
        index += 1
    return position if position == stop else len(data)


def _after_application_properties(data: bytes, position: int) -> int:
    """The end of a map8 of short strings and simple values; else the end of the whole data."""
    stop = position + 1 + data[position]
    count = data[position + 1]
    position += 2
    if count & 1:
        return len(data)
    for _ in range(count >> 1):
        if data[position] != STRING8:
            return len(data)
        text = position + 2
        position = text + data[position + 1]
        if not data[text:position].isascii():
            check_text(data, STRING8, text, position)
        code = data[position]
        width = WIDTH[code]
        if width:
            position += width
        elif code == STRING8:
            text = position + 2
            position = text + data[position + 1]
            if not data[text:position].isascii():
                check_text(data, STRING8, text, position)
        elif code == BOOLEAN and data[position + 1] <= 1:
            position += 2
        else:
            return len(data)
    return position if position == stop else len(data)
