"""AMQP messages of every type in every place, as a client may publish them; the same in every run.

Each message has the names of the types in it ("char", "array of uuid", "map key of type int"), so
that a failure of a client is attributed to what it cannot decode.
"""

from __future__ import annotations

import random
import struct
import uuid
from collections.abc import Callable, Iterator
from typing import NamedTuple

Encode = Callable[[random.Random], bytes]
BODY = b"\x00\x53\x75\xa0\x04body"
FIELDS = (
    "message-id", "user-id", "to", "subject", "reply-to", "correlation-id", "content-type",
    "content-encoding", "absolute-expiry-time", "creation-time", "group-id", "group-sequence",
    "reply-to-group-id",
)  # fmt: skip
HEADER_FIELDS = ("durable", "priority", "ttl", "first-acquirer", "delivery-count")


class Sample(NamedTuple):
    message: bytes
    features: frozenset[str]


def variable(code: int, content: bytes, *, wide: bool) -> bytes:
    if wide or len(content) > 255:
        return bytes((code | 0x10,)) + struct.pack(">I", len(content)) + content
    return bytes((code, len(content))) + content


def compound(code: int, count: int, content: bytes, *, wide: bool = False) -> bytes:
    if wide or len(content) > 254 or count > 255:
        return bytes((code | 0x10,)) + struct.pack(">II", len(content) + 4, count) + content
    return bytes((code, len(content) + 1, count)) + content


def _text(rng: random.Random) -> str:
    return "".join(rng.choices("abc XYZ09äß€\U0001f600", k=rng.randint(0, 12)))


def _fixed(code: int, width: int) -> Encode:
    return lambda rng: bytes((code,)) + rng.randbytes(width)


def _one_of(*choices: Encode) -> Encode:
    return lambda rng: rng.choice(choices)(rng)


def _variable(code: int, content: Callable[[random.Random], bytes]) -> Encode:
    return lambda rng: variable(code, content(rng), wide=rng.random() < 0.3)


def _char(rng: random.Random) -> bytes:
    return b"\x73" + struct.pack(">I", ord(rng.choice("aäЖ€\U0001f600")))


def _timestamp(rng: random.Random) -> bytes:
    return b"\x83" + struct.pack(">q", rng.randint(0, 4_102_444_800_000))


def _decimal128(rng: random.Random) -> bytes:
    """As IEEE 754 encodes it, or as .NET's client does, which shifts the exponent too far."""
    exponent = 6176 - rng.randint(0, 28)
    shift = rng.choice((7, 9))
    head = bytes((rng.choice((0, 0x80)) | exponent >> shift, (exponent & 0x7F) << 1))
    return b"\x94" + head + rng.randrange(10**16).to_bytes(14, "big")


def _constant(*values: bytes) -> Encode:
    return lambda rng: rng.choice(values)


