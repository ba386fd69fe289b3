"""Where a store finds its service: argument, environment, runtime.json, port 8443."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.checkpoints.locating import locate_service
from penstock.model.errors import ArgumentError

KEY = "SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0"
REMOTE = f"Endpoint=sb://contoso.example.net/;{KEY}"
LOCAL = f"Endpoint=sb://localhost:7777;{KEY};UseDevelopmentEmulator=true;"


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PENSTOCK_HTTPS_URL", raising=False)
    monkeypatch.setenv("PENSTOCK_DATA", str(tmp_path))


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A service that runs: its file is locked."""
    facts = {
        "amqps": "localhost:5671",
        "amqp": "localhost:7777",
        "https": "https://localhost:4444",
        "ca_file": "/data/tls/ca.pem",
    }
    file = tmp_path / "runtime.json"
    file.write_text(json.dumps(facts))
    with file.open("rb") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield facts


def test_without_anything_else_it_is_port_8443_of_the_host() -> None:
    service = locate_service(REMOTE)
    assert (service.host, service.port) == ("contoso.example.net", 8443)
    assert service.namespace_host == "contoso.example.net"
    assert service.ca_file is None
    assert service.key is not None
    assert service.key.reveal() == "c2VjcmV0"


def test_an_address_of_version_6_is_understood() -> None:
    service = locate_service(f"Endpoint=sb://[::1]:5671/;{KEY}")
    assert (service.host, service.port, service.namespace_host) == ("::1", 8443, "::1")


@pytest.mark.usefixtures("runtime")
def test_a_service_on_this_machine_is_found_with_its_certificate() -> None:
    service = locate_service(LOCAL.replace("localhost", "127.0.0.1"))
    assert (service.host, service.port, service.ca_file) == ("localhost", 4444, "/data/tls/ca.pem")


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize("text", [REMOTE, LOCAL.replace("7777", "7778")])
def test_a_service_on_this_machine_is_not_taken_for_another(text: str) -> None:
    service = locate_service(text)
    assert service.port == 8443
    assert service.ca_file is None


def test_what_a_crash_left_behind_is_passed_over(tmp_path: Path) -> None:
    facts = {"amqp": "localhost:7777", "https": "https://localhost:4444", "ca_file": "x"}
    (tmp_path / "runtime.json").write_text(json.dumps(facts))
    assert locate_service(LOCAL).port == 8443


@pytest.mark.parametrize("content", ["", "[]", "{", "{}", '{"amqp": 5}'])
def test_a_runtime_file_that_says_nothing_is_passed_over(tmp_path: Path, content: str) -> None:
    file = tmp_path / "runtime.json"
    file.write_text(content)
    with file.open("rb") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        assert locate_service(LOCAL).port == 8443


@pytest.mark.usefixtures("runtime")
def test_the_argument_wins_over_the_environment_and_that_over_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PENSTOCK_HTTPS_URL", "https://environment:1")
    assert locate_service(LOCAL).host == "environment"
    assert locate_service(LOCAL).ca_file is None  # another service's certificate
    service = locate_service(LOCAL, https_url="https://argument/", ca_file=Path("/ca.pem"))
    assert (service.host, service.port, service.ca_file) == ("argument", 443, "/ca.pem")
    assert locate_service(LOCAL, https_url="https://127.0.0.1:4444").ca_file == "/data/tls/ca.pem"


def test_a_signature_stands_for_a_key() -> None:
    signature = "SharedAccessSignature sr=x&sig=y&se=1&skn=z"
    service = locate_service(f"Endpoint=sb://host/;SharedAccessSignature={signature}")
    assert service.signature is not None
    assert service.signature.reveal() == signature
    assert service.key is None


NO_STRINGS = [
    "",
    "nonsense",
    KEY,
    "Endpoint=sb://host/",
    "Endpoint=sb://host/;SharedAccessKey=c2VjcmV0",
    f"Endpoint=sb://host:99999/;{KEY}",
    f"Endpoint=sb:///;{KEY}",
]


@pytest.mark.parametrize("text", NO_STRINGS)
def test_what_is_no_connection_string_is_refused_without_its_key(text: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        locate_service(text)
    assert "c2VjcmV0" not in str(refused.value)


@pytest.mark.parametrize("url", ["http://host:1", "host:1", "https://", "https://host:99999"])
def test_what_is_no_https_url_is_refused(url: str) -> None:
    with pytest.raises(ArgumentError):
        locate_service(REMOTE, https_url=url)


def test_no_key_is_shown() -> None:
    assert "c2VjcmV0" not in repr(locate_service(REMOTE))
