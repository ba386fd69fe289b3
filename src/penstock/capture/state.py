"""SQLite state of the capture job: files, slots, window starts and used file names.

One file per event hub, `HUB_ID.sqlite`, shared by the hub's runs and by every process that works
for them. Each method is one transaction, or several that may be repeated; a commit is flushed
before the method returns.

Exactly once: a batch of windows can run again after any crash, and then writes the same files under
the same names. `record` therefore inserts what is missing and never adds twice, and a window keeps
the name that `take_names` gave it the first time.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from penstock.capture import file_names
from penstock.capture.captured_file import CapturedFile
from penstock.capture.windows import ClosedRange, WindowStart
from penstock.io import database, sqlite
from penstock.io.sqlite import WalDamage, transaction

_FORMAT = database.DatabaseFormat(
    name="capture state",
    application_id=0x50434150,
    migrations=[
        [
            """CREATE TABLE files (
                run TEXT NOT NULL, path TEXT NOT NULL, slot_s INTEGER NOT NULL,
                named_s INTEGER NOT NULL, told INTEGER NOT NULL, record BLOB NOT NULL,
                PRIMARY KEY (run, path)
            )""",
            "CREATE INDEX files_by_slot ON files (run, slot_s)",
            "CREATE INDEX files_by_name ON files (run, named_s, path)",
            "CREATE INDEX files_untold ON files (run, named_s) WHERE told = 0",
            """CREATE TABLE slots (
                run TEXT NOT NULL, slot_s INTEGER NOT NULL, end_s INTEGER NOT NULL,
                listed INTEGER NOT NULL, PRIMARY KEY (run, slot_s)
            )""",
            "CREATE INDEX slots_unlisted ON slots (run, slot_s) WHERE listed = 0",
            """CREATE TABLE places (
                run TEXT NOT NULL, partition TEXT NOT NULL, place BLOB NOT NULL,
                PRIMARY KEY (run, partition)
            )""",
            """CREATE TABLE totals (
                run TEXT PRIMARY KEY, files INTEGER NOT NULL, events INTEGER NOT NULL,
                bytes INTEGER NOT NULL, lost INTEGER NOT NULL
            )""",
            """CREATE TABLE taken (
                partition TEXT NOT NULL, named_s INTEGER NOT NULL, run TEXT NOT NULL,
                window INTEGER NOT NULL, PRIMARY KEY (partition, named_s)
            ) WITHOUT ROWID""",
            "CREATE UNIQUE INDEX taken_by_window ON taken (run, partition, window)",
        ]
    ],
    summed_tables=("files", "slots", "places", "totals", "taken"),
    remedy="Without it, Capture continues from what the service stored.",
)
_RUN_TABLES = ("files", "slots", "places", "totals")
# Version 0.1 has a file per run, and another one for the names of a hub.
_IMPORT_NAMES = (
    "INSERT OR IGNORE INTO taken SELECT partition, named_s, run, window FROM old.taken",
)
_IMPORT_RUN = (
    "INSERT OR IGNORE INTO files SELECT :run, path, slot_s, named_s, told, record FROM old.files",
    "INSERT OR IGNORE INTO slots SELECT :run, slot_s, end_s, listed FROM old.slots",
    "INSERT OR IGNORE INTO places SELECT :run, partition, place FROM old.places",
    "INSERT OR IGNORE INTO totals SELECT :run, files, events, bytes, lost FROM old.totals",
)
_BUSY_S = 30.0
_CHECK_AGAIN_S = 0.2
_CHECKS_MAX = 10
_RETENTION_S = 8 * 24 * 3600  # of entries: longer than the events of their files are retained
_PRUNE_EVERY = 1000  # names

_encode = msgspec.msgpack.Encoder().encode
_decode_file = msgspec.msgpack.Decoder(CapturedFile).decode
_decode_start = msgspec.msgpack.Decoder(WindowStart).decode


class ClosedWindow(msgspec.Struct, frozen=True):
    """A closed window: the time in its name, the interval that held, its file if it has one."""

    named_s: int
    interval_s: int
    file: CapturedFile | None = None


class ManifestSlot(msgspec.Struct, frozen=True):
    """The time that a manifest covers: as long as the interval, and aligned to it. Where settings
    were changed it is shorter, so that slots do not overlap."""

    begin_s: int
    end_s: int


class CaptureTotals(msgspec.Struct, frozen=True):
    files: int = 0
    events: int = 0
    bytes: int = 0
    lost: int = 0  # events that retention removed before they were captured


class CaptureStateFile:
    """The state of one run in the file of its hub. For one thread at a time."""

    def __init__(self, file: Path, run: str, *, check: bool = False) -> None:
        """Create the file where it is missing. With `check`, which reads all rows, a damaged file
        raises sqlite3.DatabaseError. Raises sqlite3.Error, OSError."""
        self._run = run
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if check:
            database.report_wal_damage(file, _FORMAT.name, _find_wal_damage(file))
        self._database = database.open_database(
            file, _FORMAT, busy_s=_BUSY_S, check_log=False, check_content=check
        )
        try:
            self._import(file.with_name(f"{file.stem}.names.sqlite"), _IMPORT_NAMES)
            self._import(file.parent / run / "ledger.sqlite", _IMPORT_RUN)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._database.close()

    def record(self, closed: Iterable[ClosedWindow], starts: Mapping[str, WindowStart]) -> None:
        """Store what a batch closed and wrote, and where its partitions continue. Recording a batch
        twice changes nothing: a file is counted once, and no window start goes back."""
        with transaction(self._database):
            for window in closed:
                self._put_file(window.file, self._find_slot(window.named_s, window.interval_s))
            stored = self.starts()
            for partition, start in starts.items():
                if partition not in stored or stored[partition].window < start.window:
                    self._execute(
                        "INSERT INTO places VALUES (?, ?, ?) "
                        "ON CONFLICT DO UPDATE SET place = excluded.place",
                        *(partition, _encode(start)),
                    )

    def starts(self) -> dict[str, WindowStart]:
        """Where the open window of each partition begins."""
        rows = self._execute("SELECT partition, place FROM places WHERE run = ?")
        return {partition: _decode_start(place) for partition, place in rows}

    def totals(self) -> CaptureTotals:
        rows = self._execute("SELECT files, events, bytes, lost FROM totals WHERE run = ?")
        return CaptureTotals(*(rows.fetchone() or ()))

    def newest_files(self, most: int) -> list[CapturedFile]:
        """The newest first."""
        return self._files("run = ? ORDER BY named_s DESC, path DESC LIMIT ?", most)

    def unannounced_files(self, most: int = 100) -> list[CapturedFile]:
        """The oldest first."""
        return self._files("run = ? AND told = 0 ORDER BY named_s, path LIMIT ?", most)

    def slot_files(self, slot: ManifestSlot) -> list[CapturedFile]:
        return self._files("run = ? AND slot_s = ?", slot.begin_s)

    def mark_announced(self, files: Iterable[CapturedFile]) -> None:
        with transaction(self._database):
            for file in files:
                self._execute("UPDATE files SET told = 1 WHERE run = ? AND path = ?", file.path)

    def slots(self, before_s: int, most: int = 100) -> list[ManifestSlot]:
        """Slots that end by this time and have no manifest that lists all of their files."""
        rows = self._execute(
            "SELECT slot_s, end_s FROM slots WHERE run = ? AND listed = 0 AND end_s <= ? "
            "ORDER BY slot_s LIMIT ?",
            *(before_s, most),
        )
        return [ManifestSlot(*row) for row in rows]

    def mark_manifest_written(self, slot: ManifestSlot) -> None:
        """The slot's manifest is stored. Entries that are old enough are deleted."""
        before_s = slot.begin_s - _RETENTION_S
        with transaction(self._database):
            self._execute("UPDATE slots SET listed = 1 WHERE run = ? AND slot_s = ?", slot.begin_s)
            self._execute(
                "DELETE FROM files WHERE run = ?1 AND slot_s < ?2 AND told = 1 AND slot_s NOT IN "
                "(SELECT slot_s FROM slots WHERE run = ?1 AND listed = 0)",
                before_s,
            )
            self._execute("DELETE FROM slots WHERE run = ? AND slot_s < ? AND listed = 1", before_s)

    def is_settled(self) -> bool:
        """Whether every file is listed in a manifest and announced."""
        rows = self._execute(
            "SELECT EXISTS (SELECT 1 FROM files WHERE run = ?1 AND told = 0) "
            "OR EXISTS (SELECT 1 FROM slots WHERE run = ?1 AND listed = 0)"
        )
        return not rows.fetchone()[0]

    def replace(self, file: CapturedFile) -> None:
        """Store what is known about a file that was written again."""
        statement = "UPDATE files SET record = ?3 WHERE run = ?1 AND path = ?2"
        self._execute(statement, file.path, _encode(file))

    def forget_run(self) -> None:
        """Delete the entries of a finished run. The names of its files stay taken."""
        with transaction(self._database):
            for table in _RUN_TABLES:
                self._execute(f"DELETE FROM {table} WHERE run = ?")  # noqa: S608 - our own tables

    def take_names(
        self,
        partition: str,
        ranges: Sequence[ClosedRange],
        *,
        after_s: int,
        exists: Callable[[int], bool] | None = None,
    ) -> list[ClosedRange]:
        """Give each window a name, a second, that no other window of the partition has in any run
        of the hub, later than `after_s` and than the window before. A window that has a name keeps
        it. This happens before Spark stores the offset, so two runs cannot choose the same name.

        `exists` is for a backfill: whether a file of that name is at the destination. Its windows
        also take names before their own time, between the files of other runs.
        """
        named = []
        for closed in ranges:
            after_s = self._take_name(partition, closed, after_s, exists)
            named.append(msgspec.structs.replace(closed, named_s=after_s))
        return named

    def _take_name(
        self,
        partition: str,
        closed: ClosedRange,
        after_s: int,
        exists: Callable[[int], bool] | None,
    ) -> int:
        own = "FROM taken WHERE run = ? AND partition = ? AND window = ?"
        row = self._execute(f"SELECT named_s {own}", partition, closed.window).fetchone()
        if row is not None and row[0] > after_s:
            return int(row[0])
        self._execute(f"DELETE {own}", partition, closed.window)

        def is_taken(second: int) -> bool:
            taken = self._database.execute(
                "SELECT 1 FROM taken WHERE partition = ? AND named_s = ?", (partition, second)
            ).fetchone()
            return taken is not None or (exists is not None and exists(second))

        while True:
            named_s = file_names.next_free_second(
                closed.named_s, after_s=after_s, is_taken=is_taken, may_be_early=exists is not None
            )
            try:
                self._database.execute(
                    "INSERT INTO taken VALUES (?, ?, ?, ?)",
                    (partition, named_s, self._run, closed.window),
                )
            except sqlite3.IntegrityError:
                continue  # another run was faster
            if closed.window % _PRUNE_EVERY == 0:
                before_s = named_s - _RETENTION_S
                self._database.execute("DELETE FROM taken WHERE named_s < ?", (before_s,))
            return named_s

    def _find_slot(self, named_s: int, interval_s: int) -> int:
        """The begin of the slot that a window closed in. Created where it is missing."""
        row = self._execute(
            "SELECT slot_s FROM slots WHERE run = ?1 AND slot_s <= ?2 AND end_s > ?2", named_s
        ).fetchone()
        if row is not None:
            return int(row[0])
        before_s, after_s = self._execute(
            "SELECT (SELECT max(end_s) FROM slots WHERE run = ?1 AND end_s <= ?2), "
            "(SELECT min(slot_s) FROM slots WHERE run = ?1 AND slot_s > ?2)",
            named_s,
        ).fetchone()
        slot_s = file_names.slot_start(named_s, interval_s)
        end_s = slot_s + interval_s
        if before_s is not None:
            slot_s = max(slot_s, before_s)
        if after_s is not None:
            end_s = min(end_s, after_s)
        self._execute("INSERT INTO slots VALUES (?, ?, ?, 0)", slot_s, end_s)
        return slot_s

    def _put_file(self, file: CapturedFile | None, slot_s: int) -> None:
        if file is None:
            return
        inserted = self._execute(
            "INSERT OR IGNORE INTO files VALUES (?, ?, ?, ?, 0, ?)",
            *(file.path, slot_s, file.named_s, _encode(file)),
        )
        if inserted.rowcount == 0:
            return  # recorded before: the same file
        # The slot's manifest is written again if the file came after it.
        self._execute("UPDATE slots SET listed = 0 WHERE run = ? AND slot_s = ?", slot_s)
        self._execute(
            "INSERT INTO totals VALUES (?, 1, ?, ?, ?) ON CONFLICT DO UPDATE SET "
            "files = files + 1, events = events + excluded.events, "
            "bytes = bytes + excluded.bytes, lost = lost + excluded.lost",
            *(file.count, file.bytes, file.lost_count),
        )

    def _files(self, condition: str, value: int) -> list[CapturedFile]:
        rows = self._execute(f"SELECT record FROM files WHERE {condition}", value)  # noqa: S608 - our own text
        return [_decode_file(record) for (record,) in rows]

    def _execute(self, statement: str, *values: str | int | bytes) -> sqlite3.Cursor:
        """The first parameter of the statement is the run."""
        return self._database.execute(statement, (self._run, *values))

    def _import(self, old: Path, statements: Sequence[str]) -> None:
        """Move the rows of a file of version 0.1 here. A crash before the old file is
        removed repeats the import, which then inserts nothing."""
        if not old.exists():
            return
        _check_old_file(old)
        self._database.execute("ATTACH ? AS old", (str(old),))
        try:
            with transaction(self._database):
                for statement in statements:
                    self._database.execute(statement, {"run": self._run})
        finally:
            self._database.execute("DETACH old")
        for suffix in ("", "-wal", "-shm"):
            old.with_name(old.name + suffix).unlink(missing_ok=True)


