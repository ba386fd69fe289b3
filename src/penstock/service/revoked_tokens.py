"""The admin tokens that were revoked before they expired, kept in one small file."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec

from penstock.auth.admin_token import LIFETIME_S
from penstock.io.files import add_checksum, remove_checksum
from penstock.model.errors import DataDirectoryError, QuotaExceeded

REVOKED_MAX = 10_000
_FILE_BYTES_MAX = 4 * 1024 * 1024


class WriteFile(Protocol):
    def __call__(self, file: Path, content: bytes, *, mode: int) -> None: ...


class RevokedTokens:
    """Ids of tokens, each kept until no token of that id can be valid. For one thread.

    A file that cannot be read stops the service from starting: an empty list would make revoked
    tokens valid again.
    """

    def __init__(self, file: Path, write: WriteFile, *, now_ms: int) -> None:
        """Raises DataDirectoryError."""
        self._file = file
        self._write = write
        self._until_s = {id_: until for id_, until in _read(file).items() if until > now_ms // 1000}

    def __contains__(self, token_id: str) -> bool:
        return token_id in self._until_s

    def ids(self) -> list[str]:
        return list(self._until_s)

    def add(self, token_id: str, *, now_ms: int) -> None:
        """Durable on return. Raises QuotaExceeded, DataDirectoryError."""
        now_s = now_ms // 1000
        wanted = {id_: until for id_, until in self._until_s.items() if until > now_s}
        wanted[token_id] = now_s + LIFETIME_S
        if len(wanted) > REVOKED_MAX:
            raise QuotaExceeded(
                f"{REVOKED_MAX:,} admin tokens are revoked: more are not allowed. To revoke every "
                "token, stop the service and remove admin.secret from its data directory."
            )
        try:
            self._write(self._file, add_checksum(msgspec.json.encode(wanted)), mode=0o600)
        except OSError as error:
            raise DataDirectoryError(
                f"Cannot write {self._file} ({error.strerror or error}): the token is not revoked."
            ) from error
        self._until_s = wanted


def _read(file: Path) -> dict[str, int]:
    try:
        with file.open("rb") as opened:
            content, _ = remove_checksum(opened.read(_FILE_BYTES_MAX))
        return msgspec.json.decode(content, type=dict[str, int])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataDirectoryError(
            f"Cannot read {file} ({error}), which lists revoked admin tokens. Restore it; or, to "
            "revoke every admin token, remove it together with admin.secret."
        ) from error
