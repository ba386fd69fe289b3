"""A consistent copy of a data directory, also while its service runs; and the way back.

What is consistent: each partition is copied as a crash would have left it, up to a whole record,
with everything that was acknowledged before the backup began and is still retained. Partitions are
copied one after the other: each ends at a moment of its own, and no later one is promised.

- Checkpoints are copied before the log, so none is beyond its end; the catalog before both, and
  of the log only the hubs that it names. SQLite's own backup API sees whole transactions alone.
- Of Capture first the job's state files, before the catalog: it names no run that they lack.
  Then the files that lie in the data directory, before the log, which has every event of theirs.
  Nothing else: a checkpoint may lie beyond the log, and a plan holds keys of others' storage. A job
  that finds no checkpoint continues from its state file.
- Of a partition first the derived files, then its segments, oldest first: nothing that is copied
  speaks of bytes that are not. Of the newest segment the whole records are taken, after a flush.
- The manifest is written last: a backup without one is not whole, and is not restored.
"""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import msgspec

from penstock.log.embedded.verify import (
    DumpedRecord,
    DumpedSegment,
    LogFinding,
    PartitionSummary,
    dump_segment,
    verify_directory,
)
from penstock.model.errors import DataDirectoryError, LogCorrupt, NotFound

MANIFEST = "backup.json"
VERSION = 1
_CHUNK_BYTES = 1024 * 1024
_BUSY_S = 30.0
_SEGMENT = re.compile(r"[0-9]{20}\.log")
_LEFT_OUT = ("runtime.json", "capture.token", "portal.token", "lock", MANIFEST)
_CAPTURE = "capture"  # the state of the job that the service runs
_CAPTURED = "captured"  # the destination of a service that names none
# The second is of a run that no job has opened since version 0.1.
_CAPTURE_STATES = (f"{_CAPTURE}/*.sqlite", f"{_CAPTURE}/*/ledger.sqlite")
_JOB_ID = f"{_CAPTURE}/job-id"
_MANIFEST_BYTES_MAX = 256 * 1024 * 1024

Report = Callable[[int], None]
"""Hears of so many more bytes done."""


class CopiedFile(msgspec.Struct, frozen=True):
    path: str  # relative, with slashes
    size: int
    sha256: str


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    created_at: str
    penstock: str
    source: str
    partitions: int
    events: int
    findings: list[str]  # damage that the source had; empty for a sound one
    files: list[CopiedFile]


class BackupVerification(msgspec.Struct, frozen=True):
    """What the log's own verifier says of a copy."""

    partitions: int
    events: int
    losses: list[str]


def data_size(data: Path) -> int:
    """About so many bytes will be copied."""
    return sum(
        file.stat().st_size
        for file in _files_below(data)
        if file.relative_to(data).parts[0] != _CAPTURE or any(map(file.match, _CAPTURE_STATES))
    )


def back_up(
    data: Path, place: Path, *, created_at: str, penstock: str, report: Report
) -> BackupManifest:
    """Copy `data` into `place`, an empty or new directory, and verify the copy.

    Raises DataDirectoryError, NotFound, OSError. A manifest with findings is of a source that was
    damaged already; a copy that differs from its source is an error."""
    if not (data / "log").is_dir() or not (data / "catalog.sqlite").is_file():
        raise NotFound(f"{data} is no data directory of Penstock.")
    _make_empty(place)
    copier = _BackupCopier(data, place, report)
    copier.copy_capture_states()
    copier.copy_databases()
    copier.copy_captured()
    copier.copy_log()
    copier.copy_others()
    copier.flush()
    verified = verify(place)
    manifest = BackupManifest(
        version=VERSION,
        created_at=created_at,
        penstock=penstock,
        source=str(data.absolute()),
        partitions=verified.partitions,
        events=verified.events,
        findings=verified.losses,
        files=sorted(copier.files, key=lambda file: file.path),
    )
    _write(place / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1))
    return manifest


def read_manifest(place: Path) -> BackupManifest:
    """Raises NotFound, DataDirectoryError."""
    try:
        with (place / MANIFEST).open("rb") as opened:
            found = msgspec.json.decode(opened.read(_MANIFEST_BYTES_MAX), type=BackupManifest)
    except FileNotFoundError:
        raise NotFound(
            f"There is no {MANIFEST} in {place}: it is no backup, or one that did not end."
        ) from None
    except msgspec.MsgspecError as error:
        raise DataDirectoryError(f"{place / MANIFEST} cannot be read: {error}.") from error
    if found.version > VERSION:
        raise DataDirectoryError(
            f"The backup {place} has version {found.version}, made by a newer Penstock: this one "
            f"reads version {VERSION}."
        )
    return found


def check_backup(place: Path, manifest: BackupManifest, report: Report) -> None:
    """Compare every file with the manifest. Raises DataDirectoryError."""
    for file in manifest.files:
        _compare_hash(file, _hash_file(_inside(place, file.path), report))


