"""Both implementations of the row kernels on the same inputs: same columns, records, errors.

Inputs are hand-made events with random damage, the same in every run.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from penstock.kernels import KernelError
from penstock.kernels._pure import arrow_columns, avro_records

if TYPE_CHECKING:
    from tests.conftest import Sized

BYTES = bytes.fromhex("00 01 02 40 41 42 43 44 45 50 53 54 56 61 70 71 72 73 74 75 76 77 78 80") + (
    bytes.fromhex("81 82 83 84 94 98 a0 a1 a3 b0 b1 b3 c0 c1 d0 d1 e0 f0 c3 a9 22 5c fe ff")
)


def raw(*parts: str | bytes) -> bytes:
    """Bytes from hexadecimal text and plain bytes, in the order in which they are written."""
    return b"".join(bytes.fromhex(part) if isinstance(part, str) else part for part in parts)


def symbol(text: str) -> bytes:
    return bytes((0xA3, len(text))) + text.encode()


def string(text: str | bytes) -> bytes:
    encoded = text.encode() if isinstance(text, str) else text
    return bytes((0xA1, len(encoded))) + encoded


def mapped(pairs: list[tuple[bytes, bytes]], *, long: bool = False) -> bytes:
    inside, count = b"".join(a + b for a, b in pairs), 2 * len(pairs)
    if long or len(inside) > 254:
        return raw("d1", (len(inside) + 4).to_bytes(4, "big"), count.to_bytes(4, "big"), inside)
    return raw("c1", bytes((len(inside) + 1, count)), inside)


VALUES = [
    raw("40"), raw("41"), raw("42"), raw("56 01"), raw("56 00"), raw("43"), raw("44"), raw("45"),
    raw("50 ff"), raw("51 ff"), raw("52 80"), raw("53 80"), raw("54 80"), raw("55 7f"),
    raw("60 ff ff"), raw("61 80 00"), raw("70 ff ff ff ff"), raw("71 80 00 00 00"),
    raw("72 3d cc cc cd"), raw("73 00 00 00 e9"), raw("74 00 00 00 01"),
    raw("80 ff ff ff ff ff ff ff ff"), raw("80 7f ff ff ff ff ff ff ff"),
    raw("81 80 00 00 00 00 00 00 00"), raw("81 7f ff ff ff ff ff ff ff"),
    raw("82 3f b9 99 99 99 99 99 9a"), raw("82 7f f0 00 00 00 00 00 00"),
    raw("82 40 59 00 00 00 00 00 00"), raw("82 54 b2 49 ad 25 94 c3 7d"),
    raw("82 7f f8 00 00 00 00 00 00"), raw("82 80 00 00 00 00 00 00 00"),
    raw("83 00 00 01 8b cf e5 68 00"), raw("84", bytes(8)), raw("94", bytes(16)),
    raw("98", bytes(range(16))), raw("a0 02 ff 00"), raw("b0 00 00 00 01 7f"),
    string(""), string("plain"), string("é"), string('q"\\\n\r\t\b\f\x01\x1f\x7f'),
    string("\U0001f600 \ud7ff"), string(b"\xed\xa0\x80"), string(b"\xc0\x80"),
    string(b"\xf4\x90\x80\x80"), string(b"\xe0\x80\x80"), string(b"\xf0\x8f\xbf\xbf"),
    string("€"), string("ퟀ"), string(b"\xe2\x82"), symbol("sym"), raw("a3 01 ff"),
    raw("b1 00 00 00 02", b"hi"), raw("b3 00 00 00 02", b"hi"),
    raw("c0 03 02 40 41"), raw("c1 01 00"), raw("e0 03 01 54 07"), raw("00 53 01 40"),
]  # fmt: skip
NAMES = [
    symbol("x-opt-partition-key"), symbol("x-opt-publisher"), symbol("x-opt-offset"),
    symbol("x-opt-enqueued-time"), symbol("x-opt-sequence-number"), symbol("x-opt-other-name"),
    symbol("x-opt-sequence-number-epoch"), symbol("iothub-device"), string("text"),
    raw("b3 00 00 00 02", b"ab"), raw("b1 00 00 00 02", b"ab"), raw("80 00 00 00 00 00 00 00 07"),
    raw("53 05"), raw("40"), symbol("x" * 100),
]  # fmt: skip
DELIVERY = raw("00 53 71", mapped([(symbol("tag"), raw("54 02"))]))
BODIES = [
    raw("00 53 75 a0 05", b"hello"), raw("00 53 75 b0 00 00 01 00", bytes(256)),
    raw("00 53 75 a0 00"), raw("00 53 75 a0 01", b"a", "00 53 75 a0 01", b"b"), raw("00 53 75 40"),
    raw("00 53 77 40"), raw("00 53 77", string("text")), raw("00 53 77 a0 01 ff"),
    raw("00 53 77 54 07"), raw("00 53 77 82 3f f8 00 00 00 00 00 00"),
    raw("00 53 77 c0 03 02 40 41"), raw("00 53 76 c0 03 02 40 41"), raw("00 53 76 45"),
    raw("00 53 76 c0 02 01 41 00 53 76 d0 00 00 00 05 00 00 00 01 42"), b"",
    raw("00 80 00 00 00 00 00 00 00 75 a0 02", b"hi"),
]  # fmt: skip
TIMES = (0, -1, 999, 1_700_000_000_123, 2**62, -(2**62), 9_223_372_036_854_776, -62_135_596_800_001)


def place(rng: random.Random) -> list[tuple[bytes, bytes]]:
    number = rng.choice((0, 7, -1, 63, 64, 2**63 - 1)).to_bytes(8, "big", signed=True)
    return [
        (symbol("x-opt-sequence-number-epoch"), raw("54 ff")),
        (symbol("x-opt-sequence-number"), raw("81", number)),
        (symbol("x-opt-offset"), string(rng.choice(("1000", "", "9" * 80, "é")))),
        (symbol("x-opt-enqueued-time"), raw("83", rng.choice(TIMES).to_bytes(8, signed=True))),
    ]


def event(rng: random.Random) -> bytes:
    """Mostly usual, each part now and then not."""
    rare = rng.random() < 0.3
    own = [
        (rng.choice(NAMES if rare else NAMES[5:6] + NAMES[7:9]), rng.choice(VALUES))
        for _ in range(rng.choice((0, 0, 0, 1, 2)))
    ]
    if rng.random() < 0.3:
        own.insert(rng.randrange(len(own) + 1), (NAMES[0], string("key")))
    if rng.random() < 0.2:
        own.append((NAMES[1], string("publisher")))
    annotations = place(rng) + own
    if rng.random() < 0.05:
        rng.shuffle(annotations)
    parts = [raw("00 53 72", mapped(annotations, long=rng.random() < 0.1))]
    if rng.random() < 0.1:
        parts.insert(0, DELIVERY)
    if rng.random() < 0.4:
        fields = rng.choices([raw("40"), raw("40"), *VALUES], k=rng.choice((0, 1, 6, 13, 14)))
        inside = b"".join(fields)
        if len(inside) < 255:
            parts.append(raw("00 53 73 c0", bytes((len(inside) + 1, len(fields))), inside))
    if rng.random() < 0.6:
        pairs = [
            (rng.choice((string("a"), string("é"), string("p" * 70), *NAMES[-4:-3])), value)
            for value in rng.choices(VALUES, k=rng.randint(0, 4))
        ]
        parts.append(raw("00 53 74", mapped(pairs, long=rng.random() < 0.1)))
    parts.append(rng.choice(BODIES[:2]) if rng.random() < 0.7 else rng.choice(BODIES))
    return b"".join(parts)


def damaged(rng: random.Random, data: bytes) -> bytes:
    buffer = bytearray(data)
    for _ in range(rng.choice((0, 0, 1, 2))):
        at = rng.randrange(len(buffer) + 1)
        act = rng.random()
        if act < 0.7 and at < len(buffer):
            near = (buffer[at] + rng.choice((-2, -1, 1, 2))) % 256
            buffer[at] = rng.choice((rng.choice(BYTES), near, rng.randrange(256)))
        elif act < 0.8:
            del buffer[at : at + rng.randint(1, 6)]
        else:
            buffer[at:at] = rng.choice((bytes(rng.choices(BYTES, k=3)), buffer[:9]))
    return bytes(buffer)


def outcome(rows: Any, data: bytes, bounds: list[int]) -> Any:
    """What a kernel holds after that, or what it said, in a form that can be compared."""
    error: object = None
    try:
        rows.add(data, bounds)
    except KernelError as failed:
        error = type(failed), str(failed)
    return error, rows.rows, rows.size, rows.take(), rows.rows, rows.size


def text_of(encoded: bytes) -> str:
    return f"<{encoded.hex()}>"


def union_of(encoded: bytes) -> bytes:
    text = encoded.hex().encode()
    return b"\x04" + avro_records.encode_bytes(text)


@pytest.fixture(autouse=True, scope="module")
def implementation() -> None:
    """The tests compare both implementations, so one run is enough."""


@pytest.fixture(scope="module")
def cases(sized: Sized) -> int:
    """Inputs for each test, of the count over all kernels."""
    return -(-sized(short=200_000, full=1_000_000, long=5_000_000) // 10)


@pytest.fixture(scope="module")
def compiled() -> Callable[[str], ModuleType]:
    if importlib.util.find_spec("penstock.kernels._arrow_columns") is None:
        pytest.skip("no compiled kernels were built here")
    return lambda name: importlib.import_module(f"penstock.kernels.{name}")


@pytest.mark.slow
@pytest.mark.sized("faults")
@pytest.mark.timeout(7200)
def test_both_build_the_same_columns(compiled: Callable[[str], ModuleType], cases: int) -> None:
    rng = random.Random(4)
    builders: dict[tuple[tuple[str, object], ...], tuple[Any, Any]] = {}
    for _ in range(cases):
        data, bounds = run_of_events(rng)
        options = {
            "properties": rng.random() < 0.9,
            "system": rng.random() < 0.9,
            "json": rng.random() < 0.5,
            "buffer_bytes_max": rng.choice((0, 30, 300, 2**31 - 1, 2**31 - 1, 2**31 - 1)),
        }
        pair = builders.get(tuple(options.items()))
        if pair is None:
            pair = builders[tuple(options.items())] = (
                arrow_columns.ArrowColumnBuilder(text_of, **options),  # type: ignore[arg-type] # mixed values
                compiled("_arrow_columns").ArrowColumnBuilder(text_of, **options),
            )
        expected = outcome(pair[0], data, bounds)
        assert outcome(pair[1], data, bounds) == expected, (data, bounds, options)


@pytest.mark.slow
@pytest.mark.sized("faults")
@pytest.mark.timeout(7200)
def test_both_write_the_same_records(compiled: Callable[[str], ModuleType], cases: int) -> None:
    rng = random.Random(5)
    for _ in range(cases):
        data, bounds = run_of_events(rng)
        options = {
            "iso_time": rng.random() < 0.5,
            "block_bytes_max": rng.choice((0, 300, 2**31 - 1, 2**31 - 1)),
        }
        expected = outcome(avro_records.AvroRecordWriter(union_of, **options), data, bounds)  # type: ignore[arg-type] # mixed values
        given = outcome(
            compiled("_avro_records").AvroRecordWriter(union_of, **options), data, bounds
        )
        assert given == expected, (data, bounds, options)


def run_of_events(rng: random.Random) -> tuple[bytes, list[int]]:
    data = b""
    bounds: list[int] = []
    for _ in range(rng.randint(1, 3)):
        made = damaged(rng, event(rng))
        bounds += [len(data), len(data) + len(made)]
        data += made
    if rng.random() < 0.02:
        bounds[rng.randrange(len(bounds))] += rng.choice((-5, 5, 10_000))
    return data + rng.choice((b"", BODIES[0])), bounds
