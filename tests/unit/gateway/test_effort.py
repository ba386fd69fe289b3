"""Work that nothing comes of: what a connection may cause at once, in a second, and after."""

from __future__ import annotations

import pytest

from penstock.gateway.effort import Effort, Resting
from penstock.model import limits

STRANGER = limits.EFFORT_UNITS_STRANGER
MOST = limits.EFFORT_UNITS_MAX


@pytest.fixture
def resting() -> Resting:
    return Resting()


def known(resting: Resting) -> Effort:
    effort = Effort(resting, 0)
    effort.known()
    return effort


def test_stranger_may_do_little_and_a_client_more_at_once(resting: Resting) -> None:
    for effort, units in ((Effort(resting, 0), STRANGER), (known(resting), MOST)):
        effort.spend(units)
        assert effort.rest_ms(0) == 0
        effort.spend(1)
        assert effort.rest_ms(0) > 0
        effort.rested(0)


def test_becoming_known_keeps_what_was_spent(resting: Resting) -> None:
    effort = Effort(resting, 0)
    effort.spend(STRANGER)
    effort.known()
    effort.known()
    effort.spend(MOST - STRANGER)
    assert effort.rest_ms(0) == 0
    effort.spend(1)
    assert effort.rest_ms(0) > 0


def test_rest_is_as_long_as_the_debt(resting: Resting) -> None:
    effort = known(resting)
    effort.spend(MOST + 400)
    assert effort.rest_ms(0) == 201
    assert effort.is_resting
    effort.rested(201)
    assert not effort.is_resting
    effort.spend(1)
    assert effort.rest_ms(201) > 0  # nothing was left over


def test_time_gives_back_up_to_the_most_and_no_more(resting: Resting) -> None:
    effort = known(resting)
    effort.spend(MOST)
    assert effort.rest_ms(1_000_000) == 0
    effort.spend(MOST + 1)
    assert effort.rest_ms(1_000_000) > 0


def test_measure_of_a_second_is_kept_for_ever(resting: Resting) -> None:
    effort = known(resting)
    for second in range(100):
        effort.spend(limits.EFFORT_UNITS_PER_S)
        assert effort.rest_ms(second * 1000) == 0


def test_what_is_published_or_delivered_pays(resting: Resting) -> None:
    """A reader that answers each event with a flow and a disposition; an event of many frames."""
    effort = known(resting)
    for _ in range(100):
        effort.earn(1000, 100_000)
        effort.spend(2 * 1000)
        assert effort.rest_ms(0) == 0
    for _ in range(1000):
        effort.earn(1, 262_144)
        effort.spend(262_144 // 512)
        assert effort.rest_ms(0) == 0


def test_what_was_earned_is_kept_for_a_while_but_not_without_bound(resting: Resting) -> None:
    effort = known(resting)
    effort.earn(1_000_000, 0)
    assert effort.rest_ms(10_000) == 0
    effort.spend(MOST + limits.EFFORT_UNITS_EARNED_MAX)
    assert effort.rest_ms(10_000) == 0
    effort.spend(1)
    assert effort.rest_ms(10_000) > 0


def test_trust_is_earned_and_lost(resting: Resting) -> None:
    effort = known(resting)
    assert not effort.is_trusted
    effort.earn(127, 0)
    assert not effort.is_trusted
    effort.earn(1, 0)
    assert effort.is_trusted
    effort.spend(2 * MOST)
    assert effort.rest_ms(0) > 0
    effort.rested(0)
    assert not effort.is_trusted


def test_many_that_rest_share_one_measure(resting: Resting) -> None:
    crowd = [known(resting) for _ in range(64)]
    rests = []
    for effort in crowd:
        effort.spend(MOST + 16)
        rests.append(effort.rest_ms(0))
    assert resting.count == 64
    per_s = 16 / (rests[-1] / 1000) * 64
    assert 0.9 * limits.EFFORT_UNITS_ALL_PER_S < per_s <= limits.EFFORT_UNITS_ALL_PER_S
    assert max(rests) <= limits.EFFORT_REST_MS_MAX
    for effort in crowd:
        effort.rested(0)
        effort.rested(0)
    assert resting.count == 0


def test_rest_is_never_longer_than_its_bound(resting: Resting) -> None:
    effort = known(resting)
    effort.spend(10**9)
    assert effort.rest_ms(0) == limits.EFFORT_REST_MS_MAX


# --- who is given up ----------------------------------------------------------------------------


def overdraw(effort: Effort, now_ms: int) -> None:
    effort.spend(2 * MOST)
    assert effort.rest_ms(now_ms) > 0


def test_connection_from_a_blamed_address_begins_with_little(resting: Resting) -> None:
    effort = Effort(resting, 0, is_blamed=True)
    effort.spend(limits.EFFORT_UNITS_BLAMED)
    assert effort.rest_ms(0) == 0
    effort.spend(1)
    assert effort.rest_ms(0) > 0


def test_good_token_counts_more_than_the_address_it_comes_from(resting: Resting) -> None:
    effort = Effort(resting, 0, is_blamed=True)
    effort.known()
    effort.spend(limits.EFFORT_UNITS_MAX)
    assert effort.rest_ms(0) == 0


def test_peer_that_rests_again_and_again_is_given_up(resting: Resting) -> None:
    ends: list[int] = []
    effort = Effort(resting, 0, on_give_up=lambda: ends.append(1))
    for now_ms in range(0, limits.EFFORT_RESTLESS_MS_MAX, 1000):
        overdraw(effort, now_ms)
        effort.rested(now_ms)
    assert not ends
    for now_ms in (0, 1000):
        overdraw(effort, limits.EFFORT_RESTLESS_MS_MAX + now_ms)
        effort.rested(limits.EFFORT_RESTLESS_MS_MAX + now_ms)
    assert ends == [1]
    assert resting.count == 0


def test_peer_that_something_comes_of_is_not_given_up(resting: Resting) -> None:
    ends: list[int] = []
    effort = Effort(resting, 0, on_give_up=lambda: ends.append(1))
    for now_ms in range(0, 3 * limits.EFFORT_RESTLESS_MS_MAX, 1000):
        overdraw(effort, now_ms)
        effort.rested(now_ms)
        effort.earn(1, 0)
    assert not ends


def test_too_many_that_rest_cost_the_worst_its_connection() -> None:
    resting = Resting(resting_max=2)
    ends: list[str] = []
    crowd = {
        name: Effort(resting, 0, on_give_up=lambda name=name: ends.append(name))  # type: ignore[misc]
        for name in ("first", "second", "third", "fourth")
    }
    for now_ms, effort in enumerate(crowd.values()):
        overdraw(effort, now_ms)
    assert ends == ["first", "second"]
    assert resting.count == 2
    for effort in crowd.values():
        effort.rested(10)
    assert resting.count == 0
