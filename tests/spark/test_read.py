"""Batch reads: what was sent, in nine columns."""

from __future__ import annotations

import asyncio
import json
import re
import time
from datetime import UTC
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from tests.conftest import Server
    from tests.spark.conftest import MakeHub, TestHub


def read(spark: SparkSession, hub: TestHub, **options: Any) -> DataFrame:
    return spark.read.format("eventhubs").options(**hub.options, **options).load()


def bodies(frame: DataFrame) -> list[bytes]:
    return [bytes(row.body) for row in frame.select("body").collect()]


@pytest.mark.parametrize("partitions", [4, 32])
def test_a_batch_read_equals_what_was_sent(
    spark: SparkSession, make_hub: MakeHub, partitions: int
) -> None:
    hub = make_hub(partitions)
    sent = hub.spread(partitions * 50)
    rows = read(spark, hub).collect()
    assert sorted(bytes(row.body) for row in rows) == sorted(sent)
    by_partition: dict[str, list[Any]] = {}
    for row in rows:
        by_partition.setdefault(row.partition, []).append(row)
    assert {key: [bytes(r.body) for r in each] for key, each in by_partition.items()} == hub.read()
    for each in by_partition.values():
        assert [row.sequenceNumber for row in each] == list(range(len(each)))


async def send_rich(text: str) -> None:
    """One event with a property of every kind, and one with nothing at all."""
    from penstock.client import EventData, EventHubProducerClient

    properties = {
        "text": 'a "quoted" ü',
        "whole": 7,
        "real": 2.5,
        "yes": True,
        "nothing": None,
        "bytes": b"\x00\xff",
    }
    async with EventHubProducerClient(text) as producer:
        rich = EventData(b"rich", properties=properties, message_id="m-1", content_type="text/x")
        await producer.send_batch([rich], partition_key="device-7")
        await producer.send_batch([EventData(b"\xffplain")], partition_id="0")


@pytest.fixture(scope="module")
def rich(broker: Server) -> TestHub:
    from penstock.management.client import ManagementClient

    with ManagementClient(broker["admin"], broker["admin_token"]) as management:
        management.put_hub(broker["namespace"], "rich", partition_count=2)
    text = f"{broker.connection_string()};EntityPath=rich"
    asyncio.run(send_rich(text))
    return cast("TestHub", SimpleNamespace(options={"connectionString": text}, server=broker))


def test_nine_columns_hold_what_an_event_has(spark: SparkSession, rich: TestHub) -> None:
    rows = {bytes(row.body): row for row in read(spark, rich).collect()}
    row = rows[b"rich"]
    assert row.partitionKey == "device-7"
    assert row.publisher is None
    assert row.sequenceNumber >= 0 and int(row.offset) >= 0
    assert abs(row.enqueuedTime.timestamp() - time.time()) < 3600
    values = {name: json.loads(value) for name, value in row.properties.items()}
    assert values.pop("bytes") is not None
    assert values == {
        "text": 'a "quoted" ü',
        "whole": 7,
        "real": 2.5,
        "yes": True,
        "nothing": None,
    }
    assert json.loads(row.systemProperties["message-id"]) == "m-1"
    assert json.loads(row.systemProperties["content-type"]) == "text/x"
    assert "x-opt-sequence-number" not in row.systemProperties
    plain = rows[b"\xffplain"]
    assert plain.properties == {} and plain.partitionKey is None


def test_properties_can_be_text_or_variants(spark: SparkSession, rich: TestHub) -> None:
    text = read(spark, rich, propertiesFormat="string").where("partitionKey is not null").first()
    assert text is not None
    assert text.properties["text"] == 'a "quoted" ü'
    assert text.properties["whole"] == "7"
    variants = read(spark, rich, propertiesFormat="variant").where("partitionKey is not null")
    found = variants.selectExpr(
        "variant_get(properties['text'], '$', 'string') as text",
        "variant_get(properties['whole'], '$', 'int') as whole",
        "variant_get(properties['real'], '$', 'double') as real",
        "variant_get(properties['yes'], '$', 'boolean') as yes",
        "is_variant_null(properties['nothing']) as nothing",
    ).first()
    assert found is not None
    assert found.asDict() == {
        "text": 'a "quoted" ü',
        "whole": 7,
        "real": 2.5,
        "yes": True,
        "nothing": True,
    }


