"""Tables as people see them, JSON as programs read it."""

from __future__ import annotations

import json

import pytest

from penstock.cli.output import OutputFormat, format_bytes, format_hours, format_seconds

ROWS: list[dict[str, object]] = [
    {"name": "orders", "partition_count": 4, "retention_hours": 168, "status": "Active"},
    {"name": "[red]x", "partition_count": 32, "retention_hours": 1, "status": "Disabled"},
]


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")


def golden(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def test_table_has_aligned_numbers_and_shows_markup_as_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    OutputFormat.TABLE.print_rows(ROWS, title="Hubs", shown={"retention_hours": format_hours})
    assert golden(capsys.readouterr().out) == golden(
        """
name    partitions  retention  status
───────────────────────────────────────
orders           4         7d  Active
[red]x          32         1h  Disabled
"""
    )


def test_narrow_table_wraps_texts_and_cuts_only_what_may_be_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    rows = [{"detail": "a word " * 6, "owner": "b" * 30, "lag_events": None}]
    OutputFormat.TABLE.print_rows(rows, title="", elided=("owner",))
    out = capsys.readouterr().out
    assert out.count("word") == 6
    assert "…" in out
    assert max(map(len, out.splitlines())) <= 40


def test_rows_that_have_no_room_become_blocks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    rows = [
        {"name": "orders", "first": 123_456_789, "second": 123_456_789, "third": None},
        {"name": "returns", "first": 1, "second": 2, "third": 3},
    ]
    OutputFormat.TABLE.print_rows(rows, title="")
    assert golden(capsys.readouterr().out) == golden(
        """
name    orders
first   123,456,789
second  123,456,789

name    returns
first   1
second  2
third   3
"""
    )


def test_json_is_a_list_and_jsonl_an_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    OutputFormat.JSON.print_rows(ROWS, title="Hubs", columns=("name",))
    assert json.loads(capsys.readouterr().out) == ROWS
    OutputFormat.JSONL.print_rows(ROWS, title="Hubs")
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == ROWS
    OutputFormat.JSON.print_record(ROWS[0])
    assert json.loads(capsys.readouterr().out) == [ROWS[0]]


def test_nothing_is_an_empty_list_for_programs_and_a_word_for_people(
    capsys: pytest.CaptureFixture[str],
) -> None:
    OutputFormat.JSON.print_rows([], title="Hubs")
    assert capsys.readouterr().out == "[]\n"
    OutputFormat.TABLE.print_rows([], title="Hubs")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "Hubs: nothing to show\n")


def test_record_stands_below_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    record = {
        "name": "orders",
        "enforced": False,
        "groups": ["$Default", "billing"],
        "created_at": "2026-11-16T06:45:24.123Z",
        "missing": None,
        "events": 1234567,
    }
    OutputFormat.TABLE.print_record(record)
    assert golden(capsys.readouterr().out) == golden(
        """
name      orders
enforced  no
groups    $Default, billing
created   2026-11-16 06:45:24Z
events    1,234,567
"""
    )


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KB"), (5 << 20, "5.0 MB"), (3 << 40, "3.0 TB")],
)
def test_bytes_are_shown_with_a_unit(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0s"), (3.25, "3.2s"), (59, "59s"), (61, "1m 1s"), (3700, "1h 1m"), (90061, "1d 1h")],
)
def test_seconds_are_shown_as_people_say_them(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
