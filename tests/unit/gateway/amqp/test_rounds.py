"""After a commit round: acknowledgements before deliveries, and no gateway code below the log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.amqp_frames import read_frames
from tests.unit.gateway.amqp.conftest import World

from penstock.amqp.link import Link
from penstock.amqp.performatives import Disposition, Transfer
from penstock.log.embedded.store import EmbeddedLogStore

if TYPE_CHECKING:
    from tests.unit.gateway.amqp.conftest import Peer

DEADLINE_S = 60.0


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[World]:
    """The world with the embedded log: its committer runs on a thread of its own."""
    world = World(lambda wake: EmbeddedLogStore(tmp_path, wake=wake))
    yield world
    world.logs.close()
    world.loop.settle()


@pytest.fixture(params=["memory", "embedded"])
def any_world(request: pytest.FixtureRequest) -> World:
    name = "world" if request.param == "memory" else "embedded"
    world: World = request.getfixturevalue(name)
    return world


class Pair:
    """A publisher and an idle reader of the same partition, on connections of their own. `writes`
    has the performatives of both in the order in which the gateway wrote them."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        self.reader = world.peer().authorised()
        self.received = self.reader.receiver(0, credit=1000)
        self.publisher = world.peer().authorised()
        self.sender = self.publisher.sender("eh1/Partitions/0")
        self.writes: list[type] = []
        for peer in (self.reader, self.publisher):
            self._record(peer, monkeypatch)

    def _record(self, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
        write = peer.socket.write

        def recorded(data: bytes) -> None:
            self.writes += [type(sent.body) for sent in read_frames(data)]
            write(data)

        monkeypatch.setattr(peer.socket, "write", recorded)

    def publish(self, count: int) -> None:
        """All in one read, then until the reader has them."""
        send_all(self.world, self.sender, count)
        self.publisher.connection.data_received(self.publisher.engine.bytes_to_send(now_ms=0))
        give_up_s = time.monotonic() + DEADLINE_S
        while Transfer not in self.writes or Disposition not in self.writes:
            assert time.monotonic() < give_up_s
            self.world.loop.step()


def send_all(world: World, sender: Link, count: int) -> None:
    for number in range(count):
        assert sender.send(world.event(b"%d" % number), settled=False) is not None


@pytest.mark.parametrize("count", [1, 50])
def test_acknowledgement_is_written_before_the_delivery_of_the_round(
    any_world: World, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    pair = Pair(any_world, monkeypatch)
    pair.publish(count)
    assert pair.writes[0] is Disposition
    assert Disposition not in pair.writes[pair.writes.index(Transfer) :]


def test_many_readers_wait_for_the_acknowledgement(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [world.peer().authorised() for _ in range(4)]
    for other in others:
        other.receiver(0, credit=10)
    pair = Pair(world, monkeypatch)
    pair.publish(3)
    assert all(other.socket.sent for other in others)
    assert pair.writes == [Disposition, Transfer, Transfer, Transfer]


def test_a_round_needs_one_loop_callback(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(world, monkeypatch)
    second = world.peer().authorised()
    other = second.sender("eh1/Partitions/1")
    send_all(world, pair.sender, 20)
    send_all(world, other, 20)
    for peer in (pair.publisher, second):
        peer.connection.data_received(peer.engine.bytes_to_send(now_ms=0))
    world.loop.step()  # the log commits both partitions
    scheduled: list[Any] = []
    call_soon = world.loop.call_soon
    monkeypatch.setattr(world.loop, "call_soon", lambda work, *args, **rest: scheduled.append(work))
    assert len(world.loop._soon) == 1
    world.loop.step()
    assert scheduled == []
    monkeypatch.setattr(world.loop, "call_soon", call_soon)
    assert pair.writes == [Disposition] + [Transfer] * 20
    assert second.socket.sent


def test_no_gateway_function_runs_on_the_call_stack_of_the_log(
    any_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(any_world, monkeypatch)
    offenders: set[str] = set()

    def watch(frame: FrameType, event: str, arg: object) -> None:
        if event != "call" or not _is_of(frame, "penstock.gateway"):
            return
        caller = frame.f_back
        while caller is not None:
            if _is_of(caller, "penstock.log"):
                offenders.add(f"{caller.f_code.co_qualname} -> {frame.f_code.co_qualname}")
            caller = caller.f_back

    sys.setprofile(watch)
    try:
        pair.publish(10)
    finally:
        sys.setprofile(None)
    assert offenders == set()


def _is_of(frame: FrameType, package: str) -> bool:
    name: str = frame.f_globals.get("__name__", "")
    return name.startswith(package)


def test_a_callback_that_fails_keeps_no_other_from_running(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ValueError("a bug")

    world.broker.rounds.acknowledge(fail)
    pair = Pair(world, monkeypatch)
    pair.publish(1)
    assert "commit callback failed" in caplog.text
