"""Every administrative act, by noun: rights first, then the act, then the audit log.

`Operations(administration, actor)` is made anew for each request and costs nothing. What an act
changes reaches running links through the catalog: entity-updated, entity-disabled, not-found,
unauthorized after a key is gone.
"""

from __future__ import annotations

from penstock.management.operations.admin_tokens import AdminTokenActs
from penstock.management.operations.base import (
    AdminTokens,
    CheckpointAccess,
    ConnectionRegistry,
    ConnectionView,
    IssuedToken,
    LagSource,
    LinkView,
    ManagementContext,
    MetricHistoryReader,
    format_path,
)
from penstock.management.operations.capture import CaptureOperations
from penstock.management.operations.groups import ConsumerGroupOperations
from penstock.management.operations.hubs import HubOperations, HubRequest
from penstock.management.operations.jobs import JobOperations
from penstock.management.operations.namespaces import (
    NamespaceOperations,
    NamespaceRequest,
    ResourceScope,
)
from penstock.management.operations.progress import ConsumerProgressOperations, MovedCheckpoint
from penstock.management.operations.publishers import PublisherOperations
from penstock.management.operations.reports import ActivityOperations, PartitionView
from penstock.management.operations.rules import AuthorizationRuleOperations
from penstock.management.permissions import Actor

__all__ = [
    "AdminTokens",
    "CheckpointAccess",
    "ConnectionRegistry",
    "ConnectionView",
    "HubRequest",
    "IssuedToken",
    "LagSource",
    "LinkView",
    "ManagementContext",
    "MetricHistoryReader",
    "MovedCheckpoint",
    "NamespaceRequest",
    "Operations",
    "PartitionView",
    "ResourceScope",
    "format_path",
]


class Operations:
    """What one actor may ask for."""

    def __init__(self, administration: ManagementContext, actor: Actor) -> None:
        self.actor = actor
        self.namespaces = NamespaceOperations(administration, actor)
        self.hubs = HubOperations(administration, actor)
        self.groups = ConsumerGroupOperations(administration, actor)
        self.captures = CaptureOperations(administration, actor)
        self.progress = ConsumerProgressOperations(administration, actor)
        self.rules = AuthorizationRuleOperations(administration, actor)
        self.jobs = JobOperations(administration, actor)
        self.publishers = PublisherOperations(administration, actor)
        self.reports = ActivityOperations(administration, actor)
        self.admin_tokens = AdminTokenActs(administration, actor)
