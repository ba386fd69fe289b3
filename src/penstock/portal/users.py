"""Users of the portal: a file of names, roles and hashed passwords.

    alice = { role = "admin", password = "scrypt$16384$8$1$SALT$HASH" }
    bob   = { role = "viewer", password = "scrypt$…", hubs = ["orders", "billing-*"] }

TOML under [users]. Passwords are hashed by `penstock portal password`. The file is read again when
it changes: the session of a removed user ends with the next request.
"""

from __future__ import annotations

import asyncio
import base64
import fnmatch
import hashlib
import hmac
import os
import tomllib
from functools import cache
from pathlib import Path

import msgspec

from penstock.io.threads import StartedThreads
from penstock.management.permissions import AdminRole
from penstock.model.errors import ConfigurationError, ServerBusy

_N, _R, _P = 2**14, 8, 1  # 16 MB and tens of milliseconds for each guess
_BYTES = 32
_FILE_BYTES_MAX = 1024 * 1024
_PASSWORD_MAX = 1024
_CHECKS_AT_ONCE = 2
_CHECKS_MAX = 16


class User(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    role: AdminRole
    password: str
    hubs: tuple[str, ...] = ()  # patterns; empty: all hubs

    def __repr__(self) -> str:
        return f"User({self.name!r}, {self.role.name})"

    @property
    def stamp(self) -> str:
        """Changes with every change of the user; a session stores it."""
        text = f"{self.name}\0{self.role}\0{self.password}\0{self.hubs}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Users:
    """The users of the file, read again when it changes."""

    def __init__(self, file: Path | str | None) -> None:
        self._file = None if file is None else Path(file)
        self._version: tuple[int, int] | None = None  # of the file: its time and size
        self._users: dict[str, User] = {}

    def find(self, name: str) -> User | None:
        """Raises ConfigurationError when the file cannot be used: no user can sign in then."""
        if self._file is not None:
            try:
                self._read(self._file)
            except ConfigurationError:
                self._users, self._version = {}, None
                raise
        return self._users.get(name)

    def _read(self, file: Path) -> None:
        try:
            status = file.stat()
            version = (status.st_mtime_ns, status.st_size)
            if version == self._version:
                return
            if status.st_size > _FILE_BYTES_MAX:
                raise ConfigurationError(f"{file} has more than {_FILE_BYTES_MAX} bytes.")
            self._users = read_users(file.read_text(), str(file))
            self._version = version
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{file} cannot be read: {error}.") from None


def read_users(text: str, where: str) -> dict[str, User]:
    """Raises ConfigurationError, which never shows a hash."""
    try:
        table = tomllib.loads(text).get("users", {})
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{where} is not TOML: {error}.") from None
    if not isinstance(table, dict):
        raise ConfigurationError(f"{where}: users is a table of names.")
    return {name: _user(name, value, where) for name, value in table.items()}


def _user(name: str, value: object, where: str) -> User:
    if not isinstance(value, dict) or not name or len(name) > 64 or not name.isprintable():
        raise ConfigurationError(f"{where}: a user is a name of at most 64 characters and a table.")
    unknown = set(value) - {"role", "password", "hubs"}
    if unknown:
        raise ConfigurationError(f"{where}: '{name}' has '{min(unknown)}': role, password, hubs.")
    role, password, hubs = value.get("role"), value.get("password"), value.get("hubs", [])
    if not isinstance(role, str) or role.lower() not in ("viewer", "operator", "admin"):
        raise ConfigurationError(f"{where}: the role of '{name}' is viewer, operator or admin.")
    if not isinstance(password, str) or not password.startswith("scrypt$"):
        raise ConfigurationError(
            f"{where}: the password of '{name}' is no hash: `penstock portal password` makes one."
        )
    if not isinstance(hubs, list) or not all(isinstance(each, str) for each in hubs):
        raise ConfigurationError(f"{where}: the hubs of '{name}' are a list of patterns.")
    return User(name=name, role=AdminRole[role.upper()], password=password, hubs=tuple(hubs))


class PasswordChecks:
    """Checks passwords in threads, two at a time (each needs 16 MB), with a bounded queue. Use it
    on the event loop."""

    def __init__(self) -> None:
        self._threads = StartedThreads(_CHECKS_AT_ONCE, "portal-password")
        self._checks = asyncio.Semaphore(_CHECKS_MAX)

    async def matches(self, password: str, user: User | None) -> bool:
        """Takes the same time for a user that does not exist. Raises ServerBusy."""
        if self._checks.locked():
            raise ServerBusy("Too many people are signing in: try again in a moment.")

        def check() -> bool:
            return verify_password(password, unknown_user_hash() if user is None else user.password)

        async with self._checks:
            return await asyncio.get_running_loop().run_in_executor(self._threads, check)


def can_see_hub(patterns: tuple[str, ...], hub: str) -> bool:
    return not patterns or any(
        fnmatch.fnmatchcase(hub.casefold(), pattern.casefold()) for pattern in patterns
    )


def hash_password(password: str, salt: bytes | None = None) -> str:
    """The hash of a password for the user file."""
    salt = os.urandom(16) if salt is None else salt
    digest = _scrypt(password, salt, _N, _R, _P)
    salt_text, digest_text = (base64.b64encode(data).decode() for data in (salt, digest))
    return f"scrypt${_N}${_R}${_P}${salt_text}${digest_text}"


def verify_password(password: str, stored: str) -> bool:
    """Takes the same time for a wrong password. False for an invalid hash."""
    try:
        _, *cost, salt, digest = stored.split("$")
        n, r, p = map(int, cost)
        if not (1 < n <= 2**17 and 0 < r <= 16 and 0 < p <= 4):
            return False
        found = _scrypt(password, base64.b64decode(salt, validate=True), n, r, p)
        return hmac.compare_digest(found, base64.b64decode(digest, validate=True))
    except ValueError:
        return False


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    text = password[:_PASSWORD_MAX].encode("utf-8", "replace")
    return hashlib.scrypt(text, salt=salt, n=n, r=r, p=p, maxmem=256 * 1024 * 1024, dklen=_BYTES)


@cache
def unknown_user_hash() -> str:
    """The hash for unknown names: checking them takes as long as checking known ones."""
    return hash_password("nobody", b"\0" * 16)
