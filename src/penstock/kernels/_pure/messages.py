"""AMQP messages as bytes: their sections, checked, and the canonical form in which they are stored.

A message is canonical when a reader may be given it as it is (protocol.md E1, E22, 5.4):

- every section's descriptor is `00 53 7x`, and the sections stand in AMQP 3.2's order;
- its message-annotations have symbols (or ulongs) as keys and nothing that the service owns.

Canonical messages are stored verbatim. Of all others the sections' *values* are kept bit by bit.

No check reads beyond `end`. `penstock.kernels._messages` is the compiled implementation of what
`MessageFunctions` names; it raises the same errors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec

from penstock.kernels._pure import values
from penstock.kernels._pure.values import ELEMENTS_MAX, STRINGS, SYMBOL8, KernelError, check_value

HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS = 0x70, 0x71, 0x72
PROPERTIES, APPLICATION_PROPERTIES = 0x73, 0x74
DATA, SEQUENCE, VALUE, FOOTER = 0x75, 0x76, 0x77, 0x78

PARTITION_KEY_MAX = 128  # characters (protocol.md 4.5)
SEEN_ELEMENTS_MAX = (
    1_000  # in an AnnotationsCache, so that a usual message never exceeds ELEMENTS_MAX
)

KEY = b"x-opt-partition-key"
PUBLISHER = b"x-opt-publisher"
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
        bytes(code for code in range(256) if values.type_name(code) in ("null", *types))
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
        PUBLISHER,
    )
)
KNOWN = OWNED | {KEY, _PRODUCER_ID, _PRODUCER_EPOCH, _PRODUCER_NUMBER}

_DELIVERY_ANNOTATION_KEYS = bytes((SYMBOL8, values.SYMBOL32)) + values.ULONGS
_ANNOTATION_KEYS = STRINGS + _DELIVERY_ANNOTATION_KEYS

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
    """The last annotations section and what it said: in a batch with a key all are the same. Only
    the compiled implementation uses it."""

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
    """Check a whole message. `seen` is for the compiled implementation."""
    if start == end:
        return EMPTY  # azure-eventhub sends it for a value body of None without properties
    annotations = BARE
    canonical = True
    last_code, position = 0, start
    for code, first, stop in _sections(data, start, end):
        if code == MESSAGE_ANNOTATIONS:
            annotations = read_annotations(data, first, stop, [ELEMENTS_MAX])[1]
        # The descriptor has three bytes, and the sections come in order.
        canonical = canonical and first == position + 3 and code >= last_code
        last_code, position = code, stop
    return annotations if canonical else not_canonical(annotations)


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
        pairs += values.encode_variable(SYMBOL8, KEY) + values.encode_variable(
            values.STRING8, key.encode()
        )
    if publisher is not None:
        pairs += values.encode_variable(SYMBOL8, PUBLISHER)
        pairs += values.encode_variable(values.STRING8, publisher.encode())
    return 2 * ((key is not None) + (publisher is not None)), pairs


def annotations_section(count: int, pairs: bytes) -> bytes:
    return b"\x00\x53\x72" + values.encode_map(count, pairs)


def read_section_code(data: bytes, position: int, end: int) -> tuple[int, int]:
    """The section's code in whatever form the client wrote it, and where its value starts."""
    if position >= end or data[position]:
        raise missing_section(position)
    first = position + 1
    stop = values.check_descriptor(data, first, end)
    if data[first] == 0x53:
        code = data[first + 1]
    elif data[first] == 0x80:
        code = int.from_bytes(data[first + 1 : stop], "big")
    else:
        code = SYMBOLIC.get(values.variable_content(data[first:stop]), 0)
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
            raise values.missing_value(position)
        code = data[position]
        if code not in _ANNOTATION_KEYS:
            raise bad_annotation_key(code, position)
        value = check_value(data, position, stop, 2, budget)
        if code in STRINGS:
            canonical = False
        name = values.variable_content(data[position:value])
        position = check_value(data, value, stop, 2, budget)
        if name in KNOWN:
            if name in known:
                raise second_annotation(name, value)
            known[name] = (value, position)
    values.check_end(position, stop)
    return stop, judge_annotations(data, known, canonical, before - budget[0])


def judge_annotations(
    data: bytes, known: dict[bytes, tuple[int, int]], canonical: bool, elements: int
) -> Annotations:
    """What the annotations say whose values stand at `known`."""
    if not known:
        return Annotations(canonical, elements)
    key = publisher = None
    for name, (start, stop) in known.items():
        if name == KEY:
            key = values.read_string(data[start:stop])
            # Not a string: it does not route (protocol.md 4.5), and GO and JAVA die of it (5.4).
            canonical = canonical and key is not None
        elif name == PUBLISHER:
            publisher = values.read_string(data[start:stop])
            canonical = canonical and publisher is not None
        elif name in OWNED:
            canonical = False
    if key is not None and len(key) > PARTITION_KEY_MAX:
        raise values.KeyTooLong(
            f"the partition key at byte {known[KEY][0]} has {len(key)} characters: "
            f"at most {PARTITION_KEY_MAX} are allowed"
        )
    return Annotations(canonical, elements, key, publisher, _producer(data, known))


