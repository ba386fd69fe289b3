"""Ended sessions and used sign-in links, stored for the next start.

The file has one line per entry, `ID ISSUED_MS EXPIRES_MS CRC32`. A new entry replaces the file,
without expired entries. A file that cannot be parsed ends every session and link that was issued
before: damage must not make an ended session valid again.
"""

from __future__ import annotations

import logging
import zlib
from pathlib import Path

from penstock.io.files import write_file_atomically

log = logging.getLogger("penstock.portal")

ENTRIES_MAX = 10_000
_EVERYTHING = "*"  # the ID of the entry that revokes whatever was issued at its time or before
_FILE_BYTES_MAX = 8 * 1024 * 1024


class Revocations:
    """Used on the event loop only. Without a file, entries last as long as the process."""

    def __init__(self, file: Path | str | None, *, now_ms: int) -> None:
        self._file = None if file is None else Path(file)
        self._entries: dict[str, tuple[int, int]] = {}  # id -> issued, expires; oldest first
        self._all_until_ms = 0  # whatever was issued at this time or before is revoked
        if self._file is not None:
            self._load(self._file, now_ms)

    def is_revoked(self, entry_id: str, *, issued_ms: int) -> bool:
        return issued_ms <= self._all_until_ms or entry_id in self._entries

    def revoke(self, entry_id: str, *, issued_ms: int, expires_ms: int, now_ms: int) -> bool:
        """On disk on return, unless the disk fails, which is logged. False when it was revoked
        already: only one of several callers gets True."""
        if self.is_revoked(entry_id, issued_ms=issued_ms):
            return False
        self._entries[entry_id] = (issued_ms, expires_ms)
        self._write(now_ms)
        return True

    def _load(self, file: Path, now_ms: int) -> None:
        try:
            with file.open("rb") as opened:
                content = opened.read(_FILE_BYTES_MAX + 1)
        except FileNotFoundError:
            return
        except OSError as error:
            self._distrust(f"{file} cannot be read ({error.strerror or error})", now_ms)
            return
        for line in content.splitlines():
            entry = _parse(line)
            if entry is None:
                self._distrust(f"{file} is damaged", now_ms)
                break
            entry_id, issued_ms, expires_ms = entry
            if entry_id == _EVERYTHING:
                self._all_until_ms = max(self._all_until_ms, issued_ms)
            else:
                self._entries[entry_id] = (issued_ms, expires_ms)
        self._write(now_ms)

    def _distrust(self, reason: str, now_ms: int) -> None:
        log.warning("every portal session is ended: reason=%s", reason)
        self._all_until_ms = now_ms

    def _write(self, now_ms: int) -> None:
        """Replace the file, without expired entries."""
        self._entries = {
            entry_id: times for entry_id, times in self._entries.items() if times[1] > now_ms
        }
        while len(self._entries) > ENTRIES_MAX:
            # Forgetting one must not revive it: whatever is as old as it goes with it.
            issued_ms, _ = self._entries.pop(next(iter(self._entries)))
            self._all_until_ms = max(self._all_until_ms, issued_ms)
        if self._file is None:
            return
        lines = [_line(_EVERYTHING, self._all_until_ms, 0)] if self._all_until_ms else []
        lines += [_line(each, *times) for each, times in self._entries.items()]
        try:
            write_file_atomically(self._file, b"".join(lines))
        except OSError as error:
            reason = error.strerror or error
            log.warning("sign-out is not kept over a restart: file=%s error=%s", self._file, reason)


def _line(entry_id: str, issued_ms: int, expires_ms: int) -> bytes:
    body = f"{entry_id} {issued_ms} {expires_ms}".encode()
    return b"%s %08x\n" % (body, zlib.crc32(body))


def _parse(line: bytes) -> tuple[str, int, int] | None:
    body, _, checksum = line.rpartition(b" ")
    if checksum != b"%08x" % zlib.crc32(body):
        return None
    entry_id, issued, expires = body.decode().split(" ")
    return entry_id, int(issued), int(expires)
