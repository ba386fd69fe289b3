"""The addresses that a running service prints, by the address that it is bound to."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from penstock.model.entities import AuthorizationRule, Right, Secret
from penstock.model.names import ROOT_RULE, NamespaceName
from penstock.service.config.settings import Settings
from penstock.service.management_context import endpoints_of
from penstock.service.runtime_description import describe_runtime

ROOT = AuthorizationRule(
    namespace=NamespaceName("penstock"),
    hub=None,
    name=ROOT_RULE,
    rights=Right.ALL,
    primary_key=Secret("k"),
    secondary_key=Secret("l"),
    created_ms=0,
    updated_ms=0,
)


@pytest.mark.parametrize(
    ("host", "public_hosts", "expected"),
    [
        ("127.0.0.1", (), "localhost"),
        ("localhost", (), "localhost"),
        ("::1", (), "localhost"),
        ("127.0.0.1", ("hub.example.net",), "localhost"),
        ("127.0.0.2", (), "127.0.0.2"),
        ("192.0.2.7", (), "192.0.2.7"),
        ("fd00::7", (), "[fd00::7]"),
        ("0.0.0.0", (), socket.gethostname()),
        ("0.0.0.0", ("hub.example.net", "other"), "hub.example.net"),
        ("::", ("fd00::7",), "[fd00::7]"),
    ],
)
def test_every_address_has_the_host_that_is_bound(
    host: str, public_hosts: tuple[str, ...], expected: str
) -> None:
    facts = describe_runtime(
        Settings(host=host, public_hosts=public_hosts),
        ROOT,
        {"amqp": 1, "amqps": 2, "https": 3, "admin": 4},
        admin_token="t",
        ca_file=Path("ca.pem"),
        portal=None,
    )
    assert (facts.amqp, facts.amqps) == (f"{expected}:1", f"{expected}:2")
    assert facts.https == f"https://{expected}:3"
    assert facts.admin.partition("://")[2] == f"{expected}:4"
    assert facts.connection_string.startswith(f"Endpoint=sb://{expected}:2/;")
    assert str(facts.emulator_connection_string).startswith(f"Endpoint=sb://{expected}:1;")
    # What listKeys of the management API returns.
    assert endpoints_of(facts, "tenant").servicebus == f"sb://{expected}:2/"


@pytest.mark.parametrize(
    ("host", "emulator", "scheme"),
    [
        ("127.0.0.1", False, "http"),
        ("0.0.0.0", False, "https"),
        ("0.0.0.0", True, "http"),
    ],
)
def test_administration_has_tls_beyond_loopback_but_for_the_emulator(
    host: str, emulator: bool, scheme: str
) -> None:
    facts = describe_runtime(
        Settings(host=host, emulator=emulator),
        ROOT,
        {"amqps": 2, "https": 3, "admin": 4},
        admin_token="t",
        ca_file=Path("ca.pem"),
        portal=None,
    )
    assert facts.admin.startswith(f"{scheme}://")
