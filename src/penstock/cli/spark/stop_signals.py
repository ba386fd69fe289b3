"""SIGINT and SIGTERM ask a pipeline to stop, also before it has started.

A signal handler interrupts the main thread, which may hold the lock that printing or an Event
needs: the handler would deadlock. So the handler only puts the signal into a queue that is safe to
enter again, and a thread does the rest.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_JOIN_S = 5.0


class StopSignals:
    """`install` sets the handlers; `forward` names the function that signals call from then on."""

    def __init__(self, show_message: Callable[[str], None]) -> None:
        self._show_message = show_message
        self._thread: threading.Thread | None = None
        self._is_pending = False  # a signal came before `forward`
        self._queue: SimpleQueue[bool] = SimpleQueue()  # False ends the thread

    def install(self) -> None:
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)

    def forward(self, ask_to_stop: Callable[[], bool]) -> None:
        """`ask_to_stop` returns whether it was called for the first time."""
        self._thread = threading.Thread(
            target=self._run, args=(ask_to_stop,), name="penstock-signals", daemon=True
        )
        self._thread.start()
        if self._is_pending:
            self._queue.put(True)

    def close(self) -> None:
        if self._thread is not None:
            self._queue.put(False)
            self._thread.join(_JOIN_S)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._thread is not None:
            self._queue.put(True)
        elif self._is_pending:
            raise KeyboardInterrupt
        self._is_pending = True

    def _run(self, ask_to_stop: Callable[[], bool]) -> None:
        while self._queue.get():
            if ask_to_stop():
                self._show_message(
                    "Stopping after the current batch; a second signal stops at once."
                )


@contextmanager
def stop_signals(show_message: Callable[[str], None]) -> Iterator[StopSignals]:
    """Restores the previous handlers at the end."""
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    signals = StopSignals(show_message)
    signals.install()
    try:
        yield signals
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signals.close()
