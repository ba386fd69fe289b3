"""`penstock capture verify`: compare log and files, event by event.

Each file's records are compared, byte by byte, with those that the log gives now for the same
sequence numbers; where retention has removed them, the file's own numbers are checked. Then every
event that a run should have captured must be in exactly one file. Needs no Spark.
"""

from __future__ import annotations

import hashlib
import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

import msgspec

from penstock.capture import hub_files
from penstock.capture.captured_file import ManifestFile, decode_manifest
from penstock.capture.container import AvroContainerReader, DamagedAvroFile
from penstock.capture.file_names import MANIFESTS
from penstock.capture.hub_files import FileLocationFilter, ListedFile, StoreIdentity
from penstock.capture.records import is_iso_time, read_capture_records
from penstock.capture.runs import find_gaps, merge_ranges
from penstock.capture.storage import FileStore
from penstock.client.ranges import EventsLost, HubReader, RangeSettings
from penstock.formats.quantities import format_time
from penstock.model.capture import SequenceRange
from penstock.spark.capture.blocks import CaptureBlock, read_blocks

PROBLEMS_MAX = 100
_PIECE_BYTES = 1024 * 1024
_ROWS = 4096
_EMPTY = (2**62, 2**62)  # bounds of an empty log
_FileKey = tuple[StoreIdentity, str]  # store and path


class ExpectedRange(msgspec.Struct, frozen=True):
    """Events of one partition that a run captures: from `first` to before `captured` they are in
    files by the job's report; to before `end` they will be (None: to the end of the log)."""

    partition: str
    first: int
    captured: int
    end: int | None = None


class CaptureVerification(msgspec.Struct, kw_only=True):
    """The result. `unretained` events are in files and no longer in the log; `waiting` ones are in
    no file, and no report says that they are."""

    files: int = 0
    empty_files: int = 0
    events: int = 0  # in files
    bytes: int = 0
    compared: int = 0  # with the log
    unretained: int = 0
    waiting: int = 0
    missing: int = 0
    double: int = 0
    different: int = 0
    damaged_files: int = 0
    manifests: int = 0
    unlike_manifest: int = 0  # files that a manifest lists and that are missing or different
    problems: list[str] = []

    @property
    def is_fine(self) -> bool:
        lost = self.missing or self.double or self.different
        return not (lost or self.damaged_files or self.unlike_manifest)

    def row(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__struct_fields__ if name != "problems"}

    def add(self, file: ListedFile, check: FileCheckResult) -> None:
        self.files += 1
        self.bytes += file.size
        self.empty_files += not (check.events or check.is_damaged)
        self.events += check.events
        self.compared += check.compared
        self.unretained += check.unretained
        self.different += check.different
        self.damaged_files += check.is_damaged
        for text in check.problems:
            self.note(text)

    def note(self, text: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(text)


def verify(
    locations: Sequence[FileLocationFilter],
    *,
    namespace: str,
    hub: str,
    expected: Sequence[ExpectedRange],
    ranges: RangeSettings,
) -> CaptureVerification:
    """Compare the files at all locations with the log, with what runs should have captured, and
    with the manifests. Raises PenstockError when log or files cannot be read."""
    stores = [FileStore(location.target) for location in locations]
    result = CaptureVerification()
    # The order matters, since log and job go on: a file that a manifest lists exists when files
    # are listed, and the events of a file were in the log before.
    after_s = min((location.after_s for location in locations), default=-1)
    listed: dict[_FileKey, tuple[str, str]] = {}
    for identity, store in {hub_files.store_identity(store): store for store in stores}.items():
        for manifest, entry in _read_manifests(store, namespace, hub, after_s, result):
            listed[identity, entry.path] = (manifest, entry.sha256)
    files = hub_files.list_hub_files(locations, stores, namespace, hub)
    retained = RetainedRanges(ranges)
    held: dict[str, list[tuple[int, int, str]]] = {}
    digests: dict[_FileKey, str] = {}
    for file in files:
        check = check_file(stores[file.place], file, retained)
        result.add(file, check)
        in_file = [(first, end, file.path) for first, end in check.ranges]
        held.setdefault(file.partition, []).extend(in_file)
        digests[hub_files.store_identity(stores[file.place]), file.path] = check.sha256
    for partition, in_files in held.items():
        _check_double(partition, in_files, result)
    _check_missing(expected, held, retained.ends(), result)
    for key, (manifest, sha256) in listed.items():
        if digests.get(key) != sha256:
            result.unlike_manifest += 1
            problem = "has other bytes" if key in digests else "is missing"
            result.note(f"{key[1]}, which {manifest} lists, {problem}.")
    return result


def _read_manifests(
    store: FileStore, namespace: str, hub: str, after_s: int, result: CaptureVerification
) -> Iterator[tuple[str, ManifestFile]]:
    """Each file that a manifest of the hub lists, and the manifest. Without those of a deleted hub
    of the same name."""
    after = format_time(after_s * 1000) if after_s >= 0 else ""
    folder = f"{MANIFESTS}/{hub}"
    for path, _ in store.files(folder):
        if path.rpartition("/")[0] != folder:
            continue  # of the hub orders/eu, where this one is orders
        with store.open(path) as opened:
            content = opened.read()
        try:
            manifest = decode_manifest(content)
        except msgspec.MsgspecError as error:
            result.damaged_files += 1
            result.note(f"{path} is not a manifest: {error}.")
            continue
        if (manifest.namespace, manifest.event_hub) != (namespace, hub):
            continue  # of another namespace
        own = [file for file in manifest.files if file.closed_at > after]
        if manifest.files and not own:
            continue
        result.manifests += 1
        yield from ((path, file) for file in own)


def _check_double(
    partition: str, in_files: Sequence[tuple[int, int, str]], result: CaptureVerification
) -> None:
    reached, before = -1, ""
    for first, end, path in sorted(in_files):
        if first < reached:
            twice = min(end, reached) - first
            result.double += twice
            result.note(
                f"Partition {partition}: {twice} events from {first} on are in {before} and "
                f"in {path}."
            )
        if end > reached:
            reached, before = end, path


def _check_missing(
    expected: Sequence[ExpectedRange],
    held: Mapping[str, Sequence[tuple[int, int, str]]],
    ends: Mapping[str, int],
    result: CaptureVerification,
) -> None:
    """Events that the job reported as captured are in files; others may still wait."""
    merged = {
        partition: merge_ranges((first, end) for first, end, _ in ranges)
        for partition, ranges in held.items()
    }
    for run in expected:
        in_files = merged.get(run.partition, [])
        for first, end in find_gaps(run.first, run.captured, in_files):
            result.missing += end - first
            result.note(f"Partition {run.partition}: events {first} to {end - 1} are in no file.")
        stop = ends.get(run.partition, run.captured) if run.end is None else run.end
        result.waiting += sum(end - first for first, end in find_gaps(run.captured, stop, in_files))


# --- one file -------------------------------------------------------------------------------------
# A file is first compared as a whole. Where that fails, event by event: memory holds a block of
# each side, whatever the file's size. Retention may remove events from the log during the
# comparison, so events that differ are judged by where the log begins then.


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
    """First and last event of each partition in the log. Callers read it again where it matters:
    retention goes on while files are compared."""

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
            result.add([(number, number + 1) for number, _ in mine])
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
        """Callers request ranges in rising order."""
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
