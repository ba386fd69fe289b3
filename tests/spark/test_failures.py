"""What goes wrong while Spark reads: exact rows, or an error that names what is wrong."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.client import ClientThrottled, EventData, EventHubProducerClient
from penstock.spark.eventhubs.options import EventHubsOptions
from penstock.spark.eventhubs.sink import publish
from penstock.testing import InProcessBroker, ManualClock
from penstock.testing import broker as in_process

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from tests.conftest import ServerFactory, Sized
    from tests.spark.conftest import MakeHub

DEADLINE_S = 180


@pytest.fixture
def small() -> Iterator[InProcessBroker]:
    """A broker whose clock is turned by hand, on the disk's memory alone."""
    with in_process(hubs={"events": 2}, clock=ManualClock()) as made:
        yield made


def cs(broker: InProcessBroker, hub: str = "events") -> str:
    return f"{broker.emulator_connection_string.rstrip(';')};EntityPath={hub}"


def send(broker: InProcessBroker, bodies: list[str], partition_id: str = "0") -> None:
    asyncio.run(_send(cs(broker), bodies, partition_id))


async def _send(text: str, bodies: list[str], partition_id: str) -> None:
    async with EventHubProducerClient(text) as producer:
        events = [EventData(body) for body in bodies]
        await producer.send_batch(events, partition_id=partition_id)


def numbered(start: int, end: int) -> list[str]:
    return [str(number) for number in range(start, end)]


def batch(spark: SparkSession, text: str, **options: str) -> list[str]:
    frame = spark.read.format("eventhubs").options(connectionString=text, **options).load()
    rows = frame.orderBy("partition", "sequenceNumber").collect()
    return [bytes(row.body).decode() for row in rows]


class Batches:
    """A sink that remembers; a batch that is run again replaces itself."""

    def __init__(self) -> None:
        self.found: dict[int, list[str]] = {}
        self.more = threading.Condition()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        bodies = [bytes(row.body).decode() for row in frame.collect()]
        with self.more:
            self.found[batch_id] = bodies
            self.more.notify_all()

    @property
    def bodies(self) -> list[str]:
        return [body for _, bodies in sorted(self.found.items()) for body in bodies]

    def wait_for(self, count: int) -> None:
        with self.more:
            assert self.more.wait_for(lambda: len(self.bodies) >= count, DEADLINE_S)


def stream(spark: SparkSession, text: str, into: Batches, checkpoint: Path, **options: str) -> Any:
    options = {"startingPosition": "earliest", "commitToService": "false"} | options
    frame = spark.readStream.format("eventhubs").options(connectionString=text, **options).load()
    writer = frame.writeStream.foreachBatch(into).option("checkpointLocation", str(checkpoint))
    return writer.trigger(processingTime="100 milliseconds").start()


def run(spark: SparkSession, text: str, into: Batches, checkpoint: Path, **options: str) -> None:
    """What is there, then the end."""
    query = stream(spark, text, into, checkpoint, **options)
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def failure_of(query: Any) -> str:
    """The words a query ended with."""
    deadline_s = time.monotonic() + DEADLINE_S
    while query.isActive and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return str(query.exception())


def test_a_wrong_key_is_named_and_not_shown(spark: SparkSession, small: InProcessBroker) -> None:
    key = "bm90LXRoZS1rZXktYXQtYWxsLW5vdC10aGUta2V5IQ=="
    start = cs(small).partition("SharedAccessKey=")[0]
    wrong = f"{start}SharedAccessKey={key};UseDevelopmentEmulator=true;EntityPath=events"
    with pytest.raises(Exception, match=r"ClientDenied: The name or the key of the") as refused:
        batch(spark, wrong)
    assert key not in str(refused.value)
    assert "TrackingId" not in str(refused.value)


def test_a_hub_that_is_not_there_is_named(spark: SparkSession, small: InProcessBroker) -> None:
    with pytest.raises(Exception, match=r"ClientNotFound: There is no event hub 'nowhere'") as lost:
        batch(spark, cs(small, "nowhere"))
    assert "TrackingId" not in str(lost.value)


def test_a_group_that_is_not_there_is_named_by_executors(
    spark: SparkSession, small: InProcessBroker
) -> None:
    send(small, numbered(0, 1))
    with pytest.raises(Exception, match=r"There is no consumer group 'nobody' of the") as lost:
        batch(spark, cs(small), consumerGroup="nobody")
    assert "TrackingId" not in str(lost.value)


