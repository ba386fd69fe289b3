"""Parquet files of Capture: plain texts for people, and what the source would have said."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest

from penstock.capture.container import DamagedAvroFile
from penstock.formats.amqp_values import json_text, plain_text
from penstock.kernels import ArrowColumns, MapColumn, TextColumn
from penstock.spark.capture.history import _json_maps, _publishers
from penstock.spark.capture.parquet_file import (
    SYSTEM_TYPES,
    TYPES,
    _typed_json_value,
    json_from,
    record_batch,
)

# Values that the kernels leave to others: binary, texts that are none, times, floats, lists.
ODD = [
    "a0 02 68 69",
    "a0 01 ff",
    "a0 00",
    "83 0000000000000001",
    "72 3dcccccd",
    "72 7fc00000",
    "98 00112233445566778899aabbccddeeff",
    "73 00000062",
    "c0 05 02 54 01 a1 00",
    "c1 01 00",
    "94 " + "00" * 16,
]


def texts(values: list[bytes]) -> TextColumn:
    ends = [0]
    for value in values:
        ends.append(ends[-1] + len(value))
    return TextColumn(struct.pack(f"<{len(ends)}i", *ends), b"".join(values), None)


def gathered(rows: list[dict[str, str]]) -> ArrowColumns:
    count = len(rows)
    names = [name.encode() for row in rows for name in row]
    values = [value.encode() for row in rows for value in row.values()]
    ends = [sum(map(len, rows[:at])) for at in range(count + 1)]
    maps = MapColumn(struct.pack(f"<{count + 1}i", *ends), texts(names), texts(values))
    numbers = struct.pack(f"<{count}q", *range(count))
    empty = texts([b""] * count)
    return ArrowColumns(count, numbers, numbers, empty, empty, empty, empty, maps, maps)


PLAIN = [{"a": "7", "b": "7", "x-opt-publisher": "p"}, {}, {"c": "true"}, {"d": "hi", "e": "[1]"}]
JSON = [{"a": '"7"', "b": "7", "x-opt-publisher": '"p"'}, {}, {"c": "true"}, {"d": "b", "e": "[1]"}]
WANTED = [dict(row) for row in JSON]
WANTED[3]["d"] = '"aGk="'


def table() -> Any:
    return record_batch(gathered(PLAIN), gathered(JSON))


@pytest.mark.parametrize("odd", ODD)
def test_the_json_of_odd_values_is_told_by_a_letter(odd: str) -> None:
    encoded = bytes.fromhex(odd)
    letter = {'"': "t", "b": "b"}.get(_typed_json_value(encoded)[0], "j")
    assert json_from(letter, plain_text(encoded)) == json_text(encoded)


def test_a_batch_has_a_letter_for_each_value() -> None:
    made = table()
    for name in (SYSTEM_TYPES, TYPES):
        assert made.column(name).to_pylist() == ["tjt", "", "j", "bj"]
    assert made.column("Properties").to_pylist() == [list(row.items()) for row in PLAIN]


@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_maps_become_the_source_s_texts_wherever_a_table_is_cut(first: int) -> None:
    found = _json_maps(table().slice(first), "Properties", TYPES)
    assert [dict(row) for row in found.to_pylist()] == WANTED[first:]


def test_the_publisher_is_told() -> None:
    assert _publishers(table()).to_pylist() == ["p", None, None, None]
    assert _publishers(table().slice(1)).to_pylist() == [None, None, None]


def test_files_from_before_there_were_letters_keep_plain_texts() -> None:
    found = _json_maps(table().drop_columns([TYPES]), "Properties", TYPES)
    assert [dict(row) for row in found.to_pylist()] == PLAIN


@pytest.mark.parametrize("letters", [["tjt", "", "j", "b"], ["tj?", "", "j", "bj"]])
def test_letters_that_fit_nothing_are_damage(letters: list[str]) -> None:
    made = table()
    place = made.column_names.index(TYPES)
    broken = made.set_column(place, TYPES, pa.array(letters, pa.string()))
    with pytest.raises(DamagedAvroFile):
        _json_maps(broken, "Properties", TYPES)
