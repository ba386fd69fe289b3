"""TLS certificates: the configured one, or a development CA and certificate; loaded again when the
files change.

DIR/tls/ca.pem        the CA for clients; ten years            ca.key      0600
DIR/tls/server.pem    397 days, renewed thirty days early      server.key  0600
DIR/tls/server.json   the names it covers and when it ends, so that a start with a good
                      certificate loads no X.509 code; and checksums of the four files
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import re
import socket
import ssl
import zlib
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import msgspec

from penstock.io.files import write_file_atomically
from penstock.model import limits
from penstock.model.errors import ConfigurationError, DataDirectoryError, PenstockError
from penstock.model.host_names import parse_address
from penstock.service.config.settings import Settings

_logger = logging.getLogger("penstock.tls")

RELOAD_INTERVAL_S = 10.0
RENEW_DAYS = 30
EXPIRY_WARNING_DAYS = 30
ALWAYS_COVERED = ("localhost", "127.0.0.1", "::1")

_DAY_MS = 86_400_000
_NAMES_MAX = 200  # a certificate must fit into a handshake
_HOST_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9])?")
_HOSTS_BYTES_MAX = 64 * limits.KB
_Fingerprint = tuple[tuple[int, int, int], ...]  # inode, time and size of each file


class Certificates(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one server certificate; `ca_file` is what clients verify it with."""

    certificate_file: Path
    key_file: Path
    ca_file: Path
    is_own: bool = False  # configured, not a development certificate

    @property
    def note_file(self) -> Path:
        """`server.json` of a development certificate."""
        return self.certificate_file.with_suffix(".json")

    @property
    def ca_key_file(self) -> Path:
        """Of a development CA."""
        return self.ca_file.with_suffix(".key")


class CertificateValidity(msgspec.Struct, frozen=True, kw_only=True):
    """From when to when a certificate file is valid: what all its certificates have in common."""

    file: Path
    not_before_ms: int
    not_after_ms: int
    is_own: bool  # configured, not a development certificate


def read_validity(certificates: Certificates) -> CertificateValidity:
    """Raises ConfigurationError when the file cannot be read."""
    file = certificates.certificate_file
    if certificates.is_own:
        return _read_pem_validity(file)
    try:  # without X.509 code, which is slow to load
        not_after_ms = int(json.loads(certificates.note_file.read_text())["not_after_ms"])
    except (OSError, ValueError, TypeError, KeyError):
        return msgspec.structs.replace(_read_pem_validity(file), is_own=False)
    return CertificateValidity(file=file, not_before_ms=0, not_after_ms=not_after_ms, is_own=False)


def _read_pem_validity(file: Path) -> CertificateValidity:
    from cryptography import x509  # late: only for certificates that were not created here

    try:
        chain = x509.load_pem_x509_certificates(file.read_bytes())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"Cannot read the certificate {file} ({reason}).") from error
    return CertificateValidity(
        file=file,
        not_before_ms=max(int(each.not_valid_before_utc.timestamp() * 1000) for each in chain),
        not_after_ms=min(int(each.not_valid_after_utc.timestamp() * 1000) for each in chain),
        is_own=True,
    )


def configured_certificates(settings: Settings) -> Certificates | None:
    """The certificate that the configuration names; None: a development certificate is used."""
    if settings.tls_certificate_file is None or settings.tls_key_file is None:
        return None
    return Certificates(
        certificate_file=settings.tls_certificate_file,
        key_file=settings.tls_key_file,
        # Given to clients, whose current directory is another.
        ca_file=(settings.tls_ca_file or settings.tls_certificate_file).absolute(),
        is_own=True,
    )


def prepare_certificates(directory: Path, settings: Settings, *, now_ms: int) -> Certificates:
    """The configured certificate, or the development one in `directory`, created or renewed if
    necessary, for loopback, the machine's names, the bound address, public hosts and the hosts of
    every namespace. Raises DataDirectoryError."""
    own = configured_certificates(settings)
    if own is not None:
        return own
    hosts = [host for namespace in settings.namespaces for host in namespace.hosts]
    configured = (settings.host, *settings.public_hosts, *hosts)
    wanted = (*ALWAYS_COVERED, *configured, *machine_names())
    return development_certificates(directory, wanted, now_ms=now_ms)


def development_files(directory: Path) -> Certificates:
    return Certificates(
        certificate_file=directory / "server.pem",
        key_file=directory / "server.key",
        ca_file=directory / "ca.pem",
    )


def development_certificates(
    directory: Path, host_names: Iterable[str], *, now_ms: int
) -> Certificates:
    files = development_files(directory)
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
    """The host name of this machine, and its aliases in the hosts file. No name server is asked,
    since that could delay the start by seconds."""
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
    """The names that a certificate can have, in order: no wildcards, zones or blanks."""
    names = dict.fromkeys(name.strip().lower().rstrip(".") for name in host_names)
    return [name for name in names if _address(name) or _is_host_name(name)][:_NAMES_MAX]


def _is_host_name(name: str) -> bool:
    if len(name) > limits.HOST_NAME_MAX or _HOST_NAME.fullmatch(name) is None:
        return False
    return not name.rpartition(".")[2].isdigit()  # no top-level domain is a number: an address


def _address(name: str) -> IPv4Address | IPv6Address | None:
    """None also for an unspecified address (0.0.0.0, ::): no client connects to it."""
    address = parse_address(name)
    return None if address is None or address.is_unspecified else address


