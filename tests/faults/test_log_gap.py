"""A closed segment is missing: a consumer of a whole broker gets the error that names the lost
events on its link, and the connection stays open for all other links."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from tests.faults.harness.history import History
from tests.faults.harness.traffic import Clients, Shape

from penstock.client.errors import ClientError
from penstock.log.embedded.store import EmbeddedLogStore
from penstock.testing import broker

HUB = "events"
SEGMENT_BYTES = 8_000


async def publish(connection_string: str, history: History) -> None:
    async with Clients(connection_string, HUB, history) as clients:
        await clients.read()
        connection = await clients.connect()
        for partition in range(2):
            publisher = await clients.publisher(connection, partition=partition, shape=Shape())
            publisher.start()
        await clients.until(lambda: clients.acknowledged >= 300)
        await clients.drain()
        await clients.catch_up()
        assert history.check() == []


async def read_over_the_gap(connection_string: str, history: History) -> ClientError:
    """Reads partition 0 until its link ends, twice, and all of partition 1, over one connection."""
    async with Clients(connection_string, HUB, history) as clients:
        connection = await clients.connect()
        for _ in range(2):  # the same error when the consumer comes back
            clients.reader_errors.clear()
            await clients.read_from(connection, 0, 0)
            await clients.until(lambda: bool(clients.reader_errors))
        error = clients.reader_errors[0]
        before = clients.events_read
        await clients.read_from(connection, 1, 0)
        rest = history.next_sequence(1)
        await clients.until(lambda: clients.events_read >= before + rest)
        assert not connection.closed.done()
        return error


@pytest.mark.parametrize("harm", ["removed", "cut"])
def test_missing_segment_ends_one_link_with_a_named_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    defaults = EmbeddedLogStore.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "segment_bytes", SEGMENT_BYTES)
    monkeypatch.setitem(defaults, "tail_cache_bytes", 1)
    history = History(2)
    with broker(data=tmp_path, partitions=2) as running:
        asyncio.run(publish(running.connection_string, history))
    segments = sorted(tmp_path.glob("log/*/0/*.log"))
    assert len(segments) >= 4
    victim = segments[len(segments) // 2]
    if harm == "removed":
        victim.unlink()
    else:
        victim.write_bytes(victim.read_bytes()[:-50])
    history.crash()
    with broker(data=tmp_path, partitions=2) as running:
        error = asyncio.run(read_over_the_gap(running.connection_string, history))
    assert "amqp:internal-error" in str(error)
    found = re.search(r"The events (\d+) to (\d+) cannot be read", str(error))
    assert found is not None
    assert 0 < int(found[1]) <= int(found[2]) < history.next_sequence(0)
    assert str(tmp_path) not in str(error)
