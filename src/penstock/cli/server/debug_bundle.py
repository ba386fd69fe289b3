"""`penstock debug bundle`: one archive of what a person who helps needs, secrets taken out."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.command_tree import CommandGroup
from penstock.cli.output import Format, OutputFormat, format_bytes, print_message, print_rows
from penstock.cli.service_options import AdminSession, with_whole_service
from penstock.model.errors import DataDirectoryError, PenstockError

if TYPE_CHECKING:
    from penstock.management.client import ManagementClient

app = CommandGroup("Gather what a person who helps needs to see.")

_REDACTED = "***"
_PROBE_S = 10.0
_FILES_MAX = 20_000
_SECRET_BYTES_MAX = 4096
_SECRET_LENGTH_MIN = 8  # anything shorter is no key, and would tear words apart
_PATTERNS = (
    re.compile(r"(SharedAccessKey=)[^;\s\"']+", re.IGNORECASE),
    re.compile(r"(SharedAccessSignature[ =]sr=[^\s\"'&]+&sig=)[^\s\"'&]+", re.IGNORECASE),
    re.compile(r"(\bsig=)[^\s\"'&]+", re.IGNORECASE),
    re.compile(r"(Bearer )[A-Za-z0-9._~+/-]+=*", re.IGNORECASE),
    re.compile(
        r"(\"(?:admin_token|token|key|primary_key|secondary_key|password|secret)\": \")[^\"]+"
    ),
    re.compile(r"\b(eyJ)[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+"),
)

Part = tuple[str, Callable[[], object]]


class SecretRedactor:
    """Takes out every secret that is known by its value, and everything that looks like one."""

    def __init__(self, secrets: Iterator[str]) -> None:
        found = {each for each in secrets if len(each) >= _SECRET_LENGTH_MIN}
        self._secrets = sorted(found, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, _REDACTED)
        for pattern in _PATTERNS:
            text = pattern.sub(rf"\g<1>{_REDACTED}", text)
        return text


@app.verb()
@with_whole_service
def bundle(
    service: AdminSession,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="[default: penstock-debug-TIME.tar.gz]")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read the whole log, too; that takes its time")
    ] = False,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Versions, checks, metrics, entities, connections and sizes, as one archive.

    No event, no key and no token is in it; look for yourself before you send it. What cannot be
    had, of a service that does not run or a directory that is elsewhere, is named with the reason.
    """
    from penstock.cli.service_lookup import data_directory

    data = data_directory(service.where)
    redact = SecretRedactor(_secrets(service, data))
    target = file or Path(f"penstock-debug-{time.strftime('%Y%m%dT%H%M%S')}.tar.gz")
    rows: list[dict[str, object]] = []
    opened = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(opened, "wb") as stream, tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, make in _parts(service, data, verify=verify):
            text, state = _render_part(make)
            content = redact(text).encode()
            entry = tarfile.TarInfo(f"penstock-debug/{name}")
            entry.size, entry.mode, entry.mtime = len(content), 0o600, int(time.time())
            archive.addfile(entry, io.BytesIO(content))
            rows.append({"file": name, "size_bytes": len(content), "state": redact(state)})
    print_rows(rows, output, title=str(target), shown={"size_bytes": format_bytes})
    print_message(
        f"{target} ({format_bytes(target.stat().st_size)}): no events, keys or tokens in it."
    )


def _render_part(make: Callable[[], object]) -> tuple[str, str]:
    """A part that cannot be made must not keep the others out."""
    try:
        found = make()
    except (PenstockError, OSError, ValueError, KeyError) as error:
        return f"{type(error).__name__}: {error}\n", str(error)
    if isinstance(found, str):
        return found, "ok"
    return json.dumps(found, indent=1, default=str) + "\n", "ok"


