"""AMQP messages as bytes: their sections, checked, and the canonical form in which they are stored.

A message is canonical when a reader may be given it as it is (protocol.md E1, E22, 5.4):

- every section's descriptor is `00 53 7x`, and the sections stand in AMQP 3.2's order;
- its message-annotations have symbols (or ulongs) as keys and nothing that the service owns.

Canonical messages are stored verbatim. Of all others the sections' *values* are kept bit by bit.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import msgspec

from penstock.kernels._pure.values import (
    BINARY8,
    BINARY32,
    COUNT_MAX,
    ELEMENTS_MAX,
    LIST0,
    LIST8,
    LIST32,
    MAP8,
    MAP32,
    NULL,
    STRING8,
    STRING32,
    SYMBOL8,
    SYMBOL32,
    ULONGS,
    WIDTH,
    KernelError,
    KeyTooLong,
    check_descriptor,
    check_elements,
    check_text,
    check_value,
    open_compound,
)

HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS = 0x70, 0x71, 0x72
PROPERTIES, APPLICATION_PROPERTIES = 0x73, 0x74
DATA, SEQUENCE, VALUE, FOOTER = 0x75, 0x76, 0x77, 0x78

PARTITION_KEY_MAX = 128  # characters (protocol.md 4.5)
_HEADER_FIELDS_MAX = 5
_SEEN_ELEMENTS_MAX = 1_000  # so that a usual message never exceeds ELEMENTS_MAX
_PROPERTIES_FIELDS_MAX = 13

_KEY = b"x-opt-partition-key"
_PUBLISHER = b"x-opt-publisher"
_PRODUCER_ID = b"com.microsoft:producer-id"
_PRODUCER_EPOCH = b"com.microsoft:producer-epoch"
_PRODUCER_NUMBER = b"com.microsoft:producer-sequence-number"
# The service's own: what a client writes there is dropped (protocol.md 4.6).
_OWNED = frozenset(
    (
        b"x-opt-sequence-number",
        b"x-opt-sequence-number-epoch",
        b"x-opt-offset",
        b"x-opt-enqueued-time",
        _PUBLISHER,
    )
)
_KNOWN = _OWNED | {_KEY, _PRODUCER_ID, _PRODUCER_EPOCH, _PRODUCER_NUMBER}

_ANNOTATION_KEYS = bytes((SYMBOL8, SYMBOL32, STRING8, STRING32)) + ULONGS
_PROPERTY_KEYS = bytes((STRING8, STRING32))
_STRINGS = bytes((STRING8, STRING32))

_SYMBOLIC = {
    b"amqp:header:list": HEADER,
    b"amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    b"amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    b"amqp:properties:list": PROPERTIES,
    b"amqp:application-properties:map": APPLICATION_PROPERTIES,
    b"amqp:data:binary": DATA,
    b"amqp:amqp-sequence:list": SEQUENCE,
    b"amqp:amqp-value:*": VALUE,
    b"amqp:footer:map": FOOTER,
}

_U32 = struct.Struct(">I").unpack_from
_U64 = struct.Struct(">Q").unpack_from
_SIGNED = {
    0x51: struct.Struct(">b").unpack_from,
    0x54: struct.Struct(">b").unpack_from,
    0x55: struct.Struct(">b").unpack_from,
    0x61: struct.Struct(">h").unpack_from,
    0x71: struct.Struct(">i").unpack_from,
    0x81: struct.Struct(">q").unpack_from,
    0x83: struct.Struct(">q").unpack_from,  # a timestamp is a number as well
}

_Section = tuple[int, int, int]  # code, start and end of the value


class Annotations(msgspec.Struct, frozen=True, gc=False):
    """What a message's annotations say; `canonical` also speaks for the rest of the message."""

    canonical: bool = True
    elements: int = 0  # of all levels
    key: str | None = None
    publisher: str | None = None
    producer: tuple[int, int, int] | None = None  # id, epoch, number


BARE = Annotations()
_EMPTY = Annotations(canonical=False)  # a message without a section: stored with one


class Seen:
    """The last annotations section and what it said: in a batch with a key all are the same."""

    __slots__ = ("annotations", "section")

    def __init__(self) -> None:
        self.section = b""
        self.annotations = BARE


