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
import fcntl
import json
import logging
import os
import secrets
import stat
import uuid
from collections.abc import Mapping
from pathlib import Path

from penstock.auth.admin_token import AdminTokens
from penstock.io.files import add_checksum, remove_checksum
from penstock.model import limits
from penstock.model.entities import Secret
from penstock.model.errors import DataDirectoryError

_logger = logging.getLogger(__name__)

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_KEY_BYTES = 32
_RUNTIME_BYTES_MAX = 64 * limits.KB
_SECRET_BYTES_MAX = 1 * limits.KB


class DataDirectory:
    """One directory, created if it is absent; other users lose their rights to an existing one.
    Methods raise DataDirectoryError."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()  # sent to clients, which have another current directory
        self._runtime: int | None = (
            None  # descriptor of runtime.json, locked while the service runs
        )
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
        """Write `runtime.json` atomically and hold a lock on it. The system releases the lock when
        this process ends, however it ends: a reader can tell that the file is stale. A full disk
        does not prevent the start: events can still be read, and retention frees space."""
        self.remove_runtime()
        aside = self.path / "runtime.json.new"
        try:
            aside.unlink(missing_ok=True)
            opened = os.open(aside, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
            self._runtime = opened
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with os.fdopen(opened, "wb", closefd=False) as stream:
                stream.write(json.dumps(facts).encode() + b"\n")
            aside.replace(self.path / "runtime.json")
        except OSError as error:
            if error.errno in _NO_ROOM:
                _logger.warning(
                    "The disk is full: without %s the penstock command does not find this service "
                    "by itself.",
                    self.path / "runtime.json",
                )
                aside.unlink(missing_ok=True)
                self.remove_runtime()
                return
            raise _cannot("write", aside, error) from error

    def remove_runtime(self) -> None:
        """To be called at stop. Keeps a file that another process has written meanwhile."""
        if self._runtime is None:
            return
        file = self.path / "runtime.json"
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self._runtime), file.stat()):
                file.unlink()
        os.close(self._runtime)
        self._runtime = None


def read_runtime(directory: Path) -> dict[str, object] | None:
    """The description of the service that runs on this directory; None when none does."""
    try:
        with (directory / "runtime.json").open("rb") as file:
            if is_stale(file.fileno()):
                return None
            content = file.read(_RUNTIME_BYTES_MAX)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _cannot("read", directory / "runtime.json", error) from error
    try:
        facts = json.loads(content)
    except ValueError:
        return None
    return facts if isinstance(facts, dict) else None


def is_stale(opened: int) -> bool:
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _load_secret(file: Path) -> str:
    """256 random bits as base64: created by the first call, then read from the file."""
    try:
        if not file.exists():
            secret = base64.b64encode(secrets.token_bytes(_KEY_BYTES))
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


def write_file_atomically(file: Path, content: bytes, *, mode: int, replace: bool = True) -> None:
    """Write a small file completely or not at all; it is on disk on return. Without `replace`, an
    existing file stays."""
    aside = file.with_name(f"{file.name}.{os.getpid()}.new")
    opened = os.open(aside, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, mode)
    try:
        with os.fdopen(opened, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(opened)
        if replace:
            aside.replace(file)
        else:
            with contextlib.suppress(FileExistsError):
                file.hardlink_to(aside)
        fsync_directory(file.parent)
    finally:
        aside.unlink(missing_ok=True)


def fsync_directory(directory: Path) -> None:
    opened = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _cannot(what: str, path: Path, error: OSError) -> DataDirectoryError:
    return DataDirectoryError(f"Cannot {what} {path} ({error.strerror or error}).")
