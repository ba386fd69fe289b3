"""AMQP 1.0 primitive types as Python values (AMQP 1.6), and their constructor codes.

    null None          boolean bool      string str       binary bytes     uuid uuid.UUID
    double float       list list         map dict         long: also a plain int

The other types are subclasses, so that a value that is decoded and encoded again keeps its AMQP
type (protocol.md E16, E17). They compare and hash like their base: `Uint(1) == 1`,
`Symbol("a") == "a"`. The constructor checks nothing; the encoder does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

# Constructor codes. The high nibble is the layout of the value: 4x to 9x fixed width 0, 1, 2, 4,
# 8, 16; Ax, Bx a length of 1 or 4 bytes; Cx, Dx size and count; Ex, Fx size, count, constructor.
DESCRIBED: Final = 0x00
NULL: Final = 0x40
TRUE: Final = 0x41
FALSE: Final = 0x42
UINT_0: Final = 0x43
ULONG_0: Final = 0x44
LIST_0: Final = 0x45
UBYTE: Final = 0x50
BYTE: Final = 0x51
SMALL_UINT: Final = 0x52
SMALL_ULONG: Final = 0x53
SMALL_INT: Final = 0x54
SMALL_LONG: Final = 0x55
BOOLEAN: Final = 0x56
USHORT: Final = 0x60
SHORT: Final = 0x61
UINT: Final = 0x70
INT: Final = 0x71
FLOAT: Final = 0x72
CHAR: Final = 0x73
DECIMAL32: Final = 0x74
ULONG: Final = 0x80
LONG: Final = 0x81
DOUBLE: Final = 0x82
TIMESTAMP: Final = 0x83
DECIMAL64: Final = 0x84
DECIMAL128: Final = 0x94
UUID: Final = 0x98
BINARY_8: Final = 0xA0
STRING_8: Final = 0xA1
SYMBOL_8: Final = 0xA3
BINARY_32: Final = 0xB0
STRING_32: Final = 0xB1
SYMBOL_32: Final = 0xB3
LIST_8: Final = 0xC0
MAP_8: Final = 0xC1
LIST_32: Final = 0xD0
MAP_32: Final = 0xD1
ARRAY_8: Final = 0xE0
ARRAY_32: Final = 0xF0


class Ubyte(int):
    """Unsigned, 8 bits."""

    __slots__ = ()


class Ushort(int):
    """Unsigned, 16 bits."""

    __slots__ = ()


class Uint(int):
    """Unsigned, 32 bits."""

    __slots__ = ()


class Ulong(int):
    """Unsigned, 64 bits."""

    __slots__ = ()


class Byte(int):
    """Signed, 8 bits."""

    __slots__ = ()


class Short(int):
    """Signed, 16 bits."""

    __slots__ = ()


class Int(int):
    """Signed, 32 bits."""

    __slots__ = ()


class Long(int):
    """Signed, 64 bits. A plain int is encoded as this."""

    __slots__ = ()


class Timestamp(int):
    """Milliseconds since 1970-01-01 UTC, signed, 64 bits."""

    __slots__ = ()


class Float(float):
    """Single precision; a plain float is a double."""

    __slots__ = ()


class Char(str):
    """One Unicode scalar value."""

    __slots__ = ()


class Symbol(str):
    """ASCII text from a constrained domain."""

    __slots__ = ()


class Decimal32(bytes):
    """IEEE 754-2008 decimal32, as its 4 bytes."""


class Decimal64(bytes):
    """IEEE 754-2008 decimal64, as its 8 bytes."""


class Decimal128(bytes):
    """IEEE 754-2008 decimal128, as its 16 bytes."""


class Raw(bytes):
    """One encoded value including its constructor; the encoder copies it unchanged."""


class Array(list[object]):
    """Values that share one constructor.

    `code` is the constructor code of the elements; with None the encoder chooses it by the first
    element. `descriptors` are those of described elements, outermost first; the list then holds the
    elements without them.
    """

    __slots__ = ("code", "descriptors")

    def __init__(
        self,
        values: Iterable[object] = (),
        code: int | None = None,
        descriptors: tuple[object, ...] = (),
    ) -> None:
        super().__init__(values)
        self.code = code
        self.descriptors = descriptors

    def __repr__(self) -> str:
        code = "None" if self.code is None else f"{self.code:#04x}"
        return f"Array({super().__repr__()}, code={code}, descriptors={self.descriptors!r})"


class Described(msgspec.Struct):
    """A value with a descriptor. In a descriptor a plain int is a ulong and a plain str a symbol.

    Not hashable on purpose: as a map key its hash would not be keyed, so a peer could choose it.
    """

    descriptor: object
    value: object
