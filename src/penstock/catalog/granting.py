"""What needs an operator's grant, and how a refusal for want of one reads (docs/metering.md)."""

from __future__ import annotations

from penstock.model import limits
from penstock.model.errors import QuotaExceeded
from penstock.model.usage import AuditEntry, QuotaGrant, QuotaKind

_WORDS = {QuotaKind.THROUGHPUT_UNITS: "throughput units", QuotaKind.PARTITIONS: "partitions"}
_WITHOUT = {
    QuotaKind.THROUGHPUT_UNITS: limits.THROUGHPUT_UNITS_MAX,
    QuotaKind.PARTITIONS: limits.PARTITION_COUNT_MAX,
}


def check_granted(
    namespace: str, kind: QuotaKind, wanted: int | None, grant: QuotaGrant | None
) -> None:
    """Raises QuotaExceeded, which says what is missing and how an operator gives it."""
    allowed = _WITHOUT[kind] if grant is None else grant.value
    if wanted is None or wanted <= allowed:
        return
    by = "without a grant" if grant is None else f"by the grant of '{grant.granted_by}'"
    raise QuotaExceeded(
        f"The namespace '{namespace}' may have {allowed} {_WORDS[kind]} {by}: {wanted} need a "
        f"grant of {wanted}. An operator gives it with `penstock grant {namespace} "
        f"--{kind} {wanted} --by NAME`, or with [[namespaces.grants]] in the configuration "
        "file."
    )


def grant_audit_entry(grant: QuotaGrant) -> AuditEntry:
    note = f" ({grant.note})" if grant.note else ""
    return AuditEntry(
        at_ms=grant.granted_ms,
        who=grant.granted_by,
        what=f"grant.{grant.kind}",
        detail=f"'{grant.namespace}' may have up to {grant.value} {_WORDS[grant.kind]}{note}",
    )


def withdrawal_audit_entry(grant: QuotaGrant, *, by: str, now_ms: int) -> AuditEntry:
    return AuditEntry(
        at_ms=now_ms,
        who=by,
        what=f"withdraw.{grant.kind}",
        detail=f"'{grant.namespace}' had up to {grant.value} {_WORDS[grant.kind]} "
        f"by '{grant.granted_by}'",
    )
