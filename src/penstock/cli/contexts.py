"""`penstock context add|use|list|show|delete`, and the file of named services.

The file is PENSTOCK_CONTEXTS, or `penstock/contexts.json` below XDG_CONFIG_HOME or ~/.config. It
holds keys: its mode is 0600, and a file that other users may read is refused.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from penstock.cli.command_tree import CommandGroup
from penstock.cli.confirm import DryRun, Yes, confirm
from penstock.cli.options import argument, option
from penstock.cli.output import TABLE, Format, print_message
from penstock.model.errors import AlreadyExists, ConfigurationError, NotFound, PenstockError

app = CommandGroup("Named services.")

_FILE_BYTES_MAX = 1024 * 1024
_STDIN_BYTES_MAX = 16 * 1024
_HIDDEN = "(hidden; --reveal shows it)"
_SECRETS = ("connection_string", "admin_token")


class ServiceContext(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one service is reached; None where something else has to say it."""

    connection_string: str | None = None
    admin_url: str | None = None
    admin_token: str | None = None
    ca_file: str | None = None
    data: str | None = None
    namespace: str | None = None

    def __repr__(self) -> str:  # the fields are secrets
        return f"ServiceContext(admin_url={self.admin_url!r}, data={self.data!r})"


class ServiceContexts(msgspec.Struct, kw_only=True):
    """The content of the file. `current` is the name that `penstock context use` selected."""

    current: str | None = None
    contexts: dict[str, ServiceContext] = {}

    def get(self, name: str) -> ServiceContext:
        """Raises NotFound."""
        if name not in self.contexts:
            names = ", ".join(sorted(self.contexts)) or "none yet"
            raise NotFound(f"There is no context '{name}'. There are: {names}.")
        return self.contexts[name]


def contexts_file() -> Path:
    file = os.environ.get("PENSTOCK_CONTEXTS")
    if file:
        return Path(file)
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "penstock" / "contexts.json"


def read_contexts() -> ServiceContexts:
    """The contexts of the file; none where it does not exist. Raises ConfigurationError."""
    file = contexts_file()
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            if mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise ConfigurationError(
                    f"{file} holds keys, and other users may read or change it (mode "
                    f"{stat.S_IMODE(mode):04o}): run `chmod 600 {file}` and rotate the keys."
                )
            return msgspec.json.decode(opened.read(_FILE_BYTES_MAX + 1), type=ServiceContexts)
    except FileNotFoundError:
        return ServiceContexts()
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read ({error.strerror}).") from error
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"{file} holds no contexts: {error}.") from error


def write_contexts(contexts: ServiceContexts) -> None:
    """Replace the file, readable by its owner only."""
    from penstock.io.files import write_file_atomically

    file = contexts_file()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = msgspec.json.format(msgspec.json.encode(contexts), indent=2)
    write_file_atomically(file, content + b"\n", mode=0o600)


def selected_context(flag: str | None) -> ServiceContext | None:
    """The context of the flag, of PENSTOCK_CONTEXT, or the current one; None if there is none."""
    stored = read_contexts()
    name = flag or os.environ.get("PENSTOCK_CONTEXT") or stored.current
    return None if name is None else stored.get(name)


# --- commands -------------------------------------------------------------------------------------


def complete_contexts() -> list[str]:
    """Names for the shell's completion; none where the file cannot be read."""
    try:
        return sorted(read_contexts().contexts)
    except PenstockError:
        return []


Name = Annotated[str, argument("NAME", "A context", autocompletion=complete_contexts)]
OptionalName = Annotated[
    str | None, argument("NAME", "A context", autocompletion=complete_contexts)
]


