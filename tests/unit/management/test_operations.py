"""Every administrative act: what it does, who may, what the audit log says of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.unit.management.conftest import hub_body, namespace_body

from penstock.capture.destinations import Destination
from penstock.capture.status import CaptureReport
from penstock.management import resources as arm
from penstock.management.operations import Operations
from penstock.management.operations.activity import AuditQuery, MetricQuery, UsageQuery
from penstock.management.operations.capture import BackfillRequest
from penstock.management.operations.namespaces import (
    ResourceScope,
    capacity_of,
)
from penstock.management.permissions import (
    Action,
    Actor,
    AdminRole,
    Forbidden,
    role_from_claims,
)
from penstock.management.resources import KeyType
from penstock.model.entities import HubStatus, LimitSet, Right, Secret, Tier
from penstock.model.errors import (
    AlreadyExists,
    ArgumentError,
    ArgumentOutOfRange,
    EntityDisabled,
    NotAllowed,
    NotFound,
    PenstockError,
    QuotaExceeded,
)
from penstock.model.names import ROOT_RULE, NamespaceName
from penstock.model.quotas import QuotaKind
from penstock.model.usage import Usage

if TYPE_CHECKING:
    from tests.unit.management.conftest import Caller, Plane

NS, HUB = "contoso", "orders"
CAPTURE = {
    "enabled": True,
    "destination": {"properties": {"storageAccountResourceId": "a", "blobContainer": "b"}},
}
HERE = ResourceScope("a-subscription", "a-group")
PRIMARY = arm.RegenerateBody(key_type=KeyType.PRIMARY)

# Each action by the call that does it.
ACTS: dict[Action, Callable[[Operations], object]] = {
    Action.NAMESPACE_READ: lambda o: o.namespaces.show(NS),
    Action.NAMESPACE_CREATE: lambda o: o.namespaces.put("fabrikam", namespace_body()),
    Action.NAMESPACE_UPDATE: lambda o: o.namespaces.put(NS, namespace_body(capacity=3)),
    Action.NAMESPACE_DELETE: lambda o: o.namespaces.delete(NS),
    Action.HUB_READ: lambda o: o.hubs.show(NS, HUB),
    Action.HUB_WRITE: lambda o: o.hubs.put(NS, "new", hub_body()),
    Action.HUB_DELETE: lambda o: o.hubs.delete(NS, HUB),
    Action.GROUP_READ: lambda o: o.groups.show(NS, HUB, "readers"),
    Action.GROUP_WRITE: lambda o: o.groups.put(NS, HUB, "new"),
    Action.GROUP_DELETE: lambda o: o.groups.delete(NS, HUB, "readers"),
    Action.GROUP_SEEK: lambda o: asyncio.run(
        o.groups.seek_consumer_group(NS, HUB, "readers", arm.SeekBody(to="latest"))
    ),
    Action.RULE_READ: lambda o: o.rules.show(NS, None, "sender"),
    Action.RULE_WRITE: lambda o: o.rules.put(NS, None, "new", Right.SEND),
    Action.RULE_DELETE: lambda o: o.rules.delete(NS, None, "sender"),
    Action.KEYS_LIST: lambda o: o.rules.keys(NS, None, "sender"),
    Action.KEYS_REGENERATE: lambda o: o.rules.regenerate(NS, None, "sender", PRIMARY),
    Action.PUBLISHER_READ: lambda o: o.hubs.list_revoked_publishers(NS, HUB),
    Action.PUBLISHER_REVOKE: lambda o: o.hubs.revoke_publisher(NS, HUB, "device"),
    Action.PUBLISHER_RESUME: lambda o: o.hubs.resume_publisher(NS, HUB, "device"),
    Action.CONNECTION_READ: lambda o: o.activity.list_connections(),
    Action.CONNECTION_KILL: lambda o: o.activity.kill_connection("first"),
    Action.USAGE_READ: lambda o: o.activity.list_usage(UsageQuery(since_ms=0, until_ms=1)),
    Action.AUDIT_READ: lambda o: o.activity.list_audit(AuditQuery(newest=10)),
    Action.GRANT_READ: lambda o: o.activity.list_quota_grants(NS),
    Action.GRANT_WRITE: lambda o: o.activity.grant_quota(
        NS, QuotaKind.THROUGHPUT_UNITS, arm.GrantBody(value=40)
    ),
    Action.GRANT_DELETE: lambda o: o.activity.withdraw_quota(NS, QuotaKind.PARTITIONS),
    Action.METRICS_READ: lambda o: asyncio.run(o.activity.list_metrics(NS, query=MetricQuery())),
    Action.JOB_READ: lambda o: o.activity.list_jobs(),
    Action.JOB_REPORT: lambda o: o.activity.report_job("new", arm.JobBody()),
    Action.JOB_DELETE: lambda o: o.activity.delete_job("old"),
    Action.CAPTURE_READ: lambda o: o.captures.list_captures(),
    Action.CAPTURE_RUN: lambda o: o.captures.report_capture(NS, HUB, CaptureReport(run="one")),
    Action.PORTAL_LINK: lambda o: o.activity.issue_sign_in_link(),
    Action.TOKEN_READ: lambda o: o.activity.show_token_holder(arm.TokenBody(token="a token")),
    Action.PORTAL_SIGN_IN: lambda o: o.activity.note_sign_in(arm.SignInBody(address="192.0.2.7")),
    Action.ADMIN_TOKEN_READ: lambda o: o.activity.list_revoked_admin_tokens(),
    Action.ADMIN_TOKEN_ISSUE: lambda o: o.activity.issue_admin_token(
        arm.AdminTokenBody(name="anna", role="Reader", lifetime_seconds=60)
    ),
    Action.ADMIN_TOKEN_REVOKE: lambda o: o.activity.revoke_admin_token("a" * 32),
    Action.CAPTURE_BACKFILL: lambda o: asyncio.run(
        o.captures.backfill_capture(NS, HUB, BackfillRequest(since="earliest"))
    ),
}
CHANGES = [action for action in Action if not action.endswith("/read")]


@pytest.fixture
def ready(full: Plane) -> Plane:
    """With something to resume, to withdraw and to forget as well."""
    full.admin.hubs.revoke_publisher(NS, HUB, "device")
    full.admin.activity.grant_quota(NS, QuotaKind.PARTITIONS, arm.GrantBody(value=64))
    full.admin.activity.report_job("old", arm.JobBody())
    full.administration.captures.destinations = [Destination(name="a", url="file:///a")]
    full.admin.hubs.put(NS, HUB, hub_body(capture=CAPTURE))
    return full


@pytest.mark.parametrize("action", Action)
@pytest.mark.parametrize("role", AdminRole)
def test_every_action_needs_its_role(ready: Plane, action: Action, role: AdminRole) -> None:
    before = len(ready.audit())
    act = ACTS[action]
    if role >= action.required:
        if action is Action.PUBLISHER_REVOKE:
            ready.admin.hubs.resume_publisher(NS, HUB, "device")
        act(ready.as_(role))
        return
    with pytest.raises(Forbidden) as refused:
        act(ready.as_(role))
    assert refused.value.http_status == 403
    assert action.required.name.lower() in str(refused.value)
    denied = [entry for entry in ready.audit()[before:] if entry[2].startswith("denied")]
    assert len(denied) == (0 if action.endswith("/read") else 1)


@pytest.mark.parametrize("action", CHANGES)
def test_every_change_is_recorded_once_with_who_did_it(ready: Plane, action: Action) -> None:
    if action is Action.PUBLISHER_REVOKE:
        ready.admin.hubs.resume_publisher(NS, HUB, "device")
    before = len(ready.audit())
    ACTS[action](ready.as_(AdminRole.ADMIN, "alice"))
    recorded = ready.audit()[before:]
    assert [who for who, _, _ in recorded] == ["alice"]
    if action not in (Action.GRANT_WRITE, Action.GRANT_DELETE):  # the catalog's own words
        assert recorded[0][1] == action


def test_audit_holds_no_key(ready: Plane) -> None:
    given = arm.RegenerateBody(key_type=KeyType.PRIMARY, key="a-given-secret-key")
    ready.admin.rules.regenerate(NS, None, "sender", given)
    ready.admin.rules.keys(NS, None, "sender")
    text = repr(ready.audit())
    keys = [rule.primary_key.reveal() for rule in ready.catalog.rules(NS)]
    assert "a-given-secret-key" in keys
    assert not [key for key in keys if key in text]


def test_hostile_names_reach_the_audit_log_escaped(full: Plane) -> None:
    viewer = full.as_(AdminRole.VIEWER, "a\nb" * 200)
    with pytest.raises(Forbidden):
        viewer.hubs.delete(NS, "x\x00y" * 500)
    who, _, detail = full.audit()[-1]
    assert who.isprintable()
    assert detail.isprintable()
    assert len(who) <= 256


@pytest.mark.parametrize(
    ("claims", "role"),
    [
        ((), AdminRole.NOBODY),
        (("Janitor",), AdminRole.NOBODY),
        (("Reader",), AdminRole.VIEWER),
        (("viewer", "CONTRIBUTOR"), AdminRole.OPERATOR),
        (("Owner", "Reader"), AdminRole.ADMIN),
    ],
)
def test_role_is_the_highest_of_the_claims(claims: tuple[str, ...], role: AdminRole) -> None:
    assert role_from_claims(claims) is role
    assert Actor("a", role).may(Action.HUB_READ) is (role >= AdminRole.VIEWER)


# --- namespaces -----------------------------------------------------------------------------------


def test_new_namespace_has_one_unit_and_a_root_policy(plane: Plane) -> None:
    namespace, is_new = plane.admin.namespaces.put("fabrikam", namespace_body())
    assert is_new
    assert namespace.throughput_units == 1
    root = plane.catalog.rule("fabrikam", None, ROOT_RULE)
    assert root is not None
    assert root.rights == Right.ALL
    assert root.primary_key != root.secondary_key


def test_namespace_keeps_its_place_tags_and_location(plane: Plane) -> None:
    request = namespace_body(capacity=2, location="here", tags={"a": "b"}, sku="basic")
    plane.admin.namespaces.put("fabrikam", request, HERE)
    namespaces = plane.admin.namespaces
    assert namespaces.show("FABRIKAM", HERE).metadata["tags"] == {"a": "b"}
    assert [each.name for each in namespaces.list(HERE)] == ["fabrikam"]
    assert namespaces.list(ResourceScope("a-subscription", "other")) == []
    assert [each.name for each in namespaces.list(ResourceScope("A-Subscription", ""))] == [
        "fabrikam"
    ]
    with pytest.raises(NotFound):
        namespaces.show("fabrikam", ResourceScope("a-subscription", "other"))
    with pytest.raises(NotFound):
        namespaces.delete("fabrikam", ResourceScope("other", "a-group"))
    with pytest.raises(AlreadyExists):
        namespaces.put("fabrikam", namespace_body(), ResourceScope("other", "a-group"))


def test_namespace_without_a_place_is_found_at_each(full: Plane) -> None:
    full.catalog.put_namespace(
        type(full.catalog.namespaces()[0])(name=NamespaceName("seeded"), created_ms=0, updated_ms=0)
    )
    assert full.admin.namespaces.show("seeded", HERE).name == "seeded"
    assert "seeded" in [each.name for each in full.admin.namespaces.list(HERE)]
    changed, _ = full.admin.namespaces.put("seeded", namespace_body(tags={"a": "b"}), HERE)
    assert changed.metadata == {"tags": {"a": "b"}}
    for place in (HERE, ResourceScope("other", "another-group"), ResourceScope("other", "")):
        assert "seeded" in [each.name for each in full.admin.namespaces.list(place)]
        assert full.admin.namespaces.show("seeded", place) == changed


def test_namespace_put_again_changes_only_what_is_said(full: Plane) -> None:
    before = full.admin.namespaces.show(NS)
    full.clock.advance(1000)
    same, is_new = full.admin.namespaces.put(NS, namespace_body())
    assert (same, is_new) == (before, False)
    premium, _ = full.admin.namespaces.put(NS, namespace_body(sku="Premium"))
    assert premium.tier is Tier.DEDICATED
    assert premium.updated_ms == before.updated_ms + 1000
    assert premium.throughput_units == 2


def test_units_reach_the_throttle_at_once(full: Plane) -> None:
    full.broker.hub(NS, HUB)
    full.admin.namespaces.put(NS, namespace_body(capacity=7))
    assert full.admin.namespaces.show(NS).throughput_units == 7


def test_units_beyond_twenty_need_a_grant(full: Plane) -> None:
    with pytest.raises(QuotaExceeded):
        full.admin.namespaces.put(NS, namespace_body(capacity=40))
    grant = arm.GrantBody(value=40, note="asked for")
    full.admin.activity.grant_quota(NS, QuotaKind.THROUGHPUT_UNITS, grant)
    changed, _ = full.admin.namespaces.put(NS, namespace_body(capacity=40))
    assert changed.throughput_units == 40
    assert [grant.note for grant in full.admin.activity.list_quota_grants(NS)] == ["asked for"]
    with pytest.raises(ArgumentOutOfRange):
        full.admin.namespaces.put(NS, namespace_body(capacity=0))


def test_unlimited_namespace_reports_what_the_hour_needed(plane: Plane) -> None:
    made, _ = plane.admin.namespaces.put("fabrikam", namespace_body(unlimited=True))
    assert made.throughput_units is None
    assert capacity_of(made) == 0
    plane.needed["units"] = 5
    assert plane.admin.namespaces.needed_units(made) == 5


@pytest.mark.parametrize(
    ("before", "request_", "after"),
    [
        (None, namespace_body(capacity=0), None),
        (None, namespace_body(capacity=0, unlimited=True), None),
        (None, namespace_body(capacity=3, unlimited=True), 3),
        (None, namespace_body(capacity=0, units=3), 3),
        (3, namespace_body(capacity=3, units=3), 3),
        (3, namespace_body(capacity=4, units=3), 4),
        (3, namespace_body(capacity=3, units=4), 4),
        (3, namespace_body(capacity=3, unlimited=True), None),
        (3, namespace_body(unlimited=True), None),
    ],
    ids=str,
)
def test_of_two_fields_for_the_units_the_changed_one_counts(
    plane: Plane, before: int | None, request_: arm.NamespaceBody, after: int | None
) -> None:
    plane.admin.namespaces.put(
        "fabrikam", namespace_body(capacity=before, unlimited=before is None)
    )
    changed, _ = plane.admin.namespaces.put("fabrikam", request_)
    assert changed.throughput_units == after


@pytest.mark.parametrize(
    "request_",
    [
        namespace_body(sku="Gold"),
        namespace_body(tags={"": "x"}),
        namespace_body(tags={"x": "y" * 257}),
        namespace_body(tags={str(n): "y" for n in range(51)}),
        namespace_body(location="a/b"),
        namespace_body(capacity=21),
        namespace_body(maximum_units=21),
    ],
    ids=lambda request: str(request)[:60],
)
def test_namespace_refuses_what_it_cannot_keep(full: Plane, request_: arm.NamespaceBody) -> None:
    before = full.admin.namespaces.list()
    with pytest.raises(PenstockError):
        full.admin.namespaces.put(NS, request_)
    assert full.admin.namespaces.list() == before


def test_auto_inflate_has_a_maximum(full: Plane) -> None:
    request = namespace_body(auto_inflate=True, maximum_units=10)
    assert full.admin.namespaces.put(NS, request)[0].maximum_throughput_units == 10
    off = full.admin.namespaces.put(NS, namespace_body(auto_inflate=False, maximum_units=10))[0]
    assert off.maximum_throughput_units is None


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (namespace_body(auto_inflate=True), "without maximumThroughputUnits"),
        (namespace_body(auto_inflate=True, maximum_units=0), "without maximumThroughputUnits"),
        (namespace_body(maximum_units=9), "auto-inflate is off"),
        (namespace_body(auto_inflate=False, maximum_units=9), "isAutoInflateEnabled is false"),
        (namespace_body(auto_inflate=True, maximum_units=1), "below the 2 units"),
        (namespace_body(capacity=10, auto_inflate=True, maximum_units=5), "below the 10 units"),
    ],
    ids=str,
)
def test_auto_inflate_that_cannot_be_is_refused(
    full: Plane, request_: arm.NamespaceBody, text: str
) -> None:
    before = full.admin.namespaces.show(NS)
    with pytest.raises(ArgumentError, match=text):
        full.admin.namespaces.put(NS, request_)
    assert full.admin.namespaces.show(NS) == before


def test_units_above_the_maximum_are_refused_unless_they_are_stored(full: Plane) -> None:
    full.admin.namespaces.put(NS, namespace_body(auto_inflate=True, maximum_units=10))
    with pytest.raises(ArgumentError, match="10, below the 20 units") as refused:
        full.admin.namespaces.put(NS, namespace_body(capacity=20))
    # The portal and the command line show it, where no field has Resource Manager's name.
    assert "maximumThroughputUnits" not in str(refused.value)
    assert "isAutoInflateEnabled" not in str(refused.value)
    stored = full.admin.namespaces.show(NS)  # as version 0.1 accepted it
    full.catalog.put_namespace(msgspec.structs.replace(stored, throughput_units=20))
    repeated = namespace_body(capacity=20, auto_inflate=True, maximum_units=10, tags={"a": "b"})
    assert full.admin.namespaces.put(NS, repeated)[0].maximum_throughput_units == 10


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("contoso", "NameInUse"),
        ("a", "InvalidName"),
        ("9bcdefg", "InvalidName"),
        ("fabrikam", "None"),
    ],
)
def test_name_availability_gives_azures_reason(full: Plane, name: str, reason: str) -> None:
    found = full.admin.namespaces.check_name(name)
    assert (found.name_available, found.reason) == (reason == "None", reason)


def test_deleting_a_namespace_takes_all_along(full: Plane) -> None:
    full.admin.namespaces.delete(NS)
    assert full.catalog.namespaces() == []
    with pytest.raises(NotFound):
        full.broker.hub(NS, HUB)
    with pytest.raises(NotFound):
        full.admin.hubs.list(NS)


def test_two_namespaces_have_hubs_of_the_same_name(full: Plane) -> None:
    full.admin.namespaces.put("fabrikam", namespace_body())
    full.admin.hubs.put("fabrikam", HUB, hub_body(partition_count=2))
    assert full.admin.hubs.show(NS, HUB).partition_count == 4
    assert full.admin.hubs.show("fabrikam", HUB).partition_count == 2


# --- hubs -----------------------------------------------------------------------------------------


def test_new_hub_has_the_defaults_and_its_default_group(full: Plane) -> None:
    hub = full.admin.hubs.put(NS, "new", hub_body())
    assert (hub.partition_count, hub.retention_hours, hub.status) == (4, 24, HubStatus.ACTIVE)
    assert [group.name for group in full.admin.groups.list(NS, "new")] == ["$Default"]
    assert full.broker.hub(NS, "new").partition_count == 4


def test_partition_count_is_fixed_at_creation(full: Plane) -> None:
    with pytest.raises(NotAllowed, match="fixed at creation"):
        full.admin.hubs.put(NS, HUB, hub_body(partition_count=8))
    assert full.admin.hubs.put(NS, HUB, hub_body(partition_count=4)).partition_count == 4


@pytest.mark.parametrize("count", [0, 1, 33])
def test_partition_count_has_its_range(full: Plane, count: int) -> None:
    with pytest.raises(PenstockError):
        full.admin.hubs.put(NS, "new", hub_body(partition_count=count))
    assert full.catalog.hub(NS, "new") is None


def test_new_namespace_has_the_limits_of_the_service(full: Plane) -> None:
    current = msgspec.structs.replace(full.administration, limit_set=LimitSet.CURRENT)
    operations = Operations(current, Actor("admin", AdminRole.ADMIN))
    operations.namespaces.put("fabrikam", namespace_body())
    assert operations.hubs.put("fabrikam", HUB, hub_body(partition_count=1)).partition_count == 1
    with pytest.raises(ArgumentOutOfRange, match="is 1: 2 to 32 are allowed"):
        operations.hubs.put(NS, "new", hub_body(partition_count=1))


@pytest.mark.parametrize(
    ("days", "hours", "expected"),
    [
        (None, None, 72),
        (2, None, 48),
        (None, 30, 30),
        (3, 30, 30),  # days as they were, hours changed
        (5, 72, 120),  # the other way round
        (2, 48, 48),
        (2, 30, 30),  # both changed, and 30 hours are two days begun
    ],
)
def test_retention_follows_the_field_that_was_changed(
    full: Plane, days: int | None, hours: int | None, expected: int
) -> None:
    full.admin.hubs.put(NS, HUB, hub_body(retention_hours=72))
    changed = full.admin.hubs.put(NS, HUB, hub_body(retention_days=days, retention_hours=hours))
    assert changed.retention_hours == expected


def test_retention_that_contradicts_itself_is_refused(full: Plane) -> None:
    with pytest.raises(ArgumentError, match="contradict"):
        full.admin.hubs.put(NS, "new", hub_body(retention_days=1, retention_hours=72))
    with pytest.raises(ArgumentOutOfRange):
        full.admin.hubs.put(NS, "new", hub_body(retention_days=8))


def test_status_reaches_the_hub_at_work(full: Plane) -> None:
    runtime = full.broker.hub(NS, HUB)
    ended: list[PenstockError] = []
    runtime.open_sender(on_end=ended.append)
    full.admin.hubs.put(NS, HUB, hub_body(status="SendDisabled"))
    assert [type(error) for error in ended] == [EntityDisabled]
    with pytest.raises(ArgumentError):
        full.admin.hubs.put(NS, HUB, hub_body(status="Restoring"))


def test_metadata_changes_end_no_link(full: Plane) -> None:
    ended: list[PenstockError] = []
    full.broker.hub(NS, HUB).open_sender(on_end=ended.append)
    full.admin.hubs.put(NS, HUB, hub_body(user_metadata="about it", capture={"enabled": False}))
    assert full.admin.hubs.show(NS, HUB).user_metadata == "about it"
    assert ended == []


def test_compaction_is_refused(full: Plane) -> None:
    with pytest.raises(NotAllowed, match="only Delete"):
        full.admin.hubs.put(NS, HUB, hub_body(cleanup_policy="Compact"))


def test_deleting_a_hub_drops_its_log_and_ends_its_links(full: Plane) -> None:
    ended: list[PenstockError] = []
    full.broker.hub(NS, HUB).open_sender(on_end=ended.append)
    first = full.admin.hubs.show(NS, HUB).id
    full.admin.hubs.delete(NS, HUB)
    assert [type(error) for error in ended] == [NotFound]
    again = full.admin.hubs.put(NS, HUB, hub_body(partition_count=4))
    assert again.id != first
    assert full.admin.activity.list_partitions(NS, HUB)[0].last_sequence == -1
    with pytest.raises(NotFound):
        full.admin.hubs.delete(NS, "nothing")


# --- groups, rules, publishers, reports -----------------------------------------------------------


def test_groups_are_twenty_beside_default(full: Plane) -> None:
    for number in range(19):
        full.admin.groups.put(NS, HUB, f"group-{number}")
    with pytest.raises(QuotaExceeded):
        full.admin.groups.put(NS, HUB, "one-more")
    with pytest.raises(NotAllowed):
        full.admin.groups.delete(NS, HUB, "$Default")
    full.admin.groups.delete(NS, HUB, "group-1")
    assert full.admin.groups.put(NS, HUB, "one-more", user_metadata="x").user_metadata == "x"


def test_group_put_again_keeps_what_is_not_said(full: Plane) -> None:
    full.admin.groups.put(NS, HUB, "readers", user_metadata="about them")
    assert full.admin.groups.put(NS, HUB, "READERS").user_metadata == "about them"
    assert full.admin.groups.put(NS, HUB, "$Default", user_metadata="d").name == "$Default"
    with pytest.raises(NotFound):
        full.admin.groups.show(NS, HUB, "nobody")


@pytest.mark.parametrize("hub", [None, HUB])
def test_rules_are_twelve_of_a_level(full: Plane, hub: str | None) -> None:
    have = len(full.admin.rules.list(NS, hub))
    for number in range(12 - have):
        full.admin.rules.put(NS, hub, f"rule-{number}", Right.LISTEN)
    with pytest.raises(QuotaExceeded):
        full.admin.rules.put(NS, hub, "one-more", Right.LISTEN)


def test_rule_put_again_keeps_its_keys(full: Plane) -> None:
    before = full.admin.rules.keys(NS, HUB, "listener")
    after = full.admin.rules.put(NS, HUB, "LISTENER", Right.SEND | Right.LISTEN)
    assert after.primary_key == before.primary_key
    assert after.rights == Right.SEND | Right.LISTEN
    with pytest.raises(ArgumentError, match="needs Send and Listen"):
        full.admin.rules.put(NS, HUB, "listener", Right.MANAGE)


@pytest.mark.parametrize("hub", [None, HUB])
def test_regenerate_changes_one_key_of_the_two(full: Plane, hub: str | None) -> None:
    name = "sender" if hub is None else "listener"
    before = full.admin.rules.keys(NS, hub, name)
    first = full.admin.rules.regenerate(NS, hub, name, PRIMARY)
    assert first.primary_key != before.primary_key
    assert first.secondary_key == before.secondary_key
    given = arm.RegenerateBody(key_type=KeyType.SECONDARY, key="given-0123456789")
    second = full.admin.rules.regenerate(NS, hub, name, given)
    assert (second.primary_key, second.secondary_key) == (
        first.primary_key,
        Secret("given-0123456789"),
    )
    with pytest.raises(NotFound):
        full.admin.rules.regenerate(NS, hub, "nobody", PRIMARY)


def test_deleted_rule_is_gone(full: Plane) -> None:
    full.admin.rules.delete(NS, None, "sender")
    with pytest.raises(NotFound):
        full.admin.rules.show(NS, None, "sender")
    with pytest.raises(NotFound):
        full.admin.rules.keys(NS, "no-hub", "sender")


def test_sign_in_link_has_the_name_and_role_of_its_maker_and_is_recorded(full: Plane) -> None:
    assert (
        full.as_(AdminRole.OPERATOR, "otto").activity.issue_sign_in_link().url
        == "link of otto, OPERATOR"
    )
    entry = full.admin.activity.list_audit(AuditQuery(newest=1))[0]
    assert (entry.who, entry.what) == ("otto", "portal/signInLink")
    assert "link of" not in entry.detail


def test_publisher_is_revoked_once_and_resumed(full: Plane) -> None:
    first = full.admin.hubs.revoke_publisher(NS, HUB, "device/1")
    full.clock.advance(5)
    assert full.admin.hubs.revoke_publisher(NS, HUB, "DEVICE/1") == first
    assert [each.name for each in full.admin.hubs.list_revoked_publishers(NS, HUB)] == ["device/1"]
    full.admin.hubs.resume_publisher(NS, HUB, "device/1")
    with pytest.raises(NotFound):
        full.admin.hubs.resume_publisher(NS, HUB, "device/1")


def test_connections_are_listed_and_killed(full: Plane) -> None:
    reports = full.admin.activity
    assert [each.id for each in reports.list_connections()] == ["first", "second"]
    reports.kill_connection("first")
    assert [each.id for each in reports.list_connections()] == ["second"]
    with pytest.raises(NotFound):
        reports.kill_connection("first")


def test_usage_is_what_the_ledger_has(full: Plane) -> None:
    count = Usage(namespace=NamespaceName(NS), hour_ms=3_600_000, run="r", ingress_events=7)
    full.ledger.record([count])
    (hour,) = full.admin.activity.list_usage(UsageQuery(since_ms=0, until_ms=7_200_000))
    assert (hour.namespace, hour.ingress_events) == (NS, 7)
    assert full.admin.activity.list_usage(UsageQuery(since_ms=0, until_ms=1)) == []


@pytest.mark.parametrize("newest", [0, -1, 1001])
async def test_audit_is_asked_for_in_bounded_pieces(call: Caller, newest: int) -> None:
    path = "/providers/Penstock/audit"
    assert (await call("GET", path, query=f"newest={newest}")).status == 400
    assert len((await call("GET", path, query="newest=1")).json["value"]) == 1


def test_sign_in_to_the_portal_is_in_the_audit_log(full: Plane) -> None:
    full.admin.activity.note_sign_in(arm.SignInBody(address="2001:db8::7"))
    full.admin.activity.note_sign_in(arm.SignInBody(address="192.0.2.8", refused_name="eve\n"))
    signed, refused = full.audit()[-2:]
    assert signed[1:] == ("portal/signIn", "from 2001:db8::7")
    assert refused[1] == "portal/signIn"
    assert refused[2].startswith("refused: 'eve")
    assert refused[2].endswith("' from 192.0.2.8")
    assert refused[2].isprintable()
    with pytest.raises(ArgumentError, match="is no address"):
        full.admin.activity.note_sign_in(arm.SignInBody(address="somewhere"))