def inspect(data: bytes, start: int, end: int, seen: Seen) -> Annotations:
    """Check a whole message. May raise IndexError or struct.error for one that is cut short."""
    if start == end:
        return _EMPTY  # PY sends it for a value body of None without properties
    budget = [ELEMENTS_MAX]
    annotations = BARE
    unusual = _UNUSUAL_FIRST
    position = start
    while position < end:
        code = data[position + 2]
        if unusual[code] or data[position] or data[position + 1] != 0x53:
            return _inspect_any(data, start, end)
        if code == MESSAGE_ANNOTATIONS:
            stop, annotations = read_annotations(data, position + 3, end, budget)
            if annotations.producer is None and annotations.elements <= _SEEN_ELEMENTS_MAX:
                seen.section = data[position:stop]
                seen.annotations = annotations
            position = stop
        else:
            position = _CHECKS[code](data, position + 3, end, budget)
        unusual = _UNUSUAL_AFTER[code]
    if position != end:
        raise KernelError(f"the message at byte {start} ends at {position}, its place at {end}")
    return annotations


def rewrite(data: bytes, start: int, end: int, key: str | None, publisher: str | None) -> bytes:
    """The canonical form of a message, with `key` instead of its own unless that is None."""
    sections = sorted(_sections(data, start, end), key=lambda section: section[0])
    count, pairs = owned_pairs(key, publisher)
    parts: list[bytes] = []
    rest: list[bytes] = []
    for code, first, stop in sections:
        if code == MESSAGE_ANNOTATIONS:
            own_count, own = _own_pairs(data, first, stop, keep_key=key is None)
            count += own_count
            pairs += own
        elif code < MESSAGE_ANNOTATIONS:
            parts += bytes((0, 0x53, code)), data[first:stop]
        else:
            rest += bytes((0, 0x53, code)), data[first:stop]
    if count or not (parts or rest):
        parts.append(annotations_section(count, pairs))
    return b"".join(parts + rest)


def owned_pairs(key: str | None, publisher: str | None) -> tuple[int, bytes]:
    """Count and bytes of the pairs that the service writes at ingest (protocol.md 5.4, 13)."""
    pairs = b""
    if key is not None:
        pairs += _symbol(_KEY) + _string(key.encode())
    if publisher is not None:
        pairs += _symbol(_PUBLISHER) + _string(publisher.encode())
    return 2 * ((key is not None) + (publisher is not None)), pairs


def annotations_section(count: int, pairs: bytes) -> bytes:
    """A message-annotations section in the smaller of its two forms."""
    if count <= 0xFF and len(pairs) < 0xFF:
        return b"\x00\x53\x72\xc1" + bytes((len(pairs) + 1, count)) + pairs
    return b"\x00\x53\x72\xd1" + struct.pack(">II", len(pairs) + 4, count) + pairs


def read_section_code(data: bytes, position: int, end: int) -> tuple[int, int]:
    """The section's code in whatever form the client wrote it, and where its value starts."""
    if position >= end or data[position]:
        raise KernelError(f"no section starts at byte {position}")
    first = position + 1
    stop = check_descriptor(data, first, end)
    if data[first] == 0x53:
        code = data[first + 1]
    elif data[first] == 0x80:
        code = int(_U64(data, first + 1)[0])
    else:
        code = _SYMBOLIC.get(data[first + (5 if data[first] == SYMBOL32 else 2) : stop], 0)
    if not HEADER <= code <= FOOTER:
        raise KernelError(f"unknown section at byte {position}: code 0x{code:x}")
    return code, stop


def check_section(data: bytes, code: int, position: int, end: int, budget: list[int]) -> int:
    """Where the section's value ends that starts at `position`."""
    if code == MESSAGE_ANNOTATIONS:
        return read_annotations(data, position, end, budget)[0]
    return _CHECKS[code](data, position, end, budget)


def read_annotations(
    data: bytes, position: int, end: int, budget: list[int]
) -> tuple[int, Annotations]:
    """Where the message-annotations end, and what they say."""
    before = budget[0]
    count, position, stop = _open_map(data, position, end, budget)
    known: dict[bytes, tuple[int, int]] = {}
    canonical = True
    for _ in range(count >> 1):
        code = data[position]
        if code not in _ANNOTATION_KEYS or position >= stop:
            raise KernelError(f"an annotation's key at byte {position} is 0x{code:02x}, no symbol")
        value = check_value(data, position, stop, 2, budget)
        if code in _STRINGS:
            canonical = False
        name = data[position + (5 if code & 0x10 else 2) : value]
        position = check_value(data, value, stop, 2, budget)
        if name in _KNOWN:
            if name in known:
                raise KernelError(f"a second {name.decode()} before byte {value}")
            known[name] = (value, position)
    if position != stop:
        raise KernelError(f"the annotations end at byte {position}, their place at {stop}")
    if not known:
        return stop, Annotations(canonical, before - budget[0])
    return stop, _judge(data, known, canonical, before - budget[0])


