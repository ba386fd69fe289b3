"""Routes below /providers/Penstock: what Azure has no words for."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import msgspec
from fastapi import APIRouter, Depends, Query, Response

from penstock.management import bodies, shapes
from penstock.management.routes.parameters import (
    Asked,
    ConnectionId,
    GroupName,
    HubName,
    JobName,
    NamespaceName,
    PublisherName,
    Responses,
    TokenId,
)
from penstock.management.shapes import Shape, format_time
from penstock.model import metrics
from penstock.model.quotas import QuotaKind

_TIME_MS_MAX = 2**53
OWN = "/providers/Penstock"
_OWN_NAMESPACE = OWN + "/namespaces/{namespace}"
_OWN_HUB = _OWN_NAMESPACE + "/eventhubs/{hub}"
_LIST: Responses = {200: {"model": bodies.ArmResourceList}}
_SERIES: Responses = {200: {"model": bodies.MetricSeriesResponse}}
_GroupQuery = Annotated[str | None, Query(max_length=256)]

router = APIRouter()


def _records(found: list[Any]) -> Shape:
    return shapes.to_page([msgspec.to_builtins(each) for each in found])


@router.get(f"{OWN}/namespaces", responses=_LIST)
async def list_all_namespaces(asked: Asked) -> Shape:
    """Of every subscription and resource group."""
    namespaces = asked.operations.namespaces
    return shapes.to_page(
        [
            shapes.namespace_shape(
                each, None, needed_units=namespaces.needed_units(each), https=asked.endpoints.https
            )
            for each in namespaces.list()
        ]
    )


@router.get(f"{OWN}/connections", responses=_LIST)
async def list_connections(asked: Asked) -> Shape:
    return _records(asked.operations.reports.connections())


@router.delete(f"{OWN}/connections/{{connection}}", response_class=Response)
async def kill_connection(asked: Asked, connection: ConnectionId) -> Response:
    asked.operations.reports.kill_connection(connection)
    return Response(status_code=200)


@router.get(f"{OWN}/usage", responses=_LIST)
async def list_usage(
    asked: Asked,
    since_ms: Annotated[int, Query(alias="sinceMs", ge=0, le=_TIME_MS_MAX)] = 0,
    until_ms: Annotated[int, Query(alias="untilMs", ge=0, le=_TIME_MS_MAX)] = _TIME_MS_MAX,
) -> Shape:
    return _records(asked.operations.reports.usage(since_ms=since_ms, until_ms=until_ms))


@router.get(f"{OWN}/audit", responses=_LIST)
async def list_audit(asked: Asked, newest: Annotated[int, Query(ge=1, le=1000)] = 100) -> Shape:
    found = asked.operations.reports.audit(newest=newest)
    return shapes.to_page(
        [msgspec.to_builtins(each) | {"at": format_time(each.at_ms)} for each in found]
    )


@router.post(f"{OWN}/portal/signIn", response_class=Response)
async def note_sign_in(asked: Asked, body: bodies.SignInBody) -> Response:
    """The portal tells of who signed in there, or was refused: it stands in the audit log."""
    asked.operations.reports.note_sign_in(body.address, refused_name=body.refused_name)
    return Response(status_code=200)


@router.post(f"{OWN}/portal/signInLink", responses={200: {"model": bodies.SignInLink}})
async def issue_sign_in_link(asked: Asked) -> Shape:
    """An address of the portal that signs the token's holder in, once and within ten minutes."""
    return {"url": asked.operations.reports.sign_in_link()}


@router.post(f"{OWN}/portal/tokenHolder", responses={200: {"model": bodies.TokenHolder}})
async def show_token_holder(asked: Asked, body: bodies.TokenBody) -> Shape:
    """Whose admin token it is, for the portal's sign-in page."""
    holder = asked.operations.reports.token_holder(body.token)
    subject, roles = holder or ("", ())
    return {"active": holder is not None, "subject": subject, "roles": list(roles)}


@router.get(f"{_OWN_NAMESPACE}/lag", responses=_LIST)
async def list_lag(asked: Asked, namespace: NamespaceName, group: _GroupQuery = None) -> Shape:
    return _records(await asked.operations.progress.lag(namespace, None, group))


@router.get(f"{_OWN_HUB}/lag", responses=_LIST)
async def list_hub_lag(
    asked: Asked, namespace: NamespaceName, hub: HubName, group: _GroupQuery = None
) -> Shape:
    return _records(await asked.operations.progress.lag(namespace, hub, group))


@router.post(f"{_OWN_HUB}/consumergroups/{{group}}/seek", responses=_LIST)
async def seek_consumer_group(
    asked: Asked, namespace: NamespaceName, hub: HubName, group: GroupName, body: bodies.SeekBody
) -> Shape:
    moved = await asked.operations.progress.seek(
        namespace,
        hub,
        group,
        body.to,
        partition=body.partition,
        dry_run=body.dry_run,
        force=body.force,
    )
    return _records(moved)


@router.get(f"{_OWN_HUB}/partitions", responses=_LIST)
async def list_partitions(asked: Asked, namespace: NamespaceName, hub: HubName) -> Shape:
    return _records(asked.operations.reports.partitions(namespace, hub))


@router.get(f"{_OWN_HUB}/readers", responses=_LIST)
async def list_readers(asked: Asked, namespace: NamespaceName, hub: HubName) -> Shape:
    return _records(asked.operations.reports.readers(namespace, hub))


