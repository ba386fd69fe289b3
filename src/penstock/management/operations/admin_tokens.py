"""Admin tokens: issue one with a role and an expiry; revoke one before it expires."""

from __future__ import annotations

import re

from penstock.management import resources as arm
from penstock.management.operations.base import OperationGroup
from penstock.management.permissions import Action, ProcessRole
from penstock.management.router import OWN, RouteTable
from penstock.model import limits, names
from penstock.model.errors import ArgumentError, ArgumentOutOfRange

ROLES = ("Reader", "Operator", "Owner", ProcessRole.CAPTURE.value)
LIFETIME_S_MIN = 60
LIFETIME_S_MAX = 10 * 365 * 86_400
_TOKEN_ID = re.compile("[0-9a-f]{32}")

ROUTES = RouteTable("admin_tokens")


class AdminTokenOperations(OperationGroup):
    @ROUTES.add("POST", f"{OWN}/adminTokens", statuses=(201,))
    def issue_admin_token(self, body: arm.AdminTokenBody) -> arm.AdminToken:
        """A token with the role Reader, Operator or Owner, for the name in the audit log. The
        response contains the token itself."""
        name, lifetime_s = body.name, body.lifetime_seconds
        self._permit(Action.ADMIN_TOKEN_ISSUE, name)
        role = {allowed.lower(): allowed for allowed in ROLES}.get(body.role.lower())
        if role is None:
            raise ArgumentError(
                f"The role is '{names.quote_text(body.role)}': {', '.join(ROLES)} are allowed."
            )
        if not 1 <= len(name) <= limits.AUDIT_WHO_MAX // 4 or not name.isprintable():
            raise ArgumentError(
                f"The name '{names.quote_text(name)}' is invalid: 1 to "
                f"{limits.AUDIT_WHO_MAX // 4} printable characters are allowed."
            )
        if not LIFETIME_S_MIN <= lifetime_s <= LIFETIME_S_MAX:
            raise ArgumentOutOfRange(
                f"The lifetime is {lifetime_s} seconds: {LIFETIME_S_MIN} to {LIFETIME_S_MAX} "
                "(ten years) are allowed."
            )
        issued = self._context.tokens.issue(subject=name, role=role, lifetime_s=lifetime_s)
        self._record(
            Action.ADMIN_TOKEN_ISSUE,
            f"{issued.id}: {role} for {names.quote_text(name)}, {lifetime_s} s",
        )
        return issued

    @ROUTES.add("PUT", OWN + "/revokedAdminTokens/{token_id}")
    def revoke_admin_token(self, token_id: str) -> None:
        """Refuse the token with this id from now on, whether it was issued or not."""
        self._permit(Action.ADMIN_TOKEN_REVOKE, token_id)
        if _TOKEN_ID.fullmatch(token_id) is None:
            raise ArgumentError(
                f"The token id '{names.quote_text(token_id)}' is invalid: 32 hexadecimal digits "
                "are allowed. 'penstock token admin' and the audit log show it."
            )
        self._context.tokens.revoke(token_id)
        self._record(Action.ADMIN_TOKEN_REVOKE, token_id)

    @ROUTES.add("GET", f"{OWN}/revokedAdminTokens")
    def list_revoked_admin_tokens(self) -> list[dict[str, str]]:
        self._permit(Action.ADMIN_TOKEN_READ)
        return [{"id": token_id} for token_id in self._context.tokens.revoked()]
