"""The log opened after every kind of damage: what the recovery tables say is what happens."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import pytest

from penstock.log.embedded import partition_loader
from penstock.log.embedded.files import Files
from penstock.log.embedded.partition import EmbeddedPartition, RefusedPartition
from penstock.log.embedded.record import RECORD_HEADER_BYTES, encode_record_header
from penstock.log.embedded.recovery import RECOVERY_TABLE, RecoveryAction, find_rule
from penstock.log.embedded.segment import SEGMENT_HEADER_BYTES, segment_name
from penstock.log.embedded.store import EmbeddedLogStore
from penstock.model.errors import DataDirectoryError, LogCorrupt, LogFailed, PenstockError
from penstock.model.events import EventBatch, ProducerStamp, Receipt, StoredBatch
from penstock.model.positions import Position, PositionKind

NOW = 1_700_000_000_000
DEADLINE_S = 20


class QuickFiles(Files):
    def fdatasync(self, fd: int) -> None:
        pass

    def fsync_directory(self, path: Path) -> None:
        pass


class Log:
    """One partition in a directory that may be opened, closed and tampered with."""

    def __init__(self, directory: Path, *, segment_bytes: int = 1 << 26) -> None:
        self.directory = directory
        self.folder = directory / "hub" / "0"
        self._queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._store = EmbeddedLogStore(
            directory, wake=self._queue.put, files=QuickFiles(), segment_bytes=segment_bytes
        )
        self.refused = self._store.partition("hub", 0)

    @property
    def partition(self) -> EmbeddedPartition:
        assert isinstance(self.refused, EmbeddedPartition)
        return self.refused

    def append(self, *batches: EventBatch, now_ms: int = NOW) -> list[Receipt | PenstockError]:
        """One flight: none of them is known to be flushed when the others are framed."""
        outcomes: list[Receipt | PenstockError] = []
        for batch in batches:
            self.refused.append(batch, now_ms=now_ms, done=outcomes.append)
        while len(outcomes) < len(batches):
            self._queue.get(timeout=DEADLINE_S)()
        return outcomes

    def close(self) -> None:
        self._store.close()

    def firsts(self) -> list[int]:
        return [batch.first_sequence for batch in self.read_from(0)]

    def read_from(self, sequence: int) -> list[StoredBatch]:
        """From the disk alone and, as consumers do, from memory where possible: the same."""
        found = self._read_from(sequence, is_cached=False)
        assert self._read_from(sequence, is_cached=True) == found
        return found

    def _read_from(self, sequence: int, *, is_cached: bool) -> list[StoredBatch]:
        found: list[StoredBatch] = []
        while True:
            batches = self.partition.read_cached(sequence, bytes_max=SIZE) if is_cached else None
            if batches is None:
                batches = self.partition.read(sequence, bytes_max=SIZE if is_cached else 1 << 20)
            if not batches:
                return found
            found += batches
            sequence = batches[-1].next_sequence


def batch(number: int, *, size: int = 40, producer: ProducerStamp | None = None) -> EventBatch:
    bodies = [f"{number}.{i}:".encode().ljust(size, b"x") for i in range(2)]
    sections = b"".join(b"\x00\x53\x75\xa0" + bytes([len(body)]) + body for body in bodies)
    return EventBatch(sections, 2, producer=producer)


SIZE = RECORD_HEADER_BYTES + len(batch(0).sections)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Three acknowledged batches, each flushed before the next was framed; then a crash."""
    log = Log(tmp_path / "made")
    for number in range(3):
        log.append(batch(number))
    log.close()
    forget_marks(log.folder)
    return log.directory


def forget_marks(folder: Path) -> None:
    """Take away what a clean shutdown leaves: recovery has to walk the active segment."""
    for file in [*folder.glob("*.index"), *folder.glob("*.producers")]:
        file.unlink()


def active(directory: Path) -> Path:
    return max((directory / "hub" / "0").glob("*.log"))


def start_of(number: int) -> int:
    return SEGMENT_HEADER_BYTES + number * SIZE


