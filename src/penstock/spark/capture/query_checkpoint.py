"""Whether Spark can continue from a capture query's checkpoint after a crash.

Spark writes `offsets/N` and `commits/N` without flushing them, so a power cut can leave the newest
ones empty, torn or missing. The job's state (`capture/state.py`) is flushed and sufficient: a
checkpoint that cannot be trusted is set aside, and the query begins where the state ends. A window
that was being written keeps its file name, so its file is overwritten, never stored twice.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from penstock.capture.windows import WindowStart

_log = logging.getLogger("penstock.capture")

_VERSION = "v1"
_NUMBERED = re.compile(r"\d+")
_CRC_MAGIC = b"crc\0"
_ENTRY_BYTES_MAX = 64 * 1024 * 1024


def set_aside_if_unusable(checkpoint: Path, stored: Mapping[str, WindowStart]) -> str | None:
    """Rename a checkpoint that Spark cannot continue from. Returns the reason, or None where it
    stays. `stored` are the window starts of the job's state. Call it while no query uses the
    checkpoint. Raises OSError."""
    problem = find_problem(checkpoint, stored)
    if problem is None:
        return None
    aside = checkpoint.with_name("checkpoint.unusable")
    shutil.rmtree(aside, ignore_errors=True)  # the one of an earlier crash
    checkpoint.rename(aside)
    _log.warning(
        "capture checkpoint set aside: reason=%s moved_to=%s; capture continues from its state",
        problem,
        aside,
    )
    return problem


def find_problem(checkpoint: Path, stored: Mapping[str, WindowStart]) -> str | None:
    """Why Spark could not continue from this checkpoint: a file that is empty or torn, or entries
    that the state has and the checkpoint has not."""
    if not checkpoint.is_dir():
        return None
    metadata = checkpoint / "metadata"
    files = [metadata] if metadata.exists() else []
    files += _list_entries(checkpoint / "offsets") + _list_entries(checkpoint / "commits")
    for file in files:
        if _has_wrong_checksum(file) or not _is_intact(file):
            return _describe_torn(file)
    return _find_missing_entries(checkpoint / "offsets", stored)


def _find_missing_entries(offsets: Path, stored: Mapping[str, WindowStart]) -> str | None:
    entries = _list_entries(offsets)
    if not entries:
        return f"{offsets} has no entry, the state has" if stored else None
    newest = entries[-1]
    try:
        offset = json.loads(newest.read_text().splitlines()[2])
        starts = msgspec.convert(offset["places"], dict[str, WindowStart])
    except (IndexError, KeyError, TypeError, ValueError):  # msgspec's error is a ValueError
        return _describe_torn(newest)
    for partition, start in stored.items():
        if partition in starts and starts[partition].window < start.window:
            return (
                f"{newest} ends with window {starts[partition].window} of partition {partition}, "
                f"the state with window {start.window}: newer entries were lost"
            )
    return None


def _list_entries(folder: Path) -> list[Path]:
    """Entries of a metadata log, the newest last."""
    if not folder.is_dir():
        return []
    files = [file for file in folder.iterdir() if _NUMBERED.fullmatch(file.name)]
    return sorted(files, key=lambda file: int(file.name))


def _is_intact(file: Path) -> bool:
    """Whether it is lines of JSON, in an entry after a version; `-` means a source without an
    offset."""
    if file.stat().st_size > _ENTRY_BYTES_MAX:
        return False
    try:
        lines = file.read_bytes().decode().splitlines()
        if file.name != "metadata" and lines.pop(0) != _VERSION:
            return False
        return bool(lines) and all(
            line == "-" or isinstance(json.loads(line), dict) for line in lines
        )
    except (IndexError, ValueError, RecursionError):
        return False


def _has_wrong_checksum(file: Path) -> bool:
    """Compare with Hadoop's checksum file (`crc\\0`, bytes per checksum, CRC-32 of each chunk).

    A checksum file that is itself torn is removed: Spark would refuse the entry because of it.
    """
    stored = file.with_name(f".{file.name}.crc")
    if not stored.exists():
        return False
    content, data = stored.read_bytes(), file.read_bytes()
    if len(content) < 8 or content[:4] != _CRC_MAGIC:
        stored.unlink()
        return False
    (size,) = struct.unpack(">I", content[4:8])
    if size == 0:
        stored.unlink()
        return False
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    return content[8:] != b"".join(struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks)


def _describe_torn(file: Path) -> str:
    return f"{file} is empty or torn ({file.stat().st_size} bytes)"
