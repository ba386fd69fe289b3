"""Which partitions a processor renews, claims, steals and gives up: decided from a list of leases.

Pure. Whoever decides from the same list makes the same plan and carries out its own part of it, so
that processors do not get in each other's way: every move goes from one that has too many to one
that has too few, none goes back, and a balanced list moves nothing. Where lists differ (somebody
claimed meanwhile, or owns nothing yet and is not seen) etags let one of them through.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

Strategy = Literal["greedy", "balanced"]


class PartitionOwnership(msgspec.Struct, frozen=True):
    """A lease as a store lists it; `owner_id` is empty when it was given up."""

    partition_id: str
    owner_id: str
    modified_s: float
    etag: str | None


class BalanceDecision(msgspec.Struct, frozen=True):
    """Partition ids, in the order in which they are to be taken."""

    renew: list[str]
    """Mine by the list. Whether they still are, the etag tells."""
    claim: list[str]
    """Nobody's: never owned, given up, or not renewed in time."""
    steal: list[str]
    """Another's, who has more than its share."""
    relinquish: list[str]
    """Held until now, and not mine by the list."""


def decide(
    ownerships: Iterable[PartitionOwnership],
    partition_ids: Sequence[str],
    *,
    owner_id: str,
    held: Iterable[str] = (),
    now_s: float,
    expiration_s: float,
    strategy: Strategy = "greedy",
) -> BalanceDecision:
    """What `owner_id`, who holds `held`, does now. A greedy one takes its whole share at once, a
    balanced one a partition at a time, so that what moves is spread over time."""
    known = set(partition_ids)
    listed = {each.partition_id: each for each in ownerships if each.partition_id in known}
    owned: dict[str, list[str]] = {owner_id: []}
    free: list[str] = []
    for partition in partition_ids:
        lease = listed.get(partition)
        if lease is None or not _is_live(lease, owner_id, now_s, expiration_s):
            free.append(partition)
        else:
            owned.setdefault(lease.owner_id, []).append(partition)
    claim, steal = _plan_claims(owned, free, owner_id)
    if strategy == "balanced":
        claim, steal = claim[:1], steal[: 0 if claim else 1]
    mine = owned[owner_id]
    return BalanceDecision(mine, claim, steal, [each for each in held if each not in mine])


def fair_shares(counts: dict[str, int], partition_count: int) -> dict[str, int]:
    """How many each owner is to have: all the same or one more, the one more for those who have
    most already, so that as few as possible move.

    >>> shares({"a": 4, "b": 2, "c": 2}, 8)
    {'a': 3, 'b': 3, 'c': 2}
    """
    least, more = divmod(partition_count, len(counts))
    ranked = sorted(counts, key=lambda owner: (-counts[owner], owner))
    return {owner: least + (rank < more) for rank, owner in enumerate(ranked)}


def _is_live(lease: PartitionOwnership, owner_id: str, now_s: float, expiration_s: float) -> bool:
    """Expired is what was not renewed for longer than that (protocol.md 11.1). My own counts as
    mine however old it is: its etag tells whether somebody took it while I stood still."""
    if lease.owner_id == owner_id:
        return True
    return bool(lease.owner_id) and lease.modified_s + expiration_s >= now_s


def _plan_claims(
    owned: dict[str, list[str]], free: list[str], owner_id: str
) -> tuple[list[str], list[str]]:
    """My part of the plan: free partitions and those above somebody's share are given, in order,
    to whoever lacks some, the poorest first."""
    counts = {owner: len(partitions) for owner, partitions in owned.items()}
    share = fair_shares(counts, sum(counts.values()) + len(free))
    spare = [
        partition
        for owner in sorted(owned)
        for partition in owned[owner][share[owner] :]  # empty for those who lack some
    ]
    given = free + spare
    begin = 0
    for owner in sorted(counts, key=lambda owner: (counts[owner], owner)):
        lacking = max(0, share[owner] - counts[owner])
        if owner == owner_id:
            mine = given[begin : begin + lacking]
            from_free = max(0, len(free) - begin)
            return mine[:from_free], mine[from_free:]
        begin += lacking
    raise AssertionError("the asking owner is among the owners")
