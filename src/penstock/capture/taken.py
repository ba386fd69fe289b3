"""Which names of files are taken: by all runs of a hub, which may be at work at the same time.

A name is a second, and no two windows of a partition may have the same one. Whoever cuts a window
takes its name here first, before Spark writes the offset down; asked again for the same window, it
gets the same name.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from penstock.capture import file_names
from penstock.capture.notes import open_notes
from penstock.capture.windows import ClosedRange

_SCHEMA = """
CREATE TABLE IF NOT EXISTS taken (
    partition TEXT NOT NULL, named_s INTEGER NOT NULL, run TEXT NOT NULL, window INTEGER NOT NULL,
    PRIMARY KEY (partition, named_s)
) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS taken_by_window ON taken (run, partition, window);
"""
_KEPT_S = 8 * 24 * 3600  # names are dropped later than the events of their files
_PRUNE_EVERY = 1000  # names


class FileNameRegistry:
    """One hub's, in a file that all of its runs share."""

    def __init__(self, file: Path, *, check: bool = False) -> None:
        """With `check` a damaged file raises sqlite3.DatabaseError (`open_notes`)."""
        self._database = open_notes(file, _SCHEMA, ("taken",), check=check)

    def close(self) -> None:
        self._database.close()

    def take(
        self,
        run: str,
        partition: str,
        cuts: Sequence[ClosedRange],
        *,
        after_s: int,
        is_there: Callable[[int], bool] | None = None,
    ) -> list[ClosedRange]:
        """The windows with names of their own, each later than `after_s` and the one before.
        `is_there` says of events from before whether a file of that name lies there already: they
        take a name before the one they would have, too."""
        named = []
        for cut in cuts:
            after_s = self._register_name(run, partition, cut, after_s, is_there)
            named.append(msgspec.structs.replace(cut, named_s=after_s))
        return named

    def _register_name(
        self,
        run: str,
        partition: str,
        cut: ClosedRange,
        after_s: int,
        is_there: Callable[[int], bool] | None,
    ) -> int:
        known = self._database.execute(
            "SELECT named_s FROM taken WHERE run = ? AND partition = ? AND window = ?",
            (run, partition, cut.window),
        ).fetchone()
        if known is not None and known[0] > after_s:
            return int(known[0])
        self._database.execute(
            "DELETE FROM taken WHERE run = ? AND partition = ? AND window = ?",
            (run, partition, cut.window),
        )
        while True:
            named_s = self._free(partition, cut.named_s, after_s, is_there)
            try:
                self._database.execute(
                    "INSERT INTO taken VALUES (?, ?, ?, ?)", (partition, named_s, run, cut.window)
                )
            except sqlite3.IntegrityError:
                continue  # another run was quicker
            if cut.window % _PRUNE_EVERY == 0:
                self._database.execute("DELETE FROM taken WHERE named_s < ?", (named_s - _KEPT_S,))
            return named_s

    def _free(
        self,
        partition: str,
        wanted_s: int,
        after_s: int,
        is_there: Callable[[int], bool] | None,
    ) -> int:
        def is_taken(second: int) -> bool:
            found = self._database.execute(
                "SELECT 1 FROM taken WHERE partition = ? AND named_s = ?", (partition, second)
            ).fetchone()
            return found is not None or (is_there is not None and is_there(second))

        if is_there is not None:
            return file_names.next_free_second(wanted_s, after_s=after_s, is_taken=is_taken)
        second = max(wanted_s, after_s + 1)
        while is_taken(second):
            second += 1
        return second
