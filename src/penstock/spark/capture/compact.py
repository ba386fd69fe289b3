"""`penstock capture compact`: many small files become one Parquet file for each hour and partition.

The files are made by Spark's tasks and put in place whole, by the same means as captured ones: at
every kind of destination. A file's name follows from what it holds, so it can be done again: what
is there already is kept, also when the captured files are gone by then. Each file says whose it is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.capture.destinations import DestinationFolder, FileStore
from penstock.capture.hub_files import FileLocationFilter
from penstock.model.errors import PenstockError
from penstock.spark.capture.compacted_file import ORDER, FileOwner, HourFile, Place
from penstock.spark.capture.history import CapturedFiles, HistoryLocation, Moment, to_microseconds
from penstock.spark.errors import explain_failure
from penstock.spark.launcher import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_HOUR_US = 3_600_000_000
_PLACE = ("date", "hour", "partition")
_RESULT = "path string, partition string, events long, bytes long"
_CONF = {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "8"}


def compact(
    shelves: Sequence[FileLocationFilter],
    *,
    namespace: str,
    hub: str,
    to: DestinationFolder,
    since: Moment = None,
    until: Moment = None,
    master: str = "local[*]",
) -> list[dict[str, Any]]:
    """Join a hub's files into Parquet below `to`; what was written, file by file. Hours are taken
    whole: one that is joined again has what it had, and what came since. Raises PenstockError, also
    where a file of another hub is in the way."""
    where = HistoryLocation(shelves=list(shelves), namespace=namespace, hub=hub)
    start, end = whole_hours(since, until)
    with tempfile.TemporaryDirectory(prefix="penstock-compact-") as folder:
        log = Path(folder, "spark.log")
        try:
            with spark_session(
                app_name="penstock-compact", master=master, remote=None, conf=_CONF, log=log
            ) as spark:
                frame = CapturedFiles(where).frame(spark, start, end)
                return write_by_hour(frame, to, namespace=namespace, hub=hub)
        except PenstockError:
            raise
        except Exception as error:  # noqa: BLE001  # whatever Spark throws: one sentence of it
            raise explain_failure(str(error)).error() from None


def whole_hours(since: Moment, until: Moment) -> tuple[Moment, Moment]:
    """
    >>> [at.hour for at in whole_hours("2026-11-17T08:30:00Z", "2026-11-17T09:00:01Z")]
    [8, 10]
    """
    from datetime import UTC, datetime, timedelta

    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    since_us, until_us = to_microseconds("--from", since), to_microseconds("--until", until)
    start = None if since_us is None else epoch + timedelta(hours=since_us // _HOUR_US)
    end = None if until_us is None else epoch + timedelta(hours=-(-until_us // _HOUR_US))
    return start, end


def write_by_hour(
    frame: DataFrame, to: DestinationFolder, *, namespace: str, hub: str
) -> list[dict[str, Any]]:
    """`date=2026-11-17/hour=8/partition-0.parquet`: one file for each hour and hub's partition."""
    from pyspark.sql import functions as f

    placed = frame.withColumn("date", f.date_format("enqueuedTime", "yyyy-MM-dd")).withColumn(
        "hour", f.hour("enqueuedTime")
    )
    ordered = placed.repartition(*_PLACE).sortWithinPartitions(*_PLACE, *ORDER)
    written = ordered.mapInArrow(_writer(to, FileOwner(namespace, hub)), _RESULT).collect()
    return sorted((row.asDict() for row in written), key=lambda row: str(row["path"]))


def _writer(to: DestinationFolder, owner: FileOwner) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def write(batches: Iterator[Any]) -> Iterator[Any]:
        with tempfile.TemporaryDirectory(prefix="penstock-compact-") as folder:
            yield from write_hour_files(batches, FileStore(to), Path(folder), owner)

    return write


def write_hour_files(
    batches: Iterator[Any], store: FileStore, folder: Path, owner: FileOwner
) -> Iterator[Any]:
    """One file after the other, as the rows come: sorted by where they belong."""
    import pyarrow as pa

    making: HourFile | None = None
    try:
        for batch in batches:
            for place, rows in _by_place(batch):
                if making is not None and making.place != place:
                    yield pa.RecordBatch.from_pylist([making.finish()])
                    making = None
                if making is None:
                    making = HourFile(place, rows.schema, folder, store, owner)
                making.add(rows)
        if making is not None:
            yield pa.RecordBatch.from_pylist([making.finish()])
    finally:
        if making is not None:
            making.close()


def _by_place(batch: Any) -> Iterator[tuple[Place, Any]]:
    """A batch's rows in runs that belong to one file, without the columns that say so."""
    columns = [batch.column(name).to_pylist() for name in _PLACE]
    places = list(zip(*columns, strict=True))
    rows = batch.drop_columns(["date", "hour"])
    first = 0
    for index in range(1, len(places) + 1):
        if index == len(places) or places[index] != places[first]:
            yield places[first], rows.slice(first, index - first)
            first = index
