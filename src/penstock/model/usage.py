"""What is kept about a namespace beside its entities: grants, who did what, and what it used."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from penstock.model.names import NamespaceName

HOUR_MS = 3_600_000


class QuotaKind(StrEnum):
    """A limit that an operator may raise for one namespace."""

    THROUGHPUT_UNITS = "throughput-units"  # held by the namespace
    PARTITIONS = "partitions"  # of each of its event hubs


class QuotaGrant(msgspec.Struct, frozen=True, kw_only=True):
    """The namespace may have up to `value` of `kind`; one grant of a kind, the last one given."""

    namespace: NamespaceName
    kind: QuotaKind
    value: int
    granted_by: str
    granted_ms: int
    note: str = ""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Who did what, when. Texts for people; no secret ever stands in one."""

    at_ms: int
    who: str
    what: str
    detail: str


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a namespace used in one clock hour (UTC), which begins at `hour_ms`.

    `run` names one count of it by one process; a namespace's hour is the sum over its runs, and the
    highest `units` of them. Empty where they are added up.
    """

    namespace: NamespaceName
    hour_ms: int
    run: str = ""
    units: int = 0  # the most that were held, or needed where they are not enforced
    ingress_events: int = 0  # in steps of 64 KB: a larger event counts once for each
    ingress_messages: int = 0  # events as such
    ingress_bytes: int = 0
    egress_bytes: int = 0
    capture_hours: int = 0


def hour_of(now_ms: int) -> int:
    """When the clock hour of that moment began."""
    return now_ms - now_ms % HOUR_MS
