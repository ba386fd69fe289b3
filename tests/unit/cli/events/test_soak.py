"""What `penstock soak` finds: each kind of broken promise, and nothing where all were kept."""

from __future__ import annotations

import pytest

from penstock.cli.events.soak import PartitionChecker, SoakFindings


def lane_with(*order: int, size: int = 40) -> SoakFindings:
    """Ten events were stored; these came, in this order."""
    lane = PartitionChecker("0", "run", size)
    bodies = lane.bodies(10)
    lane.findings.sent += 10
    for place, number in enumerate(order):
        lane.check_received([place], [bodies[number]])
    return lane.finish()


def test_all_events_in_order_are_clean() -> None:
    found = lane_with(*range(10))
    assert found.is_clean
    assert (found.sent, found.received) == (10, 10)


@pytest.mark.parametrize(
    ("order", "fault", "count"),
    [
        ((0, 1, 2, 3, 4, 5, 6, 7, 8), "lost", 1),
        ((0, 1, 2, 5, 6, 7, 8, 9), "lost", 2),
        ((), "lost", 10),
        ((0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9), "doubled", 1),
        ((0, 2, 1, 3, 4, 5, 6, 7, 8, 9), "disordered", 1),
    ],
)
def test_broken_promise_is_found(order: tuple[int, ...], fault: str, count: int) -> None:
    found = lane_with(*order)
    assert not found.is_clean
    assert getattr(found, fault) == count


def test_sequence_number_that_is_left_out_is_a_gap() -> None:
    lane = PartitionChecker("0", "run", 0)
    bodies = lane.bodies(2)
    lane.findings.sent += 2
    lane.check_received([5, 7], bodies)
    assert lane.finish().gaps == 1


def test_damaged_body_is_found_and_a_stranger_is_not_ours() -> None:
    lane = PartitionChecker("0", "run", 60)
    (body,) = lane.bodies(1)
    lane.findings.sent += 1
    lane.check_received([0, 1, 2], [body[:-1] + b"?", b"soak another 0 ", body])
    found = lane.finish()
    assert (found.damaged, found.foreign, found.received, found.lost) == (1, 1, 1, 0)


def test_events_that_were_sent_again_may_come_twice() -> None:
    lane = PartitionChecker("0", "run", 0)
    bodies = lane.bodies(2)
    lane.count_resent(0, 2)
    lane.findings.sent += 2
    lane.check_received([0, 1, 2, 3], bodies + bodies)
    found = lane.finish()
    assert found.is_clean
    assert found.resent == 2


def test_lane_is_complete_when_all_that_is_stored_has_come() -> None:
    lane = PartitionChecker("0", "run", 0)
    bodies = lane.bodies(2)
    lane.findings.sent += 2
    assert not lane.is_complete
    lane.check_received([0], bodies[1:])
    assert not lane.is_complete
    lane.check_received([1], bodies[:1])
    assert lane.is_complete
