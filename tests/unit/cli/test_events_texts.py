"""What people write and see: formats, filters, places in a partition, rates, speeds."""

from __future__ import annotations

import re
import unicodedata
from datetime import UTC, datetime

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from penstock.amqp import types as t
from penstock.amqp.encoder import encode
from penstock.amqp.message import Message, SequenceBody, ValueBody, encode_message
from penstock.cli.events.event_sender import PublishRate, parse_rate
from penstock.cli.events.render import escape_control_bytes, format_renderer, terminal_renderer
from penstock.cli.events.replay import _factor
from penstock.cli.events.send import _property
from penstock.cli.filtering import FilteredEvent, compile_filter
from penstock.cli.places import Position, PositionKind, parse_position, position_before_sequence
from penstock.kernels import Columns

NOW = datetime(2026, 11, 16, 8, 0, tzinfo=UTC)
COLUMNS = Columns(
    [7, 8],
    ["70", "80"],
    [1_794_812_715_255, 1_794_812_715_256],
    ["käy", None],
    [b'{"t": 31, "list": [1, {"deep": "x"}]}', b"\x1b]0;owned\x07\xff\n"],
    [encode({"kind": "warm", "n": 5}), b""],
    [b"", b""],
    [b"", b""],
    b"\x75\x75",
)

# What plain AMQP clients (Qpid Proton, rhea) and .NET send.
VALUES = Columns(
    [1, 2, 3],
    ["10", "20", "30"],
    [0, 0, 0],
    [None, None, None],
    [
        encode_message(Message(body=ValueBody('{"a": 1}'))),
        encode_message(Message(body=ValueBody(b"\x1bbin"))),
        encode_message(Message(body=SequenceBody([[1, "x"]]))),
    ],
    [
        encode({"price": t.Decimal128(bytes.fromhex("0c3e" + "00" * 13 + "01"))}),
        encode({"span": t.Described(t.Symbol("com.microsoft:timespan"), 15_000_000)}),
        b"",
    ],
    [b"", b"", b""],
    [b"", b"", b""],
    b"\x77\x77\x76",
)


@pytest.mark.parametrize("template", ["%b", "%b\\c"])
def test_body_that_is_an_amqp_value_is_written_as_text(template: str) -> None:
    render = format_renderer(template, is_terminal=False)
    end = b"" if template.endswith("c") else b"\n"
    assert render(VALUES, "0", [0]) == b'{"a": 1}' + end
    assert render(VALUES, "0", [0, 1, 2]) == end.join([b'{"a": 1}', b"\x1bbin", b'[1,"x"]', b""])


def test_body_that_is_an_amqp_value_is_text_on_a_terminal() -> None:
    lines = terminal_renderer(VALUES, "0", [0, 1, 2]).decode().splitlines()
    assert [line.rsplit("m ", 1)[1] for line in lines] == ['{"a": 1}', "\\ebin", '[1,"x"]']


@pytest.mark.parametrize(
    ("expression", "rows"),
    [
        ("json.a == 1", [0]),
        ("'bin' in body", [1]),
        ("json[1] == 'x'", [2]),
        ("properties.price == 0.1", [0]),
        ("properties.price < 0.2", [0]),
        ("properties.span == '00:00:01.5000000'", [1]),
    ],
)
def test_filter_reads_amqp_values(expression: str, rows: list[int]) -> None:
    wanted = compile_filter(expression)
    assert [row for row in range(3) if wanted(FilteredEvent(VALUES, "0", row))] == rows


def test_headers_have_the_text_of_decimals_and_described_values() -> None:
    render = format_renderer("%h", is_terminal=False)
    assert b'"text":"0.1"' in render(VALUES, "0", [0])
    assert b'"text":"00:00:01.5000000"' in render(VALUES, "0", [1])


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


@given(st.binary(max_size=100) | st.text(max_size=50).map(str.encode))
def test_inert_text_has_nothing_that_acts(data: bytes) -> None:
    shown = escape_control_bytes(data)
    assert all(
        unicodedata.category(each) not in ("Cc", "Zl", "Zp") and each not in "\u200e\u202e\u2066"
        for each in shown
    )


def test_long_body_is_cut_for_eyes_alone() -> None:
    long = Columns([1], ["1"], [0], [None], [b"x" * 10_000], [b""], [b""], [b""], b"\x75")
    assert b"10,000 bytes" in terminal_renderer(long, "0", [0])
    assert len(format_renderer("%b", is_terminal=True)(long, "0", [0])) == 10_001


