"""Routes below /providers/Penstock: what Azure's API does not have."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from penstock.broker import ReaderView
from penstock.broker.lag import LagRow
from penstock.management import resources as arm
from penstock.management.jobs import Job
from penstock.management.operations.activity import PartitionView
from penstock.management.operations.base import ConnectionView
from penstock.management.operations.groups import MovedCheckpoint
from penstock.management.resources import Number, Page
from penstock.management.routes.entities import format_time, namespace_resource
from penstock.management.routes.router import OWN, ApiRequest, RouteTable, decode
from penstock.model import metrics
from penstock.model.entities import RevokedPublisher
from penstock.model.quotas import QuotaGrant, QuotaKind
from penstock.model.usage import Usage

_NAMESPACE = OWN + "/namespaces/{namespace}"
_HUB = _NAMESPACE + "/eventhubs/{hub}"
_GRANT = _NAMESPACE + "/quotaGrants/{kind}"
_PUBLISHER = _HUB + "/revokedPublishers/{publisher}"
_JOB = OWN + "/jobs/{job}"

ROUTES = RouteTable()


@ROUTES.add("GET", f"{OWN}/namespaces")
async def list_all_namespaces(request: ApiRequest) -> Page[arm.NamespaceResource]:
    """The namespaces of every subscription and resource group."""
    namespaces = request.operations.namespaces.list()
    return Page([namespace_resource(request, entity, None) for entity in namespaces])


@ROUTES.add("GET", f"{OWN}/connections")
async def list_connections(request: ApiRequest) -> Page[ConnectionView]:
    return Page(request.operations.activity.connections())


@ROUTES.add("DELETE", OWN + "/connections/{connection}")
async def kill_connection(request: ApiRequest) -> None:
    request.operations.activity.kill_connection(request.names["connection"])


class UsageQuery(msgspec.Struct, frozen=True, rename="camel"):
    since_ms: Number = 0
    until_ms: Number = 2**53


@ROUTES.add("GET", f"{OWN}/usage")
async def list_usage(request: ApiRequest, query: UsageQuery) -> Page[Usage]:
    return Page(request.operations.activity.usage(since_ms=query.since_ms, until_ms=query.until_ms))


class AuditQuery(msgspec.Struct, frozen=True):
    newest: Annotated[int, Meta(ge=1, le=1000)] = 100


@ROUTES.add("GET", f"{OWN}/audit")
async def list_audit(request: ApiRequest, query: AuditQuery) -> Page[dict[str, Any]]:
    entries = request.operations.activity.audit(newest=query.newest)
    return Page(
        [msgspec.structs.asdict(entry) | {"at": format_time(entry.at_ms)} for entry in entries]
    )


@ROUTES.add("POST", f"{OWN}/portal/signIn")
async def note_sign_in(request: ApiRequest, body: arm.SignInBody) -> None:
    """The portal reports a sign-in, or a refused one, for the audit log."""
    request.operations.activity.note_sign_in(body.address, refused_name=body.refused_name)


@ROUTES.add("POST", f"{OWN}/portal/signInLink")
async def issue_sign_in_link(request: ApiRequest) -> arm.SignInLink:
    """An address of the portal that signs the token's holder in, once and within ten minutes."""
    return arm.SignInLink(url=request.operations.activity.sign_in_link())


@ROUTES.add("POST", f"{OWN}/portal/tokenHolder")
async def show_token_holder(request: ApiRequest, body: arm.TokenBody) -> arm.TokenHolder:
    """The holder of an admin token, for the portal's sign-in page."""
    holder = request.operations.activity.token_holder(body.token)
    subject, roles = holder or ("", ())
    return arm.TokenHolder(active=holder is not None, subject=subject, roles=list(roles))


# --- consumer groups ------------------------------------------------------------------------------


class LagQuery(msgspec.Struct, frozen=True):
    group: Annotated[str, Meta(max_length=256)] | None = None


@ROUTES.add("GET", f"{_NAMESPACE}/lag")
@ROUTES.add("GET", f"{_HUB}/lag", name="list_hub_lag")
async def list_lag(request: ApiRequest, query: LagQuery) -> Page[LagRow]:
    namespace, hub = request.names["namespace"], request.names.get("hub")
    return Page(list(await request.operations.groups.lag(namespace, hub, query.group)))


@ROUTES.add("POST", _HUB + "/consumergroups/{group}/seek")
async def seek_consumer_group(request: ApiRequest, body: arm.SeekBody) -> Page[MovedCheckpoint]:
    moved = await request.operations.groups.seek(
        request.names["namespace"],
        request.names["hub"],
        request.names["group"],
        body.to,
        partition=body.partition,
        dry_run=body.dry_run,
        force=body.force,
    )
    return Page(list(moved))


# --- partitions, readers, publishers --------------------------------------------------------------


@ROUTES.add("GET", f"{_HUB}/partitions")
async def list_partitions(request: ApiRequest) -> Page[PartitionView]:
    return Page(request.operations.activity.partitions(**request.names))


