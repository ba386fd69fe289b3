"""Check one captured file against the log.

A file is first compared as a whole. Where that fails, event by event: memory holds a block of each
side, whatever the file's size. Retention may remove events from the log during the comparison, so
events that differ are judged by where the log begins then.
"""

from __future__ import annotations

import hashlib
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, Any

import msgspec

from penstock.capture.container import AvroContainerReader, DamagedAvroFile
from penstock.capture.hub_files import ListedFile
from penstock.capture.records import is_iso_time, read_capture_records, to_ranges
from penstock.capture.storage import FileStore
from penstock.client.ranges import EventsLost, HubReader, RangeSettings
from penstock.model.capture import SequenceRange
from penstock.spark.capture.blocks import CaptureBlock, read_blocks

PROBLEMS_MAX = 100
_PIECE_BYTES = 1024 * 1024
_ROWS = 4096
_EMPTY = (2**62, 2**62)  # bounds of an empty log


class FileCheckResult(msgspec.Struct, kw_only=True):
    """What one file contains. `ranges` are its sequence numbers."""

    ranges: list[SequenceRange] = []
    events: int = 0
    compared: int = 0  # with the log
    unretained: int = 0
    different: int = 0
    problems: list[str] = []
    sha256: str = ""
    is_damaged: bool = False

    def add(self, ranges: Sequence[SequenceRange]) -> None:
        """Events that follow those before. Raises DamagedAvroFile where they do not."""
        for first, end in ranges:
            self.events += end - first
            if self.ranges and first < self.ranges[-1][1]:
                raise DamagedAvroFile(f"Event {first} follows event {self.ranges[-1][1] - 1}.")
            if self.ranges and first == self.ranges[-1][1]:
                first = self.ranges.pop()[0]
            self.ranges.append((first, end))


class RetainedRanges:
    """First and last event of each partition in the log. Read again where it matters: retention
    goes on while files are compared."""

    def __init__(self, ranges: RangeSettings) -> None:
        self.ranges = ranges
        self._bounds: dict[str, tuple[int, int]] = {}
        self.refresh()

    def refresh(self) -> None:
        with HubReader(self.ranges) as reader:
            self._bounds = {
                key: (bounds["beginning_sequence_number"], bounds["last_enqueued_sequence_number"])
                for key, bounds in reader.partitions().items()
                if not bounds["is_empty"]
            }

    def begin(self, partition: str) -> int:
        return self._bounds.get(partition, _EMPTY)[0]

    def last(self, partition: str) -> int:
        return self._bounds.get(partition, _EMPTY)[1]

    def ends(self) -> dict[str, int]:
        """The next event of each partition that has any."""
        return {key: last + 1 for key, (_, last) in self._bounds.items()}


def check_file(store: FileStore, file: ListedFile, retained: RetainedRanges) -> FileCheckResult:
    """Raises ClientError, DestinationError: log or storage cannot be read."""
    digest = hashlib.sha256()
    check = (_ParquetFileCheck if file.file_type == "parquet" else _FileCheck)(file, retained)
    # It is read twice, and Parquet from its end: not over a network.
    with tempfile.TemporaryFile() as spooled:
        with store.open(file.path) as opened:
            while piece := opened.read(_PIECE_BYTES):
                digest.update(piece)
                spooled.write(piece)
        try:
            result = check.check(spooled)
        except DamagedAvroFile as error:
            result = FileCheckResult(is_damaged=True, problems=[f"{file.path}: {error}"])
    result.sha256 = digest.hexdigest()
    return result


