"""Captured history as DataFrames, and what `verify` finds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars
import pytest
from tests.spark.capture.conftest import (
    RunCapture,
    avro_files,
    bodies,
    drained,
    records,
    settings,
    verified,
    wait_for_files,
)

import penstock.capture
from penstock.capture.container import EMPTY_BYTES_MAX
from penstock.capture.destinations import Destination, Target
from penstock.spark.capture_compact import write_by_hour
from penstock.spark.capture_query import start_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from tests.spark.conftest import MakeHub, TestHub


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


@pytest.mark.parametrize("encoding", ["AvroDeflate", "Parquet"])
def test_history_has_the_source_s_columns_and_goes_on_in_the_live_hub(
    spark: SparkSession,
    make_hub: MakeHub,
    run_capture: RunCapture,
    tmp_path: Path,
    encoding: str,
) -> None:
    hub = make_hub(2)
    hub.send([b"x" * 100] * 50, partition_id="0", partition_key=None, properties={"a": "ä", "n": 1})
    sent = hub.spread(200, prefix="captured-")
    plan = drained(hub, tmp_path, settings=settings(encoding=encoding))
    run_capture(plan)
    later = hub.spread(60, prefix="later-")
    old = history(spark, hub, tmp_path)
    assert old.columns[:4] == ["body", "partition", "offset", "sequenceNumber"]
    assert sorted(bodies(old)) == sorted([*sent, *[b"x" * 100] * 50])
    whole = history(spark, hub, tmp_path, live=True)
    assert sorted(bodies(whole)) == sorted([*sent, *later, *[b"x" * 100] * 50])
    numbers = whole.groupBy("partition", "sequenceNumber").count().where("count > 1").count()
    assert numbers == 0
    found = verified(plan)
    assert found.is_fine and found.compared == found.events == 250
    if encoding == "Parquet":
        frame = polars.read_parquet(tmp_path / "files" / "captured" / "**" / "*.parquet")
        assert sorted(frame["Body"].to_list()) == sorted(bodies(old))
    if encoding == "AvroDeflate":
        live = spark.read.format("eventhubs").options(**hub.options).load()
        mine, theirs = rows(old), rows(live.select(old.columns))
        assert mine == {key: theirs[key] for key in mine}


def test_history_by_time_is_exact(
    spark: SparkSession, make_hub: MakeHub, run_capture: RunCapture, tmp_path: Path
) -> None:
    hub = make_hub(2)
    hub.spread(100)
    run_capture(drained(hub, tmp_path))
    times = [row[0] for row in history(spark, hub, tmp_path).select("enqueuedTime").collect()]
    middle = sorted(times)[len(times) // 2]
    late = history(spark, hub, tmp_path, start=middle.astimezone()).count()
    early = history(spark, hub, tmp_path, end=middle.astimezone()).count()
    assert late + early == 100 and late == sum(each >= middle for each in times)


def test_history_joined_by_hour_is_the_same_events(
    spark: SparkSession, make_hub: MakeHub, run_capture: RunCapture, tmp_path: Path
) -> None:
    hub = make_hub(2)
    sent = hub.spread(300)
    run_capture(drained(hub, tmp_path))
    joined_at = tmp_path / "joined"
    target = Target(destination=Destination(name="x", url=joined_at.as_uri()), container="")
    for _ in range(2):  # again is the same
        written = write_by_hour(history(spark, hub, tmp_path), target)
        assert sum(row["events"] for row in written) == 300
    assert sorted(str(file.relative_to(joined_at)) for file in joined_at.rglob("*.parquet")) == [
        row["path"] for row in written
    ]
    joined = spark.read.parquet(str(joined_at))
    assert sorted(bodies(joined)) == sorted(sent)
    assert {"date", "hour"} <= set(joined.columns)


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


def test_windows_without_events_are_valid_files_for_all_readers(
    spark: SparkSession, make_hub: MakeHub, run_capture: RunCapture, tmp_path: Path
) -> None:
    hub = make_hub(2)
    hub.send([b"only here"], partition_id="0")
    plan = drained(hub, tmp_path, stops=None, settings=settings(interval_s=1))
    query = start_query(spark, plan, trigger="100 milliseconds")
    try:
        wait_for_files(tmp_path, 4, query)
    finally:
        query.stop()
    empty = [file for file in avro_files(tmp_path) if file.stat().st_size <= EMPTY_BYTES_MAX]
    assert len(empty) >= 2
    assert bodies(history(spark, hub, tmp_path)) == [b"only here"]
    for file in empty:
        assert records(file) == []