def test_columns_are_left_out_added_and_decoded_on_request(
    spark: SparkSession, rich: TestHub
) -> None:
    frame = read(
        spark,
        rich,
        includeProperties="false",
        includeSystemProperties="false",
        includeEventHub="true",
        bodyFormat="string",
    )
    assert frame.columns == [
        *("body", "partition", "offset", "sequenceNumber", "enqueuedTime", "publisher"),
        *("partitionKey", "eventHub"),
    ]
    assert {(row.body, row.eventHub) for row in frame.collect()} == {
        ("rich", "rich"),
        ("\ufffdplain", "rich"),
    }


@pytest.mark.parametrize("transport", ["amqps", "wss"])
def test_tls_and_websockets_are_spoken(spark: SparkSession, rich: TestHub, transport: str) -> None:
    server = rich.server
    text = f"{server.connection_string(tls=True)};EntityPath=rich"
    if transport == "wss":
        port = server["https"].rpartition(":")[2].rstrip("/")
        text = re.sub(r"(Endpoint=sb://[^:;/]+)(:\d+)?", rf"\g<1>:{port}", text)
    options = {"connectionString": text, "tls.caFile": server["ca_file"], "transport": transport}
    frame = spark.read.format("eventhubs").options(**options).load()
    assert frame.count() == 2
    options = {"connectionString": text, "tls.insecure": "true", "transport": transport}
    assert spark.read.format("eventhubs").options(**options).load().count() == 2


def test_a_session_of_the_users_own_and_sql_find_the_format(
    spark: SparkSession, rich: TestHub
) -> None:
    other = spark.newSession()
    assert other.read.format("EventHubs").options(**rich.options).load().count() == 2
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW rich_events USING eventhubs "
        f"OPTIONS (connectionString '{rich.options['connectionString']}')"
    )
    assert spark.sql("SELECT count(*) AS n FROM rich_events").first() == (2,)
    from penstock.spark import EventHubsDataSource

    other.dataSource.register(EventHubsDataSource)
    assert other.read.format("eventhubs").options(**rich.options).load().count() == 2


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"maxEventPerTrigger": "5"}, "did you mean maxEventsPerTrigger"),
        ({"startingPositions": '{"9": 1}'}, "names partition 9: the hub 'rich' has 0, 1"),
        ({"startingTimestamp": "2200-01-01T00:00:00Z"}, "no event at or after"),
        ({"consumerGroup": "nobody"}, "nobody"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(
    spark: SparkSession, rich: TestHub, options: dict[str, str], named: str
) -> None:
    with pytest.raises(Exception, match=named):
        read(spark, rich, **options).count()


def test_another_schema_is_refused(spark: SparkSession, rich: TestHub) -> None:
    reader = spark.read.format("eventhubs").options(**rich.options).schema("body string, x int")
    with pytest.raises(Exception, match="The schema of eventhubs is fixed"):
        reader.load().count()


def test_times_and_offsets_are_positions(spark: SparkSession, make_hub: MakeHub) -> None:
    hub = make_hub(2)
    hub.send([str(number) for number in range(20)], partition_id="0")
    rows = read(spark, hub).orderBy("sequenceNumber").collect()
    moment = rows[0].enqueuedTime.astimezone(UTC).isoformat()
    assert read(spark, hub, startingPosition=moment).count() == 20
    assert read(spark, hub, endingTimestamp=moment).count() == 0
    offset = rows[12].offset
    started = read(spark, hub, startingPosition=json.dumps({"offset": offset}))
    assert sorted(bodies(started)) == sorted(str(n).encode() for n in range(12, 20))
    behind = json.dumps({"offset": offset, "isInclusive": False})
    assert read(spark, hub, startingPosition=behind).count() == 7
    ended = read(spark, hub, endingPosition=json.dumps({"offset": offset}))
    assert ended.count() == 12
