"""Which partitions a processor renews, claims, steals and gives up, decided from a list of leases.

A pure function. Processors with the same list compute the same plan and carry out their own part of
it, so they do not disturb each other: every move goes from an owner with too many partitions to one
with too few, none goes back, and a balanced list moves nothing. Where the lists differ (a processor
claimed meanwhile, or owns nothing yet and is not listed), the etags let only one claim win.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

Strategy = Literal["greedy", "balanced"]


class PartitionOwnership(msgspec.Struct, frozen=True):
    """A lease as a store lists it; an empty `owner_id` means that it was released."""

    partition_id: str
    owner_id: str
    modified_s: float
    etag: str | None


class BalanceDecision(msgspec.Struct, frozen=True):
    """Partition ids, in the order of the claims."""

    renew: list[str]
    """Owned by the list; the claim shows whether that is still true."""
    claim: list[str]
    """Without an owner: never owned, released, or not renewed in time."""
    steal: list[str]
    """Owned by a processor that has more than its share."""
    relinquish: list[str]
    """Held until now, but not owned by the list."""


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
    """What the processor `owner_id`, which holds `held`, does in this round. The greedy strategy
    claims the whole share at once, the balanced one a partition per round."""
    existing = set(partition_ids)
    listed = {each.partition_id: each for each in ownerships if each.partition_id in existing}
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
    """How many partitions each owner gets: equal numbers, or one more for the owners that have most
    already, so that few partitions move.

    >>> fair_shares({"a": 4, "b": 2, "c": 2}, 8)
    {'a': 3, 'b': 3, 'c': 2}
    """
    least, more = divmod(partition_count, len(counts))
    ranked = sorted(counts, key=lambda owner: (-counts[owner], owner))
    return {owner: least + (rank < more) for rank, owner in enumerate(ranked)}


def _is_live(lease: PartitionOwnership, owner_id: str, now_s: float, expiration_s: float) -> bool:
    """Whether the lease is not expired (protocol.md 11.1). The processor's own lease counts however
    old it is: its etag shows whether another one claimed it meanwhile."""
    if lease.owner_id == owner_id:
        return True
    return bool(lease.owner_id) and lease.modified_s + expiration_s >= now_s


def _plan_claims(
    owned: dict[str, list[str]], free: list[str], owner_id: str
) -> tuple[list[str], list[str]]:
    """The part of `owner_id` in the plan: partitions to claim, and to steal. Free partitions and
    those above an owner's share go, in order, to the owners that lack some, the poorest first."""
    counts = {owner: len(partitions) for owner, partitions in owned.items()}
    share = fair_shares(counts, sum(counts.values()) + len(free))
    spare = [
        partition
        for owner in sorted(owned)
        for partition in owned[owner][share[owner] :]  # empty for owners that lack some
    ]
    available = free + spare
    begin = 0
    for owner in sorted(counts, key=lambda owner: (counts[owner], owner)):
        lacking = max(0, share[owner] - counts[owner])
        if owner == owner_id:
            mine = available[begin : begin + lacking]
            from_free = max(0, len(free) - begin)
            return mine[:from_free], mine[from_free:]
        begin += lacking
    raise AssertionError("owner_id is one of the owners")
