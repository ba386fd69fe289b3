"""Admin tokens that the management API issues and revokes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.management.resources import AdminTokenBody
from penstock.model.errors import ArgumentError, PenstockError

if TYPE_CHECKING:
    from tests.unit.management.conftest import Plane


@pytest.mark.parametrize(
    ("subject", "role", "lifetime_s", "text"),
    [
        ("anna", "Janitor", 60, "Reader, Operator, Owner, Capture are allowed"),
        ("anna", "Portal", 60, "Reader, Operator, Owner, Capture are allowed"),
        ("", "Reader", 60, "1 to 64 printable"),
        ("an\nna", "Reader", 60, "1 to 64 printable"),
        ("anna", "Reader", 59, "60 to 315360000"),
        ("anna", "Reader", 10**9, "60 to 315360000"),
    ],
)
def test_odd_admin_token_is_refused(
    full: Plane, subject: str, role: str, lifetime_s: int, text: str
) -> None:
    with pytest.raises(PenstockError, match=text):
        full.admin.activity.issue_admin_token(
            AdminTokenBody(name=subject, role=role, lifetime_seconds=lifetime_s)
        )
    assert full.tokens.issued == []
    with pytest.raises(ArgumentError, match="32 hexadecimal digits"):
        full.admin.activity.revoke_admin_token("../" + "a" * 29)


def test_audit_names_the_id_and_not_the_token(full: Plane) -> None:
    issued = full.admin.activity.issue_admin_token(
        AdminTokenBody(name="anna", role="operator", lifetime_seconds=60)
    )
    assert issued.role == "Operator"
    (who, what, detail) = full.audit()[-1]
    assert (who, what) == ("admin", "adminTokens/write")
    assert detail == f"{issued.id}: Operator for anna, 60 s"
