"""Admin tokens: issue one with a role and an expiry; revoke one before it expires."""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.management.operations.base import IssuedToken, OperationGroup
from penstock.management.permissions import Action, ProcessRole
from penstock.model import limits, names
from penstock.model.errors import ArgumentError, ArgumentOutOfRange

ROLES = ("Reader", "Operator", "Owner", ProcessRole.CAPTURE.value)
LIFETIME_S_MIN = 60
LIFETIME_S_MAX = 10 * 365 * 86_400
_TOKEN_ID = re.compile("[0-9a-f]{32}")


class AdminTokenOperations(OperationGroup):
    def issue(self, *, subject: str, role: str, lifetime_s: int) -> IssuedToken:
        """A token for `subject`, the name in the audit log. Raises ArgumentError."""
        self._permit(Action.ADMIN_TOKEN_ISSUE, subject)
        allowed = {name.lower(): name for name in ROLES}
        role_name = allowed.get(role.lower())
        if role_name is None:
            raise ArgumentError(
                f"The role is '{names.quote_text(role)}': {', '.join(ROLES)} are allowed."
            )
        if not 1 <= len(subject) <= limits.AUDIT_WHO_MAX // 4 or not subject.isprintable():
            raise ArgumentError(
                f"The name '{names.quote_text(subject)}' is invalid: 1 to "
                f"{limits.AUDIT_WHO_MAX // 4} "
                "printable characters are allowed."
            )
        if not LIFETIME_S_MIN <= lifetime_s <= LIFETIME_S_MAX:
            raise ArgumentOutOfRange(
                f"The lifetime is {lifetime_s} seconds: {LIFETIME_S_MIN} to {LIFETIME_S_MAX} "
                "(ten years) are allowed."
            )
        issued = self._context.tokens.issue(subject=subject, role=role_name, lifetime_s=lifetime_s)
        self._record(
            Action.ADMIN_TOKEN_ISSUE,
            f"{issued.id}: {role_name} for {names.quote_text(subject)}, {lifetime_s} s",
        )
        return issued

    def revoke(self, token_id: str) -> None:
        """Refuse the token with this id from now on, whether it was issued or not."""
        self._permit(Action.ADMIN_TOKEN_REVOKE, token_id)
        if _TOKEN_ID.fullmatch(token_id) is None:
            raise ArgumentError(
                f"The token id '{names.quote_text(token_id)}' is invalid: 32 hexadecimal "
                "digits are "
                "allowed. 'penstock token admin' and the audit log show it."
            )
        self._context.tokens.revoke(token_id)
        self._record(Action.ADMIN_TOKEN_REVOKE, token_id)

    def revoked(self) -> Sequence[str]:
        self._permit(Action.ADMIN_TOKEN_READ)
        return self._context.tokens.revoked()
