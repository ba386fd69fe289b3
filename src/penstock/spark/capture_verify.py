"""`penstock capture verify`: log and files are the same, event by event.

Each file's records are compared, byte by byte, with those that the log gives now for the same
sequence numbers; where the log has dropped them, the file's own numbers are checked. Then every
event that a run should have captured stands in exactly one file. Needs no Spark.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, cast

import msgspec

from penstock.capture.container import Container, DamagedFile
from penstock.capture.destinations import Store
from penstock.capture.files import time_text
from penstock.capture.listing import Listed, Shelf, listed_at
from penstock.capture.names import MANIFESTS
from penstock.capture.records import long_at, ranges_of, records
from penstock.client.ranges import HubReader, RangeSettings
from penstock.spark.capture_blocks import blocks_of

_PROBLEMS_MAX = 100
_PIECE_BYTES = 1024 * 1024
_NOTHING = (2**62, 2**62)  # of a log that is empty


class Verified(msgspec.Struct, kw_only=True):
    """What was found. `unretained` events stand in files and no longer in the log; `waiting` ones
    stand in no file, and nobody said yet that they do."""

    files: int = 0
    empty_files: int = 0
    events: int = 0  # that files hold
    bytes: int = 0
    compared: int = 0  # with the log
    unretained: int = 0
    waiting: int = 0
    missing: int = 0
    double: int = 0
    different: int = 0
    damaged_files: int = 0
    manifests: int = 0
    unlike_manifest: int = 0  # files that a manifest lists and that are not there as it says
    problems: list[str] = []

    @property
    def is_fine(self) -> bool:
        return not (
            self.missing
            or self.double
            or self.different
            or self.damaged_files
            or self.unlike_manifest
        )

    def row(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__struct_fields__ if name != "problems"}

    def note(self, text: str) -> None:
        if len(self.problems) < _PROBLEMS_MAX:
            self.problems.append(text)


def verify(
    shelves: Sequence[Shelf],
    *,
    namespace: str,
    hub: str,
    runs: Sequence[Mapping[str, Any]],
    ranges: RangeSettings,
) -> Verified:
    """`shelves` are where the files lie; `runs` are what was captured: `starts` and `captured`, the
    first event that was and the first that was not, by partition, and `stops`, the first that is
    not wanted, of runs that are over. Raises PenstockError when log or files cannot be read."""
    stores = [Store(shelf.target) for shelf in shelves]
    found = Verified()
    with HubReader(ranges) as reader:
        retained = {
            key: (told["beginning_sequence_number"], told["last_enqueued_sequence_number"])
            for key, told in reader.partitions().items()
            if not told["is_empty"]
        }
    held: dict[str, list[tuple[int, int, str]]] = {}
    digests: dict[str, str] = {}
    for file in listed_at(shelves, stores, namespace, hub):
        log = retained.get(file.partition, _NOTHING)
        store = stores[file.place]
        one = _File(store, file, ranges, log)
        for first, end in one.check(found):
            held.setdefault(file.partition, []).append((first, end, file.path))
        digests[store.url(file.path)] = one.sha256
    for partition, spans in held.items():
        _check_double(partition, spans, found)
    ends = {key: last + 1 for key, (_, last) in retained.items()}
    _check_missing(runs, held, ends, found)
    after_s = min((shelf.after_s for shelf in shelves), default=-1)
    for store in {store.root: store for store in stores}.values():
        _check_manifests(store, namespace, hub, digests, found, after_s=after_s)
    return found


def _check_manifests(
    store: Store,
    namespace: str,
    hub: str,
    digests: Mapping[str, str],
    found: Verified,
    *,
    after_s: int,
) -> None:
    """Every file that a manifest lists is there, with the bytes that it had then: also where the
    log has dropped the events long since. Not those of a hub that was deleted."""
    after = time_text(after_s * 1000) if after_s >= 0 else ""
    for path, _ in store.files(f"{MANIFESTS}/{hub}"):
        with store.open(path) as opened:
            try:
                document = json.load(opened)
            except ValueError:
                found.damaged_files += 1
                found.note(f"{path} is no manifest.")
                continue
        if document.get("namespace") != namespace:
            continue  # of a hub that is called the same in another one
        own = [file for file in document["files"] if file["closedAt"] > after]
        if document["files"] and not own:
            continue
        found.manifests += 1
        for file in own:
            digest = digests.get(store.url(file["path"]))
            if digest != file["sha256"]:
                found.unlike_manifest += 1
                now = "is not there" if digest is None else "has other bytes"
                found.note(f"{file['path']}, which {path} lists, {now}.")


class _File:
    """One captured file."""

    def __init__(
        self,
        store: Store,
        file: Listed,
        ranges: RangeSettings,
        retained: tuple[int, int],
    ) -> None:
        self._store = store
        self._file = file
        self._ranges = ranges
        self._iso = store.target.destination.iso_time
        self._begin, self._last = retained
        self.sha256 = ""  # of its bytes, when it was checked

    def check(self, found: Verified) -> list[tuple[int, int]]:
        """The sequence numbers that it holds, as spans."""
        found.files += 1
        found.bytes += self._file.size
        try:
            with self._store.open(self._file.path) as opened:
                read = _Digested(opened)
                try:
                    if self._file.kind == "parquet":
                        return self._parquet(read, found)
                    return self._avro(read, found)
                finally:
                    self.sha256 = read.sha256()
        except DamagedFile as error:
            found.damaged_files += 1
            found.note(f"{self._file.path}: {error}")
            return []

    def _avro(self, opened: _Digested, found: Verified) -> list[tuple[int, int]]:
        blocks = Container(cast("BinaryIO", opened)).blocks()
        head = next(blocks, None)
        if head is None:
            found.empty_files += 1
            return []
        first, _ = long_at(head[1], 0)
        counted = _Counted(itertools.chain([head], blocks))
        # How many they are is known at the end: the log is asked for as many as come.
        if first >= self._begin and _is_same(counted.data(), self._logged(first)):
            found.events += counted.count
            found.compared += counted.count
            return [(first, first + counted.count)]
        return self._by_numbers(found)

    def _logged(self, first: int) -> Iterator[bytes]:
        blocks = blocks_of(
            self._ranges,
            self._file.partition,
            first,
            self._last,
            encoding="Avro",
            iso_time=self._iso,
        )
        for block in blocks:
            yield block.data

    def _by_numbers(self, found: Verified) -> list[tuple[int, int]]:
        """One by one: what differs, or what the log has no more."""
        with self._store.open(self._file.path) as opened:
            mine: dict[int, bytes] = {}
            numbers: list[int] = []
            for count, block in Container(opened).blocks():
                for record in records(count, block):
                    numbers.append(record.sequence)
                    mine[record.sequence] = _digest(block[record.start : record.end])
        found.events += len(numbers)
        for first, end in ranges_of(numbers):
            self._compare(max(first, self._begin), end, mine, found)
            found.unretained += max(0, min(end, self._begin) - first)
        return ranges_of(numbers)

    def _compare(self, first: int, end: int, mine: Mapping[int, bytes], found: Verified) -> None:
        if first >= end:
            return
        blocks = blocks_of(
            self._ranges, self._file.partition, first, end - 1, encoding="Avro", iso_time=self._iso
        )
        theirs = {
            record.sequence: _digest(block.data[record.start : record.end])
            for block in blocks
            for record in records(block.count, block.data)
        }
        for number in range(first, end):
            found.compared += 1
            if theirs.get(number) != mine.get(number):
                found.different += 1
                found.note(f"{self._file.path}: event {number} is not what the log has.")

    def _parquet(self, opened: _Digested, found: Verified) -> list[tuple[int, int]]:
        import pyarrow as pa
        from pyarrow import parquet

        try:
            table = parquet.read_table(pa.BufferReader(opened.read()))
        except pa.ArrowException as error:
            raise DamagedFile(f"This is no Parquet file: {error}") from None
        numbers = table.column("SequenceNumber").to_pylist()
        found.events += len(numbers)
        found.empty_files += not numbers
        for first, end in ranges_of(numbers):
            start = max(first, self._begin)
            found.unretained += start - first if start < end else end - first
            if start >= end:
                continue
            blocks = blocks_of(
                self._ranges, self._file.partition, start, end - 1, encoding="Parquet"
            )
            logged = pa.concat_tables(
                [pa.ipc.open_stream(block.data).read_all() for block in blocks]
            )
            at = numbers.index(start)
            mine = table.slice(at, end - start).select(logged.column_names).cast(logged.schema)
            found.compared += end - start
            if not mine.combine_chunks().equals(logged.combine_chunks()):
                found.different += end - start
                found.note(f"{self._file.path}: events {start} to {end - 1} differ from the log.")
        return ranges_of(numbers)


class _Digested:
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


class _Counted:
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


def _check_double(partition: str, spans: Sequence[tuple[int, int, str]], found: Verified) -> None:
    reached, before = -1, ""
    for first, end, path in sorted(spans):
        if first < reached:
            twice = min(end, reached) - first
            found.double += twice
            found.note(
                f"Partition {partition}: {twice} events from {first} on stand in {before} and "
                f"in {path}."
            )
        if end > reached:
            reached, before = end, path


def _check_missing(
    runs: Sequence[Mapping[str, Any]],
    held: Mapping[str, Sequence[tuple[int, int, str]]],
    ends: Mapping[str, int],
    found: Verified,
) -> None:
    """What the job says that it captured is there; what it says nothing of yet may wait."""
    for each in runs:
        for partition, first in each["starts"].items():
            spans = sorted(held.get(partition, ()))
            captured = max(first, each["captured"].get(partition, first))
            for start, end in _gaps(first, captured, spans):
                found.missing += end - start
                found.note(f"Partition {partition}: events {start} to {end - 1} are in no file.")
            wanted = (each.get("stops") or ends).get(partition, captured)
            found.waiting += sum(end - start for start, end in _gaps(captured, wanted, spans))


def _gaps(first: int, end: int, spans: Sequence[tuple[int, int, str]]) -> Iterator[tuple[int, int]]:
    """What of a range is in none of the spans, which are sorted."""
    at = first
    for start, behind, _ in spans:
        if behind <= at or at >= end:
            continue
        if start > at:
            yield at, min(start, end)
        at = max(at, behind)
    if at < end:
        yield at, end
