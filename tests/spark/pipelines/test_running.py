"""A pipeline's life on a real session: triggers and names, stops with grace, restarts, failures."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from penstock.model.errors import ConfigurationError, NotFound, PenstockError, Unauthorized
from penstock.spark.pipelines.runner import PipelineRun, PipelineSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from tests.spark.conftest import MakeHub
    from tests.spark.pipelines.conftest import Onlooker, Pipelines

DEADLINE_S = 180.0
COUNT = """
def pipeline(spark, hubs, hub=""):
    return hubs.read(hub).groupBy("partition").count()
"""


@contextmanager
def in_background(run: PipelineRun) -> Iterator[Callable[[], PipelineSnapshot]]:
    """The run in a thread; what is yielded waits for its end."""
    outcome: list[Any] = []

    def act() -> None:
        try:
            outcome.append(run.run())
        except PenstockError as error:
            outcome.append(error)

    thread = threading.Thread(target=act)
    thread.start()

    def ended() -> PipelineSnapshot:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
        assert isinstance(outcome[0], PipelineSnapshot), outcome
        return outcome[0]

    try:
        yield ended
    finally:
        run.ask_to_stop()
        run.ask_to_stop()
        thread.join(DEADLINE_S)


def batches(onlooker: Onlooker) -> int:
    return max((query.batches for shot in onlooker.shots for query in shot.queries), default=0)


def all_but_the_second_run(onlooker: Onlooker) -> bool:
    if not onlooker.shots or onlooker.shots[-1].state != "Running":
        return False
    states = [query.state for query in onlooker.shots[-1].queries]
    return states == ["Running", "Stopped", "Running", "Running"]


def test_a_stop_lets_the_batch_finish(pipelines: Pipelines, make_hub: MakeHub) -> None:
    hub = make_hub(2)
    hub.send(["one", "two"])
    # Batches of half a second: a stop falls into one.
    file = pipelines.write(
        "slow",
        """
import threading

def pipeline(spark, hubs, hub=""):
    def write(batch, number):
        count = batch.count()
        threading.Event().wait(0.5)
        done.append((number, count))

    return hubs.read(hub, maxEventsPerTrigger=1).writeStream.foreachBatch(write)

done = []
""",
    )
    run = pipelines.begin(file, trigger={"processingTime": "0 seconds"}, hub=hub.name)
    with in_background(run) as ended:
        pipelines.onlooker.wait_for(lambda seen: batches(seen) >= 1)
        run.ask_to_stop()
        shot = ended()
    done = sys.modules["penstock_pipeline_file"].done
    (query,) = shot.queries
    assert (shot.state, query.state) == ("Stopped", "Stopped")
    assert "Stopping" in [each.state for each in pipelines.onlooker.shots]
    # What was begun before the stop is finished and noted: nothing is done twice afterwards.
    hub.send(["three"])
    pipelines.begin(file, hub=hub.name).run()
    again = sys.modules["penstock_pipeline_file"].done
    numbers = [number for number, _ in [*done, *again]]
    assert numbers == list(range(len(numbers)))
    assert sum(count for _, count in [*done, *again]) == 3


def test_a_query_has_a_trigger_and_a_name_unless_it_says_otherwise(
    pipelines: Pipelines, make_hub: MakeHub, spark: SparkSession
) -> None:
    hub = make_hub(2)
    file = pipelines.write(
        "named",
        """
def pipeline(spark, hubs, hub=""):
    events = hubs.read(hub)
    events.writeStream.format("noop").start()
    events.writeStream.format("noop").queryName("mine").trigger(availableNow=True).start()
    return [events.writeStream.format("noop"), events.writeStream.format("noop")]
""",
    )
    run = pipelines.begin(file, trigger={"processingTime": "3 seconds"}, hub=hub.name)
    with in_background(run) as ended:
        pipelines.onlooker.wait_for(all_but_the_second_run)
        active = {query.name for query in spark.streams.active}
        run.ask_to_stop()
        ended()
    # Numbered as they are made, so that each finds its checkpoint again.
    assert active == {"named", "named-3", "named-4"}
    folders = {each.name for each in (pipelines.folder / "checkpoints").iterdir()}
    assert folders == {"named", "mine", "named-3", "named-4"}
    assert spark.range(1).count() == 1, "the session is as before"


@pytest.mark.parametrize(
    ("words", "restarts"),
    [
        ("the disk is on fire", 1),
        # A process of Spark's that came too late on a busy machine: that is nobody's failure.
        ("Python worker failed to connect back", 0),
    ],
)
def test_a_query_that_fails_is_started_again_and_goes_on(
    pipelines: Pipelines, make_hub: MakeHub, words: str, restarts: int
) -> None:
    hub = make_hub(2)
    hub.send(["one", "two", "three"], partition_id="0")
    marker = pipelines.folder / "failed-once"
    file = pipelines.write(
        "fragile",
        f"""
