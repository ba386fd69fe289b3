"""State tables of the SASL exchange, the connection, the session and the link.

A table lists the inputs that change a state and those that leave it; every other pair of state and
input is illegal. An illegal input from the peer closes the connection; one from our caller, named
SEND_, raises LocalError. `tests/protocol/test_state_tables.py` checks every pair.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Generic, TypeVar

from penstock.amqp.errors import AmqpError, LocalError

S = TypeVar("S", bound=IntEnum)
I = TypeVar("I", bound=IntEnum)  # noqa: E741


class IllegalState(AmqpError):
    """The peer sent a frame that it may not send in this state (AMQP 2.8.15)."""

    condition = "amqp:illegal-state"


class StateTable(Generic[S, I]):
    """`table.after(state, input)` is the next state. Its errors name the side at fault."""

    def __init__(
        self,
        name: str,
        states: type[S],
        inputs: type[I],
        moves: Iterable[tuple[S, I, S]],
        stays: Iterable[tuple[S, I]],
    ) -> None:
        self.name = name
        self.states = states
        self.inputs = inputs
        # Rows and columns are indexed by the enums: a lookup in a dict of pairs takes ten times as
        # long, and every frame needs several.
        self._rows: list[list[S | None]] = [[None] * len(inputs) for _ in states]
        for state, input_, after in (*moves, *((state, input_, state) for state, input_ in stays)):
            assert self._rows[state][input_] is None, (name, state, input_)
            self._rows[state][input_] = after

    def allows(self, state: S, input_: I) -> bool:
        return self._rows[state][input_] is not None

    def after(self, state: S, input_: I) -> S:
        """The state that follows. Raises LocalError or IllegalState if the input is illegal."""
        after = self._rows[state][input_]
        if after is None:
            error = LocalError if input_.name.startswith("SEND") else IllegalState
            raise error(f"The {self.name} is {state.name} and cannot {input_.name}.")
        return after


class SaslState(IntEnum):
    START = 0
    HEADER_SENT = 1  # client: waits for the server's header
    HEADER_EXCHANGED = 2  # client: waits for the mechanisms
    MECHANISMS_SENT = 3  # server: waits for init
    MECHANISMS_RECEIVED = 4  # client: the application chooses
    INIT_SENT = 5  # client: waits for the outcome
    INIT_RECEIVED = 6  # server: the application checks the credentials
    DONE = 7
    FAILED = 8


class SaslInput(IntEnum):
    SEND_HEADER = 0
    RECV_HEADER = 1
    SEND_MECHANISMS = 2
    RECV_MECHANISMS = 3
    SEND_INIT = 4
    RECV_INIT = 5
    SEND_OK = 6
    RECV_OK = 7
    SEND_FAILURE = 8
    RECV_FAILURE = 9


# fmt: off
SASL_MOVES = (
    # server
    (SaslState.START,               SaslInput.RECV_HEADER,     SaslState.HEADER_EXCHANGED),
    (SaslState.HEADER_EXCHANGED,    SaslInput.SEND_MECHANISMS, SaslState.MECHANISMS_SENT),
    (SaslState.MECHANISMS_SENT,     SaslInput.RECV_INIT,       SaslState.INIT_RECEIVED),
    (SaslState.INIT_RECEIVED,       SaslInput.SEND_OK,         SaslState.DONE),
    (SaslState.INIT_RECEIVED,       SaslInput.SEND_FAILURE,    SaslState.FAILED),
    # client
    (SaslState.START,               SaslInput.SEND_HEADER,     SaslState.HEADER_SENT),
    (SaslState.HEADER_SENT,         SaslInput.RECV_HEADER,     SaslState.HEADER_EXCHANGED),
    (SaslState.HEADER_EXCHANGED,    SaslInput.RECV_MECHANISMS, SaslState.MECHANISMS_RECEIVED),
    (SaslState.MECHANISMS_RECEIVED, SaslInput.SEND_INIT,       SaslState.INIT_SENT),
    (SaslState.INIT_SENT,           SaslInput.RECV_OK,         SaslState.DONE),
    (SaslState.INIT_SENT,           SaslInput.RECV_FAILURE,    SaslState.FAILED),
)
# fmt: on
SASL = StateTable("SASL exchange", SaslState, SaslInput, SASL_MOVES, ())


class ConnectionState(IntEnum):
    """The states of AMQP 2.4.6, under the names of the specification."""

    START = 0
    HDR_RCVD = 1
    HDR_SENT = 2
    HDR_EXCH = 3
    OPEN_PIPE = 4
    OC_PIPE = 5
    OPEN_RCVD = 6
    OPEN_SENT = 7
    CLOSE_PIPE = 8
    OPENED = 9
    CLOSE_RCVD = 10
    CLOSE_SENT = 11
    DISCARDING = 12
    END = 13


class ConnectionInput(IntEnum):
    RECV_HEADER = 0
    SEND_HEADER = 1
    RECV_OPEN = 2
    SEND_OPEN = 3
    RECV_CLOSE = 4
    SEND_CLOSE = 5
    SEND_CLOSE_ERROR = 6
    RECV_FRAME = 7  # begin, attach, flow, transfer, disposition, detach, end
    SEND_FRAME = 8
    DISCONNECT = 9


_C, _CI = ConnectionState, ConnectionInput
# fmt: off
CONNECTION_MOVES = (
    (_C.START,      _CI.RECV_HEADER,      _C.HDR_RCVD),
    (_C.START,      _CI.SEND_HEADER,      _C.HDR_SENT),
    (_C.HDR_RCVD,   _CI.SEND_HEADER,      _C.HDR_EXCH),
    (_C.HDR_SENT,   _CI.RECV_HEADER,      _C.HDR_EXCH),
    (_C.HDR_SENT,   _CI.SEND_OPEN,        _C.OPEN_PIPE),
    (_C.HDR_EXCH,   _CI.RECV_OPEN,        _C.OPEN_RCVD),
    (_C.HDR_EXCH,   _CI.SEND_OPEN,        _C.OPEN_SENT),
    (_C.OPEN_PIPE,  _CI.RECV_HEADER,      _C.OPEN_SENT),
    (_C.OPEN_PIPE,  _CI.SEND_CLOSE,       _C.OC_PIPE),
    (_C.OC_PIPE,    _CI.RECV_HEADER,      _C.CLOSE_PIPE),
    (_C.OPEN_RCVD,  _CI.SEND_OPEN,        _C.OPENED),
    (_C.OPEN_SENT,  _CI.RECV_OPEN,        _C.OPENED),
    (_C.OPEN_SENT,  _CI.SEND_CLOSE,       _C.CLOSE_PIPE),
    (_C.CLOSE_PIPE, _CI.RECV_OPEN,        _C.CLOSE_SENT),
    (_C.OPENED,     _CI.RECV_CLOSE,       _C.CLOSE_RCVD),
    (_C.OPENED,     _CI.SEND_CLOSE,       _C.CLOSE_SENT),
    (_C.OPENED,     _CI.SEND_CLOSE_ERROR, _C.DISCARDING),
    (_C.CLOSE_RCVD, _CI.SEND_CLOSE,       _C.END),
    (_C.CLOSE_SENT, _CI.RECV_CLOSE,       _C.END),
    (_C.DISCARDING, _CI.RECV_CLOSE,       _C.END),
    *((state,       _CI.DISCONNECT,       _C.END) for state in _C if state is not _C.END),
)
CONNECTION_STAYS = (
    (_C.OPENED,     _CI.RECV_FRAME),
    (_C.OPENED,     _CI.SEND_FRAME),
    (_C.OPEN_PIPE,  _CI.SEND_FRAME),  # a client may pipeline (AMQP 2.4.5)
    (_C.OPEN_SENT,  _CI.SEND_FRAME),
    (_C.CLOSE_SENT, _CI.RECV_FRAME),  # sent before the peer saw our close; ignored
    (_C.DISCARDING, _CI.RECV_FRAME),
    (_C.END,        _CI.DISCONNECT),
)
# fmt: on
CONNECTION = StateTable(
    "connection", ConnectionState, ConnectionInput, CONNECTION_MOVES, CONNECTION_STAYS
)


class SessionState(IntEnum):
    """The states of AMQP 2.5.5."""

    UNMAPPED = 0
    BEGIN_SENT = 1
    BEGIN_RCVD = 2
    MAPPED = 3
    END_SENT = 4
    END_RCVD = 5
    DISCARDING = 6


class SessionInput(IntEnum):
    SEND_BEGIN = 0
    RECV_BEGIN = 1
    SEND_END = 2
    SEND_END_ERROR = 3
    RECV_END = 4
    RECV_FRAME = 5
    SEND_FRAME = 6


_S, _SI = SessionState, SessionInput
# fmt: off
SESSION_MOVES = (
    (_S.UNMAPPED,   _SI.SEND_BEGIN,     _S.BEGIN_SENT),
    (_S.UNMAPPED,   _SI.RECV_BEGIN,     _S.BEGIN_RCVD),
    (_S.BEGIN_SENT, _SI.RECV_BEGIN,     _S.MAPPED),
    (_S.BEGIN_RCVD, _SI.SEND_BEGIN,     _S.MAPPED),
    (_S.MAPPED,     _SI.SEND_END,       _S.END_SENT),
    (_S.MAPPED,     _SI.SEND_END_ERROR, _S.DISCARDING),
    (_S.MAPPED,     _SI.RECV_END,       _S.END_RCVD),
    (_S.END_SENT,   _SI.RECV_END,       _S.UNMAPPED),
    (_S.END_RCVD,   _SI.SEND_END,       _S.UNMAPPED),
    (_S.DISCARDING, _SI.RECV_END,       _S.UNMAPPED),
)
SESSION_STAYS = (
    (_S.MAPPED,     _SI.RECV_FRAME),
    (_S.MAPPED,     _SI.SEND_FRAME),
    (_S.BEGIN_SENT, _SI.SEND_FRAME),  # a client may pipeline attach and transfer
    (_S.END_SENT,   _SI.RECV_FRAME),  # sent before the peer saw our end; ignored
    (_S.DISCARDING, _SI.RECV_FRAME),
)
# fmt: on
SESSION = StateTable("session", SessionState, SessionInput, SESSION_MOVES, SESSION_STAYS)


class LinkState(IntEnum):
    """AMQP 2.6.3 to 2.6.6. Links are never resumed, so a detached link is CLOSED for good."""

    DETACHED = 0
    ATTACH_SENT = 1
    ATTACH_RECEIVED = 2  # the application has not answered yet
    ATTACHED = 3
    DETACH_SENT = 4
    DETACH_RECEIVED = 5
    DETACH_AHEAD = 6  # attached and detached by the peer before the application answered
    CLOSED = 7


class LinkInput(IntEnum):
    SEND_ATTACH = 0
    RECV_ATTACH = 1
    SEND_DETACH = 2
    RECV_DETACH = 3
    SEND_FLOW = 4
    RECV_FLOW = 5
    SEND_TRANSFER = 6
    RECV_TRANSFER = 7
    SESSION_ENDED = 8


_L, _LI = LinkState, LinkInput
# fmt: off
LINK_MOVES = (
    (_L.DETACHED,        _LI.SEND_ATTACH, _L.ATTACH_SENT),
    (_L.DETACHED,        _LI.RECV_ATTACH, _L.ATTACH_RECEIVED),
    (_L.ATTACH_SENT,     _LI.RECV_ATTACH, _L.ATTACHED),
    (_L.ATTACH_SENT,     _LI.SEND_DETACH, _L.DETACH_SENT),
    (_L.ATTACH_RECEIVED, _LI.SEND_ATTACH, _L.ATTACHED),
    (_L.ATTACH_RECEIVED, _LI.RECV_DETACH, _L.DETACH_AHEAD),
    (_L.DETACH_AHEAD,    _LI.SEND_ATTACH, _L.DETACH_RECEIVED),
    (_L.ATTACHED,        _LI.SEND_DETACH, _L.DETACH_SENT),
    (_L.ATTACHED,        _LI.RECV_DETACH, _L.DETACH_RECEIVED),
    (_L.DETACH_SENT,     _LI.RECV_DETACH, _L.CLOSED),
    (_L.DETACH_RECEIVED, _LI.SEND_DETACH, _L.CLOSED),
    *((state,            _LI.SESSION_ENDED, _L.CLOSED) for state in _L if state is not _L.CLOSED),
)
LINK_STAYS = (
    (_L.ATTACH_SENT,     _LI.SEND_FLOW),      # a client may pipeline
    (_L.ATTACH_SENT,     _LI.SEND_TRANSFER),
    (_L.ATTACH_RECEIVED, _LI.RECV_FLOW),      # so may the peer (protocol.md E19)
    (_L.ATTACH_RECEIVED, _LI.RECV_TRANSFER),
    (_L.ATTACHED,        _LI.SEND_FLOW),
    (_L.ATTACHED,        _LI.RECV_FLOW),
    (_L.ATTACHED,        _LI.SEND_TRANSFER),
    (_L.ATTACHED,        _LI.RECV_TRANSFER),
    (_L.DETACH_SENT,     _LI.RECV_ATTACH),    # sent before the peer saw our detach; ignored
    (_L.DETACH_SENT,     _LI.RECV_FLOW),
    (_L.DETACH_SENT,     _LI.RECV_TRANSFER),
    (_L.CLOSED,          _LI.SESSION_ENDED),
)
# fmt: on
LINK = StateTable("link", LinkState, LinkInput, LINK_MOVES, LINK_STAYS)