def flip(path: Path, position: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def rows_after(directory: Path) -> tuple[str, ...]:
    """Which rows of the table hold, found without a store."""
    return partition_loader.load_partition(
        QuickFiles(), directory / "hub" / "0", 0, new_salt=lambda: 0
    ).rows


# --- the tables -----------------------------------------------------------------------------------


def test_recovery_table_has_exactly_one_row_for_every_combination_of_facts() -> None:
    hit = {
        find_rule(
            RECOVERY_TABLE,
            has_bytes=left,
            is_zero=zero,
            has_later_records=valid,
            was_flushed=flushed,
        ).label
        for left, zero, valid, flushed in itertools.product((False, True), repeat=4)
    }
    assert hit == {row.label for row in RECOVERY_TABLE}
    assert all(row.reason for row in RECOVERY_TABLE)


def test_header_table_has_exactly_one_row_for_every_combination_of_facts() -> None:
    hit = {
        find_rule(
            partition_loader.HEADER_TABLE,
            has_header=whole,
            is_newest=newest,
            is_empty=bare,
            has_start=known,
            is_covered=covered,
        ).label
        for whole, newest, bare, known, covered in itertools.product((False, True), repeat=5)
    }
    assert hit == {row.label for row in partition_loader.HEADER_TABLE}


def test_nothing_known_to_be_flushed_is_ever_cut() -> None:
    for left, zero, valid in itertools.product((False, True), repeat=3):
        row = find_rule(
            RECOVERY_TABLE,
            has_bytes=left,
            is_zero=zero,
            has_later_records=valid,
            was_flushed=True,
        )
        assert row.action is not RecoveryAction.CUT or zero or not valid


# --- the tail -------------------------------------------------------------------------------------


def test_clean_log_is_kept(made: Path) -> None:
    before = active(made).read_bytes()
    assert rows_after(made) == ("clean",)
    assert active(made).read_bytes() == before


def test_write_torn_at_every_byte_of_the_last_record_is_cut_and_never_more(made: Path) -> None:
    whole = active(made).read_bytes()
    for cut in range(start_of(2), len(whole)):
        active(made).write_bytes(whole[:cut])
        log = Log(made)
        assert log.firsts() == [0, 2]
        assert log.partition.status().last_sequence == 3
        assert active(made).read_bytes() == whole[: start_of(2)]
        [receipt] = log.append(batch(9))
        assert isinstance(receipt, Receipt)
        assert (receipt.first_sequence, receipt.base_offset) == (4, 2 * SIZE)
        log.close()
        forget_marks(log.folder)


@pytest.mark.parametrize("rest", [b"\x00", b"PnRc", b"\xff" * 100, b"\x00" * 5000 + b"\x01"])
def test_write_torn_at_every_byte_with_other_bytes_after_it_is_cut(made: Path, rest: bytes) -> None:
    whole = active(made).read_bytes()
    for cut in range(start_of(2), len(whole)):
        active(made).write_bytes(whole[:cut] + rest)
        if whole.startswith(whole[:cut] + rest):
            continue  # by chance what was there before
        labels = rows_after(made)
        assert labels[0] in ("torn", "zeros")
        assert active(made).read_bytes() == whole[: start_of(2)]


@pytest.mark.parametrize("zeros", [1, 63, 64, 65, 100_000])
def test_zeros_after_the_last_record_are_space_that_was_never_written(
    made: Path, zeros: int
) -> None:
    whole = active(made).read_bytes()
    active(made).write_bytes(whole + bytes(zeros))
    assert rows_after(made) == ("zeros",)
    assert active(made).read_bytes() == whole


def test_bit_flipped_at_every_byte_of_the_last_record_reads_as_torn(made: Path) -> None:
    whole = active(made).read_bytes()
    for position in range(start_of(2), len(whole)):
        active(made).write_bytes(whole)
        flip(active(made), position, position % 8)
        assert rows_after(made) == ("torn",)
        assert active(made).read_bytes() == whole[: start_of(2)]


def test_flight_torn_in_its_middle_is_cut_there_though_whole_records_follow(
    tmp_path: Path,
) -> None:
    log = Log(tmp_path / "flight")
    log.append(batch(0))
    log.append(batch(1), batch(2), batch(3))
    log.close()
    forget_marks(log.folder)
    flip(active(log.directory), start_of(2) + 70)
    log = Log(log.directory)
    assert log.firsts() == [0, 2]
    assert log.partition.damage == ()
    assert [r.first_sequence for r in log.append(batch(4)) if isinstance(r, Receipt)] == [4]
    assert log.firsts() == [0, 2, 4]
    log.close()
    assert rows_after(log.directory) == ("clean",)


def test_flight_whose_pages_arrived_in_another_order_leaves_no_hole(tmp_path: Path) -> None:
    log = Log(tmp_path / "flight")
    log.append(batch(0))
    log.append(batch(1), batch(2))
    log.close()
    forget_marks(log.folder)
    content = bytearray(active(log.directory).read_bytes())
    content[start_of(1) : start_of(2)] = bytes(SIZE)
    active(log.directory).write_bytes(content)
    assert rows_after(log.directory) == ("torn flight",)
    assert len(active(log.directory).read_bytes()) == start_of(1)


# --- bit rot --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1])
def test_bit_flipped_at_every_byte_of_an_earlier_record_loses_that_record_only(
    made: Path, number: int
) -> None:
    whole = active(made).read_bytes()
    for position in range(start_of(number), start_of(number + 1)):
        active(made).write_bytes(whole)
        flip(active(made), position, position % 8)
        log = Log(made)
        first = 2 * number
        with pytest.raises(LogCorrupt, match=f"events {first} to {first + 1} cannot be read"):
            log.partition.read(first, bytes_max=1000)
        assert [b.first_sequence for b in log.read_from(first + 2)] == list(range(first + 2, 6, 2))
        if number:
            assert [b.first_sequence for b in log.partition.read(0, bytes_max=9999)] == [0]
        assert len(log.partition.damage) == 1
        [receipt] = log.append(batch(9))
        assert isinstance(receipt, Receipt)
        assert receipt.first_sequence == 6
        log.close()
        forget_marks(log.folder)


def test_position_in_damage_is_located_where_the_damage_begins(made: Path) -> None:
    """So that reading says what is lost, instead of passing over it in silence."""
    flip(active(made), start_of(1) + 70)
    log = Log(made)
    for offset in range(SIZE, 2 * SIZE):
        assert log.partition.locate(Position(PositionKind.OFFSET, offset, True)) == 2
    assert log.partition.locate(Position(PositionKind.OFFSET, 2 * SIZE, True)) == 4
    assert log.partition.locate(Position(PositionKind.ENQUEUED_TIME, NOW, True)) == 0
    log.close()


def test_time_in_damage_is_located_where_the_damage_begins(tmp_path: Path) -> None:
    log = Log(tmp_path / "times")
    for number in range(3):
        log.append(batch(number), now_ms=NOW + number)
    log.close()
    flip(active(log.directory), start_of(1) + 70)
    log = Log(log.directory)
    for late, sequence in ((0, 0), (1, 2), (2, 2), (3, 6)):
        position = Position(PositionKind.ENQUEUED_TIME, NOW + late, True)
        assert log.partition.locate(position) == sequence
    log.close()
    flip(active(log.directory), start_of(2) + 70)
    log = Log(log.directory)
    assert log.partition.locate(Position(PositionKind.ENQUEUED_TIME, NOW + 2, True)) == 2
    assert log.partition.locate(Position(PositionKind.OFFSET, 2 * SIZE + 10, True)) == 2
    log.close()


def test_file_cut_while_it_is_served_is_noticed(made: Path) -> None:
    log = Log(made)
    whole = active(made).read_bytes()
    for cut, lost in ((start_of(2) + 10, 4), (start_of(2), 4), (start_of(1) + 1, 2), (0, 0)):
        active(made).write_bytes(whole[:cut])
        with pytest.raises(LogCorrupt, match=f"events {lost} to 5 cannot be read"):
            log.partition.read(lost, bytes_max=1 << 20)
        if lost:
            assert len(log.partition.read(0, bytes_max=1 << 20)) == lost // 2
    active(made).write_bytes(whole)
    log.close()


def test_damage_below_the_mark_of_a_clean_shutdown_is_never_cut(tmp_path: Path) -> None:
    log = Log(tmp_path / "marked")
    log.append(batch(0), batch(1))
    log.close()
    flip(active(log.directory), start_of(1) + 70)
    log = Log(log.directory)
    assert log.partition.status().last_sequence == 3
    with pytest.raises(LogCorrupt, match="events 2 to 3 cannot be read"):
        log.partition.read(2, bytes_max=1000)
    log.append(batch(2))
    assert [b.first_sequence for b in log.read_from(4)] == [4]
    log.close()


def test_every_flipped_bit_of_a_closed_segment_is_noticed(tmp_path: Path) -> None:
    log = Log(tmp_path / "closed", segment_bytes=SEGMENT_HEADER_BYTES + 2 * SIZE)
    for number in range(4):
        log.append(batch(number))
    log.close()
    closed = log.folder / segment_name(0)
    whole = closed.read_bytes()
    assert len(whole) == start_of(2)
    for position in range(start_of(0), start_of(2)):
        closed.write_bytes(whole)
        flip(closed, position, position % 8)
        log = Log(log.directory)
        bad = 2 * ((position - start_of(0)) // SIZE)
        with pytest.raises(LogCorrupt, match=f"events {bad} to {bad + 1} cannot be read"):
            log.partition.read(bad, bytes_max=1)
        assert [b.first_sequence for b in log.read_from(bad + 2)] == list(range(bad + 2, 8, 2))
        log.close()


def test_record_planted_in_a_payload_is_not_taken_for_one(tmp_path: Path) -> None:
    """A publisher can guess everything about a record but the partition's salt."""
    log = Log(tmp_path / "planted")
    inner = batch(7)
    at = SIZE + RECORD_HEADER_BYTES + 5  # where the planted bytes come to lie in the log
    header = encode_record_header(
        StoredBatch(4, at, NOW, inner.count, inner.sections), None, flushed_offset=at, salt=0
    )
    planted = header + inner.sections
    host = EventBatch(b"\x00\x53\x75\xa0" + bytes([len(planted)]) + planted, 1)
    log.append(batch(0))
    log.append(host)
    log.append(batch(2))
    log.close()
    forget_marks(log.folder)
    flip(active(log.directory), start_of(1) + 20)  # the host's header no longer fits
    log = Log(log.directory)
    with pytest.raises(LogCorrupt, match="events 2 to 2 cannot be read"):
        log.partition.read(2, bytes_max=1000)
    assert [b.first_sequence for b in log.read_from(3)] == [3]
    log.close()


# --- headers and files ----------------------------------------------------------------------------


def test_one_copy_of_a_segments_header_is_enough(made: Path) -> None:
    whole = active(made).read_bytes()
    for position in range(SEGMENT_HEADER_BYTES):
        active(made).write_bytes(whole)
        flip(active(made), position, position % 8)
        log = Log(made)
        assert log.firsts() == [0, 2, 4]
        log.close()
        forget_marks(log.folder)


@pytest.mark.parametrize("label", ["damaged newest", "damaged closed", "lost numbers"])
def test_segment_without_a_whole_header_is_refused_and_left_alone(
    tmp_path: Path, label: str
) -> None:
    log = Log(tmp_path / "refused", segment_bytes=SEGMENT_HEADER_BYTES + 2 * SIZE)
    for number in range(3):
        log.append(batch(number))
    log.close()
    files = sorted(log.folder.glob("*.log"))
    victim = files[1] if label != "damaged closed" else files[0]
    records = victim.read_bytes()[SEGMENT_HEADER_BYTES:]
    victim.write_bytes(bytes(SEGMENT_HEADER_BYTES) + records)
    if label == "lost numbers":
        victim.write_bytes(bytes(SEGMENT_HEADER_BYTES))
        files[0].unlink()
    before = victim.read_bytes()
    log = Log(log.directory)
    assert isinstance(log.refused, RefusedPartition)
    status = log.refused.status()
    assert status.failed is not None
    assert victim.name in status.failed
    assert label in status.failed
    assert isinstance(log.append(batch(9))[0], LogFailed)
    with pytest.raises(LogCorrupt, match=victim.name):
        log.refused.read(0, bytes_max=1)
    log.close()
    assert victim.read_bytes() == before


@pytest.mark.parametrize("size", [0, 1, 64, 127, 128])
def test_segment_that_was_never_finished_is_removed(tmp_path: Path, size: int) -> None:
    log = Log(tmp_path / "unborn")
    log.append(batch(0))
    log.close()
    unborn = log.folder / segment_name(SIZE)
    unborn.write_bytes(bytes(size))
    log = Log(log.directory)
    assert not unborn.exists()
    assert log.firsts() == [0]
    [receipt] = log.append(batch(1))
    assert isinstance(receipt, Receipt)
    assert receipt.first_sequence == 2
    log.close()


def test_first_segment_that_was_never_finished_is_made_again(tmp_path: Path) -> None:
    log = Log(tmp_path / "unborn")
    log.close()
    log.folder.mkdir(parents=True)
    (log.folder / segment_name(0)).write_bytes(bytes(50))
    log = Log(log.directory)
    assert log.partition.status().is_empty
    assert isinstance(log.append(batch(0))[0], Receipt)
    log.close()


@pytest.mark.parametrize("harm", ["removed", "cut"])
def test_missing_bytes_in_the_middle_are_named_and_the_rest_is_served(
    tmp_path: Path, harm: str
) -> None:
    small = SEGMENT_HEADER_BYTES + 2 * SIZE
    log = Log(tmp_path / "gap", segment_bytes=small)
    for number in range(8):
        log.append(batch(number))
    log.close()
    victim = sorted(log.folder.glob("*.log"))[1]
    if harm == "removed":
        victim.unlink()
        lost, missing = range(4, 8), victim.name
    else:
        victim.write_bytes(victim.read_bytes()[: start_of(1) + 10])
        lost, missing = range(6, 8), victim.name
    log = Log(log.directory, segment_bytes=small)
    assert missing in log.partition.damage[0]
    assert [b.first_sequence for b in log.read_from(lost.stop)] == list(range(lost.stop, 16, 2))
    for sequence in lost:
        with pytest.raises(LogCorrupt, match=f"events {sequence} to {lost.stop - 1} cannot"):
            log.partition.read(sequence, bytes_max=1)
    read = log.partition.read(0, bytes_max=1 << 20)
    assert [b.first_sequence for b in read] == list(range(0, lost.start, 2))
    [receipt] = log.append(batch(9))
    assert isinstance(receipt, Receipt)
    assert receipt.first_sequence == 16
    log.close()


def test_segment_of_another_partition_is_refused(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "hub" / "0", made / "hub" / "1")
    store = EmbeddedLogStore(made, wake=lambda _: None, files=QuickFiles())
    failed = store.partition("hub", 1).status().failed
    assert failed is not None
    assert "belongs to partition 0" in failed
    store.close()


# --- derived files --------------------------------------------------------------------------------


def stamped(tmp_path: Path) -> Log:
    log = Log(tmp_path / "stamped", segment_bytes=SEGMENT_HEADER_BYTES + 2 * SIZE)
    for number in range(7):
        log.append(batch(number, producer=ProducerStamp(number % 3, 1, number, number)))
    log.close()
    return log


@pytest.mark.parametrize("suffix", [".index", ".producers"])
@pytest.mark.parametrize("harm", ["missing", "damaged", "empty"])
def test_derived_file_that_is_lost_is_found_again_from_the_records(
    tmp_path: Path, suffix: str, harm: str
) -> None:
    log = stamped(tmp_path)
    for file in log.folder.glob(f"*{suffix}"):
        if harm == "missing":
            file.unlink()
        elif harm == "empty":
            file.write_bytes(b"")
        else:
            flip(file, file.stat().st_size - 1)
    log = Log(log.directory)
    assert [log.partition.producer(n) for n in range(3)] == [
        ProducerStamp(0, 1, 6, 6),
        ProducerStamp(1, 1, 4, 4),
        ProducerStamp(2, 1, 5, 5),
    ]
    assert log.firsts() == list(range(0, 14, 2))
    for sequence in range(14):
        assert log.partition.read(sequence, bytes_max=1)[0].first_sequence == sequence // 2 * 2
    log.close()


def test_rebuilt_index_file_is_the_one_that_was_lost(tmp_path: Path) -> None:
    log = stamped(tmp_path)
    index = log.folder / "00000000000000000000.index"
    before = index.read_bytes()
    index.unlink()
    log = Log(log.directory)
    log.partition.read(1, bytes_max=1)
    log.close()
    assert index.read_bytes() == before


def test_half_written_derived_file_is_swept_away(made: Path) -> None:
    leftover = made / "hub" / "0" / "00000000000000000000.index.new"
    leftover.write_bytes(b"half")
    log = Log(made)
    assert not leftover.exists()
    log.close()


def test_mark_beyond_the_end_of_the_file_is_reported_and_the_records_are_served(
    tmp_path: Path,
) -> None:
    log = Log(tmp_path / "cut")
    for number in range(3):
        log.append(batch(number))
    log.close()
    active(log.directory).write_bytes(active(log.directory).read_bytes()[: start_of(2) + 5])
    log = Log(log.directory)
    assert log.firsts() == [0, 2]
    assert "it was truncated since" in log.partition.damage[0]
    log.close()


# --- the directory --------------------------------------------------------------------------------


def test_directory_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "format.json").write_text('{"format": 2, "more": true}')
    with pytest.raises(DataDirectoryError, match="format version 2, written by a newer Penstock"):
        Log(tmp_path)
    (tmp_path / "format.json").write_text("not json")
    with pytest.raises(DataDirectoryError, match="does not contain a valid format version"):
        Log(tmp_path)
    (tmp_path / "format.json").write_text('{"format": 1}')
    Log(tmp_path).close()


def test_segment_of_a_newer_version_is_refused(made: Path) -> None:
    content = bytearray(active(made).read_bytes())
    content[8] = content[64 + 8] = 2
    active(made).write_bytes(content)
    with pytest.raises(DataDirectoryError, match="format version 2, written by a newer Penstock"):
        Log(made)


def test_header_table_removes_only_what_never_held_a_record() -> None:
    assert all(
        row.is_empty
        for row in partition_loader.HEADER_TABLE
        if row.action is partition_loader.HeaderAction.REMOVE
    )
