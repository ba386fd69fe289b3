"""Who may do what: roles, actions, and the table that joins them."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum, StrEnum

import msgspec

from penstock.model import names
from penstock.model.errors import Unauthorized


class AdminRole(IntEnum):
    """Each includes those below it."""

    NOBODY = 0
    VIEWER = 1  # sees everything but keys
    OPERATOR = 2  # runs hubs, groups, publishers, connections and units
    ADMIN = 3  # namespaces, policies, keys, grants


# Azure's names of its built-in roles, and ours.
_ROLES = {
    "owner": AdminRole.ADMIN,
    "admin": AdminRole.ADMIN,
    "contributor": AdminRole.OPERATOR,
    "operator": AdminRole.OPERATOR,
    "reader": AdminRole.VIEWER,
    "viewer": AdminRole.VIEWER,
}


class ProcessRole(StrEnum):
    """The role of a process that works for the service. It is no part of the order of `Role`: it
    allows exactly the actions of PROCESS_ACTIONS."""

    CAPTURE = "Capture"  # the capture job; of entities it reaches only what is captured
    PORTAL = "Portal"  # acts on behalf of people who signed in, with their role


_PROCESS_ROLES = {role.lower(): role for role in ProcessRole}


class Action(StrEnum):
    """Azure's names of operations, after `Microsoft.EventHub/`; below the line our own."""

    NAMESPACE_READ = "namespaces/read"
    NAMESPACE_CREATE = "namespaces/create"
    NAMESPACE_UPDATE = "namespaces/write"
    NAMESPACE_DELETE = "namespaces/delete"
    HUB_READ = "eventhubs/read"
    HUB_WRITE = "eventhubs/write"
    HUB_DELETE = "eventhubs/delete"
    GROUP_READ = "consumergroups/read"
    GROUP_WRITE = "consumergroups/write"
    GROUP_DELETE = "consumergroups/delete"
    GROUP_SEEK = "consumergroups/seek"
    RULE_READ = "authorizationRules/read"
    RULE_WRITE = "authorizationRules/write"
    RULE_DELETE = "authorizationRules/delete"
    KEYS_LIST = "authorizationRules/listKeys"
    KEYS_REGENERATE = "authorizationRules/regenerateKeys"
    # ---
    PUBLISHER_READ = "revokedPublishers/read"
    PUBLISHER_REVOKE = "revokedPublishers/write"
    PUBLISHER_RESUME = "revokedPublishers/delete"
    CONNECTION_READ = "connections/read"
    CONNECTION_KILL = "connections/delete"
    USAGE_READ = "usage/read"
    AUDIT_READ = "audit/read"
    GRANT_READ = "quotaGrants/read"
    GRANT_WRITE = "quotaGrants/write"
    GRANT_DELETE = "quotaGrants/delete"
    METRICS_READ = "metrics/read"
    JOB_READ = "jobs/read"
    JOB_REPORT = "jobs/write"
    JOB_DELETE = "jobs/delete"
    CAPTURE_READ = "capture/read"
    CAPTURE_RUN = "capture/write"
    CAPTURE_BACKFILL = "capture/backfill"
    PORTAL_SIGN_IN = "portal/signIn"
    PORTAL_LINK = "portal/signInLink"
    TOKEN_READ = "tokens/read"  # noqa: S105  # the name of an action
    ADMIN_TOKEN_READ = "revokedAdminTokens/read"  # noqa: S105
    ADMIN_TOKEN_ISSUE = "adminTokens/write"  # noqa: S105
    ADMIN_TOKEN_REVOKE = "revokedAdminTokens/write"  # noqa: S105


