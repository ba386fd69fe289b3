"""Answers to tokens that fail: how long they wait, for whom, and what is remembered of it."""

from __future__ import annotations

import pytest

from penstock.auth.backoff import Backoff, policy_of
from penstock.model import limits

FREE = limits.BACKOFF_FREE_FAILURES
FORGET_MS = limits.BACKOFF_FORGET_MS


def delays(
    backoff: Backoff, count: int, policy: str = "root", address: str = "192.0.2.1"
) -> list[int]:
    return [backoff.failed(policy, address, now_ms=0) for _ in range(count)]


def test_first_failures_are_free_and_then_each_doubles_the_wait() -> None:
    assert delays(Backoff(), 12) == [0, 0, 0, 50, 100, 200, 400, 800, 1600, 3200, 4000, 4000]


def test_policies_and_addresses_are_counted_apart() -> None:
    backoff = Backoff()
    assert delays(backoff, 8)[-1] > 0
    assert delays(backoff, 1, policy="other") == [0]
    assert delays(backoff, 1, address="192.0.2.2") == [0]


def test_case_of_a_policys_name_is_no_way_out() -> None:
    backoff = Backoff()
    delays(backoff, FREE)
    assert delays(backoff, 1, policy="ROOT")[0] > 0


def test_names_longer_than_any_policy_count_as_one_when_they_begin_alike() -> None:
    backoff = Backoff()
    for number in range(FREE + 1):
        (delay,) = delays(backoff, 1, policy="x" * 60 + str(number))
    assert delay > 0
    assert len(backoff) == 1


def test_failures_are_forgotten_one_by_one() -> None:
    backoff = Backoff()
    delays(backoff, FREE + 2)
    assert backoff.failed("root", "192.0.2.1", now_ms=FORGET_MS) == 100  # one less, one more
    assert backoff.failed("root", "192.0.2.1", now_ms=2 * FORGET_MS - 1) == 200
    assert backoff.failed("root", "192.0.2.1", now_ms=100 * FORGET_MS) == 0


def test_long_attack_is_forgotten_as_fast_as_a_short_one() -> None:
    backoff = Backoff()
    assert delays(backoff, 10_000)[-1] == limits.BACKOFF_MS_MAX
    assert backoff.failed("root", "192.0.2.1", now_ms=12 * FORGET_MS) == 0


def test_wait_stays_the_longest_while_the_attack_goes_on() -> None:
    backoff = Backoff()
    delays(backoff, 20)
    waits = {backoff.failed("root", "192.0.2.1", now_ms=n * 4000) for n in range(1, 100)}
    assert waits == {limits.BACKOFF_MS_MAX}


def test_memory_is_bounded_and_the_oldest_is_forgotten_first() -> None:
    backoff = Backoff(entries_max=3)
    for address in ("a", "b", "c"):
        delays(backoff, FREE, address=address)
    delays(backoff, 1, address="a")  # still at it
    delays(backoff, 1, address="d")
    assert len(backoff) == 3
    assert delays(backoff, 1, address="a")[0] > 0
    assert delays(backoff, 1, address="b") == [0]


def test_so_many_answers_wait_and_no_more() -> None:
    backoff = Backoff(waiting_max=2)
    assert (backoff.wait(), backoff.wait(), backoff.wait()) == (True, True, False)
    backoff.waited()
    assert backoff.wait()


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