from pathlib import Path

def pipeline(spark, hubs, hub=""):
    def write(batch, number):
        rows = [bytes(row.body).decode() for row in batch.collect()]
        marker = Path({str(marker)!r})
        if rows == ["two"] and not marker.exists():
            marker.touch()
            raise ValueError({words!r})
        with Path({str(pipelines.folder / "seen")!r}).open("a") as seen:
            seen.writelines(row + "\\n" for row in rows)

    return hubs.read(hub, maxEventsPerTrigger=1).writeStream.foreachBatch(write)
""",
    )
    shot = pipelines.begin(file, restarts=restarts, hub=hub.name).run()
    assert shot.restarts >= 1 and shot.state == "Stopped"
    assert (pipelines.folder / "seen").read_text().split() == ["one", "two", "three"]
    told = [note for note in pipelines.onlooker.notes if words in note]
    assert told and "Starting again in " in told[0]


def test_a_pipeline_whose_jvm_ended_goes_on_in_another(
    pipelines: Pipelines, make_hub: MakeHub, spark: SparkSession
) -> None:
    hub = make_hub(2)
    hub.send(["one", "two"])
    marker = pipelines.folder / "ended-once"
    file = pipelines.write(
        "orphan",
        f"""
from pathlib import Path

def pipeline(spark, hubs, hub=""):
    marker = Path({str(marker)!r})
    if not marker.exists():
        marker.touch()
        raise ConnectionRefusedError("nobody is there")  # as py4j says it
    return hubs.read(hub).writeStream.format("noop")
""",
    )
    renewed: list[SparkSession] = []

    def restart_spark() -> SparkSession:
        renewed.append(spark)
        return spark

    shot = pipelines.begin(file, restarts=1, restart_spark=restart_spark, hub=hub.name).run()
    assert (shot.state, shot.queries[0].rows) == ("Stopped", 2)
    assert len(renewed) == 1
    marker.unlink()
    with pytest.raises(PenstockError, match="JVM ended"):
        pipelines.begin(file, restarts=1, hub=hub.name).run()


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (COUNT, NotFound, "missing-hub"),
        ("def pipeline(spark, hubs):\n    return 1 / 0", PenstockError, "ZeroDivisionError"),
        ("def pipeline(spark, hubs):\n    pass", ConfigurationError, "started no query"),
        ("def pipeline(spark, hubs):\n    return 5", ConfigurationError, "returned int"),
        ("def pipeline(spark, hubs):\n    return spark.range(1)", ConfigurationError, "no stream"),
    ],
    ids=["hub", "code", "nothing", "return", "batch"],
)
def test_a_pipeline_that_cannot_run_says_why(
    pipelines: Pipelines, text: str, kind: type[PenstockError], said: str
) -> None:
    file = pipelines.write("broken", text)
    given: dict[str, Any] = {"hub": "missing-hub"} if text is COUNT else {}
    with pytest.raises(kind, match=said) as raised:
        pipelines.begin(file, **given).run()
    assert pipelines.onlooker.shots[-1].state == "Failed"
    assert "Traceback" not in str(raised.value)


def test_a_wrong_key_is_denied_and_not_shown(pipelines: Pipelines, make_hub: MakeHub) -> None:
    hub = make_hub(2)
    wrong = hub.server.connection_string(key="d3Jvbmcta2V5LXdyb25nLWtleQ==")
    file = pipelines.write("denied", COUNT)
    with pytest.raises(Unauthorized) as raised:
        pipelines.begin(file, connection={"connectionString": wrong}, hub=hub.name).run()
    assert "d3Jvbmc" not in str(raised.value)


def test_a_script_that_waits_for_its_query_is_watched_all_the_same(
    pipelines: Pipelines, make_hub: MakeHub
) -> None:
    hub = make_hub(2)
    hub.send([f"{number}" for number in range(100)])
    file = pipelines.write(
        "script",
        f"""
query = (
    spark.readStream.format("eventhubs")
    .options(**hubs.options({hub.name!r}), startingPosition="earliest")
    .load()
    .writeStream.format("noop")
    .start()
)
query.awaitTermination()
""",
    )
    shot = pipelines.begin(file).run()
    (query,) = shot.queries
    assert (query.name, query.rows, shot.state) == ("script", 100, "Stopped")
