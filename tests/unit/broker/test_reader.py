"""What a reader delivers next, from memory and from disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.broker.reader import Reader, ReadState
from penstock.broker.round_queue import RoundQueue
from penstock.model.errors import ArgumentError, LinkStolen, QuotaExceeded
from penstock.model.limits import KB, MB, READ_CHUNK_BYTES
from penstock.model.names import DEFAULT_GROUP
from penstock.model.positions import EARLIEST, LATEST, Position, PositionKind

if TYPE_CHECKING:
    from tests.unit.broker.conftest import Probe, ScriptedLog, World


def at_sequence(value: int, *, inclusive: bool = True) -> Position:
    return Position(PositionKind.SEQUENCE, value, inclusive)


def reader_of(log: ScriptedLog, probe: Probe, position: Position = EARLIEST) -> Probe:
    probe.reader = Reader(
        log,
        position,
        group=DEFAULT_GROUP,
        partition=0,
        name=None,
        epoch=None,
        on_end=probe.on_end,
        on_ready=probe.on_ready,
        on_close=lambda reader: None,
        rounds=RoundQueue(),
    )
    return probe


def test_earliest_reads_everything_in_order(world: World) -> None:
    world.publish(b"a", b"b", partition=0)
    world.publish(b"c", partition=0)
    assert world.read().take() == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_latest_is_the_end_at_the_moment_of_opening(world: World) -> None:
    world.publish(b"before", partition=0)
    probe = world.read(position=LATEST)
    world.publish(b"after", partition=0)
    assert probe.take() == [(1, b"after")]


def test_latest_of_a_partition_never_written_reads_the_first_event(world: World) -> None:
    probe = world.read(position=LATEST)
    world.publish(b"first", partition=0)
    assert probe.take() == [(0, b"first")]


def test_start_inside_a_batch_skips_to_the_event(world: World) -> None:
    world.publish(b"a", b"b" * 300, b"c", b"d", partition=0)
    for first in range(4):
        taken = world.read(position=at_sequence(first)).take()
        assert [sequence for sequence, _ in taken] == list(range(first, 4))
    assert world.read(position=at_sequence(1, inclusive=False)).bodies() == [b"c", b"d"]


def test_start_by_time_skips_older_batches(world: World) -> None:
    world.publish(b"a", partition=0)
    world.clock.advance(1000)
    world.publish(b"b", partition=0)
    position = Position(PositionKind.ENQUEUED_TIME, world.clock.now_ms(), inclusive=True)
    assert world.read(position=position).bodies() == [b"b"]


def test_start_beyond_the_end_is_refused_in_the_services_words(world: World) -> None:
    probe = world.read(position=at_sequence(0))
    assert probe.reader.state() is ReadState.NEEDS_DISK
    with pytest.raises(ArgumentError) as refusal:
        probe.reader.fetch()
    assert "The supplied sequence number '0' is invalid" in str(refusal.value)


def test_reader_gives_back_what_credit_does_not_allow(world: World) -> None:
    world.publish(b"a", b"b", b"c", partition=0)
    probe = world.read()
    assert probe.take(2) == [(0, b"a"), (1, b"b")]
    assert (probe.reader.sequence, probe.reader.remaining) == (2, 1)
    assert probe.take() == [(2, b"c")]


class Spending:
    """Egress that is not slowed, and what was sent of it."""

    is_paced = False

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def spent(self, reader: object, size: int) -> None:
        self.sizes.append(size)


@pytest.mark.parametrize(("events", "within"), [(1, 1), (3, 3), (4, 1), (5, 2), (6, 0), (7, 1)])
def test_reader_advances_over_several_batches_at_once(
    world: World, events: int, within: int
) -> None:
    for _ in range(4):
        world.publish(b"a", b"b", b"c", partition=0)
    reader = world.read().reader
    spending = reader._egress = Spending()  # type: ignore[assignment]  # what is used of it
    assert reader.state() is ReadState.READY
    assert [batch.first_sequence for batch in reader.batches] == [0, 3, 6, 9]
    each = len(reader.batch.sections) // 3
    reader.advance(events, (within or 3) * each)
    assert reader.sequence == events
    assert reader.position == within % 3 * each
    assert reader.remaining == 3 - within % 3
    assert [batch.first_sequence for batch in reader.batches] == list(
        range(events - within % 3, 12, 3)
    )
    assert spending.sizes == [events * each]


def test_reader_at_the_end_is_woken_once_by_the_next_commit(world: World) -> None:
    probe = world.read()
    assert probe.reader.state() is ReadState.AT_END
    world.publish(b"a", partition=0)
    assert probe.woken == 1
    world.publish(b"b", partition=0)
    assert probe.woken == 1  # it has not looked since
    assert probe.bodies() == [b"a", b"b"]
    world.publish(b"c", partition=0)
    assert probe.woken == 2


def test_reader_that_is_not_at_the_end_is_left_alone(world: World) -> None:
    world.publish(b"a", b"b", partition=0)
    probe = world.read()
    probe.take(1)
    world.publish(b"c", partition=0)
    assert probe.woken == 0


def test_closed_reader_is_not_woken_and_has_no_more(world: World) -> None:
    probe = world.read()
    assert probe.take() == []
    probe.reader.close()
    world.publish(b"a", partition=0)
    assert probe.woken == 0
    assert probe.reader.state() is ReadState.AT_END
    assert probe.reader._closed


def test_closed_reader_leaves_no_subscription_behind(log: ScriptedLog, probe: Probe) -> None:
    reader_of(log, probe)
    for _ in range(3):
        assert probe.take() == []
    assert log.subscribers == 1
    probe.reader.close()
    assert log.subscribers == 0


def test_lag_and_runtime_follow_the_partition(world: World) -> None:
    world.publish(b"a", b"b", b"c", partition=0)
    probe = world.read()
    assert probe.reader.lag_events == 3
    probe.take(2)
    assert probe.reader.lag_events == 1
    assert probe.reader.runtime() == world.hub.status(0)
    assert world.read(position=at_sequence(0)).reader.lag_events == 0  # not located yet


# --- Disk -------------------------------------------------------------------------------------


def test_reader_goes_from_disk_to_memory_without_gap(
    world: World, log: ScriptedLog, probe: Probe
) -> None:
    log.cached_from = 60
    for number in range(100):
        world.publish(b"%d" % number, partition=0)
    reader_of(log, probe)
    assert probe.reader.state() is ReadState.NEEDS_DISK
    assert probe.bodies() == [b"%d" % number for number in range(100)]
    assert log.reads > 0


def test_read_ahead_grows_as_the_reader_keeps_up(
    world: World, log: ScriptedLog, probe: Probe
) -> None:
    log.cached_from = 2**31
    for _ in range(200):
        world.publish(b"x" * (32 * KB), partition=0)
    reader_of(log, probe)
    sizes = []
    while probe.reader.state() is ReadState.NEEDS_DISK:
        result = probe.reader.fetch()
        sizes.append(sum(len(batch.sections) for batch in result.batches))
        probe.reader.accept_fetch(result)
        probe.take(len(result.batches))
    assert sizes[0] <= READ_CHUNK_BYTES // 16
    assert max(sizes) > READ_CHUNK_BYTES // 2
    assert max(sizes) <= READ_CHUNK_BYTES


def test_reader_in_memory_holds_no_more_than_its_read_ahead(world: World) -> None:
    for _ in range(40):
        world.publish(b"x" * (200 * KB), partition=0)
    probe = world.read()
    assert probe.reader.state() is ReadState.READY
    held = sum(len(batch.sections) for batch in probe.reader._ahead)
    assert held <= MB
    assert len(probe.take()) == 40


@pytest.mark.skipif(not __debug__, reason="our own invariant, an assert: gone under -O")
def test_fetch_runs_one_at_a_time(world: World) -> None:
    world.publish(b"a", partition=0)
    probe = world.read(position=at_sequence(0))
    result = probe.reader.fetch()
    assert probe.reader.state() is ReadState.NEEDS_DISK
    with pytest.raises(AssertionError):
        probe.reader.fetch()
    probe.reader.accept_fetch(result)
    assert probe.bodies() == [b"a"]


def test_fetch_may_be_tried_again_after_it_failed(world: World) -> None:
    probe = world.read(position=at_sequence(0))
    with pytest.raises(ArgumentError):
        probe.reader.fetch()
    world.publish(b"a", partition=0)
    assert probe.bodies() == [b"a"]


def test_result_of_a_fetch_is_ignored_once_the_reader_is_closed(world: World) -> None:
    world.publish(b"a", partition=0)
    probe = world.read(position=at_sequence(0))
    result = probe.reader.fetch()
    probe.reader.close()
    probe.reader.accept_fetch(result)
    assert probe.reader.state() is ReadState.AT_END


def test_commit_during_a_fetch_is_not_lost(world: World) -> None:
    world.publish(b"a", partition=0)
    probe = world.read(position=at_sequence(0, inclusive=False))
    result = probe.reader.fetch()
    world.publish(b"b", partition=0)
    assert probe.woken == 0
    probe.reader.accept_fetch(result)
    assert probe.bodies() == [b"b"]


def test_retention_that_overtakes_a_reader_makes_it_go_on_with_the_oldest(world: World) -> None:
    for number in range(4):
        world.publish(b"%d" % number, partition=0)
        world.clock.advance(3_600_000 * 12)
    probe = world.read()
    probe.take(1)
    probe.reader.release_memory()
    world.broker.enforce_retention()
    assert world.hub.status(0).begin_sequence == 2
    assert probe.take() == [(2, b"2"), (3, b"3")]


def test_retention_that_empties_the_partition_leaves_the_reader_at_its_end(world: World) -> None:
    world.publish(b"a", partition=0)
    world.clock.advance(3_600_000 * 48)
    world.broker.enforce_retention()
    probe = world.read()
    assert probe.take() == []
    world.publish(b"b", partition=0)
    assert probe.take() == [(1, b"b")]


def test_reader_on_disk_whose_events_are_all_gone_waits_at_the_end(
    world: World, log: ScriptedLog, probe: Probe
) -> None:
    """It must not ask the disk for ever for what retention has dropped."""
    world.publish(b"a", partition=0)
    world.publish(b"b", partition=0)
    log.cached_from = 2
    reader_of(log, probe).take(1)
    probe.reader.release_memory()
    world.clock.advance(3_600_000 * 48)
    world.broker.enforce_retention()
    assert probe.reader.lag_events == 0
    assert probe.reader.state() is ReadState.NEEDS_DISK
    probe.reader.accept_fetch(probe.reader.fetch())
    assert probe.reader.state() is ReadState.AT_END
    world.publish(b"c", partition=0)
    assert probe.take() == [(2, b"c")]


def test_reader_that_released_its_memory_goes_on_inside_the_batch(world: World) -> None:
    world.publish(b"a", b"b" * 1000, b"c", partition=0)
    probe = world.read()
    probe.take(2)
    probe.reader.release_memory()
    assert probe.take() == [(2, b"c")]


# --- Places -----------------------------------------------------------------------------------


def test_epoch_reader_displaces_shared_ones_before_open_returns(world: World) -> None:
    shared = [world.read(name=f"r{number}") for number in range(5)]
    with pytest.raises(QuotaExceeded, match="r0, r1, r2, r3, r4"):
        world.read()
    owner = world.read(epoch=0, name="owner")
    for probe in shared:
        assert [type(error) for error in probe.ended] == [LinkStolen]
        assert probe.reader._closed
    with pytest.raises(LinkStolen):
        world.read()
    assert owner.ended == []


def test_places_are_per_group_and_partition(world: World) -> None:
    world.put_group("other")
    world.read(0, epoch=0)
    world.read(1)
    world.read(0, group="other")


def test_closed_reader_frees_its_place(world: World) -> None:
    probes = [world.read() for _ in range(5)]
    probes[0].reader.close()
    world.read()
    owner = world.read(epoch=9)
    owner.reader.close()
    world.read()


def test_displaced_reader_may_close_itself_while_it_is_told(world: World) -> None:
    victim = world.read(epoch=1)
    told: list[str] = []

    def close(error: Exception) -> None:
        told.append(str(error))
        victim.reader.close()

    victim.reader._on_end = close
    world.read(epoch=1)
    assert len(told) == 1
    assert len(world.readers()) == 1


def test_refused_reader_leaves_no_trace(world: World) -> None:
    world.read(epoch=5)
    for _ in range(10):
        with pytest.raises(LinkStolen):
            world.read(epoch=4)
    assert [view.epoch for view in world.readers()] == [5]


@pytest.mark.parametrize("epoch", [-1, -(2**63)])
def test_negative_epoch_is_refused(world: World, epoch: int) -> None:
    with pytest.raises(ArgumentError, match="must not be negative"):
        world.read(epoch=epoch)


def test_receiver_name_longer_than_allowed_is_refused(world: World) -> None:
    world.read(name="n" * 64)
    with pytest.raises(ArgumentError, match="65 characters: at most 64"):
        world.read(name="n" * 65)
