"""`penstock capture compact`: many small files become one Parquet file per hour and partition.

Spark's tasks make the files and upload them whole, as captured ones. A file's name follows from its
hour and partition, so compacting can be repeated: events that a compacted file has stay in it, also
when the captured files were deleted since. Each file names its hub.
"""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyarrow import parquet

from penstock.capture.destinations import DestinationFolder
from penstock.capture.hub_files import FileLocationFilter
from penstock.capture.storage import FileStore
from penstock.model.errors import ArgumentError, PenstockError
from penstock.spark.capture.history import CapturedFiles, HistoryLocation, Moment, to_microseconds
from penstock.spark.errors import explain_failure
from penstock.spark.launcher import JvmLauncher

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_HOUR_US = 3_600_000_000
_HOUR_COLUMNS = ("date", "hour", "partition")
_RESULT = "path string, partition string, events long, bytes long"
_CONF = {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "8"}
FileHour = tuple[str, int, str]  # date, hour, partition
ORDER = ("sequenceNumber", "enqueuedTime")
"""What identifies an event: a hub that was deleted and created again has the same numbers."""
_NAMESPACE, _HUB = b"penstock.namespace", b"penstock.eventHub"  # in a file's metadata
_ROWS = 4096
_GROUP_BYTES = 16 * 1024 * 1024  # of rows that become one row group
_Key = tuple[int, int]


def compact(
    locations: Sequence[FileLocationFilter],
    *,
    namespace: str,
    hub: str,
    to: DestinationFolder,
    since: Moment = None,
    until: Moment = None,
    master: str = "local[*]",
) -> list[dict[str, Any]]:
    """Merge a hub's files into Parquet below `to`. Returns a row per written file. Hours are taken
    whole: a compacted hour gets the events that came since. Raises PenstockError, also where a file
    of another hub exists."""
    where = HistoryLocation(locations=list(locations), namespace=namespace, hub=hub)
    start, end = whole_hours(since, until)
    with tempfile.TemporaryDirectory(prefix="penstock-compact-") as folder:
        log = Path(folder, "spark.log")
        try:
            with JvmLauncher(
                app_name="penstock-compact", master=master, conf=_CONF, log=log
            ) as launcher:
                frame = CapturedFiles(where).frame(launcher.start(), start, end)
                return write_by_hour(frame, to, namespace=namespace, hub=hub)
        except PenstockError:
            raise
        except Exception as error:  # noqa: BLE001  # of any kind from Spark
            raise explain_failure(str(error)).error() from None


