"""SIGINT and SIGTERM ask a pipeline to stop, from before there is anything that could be stopped.

A signal's handler runs in the midst of whatever the main thread does, and that may hold the lock
that printing or an Event needs: it would wait for itself for ever. So the handler only puts the
signal into a queue that may be entered anywhere; a thread does the rest.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType
from typing import Protocol

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_JOIN_S = 5.0


class Stoppable(Protocol):
    """`penstock.spark.pipelines.runner.PipelineRun`, as far as it is used here."""

    @property
    def is_stopping(self) -> bool: ...

    def ask_to_stop(self) -> None: ...


class StopSignals:
    """`claim` makes the handlers ours; `answer` names what is asked to stop from then on."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._running: Stoppable | None = None
        self._is_asked = False
        self._came: SimpleQueue[int | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="penstock-signals", daemon=True)

    def claim(self) -> None:
        for each in _SIGNALS:
            signal.signal(each, self._on_signal)

    def answer(self, running: Stoppable) -> None:
        self._running = running
        self._thread.start()
        if self._is_asked:
            self._came.put(signal.SIGINT)

    def close(self) -> None:
        if self._running is not None:
            self._came.put(None)
            self._thread.join(_JOIN_S)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._running is not None:
            self._came.put(number)
            return
        if self._is_asked:
            raise KeyboardInterrupt
        self._is_asked = True

    def _serve(self) -> None:
        running = self._running
        assert running is not None, "the thread starts when there is something to stop"
        while self._came.get() is not None:
            is_first = not running.is_stopping
            running.ask_to_stop()
            if is_first:
                self._note("Stopping when the batch is done; once more stops at once.")


@contextmanager
def stop_signals(note: Callable[[str], None]) -> Iterator[StopSignals]:
    """Whoever had the signals before has them again afterwards."""
    before = {each: signal.getsignal(each) for each in _SIGNALS}
    signals = StopSignals(note)
    signals.claim()
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signals.close()