class _FileCheck:
    """Checks an Avro file. A block is bytes, or a table of a Parquet file: both have a length,
    slices and equality."""

    encoding = "Avro"

    def __init__(self, file: ListedFile, retained: RetainedRanges) -> None:
        self._file = file
        self._retained = retained
        self._iso = False
        self._log: Iterator[CaptureBlock] | None = None
        self._log_rows: dict[int, bytes] = {}  # of the log's last block

    def read_blocks(self, opened: IO[bytes]) -> Iterator[tuple[int, Any]]:
        """The file's blocks, and how many events each has. Raises DamagedAvroFile."""
        for count, block in AvroContainerReader(opened).blocks():
            self._iso = is_iso_time(next(read_capture_records(count, block)).enqueued)
            yield count, block

    def decode(self, block: CaptureBlock) -> Any:
        """A block of the log, as `read_blocks` yields those of the file."""
        return block.data

    def rows(self, count: int, block: Any) -> Iterator[tuple[int, bytes]]:
        """The number and the digest of each event."""
        for record in read_capture_records(count, block):
            yield record.sequence, _digest(block[record.start : record.end])

    def check(self, opened: IO[bytes]) -> FileCheckResult:
        opened.seek(0)
        blocks = self.read_blocks(opened)
        head = next(blocks, None)
        if head is None:
            return FileCheckResult()
        first, _ = next(self.rows(*head))
        count = 0
        if first >= self._begin:
            count = self._count_same(itertools.chain([head], blocks), self._log_blocks(first))
        if count:
            return FileCheckResult(ranges=[(first, first + count)], events=count, compared=count)
        opened.seek(0)
        return self._compare_events(opened)

    @property
    def _begin(self) -> int:
        return self._retained.begin(self._file.partition)

    def _read_log(self, first: int, last: int | None = None) -> Iterator[CaptureBlock]:
        """The log's blocks from there on: how many events the file has is known at its end."""
        retained, partition = self._retained, self._file.partition
        last = retained.last(partition) if last is None else last
        encoding, iso = self.encoding, self._iso
        return read_blocks(retained.ranges, partition, first, last, encoding=encoding, iso_time=iso)

    def _log_blocks(self, first: int) -> Iterator[Any]:
        try:
            yield from map(self.decode, self._read_log(first))
        except EventsLost:
            return  # a difference, which the comparison of events explains

    def _count_same(self, mine: Iterator[tuple[int, Any]], theirs: Iterator[Any]) -> int:
        """How many events the file has, if the log's blocks begin with all of them; else 0."""
        total = 0
        ahead: Any = b""
        for count, block in mine:
            total += count
            while len(block):
                if not len(ahead):
                    ahead = next(theirs, None)
                    if ahead is None:
                        return 0
                size = min(len(block), len(ahead))
                if block[:size] != ahead[:size]:
                    return 0
                block, ahead = block[size:], ahead[size:]
        return total

    def _compare_events(self, opened: IO[bytes]) -> FileCheckResult:
        result = FileCheckResult()
        for count, block in self.read_blocks(opened):
            mine = list(self.rows(count, block))
            result.add(to_ranges([number for number, _ in mine]))
            held = [event for event in mine if event[0] >= self._begin]
            result.unretained += len(mine) - len(held)
            if held:
                theirs = self._log_rows_between(held[0][0], held[-1][0] + 1)
                other = [number for number, digest in held if theirs.get(number) != digest]
                result.compared += len(held) - len(other)
                if other:
                    self._judge(other, result)
        return result

    def _log_rows_between(self, first: int, end: int) -> dict[int, bytes]:
        """Requested in rising order."""
        rows: dict[int, bytes] = {}
        while True:
            rows |= {key: value for key, value in self._log_rows.items() if first <= key < end}
            last = max(self._log_rows, default=first - 1)
            block = self._next_log_block(last + 1) if last < end - 1 else None
            if block is None:
                return rows
            self._log_rows = dict(self.rows(block.count, self.decode(block)))

    def _next_log_block(self, first: int) -> CaptureBlock | None:
        """The log's block that begins with this event, which follows the block before, across gaps
        that retention makes meanwhile."""
        while True:
            if self._log is None:
                self._log = self._read_log(first)
            try:
                return next(self._log, None)
            except EventsLost as error:
                # Events before the gap were in no block yet.
                before = self._read_log(first, error.expected - 1)
                self._log = itertools.chain(before, self._read_log(error.found))

    def _judge(self, numbers: Sequence[int], result: FileCheckResult) -> None:
        """Count events that differ from the log, unless retention removed them meanwhile."""
        self._retained.refresh()
        begin = self._begin
        for number in numbers:
            if number < begin:
                result.unretained += 1
                continue
            result.compared += 1
            result.different += 1
            if len(result.problems) < PROBLEMS_MAX:
                text = f"{self._file.path}: event {number} is not what the log has."
                result.problems.append(text)


class _ParquetFileCheck(_FileCheck):
    encoding = "Parquet"

    def read_blocks(self, opened: IO[bytes]) -> Iterator[tuple[int, Any]]:
        import pyarrow as pa
        from pyarrow import parquet

        from penstock.spark.capture.parquet_file import PARQUET_SCHEMA, SYSTEM_TYPES, TYPES

        schema = PARQUET_SCHEMA
        try:
            file = parquet.ParquetFile(opened)
            for name in (SYSTEM_TYPES, TYPES):  # files of version 0.1 do not have them
                if name not in file.schema_arrow.names:
                    schema = schema.remove(schema.get_field_index(name))
            self._names = schema.names
            for batch in file.iter_batches(batch_size=_ROWS):
                table = pa.Table.from_batches([batch]).select(schema.names).cast(schema)
                if table.num_rows:
                    yield table.num_rows, table.combine_chunks()
        except (pa.ArrowException, OSError, KeyError) as error:
            raise DamagedAvroFile(f"This is not a Parquet file of Capture: {error}") from None

    def decode(self, block: CaptureBlock) -> Any:
        from penstock.spark.capture.parquet_file import read_block

        return read_block(block.data).select(self._names)

    def rows(self, count: int, block: Any) -> Iterator[tuple[int, bytes]]:
        for batch in block.to_batches(max_chunksize=_ROWS):
            for row in batch.to_pylist():
                yield row["SequenceNumber"], _digest(repr(row).encode())


def _digest(record: bytes) -> bytes:
    return hashlib.blake2b(record, digest_size=16).digest()
