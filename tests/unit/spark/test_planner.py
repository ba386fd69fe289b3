"""What a query reads next: ranges, admission, and a hub whose clock and ends a test sets."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.errors import DataLoss
from penstock.spark.eventhubs.options import EventHubsOptions
from penstock.spark.eventhubs.planner import (
    EventSizeEstimate,
    PartitionBounds,
    ReadPlanner,
    SequenceRange,
    StreamOffsets,
    admit_events,
    sort_offset,
    split_ranges,
)
from penstock.spark.eventhubs.positions import EARLIEST, Position

TEXT = "Endpoint=sb://host;SharedAccessKeyName=n;SharedAccessKey=aw==;EntityPath=hub"

_counts = st.dictionaries(
    st.integers(0, 31).map(str), st.integers(0, 5000), min_size=1, max_size=32
)


@given(_counts, st.integers(1, 20_000))
def test_admission_never_exceeds_its_limit_and_never_stalls(
    backlogs: dict[str, int], limit: int
) -> None:
    start = {key: 7 for key in backlogs}
    end = {key: 7 + count for key, count in backlogs.items()}
    admitted = admit_events(start, end, limit)
    taken = sum(admitted[key] - start[key] for key in end)
    assert taken == min(limit, sum(backlogs.values()))
    assert all(start[key] <= admitted[key] <= end[key] for key in end)


@given(
    _counts,
    st.none() | st.integers(1, 500),
    st.none() | st.integers(1, 64),
)
def test_splitting_keeps_every_event_once(
    counts: dict[str, int], per_task: int | None, least: int | None
) -> None:
    spans = [SequenceRange(key, 10, 10 + count) for key, count in counts.items()]
    cut = split_ranges(spans, max_events_per_task=per_task, min_partitions=least)
    covered = {(s.partition_id, n) for s in cut for n in range(s.first, s.end)}
    assert len(covered) == sum(s.length for s in cut) == sum(counts.values())
    assert all(span.length > 0 for span in cut)
    if per_task is not None:
        assert all(span.length <= per_task for span in cut)
    if least is not None and sum(counts.values()) >= 64 * 32:
        assert len(cut) >= min(least, sum(1 for c in counts.values() if c))


def test_offsets_are_in_the_order_of_numbers() -> None:
    assert list(sort_offset({"10": 1, "9": 2, "0": 3})) == ["0", "9", "10"]


def test_sizes_follow_what_the_service_tells() -> None:
    sizes = EventSizeEstimate()
    assert sizes.event_bytes("0", 0) == 1024
    sizes.add("0", PartitionBounds(0, 100, "20000"))
    assert sizes.event_bytes("0", 0) == 200
    sizes.add("0", PartitionBounds(0, 200, "120000"))
    assert sizes.event_bytes("0", 100) == 1000, "the newer ones are larger"
    sizes.add("0", PartitionBounds(0, 300, "not:a:number"))
    assert sizes.event_bytes("0", 100) == 1000
    assert sizes.events_for({"0": 100}, {"0": 200}, 50_000) == 50
    assert sizes.events_for({"0": 100}, {"0": 200}, 500_000) is None


class Hub(ReadPlanner):
    """Bounds and a creation time that a test sets; there is no connection."""

    def __init__(self, **bounds: tuple[int, int]) -> None:
        self.now = {key.removeprefix("p"): PartitionBounds(*each) for key, each in bounds.items()}
        self.born = datetime(2026, 1, 1, tzinfo=UTC)
        self.clock_s = 0.0

    def bounds(self) -> dict[str, PartitionBounds]:
        return dict(self.now)

    def created_at(self) -> datetime:
        return self.born

    def offset_of(self, partition_id: str, number: int) -> str | None:
        return f"{partition_id}-{number}"

    def starts(self, bounds: Mapping[str, PartitionBounds], default: Position) -> dict[str, int]:
        return {k: b.begin if default is EARLIEST else b.end for k, b in bounds.items()}


BORN_MS = 1767225600000  # 2026-01-01
ANEW_MS = BORN_MS + 24 * 3600 * 1000


def at(born_ms: int = BORN_MS, **positions: int) -> dict[str, int]:
    """An offset as it is stored: at(p0=5) is event 5 of partition 0."""
    return {key.removeprefix("p"): n for key, n in positions.items()} | {"createdAt": born_ms}


def poller(hub: Hub, **options: str) -> StreamOffsets:
    read = EventHubsOptions({"connectionString": TEXT} | options).read()
    return StreamOffsets(read, hub, monotonic_s=lambda: hub.clock_s)


def test_a_stream_without_position_begins_at_the_end() -> None:
    assert poller(Hub(p0=(0, 5), p1=(2, 7))).initial() == at(p0=5, p1=7, bytes=0)


def test_a_new_partition_is_read_from_its_beginning() -> None:
    hub = Hub(p0=(0, 5))
    polled = poller(hub)
    assert polled.next({"0": 5}) == {"0": 5}
    hub.now["1"] = PartitionBounds(3, 9)
    assert polled.next(at(p0=5)) == at(p0=5, p1=9)
    assert polled.ranges(at(p0=5), at(p0=5, p1=9)) == [SequenceRange("1", 3, 9)]
    fixed = poller(hub, dynamicPartitionDiscovery="false")
    assert fixed.next({"0": 5}) == {"0": 5}


def test_available_now_ends_where_it_began() -> None:
    hub = Hub(p0=(0, 10))
    polled = poller(hub, maxEventsPerTrigger="6", minEventsPerTrigger="100")
    polled.stop_at_current_end()
    hub.now["0"] = PartitionBounds(0, 50)
    assert polled.next(at(p0=0)) == at(p0=6)
    assert polled.next(at(p0=6)) == at(p0=10)
    assert polled.next(at(p0=10)) == at(p0=10)
    assert polled.is_at_its_end


def test_few_events_wait_until_the_delay_is_over() -> None:
    hub = Hub(p0=(0, 3))
    polled = poller(hub, minEventsPerTrigger="5", maxTriggerDelay="60s")
    assert polled.next(at(p0=0)) == at(p0=0)
    hub.clock_s = 61
    assert polled.next(at(p0=0)) == at(p0=3)
    hub.now["0"] = PartitionBounds(0, 20)
    assert polled.next(at(p0=3)) == at(p0=20)
    assert polled.latest() == at(p0=20)


def test_offsets_say_how_much_was_read_where_the_service_tells() -> None:
    hub = Hub(p0=(0, 10), p1=(0, 0))
    hub.now["0"] = PartitionBounds(0, 10, "1000")
    polled = poller(hub, maxEventsPerTrigger="6")
    assert polled.next(at(p0=0, p1=0)) == at(p0=6, p1=0, bytes=600)
    assert polled.latest() == at(p0=10, p1=0, bytes=1000)
    hub.now["0"] = PartitionBounds(0, 12, "1700")
    assert polled.next(at(p0=10, p1=0, bytes=50)) == at(p0=12, p1=0, bytes=750)
    hub.now["1"] = PartitionBounds(0, 3, "no number")
    assert "bytes" not in polled.next(at(p0=12, p1=0, bytes=750))


def test_retention_is_noticed_where_the_batch_is_planned() -> None:
    hub = Hub(p0=(40, 60))
    with pytest.raises(DataLoss, match="Events 10 to 39 of partition 0 of hub 'hub' are gone"):
        poller(hub).ranges({"0": 10}, {"0": 60})
    lenient = poller(hub, failOnDataLoss="false")
    assert lenient.ranges({"0": 10}, {"0": 60}) == [SequenceRange("0", 40, 60)]
    assert lenient.ranges({"0": 10}, {"0": 30}) == [], "all of it is gone"


def test_a_hub_created_again_is_an_error_or_is_read_from_its_beginning() -> None:
    hub = Hub(p0=(0, 50))
    strict, lenient = poller(hub), poller(hub, failOnDataLoss="false")
    assert strict.next(at(p0=50)) == lenient.next(at(p0=50)) == at(p0=50)
    hub.born, hub.now["0"] = datetime(2026, 1, 2, tzinfo=UTC), PartitionBounds(0, 80)
    with pytest.raises(DataLoss, match="created again"):
        strict.next(at(p0=50))
    anew = at(ANEW_MS, p0=80)
    assert lenient.next(at(p0=50)) == anew
    assert lenient.ranges(at(p0=50), anew) == [SequenceRange("0", 0, 80)]
    hub.now["0"] = PartitionBounds(0, 90)
    assert lenient.next(anew) == at(ANEW_MS, p0=90)
    assert lenient.ranges(anew, at(ANEW_MS, p0=90)) == [SequenceRange("0", 80, 90)]


def test_a_hub_created_again_before_a_restart_is_noticed_however_much_it_holds() -> None:
    hub = Hub(p0=(0, 80))
    hub.born = datetime(2026, 1, 2, tzinfo=UTC)
    with pytest.raises(DataLoss, match="created again"):
        poller(hub).next(at(p0=50))
    # A batch that was planned and not finished is not filled with another hub's events.
    with pytest.raises(DataLoss, match="created again"):
        poller(hub).ranges(at(p0=40), at(p0=50))
    lenient = poller(hub, failOnDataLoss="false")
    assert lenient.ranges(at(p0=40), at(p0=50)) == []
    assert lenient.next(at(p0=50)) == at(ANEW_MS, p0=80)


def test_offsets_that_do_not_say_which_hub_they_are_of_are_read_on() -> None:
    hub = Hub(p0=(0, 80))
    polled = poller(hub)
    assert polled.next({"0": 80}) == {"0": 80}, "nothing new is no new offset"
    assert polled.next({"0": 50}) == at(p0=80)
    assert polled.ranges({"0": 50}, at(p0=80)) == polled.ranges({"0": 50}, {"0": 80})
    hub.born = datetime(2026, 1, 2, tzinfo=UTC)
    with pytest.raises(DataLoss, match="created again"):
        polled.next({"0": 80})


def test_a_checkpoint_beyond_the_end_is_an_error_or_begins_anew() -> None:
    hub = Hub(p0=(0, 20))
    with pytest.raises(DataLoss, match="the next one will have the number 20"):
        poller(hub).next({"0": 50})
    lenient = poller(hub, failOnDataLoss="false")
    assert lenient.next({"0": 50}) == at(p0=20)
    assert lenient.ranges({"0": 50}, at(p0=20)) == [SequenceRange("0", 0, 20)]


def test_the_offset_of_the_last_event_is_known_without_asking() -> None:
    hub = Hub(p0=(0, 5))
    hub.now["0"] = PartitionBounds(0, 5, "4096")
    polled = poller(hub)
    polled.next({"0": 0})
    assert polled.service_offset("0", 4) == "4096"
    assert polled.service_offset("0", 3) == "0-3"
