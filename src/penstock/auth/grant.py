"""What a verified token, or the name and key of a policy, allows."""

from __future__ import annotations

import msgspec

from penstock.auth.resource import (
    Path,
    canonical_path,
    names_publisher,
    scope_covers,
    sends_to,
    within_hub,
)
from penstock.model.entities import Right, Secret
from penstock.model.names import HubName, NamespaceName, RuleName


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """`scope` is the resource of the token, `audience` the resource that the client presented it
    for.

    Both limit the grant: a token for a hub that is presented for one publisher is valid for that
    publisher only. `hub` is the level of the rule, None for the namespace. `expires_ms` is None for
    SASL PLAIN, where the client sent the key itself.
    """

    namespace: NamespaceName
    rule_name: RuleName
    hub: HubName | None
    rights: Right
    scope: Path
    expires_ms: int | None
    audience: Path = ()
    key: Secret = Secret("")  # the verified key: the grant ends when it is rotated

    def covers(self, path: Path) -> bool:
        """Whether the grant includes the path, in any case."""
        own = canonical_path(path)
        if self.hub is not None and not within_hub(self.hub, own):
            return False
        return scope_covers(self.scope, own) and scope_covers(self.audience, own)

    def allows(self, path: Path, right: Right) -> bool:
        """Whether every right in `right` is granted on the path. The caller checks the expiry."""
        return right & effective_rights(self.rights, self.scope) == right and self.covers(path)


def effective_rights(rights: Right, scope: Path) -> Right:
    """Manage includes Send and Listen (protocol.md 7.3). A token for a publisher (2.5) or for the
    URI of a publish request (7.1) allows sending only."""
    granted = Right.ALL if rights & Right.MANAGE else rights
    sends_only = names_publisher(scope) or sends_to(scope) is not None
    return granted & Right.SEND if sends_only else granted


def missing_claim_text(right: Right, resource: str) -> str:
    """Text of a refused attach (protocol.md 2.4). `resource` is the path below the host."""
    claims = ", ".join(
        name
        for one, name in ((Right.SEND, "Send"), (Right.LISTEN, "Listen"), (Right.MANAGE, "Manage"))
        if right & one
    )
    return (
        f"Unauthorized access. '{claims}' claim(s) are required to perform this operation. "
        f"Resource: '{resource}'."
    )
