"""Places: how many an address may have, who makes room for whom, who is held at the door."""

from __future__ import annotations

import asyncio

import pytest

from penstock.gateway.admission import Admission, Bounds, Place, network_of
from penstock.model import limits
from penstock.model.clock import ManualClock

ALLOWED = limits.FAILED_CONNECTIONS_ALLOWANCE_MS // limits.FAILED_CONNECTION_MS


class Street:
    """An Admission, its clock, and who was shown out."""

    def __init__(self, **bounds: int) -> None:
        self.clock = ManualClock()
        self.admission = Admission(self.clock.monotonic_ms, Bounds(**bounds))
        self.evicted: list[str] = []

    def come(self, host: str = "192.0.2.1", name: str = "") -> Place:
        place = self.admission.enter(host)
        assert place is not None
        place.evict = lambda: self.evicted.append(name)
        return place

    def fail(self, count: int, host: str = "192.0.2.1") -> None:
        for _ in range(count):
            self.come(host).leave()


# --- how many -----------------------------------------------------------------------------------


def test_address_has_so_many_places_and_no_more() -> None:
    street = Street(of_address=2)
    first = street.come()
    street.come()
    first.known()
    assert street.admission.enter("192.0.2.1") is None
    assert street.admission.refused == 1
    assert street.admission.enter("192.0.2.2") is not None
    first.leave()
    assert street.admission.enter("192.0.2.1") is not None


def test_leaving_twice_frees_one_place() -> None:
    street = Street(of_address=2)
    first = street.come()
    street.come()
    first.leave()
    first.leave()
    street.come()
    assert street.admission.enter("192.0.2.1") is None


def test_defaults_let_a_fleet_of_two_thousand_in_at_once() -> None:
    street = Street()
    for _ in range(2000):
        street.come()
    assert street.evicted == []


# --- strangers ----------------------------------------------------------------------------------


def test_stranger_that_dawdles_makes_room_for_the_next_one() -> None:
    street = Street(strangers_of_address=2, patience_ms=1000)
    for name in ("first", "second"):
        street.come(name=name)
    street.clock.advance(999)
    street.come(name="third")
    assert street.evicted == []
    street.clock.advance(1)
    street.come(name="fourth")
    assert street.evicted == ["first"]


def test_too_many_young_strangers_make_room_as_well() -> None:
    street = Street(strangers_of_address=2, young_strangers_of_address=3)
    for name in ("first", "second", "third", "fourth"):
        street.come(name=name)
    assert street.evicted == ["first"]
    assert street.admission.stranger_count == 3


def test_who_is_known_makes_no_room() -> None:
    street = Street(strangers_of_address=1, young_strangers_of_address=1)
    street.come(name="known").known()
    street.come(name="stranger")
    street.come()
    assert street.evicted == ["stranger"]


def test_strangers_of_one_address_do_not_make_room_for_another() -> None:
    street = Street(strangers_of_address=1, young_strangers_of_address=1)
    street.come("192.0.2.1", name="one")
    street.come("192.0.2.2", name="two")
    assert street.evicted == []


def test_strangers_of_all_addresses_are_bounded() -> None:
    street = Street(strangers=3)
    for number in range(5):
        street.come(f"192.0.2.{number}", name=str(number))
    assert street.evicted == ["0", "1"]
    assert street.admission.stranger_count == 3


def test_evicted_stranger_gives_its_place_back() -> None:
    street = Street(of_address=2, young_strangers_of_address=1)
    for _ in range(10):
        street.come()
    assert street.admission.stranger_count == 1
    assert street.admission.evicted == 9


def test_oldest_stranger_makes_room_when_something_runs_out() -> None:
    street = Street()
    street.come(name="known").known()
    street.come(name="old")
    street.come(name="young")
    assert street.admission.evict_oldest()
    assert street.evicted == ["old"]
    assert street.admission.evict_oldest()
    assert not street.admission.evict_oldest()


def test_who_left_cannot_become_known() -> None:
    street = Street()
    place = street.come()
    place.leave()
    place.known()
    assert place.is_stranger


