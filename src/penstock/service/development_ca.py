"""A development CA and the server certificate it signs (X.509, EC P-256).

Imported only by a start that creates a certificate: loading `cryptography` takes longer than all
other configuration. Certificates have what strict verifiers require (RFC 5280): key identifiers on
both sides, critical constraints, alternative names.
"""

from __future__ import annotations

import datetime
import ipaddress
import socket
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock.io.files import write_file_atomically

DAY_MS = 86_400_000
CA_DAYS = 10 * 365
SERVER_DAYS = 397  # the longest that browsers and platforms accept
RENEW_DAYS = 30
_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)

Addresses = dict[str, ipaddress.IPv4Address | ipaddress.IPv6Address | None]
PrivateKey = ec.EllipticCurvePrivateKey


def make_server_certificate(
    certificate_file: Path, key_file: Path, ca_file: Path, host_names: Addresses, *, now_ms: int
) -> int:
    """Write a new key and certificate for `host_names` (None: not an address), signed by the CA in
    `ca_file`, which is created if necessary. Returns when the certificate expires, in ms."""
    authority, authority_key = _authority(ca_file, now_ms=now_ms)
    key = _new_key()
    ends_ms = min(now_ms + SERVER_DAYS * DAY_MS, _ends_ms(authority))
    name = _common_name("localhost")
    builder = _builder(key, name, authority.subject, now_ms=now_ms, ends_ms=ends_ms)
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    alternatives = [
        x509.DNSName(name) if address is None else x509.IPAddress(address)
        for name, address in host_names.items()
    ]
    certificate = (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(issuer_key, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    _write(key_file, key, certificate_file, certificate)
    return ends_ms


def _authority(file: Path, *, now_ms: int) -> tuple[x509.Certificate, PrivateKey]:
    """The existing CA, which clients trust; a new one when that cannot be used."""
    key_file = file.with_suffix(".key")
    found = _usable_authority(file, key_file, now_ms=now_ms)
    if found is not None:
        return found
    key = _new_key()
    # With the host name, a trust store can have the CAs of several machines.
    name = _common_name(f"Penstock development CA on {socket.gethostname()}"[:64])
    certificate = (
        _builder(key, name, name, now_ms=now_ms, ends_ms=now_ms + CA_DAYS * DAY_MS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage("key_cert_sign", "crl_sign"), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write(key_file, key, file, certificate)
    return certificate, key


def _usable_authority(
    file: Path, key_file: Path, *, now_ms: int
) -> tuple[x509.Certificate, PrivateKey] | None:
    try:
        certificate = x509.load_pem_x509_certificate(file.read_bytes())
        key = serialization.load_pem_private_key(key_file.read_bytes(), None)
    except (OSError, ValueError, TypeError):
        return None
    if not isinstance(key, PrivateKey) or certificate.public_key() != key.public_key():
        return None
    if now_ms >= _ends_ms(certificate) - RENEW_DAYS * DAY_MS:
        return None
    return certificate, key


def _builder(
    key: PrivateKey, name: x509.Name, issuer: x509.Name, *, now_ms: int, ends_ms: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_to_datetime(now_ms - DAY_MS))  # for clients whose clocks are behind
        .not_valid_after(_to_datetime(ends_ms))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(*allowed: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in allowed for usage in _USAGES})


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _new_key() -> PrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _write(
    key_file: Path, key: PrivateKey, certificate_file: Path, certificate: x509.Certificate
) -> None:
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    key_pem = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    write_file_atomically(key_file, key_pem, mode=0o600)
    write_file_atomically(certificate_file, certificate.public_bytes(pem), mode=0o644)


def _ends_ms(certificate: x509.Certificate) -> int:
    return int(certificate.not_valid_after_utc.timestamp()) * 1000


def _to_datetime(ms: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(ms // 1000, tz=datetime.UTC)