def _parts(service: AdminSession, data: Path, *, verify: bool) -> Iterator[Part]:
    from penstock.cli.server.probe import fetch

    def page(path: str) -> Callable[[], str]:
        def ask() -> str:
            return fetch(service.admin, path, timeout_s=_PROBE_S)[1].decode(errors="replace")

        return ask

    yield "version.json", _versions
    yield "environment.json", _environment
    yield "doctor.json", lambda: _doctor(data)
    yield "health.json", page("/health")
    yield "ready.json", page("/ready")
    yield "metrics.txt", page("/metrics")
    yield "runtime.json", lambda: _redacted_runtime(data)
    yield "entities.json", lambda: _entities(service.client)
    yield "connections.json", lambda: service.client.connections()
    yield "audit.json", lambda: service.client.audit(newest=500)
    yield "configuration.json", _configuration
    yield "files.json", lambda: _files(data)
    if verify:
        yield "verify.json", lambda: _log_findings(data)


def _versions() -> object:
    from importlib.metadata import distributions

    from penstock import __version__
    from penstock.kernels import KERNEL

    packages = {each.metadata["Name"]: each.version for each in distributions()}
    return {
        "penstock": __version__,
        "kernel": KERNEL,
        "python": sys.version,
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "packages": dict(sorted(packages.items())),
    }


def _environment() -> object:
    """Ours alone; what may be a secret only by name."""
    return {
        name: "(set)" if re.search("KEY|TOKEN|SECRET|CONNECTION", name) else value
        for name, value in sorted(os.environ.items())
        if name.startswith("PENSTOCK_")
    }


def _doctor(data: Path) -> object:
    from penstock.cli.server.doctor import findings

    return [{"check": what, "state": state, "seen": seen} for what, state, seen in findings(data)]


def _redacted_runtime(data: Path) -> object:
    from penstock.io.runtime_file import read_runtime

    facts = read_runtime(data)
    if facts is None:
        raise DataDirectoryError(f"No service runs on {data}.")
    hidden = ("connection_string", "emulator_connection_string", "admin_token")
    return {name: _REDACTED if name in hidden else value for name, value in facts.items()}


def _entities(client: ManagementClient) -> object:
    import msgspec

    return [
        {
            **msgspec.structs.asdict(namespace),
            "policies": [msgspec.structs.asdict(rule) for rule in client.rules(namespace.name)],
            "grants": client.grants(namespace.name),
            "hubs": [
                {
                    **msgspec.structs.asdict(hub),
                    "partitions": client.partitions(namespace.name, hub.name),
                    "readers": client.readers(namespace.name, hub.name),
                    "lag": client.lag(namespace.name, hub.name),
                }
                for hub in client.hubs(namespace.name)
            ],
        }
        for namespace in client.namespaces()
    ]


def _configuration() -> object:
    from penstock.cli.server.config import effective_settings

    return effective_settings(None)


def _files(data: Path) -> object:
    """Names and sizes; no content."""
    if not data.is_dir():
        raise DataDirectoryError(f"There is no data directory {data} here.")
    found = []
    for root, _, names in os.walk(data):
        for name in names:
            file = Path(root) / name
            about = file.stat()
            found.append(
                {
                    "file": str(file.relative_to(data)),
                    "size": about.st_size,
                    "mode": oct(about.st_mode & 0o7777),
                    "modified": int(about.st_mtime),
                }
            )
    return sorted(found, key=lambda each: str(each["file"]))[:_FILES_MAX]


def _log_findings(data: Path) -> object:
    import msgspec

    from penstock.log.embedded.verify import verify_directory

    return [msgspec.structs.asdict(item) for item in verify_directory(data / "log")]


def _secrets(service: AdminSession, data: Path) -> Iterator[str]:
    """Every secret that we can know of, to be looked for in everything."""
    from penstock.io.runtime_file import read_runtime

    for name in ("root.key", "admin.secret", "capture.token", "portal.token"):
        try:
            content = (data / name).read_bytes()[:_SECRET_BYTES_MAX].strip()
            yield content.partition(b"\n")[0].decode("ascii", "replace")  # then its checksum
        except OSError:
            continue
    for name, value in os.environ.items():
        if name.startswith("PENSTOCK_") and re.search("KEY|TOKEN|SECRET|CONNECTION", name):
            yield value
    texts: list[object] = []
    try:
        facts = read_runtime(data) or {}
        texts = [facts.get("admin_token"), facts.get("connection_string")]
        texts.append(service.admin.token)
    except PenstockError:
        pass  # no service is known, and so no secret of it
    for text in texts:
        if isinstance(text, str):
            yield text
            yield text.partition("SharedAccessKey=")[2].partition(";")[0]
