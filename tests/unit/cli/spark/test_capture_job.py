"""How `penstock capture run` is asked to stop."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from penstock.cli.spark.capture_job import _stop_on_signal


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_wait(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with _stop_on_signal() as stopping:
        assert not stopping.wait(0.001)
        threading.Timer(0.02, os.kill, (os.getpid(), number)).start()
        assert stopping.wait(30.0)
        os.kill(os.getpid(), number)
        assert stopping.is_set()
    assert signal.getsignal(number) == before
