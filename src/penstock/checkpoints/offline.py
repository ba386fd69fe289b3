"""The checkpoints of a data directory, read without its service: for `penstock doctor`."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from penstock.io.database import open_read_only
from penstock.model.checkpoints import Checkpoint
from penstock.model.errors import DataDirectoryError

_BUSY_S = 2.0
_CHECKPOINTS = """
    SELECT hub, consumer_group, partition_id, "offset", sequence_number, modified_ms
    FROM checkpoints
"""


def read_checkpoints_offline(file: Path) -> list[tuple[str, str, Checkpoint]]:
    """Hub id, group and checkpoint, also while a service runs; none if the file does not exist.
    Nothing is written. Raises DataDirectoryError if the file cannot be read."""
    if not file.is_file():
        return []
    try:
        with closing(open_read_only(file, busy_s=_BUSY_S)) as connection:
            rows = connection.execute(_CHECKPOINTS).fetchall()
    except sqlite3.Error as error:
        raise DataDirectoryError(f"{file} cannot be read: {error}") from error
    return [
        (
            hub_id,
            group,
            Checkpoint(
                partition_id=partition_id,
                offset=offset,
                sequence_number=sequence_number,
                modified_ms=modified_ms,
            ),
        )
        for hub_id, group, partition_id, offset, sequence_number, modified_ms in rows
    ]
