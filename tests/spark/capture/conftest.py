"""Captures of small hubs: a plan, a query that ends by itself, and readers of its files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from tests.spark.capture.storages import S3Server, TlsAzurite, s3_server
from tests.spark.cluster import STARTS_MAX, TOO_BUSY

from penstock.capture.description import NAME_FORMAT_DEFAULT
from penstock.capture.destinations import Destination, resolve_destination
from penstock.capture.hub_files import FileLocationFilter
from penstock.model.capture import CaptureDescription
from penstock.spark.capture.plan import CapturePlan
from penstock.spark.capture.verify import CaptureVerification, ExpectedRange, verify

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from tests.conftest import NodeTools
    from tests.spark.conftest import TestHub

MB = 1024 * 1024
FAR_MS = 2**50


def settings(**changes: Any) -> CaptureDescription:
    """Smaller than the service lets anybody have them: tests do not wait for minutes."""
    usual: dict[str, Any] = {
        "encoding": "Avro",
        "interval_s": 300,
        "size_bytes": 10 * MB,
        "skip_empty": False,
        "account": "store",
        "container": "captured",
        "name_format": NAME_FORMAT_DEFAULT,
    }
    return CaptureDescription(**usual | changes)


def drained(hub: TestHub, folder: Path, **changes: Any) -> CapturePlan:
    """All that the hub has now, as if Capture had been on before and were off now."""
    counts = {key: len(bodies) for key, bodies in hub.read().items()}
    usual: dict[str, Any] = {
        "id": "run",
        "on_ms": 0,
        "namespace": hub.server["namespace"],
        "hub": hub.name,
        "settings": settings(),
        "destinations": [Destination(name="store", url=(folder / "files").as_uri())],
        "connection_string": hub.connection_string,
        "state": str(folder / "state"),
        "starts": dict.fromkeys(counts, 0),
        "stops": counts,
        "off_ms": time.time_ns() // 1_000_000,
    }
    return CapturePlan(**usual | changes)


RunCapture = Callable[[CapturePlan], None]


@pytest.fixture
def run_capture(spark: SparkSession) -> RunCapture:
    """Runs a plan until its state says that all is captured."""
    return lambda plan: run_plan(spark, plan)


def run_plan(spark: SparkSession, plan: CapturePlan) -> None:
    """Started again, as the capture job does, where a Python process of Spark's did not come up
    within the ten seconds that Spark has for it."""
    from penstock.spark.capture.run_query import start_query

    for starts_left in range(STARTS_MAX - 1, -1, -1):
        query = start_query(spark, plan, trigger="100 milliseconds")
        try:
            wait_until_drained(plan, query)
            return
        except AssertionError as error:
            if TOO_BUSY not in str(error) or not starts_left:
                raise
        finally:
            query.stop()


def wait_until_drained(plan: CapturePlan, query: Any, seconds: float = 120) -> None:
    assert plan.stops is not None
    ledger = plan.open_state()
    try:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            places = ledger.starts()
            if all(
                key in places and places[key].sequence >= stop
                for key, stop in plan.stops.items()
                if stop > plan.starts[key]
            ):
                return
            if not query.isActive:
                raise AssertionError(f"the query ended: {query.exception()}")
            time.sleep(0.02)
        raise AssertionError(f"not captured in {seconds} s: {ledger.starts()}")
    finally:
        ledger.close()


def wait_for_files(
    folder: Path, count: int, query: Any, *, kind: str = "avro", seconds: float = 120
) -> None:
    deadline = time.monotonic() + seconds
    while (found := len([*(folder / "files").rglob(f"*.{kind}")])) < count:
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, f"{found} files in {seconds} s"
        time.sleep(0.02)


def avro_files(folder: Path) -> list[Path]:
    return sorted((folder / "files" / "captured").rglob("*.avro"))


def records(file: Path) -> list[dict[str, Any]]:
    with file.open("rb") as opened:
        return list(fastavro.reader(opened))  # type: ignore[arg-type]


def bodies_by_partition(folder: Path, position: int = 2) -> dict[str, list[bytes]]:
    """As files tell it: in the order of their names, which is that of the windows."""
    found: dict[str, list[bytes]] = {}
    root = folder / "files" / "captured"
    for file in avro_files(folder):
        partition = file.relative_to(root).parts[position]
        found.setdefault(partition, []).extend(each["Body"] for each in records(file))
    return found


def bodies(frame: DataFrame) -> list[bytes]:
    rows = frame.select("partition", "sequenceNumber", "body").collect()
    return [bytes(row["body"]) for row in sorted(rows)]


def verified(plan: CapturePlan) -> CaptureVerification:
    assert plan.stops is not None
    given = plan.settings
    target = resolve_destination(plan.destinations, given.account, given.container)
    return verify(
        [FileLocationFilter(target=target, name_format=given.name_format)],
        namespace=plan.namespace,
        hub=plan.hub,
        expected=[
            ExpectedRange(key, first, plan.stops[key], plan.stops[key])
            for key, first in plan.starts.items()
        ],
        ranges=plan.ranges,
    )


@pytest.fixture(scope="session")
def tls_azurite(node: NodeTools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsAzurite]:
    made = TlsAzurite(node, tmp_path_factory.mktemp("tls-azurite"))
    yield made
    made.stop()


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with s3_server() as made:
        yield made
