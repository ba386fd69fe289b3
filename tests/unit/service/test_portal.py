"""The portal's sockets and environment, before there is a portal."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec
import pytest

from penstock.model.clock import ManualClock
from penstock.model.errors import ListenerError
from penstock.portal.settings import from_environ, hash_token
from penstock.service.admin_tokens import ServiceTokens
from penstock.service.certificates import Certificates
from penstock.service.config.settings import PORTAL_PORT, Settings
from penstock.service.data_directory import DataDirectory
from penstock.service.portal_process import PortalSignIn, PortalSockets, portal_child
from penstock.service.runtime_description import RuntimeDescription

FACTS = RuntimeDescription(
    namespace="n",
    connection_string="c",
    emulator_connection_string=None,
    amqp=None,
    amqps="localhost:1",
    https="https://localhost:2",
    admin="http://localhost:3",
    portal=None,
    admin_token="hunter2",
    ca_file="/ca.pem",
    data="/d",
    pid=1,
)
CERTIFICATES = Certificates(
    certificate_file=Path("/c.pem"), key_file=Path("/k.pem"), ca_file=Path("/ca.pem")
)


def test_port_that_somebody_chose_and_that_is_taken_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = Settings(portal_port=taken.getsockname()[1])
        with pytest.raises(ListenerError, match="in use"):
            PortalSockets(settings)


def test_default_port_that_is_taken_gives_way_to_any_free_one() -> None:
    first = PortalSockets(Settings())  # takes the default port, unless somebody has it already
    second = PortalSockets(Settings())
    try:
        assert second.port != PORTAL_PORT
        assert str(PORTAL_PORT) in second.note
        assert second.url == f"http://localhost:{second.port}"
    finally:
        first.close()
        second.close()


def test_token_goes_by_a_file_and_our_own_variables_do_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PENSTOCK_ROOT_KEY", "a-key")
    data = DataDirectory(tmp_path)
    sockets = PortalSockets(Settings(portal_port=0))
    try:
        child = portal_child(Settings(), FACTS, sockets, CERTIFICATES, data, ManualClock())
        beyond = msgspec.structs.replace(Settings(), host="0.0.0.0")
        outside = portal_child(beyond, FACTS, sockets, CERTIFICATES, data, ManualClock())
    finally:
        sockets.close()
    assert "hunter2" not in " ".join([*child.command, *child.environ.values()])
    settings = from_environ(child.environ)
    assert settings.token_file == str(tmp_path / "portal.token")
    assert settings.admin_token_hash == hash_token("hunter2")
    assert settings.secret == DataDirectory(tmp_path).portal_secret()
    assert settings.sockets == tuple(child.pass_fds)
    assert "PENSTOCK_ROOT_KEY" not in child.environ
    assert settings.key_file is None
    assert from_environ(outside.environ).key_file == "/k.pem"
    assert "hunter2" not in repr(child)


def test_token_of_a_process_signs_nobody_in(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path)
    tokens = ServiceTokens(data, ManualClock())
    sign_in = PortalSignIn("http://localhost:1", data, tokens.verify)

    def holder(role: str) -> object:
        token = tokens.issue(subject="anna", role=role, lifetime_s=3600).token
        return sign_in.token_holder(token)

    assert holder("Reader") == ("anna", ("Reader",))
    assert holder("Capture") is None
    assert holder("Portal") is None
    assert sign_in.token_holder("nonsense") is None