PRIMITIVES: dict[str, Encode] = {
    "null": _constant(b"\x40"),
    "boolean": _constant(b"\x41", b"\x42", b"\x56\x00", b"\x56\x01"),
    "ubyte": _fixed(0x50, 1),
    "ushort": _fixed(0x60, 2),
    "uint": _one_of(_constant(b"\x43"), _fixed(0x52, 1), _fixed(0x70, 4)),
    "ulong": _one_of(_constant(b"\x44"), _fixed(0x53, 1), _fixed(0x80, 8)),
    "byte": _fixed(0x51, 1),
    "short": _fixed(0x61, 2),
    "int": _one_of(_fixed(0x54, 1), _fixed(0x71, 4)),
    "long": _one_of(_fixed(0x55, 1), _fixed(0x81, 8)),
    "float": lambda rng: b"\x72" + struct.pack(">f", rng.uniform(-1e9, 1e9)),
    "double": lambda rng: b"\x82" + struct.pack(">d", rng.uniform(-1e99, 1e99)),
    "char": _char,
    "timestamp": _timestamp,
    "decimal32": _fixed(0x74, 4),
    "decimal64": _fixed(0x84, 8),
    "decimal128": _decimal128,
    "uuid": lambda rng: b"\x98" + uuid.UUID(int=rng.getrandbits(128), version=4).bytes,
    "binary": _variable(0xA0, lambda rng: rng.randbytes(rng.randint(0, 40))),
    "string": _variable(0xA1, lambda rng: _text(rng).encode()),
    "symbol": _variable(0xA3, lambda rng: f"s{rng.randint(0, 999)}".encode()),
}
# Wide constructors that an array of the type may have, and its elements without them.
_ELEMENTS: dict[str, tuple[int, Encode]] = {
    name: (code, lambda rng, width=width: rng.randbytes(width))
    for name, code, width in (
        ("ubyte", 0x50, 1),
        ("ushort", 0x60, 2),
        ("uint", 0x70, 4),
        ("ulong", 0x80, 8),
        ("byte", 0x51, 1),
        ("short", 0x61, 2),
        ("int", 0x71, 4),
        ("long", 0x81, 8),
        ("float", 0x72, 4),
        ("double", 0x82, 8),
        ("decimal32", 0x74, 4),
        ("decimal64", 0x84, 8),
        ("uuid", 0x98, 16),
        ("smallint", 0x54, 1),
        ("smalluint", 0x52, 1),
        ("smalllong", 0x55, 1),
        ("smallulong", 0x53, 1),
    )
} | {
    "boolean": (0x56, _constant(b"\x00", b"\x01")),
    "char": (0x73, lambda rng: _char(rng)[1:]),
    "decimal128": (0x94, lambda rng: _decimal128(rng)[1:]),
    "timestamp": (0x83, lambda rng: _timestamp(rng)[1:]),
    "binary": (0xA0, lambda rng: variable(0xA0, rng.randbytes(5), wide=False)[1:]),
    "string": (0xA1, lambda rng: variable(0xA1, _text(rng).encode(), wide=False)[1:]),
    "symbol": (0xA3, lambda rng: variable(0xA3, b"sym", wide=False)[1:]),
    "list": (0xC0, lambda rng: compound(0xC0, 2, b"\x54\x01\x41")[1:]),
    "map": (0xC1, lambda rng: compound(0xC1, 2, b"\xa1\x01k\x54\x01")[1:]),
    "array": (0xE0, lambda rng: compound(0xE0, 2, b"\x50\x01\x02")[1:]),
}


def array_of(kind: str, count: int, rng: random.Random) -> bytes:
    code, element = _ELEMENTS[kind]
    elements = b"".join(element(rng) for _ in range(count))
    return compound(0xE0, count, bytes((code,)) + elements, wide=rng.random() < 0.3)


def _values(rng: random.Random) -> Iterator[tuple[frozenset[str], bytes]]:
    """A value of every type, with the types' names."""
    for name, encode in PRIMITIVES.items():
        yield frozenset({name}), encode(rng)
    for name in _ELEMENTS:
        features = frozenset({name, f"array of {name}"})
        yield features, array_of(name, rng.randint(1, 4), rng)
        yield features | {"empty array"}, array_of(name, 0, rng)
    number, text = PRIMITIVES["int"](rng), PRIMITIVES["string"](rng)
    for name, encode in PRIMITIVES.items():
        if name not in ("null", "string"):
            features = frozenset({name, f"map key of type {name}"})
            yield features, compound(0xC1, 2, encode(rng) + number)
    nested = compound(0xC1, 2, text + compound(0xC0, 2, number + text))
    for name, value in (
        ("array of null", compound(0xE0, 1, b"\x40")),
        ("array of described values", compound(0xE0, 2, b"\x00\x53\xf1\x50\x01\x02")),
        ("empty array without a type", b"\xe0\x01\x00"),
        ("list", b"\x45"),
        ("list", compound(0xC0, 2, number + text, wide=rng.random() < 0.5)),
        ("list", compound(0xC0, 1, compound(0xC0, 1, compound(0xC0, 1, number)))),
        ("map", compound(0xC1, 2, text + number, wide=rng.random() < 0.5)),
        ("map", compound(0xC1, 2, b"\xa1\x01k" + nested)),
        ("described by a symbol", b"\x00\xa3\x05a:b:c" + text),
        ("described by a number", b"\x00\x80\x00\x00\x01" + rng.randbytes(5) + number),
        ("described list", b"\x00\x53\xf0" + compound(0xC0, 2, number + text)),
        ("described by a code of AMQP's own", b"\x00\x53\x10\x45"),
    ):
        yield frozenset({name}), value


def _section(code: int, value: bytes) -> bytes:
    return bytes((0, 0x53, code)) + value


def _map_section(code: int, key: bytes, value: bytes) -> bytes:
    return _section(code, compound(0xC1, 2, key + value))