def test_a_hub_deleted_under_a_query_ends_it(
    spark: SparkSession, small: InProcessBroker, tmp_path: Path
) -> None:
    seen = Batches()
    send(small, numbered(0, 50))
    query = stream(spark, cs(small), seen, tmp_path / "c")
    try:
        seen.wait_for(50)
        small.delete_hub("events")
        assert "ClientNotFound" in failure_of(query)
    finally:
        query.stop()
    assert seen.bodies == numbered(0, 50)


def test_a_hub_made_anew_under_a_query_is_noticed(
    spark: SparkSession, small: InProcessBroker, tmp_path: Path
) -> None:
    seen = Batches()
    send(small, numbered(0, 50))
    query = stream(spark, cs(small), seen, tmp_path / "c", failOnDataLoss="true")
    try:
        seen.wait_for(50)
        small.delete_hub("events")
        small.advance(timedelta(seconds=5))
        small.create_hub("events", partitions=2)
        send(small, numbered(1000, 1080))  # more than the old one had
        words = failure_of(query)
    finally:
        query.stop()
    assert "created again" in words or "ClientNotFound" in words


def test_a_hub_made_anew_between_two_runs_is_noticed(
    spark: SparkSession, small: InProcessBroker, tmp_path: Path
) -> None:
    seen = Batches()
    send(small, numbered(0, 50))
    run(spark, cs(small), seen, tmp_path / "c")
    small.delete_hub("events")
    small.create_hub("events", partitions=2)
    send(small, numbered(1000, 1020))
    query = stream(spark, cs(small), seen, tmp_path / "c")
    assert "does not exist: the next one will have the number 20" in failure_of(query)
    run(spark, cs(small), seen, tmp_path / "c", failOnDataLoss="false")
    assert seen.bodies == numbered(0, 50) + numbered(1000, 1020)


def test_a_hub_made_anew_is_noticed_also_when_it_holds_more_than_was_read(
    spark: SparkSession, small: InProcessBroker, tmp_path: Path
) -> None:
    seen = Batches()
    send(small, numbered(0, 50))
    run(spark, cs(small), seen, tmp_path / "c")
    small.delete_hub("events")
    small.advance(timedelta(seconds=5))
    small.create_hub("events", partitions=2)
    send(small, numbered(1000, 1080))
    assert "was deleted and created again since" in failure_of(
        stream(spark, cs(small), seen, tmp_path / "c")
    )
    run(spark, cs(small), seen, tmp_path / "c", failOnDataLoss="false")
    assert seen.bodies == numbered(0, 50) + numbered(1000, 1080)


def test_retention_that_overtakes_a_query_is_an_error_or_a_choice(
    spark: SparkSession, small: InProcessBroker, tmp_path: Path
) -> None:
    seen = Batches()
    send(small, numbered(0, 50))
    run(spark, cs(small), seen, tmp_path / "c")
    send(small, numbered(50, 90))
    small.advance(timedelta(hours=25))
    send(small, numbered(90, 120))
    query = stream(spark, cs(small), seen, tmp_path / "c")
    words = failure_of(query)
    assert "Events 50 to 89 of partition 0 of hub 'events' are gone" in words
    run(spark, cs(small), seen, tmp_path / "c", failOnDataLoss="false")
    assert seen.bodies == numbered(0, 50) + numbered(90, 120)
    # A batch that names a first event wants that one; earliest is what there is.
    with pytest.raises(Exception, match="Events 0 to 89 of partition 0"):
        batch(spark, cs(small), startingPositions='{"0": 0}')
    assert batch(spark, cs(small)) == numbered(90, 120)


@pytest.mark.parametrize(
    ("option", "rows"), [("startingPositions", []), ("endingPositions", numbered(0, 20))]
)
def test_a_position_beyond_the_end_is_an_error_or_a_choice(
    spark: SparkSession, small: InProcessBroker, option: str, rows: list[str]
) -> None:
    send(small, numbered(0, 20))
    with pytest.raises(Exception, match="the next one will have the number 20"):
        batch(spark, cs(small), **{option: '{"0": 100}'})
    assert batch(spark, cs(small), **{option: '{"0": 100}'}, failOnDataLoss="false") == rows


def test_a_lost_connection_is_opened_again(spark: SparkSession, small: InProcessBroker) -> None:
    send(small, numbered(0, 2000))
    fault = small.faults.drop_connection(after_events=500, times=2)
    assert batch(spark, cs(small), maxEventsPerTask="700") == numbered(0, 2000)
    assert fault.count > 0