# --- --filter -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "rows"),
    [
        ("json.t > 30", [0]),
        ("json.t > 31 or key is None", [1]),
        ("json['list'][1].deep == 'x'", [0]),
        ("json.no.such.thing == null", [0, 1]),
        ("json.no > 5", []),
        ("'owned' in body", [1]),
        ("matches(body, '^.t')", []),
        ("matches(body, 't.: 3[0-9]')", [0]),
        ("properties.kind in ('warm', 'hot') and properties.n == 5", [0]),
        ("not properties.kind", [1]),
        ("seq >= 8", [1]),
        ("partition == '3' and offset != '70'", [1]),
        ("time < '2026-11-16T07:05:15.256Z'", [0]),
        ("7 <= seq < 8", [0]),
        ("size > -1 and len(body) > 30", [0]),
        ("number(offset) == 80", [1]),
        ("lower(key) == 'käy'", [0]),
        ("true", [0, 1]),
        ("content_type is None and system == {}", None),
        ("json.t.__class__", []),
    ],
)
def test_filter_chooses_events(expression: str, rows: list[int] | None) -> None:
    if rows is None:  # a map cannot be written here
        with pytest.raises(typer.BadParameter):
            compile_filter(expression)
        return
    wanted = compile_filter(expression)
    assert [row for row in range(2) if wanted(FilteredEvent(COLUMNS, "3", row))] == rows


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('true')",
        "open('x')",
        "body.format(1)",
        "(lambda: 1)()",
        "[x for x in body]",
        "body + body",
        "9 ** 9 ** 9",
        "unknown == 1",
        "matches(body, key)",
        "matches(body, '(')",
        "matches(body)",
        "body ==",
        "-'a'",
        "x" * 3000,
        "not " * 200 + "1",
        "(" * 300 + ")" * 300,
        "f'{body}'",
    ],
)
def test_filter_that_is_more_than_a_question_is_refused(expression: str) -> None:
    with pytest.raises(typer.BadParameter, match="cannot be used"):
        compile_filter(expression)


# --- places ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", Position(PositionKind.EARLIEST)),
        ("Latest", Position(PositionKind.LATEST)),
        ("-100", Position(PositionKind.LAST, 100)),
        ("0", Position(PositionKind.SEQUENCE_NUMBER, 0)),
        ("1234", Position(PositionKind.SEQUENCE_NUMBER, 1234)),
        ("@5678", Position(PositionKind.OFFSET, 0, "5678")),
        ("-15m", Position(PositionKind.TIME, 1_794_815_100_000)),
        ("2026-11-16T08:00:00Z", Position(PositionKind.TIME, 1_794_816_000_000)),
        ("2026-11-16 08:00", Position(PositionKind.TIME, 1_794_816_000_000)),
        ("2026-11-16T10:00:00+02:00", Position(PositionKind.TIME, 1_794_816_000_000)),
        ("2026-11-16", Position(PositionKind.TIME, 1_794_787_200_000)),
        ("8:00", Position(PositionKind.TIME, 1_794_816_000_000)),
        ("08:00:00.5", Position(PositionKind.TIME, 1_794_816_000_500)),
    ],
)
def test_place_is_understood(text: str, place: Position) -> None:
    assert parse_position(text, now=NOW) == place


@pytest.mark.parametrize("text", ["", "yesterday", "@", "@a'b", "-", "-5x", "1.5", "25:00", "--1"])
def test_place_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_position(text, now=NOW)


def test_place_becomes_a_selector() -> None:
    def selector(text: str) -> str:
        return parse_position(text, now=NOW).position.selector.removeprefix(
            "amqp.annotation.x-opt-"
        )

    assert selector("earliest") == "offset > '-1'"
    assert selector("latest") == "offset > '@latest'"
    assert selector("7") == "sequence-number >= '7'"
    assert selector("@70") == "offset >= '70'"
    # What was stored at that very millisecond is wanted too.
    assert selector("2026-11-16T08:00:00Z") == "enqueued-time > '1794815999999'"
    assert position_before_sequence(8).selector.endswith("sequence-number > '7'")
    assert position_before_sequence(0).selector.endswith("offset > '-1'")


# --- rates ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rate"),
    [("1000/s", 1000.0), ("60/min", 1.0), ("5", 5.0), ("0.5/s", 0.5), ("36/h", 0.01)],
)
def test_rate_is_understood(text: str, rate: float) -> None:
    assert parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["", "fast", "0/s", "-5", "5/day"])
def test_rate_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_rate(text)


def test_paced_batches_are_small_enough_to_look_even() -> None:
    assert PublishRate(None).batch_events(5000) == 5000
    assert PublishRate(1000.0).batch_events(5000) == 50
    assert PublishRate(1.0).batch_events(5000) == 1


@pytest.mark.parametrize(("text", "factor"), [("2x", 2.0), ("0.5X", 0.5), ("3", 3.0)])
def test_speed_is_understood(text: str, factor: float) -> None:
    assert _factor(text) == factor


@pytest.mark.parametrize("text", ["0x", "x", "fast", "-1x"])
def test_speed_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        _factor(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a=b", ("a", "b")),
        ("a=", ("a", "")),
        ("a=b=c", ("a", "b=c")),
        ("n:=5", ("n", 5)),
        ("t:=true", ("t", True)),
        ("x:=null", ("x", None)),
    ],
)
def test_property_is_understood(text: str, found: tuple[str, object]) -> None:
    assert _property(text) == found


@pytest.mark.parametrize("text", ["a", "=b", ":=5", "a:={}", "a:=nonsense"])
def test_property_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        _property(text)
