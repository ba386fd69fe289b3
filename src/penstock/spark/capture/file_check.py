"""One captured file and the log: whether each of its events is what the log gives for its number.

A file is first compared as a whole, as its bytes come. Where that fails, event by event, block by
block: memory holds a block of each side, whatever the file's size. The log may lose events while
they are compared; what differs is judged by where the log begins then.
"""

from __future__ import annotations

import hashlib
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, cast

import msgspec

from penstock.capture.container import AvroContainerReader, DamagedAvroFile
from penstock.capture.destinations import FileStore
from penstock.capture.hub_files import ListedFile
from penstock.capture.records import CaptureRecord, is_iso_time, read_capture_records, to_ranges
from penstock.client.ranges import EventsLost, HubReader, RangeSettings
from penstock.spark.capture.blocks import CaptureBlock, read_blocks

PROBLEMS_MAX = 100
_PIECE_BYTES = 1024 * 1024
_ROWS = 4096
_NOTHING = (2**62, 2**62)  # of a log that is empty


class FileCheckResult(msgspec.Struct, kw_only=True):
    """What one file holds. `spans` are its sequence numbers, first and behind the last."""

    spans: list[tuple[int, int]] = []
    events: int = 0
    compared: int = 0  # with the log
    unretained: int = 0
    different: int = 0
    problems: list[str] = []
    sha256: str = ""
    is_damaged: bool = False

    def add(self, spans: Sequence[tuple[int, int]]) -> None:
        """Events that stand behind those before. Raises DamagedFile where they do not."""
        for first, end in spans:
            self.events += end - first
            if self.spans and first < self.spans[-1][1]:
                raise DamagedAvroFile(f"Event {first} stands behind event {self.spans[-1][1] - 1}.")
            if self.spans and first == self.spans[-1][1]:
                first = self.spans.pop()[0]
            self.spans.append((first, end))

    def note(self, text: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(text)


class RetainedRanges:
    """From which event on and up to which the log has each partition, asked for again where it
    matters: retention goes on while files are compared."""

    def __init__(self, ranges: RangeSettings) -> None:
        self.ranges = ranges
        self._known: dict[str, tuple[int, int]] = {}
        self.ask()

    def ask(self) -> None:
        with HubReader(self.ranges) as reader:
            self._known = {
                key: (told["beginning_sequence_number"], told["last_enqueued_sequence_number"])
                for key, told in reader.partitions().items()
                if not told["is_empty"]
            }

    def begin(self, partition: str) -> int:
        return self._known.get(partition, _NOTHING)[0]

    def last(self, partition: str) -> int:
        return self._known.get(partition, _NOTHING)[1]

    def ends(self) -> dict[str, int]:
        """The next event of each partition that has any."""
        return {key: last + 1 for key, (_, last) in self._known.items()}


def check_file(store: FileStore, file: ListedFile, retained: RetainedRanges) -> FileCheckResult:
    """Raises ClientError, DestinationError: log or storage cannot be read."""
    with store.open(file.path) as opened:
        read = _DigestingFile(opened)
        try:
            kind = _ParquetFileCheck if file.kind == "parquet" else _AvroFileCheck
            found = kind(store, file, retained).check(read)
        except DamagedAvroFile as error:
            found = FileCheckResult(is_damaged=True, problems=[f"{file.path}: {error}"])
        found.sha256 = read.sha256()
    return found


class _FileCheck:
    """What files of both kinds have in common."""

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
        """The log from there on: how many the file has is known at its end."""
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

    def _judge(self, numbers: Sequence[int], found: FileCheckResult) -> None:
        """Events that are not what the log has: it may have dropped them meanwhile."""
        if not numbers:
            return
        self._retained.ask()
        begin = self._begin
        for number in numbers:
            if number < begin:
                found.unretained += 1
                continue
            found.compared += 1
            found.different += 1
            found.note(f"{self._file.path}: event {number} is not what the log has.")


class _LogBlocks:
    """The log's blocks from an event on. A gap that is made meanwhile is passed over."""

    def __init__(self, check: _FileCheck) -> None:
        self._check = check
        self._blocks: Iterator[CaptureBlock] | None = None

    def next(self, first: int) -> CaptureBlock | None:
        """The one that begins with this event: the one behind the last that was given."""
        while True:
            if self._blocks is None:
                self._blocks = self._check.blocks(first)
            try:
                return next(self._blocks, None)
            except EventsLost as error:
                # What came before the gap was in no block yet.
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
            return FileCheckResult(spans=[(first, first + count)], events=count, compared=count)
        return self._by_numbers()

    def _log_blocks(self, first: int) -> Iterator[bytes]:
        try:
            for block in self.blocks(first):
                yield block.data
        except EventsLost:
            return  # then it is not the same, and event by event tells why

    def _by_numbers(self) -> FileCheckResult:
        found = FileCheckResult()
        log = _LogRecords(self)
        with self._store.open(self._file.path) as opened:
            for count, block in AvroContainerReader(opened).blocks():
                mine = [
                    (record.sequence, _digest(block[record.start : record.end]))
                    for record in read_capture_records(count, block)
                ]
                found.add(to_ranges([number for number, _ in mine]))
                held = [each for each in mine if each[0] >= self._begin]
                found.unretained += len(mine) - len(held)
                if not held:
                    continue
                theirs = log.between(held[0][0], held[-1][0] + 1)
                other = [number for number, digest in held if theirs.get(number) != digest]
                found.compared += len(held) - len(other)
                self._judge(other, found)
        return found


class _LogRecords:
    """The log's records, asked for in rising order."""

    def __init__(self, check: _FileCheck) -> None:
        self._log = _LogBlocks(check)
        self._held: dict[int, bytes] = {}

    def between(self, first: int, end: int) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        while True:
            found |= {key: value for key, value in self._held.items() if first <= key < end}
            last = max(self._held, default=first - 1)
            if last >= end - 1:
                return found
            block = self._log.next(last + 1)
            if block is None:
                return found
            self._held = {
                record.sequence: _digest(block.data[record.start : record.end])
                for record in read_capture_records(block.count, block.data)
            }


class _ParquetFileCheck(_FileCheck):
    encoding = "Parquet"

    def check(self, opened: _DigestingFile) -> FileCheckResult:
        found = FileCheckResult()
        log = _LogTables(self)
        with tempfile.TemporaryFile() as spooled:  # its end is read first, and storage is far
            while piece := opened.read(_PIECE_BYTES):
                spooled.write(piece)
            spooled.seek(0)
            for table in _tables(cast("BinaryIO", spooled)):
                numbers = table.column("SequenceNumber").to_pylist()
                spans = to_ranges(numbers)
                found.add(spans)
                at = 0
                for first, end in spans:
                    self._compare(table.slice(at, end - first), first, end, log, found)
                    at += end - first
        return found

    def _compare(
        self, mine: Any, first: int, end: int, log: _LogTables, found: FileCheckResult
    ) -> None:
        start = min(max(first, self._begin), end)
        found.unretained += start - first
        if start == end:
            return
        mine = mine.slice(start - first)
        theirs = log.between(start, end).select(mine.column_names)
        if mine.equals(theirs):
            found.compared += end - start
            return
        rows = {number: at for at, number in enumerate(theirs.column(0).to_pylist())}
        other = [
            number
            for at, number in enumerate(range(start, end))
            if number not in rows or not mine.slice(at, 1).equals(theirs.slice(rows[number], 1))
        ]
        found.compared += end - start - len(other)
        self._judge(other, found)


class _LogTables:
    """The log's rows, asked for in rising order."""

    def __init__(self, check: _FileCheck) -> None:
        self._log = _LogBlocks(check)
        self._held: Any = None

    def between(self, first: int, end: int) -> Any:
        import pyarrow as pa

        from penstock.spark.capture.parquet import parquet_schema

        parts = [parquet_schema().empty_table()]
        while True:
            last = first - 1
            if self._held is not None:
                numbers = self._held.column("SequenceNumber")
                begin, last = numbers[0].as_py(), numbers[-1].as_py()
                # Numbers within a block have no gap: the client sees to it.
                low, high = max(first, begin), min(end - 1, last)
                parts.append(self._held.slice(low - begin, max(0, high - low + 1)))
            block = self._log.next(last + 1) if last < end - 1 else None
            if block is None:
                return pa.concat_tables(parts).combine_chunks()
            with pa.ipc.open_stream(block.data) as stream:
                self._held = stream.read_all()


def _tables(opened: BinaryIO) -> Iterator[Any]:
    """Of a Parquet file, some rows at a time, in the columns that Capture writes."""
    import pyarrow as pa
    from pyarrow import parquet

    from penstock.spark.capture.parquet import SYSTEM_TYPES, TYPES, parquet_schema

    schema = parquet_schema()
    try:
        file = parquet.ParquetFile(opened)
        for name in (SYSTEM_TYPES, TYPES):  # which files from before do not have
            if name not in file.schema_arrow.names:
                schema = schema.remove(schema.get_field_index(name))
        for batch in file.iter_batches(batch_size=_ROWS):
            table = pa.Table.from_batches([batch]).select(schema.names).cast(schema)
            yield table.combine_chunks()
    except (pa.ArrowException, OSError, KeyError) as error:
        raise DamagedAvroFile(f"This is no Parquet file of Capture: {error}") from None


class _DigestingFile:
    """A file whose bytes are added up as they are read."""

    def __init__(self, opened: BinaryIO) -> None:
        self._opened = opened
        self._digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        piece = self._opened.read(size)
        self._digest.update(piece)
        return piece

    def sha256(self) -> str:
        """Of the whole file: what nobody wanted is read too."""
        while self.read(_PIECE_BYTES):
            pass
        return self._digest.hexdigest()


class _CountingBlocks:
    """Blocks, whose records are counted as they go by."""

    def __init__(self, blocks: Iterator[tuple[int, bytes]]) -> None:
        self._blocks = blocks
        self.count = 0

    def data(self) -> Iterator[bytes]:
        for count, block in self._blocks:
            self.count += count
            yield block


def _is_same(mine: Iterator[bytes], theirs: Iterator[bytes]) -> bool:
    """Whether all of `mine` is how `theirs` begins."""
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