# --- held at the door ---------------------------------------------------------------------------


def test_address_whose_connections_keep_failing_is_held_longer_and_longer() -> None:
    street = Street()
    street.fail(ALLOWED)
    assert street.come().hold_ms == 0
    street.fail(1)
    held = street.come()
    assert held.hold_ms == limits.FAILED_CONNECTION_MS
    held.leave()
    street.fail(1000)
    assert street.come().hold_ms == limits.FAILED_CONNECTIONS_HOLD_MS_MAX


def test_other_addresses_are_not_held() -> None:
    street = Street()
    street.fail(1000)
    assert street.come("192.0.2.2").hold_ms == 0


def test_hold_ends_a_moment_after_the_failures_do() -> None:
    street = Street()
    street.fail(100_000)
    street.clock.advance(limits.FAILED_CONNECTIONS_HOLD_MS_MAX)
    assert street.come().hold_ms == 0


def test_twenty_failures_a_second_are_never_held() -> None:
    street = Street()
    for _ in range(2000):
        street.fail(1)
        street.clock.advance(limits.FAILED_CONNECTION_MS)
    assert street.come().hold_ms == 0


def test_known_peers_may_come_and_go() -> None:
    street = Street()
    for _ in range(10_000):
        place = street.come()
        place.known()
        place.leave()
    assert street.come().hold_ms == 0


def test_known_peer_that_misbehaved_counts() -> None:
    street = Street()
    for _ in range(ALLOWED + 1):
        place = street.come()
        place.known()
        place.misbehaved()
        assert place.is_blamed
        place.leave()
    assert street.come().hold_ms > 0


def test_held_ones_are_let_in_one_after_the_other_and_others_at_once() -> None:
    street = Street(held_of_address=3)
    street.fail(ALLOWED + 1)
    places = [street.come() for _ in range(3)]
    first, step = limits.FAILED_CONNECTION_MS, limits.HELD_CONNECTION_MS
    assert [place.hold_ms for place in places] == [first, first + step, first + 2 * step]
    assert street.admission.enter("192.0.2.1") is None
    assert street.admission.refused == 1
    assert street.come("192.0.2.2").hold_ms == 0
    places[0].came_in(asyncio.Transport())  # it waits no more
    assert street.come().hold_ms == first + 2 * step
    places[1].leave()
    assert street.admission.enter("192.0.2.1") is not None
    assert street.admission.enter("192.0.2.1") is None


def test_peers_that_misbehave_count_while_they_are_there_and_once() -> None:
    street = Street()
    for _ in range(limits.FAILED_CONNECTIONS_ALLOWANCE_MS // limits.MISBEHAVED_CONNECTION_MS):
        assert not street.come().is_of_blamed
        place = street.come()
        place.misbehaved()
        place.misbehaved()
    late = street.come()
    assert late.hold_ms == 0
    late.misbehaved()
    blamed = street.come()
    assert blamed.is_of_blamed
    blamed.known()
    blamed.leave()
    late.leave()
    assert street.come().hold_ms == limits.MISBEHAVED_CONNECTION_MS


# --- memory -------------------------------------------------------------------------------------


def test_addresses_that_are_gone_are_forgotten_in_time() -> None:
    street = Street(addresses=100)
    stays = street.come("198.51.100.1")
    for number in range(10_000):
        street.fail(1, f"10.{number // 65536}.{number // 256 % 256}.{number % 256}")
        assert len(street.admission._records) <= 101
    stays.leave()
    assert street.come("198.51.100.1").hold_ms == 0


def test_who_owes_most_is_remembered_longest() -> None:
    street = Street(addresses=4)
    street.fail(1000, "192.0.2.1")
    for number in range(20):
        street.fail(1, f"198.51.100.{number}")
    assert street.come("192.0.2.1").hold_ms > 0


# --- who counts as one --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2::9", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("-", "-"),
        ("", ""),
    ],
)
def test_network_is_an_address_or_sixty_four_bits_of_one(host: str, network: str) -> None:
    assert network_of(host) == network
