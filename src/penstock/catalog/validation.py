"""Whether one record may be stored: names, ranges, throughput units, quota grants."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from penstock.model import entities, limits, names, quotas
from penstock.model.errors import ArgumentError, ArgumentOutOfRange, QuotaExceeded
from penstock.model.quotas import QuotaGrant, QuotaKind

# In an address or an HTTPS path these words end the hub's name (protocol.md 4.1, 7.1), so no name
# may go on with one: `hub/messages` is the path for publishing, and a token for it is one for
# the hub.
_WORDS_BELOW_HUB = frozenset(
    {"partitions", "consumergroups", "publishers", "publisher", "revokedpublishers", "messages"}
)
_NO_SEGMENTS = frozenset({"", ".", ".."})

_HOST = re.compile(r"[a-z0-9._:-]+")
_HUB_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")  # it names a directory of the log
_TIME_MS_MAX = 2**63 - 1

_QUOTA_NAMES = {QuotaKind.THROUGHPUT_UNITS: "throughput units", QuotaKind.PARTITIONS: "partitions"}
_SELF_SERVICE_QUOTAS = {
    QuotaKind.THROUGHPUT_UNITS: limits.THROUGHPUT_UNITS_MAX,
    QuotaKind.PARTITIONS: limits.PARTITION_COUNT_MAX,
}


def check_namespace(namespace: entities.Namespace) -> None:
    names.namespace_name(namespace.name)
    _check_times(namespace)
    _check_metadata(namespace.metadata)
    _check_units("throughput units", namespace.throughput_units)
    _check_units("maximum throughput units", namespace.maximum_throughput_units)
    if len(namespace.hosts) > limits.HOSTS_PER_NAMESPACE_MAX:
        raise QuotaExceeded(
            f"The namespace '{namespace.name}' is given {len(namespace.hosts)} host names: "
            f"at most {limits.HOSTS_PER_NAMESPACE_MAX} are allowed."
        )
    for host in namespace.hosts:
        _check_range("length of a host name", len(host), 1, limits.HOST_NAME_MAX)
        if _HOST.fullmatch(host) is None:
            raise ArgumentError(
                f"The host name '{names.quote_text(host)}' is invalid: "
                "lower-case letters, digits, . - _ and, for IPv6, : are allowed."
            )


def check_hub(hub: entities.Hub) -> None:
    """Its partition count is judged apart, by `check_partition_count`, when it is created."""
    names.hub_name(hub.name)
    _check_hub_segments(hub.name)
    if _HUB_ID.fullmatch(hub.id) is None:
        raise ArgumentError(
            f"The hub id '{names.quote_text(hub.id)}' is invalid: "
            "1 to 64 letters, digits, - and _ are allowed."
        )
    _check_times(hub)
    _check_range(
        "retention in hours",
        hub.retention_hours,
        limits.RETENTION_HOURS_MIN,
        limits.RETENTION_HOURS_MAX,
    )
    _check_text("user metadata", hub.user_metadata, 0, limits.USER_METADATA_MAX)
    _check_metadata(hub.metadata)


def check_partition_count(
    count: int, limit_set: entities.LimitSet, grant: QuotaGrant | None
) -> None:
    """Raises ArgumentOutOfRange below the namespace's minimum and above what any grant gives. A
    count that a grant could give raises nothing here: that refusal names the grant."""
    least, granted_max = limit_set.partition_count_min, limits.PARTITION_COUNT_GRANTED_MAX
    if least <= count <= granted_max:
        return
    most = limits.PARTITION_COUNT_MAX if grant is None else grant.value
    hint = f", and up to {granted_max} with a grant" if most < granted_max else ""
    if limits.PARTITION_COUNT_MIN_CURRENT <= count < least:
        hint = '. A namespace with limits = "current" allows 1'
    raise ArgumentOutOfRange(
        f"The partition count is {count}: {least} to {most} are allowed{hint}."
    )


def check_group(group: entities.ConsumerGroup) -> None:
    names.group_name(group.name)
    _check_times(group)
    _check_text("user metadata", group.user_metadata, 0, limits.USER_METADATA_MAX)


def check_rule(rule: entities.AuthorizationRule) -> None:
    names.rule_name(rule.name)
    _check_times(rule)
    if not entities.Right.NONE < rule.rights <= entities.Right.ALL:
        raise ArgumentError(
            f"The rights of the rule '{rule.name}' are invalid: "
            "one or more of Listen, Send and Manage are allowed."
        )
    if rule.rights & entities.Right.MANAGE and rule.rights != entities.Right.ALL:  # protocol.md 7.3
        raise ArgumentError(f"The rule '{rule.name}' has Manage: it needs Send and Listen too.")
    _check_key("primary", rule.primary_key)
    _check_key("secondary", rule.secondary_key)


def check_revoked_publisher(publisher: entities.RevokedPublisher) -> None:
    names.publisher_name(publisher.name)
    _check_range("time of revocation", publisher.revoked_ms, 0, _TIME_MS_MAX)


def check_quota_grant(grant: QuotaGrant) -> None:
    if grant.kind is QuotaKind.PARTITIONS:
        least, most = limits.PARTITION_COUNT_MAX + 1, limits.PARTITION_COUNT_GRANTED_MAX
        _check_range("number of partitions to grant", grant.value, least, most)
    elif grant.value <= limits.THROUGHPUT_UNITS_MAX or not quotas.is_allowed_units(grant.value):
        raise ArgumentOutOfRange(
            f"The throughput units to grant are {grant.value}: 40, 60, 80, 100 and blocks of 100 "
            f"up to {limits.THROUGHPUT_UNITS_GRANTED_MAX} are allowed."
        )
    _check_range("time of the grant", grant.granted_ms, 0, _TIME_MS_MAX)
    _check_text("name of who grants", grant.granted_by, 1, limits.AUDIT_WHO_MAX)
    _check_text("note of the grant", grant.note, 0, limits.GRANT_NOTE_MAX)


def check_audit(entry: entities.AuditEntry) -> None:
    _check_range("time of the audit entry", entry.at_ms, 0, _TIME_MS_MAX)
    _check_text("name of who acts", entry.who, 1, limits.AUDIT_WHO_MAX)
    _check_text("name of the action", entry.what, 1, limits.AUDIT_WHAT_MAX)
    _check_text("detail of the audit entry", entry.detail, 0, limits.AUDIT_DETAIL_MAX)


def check_granted(
    namespace: str, kind: QuotaKind, requested: int | None, grant: QuotaGrant | None
) -> None:
    """Raises QuotaExceeded, which names the missing quota grant and how an operator gives it."""
    allowed = _SELF_SERVICE_QUOTAS[kind] if grant is None else grant.value
    if requested is None or requested <= allowed:
        return
    by = "without a grant" if grant is None else f"by the grant of '{grant.granted_by}'"
    raise QuotaExceeded(
        f"The namespace '{namespace}' may have {allowed} {_QUOTA_NAMES[kind]} {by}: "
        f"{requested} need a grant of {requested}. An operator gives it with `penstock grant "
        f"{namespace} --{kind} {requested} --by NAME`, or with [[namespaces.grants]] in the "
        "configuration file."
    )


def grant_audit_entry(grant: QuotaGrant) -> entities.AuditEntry:
    note = f" ({grant.note})" if grant.note else ""
    return entities.AuditEntry(
        at_ms=grant.granted_ms,
        who=grant.granted_by,
        what=f"grant.{grant.kind}",
        detail=f"'{grant.namespace}' may have up to {grant.value} {_QUOTA_NAMES[grant.kind]}{note}",
    )


def withdrawal_audit_entry(grant: QuotaGrant, *, by: str, now_ms: int) -> entities.AuditEntry:
    return entities.AuditEntry(
        at_ms=now_ms,
        who=by,
        what=f"withdraw.{grant.kind}",
        detail=f"'{grant.namespace}' had up to {grant.value} {_QUOTA_NAMES[grant.kind]} "
        f"by '{grant.granted_by}'",
    )


def _check_units(what: str, held: int | None) -> None:
    if held is not None and not quotas.is_allowed_units(held):
        raise ArgumentOutOfRange(f"The {what} are {held}: {quotas.UNITS_TEXT} are allowed.")


def _check_hub_segments(name: str) -> None:
    segments = names.fold_name(name).split("/")
    if not _NO_SEGMENTS.isdisjoint(segments) or not _WORDS_BELOW_HUB.isdisjoint(segments[1:]):
        raise ArgumentError(
            f"The event hub name '{names.quote_text(name)}' is invalid: between slashes "
            "stands a name, "
            "not '.' or '..', and after the first slash not Partitions, ConsumerGroups, "
            "Publishers, RevokedPublishers or Messages, which have a meaning in addresses."
        )


def _check_key(which: str, key: entities.Secret) -> None:
    text = key.reveal()
    _check_range(f"length of the {which} key", len(text), 1, limits.SAS_KEY_MAX)
    if not text.isprintable():
        raise ArgumentError(f"The {which} key holds characters that cannot be printed.")


def _check_text(what: str, text: str, least: int, most: int) -> None:
    _check_range(f"length of the {what}", len(text), least, most)
    if not _is_storable(text):
        raise ArgumentError(f"The {what} is not valid Unicode text.")


def _check_metadata(metadata: dict[str, Any]) -> None:
    try:
        encoded = msgspec.json.encode(metadata)
        is_same = msgspec.json.decode(encoded) == metadata
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        is_same = False
    if not is_same:
        raise ArgumentError("The metadata is not a JSON object of valid Unicode text.")
    _check_range("size of the metadata in bytes", len(encoded), 0, limits.METADATA_BYTES_MAX)


def _is_storable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text  # SQLite's own functions would end the text there


def _check_times(
    record: entities.Namespace | entities.Hub | entities.ConsumerGroup | entities.AuthorizationRule,
) -> None:
    _check_range("creation time", record.created_ms, 0, _TIME_MS_MAX)
    _check_range("update time", record.updated_ms, 0, _TIME_MS_MAX)


def _check_range(what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ArgumentOutOfRange(f"The {what} is {value}: {least} to {most} are allowed.")
