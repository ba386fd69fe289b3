"""Capture's page: what a file will be called, when its window closed, when it was written."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.unit.portal.pages import NAMESPACE, PageTest, hub

from penstock.capture.status import CaptureState, CaptureStatus

CLOSED_MS = 1_700_000_000_000  # 22:13:20 UTC
WRITTEN_MS = CLOSED_MS + 95_000  # 22:14:55 UTC


def status(written_ms: int) -> CaptureStatus:
    file = {"url": "file:///x.avro", "ms": CLOSED_MS, "events": 1, "bytes": 2}
    empty: dict[object, object] = {str: "", int: 0, float: 0.0, CaptureState: "Running"}
    fields = msgspec.structs.fields(CaptureStatus)
    known = {each.name: empty[each.type] for each in fields if each.required}
    known |= {"namespace": NAMESPACE, "hub": "orders"}
    known |= {"last_file": "file:///x.avro", "last_file_ms": CLOSED_MS}
    return msgspec.convert(
        {**known, "recent_files": [{**file, "written_ms": written_ms}]}, CaptureStatus
    )


def shown(folder: Path, written_ms: int) -> str:
    answers = {"hubs": [hub("orders")], "capture_status": [status(written_ms)]}
    page = PageTest(folder, answers).get("/hubs/orders/capture")
    return page.partition("<h2>Last file</h2>")[2].partition("<form")[0]


def test_close_of_the_window_and_time_of_writing_are_two_things(tmp_path: Path) -> None:
    made = shown(tmp_path, WRITTEN_MS)
    assert made.count(">Window closed<") == 2
    assert made.count("22:13:20<") == 2
    assert made.count(">Written<") == 2
    assert made.count("22:14:55<") == 2


def test_time_of_writing_that_is_not_known_is_a_dash(tmp_path: Path) -> None:
    made = shown(tmp_path, 0)
    assert made.count("22:13:20<") == 2
    assert "1970" not in made


@pytest.mark.parametrize(
    ("encoding", "suffix"),
    [("Avro", ".avro"), ("AvroDeflate", ".avro"), ("Parquet", ".parquet")],
)
def test_preview_has_the_extension_of_the_encoding(
    tmp_path: Path, encoding: str, suffix: str
) -> None:
    orders = hub("orders", captureDescription={"encoding": encoding})
    made = PageTest(tmp_path, {"hubs": [orders]}).get("/hubs/orders/capture")
    assert f"{suffix}</code>" in made
