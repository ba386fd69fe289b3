"""`--format` and the lines of a terminal."""

from __future__ import annotations

import asyncio
import re
from typing import Any, cast

import pytest
import typer
from tests.unit.formats.event_samples import COLUMNS, VALUE_BODIES

from penstock.cli.events.tail import (
    _EventPrinter,
    _TailOptions,
    format_renderer,
    terminal_renderer,
)
from penstock.kernels import Columns


@pytest.mark.parametrize("template", ["%b", "%b\\c"])
def test_body_that_is_an_amqp_value_is_written_as_text(template: str) -> None:
    render = format_renderer(template, is_terminal=False)
    end = b"" if template.endswith("c") else b"\n"
    assert render(VALUE_BODIES, "0", [0]) == b'{"a": 1}' + end
    assert render(VALUE_BODIES, "0", [0, 1, 2]) == end.join(
        [b'{"a": 1}', b"\x1bbin", b'[1,"x"]', b""]
    )


def test_body_that_is_an_amqp_value_is_text_on_a_terminal() -> None:
    lines = terminal_renderer(VALUE_BODIES, "0", [0, 1, 2]).decode().splitlines()
    assert [line.rsplit("m ", 1)[1] for line in lines] == ['{"a": 1}', "\\ebin", '[1,"x"]']


def test_headers_have_the_text_of_decimals_and_described_values() -> None:
    render = format_renderer("%h", is_terminal=False)
    assert b'"text":"0.1"' in render(VALUE_BODIES, "0", [0])
    assert b'"text":"00:00:01.5000000"' in render(VALUE_BODIES, "0", [1])


# --- --format -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("%b", b'{"t": 31, "list": [1, {"deep": "x"}]}\n'),
        ("%p %s %o %k", "3 7 70 käy\n".encode()),
        ("%t %T", b"2026-11-16T07:05:15.255Z 1794812715255\n"),
        ("%S%%", b"37%\n"),
        ("%h|%c|", b'{"kind":"warm","n":5}||\n'),
        ("%p %s %o %t %k %b \\n", None),
        ("%s\\t%s\\x41\\\\", b"7\t7A\\\n"),
        ("%s\\n", b"7\n"),
        ("%s\\0", b"7\0"),
        ("%s\\c", b"7"),
        ("%s\\\\n", b"7\\n\n"),
        ("", b"\n"),
    ],
)
def test_format_writes_one_event(template: str, expected: bytes | None) -> None:
    written = format_renderer(template, is_terminal=False)(COLUMNS, "3", [0])
    if expected is None:
        assert written.endswith(b" \n") and written.count(b"\n") == 1
    else:
        assert written == expected


@pytest.mark.parametrize("template", ["%q", "%", "\\q", "%b %z"])
def test_format_with_an_unknown_field_is_refused(template: str) -> None:
    if template == "%":  # a last one stands for itself
        assert format_renderer(template, is_terminal=False)(COLUMNS, "3", [0]) == b"%\n"
        return
    with pytest.raises(typer.BadParameter, match="There is no"):
        format_renderer(template, is_terminal=False)


def test_bodies_in_a_pipe_are_raw_and_the_rows_that_are_wanted() -> None:
    render = format_renderer("%b", is_terminal=False)
    assert render(COLUMNS, "0", [1]) == b"\x1b]0;owned\x07\xff\n\n"
    assert render(COLUMNS, "0", range(2)) == COLUMNS.bodies[0] + b"\n" + COLUMNS.bodies[1] + b"\n"
    assert render(COLUMNS, "0", []) == b""


def test_bodies_on_a_terminal_are_inert() -> None:
    shown = format_renderer("%k %b", is_terminal=True)(COLUMNS, "0", [1])
    assert shown == b" \\e]0;owned\\x07\\xff\\n\n"
    line = terminal_renderer(COLUMNS, "3", [0, 1]).decode()
    first, second = line.splitlines()
    assert re.sub(r"\x1b\[[0-9]*m", "", first).startswith("3:7 07:05:15.255 käy {")
    assert second.endswith(" \\e]0;owned\\x07\\xff\\n")


def test_long_body_is_cut_for_eyes_alone() -> None:
    long = Columns([1], ["1"], [0], [None], [b"x" * 10_000], [b""], [b""], [b""], b"\x75")
    assert b"10,000 bytes" in terminal_renderer(long, "0", [0])
    assert len(format_renderer("%b", is_terminal=True)(long, "0", [0])) == 10_001


# --- the last event of --count --------------------------------------------------------------------


class SlowStdout:
    """Each write waits until the test completes it."""

    is_terminal = False

    def __init__(self) -> None:
        self.writes: list[asyncio.Future[None]] = []

    async def write(self, data: bytes) -> None:
        self.writes.append(asyncio.get_running_loop().create_future())
        await self.writes[-1]


async def test_last_event_of_a_count_is_written_before_the_command_ends() -> None:
    stdout = SlowStdout()
    count = 2 * len(COLUMNS.bodies)
    printer = _EventPrinter(_TailOptions(hub="h", count=count), cast(Any, stdout))
    prints = [asyncio.create_task(printer.print(COLUMNS, partition)) for partition in "012"]
    await asyncio.wait(prints, timeout=0)
    await prints[2]  # nothing was left for it
    assert not printer.finished.is_set()
    stdout.writes[0].set_result(None)
    await prints[0]
    assert not printer.finished.is_set()
    stdout.writes[1].set_result(None)
    await prints[1]
    assert printer.finished.is_set()