REQUIRED: dict[Action, AdminRole] = {
    Action.NAMESPACE_READ: AdminRole.VIEWER,
    Action.NAMESPACE_CREATE: AdminRole.ADMIN,
    Action.NAMESPACE_UPDATE: AdminRole.OPERATOR,
    Action.NAMESPACE_DELETE: AdminRole.ADMIN,
    Action.HUB_READ: AdminRole.VIEWER,
    Action.HUB_WRITE: AdminRole.OPERATOR,
    Action.HUB_DELETE: AdminRole.OPERATOR,
    Action.GROUP_READ: AdminRole.VIEWER,
    Action.GROUP_WRITE: AdminRole.OPERATOR,
    Action.GROUP_DELETE: AdminRole.OPERATOR,
    Action.GROUP_SEEK: AdminRole.OPERATOR,
    Action.RULE_READ: AdminRole.VIEWER,
    # A policy is a key to the events, and a key can do what no role can: read them.
    Action.RULE_WRITE: AdminRole.ADMIN,
    Action.RULE_DELETE: AdminRole.ADMIN,
    Action.KEYS_LIST: AdminRole.ADMIN,
    Action.KEYS_REGENERATE: AdminRole.ADMIN,
    Action.PUBLISHER_READ: AdminRole.VIEWER,
    Action.PUBLISHER_REVOKE: AdminRole.OPERATOR,
    Action.PUBLISHER_RESUME: AdminRole.OPERATOR,
    Action.CONNECTION_READ: AdminRole.VIEWER,
    Action.CONNECTION_KILL: AdminRole.OPERATOR,
    Action.USAGE_READ: AdminRole.VIEWER,
    Action.AUDIT_READ: AdminRole.OPERATOR,
    Action.GRANT_READ: AdminRole.VIEWER,
    Action.GRANT_WRITE: AdminRole.ADMIN,
    Action.GRANT_DELETE: AdminRole.ADMIN,
    Action.METRICS_READ: AdminRole.VIEWER,
    Action.JOB_READ: AdminRole.VIEWER,
    Action.JOB_REPORT: AdminRole.OPERATOR,
    Action.JOB_DELETE: AdminRole.OPERATOR,
    Action.CAPTURE_READ: AdminRole.VIEWER,
    Action.CAPTURE_RUN: AdminRole.OPERATOR,
    Action.CAPTURE_BACKFILL: AdminRole.OPERATOR,
    Action.PORTAL_SIGN_IN: AdminRole.VIEWER,
    Action.PORTAL_LINK: AdminRole.VIEWER,
    Action.TOKEN_READ: AdminRole.ADMIN,
    Action.ADMIN_TOKEN_READ: AdminRole.ADMIN,
    Action.ADMIN_TOKEN_ISSUE: AdminRole.ADMIN,
    Action.ADMIN_TOKEN_REVOKE: AdminRole.ADMIN,
}

assert REQUIRED.keys() == set(Action)

PROCESS_ACTIONS: dict[ProcessRole, frozenset[Action]] = {
    ProcessRole.CAPTURE: frozenset(
        {
            Action.NAMESPACE_READ,
            Action.HUB_READ,
            Action.RULE_READ,
            Action.KEYS_LIST,
            Action.JOB_REPORT,
            Action.CAPTURE_RUN,
        }
    ),
    ProcessRole.PORTAL: frozenset({Action.TOKEN_READ}),
}
# The portal has no page for these. A lost token of the portal must not be exchanged for an admin
# token or a session that outlives it.
_NOT_THROUGH_PORTAL = frozenset(
    {
        Action.ADMIN_TOKEN_READ,
        Action.ADMIN_TOKEN_ISSUE,
        Action.ADMIN_TOKEN_REVOKE,
        Action.PORTAL_LINK,
    }
)


Verified = tuple[str, tuple[str, ...]]  # a valid admin token's subject and roles


class Actor(msgspec.Struct, frozen=True):
    """Who acts: a name for the audit log, and what it may do."""

    name: str
    role: AdminRole
    process: ProcessRole | None = None  # of a process's own token; `role` is NOBODY then
    is_through_portal: bool = False  # a person for whom the portal acts

    def may(self, action: Action) -> bool:
        if self.process is not None:
            return action in PROCESS_ACTIONS[self.process]
        if self.is_through_portal and action in _NOT_THROUGH_PORTAL:
            return False
        return self.role >= REQUIRED[action]

    def explain_refusal(self, action: Action) -> str:
        """One sentence for an action that this actor may not do."""
        name = names.quote_text(self.name)
        if self.process is not None:
            return f"'{name}' has the role {self.process}: it does not allow {action} here."
        required = REQUIRED[action]
        if self.role >= required:
            return f"{action} is not possible through the portal: use the penstock command."
        return (
            f"'{name}' has the role {self.role.name.lower()}: {action} needs "
            f"{required.name.lower()}."
        )


class Forbidden(Unauthorized):
    """Known, but without the role that the action needs."""

    http_status = 403


def actor_of(subject: str, claims: Iterable[str]) -> Actor:
    """The holder of a token with these roles. A person's role wins over a process's."""
    claims = list(claims)
    role = role_from_claims(claims)
    if role is AdminRole.NOBODY:
        for claim in claims:
            if (process := _PROCESS_ROLES.get(claim.lower())) is not None:
                return Actor(subject, role, process)
    return Actor(subject, role)


def role_from_claims(claims: Iterable[str]) -> AdminRole:
    """The highest role among a token's; words that mean nothing here give nothing."""
    return max(
        (_ROLES.get(claim.lower(), AdminRole.NOBODY) for claim in claims), default=AdminRole.NOBODY
    )