def read_integer(data: bytes, position: int) -> int | None:
    """The signed number of any width at `position`, None if something else stands there."""
    unpack = _SIGNED.get(data[position])
    return None if unpack is None else int(unpack(data, position + 1)[0])


def read_string(data: bytes, start: int, stop: int) -> str | None:
    """The string that lies between, None if it is not one. It was checked before."""
    if data[start] not in _STRINGS:
        return None
    return data[start + (2 if data[start] == STRING8 else 5) : stop].decode()


def _judge(
    data: bytes, known: dict[bytes, tuple[int, int]], canonical: bool, elements: int
) -> Annotations:
    key = publisher = None
    for name, (start, stop) in known.items():
        if name == _KEY:
            key = read_string(data, start, stop)
            # Not a string: it does not route (protocol.md 4.5), and GO and JAVA die of it (5.4).
            canonical = canonical and key is not None
        elif name == _PUBLISHER:
            publisher = read_string(data, start, stop)
            canonical = canonical and publisher is not None
        elif name in _OWNED:
            canonical = False
    if key is not None and len(key) > PARTITION_KEY_MAX:
        raise KeyTooLong(
            f"the partition key at byte {known[_KEY][0]} has {len(key)} characters: "
            f"at most {PARTITION_KEY_MAX} are allowed"
        )
    return Annotations(canonical, elements, key, publisher, _producer(data, known))


def _producer(data: bytes, known: dict[bytes, tuple[int, int]]) -> tuple[int, int, int] | None:
    """The idempotent producer's stamp, if all three parts are there (protocol.md 4.7)."""
    numbers = []
    for name in (_PRODUCER_ID, _PRODUCER_EPOCH, _PRODUCER_NUMBER):
        number = read_integer(data, known[name][0]) if name in known else None
        if number is None:
            return None
        numbers.append(number)
    return numbers[0], numbers[1], numbers[2]


def _inspect_any(data: bytes, start: int, end: int) -> Annotations:
    """Check a message whose sections stand in another order or have other descriptors."""
    annotations = BARE
    for code, first, stop in _sections(data, start, end):
        if code == MESSAGE_ANNOTATIONS:
            annotations = read_annotations(data, first, stop, [ELEMENTS_MAX])[1]
    return msgspec.structs.replace(annotations, canonical=False)


def _sections(data: bytes, start: int, end: int) -> list[_Section]:
    """All sections, checked, in the order in which the client wrote them."""
    budget = [ELEMENTS_MAX]
    sections: list[_Section] = []
    codes = set()
    position = start
    while position < end:
        code, first = read_section_code(data, position, end)
        if code in codes and code not in (DATA, SEQUENCE):
            raise KernelError(f"a second section 0x{code:x} at byte {position}")
        codes.add(code)
        if len(codes & {DATA, SEQUENCE, VALUE}) > 1:
            raise KernelError(f"a body of another kind, 0x{code:x}, at byte {position}")
        stop = check_section(data, code, first, end, budget)
        if stop > end:
            raise KernelError(f"the section at byte {position} ends at {stop}, its place at {end}")
        sections.append((code, first, stop))
        position = stop
    return sections


def _own_pairs(data: bytes, first: int, stop: int, *, keep_key: bool) -> tuple[int, bytes]:
    """The client's own annotations without the service's, string keys written as symbols."""
    count, position, _ = _open_map(data, first, stop, [ELEMENTS_MAX])
    pairs: list[bytes] = []
    kept = 0
    for _ in range(count >> 1):
        code = data[position]
        value = check_value(data, position, stop, 2, [ELEMENTS_MAX])
        after = check_value(data, value, stop, 2, [ELEMENTS_MAX])
        name = data[position + (5 if code & 0x10 else 2) : value]
        keep = name not in _OWNED
        if name == _KEY:
            keep = keep_key and data[value] in _STRINGS
        if keep and code in _STRINGS:
            check_text(data, SYMBOL8, value - len(name), value)
            pairs += _symbol(name), data[value:after]
        elif keep:
            pairs.append(data[position:after])
        kept += 2 * keep
        position = after
    return kept, b"".join(pairs)


def _symbol(name: bytes) -> bytes:
    if len(name) <= 0xFF:
        return bytes((SYMBOL8, len(name))) + name
    return b"\xb3" + struct.pack(">I", len(name)) + name


def _string(text: bytes) -> bytes:
    if len(text) <= 0xFF:
        return bytes((STRING8, len(text))) + text
    return b"\xb1" + struct.pack(">I", len(text)) + text


