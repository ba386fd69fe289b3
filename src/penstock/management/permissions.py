"""Roles and actions: which role may do which action."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum, StrEnum
from typing import Self

import msgspec

from penstock.model import names
from penstock.model.errors import Unauthorized


class AdminRole(IntEnum):
    """Each role includes the lower ones."""

    NOBODY = 0
    VIEWER = 1  # reads everything except keys and the audit log
    OPERATOR = 2  # also changes hubs, groups, publishers, connections and units
    ADMIN = 3  # also changes namespaces, policies, keys, quota grants and admin tokens


# Names of Azure's built-in roles, and Penstock's own.
_ROLES = {
    "owner": AdminRole.ADMIN,
    "admin": AdminRole.ADMIN,
    "contributor": AdminRole.OPERATOR,
    "operator": AdminRole.OPERATOR,
    "reader": AdminRole.VIEWER,
    "viewer": AdminRole.VIEWER,
}


class ProcessRole(StrEnum):
    """The role of a process that works for the service. It is not in the order of `AdminRole`: it
    allows exactly the actions of PROCESS_ACTIONS."""

    CAPTURE = "Capture"  # the capture job; it reads only the hubs that are captured
    PORTAL = "Portal"  # acts on behalf of persons who signed in, with their role


_PROCESS_ROLES = {role.lower(): role for role in ProcessRole}


class Action(StrEnum):
    """An operation under Azure's name (after `Microsoft.EventHub/`), with the lowest role that may
    do it. Those after the line are Penstock's own."""

    _value_: str
    required: AdminRole

    def __new__(cls, name: str, required: AdminRole) -> Self:
        action = str.__new__(cls, name)
        action._value_ = name
        action.required = required
        return action

    NAMESPACE_READ = "namespaces/read", AdminRole.VIEWER
    NAMESPACE_CREATE = "namespaces/create", AdminRole.ADMIN
    NAMESPACE_UPDATE = "namespaces/write", AdminRole.OPERATOR
    NAMESPACE_DELETE = "namespaces/delete", AdminRole.ADMIN
    HUB_READ = "eventhubs/read", AdminRole.VIEWER
    HUB_WRITE = "eventhubs/write", AdminRole.OPERATOR
    HUB_DELETE = "eventhubs/delete", AdminRole.OPERATOR
    GROUP_READ = "consumergroups/read", AdminRole.VIEWER
    GROUP_WRITE = "consumergroups/write", AdminRole.OPERATOR
    GROUP_DELETE = "consumergroups/delete", AdminRole.OPERATOR
    GROUP_SEEK = "consumergroups/seek", AdminRole.OPERATOR
    RULE_READ = "authorizationRules/read", AdminRole.VIEWER
    # A policy grants access to the events themselves, which no role does.
    RULE_WRITE = "authorizationRules/write", AdminRole.ADMIN
    RULE_DELETE = "authorizationRules/delete", AdminRole.ADMIN
    KEYS_LIST = "authorizationRules/listKeys", AdminRole.ADMIN
    KEYS_REGENERATE = "authorizationRules/regenerateKeys", AdminRole.ADMIN
    # ---
    PUBLISHER_READ = "revokedPublishers/read", AdminRole.VIEWER
    PUBLISHER_REVOKE = "revokedPublishers/write", AdminRole.OPERATOR
    PUBLISHER_RESUME = "revokedPublishers/delete", AdminRole.OPERATOR
    CONNECTION_READ = "connections/read", AdminRole.VIEWER
    CONNECTION_KILL = "connections/delete", AdminRole.OPERATOR
    USAGE_READ = "usage/read", AdminRole.VIEWER
    AUDIT_READ = "audit/read", AdminRole.OPERATOR
    GRANT_READ = "quotaGrants/read", AdminRole.VIEWER
    GRANT_WRITE = "quotaGrants/write", AdminRole.ADMIN
    GRANT_DELETE = "quotaGrants/delete", AdminRole.ADMIN
    METRICS_READ = "metrics/read", AdminRole.VIEWER
    JOB_READ = "jobs/read", AdminRole.VIEWER
    JOB_REPORT = "jobs/write", AdminRole.OPERATOR
    JOB_DELETE = "jobs/delete", AdminRole.OPERATOR
    CAPTURE_READ = "capture/read", AdminRole.VIEWER
    CAPTURE_RUN = "capture/write", AdminRole.OPERATOR
    CAPTURE_BACKFILL = "capture/backfill", AdminRole.OPERATOR
    PORTAL_SIGN_IN = "portal/signIn", AdminRole.VIEWER
    PORTAL_LINK = "portal/signInLink", AdminRole.VIEWER
    TOKEN_READ = "tokens/read", AdminRole.ADMIN
    ADMIN_TOKEN_READ = "revokedAdminTokens/read", AdminRole.ADMIN
    ADMIN_TOKEN_ISSUE = "adminTokens/write", AdminRole.ADMIN
    ADMIN_TOKEN_REVOKE = "revokedAdminTokens/write", AdminRole.ADMIN


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
# The portal has no page for these. A stolen token of the portal must not be exchanged for an admin
# token or a session that outlives it.
_NOT_THROUGH_PORTAL = frozenset(
    {
        Action.ADMIN_TOKEN_READ,
        Action.ADMIN_TOKEN_ISSUE,
        Action.ADMIN_TOKEN_REVOKE,
        Action.PORTAL_LINK,
    }
)


Verified = tuple[str, tuple[str, ...]]  # subject and roles of a valid admin token


class Actor(msgspec.Struct, frozen=True):
    """The person or process of a request: its name in the audit log, and its role."""

    name: str
    role: AdminRole
    process: ProcessRole | None = None  # for the token of a process; `role` is then NOBODY
    is_through_portal: bool = False  # a person on whose behalf the portal acts

    def may(self, action: Action) -> bool:
        if self.process is not None:
            return action in PROCESS_ACTIONS[self.process]
        if self.is_through_portal and action in _NOT_THROUGH_PORTAL:
            return False
        return self.role >= action.required

    def explain_refusal(self, action: Action) -> str:
        """The text of the error for an action that this actor may not do."""
        name = names.quote_text(self.name)
        if self.process is not None:
            return f"'{name}' has the role {self.process}: it does not allow {action} here."
        required = action.required
        if self.role >= required:
            return f"{action} is not possible through the portal: use the penstock command."
        return (
            f"'{name}' has the role {self.role.name.lower()}: {action} needs "
            f"{required.name.lower()}."
        )


class Forbidden(Unauthorized, http_status=403):
    """The client is authenticated; its role does not allow the action."""


def actor_of(subject: str, claims: Iterable[str]) -> Actor:
    """The holder of a token with these roles. A person's role has priority over a process's."""
    claims = list(claims)
    role = role_from_claims(claims)
    if role is AdminRole.NOBODY:
        for claim in claims:
            if (process := _PROCESS_ROLES.get(claim.lower())) is not None:
                return Actor(subject, role, process)
    return Actor(subject, role)


def role_from_claims(claims: Iterable[str]) -> AdminRole:
    """The highest role among a token's. Unknown names are ignored."""
    return max(
        (_ROLES.get(claim.lower(), AdminRole.NOBODY) for claim in claims), default=AdminRole.NOBODY
    )
