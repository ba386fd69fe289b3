"""Leases and checkpoints of event processors (protocol.md 11.1).

A record covers one partition; the caller passes hub and consumer group separately.
"""

from __future__ import annotations

import msgspec


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A request for the ownership of a partition. Without `etag` it succeeds only if there is no
    ownership record yet, else only if the record still has that etag. An empty `owner_id` releases
    the partition."""

    partition_id: str
    owner_id: str
    etag: str | None = None


class Ownership(msgspec.Struct, frozen=True):
    """The owner of a partition. Every successful claim, renewals included, changes `etag`."""

    partition_id: str
    owner_id: str
    etag: str
    modified_ms: int


class Checkpoint(msgspec.Struct, frozen=True):
    """The last processed event of a partition. A newer write replaces it."""

    partition_id: str
    offset: str
    sequence_number: int
    modified_ms: int = 0  # when it was stored


class ClaimList(msgspec.Struct):
    """The JSON body of a claim request to the service."""

    claims: list[Claim]


class OwnershipList(msgspec.Struct):
    """The JSON body of the response to it, and to a request for the ownerships of a group."""

    ownerships: list[Ownership]


class CheckpointList(msgspec.Struct):
    """The JSON body of checkpoints, in both directions."""

    checkpoints: list[Checkpoint]