def restore_to(
    place: Path, manifest: BackupManifest, data: Path, report: Report
) -> BackupVerification:
    """Copy a backup to where there is nothing, compare and verify it, and only then put it in
    place. Raises DataDirectoryError, OSError; nothing is left behind then."""
    if data.exists() and (not data.is_dir() or any(data.iterdir())):
        raise DataDirectoryError(
            f"{data} is not empty: a backup is restored into an empty or new directory only."
        )
    aside = data.parent / f"{data.name}.restoring-{os.getpid()}"
    _make_empty(aside)
    try:
        for file in manifest.files:
            target = _inside(aside, file.path)
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _compare_hash(file, _copy_file(_inside(place, file.path), target, None, report))
        _flush_all(aside)
        verified = verify(aside)
        if len(verified.losses) > len(manifest.findings):
            raise DataDirectoryError(f"The restored log is damaged: {verified.losses[0]}")
        aside.replace(data)  # over an empty directory too
        fsync_directory(data.parent)
    except BaseException:
        _remove(aside)
        raise
    return verified


def verify(data: Path) -> BackupVerification:
    """The log by its own verifier, the databases by theirs. Raises DataDirectoryError."""
    for file in sorted((*data.glob("*.sqlite"), *_capture_states(data))):
        with closing(_read_only(file)) as connection:
            try:
                said = connection.execute("PRAGMA integrity_check(1)").fetchone()
            except sqlite3.Error as error:
                raise DataDirectoryError(f"{file} is damaged: {error}") from error
        if said != ("ok",):
            raise DataDirectoryError(f"{file} is damaged: {said[0]}")
    partitions = events = 0
    losses: list[str] = []
    for item in verify_directory(data / "log"):
        if isinstance(item, PartitionSummary):
            partitions += 1
            events += item.events
        elif isinstance(item, LogFinding) and item.is_loss:
            losses.append(f"{Path(item.path).relative_to(data)}: {item.text}")
    return BackupVerification(partitions, events, losses)


class _BackupCopier:
    """One backup under way."""

    def __init__(self, data: Path, place: Path, report: Report) -> None:
        self._data = data
        self._place = place
        self._report = report
        self.files: list[CopiedFile] = []

    def copy_capture_states(self) -> None:
        """What Capture has done, and who did it."""
        if (self._data / _JOB_ID).is_file():
            self._copy(self._data / _JOB_ID)
        for file in _capture_states(self._data):
            try:
                self._copy_database(file)
            except DataDirectoryError:
                if file.exists():
                    raise
                # The job has removed it meanwhile: its run or its hub is gone.
                (self._place / file.relative_to(self._data)).unlink(missing_ok=True)

    def copy_databases(self) -> None:
        """The catalog first: what it names is what is copied of the rest."""
        files = sorted(self._data.glob("*.sqlite"), key=lambda f: (f.name != "catalog.sqlite", f))
        for file in files:
            self._copy_database(file)

    def copy_captured(self) -> None:
        for file in _files_below(self._data / _CAPTURED):
            self._copy(file)

    def copy_log(self) -> None:
        log = self._data / "log"
        for name in ("format.json",):
            self._copy(log / name)
        for hub_id in _hub_ids(self._place / "catalog.sqlite"):
            folder = log / hub_id
            if not folder.is_dir():
                continue  # never written to, or deleted since
            if (folder / "hub.json").is_file():
                self._copy(folder / "hub.json")
            for partition in sorted(folder.iterdir()):
                if partition.name.isascii() and partition.name.isdigit():
                    self._copy_partition(partition)

    def copy_others(self) -> None:
        """Keys, certificates, whatever else is kept."""
        for file in _files_below(self._data):
            inside = file.relative_to(self._data)
            first = inside.parts[0]
            if first in ("log", _CAPTURE, _CAPTURED) or ".sqlite" in first:
                continue  # copied above, or not to be copied
            if file.name.endswith(".new"):
                continue
            if str(inside) not in _LEFT_OUT:
                self._copy(file)

    def flush(self) -> None:
        _flush_all(self._place)

    def _copy_database(self, file: Path) -> None:
        """Raises DataDirectoryError."""
        target = self._place / file.relative_to(self._data)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(target, b"")  # made here, so that it is never readable by others
        try:
            with closing(_read_only(file)) as source, closing(sqlite3.connect(target)) as copy:
                source.backup(copy)  # one step: a snapshot, which holds up no writer
                copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside
        except sqlite3.Error as error:
            raise DataDirectoryError(f"{file} cannot be copied: {error}") from error
        self._note(target, _hash_file(target, self._report))

    def _copy_partition(self, folder: Path) -> None:
        names = sorted(each.name for each in folder.iterdir())
        segments = [name for name in names if _SEGMENT.fullmatch(name)]
        if not segments:
            return
        for name in names:
            if name not in segments and not name.endswith(".new"):
                self._copy(folder / name)
        for name in segments:
            if not self._copy(folder / name, is_newest=name == segments[-1]):
                # Retention dropped it while we copied, and so all that are older.
                self._drop_older(folder, name)

    def _copy(self, file: Path, *, is_newest: bool = False) -> bool:
        """Whether it was still there. Of the newest segment the whole records are taken."""
        inside = file.relative_to(self._data)
        target = self._place / inside
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            stop = _flushed_size(file) if is_newest else None
            found = _copy_file(file, target, stop, self._report)
        except FileNotFoundError:
            return False
        if is_newest and (tail := _unfinished_bytes(target)):
            os.truncate(target, found[0] - tail)
            found = _hash_file(target, lambda _: None)
        self._note(target, found)
        return True

    def _drop_older(self, folder: Path, name: str) -> None:
        inside = folder.relative_to(self._data)
        kept: list[CopiedFile] = []
        for file in self.files:
            path = Path(file.path)
            if path.parent == inside and path.name.partition(".")[0] <= name.partition(".")[0]:
                (self._place / path).unlink(missing_ok=True)
            else:
                kept.append(file)
        self.files = kept

    def _note(self, target: Path, found: tuple[int, str]) -> None:
        inside = target.relative_to(self._place).as_posix()
        self.files.append(CopiedFile(inside, *found))


