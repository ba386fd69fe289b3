"""Connections, partitions, readers, usage, metrics, audit log, portal, quota grants, jobs, admin
tokens."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.broker.hub import ReaderView
from penstock.management import resources as arm
from penstock.management.jobs import Job
from penstock.management.operations.base import (
    OWN_HUB,
    OWN_NAMESPACE,
    ConnectionView,
    OperationGroup,
)
from penstock.management.permissions import Action, ProcessRole
from penstock.management.resources import Number, format_time
from penstock.management.router import OWN, RouteTable
from penstock.model import limits, metrics, names
from penstock.model.entities import AuditEntry
from penstock.model.errors import ArgumentError, ArgumentOutOfRange, NotFound
from penstock.model.quotas import QuotaGrant, QuotaKind
from penstock.model.usage import Usage

_GRANT = OWN_NAMESPACE + "/quotaGrants/{kind}"
_JOB = OWN + "/jobs/{job}"
# Of admin tokens.
_ROLES = ("Reader", "Operator", "Owner", ProcessRole.CAPTURE.value)
_LIFETIME_S_MIN = 60
_LIFETIME_S_MAX = 10 * 365 * 86_400
_TOKEN_ID = re.compile("[0-9a-f]{32}")

ROUTES = RouteTable("activity")


class UsageQuery(msgspec.Struct, frozen=True, rename="camel"):
    since_ms: Number = 0
    until_ms: Number = 2**53


class AuditQuery(msgspec.Struct, frozen=True):
    newest: Annotated[int, Meta(ge=1, le=1000)] = 100


class MetricQuery(msgspec.Struct, frozen=True, rename="camel"):
    names: Annotated[
        str | None,
        Meta(extra_json_schema={"description": "Separated by commas; all without it"}),
    ] = None
    since_ms: Number | None = None
    until_ms: Number | None = None
    points: Annotated[int, Meta(ge=1, le=metrics.POINTS_MAX)] = metrics.POINTS_MAX


class AuditRecord(AuditEntry, frozen=True, kw_only=True):
    at: str


class JobStatus(Job, frozen=True, kw_only=True):
    updated: str


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
    @ROUTES.add("GET", f"{OWN}/connections")
    def list_connections(self) -> list[ConnectionView]:
        self._permit(Action.CONNECTION_READ)
        return self._context.connections.list()

    @ROUTES.add("DELETE", OWN + "/connections/{connection}")
    def kill_connection(self, connection: str) -> None:
        """Raises NotFound."""
        self._permit(Action.CONNECTION_KILL, connection)
        if not self._context.connections.kill(connection):
            raise NotFound(f"There is no connection '{names.quote_text(connection)}'.")
        self._record(Action.CONNECTION_KILL, names.quote_text(connection))

    @ROUTES.add("GET", f"{OWN_HUB}/partitions")
    def list_partitions(self, namespace: str, hub: str) -> list[PartitionView]:
        self._find_hub(Action.HUB_READ, namespace, hub)
        runtime = self._context.broker.hub(namespace, hub)
        return [
            PartitionView(id=partition_id, **msgspec.structs.asdict(runtime.status(index)))
            for index, partition_id in enumerate(runtime.partition_ids)
        ]

    @ROUTES.add("GET", f"{OWN_HUB}/readers")
    def list_readers(self, namespace: str, hub: str) -> list[ReaderView]:
        self._find_hub(Action.HUB_READ, namespace, hub)
        return self._context.broker.hub(namespace, hub).readers()

    @ROUTES.add("GET", f"{OWN}/usage")
    def list_usage(self, query: UsageQuery) -> list[Usage]:
        self._permit(Action.USAGE_READ)
        return self._context.ledger.usage(since_ms=query.since_ms, until_ms=query.until_ms)

    @ROUTES.add("GET", f"{OWN_NAMESPACE}/metrics", name="namespace_metrics")
    @ROUTES.add("GET", f"{OWN_HUB}/metrics", name="hub_metrics")
    async def list_metrics(
        self, namespace: str, hub: str | None = None, *, query: MetricQuery
    ) -> metrics.MetricSeries:
        """Metrics over time of a namespace or of one of its hubs, of the last hour by default."""
        self._permit(Action.METRICS_READ, namespace, hub)
        self._namespace(namespace)
        groups = {}
        if hub is not None:
            self._hub(namespace, hub)
            existing = self._catalog.groups(namespace, hub)
            groups = {names.fold_name(group.name): group.name for group in existing}
        words = [word.strip() for word in (query.names or "").split(",")]
        metric_names = list(dict.fromkeys(word for word in words if word))
        for name in metric_names:
            if name not in metrics.NAMES:
                raise ArgumentError(
                    f"'{names.quote_text(name)}' is no metric: {', '.join(metrics.NAMES)} are."
                )
        until_ms = self._now_ms() if query.until_ms is None else query.until_ms
        since_ms = until_ms - metrics.HOUR_MS if query.since_ms is None else query.since_ms
        request = metrics.MetricRequest(
            namespace=namespace,
            hub=hub,
            names=metric_names or metrics.NAMES,
            since_ms=since_ms,
            until_ms=until_ms,
            points=query.points,
        )
        series = await self._context.read_metrics(request)
        # The series names groups in lower case, and includes deleted ones.
        lag = {groups[key]: v for key, v in series.lag_by_group.items() if key in groups}
        return msgspec.structs.replace(series, lag_by_group=lag)

    @ROUTES.add("GET", f"{OWN}/audit")
    def list_audit(self, query: AuditQuery) -> list[AuditRecord]:
        self._permit(Action.AUDIT_READ)
        return [
            AuditRecord(**msgspec.structs.asdict(entry), at=format_time(entry.at_ms))
            for entry in self._catalog.audit(newest=query.newest)
        ]

    @ROUTES.add("POST", f"{OWN}/portal/signIn")
    def note_sign_in(self, body: arm.SignInBody) -> None:
        """The portal reports a sign-in, or a refused one, for the audit log."""
        self._permit(Action.PORTAL_SIGN_IN)
        try:
            source = str(ip_address(body.address))
        except ValueError:
            raise ArgumentError(
                f"'{names.quote_text(body.address)}' is no address: one such as 192.0.2.7 is."
            ) from None
        name = body.refused_name
        refused = "" if name is None else f"refused: '{names.quote_text(name)}' "
        self._record(Action.PORTAL_SIGN_IN, f"{refused}from {source}")

    @ROUTES.add("POST", f"{OWN}/portal/signInLink")
    def issue_sign_in_link(self) -> arm.SignInLink:
        """An address of the portal that signs the token's holder in, once and within ten
        minutes."""
        self._permit(Action.PORTAL_LINK)
        name, role = self._actor.name, self._actor.role
        link = self._context.portal.sign_in_link(name, role, now_ms=self._now_ms())
        self._record(Action.PORTAL_LINK, "a link for one sign-in")
        return arm.SignInLink(url=link)

    @ROUTES.add("POST", f"{OWN}/portal/tokenHolder")
    def show_token_holder(self, body: arm.TokenBody) -> arm.TokenHolder:
        """The holder of an admin token. The portal asks this way, so that an invalid token of a
        visitor is not a failed request of the portal."""
        self._permit(Action.TOKEN_READ)
        holder = self._context.portal.token_holder(body.token)
        subject, roles = holder or ("", ())
        return arm.TokenHolder(active=holder is not None, subject=subject, roles=list(roles))

    @ROUTES.add("GET", f"{OWN_NAMESPACE}/quotaGrants")
    def list_quota_grants(self, namespace: str) -> list[QuotaGrant]:
        self._permit(Action.GRANT_READ, namespace)
        self._namespace(namespace)
        return self._catalog.quota_grants(namespace)

    @ROUTES.add("PUT", _GRANT)
    def grant_quota(self, namespace: str, kind: QuotaKind, body: arm.GrantBody) -> QuotaGrant:
        """Raise a limit for one namespace. The audit entry has the caller and the person `by`."""
        self._permit(Action.GRANT_WRITE, namespace, kind)
        caller = names.quote_text(self._actor.name, most=64)
        grant = QuotaGrant(
            namespace=self._namespace(namespace).name,
            kind=kind,
            value=body.value,
            granted_by=f"{body.by} ({caller})" if body.by else caller,
            granted_ms=self._now_ms(),
            note=body.note,
        )
        self._catalog.put_quota_grant(grant)
        return grant

    @ROUTES.add("DELETE", _GRANT)
    def withdraw_quota(self, namespace: str, kind: QuotaKind) -> None:
        """Raises NotFound when there is no such quota grant."""
        self._permit(Action.GRANT_DELETE, namespace, kind)
        self._namespace(namespace)
        self._catalog.delete_quota_grant(
            namespace, kind, by=names.quote_text(self._actor.name, most=64), now_ms=self._now_ms()
        )

    @ROUTES.add("GET", f"{OWN}/jobs")
    def list_jobs(self) -> list[JobStatus]:
        self._permit(Action.JOB_READ)
        return [
            JobStatus(**msgspec.structs.asdict(job), updated=format_time(job.updated_ms))
            for job in self._context.jobs.list(now_ms=self._now_ms())
        ]

    @ROUTES.add("PUT", _JOB)
    def report_job(self, job: str, body: arm.JobBody) -> None:
        """Replace the job's last report. Only its first report is written to the audit log."""
        self._permit(Action.JOB_REPORT, job)
        report = Job(name=job, **msgspec.structs.asdict(body))
        if self._context.jobs.put(report, now_ms=self._now_ms()):
            self._record(
                Action.JOB_REPORT, f"{names.quote_text(job)}: {names.quote_text(body.kind)}"
            )

    @ROUTES.add("DELETE", _JOB)
    def delete_job(self, job: str) -> None:
        """Raises NotFound."""
        self._permit(Action.JOB_DELETE, job)
        self._context.jobs.delete(job)
        self._record(Action.JOB_DELETE, names.quote_text(job))

    @ROUTES.add("POST", f"{OWN}/adminTokens", statuses=(201,))
    def issue_admin_token(self, body: arm.AdminTokenBody) -> arm.AdminToken:
        """A token with the role Reader, Operator or Owner, for the name in the audit log. The
        response contains the token itself."""
        name, lifetime_s = body.name, body.lifetime_seconds
        self._permit(Action.ADMIN_TOKEN_ISSUE, name)
        role = {allowed.lower(): allowed for allowed in _ROLES}.get(body.role.lower())
        if role is None:
            raise ArgumentError(
                f"The role is '{names.quote_text(body.role)}': {', '.join(_ROLES)} are allowed."
            )
        if not 1 <= len(name) <= limits.AUDIT_WHO_MAX // 4 or not name.isprintable():
            raise ArgumentError(
                f"The name '{names.quote_text(name)}' is invalid: 1 to "
                f"{limits.AUDIT_WHO_MAX // 4} printable characters are allowed."
            )
        if not _LIFETIME_S_MIN <= lifetime_s <= _LIFETIME_S_MAX:
            raise ArgumentOutOfRange(
                f"The lifetime is {lifetime_s} seconds: {_LIFETIME_S_MIN} to {_LIFETIME_S_MAX} "
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