def _open_map(data: bytes, position: int, end: int, budget: list[int]) -> tuple[int, int, int]:
    if position >= end or data[position] not in (MAP8, MAP32):
        raise KernelError(f"no map at byte {position}")
    return open_compound(data, data[position], position + 1, end, budget)


def _check_keyed_map(data: bytes, position: int, end: int, budget: list[int], keys: bytes) -> int:
    """The hot loop of events with properties: keys of the kinds `keys`, values of any kind."""
    count, position, stop = _open_map(data, position, end, budget)
    for _ in range(count >> 1):
        code = data[position]
        if code not in keys:
            raise KernelError(f"a map's key at byte {position} is of type 0x{code:02x}")
        if code == STRING8:
            value = position + 2 + data[position + 1]
            if not data[position + 2 : value].isascii():
                check_text(data, STRING8, position + 2, value)
        else:
            value = check_value(data, position, stop, 2, budget)
        code = data[value]
        width = WIDTH[code]
        if width:
            position = value + width
        elif code == STRING8:
            position = value + 2 + data[value + 1]
            if not data[value + 2 : position].isascii():
                check_text(data, STRING8, value + 2, position)
        else:
            position = check_value(data, value, stop, 2, budget)
    if position != stop:
        raise KernelError(f"the map ends at byte {position}, its place at {stop}")
    return stop


def _check_annotations(data: bytes, position: int, end: int, budget: list[int]) -> int:
    return _check_keyed_map(data, position, end, budget, _ANNOTATION_KEYS)


def _check_application_properties(data: bytes, position: int, end: int, budget: list[int]) -> int:
    return _check_keyed_map(data, position, end, budget, _PROPERTY_KEYS)


def _check_fields(data: bytes, position: int, end: int, budget: list[int], fields_max: int) -> int:
    code = data[position]
    if code == LIST0:
        return position + 1
    if code not in (LIST8, LIST32):
        raise KernelError(f"no list at byte {position}")
    count, first, stop = open_compound(data, code, position + 1, end, budget)
    if count > fields_max:
        raise KernelError(f"{count} fields at byte {position}: at most {fields_max} exist")
    return check_elements(data, first, count, stop, 2, budget)


def _check_header(data: bytes, position: int, end: int, budget: list[int]) -> int:
    return _check_fields(data, position, end, budget, _HEADER_FIELDS_MAX)


def _check_properties(data: bytes, position: int, end: int, budget: list[int]) -> int:
    return _check_fields(data, position, end, budget, _PROPERTIES_FIELDS_MAX)


def _check_data(data: bytes, position: int, end: int, budget: list[int]) -> int:
    _take_one(budget, position)
    code = data[position]
    if code == BINARY8:
        stop = position + 2 + data[position + 1]
    elif code == BINARY32:
        stop = position + 5 + int(_U32(data, position + 1)[0])
    elif code == NULL:
        stop = position + 1  # JS writes it for a body of null (protocol.md 4.6)
    else:
        raise KernelError(f"a data section without binary at byte {position}")
    return stop


def _check_sequence(data: bytes, position: int, end: int, budget: list[int]) -> int:
    _take_one(budget, position)
    return _check_fields(data, position, end, budget, COUNT_MAX)


def _take_one(budget: list[int], position: int) -> None:
    budget[0] -= 1
    if budget[0] < 0:
        raise KernelError(f"more than {ELEMENTS_MAX} sections and elements at byte {position}")


def _check_any(data: bytes, position: int, end: int, budget: list[int]) -> int:
    return check_value(data, position, end, 1, budget)


_CHECKS: dict[int, Callable[[bytes, int, int, list[int]], int]] = {
    HEADER: _check_header,
    DELIVERY_ANNOTATIONS: _check_annotations,
    PROPERTIES: _check_properties,
    APPLICATION_PROPERTIES: _check_application_properties,
    DATA: _check_data,
    SEQUENCE: _check_sequence,
    VALUE: _check_any,
    FOOTER: _check_annotations,
}


def _unusual_after(code: int) -> bytes:
    """For each code 1 where it may not stand behind `code` in a canonical message."""
    table = bytearray(b"\x01" * 256)
    for following in range(HEADER, FOOTER + 1):
        in_order = following > code or following == code in (DATA, SEQUENCE)
        mixed = following != code and following in (SEQUENCE, VALUE) and code in (DATA, SEQUENCE)
        table[following] = not in_order or mixed
    return bytes(table)


_UNUSUAL_FIRST = _unusual_after(0)
_UNUSUAL_AFTER = {code: _unusual_after(code) for code in range(HEADER, FOOTER + 1)}
