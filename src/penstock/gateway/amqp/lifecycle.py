"""The life of a connection: its states, its deadlines, and how its socket is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import IntEnum

import msgspec

from penstock.amqp.states import StateTable
from penstock.gateway.transport import Transport
from penstock.model import limits

_CLOSE_GRACE_S = 2.0  # for the peer to answer our close, then for the socket to drain


class Deadlines(msgspec.Struct, frozen=True, kw_only=True):
    """How long a peer may take; tests shorten them."""

    header_ms: int = limits.HEADER_DEADLINE_MS
    open_ms: int = limits.OPEN_DEADLINE_MS
    token_ms: int = limits.TOKEN_DEADLINE_MS
    linkless_first_ms: int = limits.LINKLESS_FIRST_MS
    linkless_later_ms: int = limits.LINKLESS_LATER_MS
    idle_time_out_ms: int = limits.IDLE_TIME_OUT_MS
    delivery_ms: int = limits.DELIVERY_DEADLINE_MS


class LifeState(IntEnum):
    OPEN = 0  # events of the engine are handled
    CLOSING = 1  # a close was sent or received, or the protocol failed; the links are closed
    HUNG_UP = 2  # the socket is being closed: nothing more is written
    OVER = 3  # the socket is gone


class LifeInput(IntEnum):
    CLOSE = 0  # either side closes, or the engine fails
    HANG_UP = 1
    LOSE = 2  # the transport reports that the socket is gone


# fmt: off
LIFE_MOVES = (
    (LifeState.OPEN,    LifeInput.CLOSE,   LifeState.CLOSING),
    (LifeState.OPEN,    LifeInput.HANG_UP, LifeState.HUNG_UP),
    (LifeState.CLOSING, LifeInput.HANG_UP, LifeState.HUNG_UP),
    (LifeState.OPEN,    LifeInput.LOSE,    LifeState.OVER),
    (LifeState.CLOSING, LifeInput.LOSE,    LifeState.OVER),
    (LifeState.HUNG_UP, LifeInput.LOSE,    LifeState.OVER),
)
LIFE_STAYS = (
    (LifeState.CLOSING, LifeInput.CLOSE),
    (LifeState.HUNG_UP, LifeInput.CLOSE),
    (LifeState.HUNG_UP, LifeInput.HANG_UP),
    (LifeState.OVER,    LifeInput.CLOSE),
    (LifeState.OVER,    LifeInput.HANG_UP),
    (LifeState.OVER,    LifeInput.LOSE),
)
# fmt: on
LIFE = StateTable("connection", LifeState, LifeInput, LIFE_MOVES, LIFE_STAYS)


class ConnectionLife:
    """The state of one connection and the end of its socket. Only these methods change `state`;
    each reports whether it did."""

    def __init__(self, transport: Transport, loop: asyncio.AbstractEventLoop) -> None:
        self.state = LifeState.OPEN
        self.reason = "closed by the peer"  # of the end, for the log line
        self._transport = transport
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        return self.state is LifeState.OPEN

    @property
    def is_over(self) -> bool:
        return self.state is LifeState.OVER

    @property
    def can_write(self) -> bool:
        return self.state < LifeState.HUNG_UP and not self._transport.is_closing()

    def close(self, reason: str | None = None) -> bool:
        """`reason` None keeps the one from before."""
        if not self._move(LifeInput.CLOSE):
            return False
        self.reason = self.reason if reason is None else reason
        return True

    def await_peer_close(self) -> None:
        """Our close was sent: hang up if the peer does not answer in time."""
        self._set_timer(self.hang_up)

    def hang_up(self) -> None:
        """Close the socket; abort it if it does not drain because the peer does not read."""
        if self._move(LifeInput.HANG_UP):
            self._transport.close()
            self._set_timer(self._transport.abort)

    def lose(self) -> bool:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return self._move(LifeInput.LOSE)

    def _move(self, input_: LifeInput) -> bool:
        before, self.state = self.state, LIFE.after(self.state, input_)
        return self.state is not before

    def _set_timer(self, work: Callable[[], object]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_CLOSE_GRACE_S, work)
