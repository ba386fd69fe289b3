"""Lag and seek: how far a group is, and how its checkpoints are moved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from penstock.formats.positions import parse_log_position
from penstock.management.errors import GroupInUse
from penstock.management.operations.groups import LEASE_FRESH_MS, LagQuery
from penstock.management.permissions import AdminRole, Forbidden
from penstock.management.resources import SeekBody
from penstock.model.checkpoints import Checkpoint, Ownership
from penstock.model.errors import ArgumentError, ArgumentOutOfRange, NotFound
from penstock.model.positions import EARLIEST, PositionKind

if TYPE_CHECKING:
    from tests.unit.management.conftest import Caller, Plane

GROUP = ("contoso", "orders", "Readers")
OWN = "/providers/Penstock/namespaces/contoso"


@pytest.fixture
def read(full: Plane) -> Plane:
    """Ten events on partition 0, two batches a second apart, and a checkpoint after the fourth."""
    full.publish(*[b"a"] * 6)
    full.clock.advance(1000)
    full.publish(*[b"b"] * 4)
    full.clock.advance(500)
    saved = Checkpoint(partition_id="0", offset="18", sequence_number=3)
    full.kept.saved[full.hub_id, "readers"] = {"0": saved}
    return full


def own(plane: Plane, partition: str, owner: str = "me", *, age_ms: int = 0) -> None:
    lease = Ownership(
        partition_id=partition,
        owner_id=owner,
        etag="e",
        modified_ms=plane.clock.now_ms() - age_ms,
    )
    plane.kept.owned[plane.hub_id, "readers"] = [lease]


def kept(plane: Plane, partition: str = "0") -> Checkpoint:
    return plane.kept.saved[plane.hub_id, "readers"][partition]


async def test_lag_tells_of_every_group_and_partition(read: Plane) -> None:
    rows = await read.as_(AdminRole.VIEWER).groups.list_lag("contoso", "ORDERS", query=LagQuery())
    assert [(row.group, row.partition) for row in rows] == [
        (group, str(number)) for group in ("$Default", "readers") for number in range(4)
    ]
    row = rows[4]
    assert (row.last_sequence_number, row.checkpoint_sequence_number) == (9, 3)
    assert (row.lag_events, row.lag_seconds) == (6, 1.5)


async def test_lag_of_one_group_and_of_all_hubs(read: Plane) -> None:
    groups = read.admin.groups
    assert len(await groups.list_lag("contoso", "orders", query=LagQuery("READERS"))) == 4
    assert len(await groups.list_lag("contoso", query=LagQuery())) == 8
    assert len(await groups.list_lag("contoso", query=LagQuery("readers"))) == 4
    assert await groups.list_lag("contoso", query=LagQuery("nobody")) == []


async def test_lag_of_what_does_not_exist_is_not_found(read: Plane) -> None:
    groups = read.admin.groups
    for path in [("missing",), ("contoso", "missing"), ("contoso", "orders", "missing")]:
        with pytest.raises(NotFound, match="missing"):
            await groups.list_lag(*path[:2], query=LagQuery(*path[2:]))
    with pytest.raises(Forbidden):
        await read.as_(AdminRole.NOBODY).groups.list_lag("contoso", query=LagQuery())


@pytest.mark.parametrize(
    ("to", "following", "offset"),
    [
        ("earliest", 0, "-1"),
        ("Latest", 10, None),
        ("0", 0, "-1"),
        ("1", 1, "0"),
        ("5", 5, "24"),
        ("6", 6, "30"),
        ("10", 10, None),
    ],
)
async def test_seek_puts_the_checkpoint_before_what_comes_next(
    read: Plane, to: str, following: int, offset: str | None
) -> None:
    (moved,) = await read.admin.groups.seek_consumer_group(*GROUP, SeekBody(to=to, partition="0"))
    assert (moved.from_sequence_number, moved.to_sequence_number) == (4, following)
    assert moved.delta == following - 4
    assert kept(read).sequence_number == following - 1
    last = str(read.broker.hub("contoso", "orders").status(0).last_offset)
    assert kept(read).offset == (last if offset is None else offset)
    (row,) = [
        row
        for row in await read.admin.groups.list_lag(*GROUP[:2], query=LagQuery(GROUP[2]))
        if row.partition == "0"
    ]
    assert row.lag_events == 10 - following


async def test_seek_by_time_goes_to_the_first_event_of_then(read: Plane) -> None:
    start = datetime.fromtimestamp(read.clock.now_ms() / 1000, UTC) - timedelta(seconds=1.5)
    for seconds, following in [(-9, 0), (0, 0), (0.5, 6), (1, 6), (1.25, 10)]:
        to = (start + timedelta(seconds=seconds)).isoformat()
        (moved,) = await read.admin.groups.seek_consumer_group(
            *GROUP, SeekBody(to=to, partition="0")
        )
        assert moved.to_sequence_number == following, to


async def test_seek_moves_every_partition_unless_one_is_named(read: Plane) -> None:
    moved = await read.admin.groups.seek_consumer_group(*GROUP, SeekBody(to="latest"))
    assert [(each.partition, each.to_sequence_number) for each in moved] == [
        ("0", 10),
        ("1", 0),
        ("2", 0),
        ("3", 0),
    ]
    assert [each.from_sequence_number for each in moved] == [4, None, None, None]
    assert moved[1].delta is None
    assert kept(read, "1").sequence_number == -1


async def test_seek_after_retention_begins_with_the_oldest_event(read: Plane) -> None:
    read.clock.advance(25 * 3_600_000)
    read.publish(b"c")
    read.broker.enforce_retention()
    begin = read.broker.hub("contoso", "orders").status(0).begin_sequence
    assert begin > 0
    (moved,) = await read.admin.groups.seek_consumer_group(*GROUP, SeekBody(to="2", partition="0"))
    assert moved.to_sequence_number == begin
    assert kept(read).offset == "-1"


async def test_dry_run_tells_and_changes_nothing(read: Plane) -> None:
    own(read, "0")
    (moved,) = await read.as_(AdminRole.VIEWER).groups.seek_consumer_group(
        *GROUP, SeekBody(to="earliest", partition="0", dry_run=True)
    )
    assert moved.delta == -4
    assert kept(read).sequence_number == 3
    assert "consumergroups/seek" not in [what for _, what, _ in read.audit()]


async def test_seek_is_refused_while_a_processor_holds_a_lease(read: Plane) -> None:
    own(read, "0")
    with pytest.raises(GroupInUse, match="'me' holds partition 0"):
        await read.admin.groups.seek_consumer_group(*GROUP, SeekBody(to="earliest"))
    assert kept(read).sequence_number == 3
    await read.admin.groups.seek_consumer_group(
        *GROUP, SeekBody(to="latest", partition="1")
    )  # not the one that is held
    (moved,) = await read.admin.groups.seek_consumer_group(
        *GROUP, SeekBody(to="earliest", partition="0", force=True)
    )
    assert moved.delta == -4


async def test_seek_passes_over_leases_given_up_or_long_not_renewed(read: Plane) -> None:
    own(read, "0", age_ms=LEASE_FRESH_MS)
    await read.admin.groups.seek_consumer_group(*GROUP, SeekBody(to="1", partition="0"))
    own(read, "0", owner="")
    await read.admin.groups.seek_consumer_group(*GROUP, SeekBody(to="2", partition="0"))
    assert kept(read).sequence_number == 1


async def test_seek_is_refused_for_an_old_lease_whose_reader_is_connected(read: Plane) -> None:
    own(read, "0", age_ms=10 * LEASE_FRESH_MS)
    reader = read.broker.hub("contoso", "orders").open_reader(
        group="readers",
        partition=0,
        position=EARLIEST,
        epoch=None,
        name=None,
        on_end=lambda _error: None,
        on_ready=lambda: None,
    )
    with pytest.raises(GroupInUse):
        await read.admin.groups.seek_consumer_group(*GROUP, SeekBody(to="earliest"))
    reader.close()
    await read.admin.groups.seek_consumer_group(*GROUP, SeekBody(to="earliest"))


async def test_seek_needs_an_operator_and_is_recorded(read: Plane) -> None:
    with pytest.raises(Forbidden):
        await read.as_(AdminRole.VIEWER).groups.seek_consumer_group(*GROUP, SeekBody(to="latest"))
    await read.as_(AdminRole.OPERATOR, "ann").groups.seek_consumer_group(
        *GROUP, SeekBody(to="latest", partition="0")
    )
    assert read.audit()[-2:] == [
        ("viewer", "consumergroups/seek", "denied: contoso/orders/Readers"),
        ("ann", "consumergroups/seek", "contoso/orders/readers: partition 0 to latest"),
    ]


@pytest.mark.parametrize(
    "to", ["", "first", "-1", "1.5", "2026-99-01", "9" * 40, "x" * 1000, "0001-01-01T00:00+14:00"]
)
async def test_seek_to_no_position_is_an_argument_error(read: Plane, to: str) -> None:
    if to.startswith("0001"):  # before all time: the oldest event
        assert parse_log_position(to).value == 0
        return
    with pytest.raises(ArgumentError, match="is not a position"):
        await read.admin.groups.seek_consumer_group(*GROUP, SeekBody(to=to))


async def test_seek_beyond_the_end_or_the_partitions_is_out_of_range(read: Plane) -> None:
    with pytest.raises(ArgumentOutOfRange, match="partition 0: 10 is the next"):
        await read.admin.groups.seek_consumer_group(*GROUP, SeekBody(to="11", partition="0"))
    with pytest.raises(ArgumentOutOfRange):
        await read.admin.groups.seek_consumer_group(*GROUP, SeekBody(to="earliest", partition="4"))
    with pytest.raises(NotFound):
        await read.admin.groups.seek_consumer_group(
            "contoso", "orders", "nobody", SeekBody(to="earliest")
        )


def test_times_without_a_zone_are_utc() -> None:
    with_zone, without = (parse_log_position(f"2026-11-16T08:30:00{zone}") for zone in ("Z", ""))
    assert with_zone == without
    assert with_zone.kind is PositionKind.ENQUEUED_TIME


async def test_lag_and_seek_over_the_api(call: Caller) -> None:
    plane = call.plane
    plane.publish(b"a", b"b")
    path = f"{OWN}/eventhubs/orders/consumergroups/readers/seek"
    answer = await call("POST", path, {"to": "1", "partition": "0", "dryRun": False}, query="")
    assert answer.json["value"] == [
        {
            "partition": "0",
            "from_sequence_number": None,
            "to_sequence_number": 1,
            "delta": None,
        }
    ]
    rows = (await call("GET", f"{OWN}/eventhubs/orders/lag", query="group=readers")).json["value"]
    assert [row["lag_events"] for row in rows] == [1, None, None, None]
    assert len((await call("GET", f"{OWN}/LAG", query="")).json["value"]) == 8
    own(plane, "0")
    refused = await call("POST", path, {"to": "earliest"}, query="")
    assert (refused.status, refused.code) == (409, "ConsumerGroupInUse")
    for wrong in ({}, {"to": 1}, {"to": "earliest", "force": "yes"}):
        assert (await call("POST", path, wrong, query="")).status == 400
