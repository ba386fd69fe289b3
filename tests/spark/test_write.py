"""The sink: rows become events, by key, by partition or in turn."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.model.partitioner import partition_for_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from tests.spark.conftest import MakeHub, TestHub


def write(frame: DataFrame, hub: TestHub, **options: Any) -> None:
    frame.write.format("eventhubs").options(**hub.options, **options).mode("append").save()


def test_rows_without_key_go_to_partitions_in_turn(spark: SparkSession, make_hub: MakeHub) -> None:
    hub = make_hub(4)
    rows = spark.range(600).selectExpr("rpad(cast(id as string), 1000, '.') as body")
    write(rows.coalesce(1), hub)
    found = hub.read()
    assert sorted(body for bodies in found.values() for body in bodies) == sorted(
        str(number).ljust(1000, ".").encode() for number in range(600)
    )
    assert all(found.values()), "600 KB are more than one partition's turn"


def test_keyed_rows_go_where_the_service_would_put_them(
    spark: SparkSession, make_hub: MakeHub
) -> None:
    hub = make_hub(4)
    rows = spark.range(400).selectExpr(
        "cast(concat('k', id % 7, '-', id) as binary) as body",
        "concat('k', id % 7) as partitionKey",
        "map('device', concat('k', id % 7), 'none', null) as properties",
    )
    write(rows, hub)
    found = hub.read()
    for number in range(7):
        key = f"k{number}"
        place = str(partition_for_key(key, 4))
        mine = [body for body in found[place] if body.startswith(key.encode() + b"-")]
        assert sorted(int(body.partition(b"-")[2]) for body in mine) == [
            each for each in range(400) if each % 7 == number
        ]
    read = spark.read.format("eventhubs").options(**hub.options).load()
    row = read.where("partitionKey = 'k3'").first()
    assert row is not None
    assert row.properties == {"device": '"k3"', "none": "null"}


def test_a_partition_is_named_by_column_or_by_option(
    spark: SparkSession, make_hub: MakeHub
) -> None:
    hub = make_hub(4)
    rows = spark.range(8).selectExpr(
        "cast(id as string) as body", "if(id < 4, cast(id % 2 as int), null) as partitionId"
    )
    write(rows, hub, partitionId="3")
    assert {k: sorted(v) for k, v in hub.read().items()} == {
        "0": [b"0", b"2"],
        "1": [b"1", b"3"],
        "2": [],
        "3": [b"4", b"5", b"6", b"7"],
    }


def test_columns_of_the_source_can_be_written_as_they_are(
    spark: SparkSession, make_hub: MakeHub
) -> None:
    source, target = make_hub(4), make_hub(4)
    sent = source.spread(40)
    write(spark.read.format("eventhubs").options(**source.options).load(), target)
    assert sorted(b for bodies in target.read().values() for b in bodies) == sorted(sent)


@pytest.mark.parametrize(
    ("columns", "options", "named"),
    [
        (["cast(id as int) as body"], {}, "body of type string or binary: it is int"),
        (["'x' as text"], {}, "there is none"),
        (["'x' as body", "'a' as partitonKey"], {}, "did you mean 'partitionkey'"),
        (["'x' as body", "1.5D as partitionId"], {}, "partitionid is double"),
        (["'x' as body", "'p' as properties"], {}, "map<string,string> is needed"),
        (["'x' as body", "'k' as partitionKey", "'0' as partitionId"], {}, "only one of them"),
        (["cast(null as string) as body"], {}, "body is null"),
        (["'x' as body", "'9' as partitionId"], {}, "no partition '9': it has 0, 1"),
        (["'x' as body", "repeat('k', 129) as partitionKey"], {}, "129 characters"),
        (["repeat('x', 300000) as body"], {}, "does not fit into a publication"),
        (["'x' as body"], {"partitionId": "7"}, "no partition '7'"),
        (["'x' as body"], {"partitionId": "0", "partitionKey": "k"}, "exclude each other"),
        (["'x' as body"], {"maxBatchSizeBytes": "12"}, "maxBatchSizeBytes is '12'"),
    ],
)
def test_what_cannot_be_an_event_is_refused_by_name(
    spark: SparkSession,
    make_hub: MakeHub,
    columns: list[str],
    options: dict[str, str],
    named: str,
) -> None:
    hub = _shared_hub(make_hub)
    with pytest.raises(Exception, match=named):
        write(spark.range(1).selectExpr(*columns), hub, **options)


_hubs: list[Any] = []


def _shared_hub(make_hub: MakeHub) -> TestHub:
    if not _hubs:
        _hubs.append(make_hub(2))
    hub: TestHub = _hubs[0]
    return hub


def test_a_hub_cannot_be_overwritten(spark: SparkSession, make_hub: MakeHub) -> None:
    hub = _shared_hub(make_hub)
    rows = spark.range(1).selectExpr("'x' as body")
    with pytest.raises(Exception, match="cannot be overwritten"):
        rows.write.format("eventhubs").options(**hub.options).mode("overwrite").save()


def test_small_batches_are_sent_when_they_are_asked_for(
    spark: SparkSession, make_hub: MakeHub
) -> None:
    hub = make_hub(2)
    rows = spark.range(100).selectExpr("cast(id as string) as body")
    write(rows, hub, maxBatchEvents="7", maxBatchSizeBytes="2048", linger="5ms", maxRetries="3")
    assert sum(map(len, hub.read().values())) == 100


def test_a_thread_of_the_user_writes_after_it_has_set_the_active_session(
    spark: SparkSession, make_hub: MakeHub, tmp_path: Path
) -> None:
    hub = make_hub(2)
    hub.spread(4)
    rows = spark.range(3).selectExpr("cast(id as string) as body")
    streaming = spark.readStream.format("eventhubs").options(**hub.options).load()

    def act() -> None:
        spark.createDataFrame([], "unused int")  # as docs/reference/spark.md says
        rows.write.format("eventhubs").options(**hub.options).mode("append").save()
        query = (
            streaming.writeStream.format("eventhubs")
            .options(**hub.options, checkpointLocation=str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(180)
        done.append(query.exception())

    done: list[object] = []
    thread = threading.Thread(target=act)
    thread.start()
    thread.join(300)
    assert done == [None]
    assert sum(map(len, hub.read().values())) == 7


def test_a_stream_is_written_to_another_hub(
    spark: SparkSession, make_hub: MakeHub, tmp_path: Path
) -> None:
    source, target = make_hub(4), make_hub(4)
    sent = source.spread(400)
    frame = (
        spark.readStream.format("eventhubs")
        .options(**source.options, startingPosition="earliest", maxEventsPerTrigger="100")
        .load()
    )
    query = (
        frame.selectExpr("body", "partition as partitionId")
        .writeStream.format("eventhubs")
        .options(**target.options, checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(180)
    assert target.read() == source.read()
    assert sorted(b for bodies in target.read().values() for b in bodies) == sorted(sent)
    assert query.lastProgress is not None
