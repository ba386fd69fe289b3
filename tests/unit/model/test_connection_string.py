"""Connection strings: parts, ports, and errors that never quote a key."""

from __future__ import annotations

import pytest

from penstock.model.connection_string import parse_connection_string
from penstock.model.errors import ArgumentError

KEY = "SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0"


@pytest.mark.parametrize(
    ("endpoint", "host", "port"),
    [
        ("sb://contoso.example.net/", "contoso.example.net", 5671),
        ("sb://contoso.example.net:7777", "contoso.example.net", 7777),
        ("sb://[::1]/", "::1", 5671),
        ("sb://[::1]:7777/", "::1", 7777),
        ("contoso.example.net", "contoso.example.net", 5671),
    ],
)
def test_endpoint_is_host_and_port(endpoint: str, host: str, port: int) -> None:
    parsed = parse_connection_string(f"Endpoint={endpoint};{KEY}")
    assert (parsed.host, parsed.port, parsed.tls) == (host, port, True)


def test_parts_are_read_in_any_case_and_order() -> None:
    parsed = parse_connection_string(
        "entitypath=hub; SHAREDACCESSKEY=a=b==;sharedaccesskeyname=root;endpoint=sb://host/;"
    )
    assert (parsed.hub, parsed.key_name) == ("hub", "root")
    assert parsed.key is not None
    assert parsed.key.reveal() == "a=b=="


def test_emulator_mode_is_without_tls() -> None:
    parsed = parse_connection_string(f"Endpoint=sb://host;{KEY};UseDevelopmentEmulator=true")
    assert (parsed.port, parsed.tls) == (5672, False)


def test_signature_replaces_a_key() -> None:
    signature = "SharedAccessSignature sr=x&sig=y&se=1&skn=z"
    parsed = parse_connection_string(f"Endpoint=sb://host/;SharedAccessSignature={signature}")
    assert parsed.signature is not None
    assert parsed.signature.reveal() == signature
    assert parsed.key is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        KEY,
        "Endpoint=sb://host/",
        "Endpoint=sb://host/;SharedAccessKey=c2VjcmV0",
        f"Endpoint=sb://host:99999/;{KEY}",
        f"Endpoint=sb://:5671/;{KEY}",
        f"Endpoint=sb:///;{KEY}",
        f"Endpoint=sb://;{KEY}",
        f"Endpoint=sb://host/;{KEY};Unknown=1",
    ],
)
def test_invalid_text_is_refused_without_quoting_the_key(text: str) -> None:
    with pytest.raises(ArgumentError) as refusal:
        parse_connection_string(text)
    assert "c2VjcmV0" not in str(refusal.value)


def test_unknown_parts_can_be_ignored() -> None:
    text = f"Endpoint=sb://host/;{KEY};TransportType=AmqpWebSockets"
    assert parse_connection_string(text, ignore_unknown=True).host == "host"
