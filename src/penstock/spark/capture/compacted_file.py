"""A joined file while it is made: what is there already, and what came since, each event once.

Both sides are sorted, so they are merged as they stream by: memory holds some rows of each, however
many the hour has.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from penstock.capture.destinations import FileStore
from penstock.capture.window_file import upload_file
from penstock.model.errors import ArgumentError

Place = tuple[str, int, str]  # date, hour, partition
ORDER = ("sequenceNumber", "enqueuedTime")
"""What an event is known by: a hub that was deleted and made anew has the same numbers again."""
_NAMESPACE, _HUB = b"penstock.namespace", b"penstock.eventHub"  # in a file's metadata
_ROWS = 4096
_GROUP_BYTES = 16 * 1024 * 1024  # of rows that become one row group
_Key = tuple[int, int]


class FileOwner(NamedTuple):
    """Whose events a file holds."""

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
    """One file for an hour and a partition. `add` rows in their order, then `finish`; `close`
    leaves everything as it was. Raises ArgumentError where the file that is there is no such file
    of this hub, DestinationError."""

    def __init__(
        self, place: Place, schema: Any, folder: Path, store: FileStore, owner: FileOwner
    ) -> None:
        from pyarrow import parquet

        date, hour, partition = place
        self.place = place
        self._store = store
        self._path = f"date={date}/hour={hour}/partition-{partition}.parquet"
        self._schema = schema.with_metadata(owner.metadata)
        self._events = 0
        self._group: list[Any] = []
        self._spooled = folder / "spooled.parquet"
        with ExitStack() as opened:
            self._there = _ExistingRows(opened, store, self._path, self._schema, owner)
            self._writer = opened.enter_context(
                parquet.ParquetWriter(self._spooled, self._schema, compression="zstd")
            )
            self._opened = opened.pop_all()

    def add(self, rows: Any) -> None:
        import pyarrow as pa

        left = pa.Table.from_batches([rows]).replace_schema_metadata(self._schema.metadata)
        keys = _keys(left)
        while keys:
            if not self._there.keys:
                self._write(left.filter(_rows_not_in(keys, {self._there.last})))
                return
            reached = min(keys[-1], self._there.keys[-1])
            count = bisect_right(keys, reached)
            known, theirs = {self._there.last}, self._there.take(reached)
            known |= set(_keys(theirs))
            mine = left.slice(0, count).filter(_rows_not_in(keys[:count], known))
            both = pa.concat_tables([theirs, mine])
            self._write(both.sort_by([(name, "ascending") for name in ORDER]))
            left, keys = left.slice(count), keys[count:]

    def finish(self) -> dict[str, object]:
        """Put in place, with all that was there."""
        while self._there.keys:
            self._write(self._there.take(self._there.keys[-1]))
        self._flush()
        self.close()
        size = self._spooled.stat().st_size
        upload_file(self._store, self._spooled, self._path)
        return {
            "path": self._path,
            "partition": self.place[2],
            "events": self._events,
            "bytes": size,
        }

    def close(self) -> None:
        """Harmless when done before."""
        self._opened.close()

    def _write(self, rows: Any) -> None:
        if rows.num_rows:
            self._events += rows.num_rows
            self._group.append(rows)
        if sum(each.nbytes for each in self._group) >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._group:
            self._writer.write_table(pa.concat_tables(self._group))
            self._group = []


class _ExistingRows:
    """The rows of the file that is there, if one is: `keys` are those that are held now."""

    def __init__(
        self, opened: ExitStack, store: FileStore, path: str, schema: Any, owner: FileOwner
    ) -> None:
        self._schema = schema
        self._batches: Iterator[Any] = iter(())
        if store.size(path) is not None:
            self._batches = _batches_of(opened, store, path, schema, owner)
        self._held: Any = schema.empty_table()
        self.keys: list[_Key] = []
        self.last: _Key = (-1, 0)  # of those that were taken
        self._fill()

    def take(self, reached: _Key) -> Any:
        """Those that are held and not behind this one."""
        count = bisect_right(self.keys, reached)
        taken = self._held.slice(0, count)
        if count:
            self.last = self.keys[count - 1]
        self._held, self.keys = self._held.slice(count), self.keys[count:]
        self._fill()
        return taken

    def _fill(self) -> None:
        import pyarrow as pa

        while not self.keys and (batch := next(self._batches, None)) is not None:
            self._held = pa.Table.from_batches([batch]).cast(self._schema)
            self.keys = _keys(self._held)


def _batches_of(
    opened: ExitStack, store: FileStore, path: str, schema: Any, owner: FileOwner
) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import parquet

    file = opened.enter_context(store.open(path))
    try:
        reader = parquet.ParquetFile(file)
    except pa.ArrowException:
        raise _in_the_way(store, path, "is no Parquet file") from None
    metadata = reader.schema_arrow.metadata or {}
    if not {_NAMESPACE, _HUB} <= set(metadata):
        raise _in_the_way(store, path, "does not say whose events it holds")
    if not owner.is_of(metadata):
        whose = "/".join(metadata[name].decode(errors="replace") for name in (_NAMESPACE, _HUB))
        raise _in_the_way(store, path, f"holds events of '{whose}'")
    if reader.schema_arrow.names != schema.names:
        raise _in_the_way(store, path, "has other columns")
    batches: Iterator[Any] = reader.iter_batches(batch_size=_ROWS)
    return batches


def _in_the_way(store: FileStore, path: str, what: str) -> ArgumentError:
    return ArgumentError(
        f"{store.url(path)} {what}, and is not written over: each hub is joined into a directory "
        "of its own (--to)."
    )


def _keys(rows: Any) -> list[_Key]:
    import pyarrow as pa

    columns = [rows.column(name).cast(pa.int64()).to_pylist() for name in ORDER]
    return list(zip(*columns, strict=True))


def _rows_not_in(keys: list[_Key], known: set[_Key]) -> Any:
    import pyarrow as pa

    return pa.array([key not in known for key in keys], pa.bool_())
