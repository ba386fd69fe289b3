"""`penstock capture compact`: many small files become one Parquet file per hour and partition.

Spark's tasks make the files and upload them whole, as captured ones. A file's name follows from its
hour and partition, so compacting can be repeated: events that a compacted file has stay in it, also
when the captured files were deleted since. Each file names its hub.
"""

from __future__ import annotations

import itertools
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import timedelta
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyarrow import parquet

from penstock.capture.destinations import DestinationFolder
from penstock.capture.hub_files import FileLocationFilter
from penstock.capture.storage import FileStore
from penstock.formats.quantities import EPOCH
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
    first = to_microseconds("--from", since, 0) // _HOUR_US
    end = -(-to_microseconds("--until", until, 0) // _HOUR_US)
    start = None if since is None else EPOCH + timedelta(hours=first)
    return start, None if until is None else EPOCH + timedelta(hours=end)


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
    """One file after the other: the rows are sorted by hour, then by ORDER. Raises ArgumentError
    where an existing file is not of this hub, DestinationError; that file stays as it is."""
    parts = (part for batch in batches for part in _split_by_hour(batch, owner))
    for hour, group in itertools.groupby(parts, key=itemgetter(0)):
        rows = (rows for _, rows in group)
        yield pa.RecordBatch.from_pylist([_write_hour_file(hour, rows, store, folder, owner)])


def _split_by_hour(batch: Any, owner: FileOwner) -> Iterator[tuple[FileHour, Any]]:
    """Consecutive rows of one file, without the columns of the hour."""
    columns = [batch.column(name).to_pylist() for name in _HOUR_COLUMNS]
    rows = pa.Table.from_batches([batch.drop_columns(["date", "hour"])])
    rows = rows.replace_schema_metadata(owner.metadata)
    first = 0
    for hour, group in itertools.groupby(zip(*columns, strict=True)):
        count = sum(1 for _ in group)
        yield hour, rows.slice(first, count)
        first += count


class FileOwner(NamedTuple):
    """The hub whose events a file has."""

    namespace: str
    hub: str

    @property
    def metadata(self) -> dict[bytes, bytes]:
        return {_NAMESPACE: self.namespace.encode(), _HUB: self.hub.encode()}


def _write_hour_file(
    hour: FileHour, added: Iterator[Any], store: FileStore, folder: Path, owner: FileOwner
) -> dict[str, object]:
    """Write the rows of the existing file and new ones, each event once. Both are sorted and merged
    as they stream, so memory holds some rows of each. Returns the row of the result."""
    path = f"date={hour[0]}/hour={hour[1]}/partition-{hour[2]}.parquet"
    spooled = folder / "spooled.parquet"
    head = next(added)
    schema = head.schema
    events = 0
    group: list[Any] = []
    with ExitStack() as opened:
        stored: Iterator[Any] = iter(())
        if store.size(path) is not None:
            file = opened.enter_context(store.open(path))
            stored = _open_stored(file, store.url(path), schema, owner)
        writer = opened.enter_context(parquet.ParquetWriter(spooled, schema, compression="zstd"))
        new = _SortedRows(itertools.chain([head], added), schema)
        for rows in _merge(_SortedRows(stored, schema), new):
            events += rows.num_rows
            group.append(rows)
            if sum(table.nbytes for table in group) >= _GROUP_BYTES:
                writer.write_table(pa.concat_tables(group))
                group.clear()
        if group:
            writer.write_table(pa.concat_tables(group))
    size = spooled.stat().st_size
    store.upload(spooled, path)
    return {"path": path, "partition": hour[2], "events": events, "bytes": size}


class _SortedRows:
    """Tables in the order of their keys. `keys` are those of the rows in memory; none at the
    end."""

    def __init__(self, tables: Iterator[Any], schema: Any) -> None:
        self._tables = tables
        self._held = schema.empty_table()
        self.keys: list[_Key] = []
        self._fill()

    def take(self, reached: _Key) -> tuple[Any, list[_Key]]:
        """The rows in memory up to this key, and their keys."""
        count = bisect_right(self.keys, reached)
        rows, keys = self._held.slice(0, count), self.keys[:count]
        self._held, self.keys = self._held.slice(count), self.keys[count:]
        self._fill()
        return rows, keys

    def _fill(self) -> None:
        while not self.keys and (table := next(self._tables, None)) is not None:
            self._held = table
            columns = [table.column(name).cast(pa.int64()).to_pylist() for name in ORDER]
            self.keys = list(zip(*columns, strict=True))


def _merge(stored: _SortedRows, added: _SortedRows) -> Iterator[Any]:
    """The rows of both in the order of their keys; new rows of stored events are left out."""
    last: _Key | None = None  # of the stored rows that were taken
    while stored.keys or added.keys:
        reached = min(side.keys[-1] for side in (stored, added) if side.keys)
        rows, keys = stored.take(reached)
        new, new_keys = added.take(reached)
        present = {last, *keys}
        new = new.filter(pa.array([key not in present for key in new_keys], pa.bool_()))
        last = keys[-1] if keys else last
        if rows.num_rows and new.num_rows:
            both = pa.concat_tables([rows, new])
            yield both.sort_by([(name, "ascending") for name in ORDER])
        elif rows.num_rows or new.num_rows:
            yield rows if rows.num_rows else new


def _open_stored(file: Any, url: str, schema: Any, owner: FileOwner) -> Iterator[Any]:
    def foreign_file_error(what: str) -> ArgumentError:
        return ArgumentError(
            f"{url} {what} and is not overwritten: each hub needs a directory of its own (--to)."
        )

    try:
        reader = parquet.ParquetFile(file)
    except pa.ArrowException:
        raise foreign_file_error("is not a Parquet file") from None
    metadata = reader.schema_arrow.metadata or {}
    if not owner.metadata.keys() <= metadata.keys():
        raise foreign_file_error("does not name its event hub")
    whose = "/".join(metadata[name].decode(errors="replace") for name in owner.metadata)
    if whose.casefold() != "/".join(owner).casefold():
        raise foreign_file_error(f"holds events of '{whose}'")
    if reader.schema_arrow.names != schema.names:
        raise foreign_file_error("has other columns")
    batches = reader.iter_batches(batch_size=_ROWS)
    return (pa.Table.from_batches([batch]).cast(schema) for batch in batches)
