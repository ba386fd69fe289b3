"""`$management` is asked at most 50 times a second for one namespace, where units are enforced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.model import limits
from penstock.model.entities import Tier

if TYPE_CHECKING:
    from tests.unit.gateway.amqp.conftest import Answer, Peer, World

PER_S = limits.MANAGEMENT_CALLS_PER_S


def ask(world: World, peer: Peer, *, key: str | None = None) -> Answer:
    world.loop.advance(1)
    return peer.request(
        "$management",
        {
            "operation": "READ",
            "type": "com.microsoft:eventhub",
            "name": "eh1",
            "security_token": world.token("eh1", key=key),
        },
    )


def statuses(world: World, peer: Peer, count: int, *, key: str | None = None) -> list[int]:
    return [ask(world, peer, key=key).status for _ in range(count)]


def test_second_worth_of_calls_is_answered_and_the_next_is_busy(world: World, peer: Peer) -> None:
    world.put_namespace(throughput_units=1)
    answers = statuses(world, peer, PER_S + 10)
    assert answers[:PER_S] == [200] * PER_S
    assert answers[-5:].count(503) >= 4
    busy = next(answer for answer in (ask(world, peer), ask(world, peer)) if answer.status == 503)
    assert busy.condition == "com.microsoft:server-busy"
    assert busy.text.startswith(
        "The request was terminated because the entity is being throttled. Error code : 50002."
    )


def test_calls_are_answered_again_as_time_passes(world: World, peer: Peer) -> None:
    world.put_namespace(throughput_units=1)
    statuses(world, peer, 2 * PER_S)
    world.loop.advance(1000)
    assert statuses(world, peer, PER_S) == [200] * PER_S


def test_refused_calls_cost_nothing(world: World, peer: Peer) -> None:
    world.put_namespace(throughput_units=1)
    statuses(world, peer, 60)
    answered = statuses(world, peer, 400).count(200)
    assert 15 <= answered <= 22  # of 400 ms


def test_all_connections_share_one_measure(world: World, peer: Peer) -> None:
    world.put_namespace(throughput_units=1)
    statuses(world, peer, 2 * PER_S)
    assert statuses(world, world.peer().authorised(), 10).count(503) >= 9


def test_bad_token_is_told_so_and_not_counted(world: World, peer: Peer) -> None:
    world.put_namespace(throughput_units=1)
    assert statuses(world, peer, 3, key="wrong") == [401] * 3
    assert statuses(world, peer, PER_S) == [200] * PER_S


def test_nothing_is_enforced_where_units_are_not(world: World, peer: Peer) -> None:
    assert statuses(world, peer, 3 * PER_S) == [200] * 3 * PER_S
    world.put_namespace(throughput_units=1, tier=Tier.DEDICATED)
    assert statuses(world, peer, 3 * PER_S) == [200] * 3 * PER_S
