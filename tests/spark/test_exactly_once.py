"""A task that is run again publishes what is missing and nothing else. Without Spark: rows come
from Arrow batches, and an iterator that raises is a task that was killed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.client.errors import ClientError
from penstock.gateway.amqp import connection
from penstock.spark.eventhubs.options import EventHubsOptions, WriteOptions
from penstock.spark.eventhubs.sink import producer_id, publish
from penstock.testing import broker as in_process

if TYPE_CHECKING:
    from tests.spark.conftest import MakeHub, TestHub

Row = tuple[bytes, str | None]
SIZE = 3000  # a publication holds 80 of them


class Killed(Exception):
    pass


def options_of(hub: TestHub, **more: str) -> WriteOptions:
    return EventHubsOptions(hub.options | more).write()


def batches(rows: list[Row], *, die: bool = False) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(rows), 100):
        part = rows[start : start + 100]
        yield pa.record_batch(
            [
                pa.array([body for body, _ in part], pa.binary()),
                pa.array([key for _, key in part], pa.string()),
            ],
            names=["body", "partitionKey"],
        )
    if die:
        raise Killed


def keyed(count: int) -> list[Row]:
    return [(f"{number}".encode().ljust(SIZE), f"key-{number % 11}") for number in range(count)]


def unkeyed(count: int) -> list[Row]:
    return [(f"{number}".encode().ljust(SIZE), None) for number in range(count)]


def stored(hub: TestHub) -> list[bytes]:
    return sorted(body for bodies in hub.read().values() for body in bodies)


def run_until_killed(hub: TestHub, rows: list[Row], identity: tuple[Any, ...]) -> None:
    with pytest.raises(Killed):
        publish(batches(rows, die=True), options_of(hub), identity)


@pytest.mark.parametrize("rows", [keyed(1000), unkeyed(1000)], ids=["keyed", "in turn"])
@pytest.mark.parametrize("shuffled", [False, True], ids=["same order", "another order"])
def test_a_task_that_is_run_again_leaves_out_what_is_stored(
    make_hub: MakeHub, rows: list[Row], shuffled: bool
) -> None:
    hub = make_hub(4)
    identity = ("stream", "query", 7, 0)
    run_until_killed(hub, rows[:700], identity)
    run_until_killed(hub, rows[:900], identity)
    before = stored(hub)
    assert 0 < len(before) < 900, "the kill left some rows stored and some not"
    again = random.Random(5).sample(rows, len(rows)) if shuffled else rows
    assert publish(batches(again), options_of(hub), identity) == 1000
    assert stored(hub) == sorted(body for body, _ in rows)
    # And once more, after the driver died between the last task and the commit.
    publish(batches(again), options_of(hub), identity)
    assert stored(hub) == sorted(body for body, _ in rows)


def test_rows_that_are_equal_are_counted(make_hub: MakeHub) -> None:
    hub = make_hub(2)
    same: Row = (b"same", "key")
    other: Row = (b"other".ljust(SIZE), "key")
    rows = [same] * 500 + [other] * 400
    # More than two publications: the second one leaves when the first is stored.
    run_until_killed(hub, rows[:800], ("q",))
    assert len(stored(hub)) > 0
    publish(batches(rows), options_of(hub), ("q",))
    assert stored(hub) == sorted(body for body, _ in rows)


def test_another_batch_or_task_publishes_the_same_rows_again(make_hub: MakeHub) -> None:
    hub = make_hub(2)
    rows = keyed(20)
    for identity in (("query", 1, 0), ("query", 2, 0), ("query", 1, 1), ("other", 1, 0)):
        publish(batches(rows), options_of(hub), identity)
    assert len(stored(hub)) == 80
    assert len({producer_id("query", 1, 0), producer_id("query", 10), producer_id("query", 1)}) == 3


def test_a_policy_that_may_only_send_leaves_out_by_order(make_hub: MakeHub) -> None:
    from penstock.management.client import ManagementClient

    hub = make_hub(4)
    with ManagementClient(hub.server["admin"], hub.server["admin_token"]) as management:
        namespace = hub.server["namespace"]
        management.put_rule(namespace, hub.name, "sender", ["Send"])
        key = management.keys(namespace, hub.name, "sender").primary_key
    text = hub.server.connection_string(policy="sender", key=key) + f";EntityPath={hub.name}"
    options = EventHubsOptions({"connectionString": text}).write()
    rows = unkeyed(1500)
    with pytest.raises(Killed):
        publish(batches(rows[:1400], die=True), options, ("query", 1))
    assert 0 < len(stored(hub)) < 1400
    publish(batches(rows), options, ("query", 1))
    assert stored(hub) == sorted(body for body, _ in rows)


def test_a_run_that_is_not_quite_dead_loses_its_place(make_hub: MakeHub) -> None:
    hub = make_hub(2)
    rows = unkeyed(800)

    def overtaken() -> Iterator[pa.RecordBatch]:
        for index, batch in enumerate(batches(rows)):
            if index == 5:
                publish_in_thread()
            yield batch

    def publish_in_thread() -> None:
        import threading

        other = threading.Thread(
            target=publish, args=(batches(rows), options_of(hub), ("query", 1))
        )
        other.start()
        other.join(60)

    with pytest.raises(ClientError, match=r"producer-epoch-stolen|getting disconnected"):
        publish(overtaken(), options_of(hub), ("query", 1))
    assert stored(hub) == sorted(body for body, _ in rows)


def test_without_idempotence_rows_are_there_at_least_once(make_hub: MakeHub) -> None:
    hub = make_hub(2)
    rows = keyed(50)
    options = options_of(hub, idempotent="false")
    publish(batches(rows), options, ("query", 1))
    publish(batches(rows), options, ("query", 1))
    assert len(stored(hub)) == 100
    system = hub.read()
    assert sum(map(len, system.values())) == 100


def test_a_service_that_does_not_call_itself_penstock_gets_plain_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with in_process(hubs={"events": 2}) as small:
        text = f"{small.emulator_connection_string.rstrip(';')};EntityPath=events"
        options = EventHubsOptions({"connectionString": text}).write()
        publish(batches(keyed(20)), options, ("query", 1))
        publish(batches(keyed(20)), options, ("query", 1))
        assert len(small.published()) == 20
        monkeypatch.delitem(connection.ABOUT, "product")
        publish(batches(keyed(20)), options, ("query", 1))
        assert len(small.published()) == 40


def test_a_task_without_rows_connects_to_nobody() -> None:
    nowhere = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=n;SharedAccessKey=k;EntityPath=h"
    assert publish(iter(()), EventHubsOptions({"connectionString": nowhere}).write(), ("q",)) == 0
