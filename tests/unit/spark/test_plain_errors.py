"""What a Spark user reads when the hub, the key or the group is wrong: one plain sentence."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StringType, StructType

from penstock.client.errors import ClientDenied, ClientNotFound
from penstock.spark.errors import plain_errors
from penstock.spark.eventhubs import data_source
from penstock.spark.eventhubs.data_source import EventHubsDataSource
from penstock.spark.eventhubs.planner import SequenceRange
from penstock.testing import InProcessBroker
from penstock.testing import broker as in_process

NO_HUB = "There is no event hub 'nope' in the namespace at penstock."
NO_GROUP = "There is no consumer group 'nobody' of the event hub 'events' in the namespace at "
WRONG_KEY = "The name or the key of the shared access policy is wrong: check the connection string."
RAW = re.compile(r"aka\.ms|TrackingId|\$cbs|amqp:|sb://|put-token")


@pytest.fixture(scope="module")
def service() -> Iterator[InProcessBroker]:
    with in_process(hubs={"events": 2}) as made:
        yield made


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_LOG_LEVEL", raising=False)
    monkeypatch.setattr(data_source, "_task_context", lambda: _Task())


class _Task:
    def partitionId(self) -> int:
        return 0

    def getLocalProperty(self, name: str) -> str | None:
        return None


def options(service: InProcessBroker, hub: str = "events", **more: str) -> dict[str, str]:
    text = f"{service.emulator_connection_string.rstrip(';')};EntityPath={hub}"
    return {"connectionString": text, **more}


def with_wrong_key(service: InProcessBroker) -> dict[str, str]:
    text = re.sub(
        "SharedAccessKey=[^;]+", "SharedAccessKey=bm90IGl0", options(service)["connectionString"]
    )
    return {"connectionString": text}


def plan(given: dict[str, str]) -> object:
    source = EventHubsDataSource(given)
    return source.reader(source.schema()).partitions()


def read(given: dict[str, str]) -> object:
    source = EventHubsDataSource(given)
    return list(source.reader(source.schema()).read(InputPartition(SequenceRange("0", 0, 1))))


def start_stream(given: dict[str, str]) -> object:
    source = EventHubsDataSource(given)
    reader = source.streamReader(source.schema())
    try:
        return reader.initialOffset()
    finally:
        reader.stop()


def write(given: dict[str, str]) -> object:
    source = EventHubsDataSource(given)
    rows = iter([pa.record_batch({"body": ["x"]})])
    schema = StructType().add("body", StringType())
    return source.writer(schema, overwrite=False).write(rows)


Act = Callable[[dict[str, str]], object]


@pytest.mark.parametrize("act", [plan, read, start_stream, write])
def test_hub_that_is_not_there_is_named(service: InProcessBroker, act: Act) -> None:
    with pytest.raises(ClientNotFound) as refused:
        act(options(service, "nope"))
    assert str(refused.value) == NO_HUB
    assert RAW.search("".join(traceback.format_exception_only(refused.value))) is None
    assert refused.value.__suppress_context__  # Spark shows the whole chain


@pytest.mark.parametrize("act", [plan, read, start_stream, write])
def test_wrong_key_is_said(service: InProcessBroker, act: Act) -> None:
    with pytest.raises(ClientDenied) as refused:
        act(with_wrong_key(service))
    assert str(refused.value) == WRONG_KEY


def test_group_that_is_not_there_is_named(service: InProcessBroker) -> None:
    with pytest.raises(ClientNotFound) as refused:
        read(options(service, consumerGroup="nobody"))
    assert str(refused.value).startswith(NO_GROUP)
    assert RAW.search(str(refused.value)) is None


def test_protocols_text_is_there_on_request(
    service: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_LOG_LEVEL", "debug")
    with pytest.raises(ClientNotFound, match=r"put-token on \$cbs.*TrackingId"):
        plan(options(service, "nope"))


def test_other_errors_stay_as_they_are() -> None:
    error = ClientNotFound("Nothing to add.")
    with pytest.raises(ClientNotFound) as raised, plain_errors():
        raise error
    assert raised.value is error
