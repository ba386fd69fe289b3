"""Certificates that are replaced while the service runs: new handshakes get the new one, a broken
pair keeps the old one."""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path

import pytest
from tests.support.certificates import handshake

from penstock.model.errors import ConfigurationError
from penstock.service.certificates import (
    Certificates,
    ReloadableCertificate,
    development_certificates,
    read_validity,
)
from penstock.service.readiness import State, judge_certificate

DAY_MS = 86_400_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def make_pair(directory: Path, *, at_ms: int | None = None) -> Certificates:
    """A certificate and key of their own; valid for 397 days from `at_ms`."""
    made = development_certificates(directory, ["localhost"], now_ms=at_ms or now_ms())
    return Certificates(
        certificate_file=made.certificate_file,
        key_file=made.key_file,
        ca_file=made.ca_file,
        is_own=True,
    )


def install(pair: Certificates, target: Certificates) -> None:
    for source, file in (
        (pair.certificate_file, target.certificate_file),
        (pair.key_file, target.key_file),
    ):
        fresh = file.with_suffix(".new")
        fresh.write_bytes(source.read_bytes())
        fresh.replace(file)


def served_certificate(server: ssl.SSLContext, *, name: str | None = "localhost") -> bytes:
    """What a client is shown, in memory; DER."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    shown = handshake(server, client, name).getpeercert(binary_form=True)
    assert shown is not None
    return shown


def der(pair: Certificates) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pair.certificate_file.read_text())


@pytest.fixture
def installed(tmp_path: Path) -> Certificates:
    return make_pair(tmp_path / "installed")


@pytest.fixture
def certificate(installed: Certificates) -> ReloadableCertificate:
    return ReloadableCertificate(lambda now_ms: installed, now_ms)


@pytest.mark.parametrize("name", ["localhost", None])
async def test_new_files_are_used_by_the_next_handshake(
    tmp_path: Path, installed: Certificates, certificate: ReloadableCertificate, name: str | None
) -> None:
    """Also of a client that sends no server name."""
    listener = certificate.context
    old = der(installed)
    assert await certificate.reload() is None
    assert served_certificate(listener, name=name) == old
    new = make_pair(tmp_path / "new", at_ms=now_ms() - 100 * DAY_MS)
    install(new, installed)
    assert await certificate.reload() is None
    assert served_certificate(listener, name=name) == der(new) != old
    assert certificate.validity.not_after_ms == read_validity(new).not_after_ms


async def test_broken_pair_keeps_the_old_certificate_and_warns_once(
    tmp_path: Path,
    installed: Certificates,
    certificate: ReloadableCertificate,
    caplog: pytest.LogCaptureFixture,
) -> None:
    old = der(installed)
    other = make_pair(tmp_path / "other")
    installed.key_file.write_bytes(other.key_file.read_bytes())  # of another certificate
    for _ in range(3):
        problem = await certificate.reload()
        assert problem is not None
        assert "still in use" in problem
        assert served_certificate(certificate.context) == old
    assert caplog.text.count("certificate_reload_failed") == 1
    installed.certificate_file.write_bytes(other.certificate_file.read_bytes())
    assert await certificate.reload() is None
    assert served_certificate(certificate.context) == der(other)


async def test_file_that_is_gone_keeps_the_old_certificate(
    installed: Certificates, certificate: ReloadableCertificate
) -> None:
    old = der(installed)
    installed.certificate_file.unlink()
    problem = await certificate.reload()
    assert problem is not None
    assert served_certificate(certificate.context) == old


async def test_development_certificate_is_renewed_without_a_restart(tmp_path: Path) -> None:
    clock_ms = [now_ms() - 380 * DAY_MS]

    def prepare(now_ms: int) -> Certificates:
        return development_certificates(tmp_path, ["localhost"], now_ms=clock_ms[0])

    certificate = ReloadableCertificate(prepare, lambda: clock_ms[0])
    first = served_certificate(certificate.context)
    assert await certificate.reload() is None
    assert served_certificate(certificate.context) == first
    clock_ms[0] = now_ms()
    assert await certificate.reload() is None
    assert served_certificate(certificate.context) != first
    assert judge_certificate(certificate.validity, now_ms=now_ms()).state is State.OK


def test_files_that_cannot_be_used_are_refused_at_the_start(installed: Certificates) -> None:
    installed.key_file.unlink()
    with pytest.raises(ConfigurationError, match="Cannot read the certificate"):
        ReloadableCertificate(lambda now_ms: installed, now_ms)


def test_validity_of_a_chain_is_what_all_its_certificates_share(tmp_path: Path) -> None:
    long, short = make_pair(tmp_path / "a"), make_pair(tmp_path / "b", at_ms=now_ms() - 90 * DAY_MS)
    whole = long.certificate_file.read_text() + short.certificate_file.read_text()
    long.certificate_file.write_text(whole)
    assert read_validity(long).not_after_ms == read_validity(short).not_after_ms


def test_file_that_is_no_certificate_is_named(tmp_path: Path, installed: Certificates) -> None:
    installed.certificate_file.write_text("nonsense")
    with pytest.raises(ConfigurationError, match=r"server\.pem"):
        read_validity(installed)


async def test_listener_shows_the_new_certificate_to_real_clients(
    tmp_path: Path, installed: Certificates, certificate: ReloadableCertificate
) -> None:
    """Over a socket, as the AMQPS and HTTPS listeners serve it."""
    served = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=certificate.context)
    new = make_pair(tmp_path / "new")
    install(new, installed)
    assert await certificate.reload() is None
    client = ssl.create_default_context(cafile=str(new.ca_file))
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(30):
        _, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=client, server_hostname="localhost"
        )
        await served.wait()
    assert writer.get_extra_info("ssl_object").getpeercert(binary_form=True) == der(new)
    writer.close()
    server.close()