@ROUTES.add("GET", f"{_HUB}/readers")
async def list_readers(request: ApiRequest) -> Page[ReaderView]:
    return Page(request.operations.activity.readers(**request.names))


@ROUTES.add("GET", f"{_HUB}/revokedPublishers")
async def list_revoked_publishers(request: ApiRequest) -> Page[RevokedPublisher]:
    return Page(list(request.operations.hubs.list_revoked_publishers(**request.names)))


@ROUTES.add("PUT", _PUBLISHER)
async def revoke_publisher(request: ApiRequest) -> RevokedPublisher:
    return request.operations.hubs.revoke_publisher(*_publisher_path(request))


@ROUTES.add("DELETE", _PUBLISHER)
async def resume_publisher(request: ApiRequest) -> None:
    request.operations.hubs.resume_publisher(*_publisher_path(request))


def _publisher_path(request: ApiRequest) -> tuple[str, str, str]:
    return request.names["namespace"], request.names["hub"], request.names["publisher"]


# --- quota grants ---------------------------------------------------------------------------------


@ROUTES.add("GET", f"{_NAMESPACE}/quotaGrants")
async def list_quota_grants(request: ApiRequest) -> Page[QuotaGrant]:
    return Page(request.operations.activity.grants(request.names["namespace"]))


@ROUTES.add("PUT", _GRANT)
async def grant_quota(request: ApiRequest, body: arm.GrantBody) -> QuotaGrant:
    return request.operations.activity.grant(
        request.names["namespace"],
        _quota_kind(request),
        body.value,
        note=body.note,
        by=body.by,
    )


@ROUTES.add("DELETE", _GRANT)
async def withdraw_quota(request: ApiRequest) -> None:
    request.operations.activity.withdraw(request.names["namespace"], _quota_kind(request))


def _quota_kind(request: ApiRequest) -> QuotaKind:
    kind: QuotaKind = decode(request.names["kind"], QuotaKind, "path.kind")
    return kind


# --- metrics over time ----------------------------------------------------------------------------


class MetricQuery(msgspec.Struct, frozen=True, rename="camel"):
    names: Annotated[
        str | None,
        Meta(extra_json_schema={"description": "Separated by commas; all without it"}),
    ] = None
    since_ms: Number | None = None
    until_ms: Number | None = None
    points: Annotated[int, Meta(ge=1, le=metrics.POINTS_MAX)] = metrics.POINTS_MAX


@ROUTES.add("GET", f"{_NAMESPACE}/metrics", name="namespace_metrics")
@ROUTES.add("GET", f"{_HUB}/metrics", name="hub_metrics")
async def list_metrics(request: ApiRequest, query: MetricQuery) -> metrics.MetricSeries:
    words = [word.strip() for word in (query.names or "").split(",")]
    return await request.operations.activity.metric_history(
        request.names["namespace"],
        request.names.get("hub"),
        metric_names=[word for word in words if word],
        since_ms=query.since_ms,
        until_ms=query.until_ms,
        points=query.points,
    )


# --- pipeline jobs --------------------------------------------------------------------------------


@ROUTES.add("GET", f"{OWN}/jobs")
async def list_jobs(request: ApiRequest) -> Page[dict[str, Any]]:
    jobs = request.operations.activity.jobs()
    return Page(
        [msgspec.structs.asdict(job) | {"updated": format_time(job.updated_ms)} for job in jobs]
    )


@ROUTES.add("PUT", _JOB)
async def report_job(request: ApiRequest, body: arm.JobBody) -> None:
    job = Job(name=request.names["job"], **msgspec.structs.asdict(body))
    request.operations.activity.report_job(job)


@ROUTES.add("DELETE", _JOB)
async def delete_job(request: ApiRequest) -> None:
    request.operations.activity.delete_job(request.names["job"])


# --- admin tokens ---------------------------------------------------------------------------------


@ROUTES.add("POST", f"{OWN}/adminTokens", statuses=(201,))
async def issue_admin_token(request: ApiRequest, body: arm.AdminTokenBody) -> arm.AdminToken:
    """A token with the role Reader, Operator or Owner. The response contains the token itself."""
    issued = request.operations.admin_tokens.issue(
        subject=body.name, role=body.role, lifetime_s=body.lifetime_seconds
    )
    return arm.AdminToken(
        id=issued.id,
        token=issued.token.reveal(),
        name=issued.subject,
        role=issued.role,
        expires_at=format_time(issued.expires_ms),
    )


@ROUTES.add("GET", f"{OWN}/revokedAdminTokens")
async def list_revoked_admin_tokens(request: ApiRequest) -> Page[dict[str, str]]:
    return Page([{"id": token_id} for token_id in request.operations.admin_tokens.revoked()])


@ROUTES.add("PUT", OWN + "/revokedAdminTokens/{token_id}")
async def revoke_admin_token(request: ApiRequest) -> None:
    request.operations.admin_tokens.revoke(request.names["token_id"])
