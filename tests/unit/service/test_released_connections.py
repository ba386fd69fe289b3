"""A connection that has ended is freed by reference counting alone: the service's garbage collector
does not visit long-lived objects again (service/garbage_collection.py)."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from penstock.amqp.types import Symbol
from penstock.broker.hub import SenderLink
from penstock.broker.idempotent_producers import ProducerLink
from penstock.broker.reader import Reader
from penstock.client import parse_connection_string
from penstock.client.connection import Connection, connect
from penstock.client.errors import ClientError
from penstock.gateway.amqp.connection import AmqpConnection
from penstock.gateway.amqp.links import LinkHandler
from penstock.gateway.guard import ConnectionSlot
from penstock.model.connection_string import Endpoint
from penstock.service.config.settings import Settings
from penstock.service.wiring import Penstock

DEADLINE_S = 30
HUB = "events"


@pytest.fixture
async def endpoint(tmp_path: Path) -> AsyncIterator[Endpoint]:
    settings = Settings(
        data=tmp_path / "data",
        amqp_port=0,
        amqps_port=0,
        https_port=0,
        admin_port=0,
        portal=False,
    )
    penstock = Penstock(settings)
    facts = await penstock.start()
    yield parse_connection_string(facts.emulator_connection_string or "")
    await penstock.stop()


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def publish(connection: Connection) -> None:
    await connection.authorise(HUB)
    await connection.sender(HUB)


async def publish_idempotently(connection: Connection) -> None:
    partition = f"{HUB}/Partitions/0"
    await connection.authorise(HUB)
    await connection.sender(
        partition, desired_capabilities=[Symbol("com.microsoft:idempotent-producer")]
    )


async def read(connection: Connection) -> None:
    await connection.authorise(HUB)
    await connection.receiver(
        f"{HUB}/ConsumerGroups/$Default/Partitions/0", credit=10, on_transfers=lambda _: None
    )


async def manage(connection: Connection) -> None:
    operation = {"operation": "READ", "name": HUB, "type": "com.microsoft:eventhub"}
    await connection.manage(dict(operation), hub=HUB)


async def ask_for_a_missing_hub(connection: Connection) -> None:
    with pytest.raises(ClientError):
        await connection.sender("missing")


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("how", ["closed", "aborted"])
@pytest.mark.parametrize(
    "use", [publish, publish_idempotently, read, manage, ask_for_a_missing_hub]
)
async def test_connection_that_ended_needs_no_collection(
    endpoint: Endpoint, use: Callable[[Connection], Awaitable[None]], how: str
) -> None:
    connection = await connect(endpoint, timeout_s=DEADLINE_S)
    await use(connection)
    assert _live()["AmqpConnection"] == 1
    if how == "closed":
        await connection.close()
    else:
        connection.abort()
    async with asyncio.timeout(DEADLINE_S):
        while _live():  # noqa: ASYNC110 - nothing is notified when an object is freed
            await asyncio.sleep(0.01)


def _live() -> Counter[str]:
    """What exists for connections, on the service's side."""
    kinds = (AmqpConnection, ConnectionSlot, LinkHandler, SenderLink, ProducerLink, Reader)
    return Counter(type(item).__name__ for item in gc.get_objects() if isinstance(item, kinds))
