"""A consistent copy of a data directory, also while its service runs; and the restore.

Each partition is copied as a crash would have left it, up to a complete record, with everything
that was acknowledged before the backup began and is still retained. Partitions are copied one after
the other, so each copy ends at a different moment.

- Checkpoints are copied before the log, so none is beyond its end. The catalog is copied before
  both, and of the log only the hubs that it names. SQLite's backup API copies whole transactions.
- The state files of Capture are copied before the catalog, so the catalog names no run without one.
  Then the captured files in the data directory, before the log, which has all their events. Nothing
  else of Capture: a query checkpoint may be beyond the log, and a plan has keys of other storage. A
  job without a checkpoint continues where its state file says.
- Of a partition the derived files are copied before the segments, and these oldest first: no copied
  file refers to bytes that were not copied. Of the newest segment the complete records are copied,
  after a flush.
- The manifest is written last: a backup without one is incomplete and is not restored.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

import msgspec

from penstock.io.database import copy_database, open_read_only
from penstock.io.files import fsync_directory, write_file_atomically
from penstock.log.embedded.verify import (
    DamagedRange,
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
"""Called with the number of bytes copied or compared since the last call."""


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
    """The result of verifying the log of a copy."""

    partitions: int
    events: int
    losses: list[str]


def data_size(data: Path) -> int:
    """About how many bytes a backup copies."""
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
    _flush_all(place)
    verified = verify(place)
    manifest = BackupManifest(
        version=VERSION,
        created_at=created_at,
        penstock=penstock,
        source=str(data.absolute()),
        partitions=verified.partitions,
        events=verified.events,
        findings=verified.losses,
        files=sorted(copier.files.values(), key=lambda file: file.path),
    )
    content = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    write_file_atomically(place / MANIFEST, content)
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
    """Copy a backup beside `data`, which must be absent or empty, compare and verify the copy, then
    rename it to `data`. Raises DataDirectoryError, OSError; the copy is then removed."""
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
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return verified


def verify(data: Path) -> BackupVerification:
    """Verify the log, and the integrity of the databases. Raises DataDirectoryError."""
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
    """One backup in progress."""

    def __init__(self, data: Path, place: Path, report: Report) -> None:
        self._data = data
        self._place = place
        self._report = report
        self.files: dict[Path, CopiedFile] = {}  # by path within the backup

    def copy_capture_states(self) -> None:
        """The state files of Capture, and the id of its job."""
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
        """The catalog first: it decides which logs are copied."""
        files = sorted(self._data.glob("*.sqlite"), key=lambda f: (f.name != "catalog.sqlite", f))
        for file in files:
            self._copy_database(file)

    def copy_captured(self) -> None:
        for file in _files_below(self._data / _CAPTURED):
            self._copy(file)

    def copy_log(self) -> None:
        log = self._data / "log"
        self._copy(log / "format.json")
        for hub_id in _hub_ids(self._place / "catalog.sqlite"):
            folder = log / hub_id
            if not folder.is_dir():
                continue  # no event yet, or deleted since
            if (folder / "hub.json").is_file():
                self._copy(folder / "hub.json")
            for partition in sorted(folder.iterdir()):
                if partition.name.isascii() and partition.name.isdigit():
                    self._copy_partition(partition)

    def copy_others(self) -> None:
        """Keys, certificates and all other files."""
        for file in _files_below(self._data):
            inside = file.relative_to(self._data)
            first = inside.parts[0]
            if first in ("log", _CAPTURE, _CAPTURED) or ".sqlite" in first:
                continue  # copied above, or not to be copied
            if not file.name.endswith(".new") and str(inside) not in _LEFT_OUT:
                self._copy(file)

    def _copy_database(self, file: Path) -> None:
        """Raises DataDirectoryError."""
        target = self._make_target(file)
        target.touch(0o600, exist_ok=False)  # with its mode, so that other users can never read it
        try:
            with closing(_read_only(file)) as source:
                copy_database(source, target)
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
                # Retention has removed it meanwhile, and with it all older segments.
                self._drop_older(folder, name)

    def _copy(self, file: Path, *, is_newest: bool = False) -> bool:
        """Return whether the file still existed. The copy of the newest segment ends after its last
        complete record."""
        target = self._make_target(file)
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
        for path in list(self.files):
            if path.parent == inside and path.name.partition(".")[0] <= name.partition(".")[0]:
                (self._place / path).unlink(missing_ok=True)
                del self.files[path]

    def _make_target(self, file: Path) -> Path:
        target = self._place / file.relative_to(self._data)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return target

    def _note(self, target: Path, found: tuple[int, str]) -> None:
        inside = target.relative_to(self._place)
        self.files[inside] = CopiedFile(inside.as_posix(), *found)


def _flushed_size(path: Path) -> int:
    """The size of the newest segment; all bytes before that are on disk on return."""
    with path.open("rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        os.fdatasync(opened.fileno())
    return size


def _unfinished_bytes(segment: Path) -> int:
    """The number of bytes after the last complete record: a write in progress."""
    tail = 0
    try:
        for item in dump_segment(segment):
            tail = item.stop - item.offset if isinstance(item, DamagedRange) else 0
    except LogCorrupt:
        return 0  # no whole header; verification says what that means
    return tail


def _hub_ids(catalog: Path) -> list[str]:
    with closing(_read_only(catalog)) as connection:
        rows = connection.execute("SELECT id FROM hubs ORDER BY id").fetchall()
    return [str(row[0]) for row in rows]


def _read_only(file: Path) -> sqlite3.Connection:
    try:
        return open_read_only(file, busy_s=_BUSY_S, is_locked=True)
    except sqlite3.Error as error:
        raise DataDirectoryError(f"{file} cannot be read: {error}") from error


def _copy_file(file: Path, target: Path, stop: int | None, report: Report) -> tuple[int, str]:
    """Copy up to `stop`, or the whole file. Return size and SHA-256."""
    with file.open("rb") as source:
        opened = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(opened, "wb") as copy:
            return _read_through(source, copy.write, stop, report)


def _hash_file(file: Path, report: Report) -> tuple[int, str]:
    """Size and SHA-256."""
    try:
        with file.open("rb") as source:
            return _read_through(source, lambda _: None, None, report)
    except FileNotFoundError:
        raise DataDirectoryError(f"{file} is missing.") from None


def _read_through(
    source: BinaryIO, write: Callable[[bytes], object], stop: int | None, report: Report
) -> tuple[int, str]:
    digest, done = hashlib.sha256(), 0
    while chunk := source.read(_CHUNK_BYTES if stop is None else min(_CHUNK_BYTES, stop - done)):
        write(chunk)
        digest.update(chunk)
        done += len(chunk)
        report(len(chunk))
    return done, digest.hexdigest()


def _compare_hash(file: CopiedFile, found: tuple[int, str]) -> None:
    if found != (file.size, file.sha256):
        raise DataDirectoryError(
            f"The backup is damaged: {file.path} has {found[0]} bytes that are not those that "
            f"were backed up ({file.size})."
        )


def _inside(place: Path, path: str) -> Path:
    """The path of a file in the manifest. It must be inside: the manifest is not trusted."""
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
    place.chmod(0o700)  # it will have keys


def _flush_all(place: Path) -> None:
    for root, _, names in os.walk(place):
        for name in names:
            with (Path(root) / name).open("rb") as opened:
                os.fsync(opened.fileno())
        fsync_directory(Path(root))


def _capture_states(data: Path) -> list[Path]:
    return sorted(file for pattern in _CAPTURE_STATES for file in data.glob(pattern))
