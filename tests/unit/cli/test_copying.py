"""Backup and restore: what is in a copy, what a copy refuses, and what happens meanwhile."""

from __future__ import annotations

import json
import queue
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.capture.state import CaptureStateFile
from penstock.capture.windows import WindowStart
from penstock.catalog.sqlite import SqliteCatalog
from penstock.io.sqlite import register_row_sum
from penstock.log.embedded.segment import SEGMENT_HEADER_BYTES
from penstock.log.embedded.store import EmbeddedLogStore
from penstock.log.embedded.verify import PartitionSummary, verify_directory
from penstock.model import names
from penstock.model.entities import Hub, Namespace
from penstock.model.errors import DataDirectoryError, NotFound
from penstock.model.events import EventBatch, Receipt
from penstock.service.backup import (
    MANIFEST,
    BackupManifest,
    back_up,
    check_backup,
    data_size,
    read_manifest,
    restore_to,
)

MESSAGE = b"\x00\x53\x75\xa0\x80" + bytes(128)
SECTION = b"\x00\x53\x75\xa0" + bytes([len(MESSAGE)]) + MESSAGE
EVENTS_PER_SEGMENT = 4
DEADLINE_S = 30


class Living:
    """A data directory with a log that is open, as a running service has it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        (path / "tls").mkdir()
        (path / "tls" / "ca.pem").write_text("certificate")
        (path / "root.key").write_text("secret")
        (path / "runtime.json").write_text("{}")
        self.catalog = SqliteCatalog(path / "catalog.sqlite")
        self.catalog.put_namespace(
            Namespace(name=names.namespace_name("penstock"), created_ms=1, updated_ms=1)
        )
        self._turns: queue.Queue[Callable[[], None]] = queue.Queue()
        self.store = EmbeddedLogStore(
            path / "log",
            wake=self._turns.put,
            segment_bytes=SEGMENT_HEADER_BYTES + EVENTS_PER_SEGMENT * 210,
        )
        self.add_hub("a" * 32, "orders")

    def add_hub(self, hub_id: str, name: str) -> None:
        self.catalog.put_hub(
            Hub(
                id=hub_id,
                namespace=names.namespace_name("penstock"),
                name=names.hub_name(name),
                partition_count=2,
                created_ms=1,
                updated_ms=1,
            )
        )

    def publish(self, count: int, *, partition: int = 0, hub_id: str = "a" * 32) -> None:
        """So many events, one by one, each acknowledged."""
        done: list[object] = []
        log = self.store.partition(hub_id, partition)
        for number in range(count):
            batch = EventBatch(sections=SECTION, count=1)
            log.append(batch, now_ms=1000 + number, done=done.append)
        while len(done) < count:
            self._turns.get(timeout=DEADLINE_S)()
        assert all(isinstance(each, Receipt) for each in done)

    def segments(self, partition: int = 0) -> list[Path]:
        return sorted((self.path / "log" / ("a" * 32) / str(partition)).glob("*.log"))

    def close(self) -> None:
        self.store.close()
        self.catalog.close()


@pytest.fixture
def living(tmp_path: Path) -> Iterator[Living]:
    living = Living(tmp_path / "data")
    yield living
    living.close()


def quietly(_: int) -> None:
    """Nobody looks at the bar."""


def backed_up(
    living: Living, place: Path, report: Callable[[int], None] = quietly
) -> BackupManifest:
    return back_up(living.path, place, created_at="now", penstock="1", report=report)


def last_sequences(data: Path) -> dict[int, int]:
    summaries = [s for s in verify_directory(data / "log") if isinstance(s, PartitionSummary)]
    return {summary.partition: summary.last_sequence for summary in summaries}


def test_copy_has_everything_and_comes_back(living: Living, tmp_path: Path) -> None:
    living.publish(10)
    living.publish(3, partition=1)
    assert len(living.segments()) == 3
    made = backed_up(living, tmp_path / "copy")
    assert (made.partitions, made.events, made.findings) == (2, 13, [])
    assert made == read_manifest(tmp_path / "copy")
    restored = restore_to(tmp_path / "copy", made, tmp_path / "new", quietly)
    assert (restored.partitions, restored.events, restored.losses) == (2, 13, [])
    assert last_sequences(tmp_path / "new") == {0: 9, 1: 2}
    assert (tmp_path / "new" / "tls" / "ca.pem").read_text() == "certificate"
    catalog = SqliteCatalog(tmp_path / "new" / "catalog.sqlite")
    assert [hub.name for hub in catalog.hubs("penstock")] == ["orders"]
    catalog.close()


def test_restored_log_goes_on_where_the_copy_ends(living: Living, tmp_path: Path) -> None:
    living.publish(6)
    made = backed_up(living, tmp_path / "copy")
    living.publish(5)
    restore_to(tmp_path / "copy", made, tmp_path / "new", quietly)
    store = EmbeddedLogStore(tmp_path / "new" / "log", wake=lambda _: None)
    try:
        assert store.partition("a" * 32, 0).status().last_sequence == 5
        assert store.damage == []
    finally:
        store.close()


def test_copy_is_its_owner_s_alone_and_leaves_out_what_is_of_the_process(
    living: Living, tmp_path: Path
) -> None:
    living.publish(1)
    made = backed_up(living, tmp_path / "copy")
    paths = {file.path for file in made.files}
    assert {"root.key", "tls/ca.pem", "catalog.sqlite", "log/format.json"} <= paths
    assert not paths & {"runtime.json", "log/lock", "catalog.sqlite-wal", "catalog.sqlite-shm"}
    assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o700
    for path in (*paths, MANIFEST):
        assert stat.S_IMODE((tmp_path / "copy" / path).stat().st_mode) == 0o600, path


def test_what_is_published_meanwhile_does_no_harm(living: Living, tmp_path: Path) -> None:
    """At every chunk that is copied more events come, and segments roll."""
    living.publish(6)
    living.publish(6, partition=1)

    def publish_more(_: int) -> None:
        living.publish(3)
        living.publish(3, partition=1)

    made = backed_up(living, tmp_path / "copy", publish_more)
    assert made.findings == []
    found = last_sequences(tmp_path / "copy")
    assert found[0] >= 5
    assert found[1] >= 5
    restore_to(tmp_path / "copy", made, tmp_path / "new", quietly)


def test_write_that_is_under_way_is_left_out(living: Living, tmp_path: Path) -> None:
    living.publish(2)
    with living.segments()[-1].open("ab") as segment:
        segment.write(b"half a record")
    made = backed_up(living, tmp_path / "copy")
    assert (made.events, made.findings) == (2, [])
    copied = tmp_path / "copy" / living.segments()[-1].relative_to(living.path)
    assert copied.stat().st_size == living.segments()[-1].stat().st_size - len(b"half a record")


def test_segments_that_retention_drops_meanwhile_leave_no_gap(
    living: Living, tmp_path: Path
) -> None:
    living.publish(4 * EVENTS_PER_SEGMENT)
    segments = living.segments()
    assert len(segments) == 4

    def drop(_: int) -> None:
        """As soon as the oldest is copied, it and the next go."""
        if (tmp_path / "copy" / segments[0].relative_to(living.path)).exists():
            for segment in segments[:2]:
                segment.unlink(missing_ok=True)

    made = backed_up(living, tmp_path / "copy", drop)
    assert made.findings == []
    assert made.events == 2 * EVENTS_PER_SEGMENT
    check_backup(tmp_path / "copy", made, quietly)


def once(act: Callable[[], None]) -> Callable[[int], None]:
    """A report that acts when the first file, the catalog, was copied."""
    done: list[int] = []

    def report(size: int) -> None:
        if not done:
            done.append(size)
            act()

    return report


def test_hub_that_is_made_meanwhile_is_left_out(living: Living, tmp_path: Path) -> None:
    living.publish(2)

    def make() -> None:
        living.add_hub("b" * 32, "late")
        living.publish(2, hub_id="b" * 32)

    made = backed_up(living, tmp_path / "copy", once(make))
    assert (living.path / "log" / ("b" * 32)).is_dir()
    assert (made.partitions, made.events) == (1, 2)
    assert not (tmp_path / "copy" / "log" / ("b" * 32)).exists()


def test_hub_that_is_deleted_meanwhile_is_empty(living: Living, tmp_path: Path) -> None:
    living.add_hub("b" * 32, "doomed")
    living.publish(2)
    living.publish(2, hub_id="b" * 32)

    def delete() -> None:
        shutil.rmtree(living.path / "log" / ("b" * 32))

    made = backed_up(living, tmp_path / "copy", once(delete))
    assert (made.events, made.findings) == (2, [])
    restore_to(tmp_path / "copy", made, tmp_path / "new", quietly)


def test_no_checkpoint_of_a_copy_is_beyond_its_log(living: Living, tmp_path: Path) -> None:
    """At every chunk an event is published and then a checkpoint written of it."""
    living.publish(2 * EVENTS_PER_SEGMENT)
    kept = sqlite3.connect(living.path / "checkpoints.sqlite", isolation_level=None)
    kept.execute("PRAGMA journal_mode = WAL")
    kept.execute("CREATE TABLE checkpoint (sequence INTEGER)")
    kept.execute("INSERT INTO checkpoint VALUES (?)", (2 * EVENTS_PER_SEGMENT - 1,))

    def process(_: int) -> None:
        living.publish(1)
        kept.execute("UPDATE checkpoint SET sequence = sequence + 1")

    backed_up(living, tmp_path / "copy", process)
    kept.close()
    copied = sqlite3.connect(tmp_path / "copy" / "checkpoints.sqlite")
    (sequence,) = copied.execute("SELECT sequence FROM checkpoint").fetchone()
    copied.close()
    assert 2 * EVENTS_PER_SEGMENT - 1 < sequence <= last_sequences(tmp_path / "copy")[0]


# --- what Capture has done ------------------------------------------------------------------------

HUB_STATE = "a" * 32 + ".sqlite"
RUN = "a" * 32 + "-first"


def with_job(living: Living, run: str = RUN) -> CaptureStateFile:
    """The state directory of a capture job that works at one run."""
    state = living.path / "capture"
    for path in (f"{run}/checkpoint/offsets/0", f"{run}/spool/7-0-1.avro", "local/blocks/1"):
        (state / path).parent.mkdir(parents=True)
        (state / path).write_text("of this very moment")
    (state / run / "plan.json").write_text("AccountKey=of-the-storage")
    for name in ("job-id", "lock", "spark.log"):
        (state / name).write_text(name)
    return CaptureStateFile(state / HUB_STATE, run)


def copied_places(data: Path, run: str = RUN) -> dict[str, WindowStart]:
    with closing(CaptureStateFile(data / "capture" / HUB_STATE, run)) as state:
        return state.starts()


def test_of_a_capture_job_the_ledgers_are_copied_and_no_key_of_others(
    living: Living, tmp_path: Path
) -> None:
    living.publish(4)
    ledger = with_job(living)
    ledger.record([], {"0": WindowStart(3, window=1)})
    made = backed_up(living, tmp_path / "copy")
    ledger.close()
    paths = {file.path for file in made.files if file.path.startswith("capture/")}
    assert paths == {"capture/job-id", f"capture/{HUB_STATE}"}
    assert {file for file in (tmp_path / "copy" / "capture").rglob("*") if file.is_file()} == {
        tmp_path / "copy" / path for path in paths
    }
    for file in made.files:
        assert b"of-the-storage" not in (tmp_path / "copy" / file.path).read_bytes()
    restore_to(tmp_path / "copy", made, tmp_path / "new", quietly)
    assert (tmp_path / "new" / "capture" / "job-id").read_text() == "job-id"
    assert copied_places(tmp_path / "new") == {"0": WindowStart(3, window=1)}


def test_ledger_that_is_being_written_is_copied_as_it_was_before(
    living: Living, tmp_path: Path
) -> None:
    living.publish(4)
    ledger = with_job(living)
    ledger.record([], {"0": WindowStart(3, window=1)})  # in the journal alone, beside the file
    writing = sqlite3.connect(living.path / "capture" / HUB_STATE, isolation_level=None)
    register_row_sum(writing)
    writing.execute("PRAGMA cache_size = 1")  # what is not committed reaches the disk as well
    writing.execute("BEGIN IMMEDIATE")
    writing.execute("UPDATE places SET place = zeroblob(100000)")
    backed_up(living, tmp_path / "copy")
    writing.execute("ROLLBACK")
    writing.close()
    ledger.close()
    assert copied_places(tmp_path / "copy") == {"0": WindowStart(3, window=1)}


def test_no_ledger_and_no_captured_file_of_a_copy_is_beyond_its_log(
    living: Living, tmp_path: Path
) -> None:
    """At every chunk an event is published and then captured."""
    living.publish(2 * EVENTS_PER_SEGMENT)
    ledger = with_job(living)
    captured = living.path / "captured" / "events"
    captured.mkdir(parents=True)
    windows: list[int] = []

    def capture(_: int = 0) -> None:
        living.publish(1)
        last = 2 * EVENTS_PER_SEGMENT + len(windows)
        windows.append(last)
        (captured / f"{last:04}.avro").write_text("events")
        ledger.record([], {"0": WindowStart(last + 1, window=len(windows))})

    capture()
    backed_up(living, tmp_path / "copy", capture)
    ledger.close()
    copied = sorted((tmp_path / "copy" / "captured").rglob("*.avro"))
    last_sequence = last_sequences(tmp_path / "copy")[0]
    stood = copied_places(tmp_path / "copy")["0"].sequence
    # What the ledger knows is there; what is there can be read in the log.
    assert stood - 1 <= int(copied[-1].stem) <= last_sequence


def test_state_that_is_removed_meanwhile_is_left_out(living: Living, tmp_path: Path) -> None:
    """It was seen before the catalog was copied: the catalog may not name its hub any more."""
    living.publish(2)
    with_job(living).close()
    state, copy = living.path / "capture", tmp_path / "copy"
    other = state / ("b" * 32 + ".sqlite")
    shutil.copy(state / HUB_STATE, other)

    def forget(_: int) -> None:
        if (copy / "capture" / HUB_STATE).exists() and other.exists():
            assert not (copy / "catalog.sqlite").exists()
            other.unlink()

    made = backed_up(living, copy, forget)
    assert [each.name for each in sorted((copy / "capture").iterdir())] == [HUB_STATE, "job-id"]
    check_backup(copy, made, quietly)


def test_ledger_that_is_damaged_is_not_copied_as_if_it_were_sound(
    living: Living, tmp_path: Path
) -> None:
    living.publish(1)
    with_job(living).close()
    (living.path / "capture" / HUB_STATE).write_bytes(b"no database " * 1000)
    with pytest.raises(DataDirectoryError, match=HUB_STATE):
        backed_up(living, tmp_path / "copy")


def test_bar_leaves_out_what_is_not_copied_of_a_capture_job(living: Living) -> None:
    with_job(living).close()
    before = data_size(living.path)
    (living.path / "capture" / RUN / "spool" / "large").write_bytes(bytes(100_000))
    assert data_size(living.path) == before


# --- damage, and what is refused ------------------------------------------------------------------


def test_damage_of_the_source_is_told_and_the_rest_is_copied(
    living: Living, tmp_path: Path
) -> None:
    living.publish(2 * EVENTS_PER_SEGMENT)
    content = bytearray(living.segments()[0].read_bytes())
    content[SEGMENT_HEADER_BYTES + 100] ^= 1
    living.segments()[0].write_bytes(content)
    made = backed_up(living, tmp_path / "copy")
    assert len(made.findings) == 1
    assert made.events == 2 * EVENTS_PER_SEGMENT - 1
    restored = restore_to(tmp_path / "copy", made, tmp_path / "new", quietly)
    assert len(restored.losses) == 1


def test_copy_goes_into_an_empty_directory_only(living: Living, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "mine").touch()
    with pytest.raises(DataDirectoryError, match="not empty"):
        backed_up(living, tmp_path / "copy")
    assert [each.name for each in (tmp_path / "copy").iterdir()] == ["mine"]


def test_what_is_no_data_directory_is_not_copied(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(NotFound, match="no data directory"):
        back_up(tmp_path / "data", tmp_path / "copy", created_at="", penstock="", report=quietly)
    assert not (tmp_path / "copy").exists()


def test_bar_ends_about_where_it_says(living: Living, tmp_path: Path) -> None:
    living.publish(20)
    reported: list[int] = []
    backed_up(living, tmp_path / "copy", reported.append)
    copied = sum(segment.stat().st_size for segment in living.segments())
    assert copied < sum(reported) < 2 * data_size(living.path)


# --- backups that are not whole -------------------------------------------------------------------


@pytest.fixture
def copy(living: Living, tmp_path: Path) -> Path:
    living.publish(6)
    backed_up(living, tmp_path / "copy")
    return tmp_path / "copy"


def restored(copy: Path, data: Path) -> None:
    restore_to(copy, read_manifest(copy), data, quietly)


def test_flipped_bit_anywhere_is_found_and_nothing_is_left_behind(
    copy: Path, tmp_path: Path
) -> None:
    for file in read_manifest(copy).files:
        path = copy / file.path
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[len(damaged) // 2] ^= 4
        path.write_bytes(damaged)
        with pytest.raises(DataDirectoryError, match="backup is damaged"):
            restored(copy, tmp_path / "new")
        with pytest.raises(DataDirectoryError, match="backup is damaged"):
            check_backup(copy, read_manifest(copy), quietly)
        path.write_bytes(whole)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["copy", "data"]
    restored(copy, tmp_path / "new")


def test_missing_file_is_named(copy: Path, tmp_path: Path) -> None:
    (copy / "root.key").unlink()
    with pytest.raises(DataDirectoryError, match=r"root\.key is missing"):
        check_backup(copy, read_manifest(copy), quietly)
    with pytest.raises(FileNotFoundError):
        restored(copy, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_backup_that_did_not_end_is_none(copy: Path) -> None:
    (copy / MANIFEST).unlink()
    with pytest.raises(NotFound, match="did not end"):
        read_manifest(copy)


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "tls/../../outside", ""])
def test_manifest_leads_nowhere_else(copy: Path, tmp_path: Path, path: str) -> None:
    manifest = json.loads((copy / MANIFEST).read_text())
    manifest["files"][0]["path"] = path
    (copy / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(DataDirectoryError, match="no path within"):
        restored(copy, tmp_path / "new")


def test_backup_of_a_newer_version_is_refused(copy: Path) -> None:
    manifest = json.loads((copy / MANIFEST).read_text())
    (copy / MANIFEST).write_text(json.dumps(manifest | {"version": 99}))
    with pytest.raises(DataDirectoryError, match="newer Penstock"):
        read_manifest(copy)
    (copy / MANIFEST).write_text("{}")
    with pytest.raises(DataDirectoryError, match="cannot be read"):
        read_manifest(copy)


def test_restoring_over_anything_is_refused(copy: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "mine").touch()
    with pytest.raises(DataDirectoryError, match="not empty"):
        restored(copy, tmp_path / "new")
    (tmp_path / "new" / "mine").unlink()
    restored(copy, tmp_path / "new")  # an empty one is fine
    with sqlite3.connect(tmp_path / "new" / "catalog.sqlite") as catalog:
        assert catalog.execute("SELECT count(*) FROM hubs").fetchone() == (1,)
    catalog.close()
