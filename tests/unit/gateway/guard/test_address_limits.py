"""Connections per address: limits, evictions, penalties, and addresses that are held."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from penstock.gateway.guard import AddressLimits, ConnectionSlot, Guard, network_of
from penstock.model import limits
from penstock.model.clock import ManualClock

FREE = limits.PENALTIES_FREE_MS // limits.FAILED_CONNECTION_MS
HOST = "192.0.2.1"


class Listener:
    """Accepts connections by name and records which were evicted."""

    def __init__(self, **bounds: int) -> None:
        self.clock = ManualClock()
        self.addresses = AddressLimits(self.clock.monotonic_ms)
        for name, bound in bounds.items():
            setattr(self.addresses, f"{name}_max", bound)
        self.guard = Guard(
            cast(asyncio.AbstractEventLoop, None),  # nothing is scheduled here
            clock=self.clock,
            addresses=self.addresses,
        )
        self.evicted: list[str] = []

    def accept(self, host: str = HOST, name: str = "") -> ConnectionSlot:
        slot = self.guard.admit(host)
        assert slot is not None
        slot.evict = lambda: self.evicted.append(name)
        return slot

    def fail(self, count: int, host: str = HOST) -> None:
        for _ in range(count):
            self.accept(host).release()


# --- limits -------------------------------------------------------------------------------------


def test_connections_of_an_address_are_limited() -> None:
    listener = Listener(connections=2)
    first = listener.accept()
    listener.accept()
    first.authenticate()
    assert listener.guard.admit(HOST) is None
    assert listener.guard.admit("192.0.2.2") is not None
    first.release()
    assert listener.guard.admit(HOST) is not None


def test_a_slot_is_released_once() -> None:
    listener = Listener(connections=2)
    first = listener.accept()
    listener.accept()
    first.release()
    first.release()
    listener.accept()
    assert listener.guard.admit(HOST) is None


def test_a_fleet_of_two_thousand_may_reconnect_at_once() -> None:
    listener = Listener()
    for _ in range(2000):
        listener.accept()
    assert listener.evicted == []


def test_the_oldest_unauthenticated_connection_of_an_address_is_evicted() -> None:
    listener = Listener(unauthenticated=2)
    listener.accept(name="authenticated").authenticate()
    listener.accept("192.0.2.2", name="other address")
    for name in ("first", "second", "third"):
        listener.accept(name=name)
    assert listener.evicted == ["first"]
    assert len(listener.addresses.unauthenticated) == 3


def test_unauthenticated_connections_of_all_addresses_are_limited() -> None:
    listener = Listener(unauthenticated_total=3)
    for number in range(5):
        listener.accept(f"192.0.2.{number}", name=str(number))
    assert listener.evicted == ["0", "1"]
    assert len(listener.addresses.unauthenticated) == 3


def test_evicting_the_oldest_skips_authenticated_connections() -> None:
    listener = Listener()
    listener.accept(name="authenticated").authenticate()
    listener.accept(name="old")
    listener.accept(name="young")
    listener.addresses.evict_oldest()
    assert listener.evicted == ["old"]
    listener.addresses.evict_oldest()
    listener.addresses.evict_oldest()
    assert listener.evicted == ["old", "young"]


def test_a_released_slot_cannot_be_authenticated() -> None:
    slot = Listener().accept()
    slot.release()
    slot.authenticate()
    assert not slot.is_authenticated


# --- penalties ----------------------------------------------------------------------------------


def test_an_address_whose_connections_keep_failing_is_held() -> None:
    listener = Listener()
    listener.fail(FREE)
    assert listener.accept().hold_ms == 0
    listener.fail(1)
    held = listener.accept()
    assert held.hold_ms == limits.FAILED_CONNECTION_MS
    held.release()
    listener.fail(1000)
    assert listener.accept().hold_ms == limits.HOLD_MS_MAX
    assert listener.accept("192.0.2.2").hold_ms == 0


def test_the_hold_ends_with_the_failures() -> None:
    listener = Listener()
    listener.fail(1000)
    listener.clock.advance(limits.HOLD_MS_MAX)
    assert listener.accept().hold_ms == 0


def test_twenty_failures_a_second_are_never_held() -> None:
    listener = Listener()
    for _ in range(2000):
        listener.fail(1)
        listener.clock.advance(limits.FAILED_CONNECTION_MS)
    assert listener.accept().hold_ms == 0


def test_authenticated_connections_are_no_penalty() -> None:
    listener = Listener()
    for _ in range(5000):
        slot = listener.accept()
        slot.authenticate()
        assert not slot.is_suspect
        slot.release()
    assert listener.accept().hold_ms == 0


def test_a_penalized_connection_counts_at_once_and_once() -> None:
    listener = Listener()
    slots = [listener.accept() for _ in range(26)]
    for slot in slots:
        slot.authenticate()
        slot.penalize()
        slot.penalize()
        assert slot.is_suspect
    for slot in slots:
        slot.release()
    assert listener.accept().hold_ms == limits.MISBEHAVED_CONNECTION_MS  # 25 are free


def test_held_connections_are_limited() -> None:
    listener = Listener(held=2)
    listener.fail(FREE + 1)
    first, second = listener.accept(), listener.accept()
    assert listener.guard.admit(HOST) is None
    first.accepted(asyncio.Transport())  # it is not held any more
    third = listener.accept()
    second.release()
    assert third.hold_ms > 0
    assert listener.guard.admit(HOST) is not None
    assert listener.guard.admit(HOST) is None


# --- memory -------------------------------------------------------------------------------------


def test_addresses_without_connections_are_forgotten() -> None:
    listener = Listener(addresses=100)
    stays = listener.accept("198.51.100.1")
    for number in range(1000):
        listener.fail(1, f"10.0.{number // 256}.{number % 256}")
        assert len(listener.addresses._records) <= 101
    stays.release()
    assert listener.accept("198.51.100.1").hold_ms == 0


def test_the_largest_penalties_are_remembered_longest() -> None:
    listener = Listener(addresses=4)
    listener.fail(1000, HOST)
    for number in range(20):
        listener.fail(1, f"198.51.100.{number}")
    assert listener.accept(HOST).hold_ms > 0


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
def test_an_address_is_an_ipv4_address_or_an_ipv6_network(host: str, network: str) -> None:
    assert network_of(host) == network
