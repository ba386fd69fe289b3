"""Capture's page: what a file will be called, when its window closed, when it was written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from penstock.management.client import CaptureStatus
from penstock.model.clock import ManualClock
from penstock.portal.pages import capture

CLOSED_MS = 1_700_000_000_000  # 22:13:20 UTC
WRITTEN_MS = CLOSED_MS + 95_000  # 22:14:55 UTC


def visit() -> Any:
    clock = ManualClock()
    return SimpleNamespace(
        portal=SimpleNamespace(clock=clock),
        namespace="contoso",
        form_value=lambda name, default="": str(default),
    )


def status(written_ms: int) -> CaptureStatus:
    file = {"url": "file:///x.avro", "ms": CLOSED_MS, "events": 1, "bytes": 2}
    empty: dict[object, object] = {str: "", int: 0, float: 0.0}
    fields = msgspec.structs.fields(CaptureStatus)
    known = {each.name: empty[each.type] for each in fields if each.required}
    known |= {"state": "Running", "last_file": "file:///x.avro", "last_file_ms": CLOSED_MS}
    return msgspec.convert(
        {**known, "recent_files": [{**file, "written_ms": written_ms}]}, CaptureStatus
    )


def test_close_of_the_window_and_time_of_writing_are_two_things() -> None:
    shown = str(capture._status(visit(), status(WRITTEN_MS)))
    assert shown.count(">Window closed (UTC)<") == 2
    assert shown.count("22:13:20") == 2
    assert shown.count(">Written (UTC)<") == 2
    assert shown.count("22:14:55") == 2


def test_time_of_writing_that_is_not_known_is_a_dash() -> None:
    shown = str(capture._status(visit(), status(0)))
    assert shown.count("22:13:20") == 2
    assert "1970" not in shown


@pytest.mark.parametrize(
    ("encoding", "suffix"),
    [("Avro", ".avro"), ("AvroDeflate", ".avro"), ("Parquet", ".parquet")],
)
def test_preview_has_the_extension_of_the_encoding(encoding: str, suffix: str) -> None:
    hub: Any = SimpleNamespace(name="orders", partition_count=2)
    fields = capture._name_fields(visit(), hub, {"encoding": encoding})
    shown = "".join(str(each) for each in fields)
    assert f"{suffix}</code>" in shown
