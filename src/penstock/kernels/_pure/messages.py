"""AMQP messages as bytes: their sections, checked, and the canonical form in which they are stored.

A message is canonical when a reader may be given it as it is (protocol.md E1, E22, 5.4):

- every section's descriptor is `00 53 7x`, and the sections stand in AMQP 3.2's order;
- its message-annotations have symbols (or ulongs) as keys and nothing that the service owns.

Canonical messages are stored verbatim. Of all others the sections' *values* are kept bit by bit.

No check reads beyond `end`. `penstock.kernels._messages` is the compiled implementation of what
`MessageFunctions` names; it raises the same errors.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Protocol

import msgspec

from penstock.kernels._pure.values import (
    BINARY8,
    BINARY32,
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
    KernelError,
    KeyTooLong,
    check_descriptor,
    check_elements,
    check_text,
    check_value,
    missing_value,
    open_compound,
    overrun,
    type_name,
)

HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS = 0x70, 0x71, 0x72
PROPERTIES, APPLICATION_PROPERTIES = 0x73, 0x74
DATA, SEQUENCE, VALUE, FOOTER = 0x75, 0x76, 0x77, 0x78

PARTITION_KEY_MAX = 128  # characters (protocol.md 4.5)
SEEN_ELEMENTS_MAX = 1_000  # so that a usual message never exceeds ELEMENTS_MAX

KEY = b"x-opt-partition-key"
_PUBLISHER = b"x-opt-publisher"
_PRODUCER_ID = b"com.microsoft:producer-id"
_PRODUCER_EPOCH = b"com.microsoft:producer-epoch"
_PRODUCER_NUMBER = b"com.microsoft:producer-sequence-number"

# Fields of the sections that are lists, in their order, each with the types that it may have
# (AMQP 3.2.1, 3.2.4). Clients stop reading at a field of another type.
Field = tuple[str, tuple[str, ...]]
_MESSAGE_ID = ("ulong", "uuid", "binary", "string")
HEADER_FIELDS: tuple[Field, ...] = (
    ("durable", ("boolean",)),
    ("priority", ("ubyte",)),
    ("ttl", ("uint",)),
    ("first-acquirer", ("boolean",)),
    ("delivery-count", ("uint",)),
)
PROPERTIES_FIELDS: tuple[Field, ...] = (
    ("message-id", _MESSAGE_ID),
    ("user-id", ("binary",)),
    ("to", ("string",)),
    ("subject", ("string",)),
    ("reply-to", ("string",)),
    ("correlation-id", _MESSAGE_ID),
    ("content-type", ("symbol",)),
    ("content-encoding", ("symbol",)),
    ("absolute-expiry-time", ("timestamp",)),
    ("creation-time", ("timestamp",)),
    ("group-id", ("string",)),
    ("group-sequence", ("uint",)),
    ("reply-to-group-id", ("string",)),
)


def constructors_of(fields: tuple[Field, ...]) -> tuple[bytes, ...]:
    """For each field the constructors that may stand there; every field may be null."""
    return tuple(
        bytes(code for code in range(256) if type_name(code) in ("null", *types))
        for _, types in fields
    )


HEADER_CONSTRUCTORS = constructors_of(HEADER_FIELDS)
PROPERTIES_CONSTRUCTORS = constructors_of(PROPERTIES_FIELDS)

# The service's own: what a client writes there is dropped (protocol.md 4.6).
OWNED = frozenset(
    (
        b"x-opt-sequence-number",
        b"x-opt-sequence-number-epoch",
        b"x-opt-offset",
        b"x-opt-enqueued-time",
        _PUBLISHER,
    )
)
KNOWN = OWNED | {KEY, _PRODUCER_ID, _PRODUCER_EPOCH, _PRODUCER_NUMBER}

_ANNOTATION_KEYS = bytes((SYMBOL8, SYMBOL32, STRING8, STRING32)) + ULONGS
_DELIVERY_ANNOTATION_KEYS = bytes((SYMBOL8, SYMBOL32)) + ULONGS
_PROPERTY_KEYS = bytes((STRING8, STRING32))
_STRINGS = bytes((STRING8, STRING32))

SYMBOLIC = {
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
EMPTY = Annotations(canonical=False)  # a message without a section: stored with one


class AnnotationsCache:
    """The last annotations section and what it said: in a batch with a key all are the same."""

    __slots__ = ("annotations", "section")

    def __init__(self) -> None:
        self.section = b""
        self.annotations = BARE


class MessageFunctions(Protocol):
    """What the pure and the compiled implementation of this module have in common."""

    def inspect_message(
        self, data: bytes, start: int, end: int, seen: AnnotationsCache
    ) -> Annotations: ...

    def rewrite_message(
        self, data: bytes, start: int, end: int, key: str | None, publisher: str | None
    ) -> bytes: ...

    def read_section_code(self, data: bytes, position: int, end: int) -> tuple[int, int]: ...

    def check_section(
        self, data: bytes, code: int, position: int, end: int, budget: list[int]
    ) -> int: ...

    def read_annotations(
        self, data: bytes, position: int, end: int, budget: list[int]
    ) -> tuple[int, Annotations]: ...


def inspect_message(data: bytes, start: int, end: int, seen: AnnotationsCache) -> Annotations:
    """Check a whole message."""
    if start == end:
        return EMPTY  # azure-eventhub sends it for a value body of None without properties
    budget = [ELEMENTS_MAX]
    annotations = BARE
    unusual = _UNUSUAL_FIRST
    position = start
    while position < end:
        code = data[position + 2] if position + 2 < end else 0
        if unusual[code] or data[position] or data[position + 1] != 0x53:
            return _inspect_any(data, start, end)
        if code == MESSAGE_ANNOTATIONS:
            stop, annotations = read_annotations(data, position + 3, end, budget)
            if annotations.producer is None and annotations.elements <= SEEN_ELEMENTS_MAX:
                seen.section = data[position:stop]
                seen.annotations = annotations
            position = stop
        else:
            position = _CHECKS[code](data, position + 3, end, budget)
        unusual = _UNUSUAL_AFTER[code]
    return annotations


def rewrite_message(
    data: bytes, start: int, end: int, key: str | None, publisher: str | None
) -> bytes:
    """The canonical form of a message, with `key` instead of its own unless that is None."""
    sections = sorted(_sections(data, start, end), key=lambda section: section[0])
    count, pairs = service_annotations(key, publisher)
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


def service_annotations(key: str | None, publisher: str | None) -> tuple[int, bytes]:
    """Count and bytes of the pairs that the service writes at ingest (protocol.md 5.4, 13)."""
    pairs = b""
    if key is not None:
        pairs += _symbol(KEY) + _encode_string(key.encode())
    if publisher is not None:
        pairs += _symbol(_PUBLISHER) + _encode_string(publisher.encode())
    return 2 * ((key is not None) + (publisher is not None)), pairs


def annotations_section(count: int, pairs: bytes) -> bytes:
    """A message-annotations section in the smaller of its two forms."""
    if count <= 0xFF and len(pairs) < 0xFF:
        return b"\x00\x53\x72\xc1" + bytes((len(pairs) + 1, count)) + pairs
    return b"\x00\x53\x72\xd1" + struct.pack(">II", len(pairs) + 4, count) + pairs


def read_section_code(data: bytes, position: int, end: int) -> tuple[int, int]:
    """The section's code in whatever form the client wrote it, and where its value starts."""
    if position >= end or data[position]:
        raise missing_section(position)
    first = position + 1
    stop = check_descriptor(data, first, end)
    if data[first] == 0x53:
        code = data[first + 1]
    elif data[first] == 0x80:
        code = int(_U64(data, first + 1)[0])
    else:
        code = SYMBOLIC.get(data[first + (5 if data[first] == SYMBOL32 else 2) : stop], 0)
    if not HEADER <= code <= FOOTER:
        raise unknown_section(code, position)
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
        if position >= stop:
            raise missing_value(position)
        code = data[position]
        if code not in _ANNOTATION_KEYS:
            raise bad_annotation_key(code, position)
        value = check_value(data, position, stop, 2, budget)
        if code in _STRINGS:
            canonical = False
        name = data[position + (5 if code & 0x10 else 2) : value]
        position = check_value(data, value, stop, 2, budget)
        if name in KNOWN:
            if name in known:
                raise second_annotation(name, value)
            known[name] = (value, position)
    if position != stop:
        raise overrun(position, position, stop)
    return stop, judge_annotations(data, known, canonical, before - budget[0])


