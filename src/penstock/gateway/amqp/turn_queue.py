"""Work over many connections, a bounded number of items per event-loop turn."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

ITEMS_PER_TURN = 16  # judging one link again takes up to a third of a millisecond

_log = logging.getLogger("penstock.amqp")


class TurnQueue:
    """Runs work at once while the turn has items left; after that in later turns, in order. Used
    on the event loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, items_max: int = ITEMS_PER_TURN) -> None:
        self._loop = loop
        self._items_max = items_max
        self._items = 0  # handled in this turn
        self._waiting: deque[tuple[Callable[[], None], int]] = deque()
        self._is_scheduled = False

    def run(self, work: Callable[[], None], *, items: int = 1) -> None:
        """`items` is how many links, connections or the like `work` handles."""
        if self._waiting or self._items >= self._items_max:
            self._waiting.append((work, items))
        else:
            self._do(work, items)
        self._schedule()

    def clear(self) -> None:
        """Forget what waits."""
        self._waiting.clear()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_scheduled = False
        self._items = 0
        while self._waiting and self._items < self._items_max:
            self._do(*self._waiting.popleft())
        if self._items:
            self._schedule()  # at least one more, which begins to count again

    def _do(self, work: Callable[[], None], items: int) -> None:
        self._items += items
        try:
            work()
        except Exception:  # noqa: BLE001 - the others go on
            _log.exception("turn_failed")
