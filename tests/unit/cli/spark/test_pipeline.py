"""A signal that comes at any moment stops the pipeline; none finds its own process in the way."""

from __future__ import annotations

import signal
import threading

import pytest

from penstock.cli.spark.pipeline import StopSignals

DEADLINE_S = 60.0


class Run:
    def __init__(self) -> None:
        self.asked = 0
        self.changed = threading.Condition()

    def ask_to_stop(self) -> bool:
        with self.changed:
            self.asked += 1
            self.changed.notify_all()
            return self.asked == 1

    def wait_for(self, asked: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.asked >= asked, DEADLINE_S)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks_once_and_says_so_once(number: signal.Signals) -> None:
    run, notes = Run(), list[str]()
    before = signal.getsignal(number)
    with StopSignals(notes.append) as signals:
        signals.forward(run.ask_to_stop)
        signal.raise_signal(number)
        run.wait_for(1)
        signal.raise_signal(number)
        run.wait_for(2)
    assert run.asked == 2
    assert notes == ["Stopping after the current batch; a second signal stops at once."]
    assert signal.getsignal(number) == before


def test_a_signal_within_a_print_does_not_wait_for_that_print() -> None:
    """The handler runs in the thread that holds the display's lock."""
    run, lock, noted = Run(), threading.Lock(), threading.Event()

    def note(text: str) -> None:
        with lock:
            noted.set()

    with StopSignals(note) as signals:
        signals.forward(run.ask_to_stop)
        with lock, run.changed:
            signal.raise_signal(signal.SIGINT)
            assert not noted.is_set()
        run.wait_for(1)
        assert noted.wait(DEADLINE_S)


def test_a_signal_before_there_is_anything_to_stop_is_remembered() -> None:
    run, notes = Run(), list[str]()
    with StopSignals(notes.append) as signals:
        signal.raise_signal(signal.SIGTERM)
        signals.forward(run.ask_to_stop)
        run.wait_for(1)
    assert len(notes) == 1


def test_a_second_signal_before_that_ends_at_once() -> None:
    with StopSignals(lambda _: None):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
