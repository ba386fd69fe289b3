"""Garbage collection of a long-lived service, in steps of bounded length.

Python's collector stops the event loop, and a full collection visits every container object of the
process: 57 for each connection, and those of modules, hubs and partitions (0.6 us each). Here an
object is visited while it is young. Objects that stay are frozen: no later collection visits them,
so a collection does not take longer with more connections or hubs.

Reference counting still frees frozen objects. Cycles among them are not found, so objects that come
and go must not be in cycles when they end (tests/unit/service/test_released_connections.py). For
what remains, everything is collected when the number of frozen objects has doubled since the last
time.

Once a minute all objects that are not frozen are collected. This also empties the free lists in
which Python keeps freed objects for reuse, up to 2,000 tuples of each length: `tuple(generator)`
adds to a list from which it never takes.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from typing import Any

# New objects before a young collection, and young collections before a middle one.
_THRESHOLDS = (1_000, 1, 1_000_000)  # the oldest generation: only by `_collect_old`
OLD_OBJECTS_MAX = 6_000  # survivors of middle collections that are not frozen yet
_OLD = 2
_INTERVAL_S = 60.0
_FROZEN_OBJECTS_MIN = 500_000  # 2,000 open hubs and 3,000 connections have about as many

_log = logging.getLogger("penstock.service")


class GarbageCollection:
    """Use one per process, on the event loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._frozen = 0  # at most: objects that were freed since are counted too
        self._frozen_max = 0

    def start(self) -> None:
        """Call when every listener is open: what exists now is frozen."""
        self._collect_all()
        gc.set_threshold(*_THRESHOLDS)
        gc.callbacks.append(self._on_collection)
        self._timer = self._loop.call_later(_INTERVAL_S, self._collect_in_intervals)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        """Called by the collector, in whichever thread it runs."""
        if phase == "stop" and info["generation"] == _OLD - 1 and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon_threadsafe(self._collect_old)

    def _collect_old(self) -> None:
        self._is_scheduled = False
        if _old_objects() < OLD_OBJECTS_MAX:
            return
        gc.collect()
        survivors = _old_objects()
        if survivors < OLD_OBJECTS_MAX // 2:
            return  # most were garbage; what is left may become garbage too
        gc.freeze()
        self._frozen += survivors
        if self._frozen > self._frozen_max:
            self._frozen = gc.get_freeze_count()  # visits all of them
        if self._frozen > self._frozen_max:
            begin_s = time.perf_counter()
            self._collect_all()
            took_ms = (time.perf_counter() - begin_s) * 1000
            _log.info("all garbage collected ms=%.0f", took_ms)

    def _collect_in_intervals(self) -> None:
        gc.collect()
        self._timer = self._loop.call_later(_INTERVAL_S, self._collect_in_intervals)

    def _collect_all(self) -> None:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._frozen = gc.get_freeze_count()
        self._frozen_max = 2 * max(self._frozen, _FROZEN_OBJECTS_MIN)


def _old_objects() -> int:
    return len(gc.get_objects(generation=_OLD))
