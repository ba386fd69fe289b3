"""Check one captured file against the log.

An Avro file is first compared as a whole, as its bytes come. Where that fails, event by event:
memory holds a block of each side, whatever the file's size. Retention may remove events from the
log during the comparison, so events that differ are judged by where the log begins then.
"""

from __future__ import annotations

import hashlib
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, cast

import msgspec

from penstock.capture.container import AvroContainerReader, DamagedAvroFile
from penstock.capture.hub_files import ListedFile
from penstock.capture.records import CaptureRecord, is_iso_time, read_capture_records, to_ranges
from penstock.capture.storage import FileStore
from penstock.client.ranges import EventsLost, HubReader, RangeSettings
from penstock.model.capture import SequenceRange
from penstock.spark.capture.blocks import (
    SYSTEM_TYPES,
    TYPES,
    CaptureBlock,
    parquet_schema,
    read_blocks,
)

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

    def note(self, text: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(text)


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
    with store.open(file.path) as opened:
        read = _DigestingFile(opened)
        try:
            check = _ParquetFileCheck if file.file_type == "parquet" else _AvroFileCheck
            result = check(store, file, retained).check(read)
        except DamagedAvroFile as error:
            result = FileCheckResult(is_damaged=True, problems=[f"{file.path}: {error}"])
        result.sha256 = read.sha256()
    return result


class _FileCheck:
    """What both encodings have in common."""

    encoding = "Avro"

    def __init__(self, store: FileStore, file: ListedFile, retained: RetainedRanges) -> None:
        self._store = store
        self._file = file
        self._retained = retained
        self._iso = False

    def check(self, opened: _DigestingFile) -> FileCheckResult:
        raise NotImplementedError

    @property
    def _begin(self) -> int:
        return self._retained.begin(self._file.partition)

    def blocks(self, first: int, last: int | None = None) -> Iterator[CaptureBlock]:
        """The log's blocks from there on: how many events the file has is known at its end."""
        if last is None:
            last = self._retained.last(self._file.partition)
        return read_blocks(
            self._retained.ranges,
            self._file.partition,
            first,
            last,
            encoding=self.encoding,
            iso_time=self._iso,
        )

    def _judge(self, numbers: Sequence[int], result: FileCheckResult) -> None:
        """Count events that differ from the log, unless retention removed them meanwhile."""
        if not numbers:
            return
        self._retained.refresh()
        begin = self._begin
        for number in numbers:
            if number < begin:
                result.unretained += 1
                continue
            result.compared += 1
            result.different += 1
            result.note(f"{self._file.path}: event {number} is not what the log has.")


class _LogBlocks:
    """The log's blocks from an event on, across gaps that retention makes meanwhile."""

    def __init__(self, check: _FileCheck) -> None:
        self._check = check
        self._blocks: Iterator[CaptureBlock] | None = None

    def next(self, first: int) -> CaptureBlock | None:
        """The block that begins with this event, which follows the block before."""
        while True:
            if self._blocks is None:
                self._blocks = self._check.blocks(first)
            try:
                return next(self._blocks, None)
            except EventsLost as error:
                # Events before the gap were in no block yet.
                before = self._check.blocks(first, error.expected - 1)
                self._blocks = itertools.chain(before, self._check.blocks(error.found))


class _AvroFileCheck(_FileCheck):
    def check(self, opened: _DigestingFile) -> FileCheckResult:
        blocks = AvroContainerReader(cast("BinaryIO", opened)).blocks()
        head = next(blocks, None)
        if head is None:
            return FileCheckResult()
        record = CaptureRecord(head[1], 0)
        self._iso = is_iso_time(record.enqueued)
        first = record.sequence
        counted = _CountingBlocks(itertools.chain([head], blocks))
        if first >= self._begin and _is_same(counted.data(), self._log_blocks(first)):
            count = counted.count
            return FileCheckResult(ranges=[(first, first + count)], events=count, compared=count)
        return self._compare_events()

    def _log_blocks(self, first: int) -> Iterator[bytes]:
        try:
            for block in self.blocks(first):
                yield block.data
        except EventsLost:
            return  # a difference, which the comparison of events explains

    def _compare_events(self) -> FileCheckResult:
        result = FileCheckResult()
        log = _LogRecords(self)
        with self._store.open(self._file.path) as opened:
            for count, block in AvroContainerReader(opened).blocks():
                mine = [
                    (record.sequence, _digest(block[record.start : record.end]))
                    for record in read_capture_records(count, block)
                ]
                result.add(to_ranges([number for number, _ in mine]))
                held = [event for event in mine if event[0] >= self._begin]
                result.unretained += len(mine) - len(held)
                if not held:
                    continue
                theirs = log.between(held[0][0], held[-1][0] + 1)
                other = [number for number, digest in held if theirs.get(number) != digest]
                result.compared += len(held) - len(other)
                self._judge(other, result)
        return result


class _LogRecords:
    """Digests of the log's records, requested in rising order."""

    def __init__(self, check: _FileCheck) -> None:
        self._log = _LogBlocks(check)
        self._held: dict[int, bytes] = {}

    def between(self, first: int, end: int) -> dict[int, bytes]:
        digests: dict[int, bytes] = {}
        while True:
            digests |= {key: value for key, value in self._held.items() if first <= key < end}
            last = max(self._held, default=first - 1)
            if last >= end - 1:
                return digests
            block = self._log.next(last + 1)
            if block is None:
                return digests
            self._held = {
                record.sequence: _digest(block.data[record.start : record.end])
                for record in read_capture_records(block.count, block.data)
            }


class _ParquetFileCheck(_FileCheck):
    encoding = "Parquet"

    def check(self, opened: _DigestingFile) -> FileCheckResult:
        result = FileCheckResult()
        log = _LogTables(self)
        with (
            tempfile.TemporaryFile() as spooled
        ):  # Parquet is read from its end: not over a network
            while piece := opened.read(_PIECE_BYTES):
                spooled.write(piece)
            spooled.seek(0)
            for table in _tables(cast("BinaryIO", spooled)):
                numbers = table.column("SequenceNumber").to_pylist()
                ranges = to_ranges(numbers)
                result.add(ranges)
                at = 0
                for first, end in ranges:
                    self._compare(table.slice(at, end - first), first, end, log, result)
                    at += end - first
        return result

    def _compare(
        self, mine: Any, first: int, end: int, log: _LogTables, result: FileCheckResult
    ) -> None:
        start = min(max(first, self._begin), end)
        result.unretained += start - first
        if start == end:
            return
        mine = mine.slice(start - first)
        theirs = log.between(start, end).select(mine.column_names)
        if mine.equals(theirs):
            result.compared += end - start
            return
        rows = {number: at for at, number in enumerate(theirs.column(0).to_pylist())}
        other = [
            number
            for at, number in enumerate(range(start, end))
            if number not in rows or not mine.slice(at, 1).equals(theirs.slice(rows[number], 1))
        ]
        result.compared += end - start - len(other)
        self._judge(other, result)


class _LogTables:
    """The log's rows, requested in rising order."""

    def __init__(self, check: _FileCheck) -> None:
        self._log = _LogBlocks(check)
        self._held: Any = None

    def between(self, first: int, end: int) -> Any:
        import pyarrow as pa

        parts = [parquet_schema().empty_table()]
        while True:
            last = first - 1
            if self._held is not None:
                numbers = self._held.column("SequenceNumber")
                begin, last = numbers[0].as_py(), numbers[-1].as_py()
                # The client returns blocks without gaps.
                low, high = max(first, begin), min(end - 1, last)
                parts.append(self._held.slice(low - begin, max(0, high - low + 1)))
            block = self._log.next(last + 1) if last < end - 1 else None
            if block is None:
                return pa.concat_tables(parts).combine_chunks()
            with pa.ipc.open_stream(block.data) as stream:
                self._held = stream.read_all()


def _tables(opened: BinaryIO) -> Iterator[Any]:
    """The rows of a Parquet file, in the columns that Capture writes. Raises DamagedAvroFile."""
    import pyarrow as pa
    from pyarrow import parquet

    schema = parquet_schema()
    try:
        file = parquet.ParquetFile(opened)
        for name in (SYSTEM_TYPES, TYPES):  # files of version 0.1 do not have them
            if name not in file.schema_arrow.names:
                schema = schema.remove(schema.get_field_index(name))
        for batch in file.iter_batches(batch_size=_ROWS):
            table = pa.Table.from_batches([batch]).select(schema.names).cast(schema)
            yield table.combine_chunks()
    except (pa.ArrowException, OSError, KeyError) as error:
        raise DamagedAvroFile(f"This is not a Parquet file of Capture: {error}") from None


class _DigestingFile:
    """A file whose bytes are digested as they are read."""

    def __init__(self, opened: BinaryIO) -> None:
        self._opened = opened
        self._digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        piece = self._opened.read(size)
        self._digest.update(piece)
        return piece

    def sha256(self) -> str:
        """Of the whole file: reads the remaining bytes."""
        while self.read(_PIECE_BYTES):
            pass
        return self._digest.hexdigest()


class _CountingBlocks:
    """Counts the records of blocks as they are read."""

    def __init__(self, blocks: Iterator[tuple[int, bytes]]) -> None:
        self._blocks = blocks
        self.count = 0

    def data(self) -> Iterator[bytes]:
        for count, block in self._blocks:
            self.count += count
            yield block


def _is_same(mine: Iterator[bytes], theirs: Iterator[bytes]) -> bool:
    """Whether `theirs` begins with all of `mine`."""
    ahead = b""
    for piece in mine:
        while len(ahead) < len(piece):
            more = next(theirs, None)
            if more is None:
                return False
            ahead += more
        if not ahead.startswith(piece):
            return False
        ahead = ahead[len(piece) :]
    return True


def _digest(record: bytes) -> bytes:
    return hashlib.blake2b(record, digest_size=16).digest()
