"""Capture continues on the state that commit 2ffc782 left: every event in one file, once.

How the directories were made: tests/fixtures/data_directory_2ffc782/write.py.
"""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.faults.test_old_data_directory import OldDirectory
from tests.spark.capture.conftest import records, run_plan

from penstock.capture.destinations import Destination
from penstock.spark.capture.plan import CapturePlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def _served(old: OldDirectory) -> Iterator[str]:
    """The connection string of the service on the old directory, which runs in a thread."""
    started: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.new_event_loop()
    stopping = asyncio.Event()

    async def serve() -> None:
        async with old.served() as service:
            await started.put(service.connection_string)
            await stopping.wait()

    running = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    running.start()
    try:
        yield asyncio.run_coroutine_threadsafe(started.get(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(stopping.set)
        running.join(60)
        loop.close()


@pytest.mark.full("spark")
@pytest.mark.parametrize("name", ["stopped", "killed"])
def test_capture_continues_on_an_old_state(spark: SparkSession, tmp_path: Path, name: str) -> None:
    old = OldDirectory(tmp_path, name)
    (file,) = (old.data / "capture").glob("*/plan.json")
    stored = msgspec.json.decode(file.read_bytes())
    events = old.expected["events"]["orders"]
    with _served(old) as connection_string:
        plan = msgspec.structs.replace(
            msgspec.convert({"id": name, "on_ms": 0, **stored}, CapturePlan),
            state=str(file.parent),
            destinations=[Destination(name="lake", url=(tmp_path / "captured").as_uri())],
            connection_string=connection_string,
            stops={partition: len(rows) for partition, rows in events.items()},
            off_ms=old.expected["now_ms"],
        )
        run_plan(spark, plan)
    for partition, rows in events.items():
        folder = tmp_path / "captured" / "orders" / "factory" / "orders" / partition
        found = [each["Body"] for path in sorted(folder.rglob("*.avro")) for each in records(path)]
        assert found == [base64.b64decode(row[3]) for row in rows]
