"""A publication that waits long for the disk stands in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.model import limits
from penstock.model.errors import PenstockError
from penstock.model.events import EventBatch, Receipt

if TYPE_CHECKING:
    from tests.unit.broker.conftest import World


def publish(world: World, waits_ms: int) -> Receipt | PenstockError:
    outcomes: list[Receipt | PenstockError] = []
    batch = EventBatch(sections=b"\x00\x53\x75\xa0\x01x", count=1)
    world.hub.publish(batch, size_bytes=100, partition=0, done=outcomes.append)
    world.clock.advance(waits_ms)
    world.turn()
    return outcomes[0]


def test_slow_commit_is_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(publish(world, limits.SLOW_OPERATION_MS - 1), Receipt)
    assert not caplog.messages
    assert isinstance(publish(world, limits.SLOW_OPERATION_MS), Receipt)
    (told,) = caplog.messages
    assert told.startswith("slow operation: what=commit ms=1000 namespace=")
    assert told.endswith(" events=1 bytes=100")
