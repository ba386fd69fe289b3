"""The event loop that every Penstock process and thread uses."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new loop of uvloop where it is installed (docs/decisions.md), else of asyncio. Both work
    alike. For `asyncio.Runner(loop_factory=new_event_loop)`."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class EventLoopThread:
    """An event loop on a daemon thread of its own. Any thread may call the methods."""

    def __init__(
        self,
        name: str,
        serve: Callable[[asyncio.Event], Coroutine[Any, Any, object]] = asyncio.Event.wait,
    ) -> None:
        """`serve` runs until its argument is set, and then ends what it started."""
        self._serve = serve
        self._loop = new_event_loop()
        self._stopping = asyncio.Event()
        self._ended: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run the coroutine on the loop. Raises RuntimeError if the loop is closed."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self) -> Future[None]:
        """End `serve`, then cancel other tasks. The future is done when all have ended. May be
        called again."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._stopping.set)
        return self._ended

    def close(self, timeout_s: float) -> None:
        """Stop, and wait until the thread has ended."""
        self.stop()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve(self._stopping))
        finally:
            self._ended.set_result(None)
