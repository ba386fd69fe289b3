"""Every administrative act, by noun: rights first, then the act, then the audit log.

`Operations(administration, actor)` is made anew for each request and costs nothing. What an act
changes reaches running links through the catalog: entity-updated, entity-disabled, not-found,
unauthorized after a key is gone.
"""

from __future__ import annotations

from penstock.management.operations.admin_tokens import AdminTokenActs
from penstock.management.operations.base import (
    Administration,
    AdminTokens,
    Connections,
    ConnectionView,
    History,
    IssuedToken,
    KeptCheckpoints,
    Lag,
    LinkView,
    shown_path,
)
from penstock.management.operations.capture import Captures
from penstock.management.operations.groups import Groups
from penstock.management.operations.hubs import HubRequest, Hubs
from penstock.management.operations.jobs import Jobs
from penstock.management.operations.namespaces import NamespaceRequest, Namespaces, Place
from penstock.management.operations.progress import Moved, Progress
from penstock.management.operations.publishers import Publishers
from penstock.management.operations.reports import PartitionView, Reports
from penstock.management.operations.rules import KeyType, Rules
from penstock.management.permissions import Actor

__all__ = [
    "AdminTokens",
    "Administration",
    "ConnectionView",
    "Connections",
    "History",
    "HubRequest",
    "IssuedToken",
    "KeptCheckpoints",
    "KeyType",
    "Lag",
    "LinkView",
    "Moved",
    "NamespaceRequest",
    "Operations",
    "PartitionView",
    "Place",
    "shown_path",
]


class Operations:
    """What one actor may ask for."""

    def __init__(self, administration: Administration, actor: Actor) -> None:
        self.actor = actor
        self.namespaces = Namespaces(administration, actor)
        self.hubs = Hubs(administration, actor)
        self.groups = Groups(administration, actor)
        self.captures = Captures(administration, actor)
        self.progress = Progress(administration, actor)
        self.rules = Rules(administration, actor)
        self.jobs = Jobs(administration, actor)
        self.publishers = Publishers(administration, actor)
        self.reports = Reports(administration, actor)
        self.admin_tokens = AdminTokenActs(administration, actor)
