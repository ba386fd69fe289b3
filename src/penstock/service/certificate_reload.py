"""A certificate that is replaced while the service runs: the listeners keep their TLS context, and
every new handshake uses the newest certificate that could be loaded."""

from __future__ import annotations

import contextlib
import datetime
import logging
import ssl
from collections.abc import Callable

from penstock.model.errors import PenstockError
from penstock.service.certificates import (
    RENEW_DAYS,
    Certificates,
    CertificateValidity,
    read_validity,
    server_context,
)

INTERVAL_S = 10.0

_DAY_MS = 86_400_000
_log = logging.getLogger("penstock.tls")
_Fingerprint = tuple[tuple[int, int, int], ...]


class ReloadableCertificate:
    """The certificate of the TLS listeners. Used on the event loop's thread."""

    def __init__(self, prepare: Callable[[], Certificates], now_ms: Callable[[], int]) -> None:
        """`prepare` returns the files, and renews a development certificate that expires soon.
        Raises ConfigurationError, DataDirectoryError."""
        self._prepare = prepare
        self._now_ms = now_ms
        self.files = prepare()
        self._refused: _Fingerprint | None = None  # files that could not be loaded
        self._fingerprint: _Fingerprint = ()
        with contextlib.suppress(OSError):  # the next line says what is wrong
            self._fingerprint = _read_fingerprint(self.files)
        self._current = server_context(self.files)
        self.validity: CertificateValidity = read_validity(self.files)
        # Listeners hold this one for good. A handshake switches to the newest one before the
        # certificate is sent, also for clients that send no server name.
        self.context = self._current
        self.context.sni_callback = self._select

    async def reload(self) -> str | None:
        """One pass: load the files if they changed; return why they could not be loaded. The old
        certificate stays in use then."""
        try:
            if not self.files.is_own and self._expires_soon():
                self.files = self._prepare()
            fingerprint = _read_fingerprint(self.files)
        except (OSError, PenstockError) as error:
            return f"the certificate cannot be read: {error}; the one before is still in use"
        if fingerprint == self._fingerprint:
            return None
        try:
            context, validity = server_context(self.files), read_validity(self.files)
        except PenstockError as error:
            if fingerprint != self._refused:
                _log.warning(
                    "certificate_reload_failed file=%s error=%s", self.files.certificate_file, error
                )
            self._refused = fingerprint
            return f"{error} The certificate before is still in use."
        self._current, self.validity = context, validity
        self._fingerprint, self._refused = fingerprint, None
        until = datetime.datetime.fromtimestamp(validity.not_after_ms / 1000, tz=datetime.UTC)
        _log.info(
            "certificate_reloaded file=%s expires=%s",
            validity.file,
            until.isoformat("T", "seconds"),
        )
        return None

    def _expires_soon(self) -> bool:
        return self._now_ms() >= self.validity.not_after_ms - RENEW_DAYS * _DAY_MS

    def _select(
        self, handshake: ssl.SSLSocket | ssl.SSLObject, name: str, context: ssl.SSLContext
    ) -> None:
        handshake.context = self._current


def _read_fingerprint(files: Certificates) -> _Fingerprint:
    """Changes whenever one of the files is replaced or written. Raises OSError."""
    found = (each.stat() for each in (files.certificate_file, files.key_file))
    return tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in found)
