"""Both implementations of the kernels on the same inputs: same results, same error texts.

Inputs are hand-made messages with random damage, the same in every run.
"""

from __future__ import annotations

import importlib
import random
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from tests.support.kernel_outcome import outcome

from penstock.amqp import transfer_run
from penstock.kernels._pure import columns, publications, transfer_frames
from penstock.model.events import StoredBatch

if TYPE_CHECKING:
    from tests.conftest import Sized

BYTES = bytes.fromhex("00 01 02 40 41 45 53 56 70 71 72 73 74 75 76 77 78 80") + bytes.fromhex(
    "81 83 a0 a1 a3 b0 b1 b3 c0 c1 d0 d1 e0 f0 fe ff"
)


def raw(*parts: str | bytes) -> bytes:
    """Bytes from hexadecimal text and plain bytes, in the order in which they are written."""
    return b"".join(bytes.fromhex(part) if isinstance(part, str) else part for part in parts)


def wrapped(message: bytes) -> bytes:
    if len(message) < 256:
        return raw("00 53 75 a0", bytes((len(message),)), message)
    return raw("00 53 75 b0", len(message).to_bytes(4, "big"), message)


HELLO = raw("00 53 75 a0 05", b"hello")
KEY = raw("00 53 72 c1 19 02 a3 13", b"x-opt-partition-key", "a1 01", b"a")
PROPERTIES = raw("00 53 73 c0 0f 08 a1 02", b"id", "40 40 40 40 53 07 a3 01", b"j", "40")
APPLICATION = raw(
    "00 53 74 c1 1a 08 a1 01", b"a", "a1 02", "é".encode(), "a1 01", b"b", "56 01",
    "a1 02", "ü".encode(), "40 a1 01", b"d", "70 00 00 00 01",
)  # fmt: skip
STAMP = raw(
    "00 53 72 c1 69 06 a3 19", b"com.microsoft:producer-id", "55 07",
    "a3 1c", b"com.microsoft:producer-epoch", "61 00 02",
    "a3 26", b"com.microsoft:producer-sequence-number", "54 01",
)  # fmt: skip
DELIVERY = raw("00 53 71 c1 08 02 a3 03", b"tag", "54 02")
MESSAGES = [
    HELLO,
    raw("00 53 75 b0 00 00 02 00", bytes(512)),
    KEY + HELLO,
    KEY + PROPERTIES + APPLICATION + HELLO,
    raw("00 53 70 45", KEY, PROPERTIES, HELLO),
    raw("00 53 70 c0 02 01 41", APPLICATION, HELLO),
    STAMP + HELLO,
    STAMP.replace(b"\x54\x01", b"\x54\x02") + HELLO,
    HELLO + DELIVERY,
    DELIVERY + KEY + HELLO,
    raw("00 53 72 c1 08 02 a1 03", b"own", "54 01", HELLO),
    raw("00 53 72 c1 12 02 a3 0c", b"x-opt-offset", "a1 01", b"7", HELLO),
    raw("00 80 00 00 00 00 00 00 00 75 a0 02", b"hi"),
    raw("00 a3 10", b"amqp:data:binary", "a0 02", b"hi"),
    raw("00 53 77 f0 00 00 00 0d 00 00 00 02 71 00 00 00 01 00 00 00 02"),
    raw("00 53 76 c0 06 02 e0 02 01 40 45"),
    raw("00 53 73 c0 06 02 40 a0 02", b"me", HELLO),
    raw("00 53 73 d0 00 00 00 21 00 00 00 0d 98", bytes(16), "40 40 40 40 44 40 40 40 40 40 43 40"),
    raw("00 53 70 c0 0c 05 56 01 50 04 70 00 00 00 07 42 43", HELLO),
    raw("00 53 77 c1 11 04 a1 01", b"k", "73 00 00 00 61 a3 01", b"k", "74 00 00 00 01"),
    raw("00 53 77 00 a3 03", b"a:b", "d0 00 00 00 0c 00 00 00 02 00 53 09 56 00 e0 01 00"),
    raw("00 53 78 c1 07 02 a1 01", b"f", "e0 01 00"),
    raw("00 53 71 c1 05 02 a3 01", b"d", "40", HELLO),
    raw("00 53 75 40"),
    raw("00 53 77 40"),
    b"",
]


def damaged(rng: random.Random, data: bytes) -> bytes:
    buffer = bytearray(data)
    for _ in range(rng.randint(0, 3)):
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


def stored_run(rng: random.Random, contents: tuple[bytes, ...]) -> list[StoredBatch]:
    """Batches one behind the other, not all with as many events as they say."""
    first, offset = rng.choice((0, 100)), rng.choice((0, 95, 9_990, -1, (1 << 62) + 1))
    return [
        StoredBatch(
            first + 9 * number,
            offset + 9_999 * number,
            number,
            rng.choice((1, 2, 3, 4)),
            rng.choice(contents),
        )
        for number in range(rng.randint(1, 3))
    ]


@pytest.fixture(autouse=True, scope="module")
def implementation() -> None:
    """The tests compare both implementations, so one run is enough."""


