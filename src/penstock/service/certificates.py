"""TLS certificates: your own by configuration, or a development CA and certificate made here.

DIR/tls/ca.pem        what clients trust; ten years            ca.key      0600
DIR/tls/server.pem    397 days, renewed thirty days early      server.key  0600
DIR/tls/server.json   the names it covers and when it ends, so that a start with a good
                      certificate loads no X.509 code
"""

from __future__ import annotations

import ipaddress
import json
import re
import socket
import ssl
from collections.abc import Iterable
from pathlib import Path

import msgspec

from penstock.model import limits
from penstock.model.errors import ConfigurationError, DataDirectoryError
from penstock.service.data_directory import write_whole
from penstock.service.settings import Settings

RENEW_DAYS = 30
ALWAYS_COVERED = ("localhost", "127.0.0.1", "::1")

_DAY_MS = 86_400_000
_NAMES_MAX = 200  # a certificate must fit into a handshake
_HOST_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9])?")
_HOSTS_BYTES_MAX = 64 * limits.KB


class Certificates(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one server certificate; `ca_file` is what clients verify it with."""

    certificate_file: Path
    key_file: Path
    ca_file: Path


def prepare_certificates(
    directory: Path, settings: Settings, *, host_names: Iterable[str] = (), now_ms: int
) -> Certificates:
    """The configured certificate, or the development one in `directory`, made or renewed if need
    be, for loopback, `host_names`, the bound address and every namespace's hosts."""
    if settings.tls_certificate_file is not None and settings.tls_key_file is not None:
        return Certificates(
            certificate_file=settings.tls_certificate_file,
            key_file=settings.tls_key_file,
            # Told to clients, whose current directory is another.
            ca_file=(settings.tls_ca_file or settings.tls_certificate_file).absolute(),
        )
    hosts = [host for namespace in settings.namespaces for host in namespace.hosts]
    wanted = [*ALWAYS_COVERED, settings.host, *hosts, *host_names, *machine_names()]
    return development_certificates(directory, wanted, now_ms=now_ms)


def development_certificates(
    directory: Path, host_names: Iterable[str], *, now_ms: int
) -> Certificates:
    files = Certificates(
        certificate_file=directory / "server.pem",
        key_file=directory / "server.key",
        ca_file=directory / "ca.pem",
    )
    wanted = _coverable(host_names)
    try:
        if not _is_good(files, wanted, now_ms=now_ms):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make(files, wanted, now_ms=now_ms)
    except OSError as error:
        raise DataDirectoryError(
            f"Cannot make the development certificate in {directory} ({error.strerror or error})."
        ) from error
    return files


def server_context(certificates: Certificates) -> ssl.SSLContext:
    """TLS 1.2 or newer, without compression and renegotiation."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    files = f"{certificates.certificate_file} with the key {certificates.key_file}"
    try:
        # An encrypted key must fail here, not ask for its password on a terminal.
        context.load_cert_chain(certificates.certificate_file, certificates.key_file, password="")
    except ssl.SSLError as error:
        reason = error.reason or "not PEM, or encrypted"
        raise ConfigurationError(f"Cannot use the certificate {files} ({reason}).") from error
    except OSError as error:
        raise ConfigurationError(
            f"Cannot read the certificate {files} ({error.strerror})."
        ) from error
    return context


def machine_names(hosts_file: Path = Path("/etc/hosts")) -> tuple[str, ...]:
    """What this machine calls itself: its host name, and what its own hosts file says of that.
    Asks no name server, which could keep a start waiting for seconds."""
    own = socket.gethostname().lower()
    found = [own]
    try:
        with hosts_file.open("rb") as opened:
            text = opened.read(_HOSTS_BYTES_MAX).decode(errors="replace")
    except OSError:
        text = ""
    for line in text.lower().splitlines():
        known = line.partition("#")[0].split()[1:]
        if own in known:
            found += known
    return tuple(dict.fromkeys(name for name in found if name))


def _coverable(host_names: Iterable[str]) -> list[str]:
    """In their given order, without what a certificate cannot hold: wildcards, zones, blanks."""
    names = dict.fromkeys(name.strip().lower().rstrip(".") for name in host_names)
    kept = [name for name in names if _address(name) or _is_host_name(name)]
    return kept[:_NAMES_MAX]


def _is_host_name(name: str) -> bool:
    if len(name) > limits.HOST_NAME_MAX or _HOST_NAME.fullmatch(name) is None:
        return False
    return not name.rpartition(".")[2].isdigit()  # no top-level domain is a number: an address


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """A concrete address: the unspecified one (0.0.0.0, ::) is bound to, never connected to."""
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return None
    return None if address.is_unspecified else address


def _is_good(files: Certificates, wanted: list[str], *, now_ms: int) -> bool:
    """By the note beside the certificate. Names that went away stay covered until renewal."""
    if not all(f.is_file() for f in (files.certificate_file, files.key_file, files.ca_file)):
        return False
    try:
        note = json.loads(_note(files).read_text())
        ends_ms, covered = int(note["not_after_ms"]), set(note["names"])
    except (OSError, ValueError, TypeError, KeyError):
        return False
    return now_ms < ends_ms - RENEW_DAYS * _DAY_MS and covered.issuperset(wanted)


def _note(files: Certificates) -> Path:
    return files.certificate_file.with_suffix(".json")


def _make(files: Certificates, wanted: list[str], *, now_ms: int) -> None:
    """The note goes first and comes last: a crash between leaves no note, and all is made again."""
    from penstock.service import development_ca  # late: see there

    note = _note(files)
    note.unlink(missing_ok=True)
    ends_ms = development_ca.make_server_certificate(
        files.certificate_file,
        files.key_file,
        files.ca_file,
        {name: _address(name) for name in wanted},
        now_ms=now_ms,
    )
    content = json.dumps({"names": wanted, "not_after_ms": ends_ms})
    write_whole(note, content.encode(), mode=0o644)