def read_integer(data: bytes, position: int) -> int | None:
    """The signed number of any width at `position`, None if something else stands there."""
    unpack = _SIGNED.get(data[position])
    return None if unpack is None else int(unpack(data, position + 1)[0])


def read_string(data: bytes, start: int, stop: int) -> str | None:
    """The string that lies between, None if it is not one. It was checked before."""
    if data[start] not in _STRINGS:
        return None
    return data[start + (2 if data[start] == STRING8 else 5) : stop].decode()


def judge_annotations(
    data: bytes, known: dict[bytes, tuple[int, int]], canonical: bool, elements: int
) -> Annotations:
    """What the annotations say whose values stand at `known`."""
    if not known:
        return Annotations(canonical, elements)
    key = publisher = None
    for name, (start, stop) in known.items():
        if name == KEY:
            key = read_string(data, start, stop)
            # Not a string: it does not route (protocol.md 4.5), and GO and JAVA die of it (5.4).
            canonical = canonical and key is not None
        elif name == _PUBLISHER:
            publisher = read_string(data, start, stop)
            canonical = canonical and publisher is not None
        elif name in OWNED:
            canonical = False
    if key is not None and len(key) > PARTITION_KEY_MAX:
        raise KeyTooLong(
            f"the partition key at byte {known[KEY][0]} has {len(key)} characters: "
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
    return not_canonical(annotations)


def not_canonical(annotations: Annotations) -> Annotations:
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
            raise second_section(code, position)
        codes.add(code)
        if len(codes & {DATA, SEQUENCE, VALUE}) > 1:
            raise second_body(code, position)
        stop = check_section(data, code, first, end, budget)
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
        keep = name not in OWNED
        if name == KEY:
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


def _encode_string(text: bytes) -> bytes:
    if len(text) <= 0xFF:
        return bytes((STRING8, len(text))) + text
    return b"\xb1" + struct.pack(">I", len(text)) + text


def _open_map(data: bytes, position: int, end: int, budget: list[int]) -> tuple[int, int, int]:
    if position >= end or data[position] not in (MAP8, MAP32):
        raise missing_map(position)
    return open_compound(data, data[position], position + 1, end, budget)


def _check_keyed_map(data: bytes, position: int, end: int, budget: list[int], keys: bytes) -> int:
    """Keys of the kinds `keys`, values of any kind."""
    count, position, stop = _open_map(data, position, end, budget)
    for _ in range(count >> 1):
        if position >= stop:
            raise missing_value(position)
        if data[position] not in keys:
            raise bad_map_key(data[position], position)
        position = check_value(data, position, stop, 2, budget)
        position = check_value(data, position, stop, 2, budget)
    if position != stop:
        raise overrun(position, position, stop)
    return stop


def _check_delivery_annotations(data: bytes, position: int, end: int, budget: list[int]) -> int:
    return _check_keyed_map(data, position, end, budget, _DELIVERY_ANNOTATION_KEYS)


def _check_footer(data: bytes, position: int, end: int, budget: list[int]) -> int:
    """rhea writes strings as keys, and every client reads them."""
    return _check_keyed_map(data, position, end, budget, _ANNOTATION_KEYS)


def _check_application_properties(data: bytes, position: int, end: int, budget: list[int]) -> int:
    return _check_keyed_map(data, position, end, budget, _PROPERTY_KEYS)


def _open_list(data: bytes, position: int, end: int, budget: list[int]) -> tuple[int, int, int]:
    code = data[position] if position < end else 0
    if code == LIST0:
        return 0, position + 1, position + 1
    if code not in (LIST8, LIST32):
        raise missing_list(position)
    return open_compound(data, code, position + 1, end, budget)


def _check_fields(
    data: bytes, position: int, end: int, budget: list[int], section: int, fields: tuple[bytes, ...]
) -> int:
    """A list whose element at each index has one of the constructors in `fields` there."""
    count, first, stop = _open_list(data, position, end, budget)
    if count > len(fields):
        raise too_many_fields(count, section, position)
    position = first
    for index in range(count):
        after = check_value(data, position, stop, 2, budget)
        if data[position] not in fields[index]:
            raise wrong_field_type(section, index, data[position], position)
        position = after
    if position != stop:
        raise overrun(position, position, stop)
    return stop


def _check_header(data: bytes, position: int, end: int, budget: list[int]) -> int:
    return _check_fields(data, position, end, budget, HEADER, HEADER_CONSTRUCTORS)


def _check_properties(data: bytes, position: int, end: int, budget: list[int]) -> int:
    return _check_fields(data, position, end, budget, PROPERTIES, PROPERTIES_CONSTRUCTORS)


def _check_data(data: bytes, position: int, end: int, budget: list[int]) -> int:
    _take_one(budget, position)
    # rhea writes null for a body of null.
    if position >= end or data[position] not in (BINARY8, BINARY32, NULL):
        raise missing_binary(position)
    return check_value(data, position, end, 1, budget)


def _check_sequence(data: bytes, position: int, end: int, budget: list[int]) -> int:
    _take_one(budget, position)
    count, first, stop = _open_list(data, position, end, budget)
    return check_elements(data, first, count, stop, 2, budget)


def _take_one(budget: list[int], position: int) -> None:
    budget[0] -= 1
    if budget[0] < 0:
        raise too_many_sections(position)


def _check_any(data: bytes, position: int, end: int, budget: list[int]) -> int:
    return check_value(data, position, end, 1, budget)


_CHECKS: dict[int, Callable[[bytes, int, int, list[int]], int]] = {
    HEADER: _check_header,
    DELIVERY_ANNOTATIONS: _check_delivery_annotations,
    PROPERTIES: _check_properties,
    APPLICATION_PROPERTIES: _check_application_properties,
    DATA: _check_data,
    SEQUENCE: _check_sequence,
    VALUE: _check_any,
    FOOTER: _check_footer,
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


# The errors of the checks above; the compiled implementation raises the same ones.


def wrong_field_type(section: int, index: int, code: int, position: int) -> KernelError:
    names = {HEADER: ("header", HEADER_FIELDS), PROPERTIES: ("properties", PROPERTIES_FIELDS)}
    section_name, fields = names[section]
    field, types = fields[index]
    return KernelError(
        f"the field {field} of {section_name} at byte {position} is of type {type_name(code)} "
        f"(0x{code:02x}): {' or '.join((*types, 'null'))} is allowed"
    )


def too_many_fields(count: int, section: int, position: int) -> KernelError:
    fields_max = len(HEADER_FIELDS if section == HEADER else PROPERTIES_FIELDS)
    return KernelError(f"{count} fields at byte {position}: at most {fields_max} exist")


def missing_section(position: int) -> KernelError:
    return KernelError(f"no section starts at byte {position}")


def unknown_section(code: int, position: int) -> KernelError:
    return KernelError(f"unknown section at byte {position}: code 0x{code:x}")


def second_section(code: int, position: int) -> KernelError:
    return KernelError(f"a second section 0x{code:x} at byte {position}")


def second_body(code: int, position: int) -> KernelError:
    return KernelError(f"a body of another kind, 0x{code:x}, at byte {position}")


def second_annotation(name: bytes, position: int) -> KernelError:
    return KernelError(f"a second {name.decode()} before byte {position}")


def bad_annotation_key(code: int, position: int) -> KernelError:
    return KernelError(f"an annotation's key at byte {position} is 0x{code:02x}, no symbol")


def bad_map_key(code: int, position: int) -> KernelError:
    return KernelError(f"a map's key at byte {position} is of type 0x{code:02x}")


def missing_map(position: int) -> KernelError:
    return KernelError(f"no map at byte {position}")


def missing_list(position: int) -> KernelError:
    return KernelError(f"no list at byte {position}")


def missing_binary(position: int) -> KernelError:
    return KernelError(f"a data section without binary at byte {position}")


def too_many_sections(position: int) -> KernelError:
    return KernelError(f"more than {ELEMENTS_MAX} sections and elements at byte {position}")
