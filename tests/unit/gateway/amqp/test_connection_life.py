"""The life-cycle table of a connection, over all pairs of state and input."""

from __future__ import annotations

import asyncio
import gc
import weakref
from itertools import product
from typing import TYPE_CHECKING, cast

import pytest
from tests.unit.gateway.hand_loop import HandLoop, Socket

from penstock.gateway.amqp.lifecycle import LIFE, ConnectionLife, LifeInput, LifeState
from penstock.model.clock import ManualClock

if TYPE_CHECKING:
    from tests.unit.gateway.amqp.conftest import World

OPEN, CLOSING, HUNG_UP, OVER = LifeState
CLOSE, HANG_UP, LOSE = LifeInput
AFTER = {
    (OPEN, CLOSE): CLOSING,
    (OPEN, HANG_UP): HUNG_UP,
    (OPEN, LOSE): OVER,
    (CLOSING, CLOSE): CLOSING,
    (CLOSING, HANG_UP): HUNG_UP,
    (CLOSING, LOSE): OVER,
    (HUNG_UP, CLOSE): HUNG_UP,
    (HUNG_UP, HANG_UP): HUNG_UP,
    (HUNG_UP, LOSE): OVER,
    (OVER, CLOSE): OVER,
    (OVER, HANG_UP): OVER,
    (OVER, LOSE): OVER,
}
PAIRS = list(product(LifeState, LifeInput))


@pytest.mark.parametrize(("state", "input_"), PAIRS)
def test_every_pair_is_in_the_table(state: LifeState, input_: LifeInput) -> None:
    assert LIFE.after(state, input_) is AFTER[state, input_]


@pytest.mark.parametrize(("state", "input_"), PAIRS)
def test_the_socket_follows_the_state(state: LifeState, input_: LifeInput) -> None:
    """It is closed once, on the way to HUNG_UP, and aborted when it does not drain."""
    clock, socket = ManualClock(), Socket()
    loop = HandLoop(clock)
    life = ConnectionLife(socket, cast(asyncio.AbstractEventLoop, loop))
    life.state = state
    if input_ is CLOSE:
        life.close()
    elif input_ is HANG_UP:
        life.hang_up()
    else:
        life.lose()
    assert life.state is AFTER[state, input_]
    hangs_up = life.state is HUNG_UP and state is not HUNG_UP
    assert socket.is_closed == hangs_up
    assert life.can_write == (life.state in (OPEN, CLOSING))
    loop.advance(10_000)
    assert socket.is_aborted == hangs_up


def test_peer_that_does_not_answer_our_close_is_hung_up() -> None:
    loop, socket = HandLoop(ManualClock()), Socket()
    life = ConnectionLife(socket, cast(asyncio.AbstractEventLoop, loop))
    assert life.close("because")
    assert not life.close("again")
    assert life.reason == "because"
    life.await_peer_close()
    loop.advance(1_999)
    assert life.state is CLOSING
    loop.advance(1)
    assert life.state is HUNG_UP
    assert life.lose()
    assert not life.lose()
    loop.advance(10_000)
    assert not socket.is_aborted


@pytest.mark.parametrize("is_closed_first", [False, True])
def test_a_lost_connection_leaves_no_reference_cycle(world: World, is_closed_first: bool) -> None:
    """Connections that come and go must not fill the memory until the garbage collector runs."""
    peer = world.peer().authorised()
    peer.receiver(0, credit=10)
    peer.publish(peer.sender("eh1"), world.event())
    if is_closed_first:
        peer.connection.shut_down()
        peer.run()
    gone = weakref.ref(peer.connection)
    gc.collect()
    gc.disable()
    try:
        peer.lose()
        del peer.connection
        assert gone() is None
    finally:
        gc.enable()
