"""Runs a pipeline file on the session of these tests, as `penstock pipeline run` does."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.spark.pipelines.pipeline_file import PipelineFile, PipelineHubs, ShowRows
from penstock.spark.pipelines.runner import PipelineRun, PipelineSnapshot, RunSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.conftest import Server

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "pipelines"


class Onlooker:
    """Keeps what it is shown; `seen` is set when a batch was."""

    def __init__(self) -> None:
        self.shots: list[PipelineSnapshot] = []
        self.shown: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.changed = threading.Condition()

    def show_snapshot(self, snapshot: PipelineSnapshot) -> None:
        with self.changed:
            self.shots.append(snapshot)
            self.changed.notify_all()

    def show_rows(self, query: str, batch_id: int, rows: list[str]) -> None:
        with self.changed:
            self.shown += [json.loads(row) for row in rows]
            self.changed.notify_all()

    def show_message(self, text: str) -> None:
        with self.changed:
            self.notes.append(text)
            self.changed.notify_all()

    def wait_for(self, what: Callable[[Onlooker], object], timeout_s: float = 180) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: what(self), timeout_s), self.shots[-1:]


class Pipelines:
    """`run` to the end of what is there; `begin` leaves the run to the test."""

    def __init__(self, spark: SparkSession, server: Server, folder: Path) -> None:
        self._spark = spark
        self._server = server
        self.folder = folder
        self.onlooker = Onlooker()

    def begin(
        self,
        file: Path,
        *,
        trigger: dict[str, Any] | None = None,
        restarts: int | None = 0,
        reading: dict[str, str] | None = None,
        connection: dict[str, str] | None = None,
        restart_spark: Callable[[], SparkSession] | None = None,
        **arguments: str,
    ) -> PipelineRun:
        self.onlooker = Onlooker()
        settings = RunSettings(
            name=file.stem,
            arguments=arguments,
            trigger=trigger or {"availableNow": True},
            is_trigger_forced=trigger is None,
            restarts_max=restarts,
        )

        def hubs(spark: SparkSession, show: ShowRows) -> PipelineHubs:
            return PipelineHubs(
                spark,
                connection or {"connectionString": self._server.connection_string()},
                reading={"startingPosition": "earliest", **(reading or {})},
                show=show,
            )

        made = PipelineFile(file)
        return PipelineRun(
            self._spark, made, settings, self.onlooker, hubs=hubs, restart_spark=restart_spark
        )

    def run(self, name: str, **options: Any) -> PipelineSnapshot:
        file = EXAMPLES / f"{name}.py" if "/" not in name else Path(name)
        return self.begin(file, **options).run()

    def write(self, name: str, text: str) -> Path:
        file = self.folder / f"{name}.py"
        file.write_text(text)
        return file


@pytest.fixture
def pipelines(
    spark: SparkSession, broker: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Pipelines]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    checkpoints = tmp_path / "checkpoints"
    spark.conf.set("spark.sql.streaming.checkpointLocation", checkpoints.as_uri())
    yield Pipelines(spark, broker, tmp_path)
    spark.conf.unset("spark.sql.streaming.checkpointLocation")
    for query in spark.streams.active:
        query.stop()
    sys.modules.pop("readings", None)
