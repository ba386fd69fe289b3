"""A wall clock that is set while events come in, forwards and backwards."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.faults.harness.faulty_files import JumpingClock
from tests.faults.harness.history import AnomalyKind, History
from tests.faults.harness.traffic import Clients, read_everything

from penstock.client import Connection, Sender
from penstock.client.errors import ClientDenied
from penstock.log.embedded.partition import EmbeddedPartition

if TYPE_CHECKING:
    from tests.faults.harness.conftest import StartInside

HUB, PARTITIONS = "faults", 4
MINUTE = 60_000
HOUR = 60 * MINUTE
TOKEN_MS = HOUR  # what the client asks for
DEADLINE_S = 20
# In the end the clock is right again. Never so far ahead that the tokens would be over.
JUMPS = (-1 * HOUR, 90 * MINUTE, -26 * HOUR, 26 * HOUR, -1, 1, 20 * MINUTE, -50 * MINUTE)


async def test_enqueued_time_never_goes_back_though_the_clock_does(
    tmp_path: Path, serve_inside: StartInside
) -> None:
    clock, history = JumpingClock(), History(PARTITIONS)
    assert sum(JUMPS) == 0
    async with serve_inside(tmp_path / "data", clock=clock) as facts:
        async with Clients(facts["emulator_connection_string"], HUB, history) as clients:
            await clients.read()
            await clients.publish()
            for jump in JUMPS:
                clock.jump(jump)
                await clients.until_acknowledged(40)
            await clients.drain()
            await clients.catch_up()
            assert history.check() == []
            assert clients.refused == 0
        newest = [history.newest_ms(partition) for partition in range(PARTITIONS)]
    # Half an hour ahead it once was; nothing enqueued since then may look older.
    assert all(time_ms >= clock.now_ms() + 25 * MINUTE for time_ms in newest)

    history.crash()
    clock.jump(-48 * HOUR)
    async with serve_inside(tmp_path / "data", clock=clock) as facts:
        string = facts["emulator_connection_string"]
        assert await read_everything(string, HUB, history) == []
    assert [history.newest_ms(partition) for partition in range(PARTITIONS)] == newest


async def test_clock_that_goes_back_shows_when_the_log_follows_it(
    tmp_path: Path, serve_inside: StartInside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: a log that forgets how late it was."""

    def forgetful(log: EmbeddedPartition, *given: Any, **named: Any) -> None:
        log._appended_ms = 0
        append(log, *given, **named)

    append = EmbeddedPartition.append
    monkeypatch.setattr(EmbeddedPartition, "append", forgetful)
    clock, history = JumpingClock(), History(PARTITIONS)
    async with serve_inside(tmp_path / "data", clock=clock) as facts:
        clients = Clients(facts["emulator_connection_string"], HUB, history)
        async with clients:
            await clients.read()
            await clients.catch_up()
            clock.jump(-1 * HOUR)
            await clients.catch_up()
            history.check()
    assert history.kinds() == {AnomalyKind.TIME}


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grants are compared with the wall clock every 50 ms, not only every 15 s."""
    monkeypatch.setattr("penstock.gateway.amqp.links._CHECK_MS", 50)


@pytest.mark.usefixtures("often")
async def test_tokens_are_judged_by_the_clock_as_it_is(
    tmp_path: Path, serve_inside: StartInside
) -> None:
    clock = JumpingClock()
    async with serve_inside(tmp_path / "data", clock=clock) as facts:
        clients = Clients(facts["emulator_connection_string"], HUB, History(PARTITIONS))
        async with clients:
            connection = await clients.connect()
            sender = await connection.sender(f"{HUB}/Partitions/0")

            # Set back: the token is good for longer, and nobody is put out.
            clock.jump(-3 * HOUR)
            await connection.authorise(HUB)
            assert sender.error is None

            # Set right, and far ahead: over, for the link that is there and for a new token.
            clock.jump(3 * HOUR)
            await connection.authorise(HUB)
            clock.jump(TOKEN_MS + MINUTE)
            await until_ended(connection, sender)
            with pytest.raises(ClientDenied, match="ExpiredToken"):
                await connection.authorise(HUB)
            assert not connection.closed.done()

            # Right again: the same connection goes on with a new token and a new link.
            clock.jump(-TOKEN_MS - MINUTE)
            await connection.authorise(HUB)
            assert (await connection.sender(f"{HUB}/Partitions/0")).error is None


async def until_ended(connection: Connection, sender: Sender) -> None:
    ended = asyncio.get_running_loop().create_future()

    def look() -> None:
        if sender.error is not None and not ended.done():
            ended.set_result(None)

    sender.on_room_callback = look
    look()
    async with asyncio.timeout(DEADLINE_S):
        await ended
    assert sender.error is not None
    assert sender.error.error is not None
    assert sender.error.error.condition == "amqp:unauthorized-access"
