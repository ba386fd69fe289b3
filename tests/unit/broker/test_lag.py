"""How far groups are behind: by checkpoint, by reader, not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from penstock.broker.lag import LagRow, add_lag_seconds, hub_rows
from penstock.model.checkpoints import Checkpoint, Ownership
from penstock.model.errors import LogCorrupt
from penstock.model.positions import EARLIEST, LATEST

if TYPE_CHECKING:
    from tests.unit.broker.conftest import World


class Kept:
    """Records of `$Default` on partition 0."""

    def __init__(self) -> None:
        self.owned: list[Ownership] = []
        self.saved: list[Checkpoint] = []

    def ownerships(self, hub_id: str, group: str) -> list[Ownership]:
        return self.owned if group == "$Default" else []

    def checkpoints(self, hub_id: str, group: str) -> list[Checkpoint]:
        return self.saved if group == "$Default" else []

    def save(self, number: int, offset: str = "0") -> None:
        self.saved = [Checkpoint(partition_id="0", offset=offset, sequence_number=number)]

    def own(self, owner: str) -> None:
        self.owned = [Ownership(partition_id="0", owner_id=owner, etag="e", modified_ms=0)]


@pytest.fixture
def kept() -> Kept:
    return Kept()


def rows(world: World, kept: Kept) -> list[LagRow]:
    return hub_rows(world.hub, world.catalog, kept, now_ms=world.clock.now_ms())


def row(world: World, kept: Kept) -> LagRow:
    return next(
        each for each in rows(world, kept) if (each.group, each.partition) == ("$Default", "0")
    )


def test_lag_of_a_group_that_nobody_reads_is_not_known(world: World, kept: Kept) -> None:
    world.publish(b"a", partition=0)
    found = row(world, kept)
    assert found == LagRow(
        namespace="unit-test",
        hub="events",
        group="$Default",
        partition="0",
        last_sequence_number=0,
        checkpoint_sequence_number=None,
        lag_events=None,
        lag_bytes=None,
        lag_seconds=None,
        owner=None,
        epoch=None,
        readers=0,
    )


def test_lag_is_counted_from_the_checkpoint(world: World, kept: Kept) -> None:
    world.publish(b"a", b"b", partition=0)
    world.clock.advance(1000)
    world.publish(b"c", b"d", b"e", partition=0)
    world.clock.advance(2500)
    status = world.hub.status(0)
    kept.save(1, str(status.last_offset - 40))
    kept.own("me")
    found = row(world, kept)
    assert (found.last_sequence_number, found.checkpoint_sequence_number) == (4, 1)
    assert (found.lag_events, found.lag_bytes, found.lag_seconds) == (3, 40, 2.5)
    assert found.owner == "me"


def test_a_group_was_last_seen_when_it_renewed_or_saved(world: World, kept: Kept) -> None:
    kept.save(0)
    kept.own("me")
    assert row(world, kept).last_seen_ms is None
    kept.owned = [msgspec.structs.replace(kept.owned[0], modified_ms=7_000)]
    kept.saved = [msgspec.structs.replace(kept.saved[0], modified_ms=5_000)]
    assert row(world, kept).last_seen_ms == 7_000


def test_lag_is_nothing_at_the_end_and_beyond_it(world: World, kept: Kept) -> None:
    world.publish(b"a", b"b", partition=0)
    for number in (1, 7):
        kept.save(number)
        found = row(world, kept)
        assert (found.lag_events, found.lag_bytes, found.lag_seconds) == (0, 0, 0.0)


def test_lag_of_an_empty_partition_is_nothing(world: World, kept: Kept) -> None:
    kept.save(-1, "-1")
    found = row(world, kept)
    assert (found.last_sequence_number, found.lag_events) == (-1, 0)


def test_lag_before_the_first_event_is_everything(world: World, kept: Kept) -> None:
    world.publish(b"a", b"b", partition=0)
    kept.save(-1, "-1")
    found = row(world, kept)
    assert (found.lag_events, found.lag_bytes) == (2, None)


def test_lag_leaves_out_what_retention_dropped(world: World, kept: Kept) -> None:
    world.publish(b"a", b"b", partition=0)
    kept.save(0)
    world.clock.advance(world.hub.entity.retention_hours * 3_600_000 + 1)
    world.publish(b"c", partition=0)
    world.broker.enforce_retention()
    status = world.hub.status(0)
    found = row(world, kept)
    assert found.lag_events == status.last_sequence + 1 - max(1, status.begin_sequence)


def test_lag_without_a_checkpoint_is_the_readers(world: World, kept: Kept) -> None:
    world.publish(b"a", b"b", b"c", partition=0)
    behind, at_end = world.read(0, EARLIEST), world.read(0, LATEST)
    found = row(world, kept)
    assert (found.lag_events, found.readers, found.epoch) == (3, 2, None)
    assert behind.take(2)
    assert row(world, kept).lag_events == 1
    behind.reader.close()
    assert row(world, kept).lag_events == 0
    at_end.reader.close()
    assert row(world, kept).lag_events is None


def test_lag_by_a_checkpoint_wins_over_the_readers(world: World, kept: Kept) -> None:
    world.publish(b"a", b"b", b"c", partition=0)
    world.read(0, LATEST, epoch=3)
    kept.save(0)
    found = row(world, kept)
    assert (found.lag_events, found.epoch, found.readers) == (2, 3, 1)


def test_a_released_partition_has_no_owner(world: World, kept: Kept) -> None:
    kept.own("")
    assert row(world, kept).owner is None


@pytest.mark.parametrize("offset", ["abc", "-5", "", "²"])
def test_offsets_of_another_form_tell_no_bytes(world: World, kept: Kept, offset: str) -> None:
    world.publish(b"a", b"b", partition=0)
    kept.save(0, offset)
    found = row(world, kept)
    assert (found.lag_events, found.lag_bytes) == (1, None)


def test_every_group_has_a_row_for_each_partition(world: World, kept: Kept) -> None:
    world.put_group("readers")
    found = rows(world, kept)
    assert [(each.group, each.partition) for each in found] == [
        (group, partition)
        for group in ("$Default", "readers")
        for partition in world.hub.partition_ids
    ]


def test_seconds_come_from_the_disk_where_memory_has_them_not(
    world: World, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.publish(b"a", partition=0)
    world.publish(b"b", partition=0)
    world.clock.advance(5000)
    kept.save(0)
    log = type(world.hub.log(0))
    monkeypatch.setattr(log, "read_cached", lambda *_: None)
    found = row(world, kept)
    assert (found.lag_events, found.lag_seconds) == (1, None)
    now_ms = world.clock.now_ms()
    (aged,) = add_lag_seconds([found], world.broker, now_ms=now_ms)
    assert aged.lag_seconds == 5.0
    assert add_lag_seconds([aged], world.broker, now_ms=now_ms + 1) == [aged]

    def corrupt(*_: object, **__: object) -> None:
        raise LogCorrupt("a checksum does not fit")

    monkeypatch.setattr(log, "read", corrupt)
    assert add_lag_seconds([found], world.broker, now_ms=now_ms) == [found]
