"""The development certificate: made once, renewed when it must be, verified by real handshakes."""

from __future__ import annotations

import json
import socket
import ssl
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization as s
from tests.support.certificates import handshake

from penstock.model.errors import ConfigurationError, DataDirectoryError
from penstock.service.certificates import (
    Certificates,
    development_certificates,
    machine_names,
    prepare_certificates,
    server_context,
)
from penstock.service.config.settings import DEFAULT_NAMESPACE, NamespaceSettings, Settings

DAY_MS = 86_400_000
NOW_MS = 1_790_000_000_000


@pytest.fixture
def made(tmp_path: Path, now_ms: int) -> Certificates:
    return development_certificates(tmp_path / "tls", ["localhost", "127.0.0.1"], now_ms=now_ms)


@pytest.fixture(scope="session")
def now_ms() -> int:
    """Handshakes compare with the machine's clock, so the certificates here are made for it."""
    return time.time_ns() // 1_000_000


def strict_client(ca_file: Path) -> ssl.SSLContext:
    client = ssl.create_default_context(cafile=str(ca_file))
    client.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    return client


@pytest.mark.parametrize(
    "name", ["localhost", "127.0.0.1", "::1", "10.1.2.3", "events.example.com", "my-machine"]
)
def test_ca_file_verifies_every_covered_name(
    tmp_path: Path, now_ms: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "my-machine")
    namespace = NamespaceSettings(name=DEFAULT_NAMESPACE, hosts=("events.example.com",))
    settings = Settings(host="10.1.2.3", namespaces=(namespace,))
    files = prepare_certificates(tmp_path / "tls", settings, now_ms=now_ms)
    done = handshake(server_context(files), strict_client(files.ca_file), name)
    assert done.version() == "TLSv1.3"


def test_a_name_that_is_not_covered_fails_verification(made: Certificates) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(server_context(made), strict_client(made.ca_file), "elsewhere.example.com")


def test_tls_older_than_1_2_is_refused(made: Certificates) -> None:
    context = server_context(made)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_COMPRESSION
    assert context.options & ssl.OP_NO_RENEGOTIATION


def test_private_keys_are_readable_by_their_owner_alone(made: Certificates) -> None:
    keys = (made.key_file, made.ca_file.with_suffix(".key"))
    assert [stat.S_IMODE(key.stat().st_mode) for key in keys] == [0o600, 0o600]
    assert stat.S_IMODE(made.key_file.parent.stat().st_mode) == 0o700


def make(tmp_path: Path, names: list[str], day: int) -> tuple[bytes, bytes]:
    """The CA and the certificate after a start on that day."""
    files = development_certificates(tmp_path / "tls", names, now_ms=NOW_MS + day * DAY_MS)
    return files.ca_file.read_bytes(), files.certificate_file.read_bytes()


def test_a_good_certificate_is_kept(tmp_path: Path) -> None:
    first = make(tmp_path, ["localhost", "a.example"], 0)
    assert make(tmp_path, ["localhost"], 366) == first  # a name that went away stays covered


def test_certificate_is_renewed_thirty_days_early_and_the_ca_kept(tmp_path: Path) -> None:
    ca, certificate = make(tmp_path, ["localhost"], 0)
    later_ca, later = make(tmp_path, ["localhost"], 397 - 30)
    assert later_ca == ca
    assert later != certificate


def test_certificate_is_renewed_when_a_name_is_added(tmp_path: Path) -> None:
    ca, certificate = make(tmp_path, ["localhost"], 0)
    later_ca, later = make(tmp_path, ["localhost", "new.example"], 0)
    assert later_ca == ca
    assert later != certificate


def test_ca_is_made_anew_near_its_end(tmp_path: Path) -> None:
    ca, _ = make(tmp_path, ["localhost"], 0)
    assert make(tmp_path, ["localhost"], 3650 - 31)[0] == ca
    note = json.loads((tmp_path / "tls/server.json").read_text())
    assert note["not_after_ms"] <= NOW_MS + 3650 * DAY_MS  # never longer than its CA
    assert make(tmp_path, ["localhost"], 3650 - 29)[0] != ca


@pytest.mark.parametrize("file", ["server.pem", "server.key", "ca.pem", "server.json"])
def test_a_file_that_went_missing_is_made_again(tmp_path: Path, now_ms: int, file: str) -> None:
    directory = tmp_path / "tls"
    development_certificates(directory, ["localhost"], now_ms=now_ms)
    (directory / file).unlink()
    files = development_certificates(directory, ["localhost"], now_ms=now_ms)
    assert handshake(server_context(files), strict_client(files.ca_file), "localhost").version()