_SYMBOL_KEY, _STRING_KEY = b"\xa3\x03key", b"\xa1\x03key"
# A value's places in a message.
PLACES: tuple[Callable[[bytes], bytes], ...] = (
    lambda value: _map_section(0x74, _STRING_KEY, value) + BODY,
    lambda value: _map_section(0x72, _SYMBOL_KEY, value) + BODY,
    lambda value: _map_section(0x71, _SYMBOL_KEY, value) + BODY,
    lambda value: BODY + _map_section(0x78, _SYMBOL_KEY, value),
    lambda value: _section(0x77, value),
    lambda value: _section(0x76, compound(0xC0, 1, value)),
    lambda value: _section(0x77, compound(0xC1, 2, _STRING_KEY + value)),
    lambda value: _section(0x77, compound(0xC0, 2, value + b"\x40", wide=True)),
)


def _fields(code: int, names: tuple[str, ...], rng: random.Random) -> Iterator[Sample]:
    """Every field of a list section with every type; the caller keeps what Penstock accepts."""
    for index in range(len(names)):
        for encode in PRIMITIVES.values():
            fields = b"\x40" * index + encode(rng)
            section = _section(code, compound(0xC0, index + 1, fields, wide=rng.random() < 0.3))
            yield Sample(section + BODY, frozenset())


def _shapes(rng: random.Random) -> Iterator[Sample]:
    """Messages whose sections are unusual."""
    plain: frozenset[str] = frozenset()
    yield Sample(BODY, plain)
    yield Sample(BODY * 3, plain)
    yield Sample(b"\x00\x53\x76\x45", plain)
    yield Sample(b"\x00\x53\x76" + compound(0xC0, 1, b"\x41") + b"\x00\x53\x76\x45", plain)
    yield Sample(b"\x00\x53\x75\x40", frozenset({"data section of null"}))
    yield Sample(_map_section(0x74, _STRING_KEY, b"\x41"), frozenset({"no body"}))
    yield Sample(b"", frozenset({"no body"}))
    yield Sample(_map_section(0x72, _STRING_KEY, b"\x41") + BODY, plain)
    strings = frozenset({"footer with a string as key"})
    yield Sample(BODY + _map_section(0x78, _STRING_KEY, b"\x41"), strings)
    numbers = frozenset({"annotation with a number as key"})
    for code in (0x71, 0x72):
        yield Sample(_map_section(code, b"\x53\x07", b"\x41") + BODY, numbers)
    yield Sample(BODY + _map_section(0x78, b"\x53\x07", b"\x41"), numbers)
    for form in (b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75", b"\x00\xa3\x10amqp:data:binary"):
        yield Sample(form + b"\xa0\x02hi", plain)
    yield Sample(BODY + _map_section(0x74, _STRING_KEY, b"\x41"), plain)


def _mixed(rng: random.Random) -> Sample:
    """All sections at once, with values of random types."""
    values = list(_values(rng))
    features: set[str] = set()

    def pairs(key: bytes, most: int) -> bytes:
        chosen = rng.sample(values, k=rng.randint(0, most))
        features.update(*(names for names, _ in chosen))
        content = b"".join(
            key + bytes((3,)) + b"k%02d" % number + value
            for number, (_, value) in enumerate(chosen)
        )
        return compound(0xC1, 2 * len(chosen), content, wide=rng.random() < 0.3)

    parts = []
    if rng.random() < 0.5:
        parts.append(_section(0x70, compound(0xC0, 2, b"\x41\x50\x04")))
    for code, key in ((0x71, b"\xa3"), (0x72, b"\xa3"), (0x74, b"\xa1")):
        if rng.random() < 0.6:
            parts.append(_section(code, pairs(key, 3)))
        if code == 0x72 and rng.random() < 0.6:
            fields = PRIMITIVES["string"](rng) + PRIMITIVES["binary"](rng)
            parts.append(_section(0x73, compound(0xC0, 2, fields)))
    names, value = rng.choice(values)
    if rng.random() < 0.6:
        parts.append(BODY * rng.randint(1, 3))
    else:
        features.update(names)
        parts.append(_section(0x77, value))
    if rng.random() < 0.4:
        parts.append(_section(0x78, pairs(b"\xa3", 2)))
    return Sample(b"".join(parts), frozenset(features))


def samples(seed: int) -> Iterator[Sample]:
    """Without an end: every field, type and place first, then mixtures."""
    rng = random.Random(seed)
    yield from _shapes(rng)
    yield from _fields(0x73, FIELDS, rng)
    yield from _fields(0x70, HEADER_FIELDS, rng)
    for place in PLACES:
        for features, value in _values(rng):
            yield Sample(place(value), features)
    while True:
        yield _mixed(rng)
