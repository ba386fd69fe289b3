"""`penstock debug bundle`: one archive with information for a support request, without secrets."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from penstock.cli.command_tree import CommandGroup
from penstock.cli.options import argument, option
from penstock.cli.output import TABLE, Format, format_bytes, print_message
from penstock.cli.service_options import AdminSession, data_directory, with_whole_service
from penstock.io.runtime_file import read_runtime
from penstock.model.errors import DataDirectoryError, PenstockError

if TYPE_CHECKING:
    from penstock.management.client import ManagementClient

app = CommandGroup("Collect information for a support request.", with_whole_service)

_REDACTED = "***"
_PROBE_S = 10.0
_FILES_MAX = 20_000
_SECRET_BYTES_MAX = 4096
_SECRET_LENGTH_MIN = 8  # shorter texts are no keys, and occur inside other words
_SECRET_FILES = ("root.key", "admin.secret", "capture.token", "portal.token")
_SECRET_FIELDS = ("connection_string", "emulator_connection_string", "admin_token")
_SECRET_VARIABLE = re.compile("KEY|TOKEN|SECRET|CONNECTION")
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

Part = Callable[[], object]  # returns text, or an object that is written as JSON


class SecretRedactor:
    """Removes the given secrets from a text, and everything that looks like a secret."""

    def __init__(self, secrets: Iterable[str]) -> None:
        long_enough = {secret for secret in secrets if len(secret) >= _SECRET_LENGTH_MIN}
        self._secrets = sorted(long_enough, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, _REDACTED)
        for pattern in _PATTERNS:
            text = pattern.sub(rf"\g<1>{_REDACTED}", text)
        return text


@app.verb()
def bundle(
    service: AdminSession,
    file: Annotated[
        Path | None, argument("FILE", "New file [default: penstock-debug-TIME.tar.gz]")
    ] = None,
    verify: Annotated[
        bool, option("--verify", "Also verify the whole log, which can take long")
    ] = False,
    output: Format = TABLE,
) -> None:
    """Write versions, checks, metrics, entities, connections and file sizes into one archive.

    It contains no event, key or token; look at it before you send it. A part that cannot be
    collected, because no service runs or the directory is missing, is listed with the reason.

    Examples:
        penstock debug bundle
        penstock debug bundle support.tar.gz --verify
    """
    data = data_directory(service.flags)
    redact = SecretRedactor(_find_secrets(service, data))
    target = file or Path(f"penstock-debug-{time.strftime('%Y%m%dT%H%M%S')}.tar.gz")
    rows: list[dict[str, object]] = []
    opened = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(opened, "wb") as stream, tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, part in _list_parts(service, data, verify=verify).items():
            text, state = _render_part(part)
            content = redact(text).encode()
            entry = tarfile.TarInfo(f"penstock-debug/{name}")
            entry.size, entry.mode, entry.mtime = len(content), 0o600, int(time.time())
            archive.addfile(entry, io.BytesIO(content))
            rows.append({"file": name, "size_bytes": len(content), "state": redact(state)})
    output.print_rows(rows, title=str(target))
    size = format_bytes(target.stat().st_size)
    print_message(f"Wrote {target} ({size}). It contains no events, keys or tokens.")


def _render_part(part: Part) -> tuple[str, str]:
    """Text and state of a part. An error becomes its text, so that the other parts are written."""
    try:
        content = part()
    except (PenstockError, OSError, ValueError, KeyError) as error:
        return f"{type(error).__name__}: {error}\n", str(error)
    text = content if isinstance(content, str) else json.dumps(content, indent=1, default=str)
    return text + "\n", "ok"


def _list_parts(service: AdminSession, data: Path, *, verify: bool) -> dict[str, Part]:
    from penstock.cli.server.config import effective_settings
    from penstock.cli.server.status import check_rows, fetch

    def page(path: str) -> Part:
        return lambda: fetch(service.admin, path, timeout_s=_PROBE_S).body.decode(errors="replace")

    parts: dict[str, Part] = {
        "version.json": _read_versions,
        "environment.json": _read_environment,
        "doctor.json": lambda: check_rows(data),
        "health.json": page("/health"),
        "ready.json": page("/ready"),
        "metrics.txt": page("/metrics"),
        "runtime.json": lambda: _read_redacted_runtime(data),
        "entities.json": lambda: _read_entities(service.client),
        "connections.json": lambda: service.client.connections(),
        "audit.json": lambda: service.client.audit(newest=500),
        "configuration.json": lambda: effective_settings(None),
        "files.json": lambda: _list_files(data),
    }
    return parts | ({"verify.json": lambda: _verify_log(data)} if verify else {})


def _read_versions() -> object:
    from importlib.metadata import distributions

    from penstock import __version__
    from penstock.kernels import KERNEL

    packages = {package.metadata["Name"]: package.version for package in distributions()}
    return {
        "penstock": __version__,
        "kernel": KERNEL,
        "python": sys.version,
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "packages": dict(sorted(packages.items())),
    }


def _read_environment() -> object:
    """The variables of Penstock; of those that may hold a secret only whether they are set."""
    return {
        name: "(set)" if _SECRET_VARIABLE.search(name) else value
        for name, value in sorted(os.environ.items())
        if name.startswith("PENSTOCK_")
    }


def _read_redacted_runtime(data: Path) -> object:
    runtime = read_runtime(data)
    if runtime is None:
        raise DataDirectoryError(f"No service runs on {data}.")
    return runtime | dict.fromkeys(_SECRET_FIELDS, _REDACTED)


def _read_entities(client: ManagementClient) -> object:
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


def _list_files(data: Path) -> object:
    """Names, sizes and modes; no content."""
    if not data.is_dir():
        raise DataDirectoryError(f"There is no data directory {data} here.")
    rows = []
    for file in sorted(file for file in data.rglob("*") if not file.is_dir())[:_FILES_MAX]:
        status = file.lstat()
        row = {"file": str(file.relative_to(data)), "size": status.st_size}
        rows.append(row | {"mode": oct(status.st_mode & 0o7777), "modified": int(status.st_mtime)})
    return rows


def _verify_log(data: Path) -> object:
    from penstock.log.embedded.verify import verify_directory

    return [msgspec.structs.asdict(item) for item in verify_directory(data / "log")]


def _find_secrets(service: AdminSession, data: Path) -> Iterator[str]:
    """Every secret of the data directory, the environment and the service."""
    for name in _SECRET_FILES:
        try:
            content = (data / name).read_bytes()[:_SECRET_BYTES_MAX].strip()
            yield content.partition(b"\n")[0].decode("ascii", "replace")  # before its checksum
        except OSError:
            continue
    for name, value in os.environ.items():
        if name.startswith("PENSTOCK_") and _SECRET_VARIABLE.search(name):
            yield value
    texts: list[object] = []
    try:
        runtime = read_runtime(data) or {}
        texts = [runtime.get("admin_token"), runtime.get("connection_string")]
        texts.append(service.admin.token)
    except PenstockError:
        pass  # no service is known, so it has no secret to remove
    for text in texts:
        if isinstance(text, str):
            yield text
            yield text.partition("SharedAccessKey=")[2].partition(";")[0]
