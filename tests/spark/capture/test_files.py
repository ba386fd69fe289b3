"""Files that a capture query writes, read by others."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import fastavro
import pytest
from tests.spark.capture.conftest import (
    MB,
    RunCapture,
    avro_files,
    bodies_by_partition,
    drained,
    records,
    run_plan,
    settings,
)
from tests.spark.conftest import TestHub, new_hub

from penstock.capture.container import EMPTY_BYTES_MAX, SCHEMA
from penstock.spark.capture.announcements import write_manifests
from penstock.spark.capture.plan import CapturePlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.conftest import Server

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


class Scene(NamedTuple):
    """A hub, and where its files are."""

    hub: TestHub
    folder: Path
    plan: CapturePlan


@pytest.fixture(scope="module")
def scene(spark: SparkSession, broker: Server, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    folder = tmp_path_factory.mktemp("files")
    hub = new_hub(broker, 2)
    hub.spread(3000, size=9000)  # 13.5 MB for each: two windows by size
    hub.send([b"\x00\xff"], partition_id="1", properties={"n": 7, "x": 1.5, "t": "ä", "b": b"\x01"})
    plan = drained(hub, folder, settings=settings(encoding="AvroDeflate"))
    run_plan(spark, plan)
    return Scene(hub, folder, plan)


def test_files_hold_every_event_once_and_in_order(scene: Scene) -> None:
    assert bodies_by_partition(scene.folder) == scene.hub.read()
    files = avro_files(scene.folder)
    assert len(files) == 4
    for file in files:
        with file.open("rb") as opened:
            assert fastavro.reader(opened).writer_schema == PARSED
        numbers = [each["SequenceNumber"] for each in records(file)]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    last = records(files[-1])[-1]
    assert last["Properties"] == {"n": 7, "x": 1.5, "t": "ä", "b": b"\x01"}
    assert json.loads(SCHEMA)["fields"] == FIELDS


def test_a_batch_that_runs_again_writes_the_same_bytes(
    scene: Scene, run_capture: RunCapture, tmp_path: Path
) -> None:
    plan = scene.plan
    run_capture(drained(scene.hub, tmp_path, settings=plan.settings, off_ms=plan.off_ms))
    one = {file.relative_to(scene.folder): file.read_bytes() for file in avro_files(scene.folder)}
    other = {file.relative_to(tmp_path): file.read_bytes() for file in avro_files(tmp_path)}
    assert one == other
    assert sum(map(len, one.values())) < 2 * MB


@pytest.mark.parametrize("lost", ["emptied", "removed"])
def test_capture_continues_after_a_power_cut_emptied_its_checkpoint(
    broker: Server, run_capture: RunCapture, tmp_path: Path, lost: str
) -> None:
    """Spark does not flush its entries: after a power cut the newest are empty or not there."""
    hub = new_hub(broker, 2)
    hub.spread(300)
    run_capture(drained(hub, tmp_path))
    before = {file: file.read_bytes() for file in avro_files(tmp_path)}
    hub.spread(300)
    plan = drained(hub, tmp_path)
    for folder in ("offsets", "commits"):  # the last commit may not have been written at all
        entries = sorted((plan.checkpoint / folder).glob("[0-9]*"), key=lambda file: int(file.name))
        for file in entries[-1:]:
            for each in (file, file.with_name(f".{file.name}.crc")):
                each.write_bytes(b"") if lost == "emptied" else each.unlink(missing_ok=True)
    run_capture(plan)
    assert bodies_by_partition(tmp_path) == hub.read()
    assert {file: file.read_bytes() for file in before} == before
    assert Path(plan.state, "checkpoint.unusable").is_dir()


def test_ledger_knows_each_file_as_it_lies_there(scene: Scene) -> None:
    ledger = scene.plan.open_state()
    known = ledger.unannounced_files()
    ledger.close()
    root = scene.folder / "files" / "captured"
    assert sorted(each.path for each in known) == [
        str(file.relative_to(root)) for file in avro_files(scene.folder)
    ]
    for each in known:
        content = (root / each.path).read_bytes()
        assert (each.bytes, each.sha256) == (len(content), hashlib.sha256(content).hexdigest())
        assert each.count == len(records(root / each.path))
        assert each.first_ms <= each.last_ms
        assert len(content) > EMPTY_BYTES_MAX
    assert list(scene.plan.spool.iterdir()) == []


def test_a_file_that_storage_lost_is_the_same_again_before_its_manifest(scene: Scene) -> None:
    lost = avro_files(scene.folder)[0]
    before = lost.read_bytes()
    lost.unlink()
    ledger = scene.plan.open_state()
    assert write_manifests(scene.plan, ledger) >= 1
    ledger.close()
    assert lost.read_bytes() == before
