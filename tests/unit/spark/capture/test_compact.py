"""Joined files: what was in them stays in them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from penstock.capture.destinations import Destination, resolve_destination
from penstock.capture.storage import FileStore
from penstock.model.errors import ArgumentError
from penstock.spark.capture.compact import FileOwner, write_hour_files
from penstock.spark.capture.history import ARROW_SCHEMA

HOUR_US = 1_700_000_000_000_000
PATH = "date=2023-11-14/hour=22/partition-0.parquet"
OURS = FileOwner("ns", "orders")


def batch(numbers: Iterable[int], *, since_us: int = HOUR_US) -> Any:
    rows = [
        {
            "body": f"{number} of {since_us}".encode(),
            "partition": "0",
            "sequenceNumber": number,
            "enqueuedTime": since_us + number,
            "properties": [("a", "1")],
            "date": "2023-11-14",
            "hour": 22,
        }
        for number in numbers
    ]
    schema = ARROW_SCHEMA.append(pa.field("date", pa.string())).append(pa.field("hour", pa.int32()))
    return pa.RecordBatch.from_pylist(rows, schema=schema)


class Joiner:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        target = resolve_destination([Destination(name="d", url=folder.as_uri())], "d", "joined")
        self._store = FileStore(target)

    def join(self, batches: Sequence[Any], owner: FileOwner = OURS) -> dict[str, Any]:
        spool = self.folder / "spool"
        spool.mkdir(exist_ok=True)
        (told,) = write_hour_files(iter(batches), self._store, spool, owner)
        (row,) = told.to_pylist()
        assert row["path"] == PATH and row["events"] == len(self.numbers())
        return dict(row)

    @property
    def file(self) -> Path:
        return self.folder / "joined" / PATH

    def numbers(self) -> list[int]:
        return [int(each) for each in self.table().column("sequenceNumber").to_pylist()]

    def table(self) -> Any:
        with parquet.ParquetFile(self.file) as opened:
            return opened.read()


@pytest.fixture
def joiner(tmp_path: Path) -> Joiner:
    return Joiner(tmp_path)


def test_an_hour_keeps_what_captured_files_have_no_more(joiner: Joiner) -> None:
    joiner.join([batch(range(0, 3420))])
    joiner.join([batch(range(3400, 3600))])
    assert joiner.numbers() == list(range(3600))
    joiner.join([batch([7])])
    assert joiner.numbers() == list(range(3600))


@pytest.mark.parametrize("seed", range(10))
def test_every_event_stands_there_once_and_in_order(joiner: Joiner, seed: int) -> None:
    chance = random.Random(seed)
    known: set[int] = set()
    for _ in range(4):
        low = chance.randrange(20_000)
        own = sorted(chance.sample(range(low, low + 12_000), chance.randrange(1, 9000)))
        cuts = sorted(chance.sample(range(len(own) + 1), min(3, len(own))))
        pieces = [own[start:end] for start, end in zip([0, *cuts], [*cuts, len(own)], strict=True)]
        joiner.join([batch(piece) for piece in pieces if piece])
        known |= set(own)
        assert joiner.numbers() == sorted(known)
    assert joiner.table().column("body").to_pylist() == [
        f"{number} of {HOUR_US}".encode() for number in sorted(known)
    ]


def test_an_hour_of_a_hub_that_was_made_anew_has_the_events_of_both(joiner: Joiner) -> None:
    joiner.join([batch(range(5))])
    for _ in range(2):
        joiner.join([batch(range(3), since_us=HOUR_US + 60_000_000)])
        assert joiner.numbers() == [0, 0, 1, 1, 2, 2, 3, 4]


def test_a_batch_s_rows_are_written_in_groups_that_are_worth_it(joiner: Joiner) -> None:
    joiner.join([batch(range(at, at + 10)) for at in range(0, 500, 10)])
    with parquet.ParquetFile(joiner.file) as opened:
        assert opened.num_row_groups == 1


def test_a_file_says_whose_it_is_and_another_hub_leaves_it_alone(joiner: Joiner) -> None:
    joiner.join([batch(range(5))])
    assert joiner.table().schema.metadata[b"penstock.eventHub"] == b"orders"
    before = joiner.file.read_bytes()
    for other in (FileOwner("ns", "others"), FileOwner("elsewhere", "orders")):
        with pytest.raises(ArgumentError, match=r"holds events of 'ns/orders'.*--to"):
            joiner.join([batch(range(7))], other)
    assert joiner.file.read_bytes() == before
    joiner.join([batch(range(7))], FileOwner("ns", "Orders"))


def test_a_file_that_nobody_joined_is_left_alone(joiner: Joiner) -> None:
    joiner.file.parent.mkdir(parents=True)
    joiner.file.write_bytes(b"notes")
    with pytest.raises(ArgumentError, match="is not a Parquet file"):
        joiner.join([batch(range(7))])
    parquet.write_table(pa.table({"a": [1]}), joiner.file)
    with pytest.raises(ArgumentError, match="does not name its event hub"):
        joiner.join([batch(range(7))])