@pytest.mark.parametrize("file", ["ca.key", "ca.pem"])
@pytest.mark.parametrize("content", [b"", b"not PEM"])
def test_a_ca_that_cannot_be_used_is_made_anew(
    tmp_path: Path, now_ms: int, file: str, content: bytes
) -> None:
    directory = tmp_path / "tls"
    development_certificates(directory, ["localhost"], now_ms=now_ms)
    (directory / file).write_bytes(content)
    (directory / "server.json").write_text("[]")
    files = development_certificates(directory, ["localhost"], now_ms=now_ms)
    assert handshake(server_context(files), strict_client(files.ca_file), "localhost").version()


def test_names_no_certificate_can_hold_are_left_out(tmp_path: Path) -> None:
    names = ["localhost", "LocalHost.", "0.0.0.0", "::", "", "ümlaut", "a b", "*", "x" * 300]
    development_certificates(tmp_path, names, now_ms=NOW_MS)
    assert json.loads((tmp_path / "server.json").read_text())["names"] == ["localhost"]


def test_a_start_with_a_good_certificate_loads_no_x509_code(tmp_path: Path) -> None:
    development_certificates(tmp_path, ["localhost"], now_ms=NOW_MS)
    script = (
        "import sys, pathlib\n"
        "from penstock.service.certificates import development_certificates as make\n"
        f"make(pathlib.Path({str(tmp_path)!r}), ['localhost'], now_ms={NOW_MS})\n"
        "sys.exit('cryptography' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_your_own_certificate_is_taken_as_it_is(tmp_path: Path, made: Certificates) -> None:
    settings = Settings(
        tls_certificate_file=made.certificate_file, tls_key_file=made.key_file, tls_ca_file=None
    )
    files = prepare_certificates(tmp_path / "unused", settings, now_ms=NOW_MS)
    assert files.ca_file == files.certificate_file == made.certificate_file
    assert not (tmp_path / "unused").exists()
    assert server_context(files)


def test_a_certificate_that_cannot_be_used_is_one_sentence(
    tmp_path: Path, made: Certificates
) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("not PEM")
    for key in (tmp_path / "none.pem", broken, made.ca_file.with_suffix(".key")):
        files = Certificates(
            certificate_file=made.certificate_file, key_file=key, ca_file=made.ca_file
        )
        with pytest.raises(ConfigurationError) as caught:
            server_context(files)
        assert str(key) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_an_encrypted_key_is_refused_without_asking_for_a_password(
    tmp_path: Path, made: Certificates
) -> None:
    key = s.load_pem_private_key(made.key_file.read_bytes(), None)
    encrypted = tmp_path / "encrypted.pem"
    encrypted.write_bytes(
        key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.BestAvailableEncryption(b"pw"))
    )
    files = Certificates(
        certificate_file=made.certificate_file, key_file=encrypted, ca_file=made.ca_file
    )
    with pytest.raises(ConfigurationError, match="encrypted"):
        server_context(files)


def test_a_directory_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirectoryError, match="Cannot make the development certificate"):
        development_certificates(tmp_path / "file" / "tls", ["localhost"], now_ms=NOW_MS)


def test_machine_names_come_from_the_host_name_and_the_hosts_file(tmp_path: Path) -> None:
    own = socket.gethostname().lower()
    hosts = tmp_path / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n127.0.1.1 {own}.example.com {own} # {own} x\nbad\n\n")
    assert machine_names(hosts) == (own, f"{own}.example.com")
    assert machine_names(tmp_path / "none") == (own,)


@pytest.mark.parametrize("name", ["ca.pem", "ca.key"])
def test_damaged_ca_is_refused_by_name(made: Certificates, now_ms: int, name: str) -> None:
    """Clients trust this CA: it is not replaced without the operator."""
    file = made.ca_file.with_name(name)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataDirectoryError, match=f"{name} is damaged"):
        development_certificates(made.ca_file.parent, ["localhost"], now_ms=now_ms)


@pytest.mark.parametrize("name", ["server.pem", "server.key", "server.json"])
def test_damaged_certificate_is_made_again_with_a_warning(
    made: Certificates, now_ms: int, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = made.ca_file.with_name(name)
    authority = made.ca_file.read_bytes()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    files = development_certificates(made.ca_file.parent, ["localhost"], now_ms=now_ms)
    assert f"certificate made again: file={file}" in caplog.text
    assert files.ca_file.read_bytes() == authority
    handshake(server_context(files), strict_client(files.ca_file), "localhost")


def test_note_of_version_0_1_gets_checksums(made: Certificates, now_ms: int) -> None:
    note = made.certificate_file.with_suffix(".json")
    found = json.loads(note.read_text())
    note.write_text(json.dumps({name: found[name] for name in ("names", "not_after_ms")}))
    before = made.certificate_file.read_bytes()
    development_certificates(made.ca_file.parent, ["localhost"], now_ms=now_ms)
    assert made.certificate_file.read_bytes() == before
    assert json.loads(note.read_text()) == found
