"""The grants of the tokens that one connection holds (protocol.md 2.4)."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.auth.grant import Grant
from penstock.auth.sas import Authority, revalidate_grant
from penstock.model import limits
from penstock.model.entities import Right
from penstock.model.errors import QuotaExceeded

_POLICIES_SHOWN = 4


class ConnectionGrants:
    """By audience: a later token for the same audience replaces the earlier one."""

    def __init__(self) -> None:
        self._by_audience: dict[tuple[str, ...], Grant] = {}
        self._whole_connection: Grant | None = None

    def __bool__(self) -> bool:
        return bool(self._by_audience) or self._whole_connection is not None

    def put(self, audience: tuple[str, ...], grant: Grant) -> None:
        is_new = audience not in self._by_audience
        if is_new and len(self._by_audience) >= limits.GRANTS_PER_CONNECTION_MAX:
            raise QuotaExceeded(
                f"This connection holds {len(self._by_audience)} tokens: "
                f"at most {limits.GRANTS_PER_CONNECTION_MAX} are allowed."
            )
        self._by_audience[audience] = grant

    def put_for_connection(self, grant: Grant) -> None:
        """SASL PLAIN: the policy's rights hold for everything on this connection."""
        self._whole_connection = grant

    def find(self, path: tuple[str, ...], right: Right, *, now_ms: int) -> Grant | None:
        """The valid grant for the path and right that expires last."""
        best = self._whole_connection
        if best is not None and not best.allows(path, right):
            best = None
        # A grant covers paths at or below its audience, so only prefixes of the path are looked up:
        # a client that holds many tokens must not make each attach slow.
        for length in {len(audience) for audience in self._by_audience}:
            grant = self._by_audience.get(path[:length])
            if grant is None or _expiry(grant) <= now_ms or not grant.allows(path, right):
                continue
            if best is None or _expiry(grant) > _expiry(best):
                best = grant
        return best

    def any_for(self, path: tuple[str, ...], *, now_ms: int) -> Grant | None:
        """A valid grant that covers the path with any right (for $management reads)."""
        for right in (Right.LISTEN, Right.SEND, Right.MANAGE):
            grant = self.find(path, right, now_ms=now_ms)
            if grant is not None:
                return grant
        return None

    def policy_names(self) -> str:
        """Some of the policies whose tokens the connection holds, for log lines."""
        held = [*self._by_audience.values()][:_POLICIES_SHOWN]
        if self._whole_connection is not None:
            held.append(self._whole_connection)
        return ",".join(dict.fromkeys(str(grant.rule_name) for grant in held))

    def renew(self, authorities: Sequence[Authority]) -> None:
        """Policies changed: update the rights, drop the grants of removed keys."""
        renewed = {a: revalidate_grant(g, authorities) for a, g in self._by_audience.items()}
        self._by_audience = {a: grant for a, grant in renewed.items() if grant is not None}
        if self._whole_connection is not None:
            self._whole_connection = revalidate_grant(self._whole_connection, authorities)

    def drop_expired(self, *, now_ms: int) -> None:
        for audience in [a for a, g in self._by_audience.items() if _expiry(g) <= now_ms]:
            del self._by_audience[audience]


def _expiry(grant: Grant) -> float:
    return float("inf") if grant.expires_ms is None else grant.expires_ms
