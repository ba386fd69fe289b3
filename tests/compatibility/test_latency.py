"""An event reaches an idle reader when it is committed, measured with Qpid Proton."""

from __future__ import annotations

import statistics
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.compatibility.conftest import Spot
    from tests.conftest import Server

utils: Any = pytest.importorskip("proton.utils", reason="python-qpid-proton is not installed")
proton: Any = pytest.importorskip("proton")

ROUNDS = 50
WAIT_S = 20
# A bound that a poll of any usual interval would break half of the time, and a loaded machine not:
# what is asserted is that nothing polls, not how fast the machine is.
MEDIAN_S_MAX = 0.25


def connect(server: Server) -> Any:
    return utils.BlockingConnection(
        f"amqp://{server['amqp']}",
        timeout=WAIT_S,
        user="RootManageSharedAccessKey",
        password=server.key,
        allowed_mechs="PLAIN",
        allow_insecure_mechs=True,
    )


def test_idle_reader_is_pushed_each_event(server: Server, spot: Spot, record_property: Any) -> None:
    arrived: list[float] = []
    ready, got = threading.Event(), threading.Semaphore(0)
    source = f"{spot.hub}/ConsumerGroups/$Default/Partitions/{spot.partition}"

    def read() -> None:
        connection = connect(server)
        receiver = connection.create_receiver(source, credit=ROUNDS)  # once: no later flow asks
        ready.set()
        for _ in range(ROUNDS):
            receiver.receive(WAIT_S)
            arrived.append(time.perf_counter())
            got.release()
        connection.close()

    thread = threading.Thread(target=read)
    thread.start()
    assert ready.wait(WAIT_S)
    connection = connect(server)
    sender = connection.create_sender(f"{spot.hub}/Partitions/{spot.partition}")
    sent = []
    for number in range(ROUNDS):
        sent.append(time.perf_counter())
        sender.send(proton.Message(body=number))
        assert got.acquire(timeout=WAIT_S)
    thread.join(WAIT_S)
    connection.close()
    delays = [after - before for before, after in zip(sent, arrived, strict=True)]
    record_property("median_ms", statistics.median(delays) * 1000)
    assert statistics.median(delays) < MEDIAN_S_MAX
