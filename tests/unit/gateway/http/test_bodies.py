"""Bodies: read only after the token, never past the limit, in any pieces, within a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.model import limits

if TYPE_CHECKING:
    from tests.unit.gateway.http.conftest import Response, World

MOST = limits.PUBLICATION_BYTES_STANDARD


def asked_before_answer(response: Response) -> int:
    """How often the body had been asked for when the answer began."""
    asked: int = response.messages[0]["asked"]
    return asked


def asked_in_all(response: Response) -> int:
    asked: int = response.messages[-1]["asked"]
    return asked


@pytest.mark.parametrize(
    "pieces", [[b"hello"], [b"he", b"llo"], [b"", b"hello", b""], [bytes([c]) for c in b"hello"]]
)
async def test_body_arrives_whole_in_any_pieces(world: World, pieces: list[bytes]) -> None:
    assert (await world.call(body=pieces)).status == 201
    assert world.one().body == b"hello"


async def test_body_in_chunks_needs_no_length(world: World) -> None:
    assert (await world.call(body=[b"x" * 1000] * 100)).status == 201
    assert world.one().body == b"x" * 100_000


@pytest.mark.parametrize("coding", ["gzip, chunked", "gzip", "identity", "chunked, chunked", ""])
async def test_body_in_another_coding_than_chunks_is_refused(world: World, coding: str) -> None:
    response = await world.call(headers={"Transfer-Encoding": coding}, length=None)
    assert response.status == 400
    assert "is not supported: chunked is" in response.detail
    assert world.stored() == []


@pytest.mark.parametrize(
    "case", ["bad token", "no token", "no right", "no hub", "no partition", "revoked", "method"]
)
async def test_body_is_not_read_before_everything_else_is_clear(world: World, case: str) -> None:
    world.revoke("dev")
    root = world.token("https://localhost/")
    options: dict[str, dict[str, Any]] = {
        "bad token": {"token": world.token(key="wrong")},
        "no token": {"token": None},
        "no right": {"token": world.token(policy="Listener")},
        "no hub": {"path": "/nothing/messages", "token": root},
        "no partition": {"path": "/events/partitions/9/messages"},
        "revoked": {"path": "/events/publishers/dev/messages"},
        "method": {"method": "PATCH"},
    }
    response = await world.call(**options[case])
    assert 400 <= response.status < 500
    assert asked_in_all(response) == 0
    assert "connection" not in response.headers  # five bytes: the server reads over them


async def test_declared_length_above_the_limit_is_refused_unread(world: World) -> None:
    response = await world.call(body=b"x" * (MOST + 1))
    assert response.status == 413
    assert f"body has {MOST + 1} bytes" in response.detail
    assert asked_before_answer(response) == 0
    assert response.headers["connection"] == "close"


async def test_chunks_are_counted_and_given_up_at_the_limit(world: World) -> None:
    response = await world.call(body=[b"x" * 65536] * 40)
    assert response.status == 413
    assert f"has more than {MOST} bytes" in response.detail
    assert asked_before_answer(response) == MOST // 65536 + 1
    assert response.headers["connection"] == "close"
    assert world.stored() == []


async def test_one_chunk_above_the_limit_is_refused(world: World) -> None:
    response = await world.call(body=[b"x" * (MOST + 1)])
    assert response.status == 413
    assert world.stored() == []


async def test_client_that_goes_on_sending_is_heard_for_a_while_only(world: World) -> None:
    """So that it comes to read the answer; then the connection ends."""
    response = await world.call(body=[b"x" * 65536] * 200)
    start, answer, last = response.messages
    assert start["status"] == 413
    assert answer["body"] == response.body
    assert answer["more_body"]
    assert last["body"] == b""
    discarded = (last["asked"] - answer["asked"]) * 65536
    assert limits.HTTP_DISCARDED_BYTES_MAX < discarded <= limits.HTTP_DISCARDED_BYTES_MAX + 65536


async def test_client_that_stops_sending_is_not_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HTTP_DISCARD_DEADLINE_S", 0.01)
    response = await world.call(body=[b"x"], token=None, never_ends=True)
    assert response.status == 401
    assert len(response.messages) == 3


async def test_client_that_waits_for_leave_sends_nothing_when_refused(world: World) -> None:
    headers = {"Expect": "100-continue"}
    response = await world.call(token=None, headers=headers)
    assert response.status == 401
    assert response.headers["connection"] == "close"
    assert asked_in_all(response) == 0


async def test_client_that_waits_for_leave_gets_it_when_welcome(world: World) -> None:
    assert (await world.call(headers={"Expect": "100-continue"})).status == 201


async def test_body_that_does_not_end_in_time_is_a_timeout(make_world: Any) -> None:
    world: World = make_world(deadline_s=0.01)
    response = await world.call(body=[b"half"], never_ends=True)
    assert response.status == 408
    assert "was not complete within 0.01 seconds; nothing was stored" in response.detail
    assert response.headers["connection"] == "close"
    assert world.stored() == []


async def test_timeout_of_the_query_is_the_deadline(make_world: Any) -> None:
    world: World = make_world(deadline_s=0.01)
    world.logs.stands_still = True
    response = await world.call(query="timeout=1")
    assert response.status == 408
    assert "within 1 seconds" in response.detail


async def test_client_that_leaves_is_not_answered(world: World) -> None:
    response = await world.call(body=[b"half"], leaves=True)
    assert response.messages == []
    assert world.stored() == []


async def test_client_that_left_at_once_is_not_answered(world: World) -> None:
    response = await world.call(body=[])
    assert response.messages == []
    assert world.stored() == []


async def test_batch_body_may_be_longer_than_its_publication(world: World) -> None:
    headers = {"Content-Type": "application/vnd.microsoft.servicebus.json"}
    response = await world.call(body=b" " * (2 * MOST + 1), headers=headers)
    assert response.status == 413
    response = await world.call(body=b" " * (2 * MOST - 14) + b'[{"Body":"x"}]', headers=headers)
    assert response.status == 201
