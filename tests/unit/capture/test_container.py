"""Container files: what we write, read by an oracle; what others write, or break."""

from __future__ import annotations

import contextlib
import io
import json
import random
from pathlib import Path
from typing import Any

import fastavro
import pytest

from penstock.capture import container
from penstock.capture.container import (
    EMPTY_BYTES_MAX,
    SCHEMA,
    AvroContainerReader,
    AvroFile,
    DamagedAvroFile,
    decode_long,
)
from penstock.capture.records import parse_time_us, read_capture_records
from penstock.kernels import encode_avro_long

PARSED: Any = fastavro.parse_schema(json.loads(SCHEMA))


def event(number: int) -> dict[str, Any]:
    return {
        "SequenceNumber": number,
        "Offset": str(number * 100),
        "EnqueuedTimeUtc": "11/16/2026 9:05:27 PM",
        "SystemProperties": {"x-opt-enqueued-time": 1_700_000_000_123, "x-opt-partition-key": "k"},
        "Properties": {"n": -5, "f": 1.5, "t": "ä", "b": b"\x00"},
        "Body": None if number == 3 else b"body" * number,
    }


def encoded(events: list[dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    for each in events:
        fastavro.schemaless_writer(out, PARSED, each)
    return out.getvalue()


@pytest.mark.parametrize("deflate", [False, True])
def test_files_are_what_the_oracle_reads(tmp_path: Path, deflate: bool) -> None:
    events = [event(number) for number in range(50)]
    file = AvroFile(tmp_path / "x.avro", name="a/b/0", deflate=deflate)
    for part in (events[:1], events[1:30], events[30:]):
        block = encoded(part)
        file.add(len(part), container.deflate(block) if deflate else block)
    size, _ = file.close()
    assert size == file.path.stat().st_size > EMPTY_BYTES_MAX
    with file.path.open("rb") as opened:
        assert list(fastavro.reader(opened)) == events
    with file.path.open("rb") as opened:
        mine = [
            each
            for count, block in AvroContainerReader(opened).blocks()
            for each in read_capture_records(count, block)
        ]
    assert [each.sequence for each in mine] == list(range(50))
    assert mine[7].properties == events[7]["Properties"]
    assert mine[3].body is None and mine[4].body == b"body" * 4
    assert mine[0].enqueued_us == 1_700_000_000_123_000


@pytest.mark.parametrize("deflate", [False, True])
def test_an_empty_window_is_a_header_and_small_enough(tmp_path: Path, deflate: bool) -> None:
    file = AvroFile(tmp_path / "x.avro", name="a", deflate=deflate)
    size, _ = file.close()
    assert 400 < size <= EMPTY_BYTES_MAX
    with file.path.open("rb") as opened:
        assert list(fastavro.reader(opened)) == []
    with file.path.open("rb") as opened:
        assert list(AvroContainerReader(opened).blocks()) == []


def test_the_smallest_event_is_more_than_an_empty_file(tmp_path: Path) -> None:
    least = event(0) | {"Offset": "0", "Properties": {}, "Body": b""}
    file = AvroFile(tmp_path / "x.avro", name="a", deflate=True)
    file.add(1, container.deflate(encoded([least])))
    assert file.close()[0] > EMPTY_BYTES_MAX


def test_a_file_of_one_name_is_always_the_same(tmp_path: Path) -> None:
    made = []
    for number in range(2):
        file = AvroFile(tmp_path / f"{number}.avro", name="ns/hub/0/7", deflate=True)
        file.add(10, container.deflate(encoded([event(n) for n in range(10)])))
        made.append(file.close())
    assert made[0] == made[1]


def test_files_of_others_are_read_too() -> None:
    out = io.BytesIO()
    fastavro.writer(out, PARSED, [event(number) for number in range(9)], codec="deflate")
    out.seek(0)
    found = [
        each.sequence
        for count, block in AvroContainerReader(out).blocks()
        for each in read_capture_records(count, block)
    ]
    assert found == list(range(9))


def test_no_damage_goes_unseen_or_costs_more_than_an_error(tmp_path: Path) -> None:
    file = AvroFile(tmp_path / "x.avro", name="a", deflate=False)
    file.add(20, encoded([event(number) for number in range(20)]))
    file.close()
    whole = file.path.read_bytes()
    chance = random.Random(7)
    for cut in [*range(0, 40), *chance.sample(range(len(whole) - 1), 200)]:
        if cut == len(container.encode_header(bytes(16), deflate=False)):
            continue  # a window without events
        with pytest.raises(DamagedAvroFile):
            read_all(whole[:cut])
    for _ in range(500):
        broken = bytearray(whole)
        broken[chance.randrange(len(broken))] ^= 1 << chance.randrange(8)
        with contextlib.suppress(DamagedAvroFile):
            assert read_all(bytes(broken)) <= 20


def read_all(data: bytes) -> int:
    blocks = AvroContainerReader(io.BytesIO(data)).blocks()
    return sum(1 for count, block in blocks for _ in read_capture_records(count, block))


def test_times_are_read_in_both_forms() -> None:
    assert parse_time_us("9/26/2017 8:05:27 PM") == 1_506_456_327_000_000
    assert parse_time_us("9/26/2017 12:05:27 AM") == 1_506_384_327_000_000
    assert parse_time_us("2018-06-11T00:00:08.2250000Z") == 1_528_675_208_225_000
    with pytest.raises(DamagedAvroFile):
        parse_time_us("yesterday")


def test_longs_are_zigzag() -> None:
    for number in (0, -1, 1, 63, 64, -65, 2**62, -(2**63)):
        assert decode_long(encode_avro_long(number), 0) == (
            number,
            len(encode_avro_long(number)),
        )