@router.get(f"{_OWN_HUB}/revokedPublishers", responses=_LIST)
async def list_revoked_publishers(asked: Asked, namespace: NamespaceName, hub: HubName) -> Shape:
    return _records(asked.operations.publishers.list_revoked(namespace, hub))


@router.put(f"{_OWN_HUB}/revokedPublishers/{{publisher}}")
async def revoke_publisher(
    asked: Asked, namespace: NamespaceName, hub: HubName, publisher: PublisherName
) -> Any:
    return msgspec.to_builtins(asked.operations.publishers.revoke(namespace, hub, publisher))


@router.delete(f"{_OWN_HUB}/revokedPublishers/{{publisher}}", response_class=Response)
async def resume_publisher(
    asked: Asked, namespace: NamespaceName, hub: HubName, publisher: PublisherName
) -> Response:
    asked.operations.publishers.resume(namespace, hub, publisher)
    return Response(status_code=200)


@router.get(f"{_OWN_NAMESPACE}/quotaGrants", responses=_LIST)
async def list_quota_grants(asked: Asked, namespace: NamespaceName) -> Shape:
    return _records(asked.operations.reports.grants(namespace))


@router.put(f"{_OWN_NAMESPACE}/quotaGrants/{{kind}}")
async def grant_quota(
    asked: Asked, namespace: NamespaceName, kind: QuotaKind, body: bodies.GrantBody
) -> Any:
    made = asked.operations.reports.grant(namespace, kind, body.value, note=body.note, by=body.by)
    return msgspec.to_builtins(made)


@router.delete(f"{_OWN_NAMESPACE}/quotaGrants/{{kind}}", response_class=Response)
async def withdraw_quota(asked: Asked, namespace: NamespaceName, kind: QuotaKind) -> Response:
    asked.operations.reports.withdraw(namespace, kind)
    return Response(status_code=200)


# --- numbers over time ----------------------------------------------------------------------------


class MetricTimeRange(NamedTuple):
    """Which numbers of which time are asked for."""

    wanted: list[str]
    since_ms: int | None
    until_ms: int | None
    points: int


def _span(
    names: Annotated[
        str | None, Query(max_length=1024, description="Separated by commas; all without it")
    ] = None,
    since_ms: Annotated[int | None, Query(alias="sinceMs", ge=0, le=_TIME_MS_MAX)] = None,
    until_ms: Annotated[int | None, Query(alias="untilMs", ge=0, le=_TIME_MS_MAX)] = None,
    points: Annotated[int, Query(ge=1, le=metrics.POINTS_MAX)] = metrics.POINTS_MAX,
) -> MetricTimeRange:
    return MetricTimeRange(_words(names), since_ms, until_ms, points)


Spanned = Annotated[MetricTimeRange, Depends(_span)]


@router.get(f"{_OWN_NAMESPACE}/metrics", responses=_SERIES)
async def namespace_metrics(asked: Asked, namespace: NamespaceName, span: Spanned) -> Any:
    found = await asked.operations.reports.metric_history(namespace, None, **span._asdict())
    return msgspec.to_builtins(found)


@router.get(f"{_OWN_HUB}/metrics", responses=_SERIES)
async def hub_metrics(asked: Asked, namespace: NamespaceName, hub: HubName, span: Spanned) -> Any:
    found = await asked.operations.reports.metric_history(namespace, hub, **span._asdict())
    return msgspec.to_builtins(found)


def _words(names: str | None) -> list[str]:
    return [word.strip() for word in (names or "").split(",") if word.strip()]


# --- pipeline jobs --------------------------------------------------------------------------------


@router.get(f"{OWN}/jobs", responses=_LIST)
async def list_jobs(asked: Asked) -> Shape:
    found = asked.operations.jobs.list()
    return shapes.to_page(
        [msgspec.to_builtins(each) | {"updated": format_time(each.updated_ms)} for each in found]
    )


@router.put(f"{OWN}/jobs/{{job}}", response_class=Response)
async def report_job(asked: Asked, job: JobName, body: bodies.JobBody) -> Response:
    asked.operations.jobs.report(body.job(job))
    return Response(status_code=200)


@router.delete(f"{OWN}/jobs/{{job}}", response_class=Response)
async def delete_job(asked: Asked, job: JobName) -> Response:
    asked.operations.jobs.delete(job)
    return Response(status_code=200)


@router.post(f"{OWN}/adminTokens", status_code=201)
async def issue_admin_token(asked: Asked, body: bodies.AdminTokenBody) -> Shape:
    """A token with the role Reader, Operator or Owner. The answer has the token itself."""
    issued = asked.operations.admin_tokens.issue(
        subject=body.name, role=body.role, lifetime_s=body.lifetime_seconds
    )
    return {
        "id": issued.id,
        "token": issued.token.reveal(),
        "name": issued.subject,
        "role": issued.role,
        "expiresAt": format_time(issued.expires_ms),
    }


@router.get(f"{OWN}/revokedAdminTokens", responses=_LIST)
async def list_revoked_admin_tokens(asked: Asked) -> Shape:
    return shapes.to_page([{"id": each} for each in asked.operations.admin_tokens.revoked()])


@router.put(f"{OWN}/revokedAdminTokens/{{token_id}}", response_class=Response)
async def revoke_admin_token(asked: Asked, token_id: TokenId) -> Response:
    asked.operations.admin_tokens.revoke(token_id)
    return Response(status_code=200)
