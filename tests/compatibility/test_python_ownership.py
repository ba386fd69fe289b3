"""Owner levels (epochs) and the five shared readers (protocol.md 5.6), seen by azure-eventhub."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest
from azure.eventhub import CloseReason
from azure.eventhub.exceptions import ConnectionLostError

if TYPE_CHECKING:
    from tests.compatibility.conftest import Case, Outcomes, PythonSdk, Reading, Sdks, Spot


async def one_event(sdk: PythonSdk) -> Spot:
    """A reader that received it is attached."""
    spot = sdk.spot()
    await sdk.send(spot.hub, "one", partition_id=spot.partition)
    return spot


async def displaced(reading: Reading, text: str) -> None:
    error = await reading.error()
    assert isinstance(error, ConnectionLostError)
    assert error.error == "link:stolen"
    assert text in error.message
    assert "TrackingId:" in error.message


async def still_reads(sdk: PythonSdk, spot: Spot, reading: Reading) -> None:
    await sdk.send(spot.hub, "more", partition_id=spot.partition)
    assert (await reading.next()).body_as_str() == "more"


async def higher_level_displaces_lower(sdk: PythonSdk) -> None:
    spot = await one_event(sdk)
    async with sdk.reading(*spot, owner_level=1) as low:
        await low.next()
        async with sdk.reading(*spot, owner_level=2) as high:
            await high.next()
            await displaced(low, "with higher epoch of '2' is created hence current receiver")
            assert await asyncio.wait_for(low.closed.get(), 20) == CloseReason.OWNERSHIP_LOST
            await still_reads(sdk, spot, high)


async def equal_level_displaces_too(sdk: PythonSdk) -> None:
    spot = await one_event(sdk)
    async with sdk.reading(*spot, owner_level=0) as first:
        await first.next()
        async with sdk.reading(*spot, owner_level=0) as second:
            await second.next()
            await displaced(first, "is getting disconnected")
            await still_reads(sdk, spot, second)


async def lower_level_is_refused(sdk: PythonSdk) -> None:
    spot = await one_event(sdk)
    async with sdk.reading(*spot, owner_level=5) as high:
        await high.next()
        async with sdk.reading(*spot, owner_level=4) as low:
            await displaced(low, "with a higher epoch '5' already exists")
        await still_reads(sdk, spot, high)


async def level_displaces_shared_readers(sdk: PythonSdk) -> None:
    spot = await one_event(sdk)
    async with sdk.reading(*spot) as one, sdk.reading(*spot) as two:
        await one.next()
        await two.next()
        async with sdk.reading(*spot, owner_level=0) as owner:
            await owner.next()
            await displaced(one, "with epoch '' is getting disconnected")
            await displaced(two, "with epoch '' is getting disconnected")
            await still_reads(sdk, spot, owner)


async def shared_reader_is_refused_beside_a_level(sdk: PythonSdk) -> None:
    spot = await one_event(sdk)
    async with sdk.reading(*spot, owner_level=3) as owner:
        await owner.next()
        async with sdk.reading(*spot) as shared:
            await displaced(shared, "is created with epoch of '3'")
        await still_reads(sdk, spot, owner)


async def levels_count_for_one_partition_and_group(sdk: PythonSdk) -> None:
    hub = sdk.hub()
    await sdk.send(hub, "one", partition_id="0")
    await sdk.send(hub, "one", partition_id="1")
    async with contextlib.AsyncExitStack() as stack:
        readings = [
            await stack.enter_async_context(sdk.reading(hub, "0", owner_level=9)),
            await stack.enter_async_context(sdk.reading(hub, "1", owner_level=1)),
            await stack.enter_async_context(sdk.reading(hub, "0", group="readers", owner_level=0)),
            await stack.enter_async_context(sdk.reading(hub, "0", group="Other.Group_1")),
        ]
        for reading in readings:
            assert (await reading.next()).body_as_str() == "one"
        await sdk.send(hub, "two", partition_id="0")
        for reading in (readings[0], readings[2], readings[3]):
            assert (await reading.next()).body_as_str() == "two"


async def level_is_forgotten_when_its_reader_leaves(sdk: PythonSdk) -> None:
    spot = await one_event(sdk)
    async with sdk.reading(*spot, owner_level=7) as high:
        await high.next()
    async with sdk.reading(*spot, owner_level=1) as low:
        assert (await low.next()).body_as_str() == "one"


async def sixth_shared_reader_is_refused(sdk: PythonSdk) -> None:
    spot = await one_event(sdk)
    async with contextlib.AsyncExitStack() as stack:
        five = [await stack.enter_async_context(sdk.reading(*spot)) for _ in range(5)]
        for reading in five:
            await reading.next()
        async with sdk.reading(*spot) as sixth:
            error = await sixth.error()
        assert isinstance(error, ConnectionLostError)
        assert error.error == "resource-limit-exceeded"
        assert "Exceeded the maximum number of allowed receivers per partition" in error.message
        assert "which is 5. List of connected receivers - nil, nil, nil, nil, nil." in error.message
        async with sdk.reading(*spot, group="readers") as other_group:
            await other_group.next()
        await still_reads(sdk, spot, five[0])


async def place_of_a_reader_that_left_is_free(sdk: PythonSdk) -> None:
    spot = await one_event(sdk)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(4):
            await (await stack.enter_async_context(sdk.reading(*spot))).next()
        async with sdk.reading(*spot) as fifth:
            await fifth.next()
        async with sdk.reading(*spot) as next_fifth:
            assert (await next_fifth.next()).body_as_str() == "one"


CASES: list[Case] = [
    higher_level_displaces_lower,
    equal_level_displaces_too,
    lower_level_is_refused,
    level_displaces_shared_readers,
    shared_reader_is_refused_beside_a_level,
    levels_count_for_one_partition_and_group,
    level_is_forgotten_when_its_reader_leaves,
    sixth_shared_reader_is_refused,
    place_of_a_reader_that_left_is_free,
]


# A refused attach reaches on_error in the blocking client only: the asynchronous one hides it and
# tries again. Displacement in both flavours is proved in test_python_ways.py.
@pytest.fixture(scope="module")
def outcomes(sdks: Sdks) -> Outcomes:
    return sdks.run((CASES, [("sync", "tcp")]))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_ownership(outcomes: Outcomes, case: Case) -> None:
    outcomes.check(case, "sync")
