"""Load balancing decided from lists of leases, with a clock that is turned by hand."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.load_balancer import (
    BalanceDecision,
    PartitionOwnership,
    Strategy,
    decide,
    fair_shares,
)

EXPIRATION_S = 60.0
NOW_S = 1_000_000.0
STRATEGIES: tuple[Strategy, ...] = ("greedy", "balanced")


def lease(
    partition: int | str, owner: str, *, age_s: float = 1.0, etag: str | None = "e"
) -> PartitionOwnership:
    return PartitionOwnership(str(partition), owner, NOW_S - age_s, etag)


def decided(
    leases: Sequence[PartitionOwnership],
    count: int,
    *,
    me: str = "me",
    held: Sequence[str] = (),
    strategy: Strategy = "greedy",
) -> BalanceDecision:
    return decide(
        leases,
        [str(number) for number in range(count)],
        owner_id=me,
        held=held,
        now_s=NOW_S,
        expiration_s=EXPIRATION_S,
        strategy=strategy,
    )


def test_first_processor_claims_everything_when_greedy() -> None:
    assert decided([], 3) == BalanceDecision([], ["0", "1", "2"], [], [])


def test_first_processor_claims_one_at_a_time_when_balanced() -> None:
    assert decided([], 3, strategy="balanced") == BalanceDecision([], ["0"], [], [])
    assert decided([lease(0, "me")], 3, strategy="balanced").claim == ["1"]


def test_newcomer_steals_its_share_at_once_when_greedy() -> None:
    decision = decided([lease(number, "a") for number in range(8)], 8)
    assert (decision.claim, decision.steal) == ([], ["4", "5", "6", "7"])


def test_newcomer_steals_one_at_a_time_when_balanced() -> None:
    leases = [lease(number, "a") for number in range(8)]
    assert decided(leases, 8, strategy="balanced").steal == ["4"]


def test_balanced_strategy_claims_before_it_steals() -> None:
    leases = [lease(number, "a") for number in range(7)]
    decision = decided(leases, 8, strategy="balanced")
    assert (decision.claim, decision.steal) == (["7"], [])


def test_what_was_given_up_and_what_expired_is_claimed() -> None:
    leases = [lease(0, ""), lease(1, "dead", age_s=EXPIRATION_S + 0.01)]
    assert decided(leases, 2).claim == ["0", "1"]


def test_lease_of_exactly_its_time_is_live() -> None:
    assert decided([lease(0, "a", age_s=EXPIRATION_S)], 1) == BalanceDecision([], [], [], [])


def test_lease_from_the_future_is_live() -> None:
    assert decided([lease(0, "a", age_s=-1000.0)], 1).claim == []


def test_my_own_expired_lease_is_renewed() -> None:
    decision = decided([lease(0, "me", age_s=EXPIRATION_S * 5), lease(1, "a")], 2)
    assert decision == BalanceDecision(["0"], [], [], [])


def test_what_another_owns_by_now_is_relinquished() -> None:
    decision = decided([lease(0, "me"), lease(1, "a")], 2, held=["0", "1"])
    assert decision == BalanceDecision(["0"], [], [], ["1"])


def test_partitions_that_are_gone_are_not_renewed() -> None:
    decision = decided([lease(0, "me"), lease(7, "me")], 1, held=["0", "7"])
    assert decision == BalanceDecision(["0"], [], [], ["7"])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_balanced_list_moves_nothing(strategy: Strategy) -> None:
    leases = [lease(number, "abc"[number % 3]) for number in range(8)]
    for me in "abc":
        decision = decided(leases, 8, me=me, strategy=strategy)
        assert (decision.claim, decision.steal) == ([], [])


def test_two_above_another_is_not_balanced() -> None:
    owners = "aaaabbcc"
    leases = [lease(number, owner) for number, owner in enumerate(owners)]
    assert decided(leases, 8, me="b").steal == ["3"]
    assert decided(leases, 8, me="c").steal == []
    assert decided(leases, 8, me="a").steal == []


def test_more_processors_than_partitions_leave_some_idle() -> None:
    leases = [lease(0, "a"), lease(1, "b")]
    assert decided(leases, 2) == BalanceDecision([], [], [], [])


def test_hub_without_partitions_decides_nothing() -> None:
    assert decided([lease(0, "a")], 0) == BalanceDecision([], [], [], [])


def test_survivors_divide_a_dead_ones_partitions_without_a_race() -> None:
    owners = ["dead", "dead", "dead", "a", "a", "a", "b", "b"]
    leases = [
        lease(number, owner, age_s=100.0 if owner == "dead" else 1.0)
        for number, owner in enumerate(owners)
    ]
    claims = [decided(leases, 8, me=me).claim for me in ("a", "b")]
    assert sorted(claims[0] + claims[1]) == ["0", "1", "2"]
    assert [len(each) for each in claims] == [1, 2]


# --- any list ------------------------------------------------------------------------------------

OWNERS = ["", *"abcdef"]
LISTS = st.lists(
    st.one_of(
        st.none(), st.tuples(st.sampled_from(OWNERS), st.sampled_from([1.0, EXPIRATION_S + 1]))
    ),
    max_size=40,
)


def leases_of(drawn: Sequence[tuple[str, float] | None]) -> list[PartitionOwnership]:
    return [
        lease(number, each[0], age_s=each[1])
        for number, each in enumerate(drawn)
        if each is not None
    ]


@settings(deadline=None)  # a loaded machine
@given(LISTS, st.sampled_from(STRATEGIES))
def test_live_owners_lose_partitions_only_to_balance(
    drawn: list[tuple[str, float] | None], strategy: Strategy
) -> None:
    leases = leases_of(drawn)
    decision = decided(leases, len(drawn), me="a", strategy=strategy)
    live = {
        each.partition_id: each.owner_id
        for each in leases
        if each.owner_id == "a" or (each.owner_id and each.modified_s + EXPIRATION_S >= NOW_S)
    }
    counts = Counter(live.values())
    assert not set(decision.claim) & set(live)
    assert decision.renew == [each for each in live if live[each] == "a"]
    taken = Counter(live[each] for each in decision.steal)
    mine = counts["a"] + len(decision.claim) + len(decision.steal)
    for victim, lost in taken.items():
        assert victim != "a"
        assert counts[victim] - lost >= mine - 1
    if strategy == "balanced":
        assert len(decision.claim) + len(decision.steal) <= 1


@settings(deadline=None)  # a loaded machine
@given(LISTS)
def test_everybody_with_the_same_list_makes_one_plan(
    drawn: list[tuple[str, float] | None],
) -> None:
    """What they take together leaves it balanced, and nothing is taken twice."""
    leases = [each for each in leases_of(drawn) if each.modified_s + EXPIRATION_S >= NOW_S]
    owners = {each.owner_id for each in leases if each.owner_id} or {"a"}
    decisions = {me: decided(leases, len(drawn), me=me) for me in owners}
    taken = [each for d in decisions.values() for each in d.claim + d.steal]
    assert len(taken) == len(set(taken))
    stolen = {each for d in decisions.values() for each in d.steal}
    after = {
        me: len(set(d.renew) - stolen) + len(d.claim) + len(d.steal) for me, d in decisions.items()
    }
    assert sum(after.values()) == len(drawn)
    assert max(after.values()) - min(after.values()) <= 1


@settings(deadline=None)  # a loaded machine
@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 50), min_size=1))
def test_shares_add_up_and_differ_by_one_at_most(counts: dict[str, int]) -> None:
    given = fair_shares(counts, sum(counts.values()))
    assert sum(given.values()) == sum(counts.values())
    assert max(given.values()) - min(given.values()) <= 1


# --- many processors over a store, in any order ---------------------------------------------------


class World:
    """A store with etags, a clock, and processors that list now and claim later."""

    def __init__(self, partition_count: int, strategy: Strategy) -> None:
        self.partitions = [str(number) for number in range(partition_count)]
        self.strategy = strategy
        self.now_s = NOW_S
        self.leases: dict[str, PartitionOwnership] = {}
        self.listed: dict[str, tuple[dict[str, PartitionOwnership], BalanceDecision]] = {}
        self.moves = 0
        self._etags = 0

    def look(self, owner: str) -> None:
        leases = dict(self.leases)
        decision = decide(
            leases.values(),
            self.partitions,
            owner_id=owner,
            now_s=self.now_s,
            expiration_s=EXPIRATION_S,
            strategy=self.strategy,
        )
        self.listed[owner] = leases, decision

    def act(self, owner: str) -> None:
        if owner not in self.listed:
            return
        leases, decision = self.listed.pop(owner)
        for partition in [*decision.renew, *decision.claim, *decision.steal]:
            before, now = leases.get(partition), self.leases.get(partition)
            if before != now:
                continue  # the etag is another one: lost
            if now is None or now.owner_id != owner:
                self.moves += 1
            self._etags += 1
            self.leases[partition] = PartitionOwnership(
                partition, owner, self.now_s, str(self._etags)
            )

    def counts(self, owners: Sequence[str]) -> list[int]:
        found = Counter(each.owner_id for each in self.leases.values())
        assert set(found) <= set(owners)
        return [found[owner] for owner in owners]


STEPS = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), st.sampled_from(["look", "act", "wait"])), max_size=60
)


@settings(deadline=None)  # a loaded machine
@given(st.integers(0, 20), st.integers(1, 8), STEPS, st.sampled_from(STRATEGIES), st.integers())
def test_processors_converge_to_balance_whatever_happened_before(
    partition_count: int,
    processor_count: int,
    steps: list[tuple[str, str]],
    strategy: Strategy,
    seed: int,
) -> None:
    chance = random.Random(seed)
    world = World(partition_count, strategy)
    for owner, what in steps:
        if what == "wait":
            world.now_s += EXPIRATION_S / 4
        else:
            getattr(world, what)(owner)
    living = list("abcdefgh"[:processor_count])
    for dead in set("abcdefgh") - set(living):
        world.listed.pop(dead, None)
    world.now_s += EXPIRATION_S + 1  # the others' leases run out
    for calm in [False] * 4 + [True] * (partition_count + processor_count):
        chance.shuffle(living)
        for owner in living:
            world.look(owner)
            if calm or chance.random() < 0.7:
                world.act(owner)
        for owner in living:
            world.act(owner)
        world.now_s += 1
    counts = world.counts(living)
    assert sum(counts) == partition_count
    assert max(counts) - min(counts) <= 1
    settled = world.moves
    for _ in range(3):
        for owner in living:
            world.look(owner)
            world.act(owner)
    assert world.moves == settled


@settings(deadline=None)  # a loaded machine
@given(st.integers(1, 60), st.integers(1, 8))
def test_newcomers_who_come_at_once_take_nothing_twice(
    partition_count: int, newcomer_count: int
) -> None:
    """They do not see each other, and all choose the same: one gets it, the others look again."""
    world = World(partition_count, "greedy")
    world.look("old")
    world.act("old")
    owners = [f"new-{number}" for number in range(newcomer_count)]
    before = world.moves
    for _ in range(newcomer_count + 1):
        for owner in owners:
            world.look(owner)
        # The poorest first: a victim who renews in just this moment keeps what it has.
        for owner in sorted(owners, key=lambda owner: len(world.listed[owner][1].renew)):
            world.act(owner)
    counts = world.counts(["old", *owners])
    assert max(counts) - min(counts) <= 1
    # Nobody was emptied and filled again: each moves at most once for every newcomer.
    assert world.moves - before <= partition_count * newcomer_count
