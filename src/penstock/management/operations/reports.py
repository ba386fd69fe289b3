"""What runs and what ran: connections, partitions, readers, usage, metrics, grants, audit."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address

import msgspec

from penstock.broker import ReaderView
from penstock.management.operations.base import ConnectionView, OperationGroup
from penstock.management.permissions import Action, Verified
from penstock.model import metrics, names
from penstock.model.entities import AuditEntry
from penstock.model.errors import ArgumentError, ArgumentOutOfRange, NotFound
from penstock.model.quotas import QuotaGrant, QuotaKind
from penstock.model.usage import Usage

AUDIT_ENTRIES_MAX = 1000
_HISTORY_DEFAULT_MS = metrics.HOUR_MS


class PartitionView(msgspec.Struct, frozen=True, kw_only=True):
    """A partition's committed state.

    `begin_sequence` is -1 when it holds no event, also after retention removed all of them; the
    other numbers are -1 when nothing was published yet.
    """

    id: str
    begin_sequence: int
    last_sequence: int
    last_offset: int
    last_enqueued_ms: int
    size_bytes: int
    failed: str | None


class ActivityOperations(OperationGroup):
    def connections(self) -> list[ConnectionView]:
        self._permit(Action.CONNECTION_READ)
        return self._administration.connections.list()

    def kill_connection(self, connection_id: str) -> None:
        """NotFound."""
        self._permit(Action.CONNECTION_KILL, connection_id)
        if not self._administration.connections.kill(connection_id):
            raise NotFound(f"There is no connection '{names.quote_text(connection_id)}'.")
        self._record(Action.CONNECTION_KILL, names.quote_text(connection_id))

    def partitions(self, namespace: str, hub: str) -> list[PartitionView]:
        self._permit(Action.HUB_READ, namespace, hub)
        self._hub(namespace, hub)
        runtime = self._administration.broker.hub(namespace, hub)
        statuses = [runtime.status(index) for index in range(runtime.partition_count)]
        return [
            PartitionView(
                id=partition_id,
                begin_sequence=status.begin_sequence,
                last_sequence=status.last_sequence,
                last_offset=status.last_offset,
                last_enqueued_ms=status.last_enqueued_ms,
                size_bytes=status.size_bytes,
                failed=status.failed,
            )
            for partition_id, status in zip(runtime.partition_ids, statuses, strict=True)
        ]

    def readers(self, namespace: str, hub: str) -> list[ReaderView]:
        self._permit(Action.HUB_READ, namespace, hub)
        self._hub(namespace, hub)
        return self._administration.broker.hub(namespace, hub).readers()

    def usage(self, *, since_ms: int, until_ms: int) -> list[Usage]:
        self._permit(Action.USAGE_READ)
        return self._administration.ledger.usage(since_ms=since_ms, until_ms=until_ms)

    async def metric_history(
        self,
        namespace: str,
        hub: str | None = None,
        *,
        wanted: Sequence[str] | None = None,
        since_ms: int | None = None,
        until_ms: int | None = None,
        points: int = metrics.POINTS_MAX,
    ) -> metrics.MetricSeries:
        """Of a namespace, or of one of its hubs; the last hour unless it is said. ArgumentError
        for a name that is none of `metrics.NAMES`."""
        self._permit(Action.METRICS_READ, namespace, hub)
        self._namespace(namespace)
        groups = {}
        if hub is not None:
            self._hub(namespace, hub)
            known = self._catalog.groups(namespace, hub)
            groups = {names.fold_name(group.name): group.name for group in known}
        unknown = [name for name in wanted or () if name not in metrics.NAMES]
        if unknown:
            raise ArgumentError(
                f"'{names.quote_text(unknown[0])}' is no metric: {', '.join(metrics.NAMES)} are."
            )
        if not 1 <= points <= metrics.POINTS_MAX:
            raise ArgumentOutOfRange(
                f"{points} points are asked for: 1 to {metrics.POINTS_MAX} are allowed."
            )
        until_ms = self._now_ms() if until_ms is None else until_ms
        found = await self._administration.history.read(
            namespace,
            hub,
            names=metrics.NAMES if not wanted else list(dict.fromkeys(wanted)),
            since_ms=until_ms - _HISTORY_DEFAULT_MS if since_ms is None else since_ms,
            until_ms=until_ms,
            points=points,
        )
        # Names as they were given; what is left of groups that are gone is not shown.
        lag = {groups[each]: v for each, v in found.lag_by_group.items() if each in groups}
        return msgspec.structs.replace(found, lag_by_group=lag)

    def audit(self, *, newest: int) -> list[AuditEntry]:
        self._permit(Action.AUDIT_READ)
        if not 1 <= newest <= AUDIT_ENTRIES_MAX:
            raise ArgumentOutOfRange(
                f"{newest} audit entries are asked for: 1 to {AUDIT_ENTRIES_MAX} are allowed."
            )
        return self._catalog.audit(newest=newest)

    def note_sign_in(self, address: str, *, refused_name: str | None = None) -> None:
        """The actor signed in to the portal from this address, or somebody of that name was refused
        there: the only record of something that is not done here."""
        self._permit(Action.PORTAL_SIGN_IN)
        try:
            place = str(ip_address(address))
        except ValueError:
            raise ArgumentError(
                f"'{names.quote_text(address)}' is no address: one such as 192.0.2.7 is."
            ) from None
        refused = "" if refused_name is None else f"refused: '{names.quote_text(refused_name)}' "
        self._record(Action.PORTAL_SIGN_IN, f"{refused}from {place}")

    def sign_in_link(self) -> str:
        """An address of the portal that signs the actor in once, with the actor's own role. Raises
        NotFound when the portal is off."""
        self._permit(Action.PORTAL_LINK)
        portal = self._administration.portal
        if portal is None:
            raise NotFound("The service runs without its portal: start it without --no-portal.")
        link = portal.sign_in_link(self._actor.name, self._actor.role, now_ms=self._now_ms())
        self._record(Action.PORTAL_LINK, "a link for one sign-in")
        return link

    def token_holder(self, token: str) -> Verified | None:
        """Whose admin token it is; None for one that is not valid. The portal asks this way for
        its visitors, so that their wrong tokens are not failed requests of the portal itself."""
        self._permit(Action.TOKEN_READ)
        portal = self._administration.portal
        return None if portal is None else portal.token_holder(token)

    def grants(self, namespace: str) -> list[QuotaGrant]:
        self._permit(Action.GRANT_READ, namespace)
        self._namespace(namespace)
        return self._catalog.quota_grants(namespace)

    def grant(
        self, namespace: str, kind: QuotaKind, value: int, *, note: str = "", by: str = ""
    ) -> QuotaGrant:
        """Raise a limit for one namespace; the catalog records it itself, with the caller and
        the person that it names."""
        self._permit(Action.GRANT_WRITE, namespace, kind)
        caller = names.quote_text(self._actor.name, most=64)
        grant = QuotaGrant(
            namespace=self._namespace(namespace).name,
            kind=kind,
            value=value,
            granted_by=f"{by} ({caller})" if by else caller,
            granted_ms=self._now_ms(),
            note=note,
        )
        self._catalog.put_quota_grant(grant)
        return grant

    def withdraw(self, namespace: str, kind: QuotaKind) -> None:
        """NotFound when there is no such grant."""
        self._permit(Action.GRANT_DELETE, namespace, kind)
        self._namespace(namespace)
        self._catalog.delete_quota_grant(
            namespace, kind, by=names.quote_text(self._actor.name, most=64), now_ms=self._now_ms()
        )
