"""Delay of answers to failed authentication: how long, for which peer, and what is remembered."""

from __future__ import annotations

import pytest

from penstock.gateway.guard import AuthDelay, policy_of
from penstock.model import limits

FREE = limits.BACKOFF_FREE_FAILURES
FORGET_MS = limits.BACKOFF_FORGET_MS


def delays(
    auth_delay: AuthDelay, count: int, policy: str = "root", address: str = "192.0.2.1"
) -> list[int]:
    return [auth_delay.fail(policy, address, now_ms=0) for _ in range(count)]


def test_first_failures_are_free_and_then_each_doubles_the_wait() -> None:
    assert delays(AuthDelay(), 12) == [0, 0, 0, 50, 100, 200, 400, 800, 1600, 3200, 4000, 4000]


def test_policies_and_addresses_are_counted_apart() -> None:
    auth_delay = AuthDelay()
    assert delays(auth_delay, 8)[-1] > 0
    assert delays(auth_delay, 1, policy="other") == [0]
    assert delays(auth_delay, 1, address="192.0.2.2") == [0]


def test_case_of_a_policys_name_is_no_way_out() -> None:
    auth_delay = AuthDelay()
    delays(auth_delay, FREE)
    assert delays(auth_delay, 1, policy="ROOT")[0] > 0


def test_names_longer_than_any_policy_count_as_one_when_they_begin_alike() -> None:
    auth_delay = AuthDelay()
    for number in range(FREE + 1):
        (delay,) = delays(auth_delay, 1, policy="x" * 60 + str(number))
    assert delay > 0
    assert len(auth_delay._failures) == 2  # these, and the address over all policies


def test_failures_are_forgotten_one_by_one() -> None:
    auth_delay = AuthDelay()
    delays(auth_delay, FREE + 2)
    assert auth_delay.fail("root", "192.0.2.1", now_ms=FORGET_MS) == 100  # one less, one more
    assert auth_delay.fail("root", "192.0.2.1", now_ms=2 * FORGET_MS - 1) == 200
    assert auth_delay.fail("root", "192.0.2.1", now_ms=100 * FORGET_MS) == 0


def test_long_attack_is_forgotten_as_fast_as_a_short_one() -> None:
    auth_delay = AuthDelay()
    assert delays(auth_delay, 10_000)[-1] == limits.BACKOFF_MS_MAX
    assert auth_delay.fail("root", "192.0.2.1", now_ms=12 * FORGET_MS) == 0


def test_wait_stays_the_longest_while_the_attack_goes_on() -> None:
    auth_delay = AuthDelay()
    delays(auth_delay, 20)
    waits = {auth_delay.fail("root", "192.0.2.1", now_ms=n * 4000) for n in range(1, 100)}
    assert waits == {limits.BACKOFF_MS_MAX}


def test_changing_the_policys_name_is_no_way_out() -> None:
    """Failures over all policies of an address count as well, sixteen times less."""
    auth_delay = AuthDelay()
    waits = [auth_delay.fail(f"policy-{n}", "192.0.2.1", now_ms=0) for n in range(1000)]
    assert waits[:50] == [0] * 50
    assert waits[-1] == limits.BACKOFF_MS_MAX
    assert auth_delay.fail("another", "192.0.2.2", now_ms=0) == 0
    assert auth_delay.fail("another", "192.0.2.1", now_ms=12 * FORGET_MS) == 0


def test_memory_is_bounded_and_the_oldest_is_forgotten_first() -> None:
    auth_delay = AuthDelay()
    auth_delay.entries_max = 6
    for address in ("a", "b", "c"):
        delays(auth_delay, FREE, address=address)
    delays(auth_delay, 1, address="a")  # still at it
    delays(auth_delay, 1, address="d")
    assert len(auth_delay._failures) == 6
    assert delays(auth_delay, 1, address="a")[0] > 0
    assert delays(auth_delay, 1, address="b") == [0]


def test_so_many_answers_wait_and_no_more() -> None:
    auth_delay = AuthDelay()
    auth_delay.waiting_max = 2
    assert (auth_delay.start_waiting(), auth_delay.start_waiting(), auth_delay.start_waiting()) == (
        True,
        True,
        False,
    )
    auth_delay.stop_waiting()
    assert auth_delay.start_waiting()


@pytest.mark.parametrize(
    ("token", "policy"),
    [
        ("SharedAccessSignature sr=a&sig=AAAA&se=1&skn=root", "root"),
        ("SharedAccessSignature sr=a&sig=AAAA&se=1", ""),
        ("Bearer a.b.c", ""),
        ("", ""),
        (None, ""),
        (7, ""),
    ],
)
def test_policy_is_what_the_token_says(token: object, policy: str) -> None:
    assert policy_of(token) == policy
