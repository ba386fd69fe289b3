"""Work over many connections: in order, a bounded number of items per event-loop turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from penstock.gateway.amqp.turn_queue import ITEMS_PER_TURN, TurnQueue


class Turns:
    """Counts the event loop's turns, and the items that each one handled."""

    def __init__(self) -> None:
        self.number = 0
        self.items: Counter[int] = Counter()
        self.order: list[int] = []
        self._task = asyncio.create_task(self._count())

    async def _count(self) -> None:
        while True:
            self.number += 1
            await asyncio.sleep(0)

    def handle(self, item: int, items: int = 1) -> None:
        self.items[self.number] += items
        self.order.append(item)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.order) < count:  # noqa: ASYNC110 - turns are what is counted
                await asyncio.sleep(0)
        self._task.cancel()


@pytest.mark.parametrize("items", [1, 5, ITEMS_PER_TURN])
async def test_three_thousand_connections_take_many_turns(items: int) -> None:
    turns, queue = Turns(), TurnQueue(asyncio.get_running_loop())
    await asyncio.sleep(0)
    for number in range(3000):
        queue.run(partial(turns.handle, number, items), items=items)
    await turns.until(3000)
    assert turns.order == list(range(3000))
    assert max(turns.items.values()) < ITEMS_PER_TURN + items


async def test_many_are_looked_at_only_when_their_turn_has_come() -> None:
    """Even to list the work of 3,000 connections in one turn takes 10 ms."""
    turns, queue = Turns(), TurnQueue(asyncio.get_running_loop())
    looked_at: Counter[int] = Counter()

    def works() -> Iterator[tuple[Callable[[], None], int]]:
        for number in range(3000):
            looked_at[turns.number] += 1
            yield partial(turns.handle, number), 1

    queue.run_each(works())
    queue.run(partial(turns.handle, 3000))
    await turns.until(3001)
    assert turns.order == list(range(3001))
    assert max(looked_at.values()) <= ITEMS_PER_TURN


async def test_work_that_adds_work_is_not_overtaken_by_it() -> None:
    turns, queue = Turns(), TurnQueue(asyncio.get_running_loop())

    def add() -> None:
        turns.handle(0)
        queue.run(partial(turns.handle, 2))

    queue.run_each([(add, 1), (partial(turns.handle, 1), 1)])
    assert turns.order == [0, 1, 2]
    await turns.until(3)


async def test_a_few_are_handled_at_once_and_later_ones_in_their_turns() -> None:
    turns, queue = Turns(), TurnQueue(asyncio.get_running_loop())
    for number in range(3):
        queue.run(partial(turns.handle, number))
    assert turns.order == [0, 1, 2]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for number in range(ITEMS_PER_TURN):
        queue.run(partial(turns.handle, number))
    assert len(turns.order) == 3 + ITEMS_PER_TURN
    await turns.until(3 + ITEMS_PER_TURN)


async def test_work_that_fails_does_not_keep_the_others() -> None:
    turns, queue = Turns(), TurnQueue(asyncio.get_running_loop(), items_max=2)

    def fail() -> None:
        raise RuntimeError("unexpected")

    for number in range(6):
        queue.run(fail)
        queue.run(partial(turns.handle, number))
    await turns.until(6)
    assert turns.order == list(range(6))


async def test_what_waits_can_be_forgotten() -> None:
    turns, queue = Turns(), TurnQueue(asyncio.get_running_loop(), items_max=2)
    for number in range(6):
        queue.run(partial(turns.handle, number))
    queue.clear()
    for number in range(10, 13):
        queue.run(partial(turns.handle, number))
    await turns.until(5)
    assert turns.order == [0, 1, 10, 11, 12]
