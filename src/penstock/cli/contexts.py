"""The file that contexts are kept in: services by name, with their secrets, for one user's eyes.

`PENSTOCK_CONTEXTS`, or `penstock/contexts.json` below XDG_CONFIG_HOME or ~/.config; mode 0600.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from penstock.model.errors import ConfigurationError, NotFound

_FILE_BYTES_MAX = 1024 * 1024


class ServiceContext(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one service is reached. A field that is None is looked for elsewhere."""

    connection_string: str | None = None
    admin_url: str | None = None
    admin_token: str | None = None
    ca_file: str | None = None
    data: str | None = None
    namespace: str | None = None

    def __repr__(self) -> str:  # it holds keys
        return f"Context(admin_url={self.admin_url!r}, data={self.data!r})"


class ServiceContexts(msgspec.Struct, frozen=True, kw_only=True):
    current: str | None = None
    contexts: dict[str, ServiceContext] = {}

    def get(self, name: str) -> ServiceContext:
        found = self.contexts.get(name)
        if found is None:
            known = ", ".join(sorted(self.contexts)) or "none yet"
            raise NotFound(f"There is no context '{name}'; known are: {known}.")
        return found


def contexts_file(environ: Mapping[str, str] | None = None) -> Path:
    environ = os.environ if environ is None else environ
    given = environ.get("PENSTOCK_CONTEXTS")
    if given:
        return Path(given)
    base = environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "penstock" / "contexts.json"


def read_contexts(file: Path) -> ServiceContexts:
    """None kept: an empty one. A file that others may read is refused: it holds keys."""
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            if mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise ConfigurationError(
                    f"{file} holds keys, and others may read or change it (mode "
                    f"{stat.S_IMODE(mode):04o}): `chmod 600 {file}`, and rotate the keys."
                )
            content = opened.read(_FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return ServiceContexts()
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read ({error.strerror}).") from error
    try:
        return msgspec.json.decode(content, type=ServiceContexts)
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"{file} holds no contexts: {error}.") from error


def write_contexts(file: Path, contexts: ServiceContexts) -> None:
    """Put in place whole, readable by its owner alone."""
    from penstock.io.files import write_file_atomically

    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = msgspec.json.format(msgspec.json.encode(contexts), indent=2)
    write_file_atomically(file, content + b"\n", mode=0o600)


def selected_context(flag: str | None) -> tuple[str, ServiceContext] | None:
    """By flag, PENSTOCK_CONTEXT, or the current one; None when nobody chose."""
    file = contexts_file()
    name = flag or os.environ.get("PENSTOCK_CONTEXT")
    known = read_contexts(file)
    name = name or known.current
    return None if name is None else (name, known.get(name))
