"""One Spark session and one broker for all Spark tests: each takes seconds to start.

`spark` is local[2,4]: two cores, and a task that fails is tried again as on a cluster. `broker` is
a real `penstock serve`; `make_hub(partitions)` makes a hub that no other test has.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.conftest import Server, ServerFactory

# C1 only: tests are short, and C2 takes both cores while they last.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -Xss4m -Xlog:disable -Xlog:all=error:stderr"
SEND_EVENTS_MAX = 500


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test of a session pays for the start of Spark, on a machine that may be busy."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(400))


@pytest.fixture(scope="session")
def spark_conf(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What every session of these tests has; also for those that start a process of their own."""
    folder = tmp_path_factory.mktemp("spark")
    events = folder / "event-log"
    events.mkdir()
    return {
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.ui.port": 0,
        "spark.eventLog.enabled": True,
        "spark.eventLog.compress": False,
        "spark.eventLog.dir": events.as_uri(),
        "spark.sql.streaming.stopTimeout": "60s",
        "spark.sql.streaming.stateStore.maintenanceInterval": "1h",
    }


@pytest.fixture(scope="session")
def spark_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the JVM and the Python processes that it starts write to stderr."""
    return tmp_path_factory.mktemp("spark-log") / "stderr"


@pytest.fixture(scope="session")
def spark(spark_conf: dict[str, Any], spark_log: Path) -> SparkSession:
    """Stopped after the last test below this folder: see pytest_runtest_teardown."""
    from penstock.spark import session

    before = dict(os.environ)
    with _stderr_to(spark_log):  # the JVM inherits it
        made = session(app_name="penstock-tests", master="local[2,4]", **spark_conf)
    made.sparkContext.setLogLevel("ERROR")

    def restore_environment() -> None:
        os.environ.clear()
        os.environ.update(before)

    _stop_spark.callback(restore_environment)
    _stop_spark.callback(_stop_gateway)
    _stop_spark.callback(made.stop)
    return made


_stop_spark = contextlib.ExitStack()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """A worker goes on with other folders: neither the session nor its environment follows."""
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        _stop_spark.close()


@contextlib.contextmanager
def _stderr_to(file: Path) -> Iterator[None]:
    kept = os.dup(2)
    with file.open("ab") as opened:
        os.dup2(opened.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _stop_gateway() -> None:
    """The JVM lives as long as this process unless it is told; its pipe would be a warning."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    if gateway is None:
        return
    gateway.shutdown()
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.stdin.close()
        process.wait(60)
    SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(scope="session")
def broker(start_session_server: ServerFactory) -> Server:
    """One `penstock serve` for all; a test that stops or kills its broker starts its own."""
    return start_session_server("--hub", "unused")


class TestHub:
    """A hub with ways to fill and to look at it that know nothing of Spark."""

    __test__ = False

    def __init__(self, server: Server, name: str, partitions: int) -> None:
        self.server = server
        self.name = name
        self.partitions = partitions

    @property
    def connection_string(self) -> str:
        """Of the hub, over plain TCP."""
        return f"{self.server.connection_string()};EntityPath={self.name}"

    @property
    def tls_connection_string(self) -> str:
        return f"{self.server.connection_string(tls=True)};EntityPath={self.name}"

    @property
    def options(self) -> dict[str, str]:
        return {"eventhubs.connectionString": self.connection_string}

    def send(
        self,
        bodies: Iterable[bytes | str],
        *,
        partition_id: str | None = None,
        partition_key: str | None = None,
        properties: Mapping[str, object] | None = None,
    ) -> int:
        """In batches; round robin over the partitions unless a partition or key is named."""
        return asyncio.run(
            self._send(list(bodies), partition_id, partition_key, dict(properties or {}))
        )

    async def _send(
        self,
        bodies: list[bytes | str],
        partition_id: str | None,
        partition_key: str | None,
        properties: dict[str, Any],
    ) -> int:
        from penstock.client import EventData, EventHubProducerClient

        async with EventHubProducerClient(self.connection_string) as producer:
            number, rest = 0, bodies
            while rest:
                place = partition_id
                if place is None and partition_key is None:
                    place = str(number % self.partitions)
                batch = await producer.create_batch(partition_id=place, partition_key=partition_key)
                taken = 0
                while taken < min(len(rest), SEND_EVENTS_MAX):
                    body = rest[taken]
                    data = body.encode() if isinstance(body, str) else body
                    if not batch.try_add(EventData(data, properties=dict(properties))):
                        break
                    taken += 1
                assert taken, "a body is larger than a batch"
                await producer.send_batch(batch)
                number, rest = number + 1, rest[taken:]
        return len(bodies)

    def spread(self, count: int, *, prefix: str = "", size: int = 0) -> list[bytes]:
        """`count` distinct bodies, a share to each partition; what was sent, in order."""
        bodies = [f"{prefix}{number}".encode().ljust(size, b".") for number in range(count)]
        share = -(-count // self.partitions)
        for index in range(self.partitions):
            self.send(bodies[index * share : (index + 1) * share], partition_id=str(index))
        return bodies

    def read(self) -> dict[str, list[bytes]]:
        """Every body by partition, in order, read by the client alone."""
        return asyncio.run(self._read())

    async def _read(self) -> dict[str, list[bytes]]:
        from penstock.client import EventHubConsumerClient

        found: dict[str, list[bytes]] = {}
        async with EventHubConsumerClient(self.connection_string) as consumer:
            for index in range(self.partitions):
                bodies: list[bytes] = []
                async for columns in consumer.read_range(str(index), 0, 2**62):
                    bodies += [bytes(body) for body in columns.bodies]
                found[str(index)] = bodies
        return found


MakeHub = Callable[..., TestHub]
_numbers = itertools.count(1)


def new_hub(server: Server, partitions: int, *, name: str | None = None) -> TestHub:
    from penstock.management.client import ManagementClient

    name = name or f"spark-{next(_numbers)}"
    with ManagementClient(server["admin"], server["admin_token"]) as management:
        management.put_hub(server["namespace"], name, partition_count=partitions)
    return TestHub(server, name, partitions)


@pytest.fixture
def make_hub(broker: Server) -> MakeHub:
    """`make_hub(4)`, or `make_hub(4, server=another)`."""

    def make(
        partitions: int = 4, *, server: Server | None = None, name: str | None = None
    ) -> TestHub:
        return new_hub(server or broker, partitions, name=name)

    return make
