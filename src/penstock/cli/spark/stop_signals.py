"""SIGINT and SIGTERM stop a pipeline, also those that arrive while it starts.

A signal handler interrupts the main thread, which may hold the lock that printing or an Event
needs: waiting for it would be a deadlock. So the handler only puts the signal into a SimpleQueue,
which is reentrant, and a thread does the work.
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
    """The part of `penstock.spark.pipelines.runner.PipelineRun` that is used here."""

    @property
    def is_stopping(self) -> bool: ...

    def ask_to_stop(self) -> None: ...


class StopSignals:
    """`claim` installs the handlers; `answer` names the pipeline that they stop."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._running: Stoppable | None = None
        self._is_requested = False
        self._received: SimpleQueue[int | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="penstock-signals", daemon=True)

    def claim(self) -> None:
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)

    def answer(self, running: Stoppable) -> None:
        self._running = running
        self._thread.start()
        if self._is_requested:
            self._received.put(signal.SIGINT)

    def close(self) -> None:
        if self._running is not None:
            self._received.put(None)
            self._thread.join(_JOIN_S)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._running is not None:
            self._received.put(number)
            return
        if self._is_requested:
            raise KeyboardInterrupt
        self._is_requested = True

    def _serve(self) -> None:
        running = self._running
        assert running is not None, "the thread is started by answer()"
        while self._received.get() is not None:
            is_first = not running.is_stopping
            running.ask_to_stop()
            if is_first:
                self._note("Stopping after the current batch; a second signal stops at once.")


@contextmanager
def stop_signals(note: Callable[[str], None]) -> Iterator[StopSignals]:
    """Handle the signals within the block; the previous handlers are restored at its end."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    signals = StopSignals(note)
    signals.claim()
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signals.close()
