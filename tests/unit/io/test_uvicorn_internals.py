"""What Penstock overrides and reads of uvicorn, which promises none of it (docs/decisions.md).

pyproject.toml bounds uvicorn's version. Whoever raises the bound reads this list: an attribute that
is gone, or that another method sets, needs a look at the protocol classes named here.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

ROOT = Path(__file__).resolve().parents[3]

# io/http_protocol.py, gateway/http/server.py, gateway/http/websocket_protocol.py, portal/server.py
METHODS: dict[type, str] = {
    HttpToolsProtocol: "connection_made data_received connection_lost pause_writing resume_writing"
    " on_message_begin on_header on_headers_complete on_message_complete on_response_complete"
    " send_400_response shutdown _should_upgrade _start_asgi_task",
    WebSocketsSansIOProtocol: "data_received connection_lost resume_writing run_asgi receive"
    " handle_cont handle_text handle_ping handle_close send_receive_event_to_app shutdown",
}
ATTRIBUTES: dict[type, str] = {
    HttpToolsProtocol: "app_state loop connections scope headers parser pipeline cycle transport",
    RequestResponseCycle: "response_started response_complete keep_alive disconnected"
    " message_event",
    ServerState: "connections tasks",
    WebSocketsSansIOProtocol: "app_state loop transport close_timeout queue read_paused close_sent"
    " frames curr_msg_data_type conn writable",
}


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner, names in METHODS.items() for name in names.split()]
)
def test_method_exists(owner: type, name: str) -> None:
    assert callable(getattr(owner, name))


@pytest.mark.parametrize(
    ("owner", "name"),
    [(owner, name) for owner, names in ATTRIBUTES.items() for name in names.split()],
)
def test_attribute_is_set_by_the_constructor(owner: type, name: str) -> None:
    constructor = owner.__init__  # type: ignore[misc]  # of that class itself
    assert name in constructor.__code__.co_names


def test_portal_finds_the_answer_for_too_many_connections() -> None:
    assert callable(service_unavailable)


def test_version_has_an_upper_bound() -> None:
    dependencies = (ROOT / "pyproject.toml").read_text()
    assert re.search(r'"uvicorn>=[\d.]+,<[\d.]+"', dependencies)