def test_a_busy_service_is_waited_for(small: InProcessBroker) -> None:
    """By the task itself: Spark hears of it only when it lasts, or is told to."""
    rows = pa.record_batch([pa.array(numbered(0, 100))], names=["body"])
    small.faults.server_busy(times=1)
    given = {"connectionString": cs(small), "retryBackoff": "1ms"}
    assert publish(iter([rows]), EventHubsOptions(given).write(), ("query", 1)) == 100
    assert len(small.published()) == 100
    small.faults.server_busy(times=None)
    failing = EventHubsOptions(given | {"throttling": "fail", "maxRetries": "0"}).write()
    with pytest.raises(ClientThrottled):
        publish(iter([rows]), failing, ("query", 2))
    assert len(small.published()) == 100


def test_a_rotated_key_ends_the_query_and_the_new_one_goes_on(
    spark: SparkSession, make_hub: MakeHub, tmp_path: Path
) -> None:
    from penstock.management.client import ManagementClient

    hub, seen = make_hub(2), Batches()
    server, namespace = hub.server, hub.server["namespace"]
    with ManagementClient(server["admin"], server["admin_token"]) as management:
        management.put_rule(namespace, hub.name, "reader", ["Listen"])

        def text(key: str) -> str:
            return server.connection_string(policy="reader", key=key) + f";EntityPath={hub.name}"

        old = management.keys(namespace, hub.name, "reader").primary_key
        hub.send(numbered(0, 40), partition_id="0")
        query = stream(spark, text(old), seen, tmp_path / "c")
        try:
            seen.wait_for(40)
            new = management.regenerate(namespace, hub.name, "reader", "PrimaryKey").primary_key
            hub.send(numbered(40, 80), partition_id="0")
            words = failure_of(query)
        finally:
            query.stop()
    assert "ClientDenied" in words
    assert old not in words and new not in words
    run(spark, text(new), seen, tmp_path / "c")
    assert seen.bodies == numbered(0, 80)


@pytest.mark.sized("spark")
def test_a_server_that_is_away_for_a_while_costs_time_and_nothing_else(
    spark: SparkSession,
    start_server: ServerFactory,
    make_hub: MakeHub,
    tmp_path: Path,
    sized: Sized,
) -> None:
    first = start_server("--hub", "unused")
    hub, seen = make_hub(2, server=first), Batches()
    hub.send(numbered(0, 100), partition_id="0")
    query = stream(spark, hub.connection_string, seen, tmp_path / "c")
    try:
        seen.wait_for(100)
        first.kill()
        threading.Event().wait(
            sized(short=3, full=30)
        )  # that is the test: the service is away so long
        again = start_server("--amqp-port", str(first.port("amqp")), data=first.data)
        hub.server = again
        hub.send(numbered(100, 200), partition_id="0")
        seen.wait_for(200)
        assert query.isActive
    finally:
        query.stop()
    assert seen.bodies == numbered(0, 200)


@pytest.mark.full("spark")
@pytest.mark.timeout(3600)
def test_python_workers_that_are_killed_change_no_row(
    spark: SparkSession, make_hub: MakeHub, sized: Sized
) -> None:
    hub, rounds = make_hub(4), sized(short=1, full=5, long=50)
    sent = hub.spread(8000, size=400)
    killed = 0
    for _ in range(rounds):
        found: list[Any] = []
        frame = spark.read.format("eventhubs").options(**hub.options, maxEventsPerTask="200").load()
        reading = threading.Thread(target=lambda rows=found, df=frame: rows.extend(df.collect()))
        reading.start()
        victims = _wait_for_workers(spark)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        killed += len(victims)
        reading.join(DEADLINE_S)
        assert sorted(bytes(row.body) for row in found) == sorted(sent)
    assert killed >= rounds


def _wait_for_workers(spark: SparkSession) -> list[int]:
    """Python workers that run tasks now: the children of Spark's daemon."""
    tracker = spark.sparkContext.statusTracker()
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        stages = tracker.getActiveStageIds()
        infos = [tracker.getStageInfo(stage) for stage in stages]
        if any(info is not None and info.numActiveTasks > 0 for info in infos):
            workers = [pid for daemon in _daemons() for pid in _children(daemon)]
            if workers:
                return workers
        time.sleep(0.005)
    raise AssertionError("no task ran")


def _daemons() -> list[int]:
    found = []
    for pid in _descendants(os.getpid()):
        if b"pyspark.daemon" in _command(pid) and b"java" not in _command(pid):
            found.append(pid)
    return [pid for pid in found if _parent(pid) not in found]


def _descendants(pid: int) -> list[int]:
    below = _children(pid)
    return below + [each for child in below for each in _descendants(child)]


def _children(pid: int) -> list[int]:
    return [
        int(each.name) for each in Path("/proc").glob("[0-9]*") if _parent(int(each.name)) == pid
    ]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return -1


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
