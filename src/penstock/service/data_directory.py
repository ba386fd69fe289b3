"""Small files of the data directory: keys, the secret of admin tokens, and `runtime.json`.

DIR/                0700
  root.key          the first root key, base64 of 256 random bits        0600
  admin.secret      the key that signs admin tokens, base64, 256 bits     0600
  admin.revoked     ids of revoked admin tokens, JSON                     0600
                    (these: a second line has the first one's checksum; version 0.1 wrote none)
  runtime.json      description of the running service                    0600
  portal.revoked    ended portal sessions, used sign-in links             0600
  capture.token, portal.token   tokens of processes (admin_tokens.py)     0600
  tls/              certificates (certificates.py)
  log/, catalog.*, checkpoints.*, history.*   have versions of their own
"""

from __future__ import annotations

import base64
import contextlib
import errno
import logging
import os
import secrets
import stat
import uuid
from collections.abc import Mapping
from pathlib import Path

from penstock.auth.admin_token import AdminTokens
from penstock.io.files import add_checksum, remove_checksum, write_file_atomically
from penstock.io.runtime_file import RuntimeFile
from penstock.model import limits
from penstock.model.entities import Secret
from penstock.model.errors import DataDirectoryError

_logger = logging.getLogger(__name__)

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_SECRET_BYTES_MAX = 1 * limits.KB


class DataDirectory:
    """One directory, created if it is absent; other users lose their rights to an existing one.
    Methods raise DataDirectoryError."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()  # sent to clients, which have another current directory
        self._runtime = RuntimeFile(self.path)
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError as error:
            raise DataDirectoryError(
                f"The data directory {path} is a file; name a directory with --data."
            ) from error
        except OSError as error:
            raise _cannot("make", path, error) from error
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            raise DataDirectoryError(
                f"The data directory {path} cannot be written; "
                "change its owner or mode, or name another with --data."
            )
        _make_private(path)

    def root_key(self) -> Secret:
        """The key of the first root policy, created by the first call."""
        return Secret(_load_secret(self.path / "root.key"))

    def admin_tokens(self) -> AdminTokens:
        """Issues and verifies tokens; they stay valid after a restart, which keeps the secret."""
        return AdminTokens(_load_secret(self.path / "admin.secret").encode())

    def admin_token(self, *, now_ms: int) -> str:
        return self.admin_tokens().issue(now_ms=now_ms, token_id=uuid.uuid4().hex)

    def portal_secret(self) -> str:
        """The key that signs portal sessions and sign-in links."""
        return self.admin_tokens().derive_secret("portal")

    def write_runtime(self, facts: Mapping[str, object]) -> None:
        """Write `runtime.json`, locked while this process runs. A full disk does not prevent the
        start: events can still be read, and retention frees space. Raises DataDirectoryError."""
        try:
            self._runtime.write(facts)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise _cannot("write", self._runtime.path, error) from error
            _logger.warning(
                "The disk is full: without %s the penstock command does not find this service "
                "by itself.",
                self._runtime.path,
            )

    def remove_runtime(self) -> None:
        self._runtime.remove()


def new_key() -> Secret:
    """256 random bits as base64 (docs/explanation/security.md)."""
    return Secret(base64.b64encode(secrets.token_bytes(32)).decode())


def _load_secret(file: Path) -> str:
    """A random key: created by the first call, then read from the file."""
    try:
        if not file.exists():
            secret = new_key().reveal().encode()
            write_file_atomically(file, add_checksum(secret), mode=0o600, replace=False)
        with file.open("rb") as opened:
            stored = opened.read(_SECRET_BYTES_MAX)
    except OSError as error:
        raise _cannot("read or write", file, error) from error
    try:
        content, is_summed = remove_checksum(stored)
    except ValueError as error:
        raise DataDirectoryError(
            f"{file} is damaged: {error}. Restore it from a backup, or remove it to have a new one "
            "drawn."
        ) from error
    if (
        not 1 <= len(content) <= limits.SAS_KEY_MAX
        or not content.decode("ascii", "replace").isprintable()
    ):
        raise DataDirectoryError(
            f"{file} does not hold a key of 1 to {limits.SAS_KEY_MAX} printable characters; "
            "restore it, or remove it to have a new one drawn."
        )
    if not is_summed:  # of version 0.1
        with contextlib.suppress(OSError):  # a full disk must not prevent the start
            write_file_atomically(file, add_checksum(content), mode=0o600)
    return content.decode("ascii", "replace")


def _make_private(directory: Path) -> None:
    """Take other users' rights away. The directory of another user, such as a mounted volume, stays
    as it is."""
    mode = stat.S_IMODE(directory.stat().st_mode)
    if not mode & 0o077:
        return
    try:
        directory.chmod(0o700)
    except OSError as error:
        _logger.warning(
            "data directory readable by others: directory=%s mode=%o reason=%s",
            *(directory, mode, error.strerror),
        )
    else:
        _logger.warning("data directory made private: directory=%s mode=%o to=700", directory, mode)


def _cannot(what: str, path: Path, error: OSError) -> DataDirectoryError:
    return DataDirectoryError(f"Cannot {what} {path} ({error.strerror or error}).")