def whole_hours(since: Moment, until: Moment) -> tuple[Moment, Moment]:
    """
    >>> [at.hour for at in whole_hours("2026-11-17T08:30:00Z", "2026-11-17T09:00:01Z")]
    [8, 10]
    """
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    since_us, until_us = to_microseconds("--from", since), to_microseconds("--until", until)
    start = None if since_us is None else epoch + timedelta(hours=since_us // _HOUR_US)
    end = None if until_us is None else epoch + timedelta(hours=-(-until_us // _HOUR_US))
    return start, end


def write_by_hour(
    frame: DataFrame, to: DestinationFolder, *, namespace: str, hub: str
) -> list[dict[str, Any]]:
    """Write `date=2026-11-17/hour=8/partition-0.parquet`: a file per hour and partition."""
    from pyspark.sql import functions as f

    by_hour = frame.withColumn("date", f.date_format("enqueuedTime", "yyyy-MM-dd")).withColumn(
        "hour", f.hour("enqueuedTime")
    )
    ordered = by_hour.repartition(*_HOUR_COLUMNS).sortWithinPartitions(*_HOUR_COLUMNS, *ORDER)
    written = ordered.mapInArrow(_task_writer(to, FileOwner(namespace, hub)), _RESULT).collect()
    return sorted((row.asDict() for row in written), key=lambda row: str(row["path"]))


def _task_writer(
    to: DestinationFolder, owner: FileOwner
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def write(batches: Iterator[Any]) -> Iterator[Any]:
        with tempfile.TemporaryDirectory(prefix="penstock-compact-") as folder:
            yield from write_hour_files(batches, FileStore(to), Path(folder), owner)

    return write


def write_hour_files(
    batches: Iterator[Any], store: FileStore, folder: Path, owner: FileOwner
) -> Iterator[Any]:
    """One file after the other: the rows are sorted by hour, then by ORDER."""
    file: HourFile | None = None
    try:
        for batch in batches:
            for hour, rows in _split_by_hour(batch):
                if file is not None and file.hour != hour:
                    yield pa.RecordBatch.from_pylist([file.finish()])
                    file = None
                if file is None:
                    file = HourFile(hour, rows.schema, folder, store, owner)
                file.add(rows)
        if file is not None:
            yield pa.RecordBatch.from_pylist([file.finish()])
    finally:
        if file is not None:
            file.close()


def _split_by_hour(batch: Any) -> Iterator[tuple[FileHour, Any]]:
    """Consecutive rows of one file, without the columns of the hour."""
    columns = [batch.column(name).to_pylist() for name in _HOUR_COLUMNS]
    hours = list(zip(*columns, strict=True))
    rows = batch.drop_columns(["date", "hour"])
    first = 0
    for index in range(1, len(hours) + 1):
        if index == len(hours) or hours[index] != hours[first]:
            yield hours[first], rows.slice(first, index - first)
            first = index


class FileOwner(NamedTuple):
    """The hub whose events a file has."""

    namespace: str
    hub: str

    @property
    def metadata(self) -> dict[bytes, bytes]:
        return {_NAMESPACE: self.namespace.encode(), _HUB: self.hub.encode()}

    def is_of(self, metadata: dict[bytes, bytes]) -> bool:
        return all(
            metadata.get(name, b"").decode(errors="replace").casefold() == own.decode().casefold()
            for name, own in self.metadata.items()
        )


class HourFile:
    """The file of an hour and a partition: the rows of the existing file and new ones, each event
    once. Both are sorted and merged as they stream, so memory holds some rows of each.

    `add` rows in their order, then `finish`; `close` alone leaves the existing file as it is.
    Raises ArgumentError where the existing file is not of this hub, DestinationError."""

    def __init__(
        self, hour: FileHour, schema: Any, folder: Path, store: FileStore, owner: FileOwner
    ) -> None:
        self.hour = hour
        self._store = store
        self._path = f"date={hour[0]}/hour={hour[1]}/partition-{hour[2]}.parquet"
        self._schema = schema.with_metadata(owner.metadata)
        self._events = 0
        self._group: list[Any] = []
        self._spooled = folder / "spooled.parquet"
        with ExitStack() as opened:
            self._existing = _ExistingRows(opened, store, self._path, self._schema, owner)
            self._writer = opened.enter_context(
                parquet.ParquetWriter(self._spooled, self._schema, compression="zstd")
            )
            self._opened = opened.pop_all()

    def add(self, rows: Any) -> None:
        left = pa.Table.from_batches([rows]).replace_schema_metadata(self._schema.metadata)
        keys = _keys(left)
        while keys:
            if not self._existing.keys:
                self._write(left.filter(_rows_not_in(keys, {self._existing.last})))
                return
            reached = min(keys[-1], self._existing.keys[-1])
            count = bisect_right(keys, reached)
            stored_keys, stored = {self._existing.last}, self._existing.take(reached)
            stored_keys |= set(_keys(stored))
            new = left.slice(0, count).filter(_rows_not_in(keys[:count], stored_keys))
            both = pa.concat_tables([stored, new])
            self._write(both.sort_by([(name, "ascending") for name in ORDER]))
            left, keys = left.slice(count), keys[count:]

    def finish(self) -> dict[str, object]:
        """Upload the file with all rows of the existing one. Returns its row of the result."""
        while self._existing.keys:
            self._write(self._existing.take(self._existing.keys[-1]))
        self._flush()
        self.close()
        size = self._spooled.stat().st_size
        self._store.upload(self._spooled, self._path)
        return {
            "path": self._path,
            "partition": self.hour[2],
            "events": self._events,
            "bytes": size,
        }

    def close(self) -> None:
        """May be called twice."""
        self._opened.close()

    def _write(self, rows: Any) -> None:
        if rows.num_rows:
            self._events += rows.num_rows
            self._group.append(rows)
        if sum(table.nbytes for table in self._group) >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._group:
            self._writer.write_table(pa.concat_tables(self._group))
            self._group = []


class _ExistingRows:
    """The rows of the existing file, if there is one. `keys` are those of the rows in memory."""

    def __init__(
        self, opened: ExitStack, store: FileStore, path: str, schema: Any, owner: FileOwner
    ) -> None:
        self._schema = schema
        self._batches: Iterator[Any] = iter(())
        if store.size(path) is not None:
            self._batches = _open_batches(opened, store, path, schema, owner)
        self._held: Any = schema.empty_table()
        self.keys: list[_Key] = []
        self.last: _Key = (-1, 0)  # of the rows that were taken
        self._fill()

    def take(self, reached: _Key) -> Any:
        """The rows in memory up to this key."""
        count = bisect_right(self.keys, reached)
        rows = self._held.slice(0, count)
        if count:
            self.last = self.keys[count - 1]
        self._held, self.keys = self._held.slice(count), self.keys[count:]
        self._fill()
        return rows

    def _fill(self) -> None:
        while not self.keys and (batch := next(self._batches, None)) is not None:
            self._held = pa.Table.from_batches([batch]).cast(self._schema)
            self.keys = _keys(self._held)


def _open_batches(
    opened: ExitStack, store: FileStore, path: str, schema: Any, owner: FileOwner
) -> Iterator[Any]:
    file = opened.enter_context(store.open(path))
    try:
        reader = parquet.ParquetFile(file)
    except pa.ArrowException:
        raise _foreign_file_error(store, path, "is not a Parquet file") from None
    metadata = reader.schema_arrow.metadata or {}
    if not {_NAMESPACE, _HUB} <= set(metadata):
        raise _foreign_file_error(store, path, "does not name its event hub")
    if not owner.is_of(metadata):
        whose = "/".join(metadata[name].decode(errors="replace") for name in (_NAMESPACE, _HUB))
        raise _foreign_file_error(store, path, f"holds events of '{whose}'")
    if reader.schema_arrow.names != schema.names:
        raise _foreign_file_error(store, path, "has other columns")
    batches: Iterator[Any] = reader.iter_batches(batch_size=_ROWS)
    return batches


def _foreign_file_error(store: FileStore, path: str, what: str) -> ArgumentError:
    return ArgumentError(
        f"{store.url(path)} {what} and is not overwritten: each hub needs a directory of its own "
        "(--to)."
    )


def _keys(rows: Any) -> list[_Key]:
    columns = [rows.column(name).cast(pa.int64()).to_pylist() for name in ORDER]
    return list(zip(*columns, strict=True))


def _rows_not_in(keys: list[_Key], others: set[_Key]) -> Any:
    return pa.array([key not in others for key in keys], pa.bool_())
