"""The lag table that lives: rates, trends, what is shown when not everything has room."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from penstock.cli.entities.lag_view import KEYS, LagSnapshot, LagView, lag_row
from penstock.cli.output import OutputFormat
from penstock.model.errors import InternalError, NotFound

Row = dict[str, object]


def row(
    partition: str = "0", *, last: int = 100, checkpoint: int | None = 90, **more: object
) -> Row:
    lag = None if checkpoint is None else last - checkpoint
    return lag_row(
        {
            "hub": "orders",
            "group": "billing",
            "partition": partition,
            "last_sequence_number": last,
            "checkpoint_sequence_number": checkpoint,
            "lag_events": lag,
            "lag_bytes": None if lag is None else lag * 100,
            "lag_seconds": None if lag is None else lag / 10,
            "owner": "worker-1",
            "epoch": None,
            "readers": 1,
        }
        | more
    )


def rendered(look: LagSnapshot, *, width: int, rows_max: int = 50) -> list[str]:
    view = LagView(list, title="penstock/orders", every_s=2, updates_max=1)
    screen = Console(width=width, file=io.StringIO(), color_system=None)
    screen.print(view.render(look, width=width, rows_max=rows_max))
    file = screen.file
    assert isinstance(file, io.StringIO)
    return [line.rstrip() for line in file.getvalue().splitlines()[1:]]  # the first has the time


def test_row_has_the_keys_that_programs_rely_on_first() -> None:
    assert KEYS[:8] == (
        "hub",
        "group",
        "partition",
        "last_sequence_number",
        "checkpoint_sequence_number",
        "lag_events",
        "lag_seconds",
        "owner",
    )
    assert tuple(row()) == KEYS


def test_rates_are_between_two_looks() -> None:
    first = LagSnapshot([row(last=100, checkpoint=90)], 10.0, None)
    second = LagSnapshot([row(last=140, checkpoint=100)], 12.0, first)
    assert first.rate(first.rows[0], "last_sequence_number") is None
    assert second.rate(second.rows[0], "last_sequence_number") == 20
    assert second.rate(second.rows[0], "checkpoint_sequence_number") == 5
    assert second.trend(second.rows[0]) == 1


def test_partition_that_two_groups_read_comes_in_once() -> None:
    groups = ("a", "b")
    first = LagSnapshot([row(group=g) for g in groups], 0.0, None)
    second = LagSnapshot([row(last=110, checkpoint=95, group=g) for g in groups], 1.0, first)
    assert second.total_rate("last_sequence_number") == 10
    assert second.total_rate("checkpoint_sequence_number") == 10


def test_checkpoint_that_went_back_is_no_negative_rate() -> None:
    first = LagSnapshot([row(checkpoint=90)], 0.0, None)
    second = LagSnapshot([row(checkpoint=10)], 1.0, first)
    assert second.rate(second.rows[0], "checkpoint_sequence_number") == 0


def test_table_at_80_columns() -> None:
    first = LagSnapshot([row("0"), row("1", checkpoint=None, owner=None)], 0.0, None)
    rows = [row("0", last=1500, checkpoint=100), row("1", checkpoint=None, owner=None)]
    assert rendered(LagSnapshot(rows, 2.0, first), width=80) == [
        "hub     group    part      lag     age  in/s  out/s  rd  owner",
        "─────────────────────────────────────────────────────────────────",
        "orders  billing     0  1,400 ▲  2m 20s   700      5   1  worker-1",
        "orders  billing     1        -       -     0      -   1  -",
        "1,400 events behind · 136.7 KB · oldest 2m 20s · 700/s in · 5/s out",
    ]


def test_table_at_120_columns_has_numbers_too() -> None:
    lines = rendered(LagSnapshot([row()], 0.0, None), width=120)
    assert " ".join(lines[0].split()) == (
        "hub group part last checkpoint lag age in/s out/s readers owner"
    )
    assert " ".join(lines[2].split()) == "orders billing 0 100 90 10 1.0s - - 1 worker-1"


def test_long_names_are_cut_and_the_line_stays_one() -> None:
    long = [row(hub="h" * 60, group="g" * 60, owner="o" * 60)]
    lines = rendered(LagSnapshot(long, 0.0, None), width=80)
    assert len(lines) == 4
    assert max(map(len, lines)) <= 80
    assert "…" in lines[2]


def test_worst_rows_are_kept_when_not_all_have_room() -> None:
    rows = [row(str(n), last=1000, checkpoint=1000 - n) for n in range(10)]
    lines = rendered(LagSnapshot(rows, 0.0, None), width=80, rows_max=2)
    assert [line.split()[2] for line in lines[2:4]] == ["9", "8"]
    assert lines[4].endswith("8 more rows")


def test_service_that_goes_away_meanwhile_leaves_the_last_look(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers: list[list[Row] | Exception] = [[row()], InternalError("gone"), [row()]]

    def look() -> list[Row]:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    LagView(look, title="", every_s=0.001, updates_max=3).run(OutputFormat.JSONL)
    assert capsys.readouterr().out.count("worker-1") == 3
    assert answers == []


def test_first_look_that_fails_ends_it() -> None:
    def look() -> list[Row]:
        raise NotFound("no such hub")

    with pytest.raises(NotFound):
        LagView(look, title="", every_s=0.001, updates_max=3).run(OutputFormat.TABLE)


@pytest.mark.parametrize("width", [80, 110, 160])
def test_numbers_are_never_cut_and_owners_are_short(width: int) -> None:
    owner = "0f3ed484-edf0-f3da-aaa8-4ea7c904848c"
    more = {"hub": "telemetry-of-all-machines", "group": "dashboards-and-alerts", "owner": owner}
    wide = row("31", last=1_234_567_890, checkpoint=1_216_665_000, **more)
    text = "\n".join(rendered(LagSnapshot([wide], 0.0, None), width=width))
    assert "17,902,890" in text
    assert owner[:8] in text and owner[:9] not in text
