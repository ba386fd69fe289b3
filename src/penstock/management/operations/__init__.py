"""Administrative operations by entity: check the permission, act, write the audit log.

`Operations(context, actor)` is created for each request. A change reaches open links through the
catalog: entity-updated, entity-disabled, not-found, or unauthorized after a key is replaced.
"""

from __future__ import annotations

from penstock.management.operations import activity, capture, groups, hubs
from penstock.management.operations.activity import ActivityOperations
from penstock.management.operations.base import ManagementContext
from penstock.management.operations.capture import CaptureOperations
from penstock.management.operations.groups import ConsumerGroupOperations
from penstock.management.operations.hubs import HubOperations
from penstock.management.operations.namespaces import NamespaceOperations
from penstock.management.operations.rules import AuthorizationRuleOperations
from penstock.management.permissions import Actor

ROUTES = [*hubs.ROUTES, *groups.ROUTES, *capture.ROUTES, *activity.ROUTES]


class Operations:
    """All operations of one actor."""

    def __init__(self, context: ManagementContext, actor: Actor) -> None:
        self.namespaces = NamespaceOperations(context, actor)
        self.hubs = HubOperations(context, actor)
        self.groups = ConsumerGroupOperations(context, actor)
        self.rules = AuthorizationRuleOperations(context, actor)
        self.captures = CaptureOperations(context, actor)
        self.activity = ActivityOperations(context, actor)
