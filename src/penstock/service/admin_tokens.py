"""Admin tokens of a running service: issue, verify and revoke them, and renew those of its child
processes."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Sequence
from concurrent.futures import Executor
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


class RevokedTokens:
    """Ids of tokens that were revoked before they expired, in one file. An id is removed when no
    token of that id can be valid. Use it in one thread.

    A file that cannot be read stops the service from starting: an empty list would make revoked
    tokens valid again.
    """

    def __init__(self, directory: Path, *, now_ms: int) -> None:
        """Raises DataDirectoryError."""
        self._file = directory / "admin.revoked"
        now_s = now_ms // 1000
        self._until_s = {id_: until for id_, until in self._read().items() if until > now_s}

    def __contains__(self, token_id: str) -> bool:
        return token_id in self._until_s

    def ids(self) -> list[str]:
        return list(self._until_s)

    def add(self, token_id: str, *, now_ms: int) -> None:
        """Durable on return. Raises QuotaExceeded, DataDirectoryError."""
        now_s = now_ms // 1000
        revoked = {id_: until for id_, until in self._until_s.items() if until > now_s}
        revoked[token_id] = now_s + LIFETIME_S
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
        self._until_s = revoked

    def _read(self) -> dict[str, int]:
        try:
            with self._file.open("rb") as opened:
                content, _ = remove_checksum(opened.read(_REVOKED_BYTES_MAX))
            return msgspec.json.decode(content, type=dict[str, int])
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise DataDirectoryError(
                f"Cannot read {self._file} ({error}), which lists revoked admin tokens. Restore "
                "it; or, to revoke every admin token, remove it together with admin.secret."
            ) from error


class ServiceTokens:
    """`management.operations.base.AdminTokens` with the secret of the data directory."""

    def __init__(self, data: DataDirectory, clock: Clock) -> None:
        """Raises DataDirectoryError."""
        self._tokens = data.admin_tokens()
        self._revoked = RevokedTokens(data.path, now_ms=clock.now_ms())
        self._clock = clock

    def verify(self, token: str) -> Verified:
        """Raises AuthFailed."""
        claims = self._tokens.verify(token, now_ms=self._clock.now_ms())
        if claims.token_id in self._revoked:
            raise AuthFailed("The token was revoked.")
        return claims.subject, claims.roles

    def issue(self, *, subject: str, role: str, lifetime_s: int) -> AdminToken:
        token_id = uuid.uuid4().hex
        now_ms = self._clock.now_ms()
        token = self._tokens.issue(
            now_ms=now_ms,
            token_id=token_id,
            subject=subject,
            roles=(role,),
            lifetime_s=lifetime_s,
        )
        expires_at = format_time((now_ms // 1000 + lifetime_s) * 1000)
        return AdminToken(id=token_id, token=token, name=subject, role=role, expires_at=expires_at)

    def revoke(self, token_id: str) -> None:
        self._revoked.add(token_id, now_ms=self._clock.now_ms())

    def revoked(self) -> list[str]:
        return self._revoked.ids()


def token_file(directory: Path, role: ProcessRole) -> Path:
    """The file with the token of a process, in the data directory."""
    return directory / f"{role.lower()}.token"


class ProcessTokens:
    """Short-lived tokens of the processes that the service starts, each in a private file.

    A process reads its file again for each request: it uses a new token without a restart, and no
    environment or command line has one. `write` runs in one thread at a time.
    """

    def __init__(
        self,
        directory: Path,
        tokens: ServiceTokens,
        clock: Clock,
        executor: Executor,
        roles: Sequence[ProcessRole],
    ) -> None:
        self._directory = directory
        self._tokens = tokens
        self._clock = clock
        self._executor = executor
        self._roles = roles
        self._issued_ms: dict[ProcessRole, int] = {}

    def file(self, role: ProcessRole) -> Path:
        return token_file(self._directory, role)

    def write(self) -> None:
        """Replace each token that is due, and write each that is missing. Raises OSError."""
        for role in self._roles:
            if self._is_due(role):
                now_ms = self._clock.now_ms()
                issued = self._tokens.issue(
                    subject=role.lower(), role=role.value, lifetime_s=PROCESS_LIFETIME_S
                )
                content = issued.token.encode() + b"\n"
                write_file_atomically(self.file(role), content, mode=0o600)
                self._issued_ms[role] = now_ms

    async def renew(self) -> str | None:
        """A pass of a PeriodicTask. Raises OSError."""
        await asyncio.get_running_loop().run_in_executor(self._executor, self.write)
        return None

    def remove(self) -> None:
        """To be called when all processes have ended."""
        for role in self._roles:
            with contextlib.suppress(OSError):
                self.file(role).unlink(missing_ok=True)

    def _is_due(self, role: ProcessRole) -> bool:
        issued_ms = self._issued_ms.get(role)
        if issued_ms is None or not self.file(role).exists():
            return True
        # Negative: the clock was set back, and tokens from the future would live too long.
        return not 0 <= self._clock.now_ms() - issued_ms < RENEW_AFTER_S * 1000