class _Note(msgspec.Struct):
    """`server.json`. Version 0.1 wrote no checksums."""

    names: list[str]
    not_after_ms: int
    sums: dict[str, int] | None = None  # CRC-32 of the four files by name
    note_sum: int = 0  # CRC-32 of the fields above

    def sum_up(self) -> int:
        content = [self.names, self.not_after_ms, sorted((self.sums or {}).items())]
        return zlib.crc32(msgspec.json.encode(content))


def _is_good(files: Certificates, wanted: list[str], *, now_ms: int) -> bool:
    """Whether the certificate can be used, by `server.json`. Names that are no longer needed stay
    covered until renewal. Raises DataDirectoryError for a damaged CA: every client would have to
    trust a new one."""
    if not all(f.is_file() for f in (files.certificate_file, files.key_file, files.ca_file)):
        return False
    file = files.note_file
    try:
        note = msgspec.json.decode(file.read_bytes(), type=_Note)
    except FileNotFoundError:
        return False
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        _logger.warning("certificate made again: file=%s reason=%s", file, error)
        return False
    if note.sums is None:
        _write_note(files, note.names, note.not_after_ms)
    elif note.note_sum != note.sum_up():
        _logger.warning("certificate made again: file=%s reason=checksum", file)
        return False
    elif not _are_whole(files, note.sums):
        return False
    is_current = now_ms < note.not_after_ms - RENEW_DAYS * _DAY_MS
    return is_current and set(note.names).issuperset(wanted)


def _are_whole(files: Certificates, sums: dict[str, int]) -> bool:
    note, found = files.note_file, _sums(files)
    for file in (files.ca_file, files.ca_key_file):
        if found.get(file.name) != sums.get(file.name):
            raise DataDirectoryError(
                f"{file} is damaged: it does not match its checksum in {note}. Restore it "
                f"from a backup; if you replaced it yourself, remove {note.name}; or "
                f"remove the directory {file.parent} for a new CA, which clients must then trust."
            )
    for file in (files.certificate_file, files.key_file):
        if found.get(file.name) != sums.get(file.name):
            _logger.warning("certificate made again: file=%s reason=checksum", file)
            return False
    return True


def _sums(files: Certificates) -> dict[str, int]:
    parts = (files.ca_file, files.ca_key_file, files.certificate_file, files.key_file)
    return {file.name: zlib.crc32(file.read_bytes()) for file in parts if file.is_file()}


def _write_note(files: Certificates, names: list[str], not_after_ms: int) -> None:
    note = _Note(names, not_after_ms, _sums(files))
    note.note_sum = note.sum_up()
    write_file_atomically(files.note_file, msgspec.json.encode(note), mode=0o644)


def _make(files: Certificates, wanted: list[str], *, now_ms: int) -> None:
    """Remove `server.json` first and write it last: after a crash in between it is missing, and the
    certificate is created again."""
    from penstock.service import development_ca  # late: see there

    files.note_file.unlink(missing_ok=True)
    ends_ms = development_ca.make_server_certificate(
        *(files.certificate_file, files.key_file, files.ca_file),
        {name: _address(name) for name in wanted},
        now_ms=now_ms,
    )
    _write_note(files, wanted, ends_ms)


class ReloadableCertificate:
    """The certificate of the TLS listeners. Used on the event loop's thread."""

    def __init__(self, prepare: Callable[..., Certificates], now_ms: Callable[[], int]) -> None:
        """`prepare(now_ms=...)` returns the files, and renews a development certificate that
        expires soon. Raises ConfigurationError, DataDirectoryError."""
        self._prepare = prepare
        self._now_ms = now_ms
        self.files = prepare(now_ms=now_ms())
        self._refused: _Fingerprint | None = None  # files that could not be loaded
        self._fingerprint: _Fingerprint = ()
        with contextlib.suppress(OSError):  # the next line says what is wrong
            self._fingerprint = _read_fingerprint(self.files)
        self._current = server_context(self.files)
        self.validity: CertificateValidity = read_validity(self.files)
        # Listeners keep this context. A handshake switches to the newest one before the
        # certificate is sent, also for clients that send no server name.
        self.context = self._current
        self.context.sni_callback = self._select

    async def reload(self) -> str | None:
        """One pass: load the files if they changed; return why they could not be loaded. The old
        certificate stays in use then."""
        try:
            now_ms = self._now_ms()
            expires_soon = now_ms >= self.validity.not_after_ms - RENEW_DAYS * _DAY_MS
            if not self.files.is_own and expires_soon:
                self.files = self._prepare(now_ms=now_ms)
            fingerprint = _read_fingerprint(self.files)
        except (OSError, PenstockError) as error:
            return f"the certificate cannot be read: {error}; the one before is still in use"
        if fingerprint == self._fingerprint:
            return None
        try:
            context, validity = server_context(self.files), read_validity(self.files)
        except PenstockError as error:
            if fingerprint != self._refused:
                _logger.warning(
                    "certificate_reload_failed file=%s error=%s", self.files.certificate_file, error
                )
            self._refused = fingerprint
            return f"{error} The certificate before is still in use."
        self._current, self.validity = context, validity
        self._fingerprint, self._refused = fingerprint, None
        until = datetime.datetime.fromtimestamp(validity.not_after_ms / 1000, tz=datetime.UTC)
        expires = until.isoformat("T", "seconds")
        _logger.info("certificate_reloaded file=%s expires=%s", validity.file, expires)
        return None

    def _select(
        self, handshake: ssl.SSLSocket | ssl.SSLObject, name: str, context: ssl.SSLContext
    ) -> None:
        handshake.context = self._current


def _read_fingerprint(files: Certificates) -> _Fingerprint:
    """Changes whenever one of the files is replaced or written. Raises OSError."""
    found = (each.stat() for each in (files.certificate_file, files.key_file))
    return tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in found)
