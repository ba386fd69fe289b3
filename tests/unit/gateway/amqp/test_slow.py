"""Attaches and management calls that take long stand in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.model import slow_operations

if TYPE_CHECKING:
    from tests.unit.gateway.amqp.conftest import Peer, World


def test_attach_and_management_are_told_when_they_are_slow(
    world: World,
    peer: Peer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peer.sender("eh1")
    assert not caplog.messages
    monkeypatch.setattr(slow_operations, "threshold_ms", 0)
    peer.sender("eh1")
    assert [m for m in caplog.messages if m.startswith("slow operation: what=attach ms=0 peer=")]
    asked = {"operation": "READ", "type": "com.microsoft:eventhub", "name": "eh1"}
    assert peer.request("$management", asked | {"security_token": world.token("eh1")}).status == 200
    line = "slow operation: what=management ms=0 endpoint=amqp"
    assert any(m.startswith(line) for m in caplog.messages)
