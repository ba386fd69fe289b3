"""Files that a capture query writes, read by others."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import fastavro
from tests.spark.capture.conftest import (
    MB,
    RunCapture,
    avro_files,
    bodies_by_partition,
    drained,
    records,
    settings,
)

from penstock.capture.container import EMPTY_BYTES_MAX, SCHEMA
from penstock.capture.ledger import Ledger
from penstock.spark.capture_after import write_manifests

if TYPE_CHECKING:
    from tests.spark.conftest import MakeHub

# As the documents print it.
FIELDS = [
    {"name": "SequenceNumber", "type": "long"},
    {"name": "Offset", "type": "string"},
    {"name": "EnqueuedTimeUtc", "type": "string"},
    {
        "name": "SystemProperties",
        "type": {"type": "map", "values": ["long", "double", "string", "bytes"]},
    },
    {
        "name": "Properties",
        "type": {"type": "map", "values": ["long", "double", "string", "bytes"]},
    },
    {"name": "Body", "type": ["null", "bytes"]},
]
PARSED = {
    "type": "record",
    "name": "Microsoft.ServiceBus.Messaging.EventData",
    "fields": FIELDS,
}


def test_files_hold_every_event_once_and_in_order(
    make_hub: MakeHub, run_capture: RunCapture, tmp_path: Path
) -> None:
    hub = make_hub(2)
    hub.spread(3000, size=9000)  # 13.5 MB for each: two windows by size
    hub.send([b"\x00\xff"], partition_id="1", properties={"n": 7, "x": 1.5, "t": "ä", "b": b"\x01"})
    run_capture(drained(hub, tmp_path))
    assert bodies_by_partition(tmp_path) == hub.read()
    assert len(avro_files(tmp_path)) == 4
    for file in avro_files(tmp_path):
        with file.open("rb") as opened:
            assert fastavro.reader(opened).writer_schema == PARSED
        numbers = [each["SequenceNumber"] for each in records(file)]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    last = records(avro_files(tmp_path)[-1])[-1]
    assert last["Properties"] == {"n": 7, "x": 1.5, "t": "ä", "b": b"\x01"}


def test_a_batch_that_runs_again_writes_the_same_bytes(
    make_hub: MakeHub, run_capture: RunCapture, tmp_path: Path
) -> None:
    hub = make_hub(2)
    hub.spread(4000, size=3000)
    first, again = tmp_path / "first", tmp_path / "again"
    plan = drained(hub, first, settings=settings(encoding="AvroDeflate"))
    run_capture(plan)
    run_capture(drained(hub, again, settings=plan.settings, stopped_ms=plan.stopped_ms))
    one = {file.relative_to(first): file.read_bytes() for file in avro_files(first)}
    other = {file.relative_to(again): file.read_bytes() for file in avro_files(again)}
    assert one == other
    assert sum(map(len, one.values())) < 2 * MB


def test_ledger_knows_each_file_as_it_lies_there(
    make_hub: MakeHub, run_capture: RunCapture, tmp_path: Path
) -> None:
    hub = make_hub(2)
    hub.spread(100)
    plan = drained(hub, tmp_path)
    run_capture(plan)
    ledger = Ledger(plan.ledger)
    known = ledger.untold()
    ledger.close()
    root = tmp_path / "files" / "captured"
    assert sorted(each.path for each in known) == [
        str(file.relative_to(root)) for file in avro_files(tmp_path)
    ]
    for each in known:
        content = (root / each.path).read_bytes()
        assert (each.bytes, each.sha256) == (len(content), hashlib.sha256(content).hexdigest())
        assert each.count == 50
        assert each.first_ms <= each.last_ms
        assert len(content) > EMPTY_BYTES_MAX
    assert json.loads(SCHEMA)["fields"] == FIELDS
    assert list(plan.spool.iterdir()) == []


def test_a_file_that_storage_lost_is_the_same_again_before_its_manifest(
    make_hub: MakeHub, run_capture: RunCapture, tmp_path: Path
) -> None:
    hub = make_hub(2)
    hub.spread(1000, size=1500)
    plan = drained(hub, tmp_path, settings=settings(encoding="AvroDeflate"))
    run_capture(plan)
    lost = avro_files(tmp_path)[0]
    before = lost.read_bytes()
    lost.unlink()
    ledger = Ledger(plan.ledger)
    assert write_manifests(plan, ledger, is_finished=True) == 1
    ledger.close()
    assert lost.read_bytes() == before
