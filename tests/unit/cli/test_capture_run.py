"""How `penstock capture run` hears that it has to stop."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from penstock.cli.spark.capture_job import StopSignals


@pytest.fixture
def stopping() -> StopSignals:
    return StopSignals()


def test_nothing_came_is_not_set(stopping: StopSignals) -> None:
    assert not stopping.wait(0)
    assert not stopping.wait(0.001)


def test_a_signal_in_the_midst_of_a_wait_ends_it(stopping: StopSignals) -> None:
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    stopping.claim()
    try:
        threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGTERM)).start()
        assert stopping.wait(30.0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert stopping.wait(0)
    assert stopping.wait(30.0), "what came once is not forgotten"


def test_two_signals_are_as_one(stopping: StopSignals) -> None:
    stopping.on_signal(signal.SIGTERM, None)
    stopping.on_signal(signal.SIGINT, None)
    assert stopping.wait(0)
    assert stopping.wait(0)
