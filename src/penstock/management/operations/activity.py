"""Connections, partitions, readers, usage, metrics, audit log, portal, quota grants, jobs."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address

import msgspec

from penstock.broker import ReaderView
from penstock.management.jobs import Job
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
    """The committed log of a partition. `begin_sequence` is -1 when it holds no event, also after
    retention removed all of them; the other numbers are -1 when nothing was published yet."""

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
        return self._context.connections.list()

    def kill_connection(self, connection_id: str) -> None:
        """Raises NotFound."""
        self._permit(Action.CONNECTION_KILL, connection_id)
        if not self._context.connections.kill(connection_id):
            raise NotFound(f"There is no connection '{names.quote_text(connection_id)}'.")
        self._record(Action.CONNECTION_KILL, names.quote_text(connection_id))

    def partitions(self, namespace: str, hub: str) -> list[PartitionView]:
        self._find_hub(Action.HUB_READ, namespace, hub)
        runtime = self._context.broker.hub(namespace, hub)
        return [
            PartitionView(id=partition_id, **msgspec.structs.asdict(runtime.status(index)))
            for index, partition_id in enumerate(runtime.partition_ids)
        ]

    def readers(self, namespace: str, hub: str) -> list[ReaderView]:
        self._find_hub(Action.HUB_READ, namespace, hub)
        return self._context.broker.hub(namespace, hub).readers()

    def usage(self, *, since_ms: int, until_ms: int) -> list[Usage]:
        self._permit(Action.USAGE_READ)
        return self._context.ledger.usage(since_ms=since_ms, until_ms=until_ms)

    async def metric_history(
        self,
        namespace: str,
        hub: str | None = None,
        *,
        metric_names: Sequence[str] = (),
        since_ms: int | None = None,
        until_ms: int | None = None,
        points: int = metrics.POINTS_MAX,
    ) -> metrics.MetricSeries:
        """Metrics over time of a namespace or of one of its hubs, of the last hour by default.
        Raises ArgumentError for a name that is not in `metrics.NAMES`."""
        self._permit(Action.METRICS_READ, namespace, hub)
        self._namespace(namespace)
        groups = {}
        if hub is not None:
            self._hub(namespace, hub)
            existing = self._catalog.groups(namespace, hub)
            groups = {names.fold_name(group.name): group.name for group in existing}
        for name in metric_names:
            if name not in metrics.NAMES:
                raise ArgumentError(
                    f"'{names.quote_text(name)}' is no metric: {', '.join(metrics.NAMES)} are."
                )
        if not 1 <= points <= metrics.POINTS_MAX:
            raise ArgumentOutOfRange(
                f"{points} points are asked for: 1 to {metrics.POINTS_MAX} are allowed."
            )
        until_ms = self._now_ms() if until_ms is None else until_ms
        series = await self._context.history.read(
            namespace,
            hub,
            names=list(dict.fromkeys(metric_names)) or metrics.NAMES,
            since_ms=until_ms - _HISTORY_DEFAULT_MS if since_ms is None else since_ms,
            until_ms=until_ms,
            points=points,
        )
        # The series names groups in lower case, and includes deleted ones.
        lag = {groups[key]: v for key, v in series.lag_by_group.items() if key in groups}
        return msgspec.structs.replace(series, lag_by_group=lag)

    def audit(self, *, newest: int) -> list[AuditEntry]:
        self._permit(Action.AUDIT_READ)
        if not 1 <= newest <= AUDIT_ENTRIES_MAX:
            raise ArgumentOutOfRange(
                f"{newest} audit entries are asked for: 1 to {AUDIT_ENTRIES_MAX} are allowed."
            )
        return self._catalog.audit(newest=newest)

    def note_sign_in(self, address: str, *, refused_name: str | None = None) -> None:
        """Record that the actor signed in to the portal from this address, or that a person named
        `refused_name` was refused there."""
        self._permit(Action.PORTAL_SIGN_IN)
        try:
            source = str(ip_address(address))
        except ValueError:
            raise ArgumentError(
                f"'{names.quote_text(address)}' is no address: one such as 192.0.2.7 is."
            ) from None
        refused = "" if refused_name is None else f"refused: '{names.quote_text(refused_name)}' "
        self._record(Action.PORTAL_SIGN_IN, f"{refused}from {source}")

    def sign_in_link(self) -> str:
        """An address of the portal that signs the actor in once, with the actor's role. Raises
        NotFound when the portal is off."""
        self._permit(Action.PORTAL_LINK)
        portal = self._context.portal
        if portal is None:
            raise NotFound("The service runs without its portal: start it without --no-portal.")
        link = portal.sign_in_link(self._actor.name, self._actor.role, now_ms=self._now_ms())
        self._record(Action.PORTAL_LINK, "a link for one sign-in")
        return link

    def token_holder(self, token: str) -> Verified | None:
        """Subject and roles of an admin token; None for an invalid one. The portal asks this way,
        so that an invalid token of a visitor is not a failed request of the portal."""
        self._permit(Action.TOKEN_READ)
        portal = self._context.portal
        return None if portal is None else portal.token_holder(token)

    def grants(self, namespace: str) -> list[QuotaGrant]:
        self._permit(Action.GRANT_READ, namespace)
        self._namespace(namespace)
        return self._catalog.quota_grants(namespace)

    def grant(
        self, namespace: str, kind: QuotaKind, value: int, *, note: str = "", by: str = ""
    ) -> QuotaGrant:
        """Raise a limit for one namespace. The catalog writes the audit entry, with the caller and
        the person `by`."""
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
        """Raises NotFound when there is no such quota grant."""
        self._permit(Action.GRANT_DELETE, namespace, kind)
        self._namespace(namespace)
        self._catalog.delete_quota_grant(
            namespace, kind, by=names.quote_text(self._actor.name, most=64), now_ms=self._now_ms()
        )

    def jobs(self) -> list[Job]:
        self._permit(Action.JOB_READ)
        return self._context.jobs.list(now_ms=self._now_ms())

    def report_job(self, job: Job) -> None:
        """Replace the job's last report. Only its first report is written to the audit log."""
        self._permit(Action.JOB_REPORT, job.name)
        if self._context.jobs.put(job, now_ms=self._now_ms()):
            self._record(
                Action.JOB_REPORT, f"{names.quote_text(job.name)}: {names.quote_text(job.kind)}"
            )

    def delete_job(self, name: str) -> None:
        """Raises NotFound."""
        self._permit(Action.JOB_DELETE, name)
        self._context.jobs.delete(name)
        self._record(Action.JOB_DELETE, names.quote_text(name))
