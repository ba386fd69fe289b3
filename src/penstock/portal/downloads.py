"""Events as files: JSON lines, CSV for spreadsheets, Avro as Capture writes it.

What is in them is a stranger's. JSON says everything by itself. A spreadsheet takes a cell that
begins like a formula for one, and a terminal obeys control characters: both are shown as text.
"""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Sequence

from starlette.responses import Response

from penstock.client import EventData
from penstock.client.values import display_body
from penstock.model.errors import PenstockError
from penstock.portal.event_browser import EventRow
from penstock.portal.finding import format_value
from penstock.portal.html import INVISIBLE, escape_invisible

FORMATS = {"jsonl": "JSON lines", "csv": "CSV", "avro": "Avro"}
_COLUMNS = (
    "partition", "sequence_number", "offset", "enqueued_time", "partition_key", "properties",
    "body", "body_base64", "body_type",
)  # fmt: skip
# A cell that begins so is a formula to some program; the wide twins are to some others.
_FORMULA = tuple("=+-@|%\t\r\n\uff1d\uff0b\uff0d\uff20")


def download_response(rows: Sequence[EventRow], hub: str, kind: str) -> Response:
    """As a file named after the hub; JSON lines unless another kind is known."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in hub)
    if kind == "avro":
        from penstock.portal.avro import container

        content, media = container([row.event for row in rows]), "application/octet-stream"
    elif kind == "csv":
        content, media = to_csv(rows), "text/csv; charset=utf-8"
    else:
        kind, content, media = "jsonl", to_json_lines(rows), "application/x-ndjson"
    return Response(content, media_type=media, headers=attachment_headers(f"{name}.{kind}"))


def attachment_headers(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{name}"'}


def to_json_lines(rows: Sequence[EventRow]) -> bytes:
    """One object a line. Characters that hide or command are written by their number, which to
    JSON is the same."""
    text = "".join(json.dumps(_record(row), ensure_ascii=False) + "\n" for row in rows)
    return INVISIBLE.sub(lambda found: json.dumps(found[0])[1:-1], text).encode()


def to_csv(rows: Sequence[EventRow]) -> bytes:
    """With a mark that makes spreadsheets read UTF-8. For looking at: text that begins like a
    formula gets an apostrophe, and hidden characters their number."""
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerow(_COLUMNS)
    for row in rows:
        record = _record(row)
        record["properties"] = json.dumps(record["properties"], ensure_ascii=False)
        writer.writerow([_cell(record.get(name)) for name in _COLUMNS])
    return ("\ufeff" + text.getvalue()).encode()


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return escape_invisible("'" + text if text.lstrip(" ").startswith(_FORMULA) else text)


def _record(row: EventRow) -> dict[str, object]:
    event = row.event
    record: dict[str, object] = {
        "partition": row.partition,
        "sequence_number": event.sequence_number,
        "offset": event.offset,
        "enqueued_time": stored_at(event).replace(" ", "T") + "Z",
        "partition_key": event.partition_key,
        "properties": dict(properties(event)),
    }
    if event.body_type != "data":
        record["body_type"] = event.body_type
        record["body_base64"] = base64.b64encode(event.body).decode()  # its encoded sections
    try:
        record["body"] = display_body(event.body, event.body_type).decode()
    except UnicodeDecodeError:
        record["body_base64"] = base64.b64encode(event.body).decode()
    return record


def stored_at(event: EventData) -> str:
    when = event.enqueued_time
    return "" if when is None else when.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def properties(event: EventData) -> list[tuple[str, str]]:
    try:
        return [(str(name), format_value(value)) for name, value in event.properties.items()]
    except PenstockError as error:
        return [("(damaged)", str(error))]