@pytest.fixture(scope="module")
def cases(sized: Sized) -> int:
    """Inputs for each test, of the count over all kernels."""
    return -(-sized(short=200_000, full=1_000_000, long=5_000_000) // 7)


@pytest.fixture(scope="module")
def compiled() -> SimpleNamespace:
    """The compiled kernels, whatever their module."""
    if importlib.util.find_spec("penstock.kernels._publications") is None:
        pytest.skip("no compiled kernels were built here")
    modules = ("_columns", "_publications", "_transfer_frames")
    kernels: dict[str, object] = {}
    for module in modules:
        kernels |= vars(importlib.import_module(f"penstock.kernels.{module}"))
    return SimpleNamespace(**kernels)


@pytest.mark.slow
@pytest.mark.sized("faults")
@pytest.mark.timeout(7200)
def test_both_split_alike(compiled: SimpleNamespace, cases: int) -> None:
    rng = random.Random(1)
    for _ in range(cases):
        messages = rng.choices(MESSAGES, k=rng.randint(1, 4))
        envelope = rng.choice((b"", b"", KEY, raw("00 53 70 45 00 53 73 45")))
        data = damaged(rng, envelope + b"".join(map(wrapped, messages)))
        behind = rng.choice((b"", HELLO))
        options = {"publisher": rng.choice((None, None, "a", "b"))}
        expected = outcome(publications.split_batch, data + behind, 0, len(data), **options)
        given = outcome(compiled.split_batch, data + behind, 0, len(data), **options)
        assert given == expected, (data, behind, options)

        bounds: list[int] = []
        data = b""
        for message in messages:
            hostile = damaged(rng, message)
            bounds += [len(data), len(data) + len(hostile)]
            data += hostile
        expected = outcome(publications.split_singles, data + behind, bounds, **options)
        given = outcome(compiled.split_singles, data + behind, bounds, **options)
        assert given == expected, (data, behind, bounds, options)


@pytest.mark.slow
@pytest.mark.sized("faults")
@pytest.mark.timeout(7200)
def test_both_deliver_alike(compiled: SimpleNamespace, cases: int) -> None:
    compiled_scan = importlib.import_module("penstock.amqp._transfer_scanner")
    rng = random.Random(2)
    for _ in range(cases):
        data = b"".join(map(wrapped, rng.choices(MESSAGES[:9], k=rng.randint(1, 4))))
        stored = publications.split_batch(data, 0, len(data)).sections
        sections = rng.choice((stored, damaged(rng, stored)))
        options = {
            "events_max": rng.choice((0, 1, 3, 99)),
            "frames_max": rng.choice((0, 1, 2, 99)),
            "bytes_max": rng.choice((0, 300, 1 << 20)),
            "channel": rng.choice((0, 1, 65_535)),
            "handle": rng.choice((0, 1, 255, 256, 0xFFFFFFFF)),
            "delivery_id": rng.choice((0, 255, 0xFFFFFFFF)),
            "frame_bytes_max": rng.choice((512, 600, 65_536)),
            "sequence": rng.choice((0, 100, (1 << 63) - 9)),
            "base_offset": rng.choice((0, 95, 9_990, (1 << 63) - 1_000_000)),
            "enqueued_ms": rng.choice((0, -1, 1_700_000_000_000)),
            "runtime": rng.choice((b"", DELIVERY)),
        }
        expected = outcome(transfer_frames.frame_events, sections, 0, **options)
        given = outcome(compiled.frame_events, sections, 0, **options)
        assert given == expected, (sections, options)

        del options["base_offset"], options["enqueued_ms"]
        run = stored_run(rng, (stored, stored, sections))
        options["sequence"] = run[0].first_sequence
        expected = outcome(transfer_frames.frame_run, run, 0, **options)
        given = outcome(compiled.frame_run, run, 0, **options)
        assert given == expected, (run, options)

        options |= {"base_offset": 0, "enqueued_ms": 0}
        options |= {"events_max": 99, "frames_max": 99, "bytes_max": 1 << 20}
        frames = damaged(rng, transfer_frames.frame_events(stored, 0, **options).data)  # type: ignore[arg-type] # mixed values
        for size in (512, 65_536):
            limits = {"frame_bytes_max": size, "count_max": rng.choice((1, 3, 4096))}
            found = transfer_run.scan_transfers(frames, 0, len(frames), **limits)
            assert compiled_scan.scan_transfers(frames, 0, len(frames), **limits) == found, frames


@pytest.mark.slow
@pytest.mark.sized("faults")
@pytest.mark.timeout(7200)
def test_both_decode_alike(compiled: SimpleNamespace, cases: int) -> None:
    place = raw(
        "a3 1b", b"x-opt-sequence-number-epoch", "54 ff",
        "a3 15", b"x-opt-sequence-number", "81 00 00 00 00 00 00 00 07",
        "a3 0c", b"x-opt-offset", "a1 04", b"1000",
        "a3 13", b"x-opt-enqueued-time", "83 00 00 00 00 00 00 00 01",
    )  # fmt: skip
    usual = raw("00 53 72 c1 72 08", place)
    keyed = raw("00 53 72 c1 8a 0a", place, KEY[6:])
    rng = random.Random(3)
    for _ in range(cases):
        rest = rng.choice((b"", PROPERTIES, APPLICATION, PROPERTIES + APPLICATION))
        body = rng.choice((HELLO, HELLO + HELLO, *MESSAGES[-5:]))
        data = damaged(rng, rng.choice((b"", DELIVERY)) + rng.choice((usual, keyed)) + rest + body)
        behind = rng.choice((b"", HELLO))
        bounds = [0, len(data)] * rng.randint(1, 2)
        expected = outcome(columns.decode_events, data + behind, bounds)
        assert outcome(compiled.decode_events, data + behind, bounds) == expected, (data, behind)
