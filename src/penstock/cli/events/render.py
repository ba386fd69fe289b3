r"""How events are written: `--format '%p %s %o %t %k %b\n'`, lines for a terminal, JSON.

Bodies, keys and properties come from strangers. On a terminal nothing of them may move the cursor,
change the title or answer for the user: control characters, and those that change the direction of
text, are shown as escapes. In a pipe bytes stay what they are. A body that is an AMQP value or
sequence is written as its text (`penstock.client.values.display_body`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Protocol

import typer

from penstock.cli.plain import to_json_value
from penstock.cli.records import format_enqueued_time, to_json_lines, to_records
from penstock.cli.sections import BODY_KINDS, DATA, field_values, map_values
from penstock.client.values import display_body
from penstock.kernels import Columns

PIPE_FORMAT = "%b"
_SHOWN_BYTES_MAX = 4096  # of a body in a line for eyes
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "e": b"\x1b", "\\": b"\\", "c": b""}
_TOKEN = re.compile(r"%(?P<field>.)|\\x(?P<hex>[0-9a-fA-F]{2})|\\(?P<escape>.)", re.DOTALL)
# C0 and C1 controls, DEL, line separators, bidirectional controls and other invisible ones.
_INERT = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_NAMES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\x1b": "\\e", "\0": "\\0"}

Cell = Callable[[Columns, str, int], bytes]


class EventRenderer(Protocol):
    """Bytes for the rows that are wanted, in their order."""

    def __call__(self, columns: Columns, partition: str, rows: Sequence[int]) -> bytes: ...


def escape_control_bytes(data: bytes) -> str:
    r"""Text that a terminal only shows: b"\x1b[2J\xff" -> "\\e[2J\\xff"."""
    return escape_control_characters(data.decode("utf-8", "backslashreplace"))


def escape_control_characters(text: str) -> str:
    return _INERT.sub(_escape_match, text)


def _escape_match(found: re.Match[str]) -> str:
    character = found[0]
    code = ord(character)
    return _NAMES.get(character) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


# --- --format -------------------------------------------------------------------------------------


def format_renderer(template: str, *, is_terminal: bool) -> EventRenderer:
    """Raises typer.BadParameter for a field that there is not."""
    parts = _parts(template, is_terminal=is_terminal)
    if parts == [_CELLS["b"], b"\n"]:
        return _bodies
    cells = [each if callable(each) else _constant(each) for each in parts]

    def render(columns: Columns, partition: str, rows: Sequence[int]) -> bytes:
        return b"".join([cell(columns, partition, row) for row in rows for cell in cells])

    return render


def _parts(template: str, *, is_terminal: bool) -> list[bytes | Cell]:
    parts: list[bytes | Cell] = []
    position = 0
    for token in _TOKEN.finditer(template):
        parts.append(template[position : token.start()].encode())
        position = token.end()
        if token["field"] is not None:
            parts.append(_cell(token["field"], is_terminal=is_terminal))
        elif token["hex"] is not None:
            parts.append(bytes.fromhex(token["hex"]))
        elif token["escape"] in _ESCAPES:
            parts.append(_ESCAPES[token["escape"]])
        else:
            raise _template_error(
                f"There is no '\\{token['escape']}'", "\\n \\t \\r \\0 \\e \\c \\xHH \\\\"
            )
    parts.append(template[position:].encode())
    # One event a line, unless the template ends its lines itself, or says \c: no end at all.
    if not re.search(r"(?:^|[^\\])(?:\\\\)*\\[n0c]$", template):
        parts.append(b"\n")
    return [each for each in parts if each != b""]


def _cell(field: str, *, is_terminal: bool) -> bytes | Cell:
    if field == "%":
        return b"%"
    cell = _CELLS.get(field)
    if cell is None:
        raise _template_error(
            f"There is no %{field}", " ".join(f"%{name}" for name in (*_CELLS, "%"))
        )
    if is_terminal and field in "bkhc":
        return lambda columns, partition, row: escape_control_bytes(
            cell(columns, partition, row)
        ).encode()
    return cell


def _template_error(what: str, there_is: str) -> typer.BadParameter:
    return typer.BadParameter(f"{what}: there is {there_is}", param_hint="--format")


def _constant(value: bytes) -> Cell:
    return lambda columns, partition, row: value


def _bodies(columns: Columns, partition: str, rows: Sequence[int]) -> bytes:
    bodies = columns.bodies
    if columns.body_kinds.count(DATA) != len(bodies):
        bodies = [read_body(columns, row) for row in range(len(bodies))]
    chosen = bodies if len(rows) == len(bodies) else [bodies[row] for row in rows]
    return b"\n".join(chosen) + b"\n" if chosen else b""


def read_body(columns: Columns, row: int) -> bytes:
    """The bytes of a body that people read."""
    return display_body(columns.bodies[row], BODY_KINDS[columns.body_kinds[row]])


_CELLS: dict[str, Cell] = {
    "p": lambda columns, partition, row: partition.encode(),
    "s": lambda columns, partition, row: b"%d" % columns.sequence_numbers[row],
    "o": lambda columns, partition, row: columns.offsets[row].encode(),
    "t": lambda columns, partition, row: format_enqueued_time(columns.enqueued_ms[row]).encode(),
    "T": lambda columns, partition, row: b"%d" % columns.enqueued_ms[row],
    "k": lambda columns, partition, row: (columns.partition_keys[row] or "").encode(),
    "b": lambda columns, partition, row: read_body(columns, row),
    "S": lambda columns, partition, row: b"%d" % len(columns.bodies[row]),
    "h": lambda columns, partition, row: _headers(columns.properties[row]),
    "c": lambda columns, partition, row: _content_type(columns.message_properties[row]),
}


def _headers(encoded: bytes) -> bytes:
    import msgspec

    return msgspec.json.encode({n: to_json_value(v) for n, v in map_values(encoded).items()})


def _content_type(encoded: bytes) -> bytes:
    return str(field_values(encoded).get("content-type", "")).encode()


# --- others ---------------------------------------------------------------------------------------


def json_renderer(columns: Columns, partition: str, rows: Sequence[int]) -> bytes:
    """An object a line."""
    return to_json_lines(to_records(columns, partition, rows))


def terminal_renderer(columns: Columns, partition: str, rows: Sequence[int]) -> bytes:
    """One line for eyes: where and when dim, the key, the body as far as it fits."""
    out = []
    for row in rows:
        key = columns.partition_keys[row]
        shown = "" if key is None else f"\x1b[36m{escape_control_characters(key)}\x1b[0m "
        when = format_enqueued_time(columns.enqueued_ms[row])[11:-1]
        place = f"\x1b[2m{partition}:{columns.sequence_numbers[row]} {when}\x1b[0m"
        out.append(f"{place} {shown}{_truncate_body(read_body(columns, row))}\n")
    return "".join(out).encode()


def _truncate_body(body: bytes) -> str:
    if len(body) <= _SHOWN_BYTES_MAX:
        return escape_control_bytes(body)
    return f"{escape_control_bytes(body[:_SHOWN_BYTES_MAX])}\x1b[2m… {len(body):,} bytes\x1b[0m"
