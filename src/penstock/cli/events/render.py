r"""Events as output: `--format '%p %s %o %t %k %b\n'`, lines for a terminal, JSON.

On a terminal, text of an event must not move the cursor, change the title or answer for the user:
control characters and characters that change the direction of text are escaped. A pipe gets the
bytes unchanged. A body that is an AMQP value or sequence is written as its text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec
import typer

from penstock.formats.amqp_values import display_body, to_json_value
from penstock.formats.body_view import escape_line, escape_line_bytes
from penstock.formats.event_sections import DATA
from penstock.formats.event_view import EventView
from penstock.formats.quantities import format_time
from penstock.kernels import Columns

PIPE_FORMAT = "%b"
_SHOWN_BYTES_MAX = 4096  # bytes of a body in a terminal line
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "e": b"\x1b", "\\": b"\\", "c": b""}
_TOKEN = re.compile(r"%(?P<field>.)|\\x(?P<hex>[0-9a-fA-F]{2})|\\(?P<escape>.)", re.DOTALL)

Cell = Callable[[EventView], bytes]
# The output for rows of the columns, which came from a partition, in their order.
EventRenderer = Callable[[Columns, str, Sequence[int]], bytes]


def format_renderer(template: str, *, is_terminal: bool) -> EventRenderer:
    """The renderer of `--format`. Raises typer.BadParameter for an unknown field or escape."""
    parts = _parse_template(template, is_terminal=is_terminal)
    if parts == [_CELLS["b"], b"\n"]:
        return _render_bodies
    cells = [part if callable(part) else _constant(part) for part in parts]

    def render(columns: Columns, partition: str, rows: Sequence[int]) -> bytes:
        events = [EventView(columns, partition, row) for row in rows]
        return b"".join([cell(event) for event in events for cell in cells])

    return render


def _parse_template(template: str, *, is_terminal: bool) -> list[bytes | Cell]:
    parts: list[bytes | Cell] = []
    position = 0
    for token in _TOKEN.finditer(template):
        parts.append(template[position : token.start()].encode())
        position = token.end()
        if token["field"] is not None:
            parts.append(_find_cell(token["field"], is_terminal=is_terminal))
        elif token["hex"] is not None:
            parts.append(bytes.fromhex(token["hex"]))
        elif token["escape"] in _ESCAPES:
            parts.append(_ESCAPES[token["escape"]])
        else:
            allowed = "\\n \\t \\r \\0 \\e \\c \\xHH \\\\"
            raise _template_error(f"\\{token['escape']}", allowed)
    parts.append(template[position:].encode())
    # A line end follows unless the template ends with one, with \0 or with \c (no end).
    if not re.search(r"(?:^|[^\\])(?:\\\\)*\\[n0c]$", template):
        parts.append(b"\n")
    return [part for part in parts if part != b""]


def _find_cell(field: str, *, is_terminal: bool) -> bytes | Cell:
    if field == "%":
        return b"%"
    cell = _CELLS.get(field)
    if cell is None:
        raise _template_error(f"%{field}", " ".join(f"%{name}" for name in (*_CELLS, "%")))
    if is_terminal and field in "bkhc":
        return lambda event: escape_line_bytes(cell(event)).encode()
    return cell


def _template_error(token: str, allowed: str) -> typer.BadParameter:
    return typer.BadParameter(f"There is no '{token}'. Use {allowed}", param_hint="--format")


def _constant(value: bytes) -> Cell:
    return lambda event: value


def _render_bodies(columns: Columns, partition: str, rows: Sequence[int]) -> bytes:
    bodies = columns.bodies
    if columns.body_kinds.count(DATA) != len(bodies):
        bodies = [read_body(EventView(columns, partition, row)) for row in range(len(bodies))]
    chosen = bodies if len(rows) == len(bodies) else [bodies[row] for row in rows]
    return b"\n".join(chosen) + b"\n" if chosen else b""


def read_body(event: EventView) -> bytes:
    """The bytes of the body that people read."""
    return display_body(event.body, event.body_type)


_CELLS: dict[str, Cell] = {
    "p": lambda event: event.partition.encode(),
    "s": lambda event: b"%d" % event.sequence_number,
    "o": lambda event: event.offset.encode(),
    "t": lambda event: format_time(event.enqueued_ms).encode(),
    "T": lambda event: b"%d" % event.enqueued_ms,
    "k": lambda event: (event.partition_key or "").encode(),
    "b": read_body,
    "S": lambda event: b"%d" % len(event.body),
    "h": lambda event: msgspec.json.encode(
        {name: to_json_value(value) for name, value in event.properties.items()}
    ),
    "c": lambda event: str(event.fields.get("content-type", "")).encode(),
}


def terminal_renderer(columns: Columns, partition: str, rows: Sequence[int]) -> bytes:
    """One line per event: position and time, the key, the beginning of the body."""
    lines = []
    for row in rows:
        event = EventView(columns, partition, row)
        key = event.partition_key
        shown_key = "" if key is None else f"\x1b[36m{escape_line(key)}\x1b[0m "
        time = format_time(event.enqueued_ms)[11:-1]
        position = f"\x1b[2m{partition}:{event.sequence_number} {time}\x1b[0m"
        body = read_body(event)
        shown_body = escape_line_bytes(body[:_SHOWN_BYTES_MAX])
        if len(body) > _SHOWN_BYTES_MAX:
            shown_body += f"\x1b[2m… {len(body):,} bytes\x1b[0m"
        lines.append(f"{position} {shown_key}{shown_body}\n")
    return "".join(lines).encode()
