"""Keys reach nobody who looks: plans, Spark's UI and its API, the event log, progress, errors."""

from __future__ import annotations

import json
import pickle
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from penstock.spark.eventhubs.data_source import EventHubsDataSource
from penstock.spark.eventhubs.options import EventHubsOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from tests.spark.conftest import MakeHub, TestHub

EXPLAINED = ("simple", "extended", "codegen", "cost", "formatted")
PAGES = ("/SQL/", "/StreamingQuery/", "/jobs/", "/stages/", "/environment/")
API = ("jobs", "stages", "environment", "sql?details=true&planDescription=true&length=1000")


def spellings(hub: TestHub) -> list[dict[str, str]]:
    parts = dict(part.split("=", 1) for part in hub.connection_string.split(";"))
    return [
        {"eventhubs.connectionString": hub.connection_string},
        {
            "endpoint": parts["Endpoint"],
            "sasKeyName": parts["SharedAccessKeyName"],
            "sasKey": parts["SharedAccessKey"],
            "transport": "amqp",
            "eventHubName": hub.name,
        },
    ]


def plans(frame: DataFrame) -> list[str]:
    inside: Any = frame
    execution = inside._jdf.queryExecution()
    utils = inside.sparkSession._jvm.PythonSQLUtils
    return [execution.toString(), *(utils.explainString(execution, mode) for mode in EXPLAINED)]


def queries(spark: SparkSession, hub: TestHub, options: dict[str, str], folder: Path) -> list[str]:
    """Everything that one can do with these options, and what it shows."""
    shown: list[str] = []
    frame = spark.read.format("eventhubs").options(**options).load()
    shown += plans(frame)
    assert frame.count() >= 20
    frame.select("body").limit(2).write.format("eventhubs").mode("append").options(**options).save()
    streaming = (
        spark.readStream.format("eventhubs")
        .options(**options, startingPosition="earliest", maxEventsPerTrigger="1000")
        .load()
    )
    query: Any = (
        streaming.where("sequenceNumber < 5")
        .select("body")
        .writeStream.format("eventhubs")
        .options(**options, checkpointLocation=str(folder / "c"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(180)
    shown += [json.dumps(query.lastProgress, default=str), query._jsq.explainInternal(True)]
    pairs = ", ".join(f"'{name}' '{value}'" for name, value in options.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW secret_view USING eventhubs OPTIONS ({pairs})")
    selected = spark.sql("SELECT count(*) FROM secret_view")
    assert selected.first() is not None
    return shown + plans(selected) + [str(spark.sql("DESCRIBE EXTENDED secret_view").collect())]


def pages(spark: SparkSession) -> list[str]:
    context = spark.sparkContext
    ui = f"http://127.0.0.1:{urlsplit(context.uiWebUrl or '').port}"
    addresses = [f"{ui}{page}" for page in PAGES]
    addresses += [f"{ui}/api/v1/applications/{context.applicationId}/{path}" for path in API]
    found = []
    for address in addresses:
        with urllib.request.urlopen(address, timeout=120) as answer:
            found.append(answer.read().decode())
    return found


def test_keys_are_nowhere_to_be_seen(
    spark: SparkSession,
    spark_conf: dict[str, Any],
    make_hub: MakeHub,
    tmp_path: Path,
    spark_log: Path,
) -> None:
    hub = make_hub(2)
    hub.spread(20)
    spark.sparkContext.setLogLevel("INFO")
    try:
        shown: list[str] = []
        for number, options in enumerate(spellings(hub)):
            shown += queries(spark, hub, options, tmp_path / str(number))
        shown += pages(spark)
    finally:
        spark.sparkContext.setLogLevel("ERROR")
    folder = Path(urlsplit(spark_conf["spark.eventLog.dir"]).path)
    logged = [file.read_text(errors="replace") for file in folder.rglob("*") if file.is_file()]
    assert sum(map(len, logged)) > 10_000, "there is an event log, and it is readable"
    said = spark_log.read_text(errors="replace")
    assert " INFO DAGScheduler" in said, "the log was watched"
    key = hub.server.key
    for text in (*shown, *logged, said):
        if key in text:
            before = text[: text.index(key)][-300:]
            pytest.fail(f"a key was shown behind: {before}")


def test_errors_do_not_repeat_what_they_were_given(spark: SparkSession) -> None:
    key = "c2VjcmV0LXNlY3JldC1zZWNyZXQ="
    text = f"Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=n;SharedAccessKey={key};EntityPath=h"
    for options in (
        {"connectionString": text + ";Nonsense=1"},
        {"connectonString": text},
        {"connectionString": text, "eventhubs.connectionString": text + "x"},
        {"connectionString": text, "operationTimeout": "200ms", "receiverTimeout": "200ms"},
        {"endpoint": "sb://127.0.0.1:1", "sasKey": key},
    ):
        with pytest.raises(Exception, match=r".") as refused:
            spark.read.format("eventhubs").options(**options).load().count()
        assert key not in str(refused.value)


def test_nothing_that_is_printed_holds_a_key() -> None:
    key = "c2VjcmV0LXNlY3JldC1zZWNyZXQ="
    text = f"Endpoint=sb://h;SharedAccessKeyName=n;SharedAccessKey={key};EntityPath=hub"
    given = {"connectionString": text}
    source = EventHubsDataSource(given)
    reader = source.reader(source.schema())
    written = EventHubsOptions(given).write()
    assert key not in repr(
        (source, vars(source), reader, vars(reader), written, EventHubsOptions(given))
    )
    assert pickle.loads(pickle.dumps(EventHubsOptions(given).read())).target.eventhub_name == "hub"
