"""Captured history as DataFrames, and what `verify` finds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from tests.spark.capture.conftest import (
    RunCapture,
    avro_files,
    bodies,
    drained,
    run_plan,
    settings,
    verified,
)
from tests.spark.conftest import TestHub, new_hub

import penstock.capture
from penstock.capture.destinations import Destination, DestinationFolder
from penstock.spark.capture.compact import write_by_hour
from penstock.spark.capture.plan import CapturePlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from tests.conftest import Server
    from tests.spark.conftest import MakeHub


# Avro has no booleans: there they are texts.
PROPERTIES = {"a": 'ä "', "n": 1, "digits": "7", "x": 0.5, "raw": b"\xff", "utf": b"hi", "no": ""}


def history(spark: SparkSession, hub: TestHub, tmp_path: Path, **options: Any) -> DataFrame:
    frame: DataFrame = penstock.capture.read(
        spark,
        hub.name,
        url=(tmp_path / "files").as_uri(),
        container="captured",
        namespace=hub.server["namespace"],
        connection_string=hub.connection_string,
        **options,
    )
    return frame


def rows(frame: DataFrame) -> dict[tuple[str, int], Any]:
    return {(row["partition"], row["sequenceNumber"]): row.asDict() for row in frame.collect()}


class Scene(NamedTuple):
    """A hub that was captured, and went on: of partition 2 there is no file."""

    hub: TestHub
    folder: Path
    plan: CapturePlan
    captured: list[bytes]
    later: list[bytes]


def filled(server: Server, spark: SparkSession, folder: Path, encoding: str) -> Scene:
    hub = new_hub(server, 3)
    marked = [b"x" * 100] * 50
    given = PROPERTIES | ({"yes": True} if encoding == "Parquet" else {})
    hub.send(marked, partition_id="0", properties=given)
    plain = [f"captured-{number}".encode() for number in range(200)]
    hub.send(plain[:80], partition_id="0")
    hub.send(plain[80:], partition_id="1")
    plan = drained(hub, folder, settings=settings(encoding=encoding))
    run_plan(spark, plan)
    later = [f"later-{number}".encode() for number in range(25)]
    hub.send(later[:20], partition_id="0")
    hub.send(later[20:], partition_id="2")
    return Scene(hub, folder, plan, [*marked, *plain], later)


@pytest.fixture(scope="module")
def scene(spark: SparkSession, broker: Server, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return filled(broker, spark, tmp_path_factory.mktemp("history"), "AvroDeflate")


def check_history(spark: SparkSession, scene: Scene) -> None:
    old = history(spark, scene.hub, scene.folder)
    assert old.columns[:4] == ["body", "partition", "offset", "sequenceNumber"]
    assert sorted(bodies(old)) == sorted(scene.captured)
    whole = history(spark, scene.hub, scene.folder, live=True)
    numbers = [(row[0], row[1]) for row in whole.select("partition", "sequenceNumber").collect()]
    assert len(numbers) == len(set(numbers)) == len(scene.captured) + len(scene.later)
    found = verified(scene.plan)
    assert found.is_fine and found.compared == found.events == len(scene.captured)
    live = spark.read.format("eventhubs").options(**scene.hub.options).load()
    mine, theirs = rows(old), rows(live.select(old.columns))
    assert mine == {key: theirs[key] for key in mine}


def test_history_has_the_source_s_columns_and_goes_on_in_the_live_hub(
    spark: SparkSession, scene: Scene
) -> None:
    check_history(spark, scene)


def test_history_of_parquet_files_is_the_same(
    spark: SparkSession, broker: Server, tmp_path: Path
) -> None:
    check_history(spark, filled(broker, spark, tmp_path, "Parquet"))


def test_history_by_time_is_exact(spark: SparkSession, scene: Scene) -> None:
    frame = history(spark, scene.hub, scene.folder).select("enqueuedTime")
    times = [row[0] for row in frame.collect()]
    middle = sorted(times)[len(times) // 2]
    late = history(spark, scene.hub, scene.folder, start=middle.astimezone()).count()
    early = history(spark, scene.hub, scene.folder, end=middle.astimezone()).count()
    assert late + early == len(times) and late == sum(each >= middle for each in times)


def test_history_joined_by_hour_is_the_same_events(
    spark: SparkSession, scene: Scene, tmp_path: Path
) -> None:
    target = DestinationFolder(
        destination=Destination(name="x", url=tmp_path.as_uri()), container="joined"
    )
    for _ in range(2):  # again is the same
        written = write_by_hour(
            history(spark, scene.hub, scene.folder), target, namespace="ns", hub=scene.hub.name
        )
        assert sum(row["events"] for row in written) == len(scene.captured)
    root = tmp_path / "joined"
    assert sorted(str(file.relative_to(root)) for file in root.rglob("*.parquet")) == [
        row["path"] for row in written
    ]
    joined = spark.read.parquet(str(root))
    assert sorted(bodies(joined)) == sorted(scene.captured)
    assert {"date", "hour"} <= set(joined.columns)


def test_a_bridge_has_no_gap_and_no_overlap(
    spark: SparkSession, scene: Scene, tmp_path: Path
) -> None:
    hub = scene.hub
    old, stream = penstock.capture.bridge(
        spark,
        hub.name,
        url=(scene.folder / "files").as_uri(),
        container="captured",
        namespace=hub.server["namespace"],
        connection_string=hub.connection_string,
    )
    assert stream.isStreaming and stream.columns == old.columns
    joined = tmp_path / "joined"

    def follow() -> None:
        query = (
            stream.writeStream.format("parquet")
            .option("path", str(joined))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()

    follow()
    hub.send([b"after the bridge was built"] * 30, partition_id="1")
    follow()
    whole = old.unionByName(spark.read.parquet(str(joined)))
    found = whole.select("partition", "sequenceNumber").collect()
    counts = {key: len(each) for key, each in hub.read().items()}
    assert counts == {"0": 150, "1": 150, "2": 5}
    assert sorted((row[0], row[1]) for row in found) == [
        (key, number) for key, count in counts.items() for number in range(count)
    ]
    assert old.count() == len(scene.captured)


def test_verify_names_what_is_missing_double_different_and_damaged(
    make_hub: MakeHub, run_capture: RunCapture, tmp_path: Path
) -> None:
    hub = make_hub(2)
    hub.spread(2400, size=9500)
    plan = drained(hub, tmp_path, settings=settings(size_bytes=2_000_000))
    run_capture(plan)
    assert verified(plan).is_fine
    files = avro_files(tmp_path)
    assert len(files) >= 10
    kept = files[1].read_bytes()
    files[1].unlink()
    gone = verified(plan)
    assert gone.missing > 0 and "are in no file" in gone.problems[0]
    files[1].write_bytes(kept)
    again = files[1].with_name("59.avro")
    again.write_bytes(kept)
    assert verified(plan).double == gone.missing
    again.unlink()
    changed = bytearray(kept)
    changed[kept.index(b"." * 100) + 50] ^= 1
    files[1].write_bytes(changed)
    assert verified(plan).different == 1
    files[1].write_bytes(kept[:-5])
    assert verified(plan).damaged_files == 1