def _check_old_file(file: Path) -> None:
    """Raises sqlite3.DatabaseError where it is damaged."""
    database.report_wal_damage(file, _FORMAT.name, sqlite.find_wal_damage(file))
    with closing(database.connect(file, _FORMAT.name, busy_s=_BUSY_S)) as connection:
        query = "SELECT 1 FROM sqlite_master WHERE name = 'row_sums'"
        has_sums = connection.execute(query).fetchone() is not None
        try:
            damage = (sqlite.check_rows if has_sums else sqlite.check_structure)(connection)
        except UnicodeDecodeError as error:  # in a message of SQLite's
            damage = str(error)
    if damage is not None:
        raise database.DatabaseUnusable(f"{file} is damaged: {damage}")


def _find_wal_damage(file: Path) -> WalDamage | None:
    """Another process may be writing: damage counts when the file does not change meanwhile."""
    log = file.with_name(file.name + "-wal")
    for _ in range(_CHECKS_MAX):
        damage = sqlite.find_wal_damage(file)
        if damage is None or not log.exists():
            return None
        before = log.stat()
        time.sleep(_CHECK_AGAIN_S)
        if sqlite.find_wal_damage(file) == damage and log.exists():
            now = log.stat()
            if (now.st_size, now.st_mtime_ns) == (before.st_size, before.st_mtime_ns):
                return damage
    return None
