"""TLS contexts of clients."""

from __future__ import annotations

import ssl

from penstock.model.errors import ArgumentError


def verified_tls_context(ca_file: str | None) -> ssl.SSLContext:
    """A context that trusts the authorities in `ca_file`, or without one those of the machine.
    Raises ArgumentError."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise ArgumentError(f"The ca_file {ca_file} cannot be read: {error}") from error


def unverified_tls_context() -> ssl.SSLContext:
    """A context that accepts any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
