"""Admin tokens of a running service: issue, verify and revoke them, and renew those of its child
processes."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from penstock.auth.admin_token import LIFETIME_S
from penstock.io.files import add_checksum, remove_checksum, write_file_atomically
from penstock.management.permissions import ProcessRole, Verified
from penstock.management.resources import AdminToken, format_time
from penstock.model.clock import Clock
from penstock.model.errors import AuthFailed, DataDirectoryError, QuotaExceeded
from penstock.service.data_directory import DataDirectory

REVOKED_MAX = 10_000
_REVOKED_BYTES_MAX = 4 * 1024 * 1024
PROCESS_LIFETIME_S = 3600  # how long a token that was stolen is valid
RENEW_AFTER_S = 1200
# Shorter than RENEW_AFTER_S, so that a failed write, or one that was missed while the machine was
# suspended, is retried soon.
RENEW_INTERVAL_S = 60.0


class ServiceTokens:
    """`management.operations.base.AdminTokens` with the secret of the data directory. Use it in one
    thread.

    The ids of tokens that were revoked before they expired are in one file. An id is removed when
    no token of that id can be valid. A file that cannot be read stops the service from starting: an
    empty list would make revoked tokens valid again.
    """

    def __init__(self, data: DataDirectory, clock: Clock) -> None:
        """Raises DataDirectoryError."""
        self._tokens = data.admin_tokens()
        self._file = data.path / "admin.revoked"
        self._clock = clock
        self._revoked_until_s = _read_revoked(self._file)
        self._revoked_until_s = self._still_revoked()

    def verify(self, token: str) -> Verified:
        """Raises AuthFailed."""
        claims = self._tokens.verify(token, now_ms=self._clock.now_ms())
        if claims.token_id in self._revoked_until_s:
            raise AuthFailed("The token was revoked.")
        return claims.subject, claims.roles

    def issue(self, *, subject: str, role: str, lifetime_s: int) -> AdminToken:
        token_id = uuid.uuid4().hex
        now_ms = self._clock.now_ms()
        token = self._tokens.issue(
            now_ms=now_ms, token_id=token_id, subject=subject, roles=(role,), lifetime_s=lifetime_s
        )
        expires_at = format_time((now_ms // 1000 + lifetime_s) * 1000)
        return AdminToken(id=token_id, token=token, name=subject, role=role, expires_at=expires_at)

    def revoke(self, token_id: str) -> None:
        """Durable on return. Raises QuotaExceeded, DataDirectoryError."""
        revoked = self._still_revoked() | {token_id: self._clock.now_ms() // 1000 + LIFETIME_S}
        if len(revoked) > REVOKED_MAX:
            raise QuotaExceeded(
                f"{REVOKED_MAX:,} admin tokens are revoked: more are not allowed. To revoke every "
                "token, stop the service and remove admin.secret from its data directory."
            )
        try:
            content = add_checksum(msgspec.json.encode(revoked))
            write_file_atomically(self._file, content, mode=0o600)
        except OSError as error:
            raise DataDirectoryError(
                f"Cannot write {self._file} ({error.strerror or error}): the token is not revoked."
            ) from error
        self._revoked_until_s = revoked

    def revoked(self) -> list[str]:
        return list(self._revoked_until_s)

    def _still_revoked(self) -> dict[str, int]:
        now_s = self._clock.now_ms() // 1000
        return {id_: until for id_, until in self._revoked_until_s.items() if until > now_s}


def _read_revoked(file: Path) -> dict[str, int]:
    try:
        with file.open("rb") as opened:
            content, _ = remove_checksum(opened.read(_REVOKED_BYTES_MAX))
        return msgspec.json.decode(content, type=dict[str, int])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataDirectoryError(
            f"Cannot read {file} ({error}), which lists revoked admin tokens. Restore "
            "it; or, to revoke every admin token, remove it together with admin.secret."
        ) from error


def token_file(directory: Path, role: ProcessRole) -> Path:
    """The file with the token of a process, in the data directory."""
    return directory / f"{role.lower()}.token"


@dataclass(eq=False)
class ProcessTokens:
    """Short-lived tokens of the processes that the service starts, each in a private file.

    A process reads its file again for each request: it uses a new token without a restart, and no
    environment or command line has one. `write` runs in one thread at a time.
    """

    directory: Path
    tokens: ServiceTokens
    clock: Clock
    executor: Executor
    roles: Sequence[ProcessRole]
    _issued_ms: dict[ProcessRole, int] = field(default_factory=dict)

    def file(self, role: ProcessRole) -> Path:
        return token_file(self.directory, role)

    def write(self) -> None:
        """Replace each token that is due, and write each that is missing. Raises OSError."""
        for role in self.roles:
            if self._is_due(role):
                now_ms = self.clock.now_ms()
                issued = self.tokens.issue(
                    subject=role.lower(), role=role.value, lifetime_s=PROCESS_LIFETIME_S
                )
                content = issued.token.encode() + b"\n"
                write_file_atomically(self.file(role), content, mode=0o600)
                self._issued_ms[role] = now_ms

    async def renew(self) -> str | None:
        """A pass of a PeriodicTask. Raises OSError."""
        await asyncio.get_running_loop().run_in_executor(self.executor, self.write)
        return None

    def remove(self) -> None:
        """To be called when all processes have ended."""
        for role in self.roles:
            with contextlib.suppress(OSError):
                self.file(role).unlink(missing_ok=True)

    def _is_due(self, role: ProcessRole) -> bool:
        issued_ms = self._issued_ms.get(role)
        if issued_ms is None or not self.file(role).exists():
            return True
        # Negative: the clock was set back, and tokens from the future would live too long.
        return not 0 <= self.clock.now_ms() - issued_ms < RENEW_AFTER_S * 1000
