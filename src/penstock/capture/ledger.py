"""What Capture has done for a hub, kept beside the job's checkpoint: files, places, manifests.

The sink writes it when a batch is committed, which may happen twice: every entry is put, never
added. The job reads it for its reports, for manifests, and to tell others of new files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from penstock.capture import file_names
from penstock.capture.captured_file import CapturedFile
from penstock.capture.notes import open_notes
from penstock.capture.windows import WindowStart

_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    path TEXT PRIMARY KEY, slot_s INTEGER NOT NULL, named_s INTEGER NOT NULL,
    told INTEGER NOT NULL DEFAULT 0, record BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS files_by_slot ON files (slot_s);
CREATE INDEX IF NOT EXISTS files_by_name ON files (named_s, path);
CREATE INDEX IF NOT EXISTS files_untold ON files (named_s) WHERE told = 0;
CREATE TABLE IF NOT EXISTS slots (
    slot_s INTEGER PRIMARY KEY, end_s INTEGER NOT NULL, listed INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS slots_unlisted ON slots (slot_s) WHERE listed = 0;
CREATE TABLE IF NOT EXISTS places (partition TEXT PRIMARY KEY, place BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS totals (
    one INTEGER PRIMARY KEY CHECK (one = 1), files INTEGER NOT NULL, events INTEGER NOT NULL,
    bytes INTEGER NOT NULL, lost INTEGER NOT NULL
);
INSERT OR IGNORE INTO totals VALUES (1, 0, 0, 0, 0);
"""
_TABLES = ("files", "slots", "places", "totals")
_KEPT_S = 8 * 24 * 3600  # entries of files are dropped later than the events that they hold

_encode = msgspec.msgpack.Encoder().encode
_decode_file = msgspec.msgpack.Decoder(CapturedFile).decode
_decode_place = msgspec.msgpack.Decoder(WindowStart).decode


class ClosedWindow(msgspec.Struct, frozen=True):
    """A window that is over: when its name says that it closed, how long it would have lasted, and
    its file, if it has one."""

    named_s: int
    interval_s: int
    file: CapturedFile | None = None


class ManifestSlot(msgspec.Struct, frozen=True):
    """A manifest's span of time. As long as the interval, and aligned to it; shorter next to
    one of another length, where settings were changed: slots do not overlap."""

    begin_s: int
    end_s: int


class CaptureTotals(msgspec.Struct, frozen=True):
    files: int
    events: int
    bytes: int
    lost: int  # events that retention dropped first