def _flushed_size(path: Path) -> int:
    """The newest segment's size; what lies below it is on disk when this returns."""
    opened = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(opened).st_size
        os.fdatasync(opened)
        return size
    finally:
        os.close(opened)


def _unfinished_bytes(segment: Path) -> int:
    """How much of a segment's end is no whole record: a write that was under way."""
    tail = 0
    try:
        for item in dump_segment(segment):
            tail = 0 if isinstance(item, DumpedRecord | DumpedSegment) else item.stop - item.offset
    except LogCorrupt:
        return 0  # no whole header; verification says what that means
    return tail


def _hub_ids(catalog: Path) -> list[str]:
    with closing(_read_only(catalog)) as connection:
        rows = connection.execute("SELECT id FROM hubs ORDER BY id").fetchall()
    return [str(row[0]) for row in rows]


def _read_only(file: Path) -> sqlite3.Connection:
    """A file that nobody has open, in a directory that cannot be written, is read as it lies."""
    place = quote(str(file.absolute()))
    connection = sqlite3.connect(f"file:{place}?mode=ro", uri=True, timeout=_BUSY_S)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        connection.close()
        if (file.parent / f"{file.name}-wal").exists():
            raise DataDirectoryError(f"{file} cannot be read: {error}") from error
        return sqlite3.connect(f"file:{place}?immutable=1", uri=True)
    return connection


def _copy_file(file: Path, target: Path, stop: int | None, report: Report) -> tuple[int, str]:
    """Up to `stop`, or to where it ends; size and SHA-256."""
    digest, done = hashlib.sha256(), 0
    with file.open("rb") as source:
        opened = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(opened, "wb") as copy:
            while stop is None or done < stop:
                size = _CHUNK_BYTES if stop is None else min(_CHUNK_BYTES, stop - done)
                chunk = source.read(size)
                if not chunk:
                    break
                copy.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                report(len(chunk))
    return done, digest.hexdigest()


def _hash_file(file: Path, report: Report) -> tuple[int, str]:
    digest, done = hashlib.sha256(), 0
    try:
        with file.open("rb") as source:
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
                done += len(chunk)
                report(len(chunk))
    except FileNotFoundError:
        raise DataDirectoryError(f"{file} is missing.") from None
    return done, digest.hexdigest()


def _compare_hash(file: CopiedFile, found: tuple[int, str]) -> None:
    if found != (file.size, file.sha256):
        raise DataDirectoryError(
            f"The backup is damaged: {file.path} has {found[0]} bytes that are not those that "
            f"were backed up ({file.size})."
        )


def _inside(place: Path, path: str) -> Path:
    """A manifest may have been written by anybody: nothing leads out of the directory."""
    parts = Path(path).parts
    if not parts or Path(path).is_absolute() or ".." in parts:
        raise DataDirectoryError(f"The backup is damaged: '{path}' is no path within it.")
    return place / path


def _files_below(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            file = Path(root) / name
            if file.is_file() and not file.is_symlink():
                yield file


def _make_empty(place: Path) -> None:
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(place.iterdir()):
        raise DataDirectoryError(f"{place} is not empty: name a directory that is, or a new one.")
    place.chmod(0o700)  # keys will lie in it


def _write(file: Path, content: bytes) -> None:
    opened = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(opened, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(opened)


def _flush_all(place: Path) -> None:
    for root, _, names in os.walk(place):
        for name in names:
            opened = os.open(Path(root) / name, os.O_RDONLY)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)
        fsync_directory(Path(root))


def fsync_directory(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _capture_states(data: Path) -> list[Path]:
    return sorted(file for pattern in _CAPTURE_STATES for file in data.glob(pattern))


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
