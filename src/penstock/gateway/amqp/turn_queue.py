"""Work over many connections, a bounded number of items per event-loop iteration."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator

ITEMS_PER_TURN = 16  # checking the grant of one link takes up to a third of a millisecond

_log = logging.getLogger("penstock.amqp")

Work = tuple[Callable[[], None], int]  # and how many items it handles


class TurnQueue:
    """Runs work at once while the current loop iteration has items left, after that in later
    iterations, in order. Event loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, items_max: int = ITEMS_PER_TURN) -> None:
        self._loop = loop
        self._items_max = items_max
        self._items = 0  # handled in this turn
        self._waiting: deque[Iterator[Work]] = deque()
        self._is_running = False
        self._is_scheduled = False

    def run(self, work: Callable[[], None], *, items: int = 1) -> None:
        """`items` is the number of links or connections that `work` handles."""
        self.run_each([(work, items)])

    def run_each(self, works: Iterable[Work]) -> None:
        """Run all of `works`. The queue takes each from the iterable only when it runs it."""
        self._waiting.append(iter(works))
        self._run_some()
        self._schedule()

    def clear(self) -> None:
        """Forget waiting work."""
        self._waiting.clear()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_scheduled = False
        self._items = 0
        self._run_some()
        if self._items:
            self._schedule()  # once more, to reset the count

    def _run_some(self) -> None:
        if self._is_running:
            return  # called by work: what it added comes later, in order
        self._is_running = True
        while self._waiting and self._items < self._items_max:
            item = next(self._waiting[0], None)
            if item is None:
                self._waiting.popleft()
                continue
            work, items = item
            self._items += items
            try:
                work()
            except Exception:  # noqa: BLE001 - the other work continues
                _log.exception("turn_failed")
        self._is_running = False