class CaptureStateFile:
    """One hub's, in a file. Any process may open it; each act is one transaction."""

    def __init__(self, file: Path, *, check: bool = False) -> None:
        """With `check` a damaged file raises sqlite3.DatabaseError (`open_notes`)."""
        self._database = open_notes(file, _SCHEMA, _TABLES, check=check)

    def close(self) -> None:
        self._database.close()

    def record(self, closed: Iterable[ClosedWindow], places: dict[str, WindowStart]) -> None:
        """What a batch closed and wrote, and where the partitions stand behind it."""
        with self._transaction():
            for each in closed:
                self._put(each.file, self._slot(each.named_s, each.interval_s))
            for partition, place in places.items():
                known = self._place(partition)
                if known is None or known.window < place.window:
                    self._database.execute(
                        "INSERT OR REPLACE INTO places VALUES (?, ?)", (partition, _encode(place))
                    )

    def places(self) -> dict[str, WindowStart]:
        found = self._database.execute("SELECT partition, place FROM places")
        return {partition: _decode_place(place) for partition, place in found}

    def totals(self) -> CaptureTotals:
        found = self._database.execute("SELECT files, events, bytes, lost FROM totals").fetchone()
        return CaptureTotals(*found)

    def newest(self, most: int) -> list[CapturedFile]:
        """The last files, the newest first."""
        found = self._database.execute(
            "SELECT record FROM files ORDER BY named_s DESC, path DESC LIMIT ?", (most,)
        )
        return [_decode_file(record) for (record,) in found]

    def unannounced_files(self, most: int = 100) -> list[CapturedFile]:
        """Files that nobody was told of, oldest first."""
        found = self._database.execute(
            "SELECT record FROM files WHERE told = 0 ORDER BY named_s, path LIMIT ?", (most,)
        )
        return [_decode_file(record) for (record,) in found]

    def mark_announced(self, paths: Iterable[str]) -> None:
        with self._transaction():
            self._database.executemany(
                "UPDATE files SET told = 1 WHERE path = ?", [(path,) for path in paths]
            )

    def slots(self, before_s: int, most: int = 100) -> list[ManifestSlot]:
        """Slots that end by this time and have no manifest that lists all of their files."""
        found = self._database.execute(
            "SELECT slot_s, end_s FROM slots WHERE listed = 0 AND end_s <= ? "
            "ORDER BY slot_s LIMIT ?",
            (before_s, most),
        )
        return [ManifestSlot(*each) for each in found]

    def of_slot(self, slot: ManifestSlot) -> list[CapturedFile]:
        found = self._database.execute("SELECT record FROM files WHERE slot_s = ?", (slot.begin_s,))
        return [_decode_file(record) for (record,) in found]

    def mark_manifest_written(self, slot: ManifestSlot) -> None:
        """The slot's manifest is in place; what is old enough is forgotten."""
        before_s = slot.begin_s - _KEPT_S
        with self._transaction():
            self._database.execute("UPDATE slots SET listed = 1 WHERE slot_s = ?", (slot.begin_s,))
            self._database.execute(
                "DELETE FROM files WHERE slot_s < ? AND told = 1 AND slot_s NOT IN "
                "(SELECT slot_s FROM slots WHERE listed = 0)",
                (before_s,),
            )
            self._database.execute("DELETE FROM slots WHERE slot_s < ? AND listed = 1", (before_s,))

    def is_settled(self) -> bool:
        """Whether every file is in a manifest, and told of."""
        left = self._database.execute(
            "SELECT EXISTS (SELECT 1 FROM files WHERE told = 0) "
            "OR EXISTS (SELECT 1 FROM slots WHERE listed = 0)"
        ).fetchone()
        return not left[0]

    def replace(self, file: CapturedFile) -> None:
        """What is known of a file that was written again."""
        self._database.execute(
            "UPDATE files SET record = ? WHERE path = ?", (_encode(file), file.path)
        )

    def _slot(self, named_s: int, interval_s: int) -> int:
        """When the slot that a window closed in begins."""
        known = self._database.execute(
            "SELECT slot_s FROM slots WHERE slot_s <= ? AND end_s > ?", (named_s, named_s)
        ).fetchone()
        if known is not None:
            return int(known[0])
        before_s, after_s = self._database.execute(
            "SELECT (SELECT max(end_s) FROM slots WHERE end_s <= ?), "
            "(SELECT min(slot_s) FROM slots WHERE slot_s > ?)",
            (named_s, named_s),
        ).fetchone()
        slot_s = file_names.slot_start(named_s, interval_s)
        end_s = slot_s + interval_s
        if before_s is not None:
            slot_s = max(slot_s, before_s)
        if after_s is not None:
            end_s = min(end_s, after_s)
        self._database.execute("INSERT INTO slots (slot_s, end_s) VALUES (?, ?)", (slot_s, end_s))
        return slot_s

    def _put(self, file: CapturedFile | None, slot_s: int) -> None:
        if file is None:
            return
        known = self._database.execute(
            "SELECT 1 FROM files WHERE path = ?", (file.path,)
        ).fetchone()
        if known is not None:
            return  # committed before: the same file
        self._database.execute(
            "INSERT INTO files (path, slot_s, named_s, record) VALUES (?, ?, ?, ?)",
            (file.path, slot_s, file.named_s, _encode(file)),
        )
        # One that came after its manifest: the manifest is written again.
        self._database.execute("UPDATE slots SET listed = 0 WHERE slot_s = ?", (slot_s,))
        self._database.execute(
            "UPDATE totals SET files = files + 1, events = events + ?, bytes = bytes + ?, "
            "lost = lost + ?",
            (file.count, file.bytes, file.lost_count),
        )

    def _place(self, partition: str) -> WindowStart | None:
        found = self._database.execute(
            "SELECT place FROM places WHERE partition = ?", (partition,)
        ).fetchone()
        return None if found is None else _decode_place(found[0])

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")
