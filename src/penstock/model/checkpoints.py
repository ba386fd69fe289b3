"""Leases and checkpoints of event processors (protocol.md 11.1).

A record is one partition's; which hub and consumer group it is of is said beside it.
"""

from __future__ import annotations

import msgspec


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody wants a partition. Without `etag`: only if nobody ever had it; with one: only if
    the record is still the one of that etag. An empty `owner_id` gives the partition up."""

    partition_id: str
    owner_id: str
    etag: str | None = None


class Ownership(msgspec.Struct, frozen=True, kw_only=True):
    """Who has a partition. `etag` is new at every claim that won, renewals included."""

    partition_id: str
    owner_id: str
    etag: str
    modified_ms: int


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The last event that was processed. The last one written counts."""

    partition_id: str
    offset: str
    sequence_number: int
    modified_ms: int = 0  # when it was stored