@app.verb()
def add(
    name: Annotated[str, argument("NAME", "Name of the new context")],
    connection_string: Annotated[
        str | None, option("STRING|-", "Connection string; - reads it from stdin")
    ] = None,
    admin_url: Annotated[
        str | None, option("URL", "Administration port, such as http://localhost:5300")
    ] = None,
    admin_token: Annotated[
        str | None, option("TOKEN|-", "Admin token; - reads it from stdin")
    ] = None,
    ca_file: Annotated[Path | None, option("FILE", "CA file that verifies the certificate")] = None,
    data: Annotated[
        Path | None, option("DIR", "Data directory: the service that runs on it")
    ] = None,
    namespace: Annotated[str | None, option("NAME", "Default namespace of commands")] = None,
    use: Annotated[bool, option("--use", "Use it from now on")] = False,
    replace: Annotated[bool, option("--replace", "Replace a context of that name")] = False,
) -> None:
    """Store a service under a name: its data directory, or its addresses and keys.

    Examples:
        penstock context add here --data /var/lib/penstock --use
        penstock context add far --admin-url https://hubs.example.com:5300 --admin-token -
    """
    from penstock.model.connection_string import parse_connection_string

    if connection_string is None and admin_url is None and data is None:
        raise typer.BadParameter("Pass --data, --admin-url or --connection-string.")
    if connection_string == admin_token == "-":
        raise typer.BadParameter("stdin holds only one of them: pass the other by its option.")
    context = ServiceContext(
        connection_string=_read_secret(connection_string),
        admin_url=admin_url,
        admin_token=_read_secret(admin_token),
        ca_file=None if ca_file is None else str(ca_file.absolute()),
        data=None if data is None else str(data.absolute()),
        namespace=namespace,
    )
    if context.connection_string is not None:
        parse_connection_string(context.connection_string)  # refuse it now, not at the next command
    stored = read_contexts()
    if name in stored.contexts and not replace:
        raise AlreadyExists(f"The context '{name}' exists already: --replace replaces it.")
    stored.contexts[name] = context
    if use:
        stored.current = name
    write_contexts(stored)
    state = "; it is in use now" if use else ""
    print_message(f"Stored the context '{name}' in {contexts_file()}{state}.")


@app.verb()
def use(
    name: OptionalName = None, none: Annotated[bool, option("--none", "Use no context")] = False
) -> None:
    """Use a context from now on, where neither flags nor environment name a service.

    Examples:
        penstock context use far
        penstock context use --none
    """
    if (name is None) != none:
        raise typer.BadParameter("Pass the name of a context, or --none.")
    stored = read_contexts()
    if name is not None:
        stored.get(name)
    stored.current = name
    write_contexts(stored)
    print_message("No context is in use now." if name is None else f"Using the context '{name}'.")


@app.verb("list")
def list_(output: Format = TABLE) -> None:
    """List the contexts, without their secrets.

    Examples:
        penstock context list
    """
    stored = read_contexts()
    rows = [
        {
            "name": name,
            "current": name == stored.current,
            "where": context.admin_url or context.data or "(events only)",
            "namespace": context.namespace,
        }
        for name, context in sorted(stored.contexts.items())
    ]
    output.print_rows(rows, title="Contexts")


@app.verb()
def show(
    name: OptionalName = None,
    reveal: Annotated[bool, option("--reveal", "Show keys and tokens")] = False,
    output: Format = TABLE,
) -> None:
    """Show one context, by default the current one; keys and tokens only with --reveal.

    Examples:
        penstock context show
        penstock context show far --reveal
    """
    stored = read_contexts()
    name = name or stored.current
    if name is None:
        raise typer.BadParameter("No context is in use: pass the name of one.")
    record: dict[str, object] = {"name": name, "current": name == stored.current}
    for field, value in msgspec.structs.asdict(stored.get(name)).items():
        record[field] = _HIDDEN if value and field in _SECRETS and not reveal else value
    output.print_record(record)


@app.verb()
def delete(name: Name, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Delete a context with the keys in it. The service is not changed.

    Examples:
        penstock context delete far --yes
    """
    stored = read_contexts()
    stored.get(name)
    if confirm(f"This deletes the context '{name}'.", name, yes=yes, dry_run=dry_run):
        del stored.contexts[name]
        stored.current = None if stored.current == name else stored.current
        write_contexts(stored)
        print_message(f"Deleted the context '{name}'.")


def _read_secret(text: str | None) -> str | None:
    """The value of an option; `-` means that it is on stdin, where other users do not see it."""
    if text != "-":
        return text
    secret = sys.stdin.read(_STDIN_BYTES_MAX).strip()
    if not secret:
        raise typer.BadParameter("stdin is empty.")
    return secret
