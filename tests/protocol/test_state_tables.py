"""The state tables, every (state, input) pair, against lists written apart from them.

The expectations below are spelled from AMQP 2.4.6, 2.5.5, 2.6.3-2.6.6 and 5.3.2 in words, by state:
"INPUT" alone stays, "INPUT -> STATE" moves; whatever is not named must be refused.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import pytest

from penstock.amqp.errors import AmqpError, LocalError
from penstock.amqp.states import (
    CONNECTION,
    LINK,
    SASL,
    SESSION,
    ConnectionState,
    IllegalState,
    LinkState,
    SaslState,
    SessionInput,
    SessionState,
    StateTable,
)

Table = StateTable[Any, Any]

EXPECTED: dict[str, dict[str, str]] = {
    "SASL exchange": {
        "START": "RECV_HEADER -> HEADER_EXCHANGED, SEND_HEADER -> HEADER_SENT",
        "HEADER_SENT": "RECV_HEADER -> HEADER_EXCHANGED",
        "HEADER_EXCHANGED": (
            "SEND_MECHANISMS -> MECHANISMS_SENT, RECV_MECHANISMS -> MECHANISMS_RECEIVED"
        ),
        "MECHANISMS_SENT": "RECV_INIT -> INIT_RECEIVED",
        "MECHANISMS_RECEIVED": "SEND_INIT -> INIT_SENT",
        "INIT_SENT": "RECV_OK -> DONE, RECV_FAILURE -> FAILED",
        "INIT_RECEIVED": "SEND_OK -> DONE, SEND_FAILURE -> FAILED",
        "DONE": "",
        "FAILED": "",
    },
    "connection": {
        "START": "RECV_HEADER -> HDR_RCVD, SEND_HEADER -> HDR_SENT, DISCONNECT -> END",
        "HDR_RCVD": "SEND_HEADER -> HDR_EXCH, DISCONNECT -> END",
        "HDR_SENT": "RECV_HEADER -> HDR_EXCH, SEND_OPEN -> OPEN_PIPE, DISCONNECT -> END",
        "HDR_EXCH": "RECV_OPEN -> OPEN_RCVD, SEND_OPEN -> OPEN_SENT, DISCONNECT -> END",
        "OPEN_PIPE": (
            "RECV_HEADER -> OPEN_SENT, SEND_CLOSE -> OC_PIPE, SEND_FRAME, DISCONNECT -> END"
        ),
        "OC_PIPE": "RECV_HEADER -> CLOSE_PIPE, DISCONNECT -> END",
        "OPEN_RCVD": "SEND_OPEN -> OPENED, DISCONNECT -> END",
        "OPEN_SENT": (
            "RECV_OPEN -> OPENED, SEND_CLOSE -> CLOSE_PIPE, SEND_FRAME, DISCONNECT -> END"
        ),
        "CLOSE_PIPE": "RECV_OPEN -> CLOSE_SENT, DISCONNECT -> END",
        "OPENED": (
            "RECV_FRAME, SEND_FRAME, RECV_CLOSE -> CLOSE_RCVD, SEND_CLOSE -> CLOSE_SENT, "
            "SEND_CLOSE_ERROR -> DISCARDING, DISCONNECT -> END"
        ),
        "CLOSE_RCVD": "SEND_CLOSE -> END, DISCONNECT -> END",
        "CLOSE_SENT": "RECV_FRAME, RECV_CLOSE -> END, DISCONNECT -> END",
        "DISCARDING": "RECV_FRAME, RECV_CLOSE -> END, DISCONNECT -> END",
        "END": "DISCONNECT",
    },
    "session": {
        "UNMAPPED": "SEND_BEGIN -> BEGIN_SENT, RECV_BEGIN -> BEGIN_RCVD",
        "BEGIN_SENT": "RECV_BEGIN -> MAPPED, SEND_FRAME",
        "BEGIN_RCVD": "SEND_BEGIN -> MAPPED",
        "MAPPED": (
            "RECV_FRAME, SEND_FRAME, SEND_END -> END_SENT, SEND_END_ERROR -> DISCARDING, "
            "RECV_END -> END_RCVD"
        ),
        "END_SENT": "RECV_FRAME, RECV_END -> UNMAPPED",
        "END_RCVD": "SEND_END -> UNMAPPED",
        "DISCARDING": "RECV_FRAME, RECV_END -> UNMAPPED",
    },
    "link": {
        "DETACHED": (
            "SEND_ATTACH -> ATTACH_SENT, RECV_ATTACH -> ATTACH_RECEIVED, SESSION_ENDED -> CLOSED"
        ),
        "ATTACH_SENT": (
            "SEND_FLOW, SEND_TRANSFER, RECV_ATTACH -> ATTACHED, SEND_DETACH -> DETACH_SENT, "
            "SESSION_ENDED -> CLOSED"
        ),
        "ATTACH_RECEIVED": (
            "RECV_FLOW, RECV_TRANSFER, SEND_ATTACH -> ATTACHED, RECV_DETACH -> DETACH_AHEAD, "
            "SESSION_ENDED -> CLOSED"
        ),
        "DETACH_AHEAD": "SEND_ATTACH -> DETACH_RECEIVED, SESSION_ENDED -> CLOSED",
        "ATTACHED": (
            "SEND_FLOW, RECV_FLOW, SEND_TRANSFER, RECV_TRANSFER, SEND_DETACH -> DETACH_SENT, "
            "RECV_DETACH -> DETACH_RECEIVED, SESSION_ENDED -> CLOSED"
        ),
        "DETACH_SENT": (
            "RECV_ATTACH, RECV_FLOW, RECV_TRANSFER, RECV_DETACH -> CLOSED, SESSION_ENDED -> CLOSED"
        ),
        "DETACH_RECEIVED": "SEND_DETACH -> CLOSED, SESSION_ENDED -> CLOSED",
        "CLOSED": "SESSION_ENDED",
    },
}

TABLES: list[tuple[Table, IntEnum, set[IntEnum]]] = [
    (SASL, SaslState.START, {SaslState.DONE, SaslState.FAILED}),
    (CONNECTION, ConnectionState.START, {ConnectionState.END}),
    (SESSION, SessionState.UNMAPPED, {SessionState.UNMAPPED}),
    (LINK, LinkState.DETACHED, {LinkState.CLOSED}),
]
PAIRS = [
    pytest.param(table, state, given, id=f"{table.name}-{state.name}-{given.name}")
    for table, _, _ in TABLES
    for state in table.states
    for given in table.inputs
]


def expected(table: Table, state: IntEnum) -> dict[str, str]:
    """input -> state after it, as spelled above."""
    after = {}
    for row in filter(None, EXPECTED[table.name][state.name].split(", ")):
        given, _, moved = row.partition(" -> ")
        assert given not in after
        after[given] = moved or state.name
    return after


def states(table: Table) -> list[IntEnum]:
    return [state for state in table.states]


def inputs(table: Table) -> list[IntEnum]:
    return [given for given in table.inputs]


def successors(table: Table, state: IntEnum) -> set[IntEnum]:
    return {table.after(state, given) for given in table.inputs if table.allows(state, given)} - {
        state
    }


@pytest.mark.parametrize(("table", "state", "given"), PAIRS)
def test_every_pair_does_what_the_specification_says(
    table: Table, state: IntEnum, given: IntEnum
) -> None:
    after = expected(table, state).get(given.name)
    assert table.allows(state, given) == (after is not None)
    if after is not None:
        assert table.after(state, given) is table.states[after]
        return
    with pytest.raises(AmqpError) as refused:
        table.after(state, given)
    blamed = LocalError if given.name.startswith("SEND_") else IllegalState
    assert type(refused.value) is blamed
    assert state.name in str(refused.value)
    assert given.name in str(refused.value)


def test_the_expectations_name_only_states_and_inputs_that_exist() -> None:
    for table, _, _ in TABLES:
        assert set(EXPECTED[table.name]) == {state.name for state in table.states}
        for state in table.states:
            row = expected(table, state)
            assert set(row) <= {given.name for given in table.inputs}
            assert set(row.values()) <= {each.name for each in table.states}


@pytest.mark.parametrize(("table", "start", "final"), TABLES, ids=lambda part: str(part)[:12])
def test_every_state_can_be_reached_from_the_start(
    table: Table, start: IntEnum, final: set[IntEnum]
) -> None:
    reached, waiting = {start}, [start]
    while waiting:
        for state in successors(table, waiting.pop()) - reached:
            reached.add(state)
            waiting.append(state)
    assert reached == set(states(table))


@pytest.mark.parametrize(("table", "start", "final"), TABLES, ids=lambda part: str(part)[:12])
def test_every_state_leads_to_the_end(table: Table, start: IntEnum, final: set[IntEnum]) -> None:
    leading = set(final)
    while True:
        more = {s for s in table.states if successors(table, s) & leading} - leading
        if not more:
            break
        leading |= more
    assert leading == set(states(table))


@pytest.mark.parametrize(("table", "start", "final"), TABLES, ids=lambda part: str(part)[:12])
def test_nothing_but_the_end_is_a_dead_end(
    table: Table, start: IntEnum, final: set[IntEnum]
) -> None:
    dead_ends = {state for state in table.states if not successors(table, state)}
    assert dead_ends <= final
    assert dead_ends or start in final  # a session may be mapped again


def test_every_input_is_good_for_something() -> None:
    for table, _, _ in TABLES:
        for given in table.inputs:
            assert any(table.allows(state, given) for state in table.states), given


def test_states_are_numbered_so_that_they_index_rows() -> None:
    for table, _, _ in TABLES:
        for numbered in (states(table), inputs(table)):
            assert [int(each) for each in numbered] == list(range(len(numbered)))


@pytest.mark.skipif(not __debug__, reason="an assertion of ours, off with -O")
def test_a_pair_that_is_listed_twice_is_refused() -> None:
    moves = [(SessionState.UNMAPPED, SessionInput.SEND_BEGIN, SessionState.BEGIN_SENT)]
    stays = [(SessionState.UNMAPPED, SessionInput.SEND_BEGIN)]
    with pytest.raises(AssertionError):
        StateTable("twice", SessionState, SessionInput, moves, stays)


def test_the_engine_never_silently_ignores_a_peers_input_when_running() -> None:
    """Frames are ignored only where our own goodbye is on its way."""
    ignored = {
        (table.name, state.name)
        for table, _, _ in TABLES
        for state in table.states
        for given in table.inputs
        if given.name.startswith("RECV_")
        and table.allows(state, given)
        and table.after(state, given) is state
    }
    assert ignored == {
        ("connection", "OPENED"),
        ("connection", "CLOSE_SENT"),
        ("connection", "DISCARDING"),
        ("session", "MAPPED"),
        ("session", "END_SENT"),
        ("session", "DISCARDING"),
        ("link", "ATTACH_RECEIVED"),
        ("link", "ATTACHED"),
        ("link", "DETACH_SENT"),
    }
