"""Entities of the catalog: namespaces, hubs, consumer groups, authorization rules, and the audit
log. Plain frozen records."""

from __future__ import annotations

from enum import IntFlag, StrEnum
from typing import Any

import msgspec

from penstock.model import limits
from penstock.model.capture import HubCapture
from penstock.model.names import GroupName, HubName, NamespaceName, PublisherName, RuleName


class Right(IntFlag):
    """What a policy allows. Manage includes the other two (protocol.md 7.3)."""

    NONE = 0
    LISTEN = 1
    SEND = 2
    MANAGE = 4
    ALL = 7


class Tier(StrEnum):
    STANDARD = "Standard"
    DEDICATED = "Dedicated"


class LimitSet(StrEnum):
    """The limits of a standard namespace: those of the 2017 specification, or Azure's current
    ones."""

    SPECIFICATION = "specification"
    CURRENT = "current"

    @property
    def partition_count_min(self) -> int:
        if self is LimitSet.CURRENT:
            return limits.PARTITION_COUNT_MIN_CURRENT
        return limits.PARTITION_COUNT_MIN


class HubStatus(StrEnum):
    ACTIVE = "Active"
    DISABLED = "Disabled"
    SEND_DISABLED = "SendDisabled"
    RECEIVE_DISABLED = "ReceiveDisabled"


class Namespace(msgspec.Struct, frozen=True, kw_only=True):
    """`hosts` are the host names of the namespace, lower-case, without port."""

    name: NamespaceName
    created_ms: int
    updated_ms: int
    hosts: tuple[str, ...] = ()
    tier: Tier = Tier.STANDARD
    metadata: dict[str, Any] = {}  # properties that only the management API uses; plain JSON
    throughput_units: int | None = None  # None: usage is counted, not limited
    maximum_throughput_units: int | None = None  # of auto-inflate; None: it is off
    limits: LimitSet = LimitSet.SPECIFICATION

    @property
    def publication_bytes_max(self) -> int:
        if self.tier is Tier.DEDICATED:
            return limits.PUBLICATION_BYTES_DEDICATED
        if self.limits is LimitSet.CURRENT:
            return limits.PUBLICATION_BYTES_CURRENT
        return limits.PUBLICATION_BYTES_STANDARD


class Hub(msgspec.Struct, frozen=True, kw_only=True):
    """`id`, random hex, is the directory name of the log: a hub that is deleted and created again
    has a new one."""

    id: str
    namespace: NamespaceName
    name: HubName
    partition_count: int
    created_ms: int
    updated_ms: int
    retention_hours: int = limits.RETENTION_HOURS_DEFAULT
    status: HubStatus = HubStatus.ACTIVE
    user_metadata: str = ""
    metadata: dict[str, Any] = {}  # as in Namespace, and the Capture state

    @property
    def capture(self) -> HubCapture:
        """Decoded at each access. Raises msgspec.ValidationError where the catalog holds something
        else."""
        return msgspec.convert(self.metadata, HubCapture)

    @property
    def capture_description(self) -> dict[str, Any] | None:
        """Not checked, so it cannot fail."""
        return self.metadata.get("capture")

    @property
    def has_capture_runs(self) -> bool:
        """Whether the capture job has something to do for the hub. Checks nothing, so it cannot
        fail."""
        return bool(self.metadata.get("captureRuns"))

    def replace_capture(self, capture: HubCapture) -> Hub:
        """The hub with this Capture state, as plain JSON: the catalog stores no tuples."""
        keys = HubCapture.__struct_encode_fields__
        others = {key: value for key, value in self.metadata.items() if key not in keys}
        stored = msgspec.json.decode(msgspec.json.encode(capture), type=dict[str, Any])
        return msgspec.structs.replace(self, metadata=others | stored)


class ConsumerGroup(msgspec.Struct, frozen=True, kw_only=True):
    namespace: NamespaceName
    hub: HubName
    name: GroupName
    created_ms: int
    updated_ms: int
    user_metadata: str = ""


class RevokedPublisher(msgspec.Struct, frozen=True, kw_only=True):
    """A publisher that may not send to the hub until it is resumed (protocol.md 7.1)."""

    namespace: NamespaceName
    hub: HubName
    name: PublisherName
    revoked_ms: int


class Secret:
    """A key that must not appear in log lines, reprs or errors. `reveal()` returns its text."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


class AuthorizationRule(msgspec.Struct, frozen=True, kw_only=True):
    """A shared access policy of a namespace (`hub` None) or of one hub."""

    namespace: NamespaceName
    hub: HubName | None
    name: RuleName
    rights: Right
    primary_key: Secret
    secondary_key: Secret
    created_ms: int
    updated_ms: int


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Who did what, and when. Texts for operators; they never contain a secret."""

    at_ms: int
    who: str
    what: str
    detail: str