def _producer(data: bytes, known: dict[bytes, tuple[int, int]]) -> tuple[int, int, int] | None:
    """The idempotent producer's stamp, if all three parts are there (protocol.md 4.7)."""
    numbers = []
    for name in (_PRODUCER_ID, _PRODUCER_EPOCH, _PRODUCER_NUMBER):
        start, stop = known.get(name, (0, 0))
        number = values.read_signed(data[start:stop]) if stop else None
        if number is None:
            return None
        numbers.append(number)
    return numbers[0], numbers[1], numbers[2]


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
        name = values.variable_content(data[position:value])
        keep = name not in OWNED
        if name == KEY:
            keep = keep_key and data[value] in STRINGS
        if keep and code in STRINGS:
            values.check_text(data, SYMBOL8, value - len(name), value)
            pairs += values.encode_variable(SYMBOL8, name), data[value:after]
        elif keep:
            pairs.append(data[position:after])
        kept += 2 * keep
        position = after
    return kept, b"".join(pairs)


def _open_map(data: bytes, position: int, end: int, budget: list[int]) -> tuple[int, int, int]:
    if position >= end or data[position] not in (values.MAP8, values.MAP32):
        raise missing_map(position)
    return values.open_compound(data, data[position], position + 1, end, budget)


def _check_keyed_map(data: bytes, position: int, end: int, budget: list[int], keys: bytes) -> int:
    """Keys of the kinds `keys`, values of any kind."""
    count, position, stop = _open_map(data, position, end, budget)
    for _ in range(count >> 1):
        if position >= stop:
            raise values.missing_value(position)
        if data[position] not in keys:
            raise bad_map_key(data[position], position)
        position = check_value(data, position, stop, 2, budget)
        position = check_value(data, position, stop, 2, budget)
    return values.check_end(position, stop)


def _open_list(data: bytes, position: int, end: int, budget: list[int]) -> tuple[int, int, int]:
    code = data[position] if position < end else 0
    if code == values.LIST0:
        return 0, position + 1, position + 1
    if code not in (values.LIST8, values.LIST32):
        raise missing_list(position)
    return values.open_compound(data, code, position + 1, end, budget)


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
    return values.check_end(position, stop)


def _check_data(data: bytes, position: int, end: int, budget: list[int]) -> int:
    _take_one(budget, position)
    # rhea writes null for a body of null.
    if position >= end or data[position] not in (values.BINARY8, values.BINARY32, values.NULL):
        raise missing_binary(position)
    return check_value(data, position, end, 1, budget)


def _check_any(data: bytes, position: int, end: int, budget: list[int]) -> int:
    return check_value(data, position, end, 1, budget)


def _check_sequence(data: bytes, position: int, end: int, budget: list[int]) -> int:
    _take_one(budget, position)
    count, first, stop = _open_list(data, position, end, budget)
    return values.check_elements(data, first, count, stop, 2, budget)


def _take_one(budget: list[int], position: int) -> None:
    budget[0] -= 1
    if budget[0] < 0:
        raise too_many_sections(position)


_CHECKS: dict[int, Callable[[bytes, int, int, list[int]], int]] = {
    HEADER: partial(_check_fields, section=HEADER, fields=HEADER_CONSTRUCTORS),
    DELIVERY_ANNOTATIONS: partial(_check_keyed_map, keys=_DELIVERY_ANNOTATION_KEYS),
    PROPERTIES: partial(_check_fields, section=PROPERTIES, fields=PROPERTIES_CONSTRUCTORS),
    APPLICATION_PROPERTIES: partial(_check_keyed_map, keys=STRINGS),
    DATA: _check_data,
    SEQUENCE: _check_sequence,
    VALUE: _check_any,
    # rhea writes strings as keys, and every client reads them.
    FOOTER: partial(_check_keyed_map, keys=_ANNOTATION_KEYS),
}


# The errors of the checks above; the compiled implementation raises the same ones.


def wrong_field_type(section: int, index: int, code: int, position: int) -> KernelError:
    names = {HEADER: ("header", HEADER_FIELDS), PROPERTIES: ("properties", PROPERTIES_FIELDS)}
    section_name, fields = names[section]
    field, types = fields[index]
    return KernelError(
        f"the field {field} of {section_name} at byte {position} is of type "
        f"{values.type_name(code)} (0x{code:02x}): {' or '.join((*types, 'null'))} is allowed"
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
