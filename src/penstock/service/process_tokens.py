"""Admin tokens of the processes that the service starts: short-lived, each in a private file.

A process reads its file again for each request, so that a new token is used without a restart, and
no environment or command line holds one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

from penstock.io.files import write_file_atomically
from penstock.management.permissions import ProcessRole
from penstock.model.clock import Clock
from penstock.service.config.settings import Settings
from penstock.service.management_context import ServiceTokens

LIFETIME_S = 3600  # how long a token that was lost is worth something
RENEW_AFTER_S = 1200
# Shorter than RENEW_AFTER_S: a write that failed is tried again soon, and so is one that was missed
# while the machine was suspended.
RENEW_INTERVAL_S = 60.0


def token_file(directory: Path, role: ProcessRole) -> Path:
    """Where the token of a process is, in the data directory."""
    return directory / f"{role.lower()}.token"


class ProcessTokens:
    """The current token of each process. `write` runs in one thread at a time."""

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

    @staticmethod
    def prepare(
        directory: Path,
        tokens: ServiceTokens,
        clock: Clock,
        executor: Executor,
        settings: Settings,
    ) -> ProcessTokens:
        """Write the first tokens. A full disk is no reason not to start: the next pass tries again,
        and reports what went wrong."""
        wanted = {ProcessRole.PORTAL: settings.portal, ProcessRole.CAPTURE: settings.capture.run}
        roles = [role for role, is_wanted in wanted.items() if is_wanted]
        prepared = ProcessTokens(directory, tokens, clock, executor, roles)
        with contextlib.suppress(OSError):
            prepared.write()
        return prepared

    def file(self, role: ProcessRole) -> Path:
        return token_file(self._directory, role)

    def write(self) -> None:
        """Replace each token that is due, and write each that is missing. Raises OSError."""
        for role in self._roles:
            if self._is_due(role):
                now_ms = self._clock.now_ms()
                issued = self._tokens.issue(
                    subject=role.lower(), role=role.value, lifetime_s=LIFETIME_S
                )
                content = issued.token.reveal().encode() + b"\n"
                write_file_atomically(self.file(role), content, mode=0o600)
                self._issued_ms[role] = now_ms

    async def renew(self) -> str | None:
        """A pass of a PeriodicTask. Raises OSError."""
        await asyncio.get_running_loop().run_in_executor(self._executor, self.write)
        return None

    def remove(self) -> None:
        """When no process is left."""
        for role in self._roles:
            with contextlib.suppress(OSError):
                self.file(role).unlink(missing_ok=True)

    def _is_due(self, role: ProcessRole) -> bool:
        issued_ms = self._issued_ms.get(role)
        if issued_ms is None or not self.file(role).exists():
            return True
        # Negative: the clock was set back, and tokens from the future live too long.
        return not 0 <= self._clock.now_ms() - issued_ms < RENEW_AFTER_S * 1000
