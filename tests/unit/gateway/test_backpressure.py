"""Reading pauses for a set of reasons."""

from __future__ import annotations

from itertools import chain, combinations

import pytest
from tests.unit.gateway.hand_loop import Socket

from penstock.gateway.backpressure import PauseReason, PendingBytes, ReadBackpressure
from penstock.model import limits

SUBSETS = list(
    chain.from_iterable(combinations(PauseReason, size) for size in range(len(PauseReason) + 1))
)


class CountingSocket(Socket):
    """Counts the calls: pausing twice is an error of some transports."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def pause_reading(self) -> None:
        assert self.is_reading
        self.calls += 1
        super().pause_reading()

    def resume_reading(self) -> None:
        assert not self.is_reading
        self.calls += 1
        super().resume_reading()


@pytest.mark.parametrize("reasons", SUBSETS)
def test_reading_pauses_while_there_is_any_reason(reasons: tuple[PauseReason, ...]) -> None:
    socket = CountingSocket()
    backpressure = ReadBackpressure(socket, PendingBytes())
    for reason in reasons * 2:  # a reason may be given again
        backpressure.pause(reason)
    assert backpressure.reasons == set(reasons)
    assert socket.is_reading == (not reasons)
    for absent in set(PauseReason) - set(reasons):
        backpressure.resume(absent)
    assert socket.is_reading == (not reasons)
    for index, reason in enumerate(reasons):
        assert socket.is_reading == (index == len(reasons))
        backpressure.resume(reason)
    assert socket.is_reading
    assert socket.calls == (2 if reasons else 0)


@pytest.mark.parametrize("reasons", SUBSETS)
def test_the_end_of_a_connection_is_read_whatever_the_reasons(
    reasons: tuple[PauseReason, ...],
) -> None:
    socket = CountingSocket()
    backpressure = ReadBackpressure(socket, PendingBytes())
    for reason in reasons:
        backpressure.pause(reason)
    backpressure.end()
    backpressure.end()
    assert socket.is_reading
    for reason in PauseReason:
        backpressure.pause(reason)
        backpressure.resume(reason)
    assert socket.is_reading


def test_bytes_for_the_disk_pause_until_half_of_the_limit_is_free() -> None:
    socket, pending = CountingSocket(), PendingBytes()
    backpressure = ReadBackpressure(socket, pending)
    most = limits.UNSETTLED_BYTES_PER_CONNECTION_MAX
    backpressure.hold(most)
    assert socket.is_reading
    backpressure.hold(2)
    assert not socket.is_reading
    backpressure.release(2)
    assert not socket.is_reading
    backpressure.release(most // 2)
    assert socket.is_reading
    assert pending.total == backpressure.bytes == most - most // 2


def test_bytes_of_other_connections_pause_too() -> None:
    pending = PendingBytes(limit=10)
    full, socket = ReadBackpressure(CountingSocket(), pending), CountingSocket()
    full.hold(10)
    backpressure = ReadBackpressure(socket, pending)
    backpressure.hold(1)
    assert not socket.is_reading
    backpressure.release(1)
    assert socket.is_reading
    assert not pending.nothing.is_set()
    full.release(10)
    assert pending.nothing.is_set()
