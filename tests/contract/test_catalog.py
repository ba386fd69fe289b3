"""The contract of `catalog.api.Catalog`, kept by every backend."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.catalog.api import Catalog, CatalogChange, Entity
from penstock.catalog.sqlite import SqliteCatalog
from penstock.model import limits
from penstock.model.entities import (
    AuthorizationRule,
    ConsumerGroup,
    Hub,
    HubStatus,
    LimitSet,
    Namespace,
    Right,
    Secret,
    Tier,
)
from penstock.model.errors import (
    AlreadyExists,
    ArgumentError,
    ArgumentOutOfRange,
    NotAllowed,
    NotFound,
    PenstockError,
    QuotaExceeded,
)
from penstock.model.names import DEFAULT_GROUP, GroupName, HubName, NamespaceName, RuleName
from penstock.model.quotas import QuotaGrant, QuotaKind

NS = NamespaceName("Contoso")
HUB = HubName("Events")

NAMESPACE = Namespace(name=NS, created_ms=1, updated_ms=2, hosts=("localhost", "::1"))
EVENTS = Hub(id="a1", namespace=NS, name=HUB, partition_count=4, created_ms=3, updated_ms=4)
GROUP = ConsumerGroup(
    namespace=NS, hub=HUB, name=GroupName("Audit"), created_ms=5, updated_ms=6, user_metadata="é"
)
RULE = AuthorizationRule(
    namespace=NS,
    hub=None,
    name=RuleName("Reader"),
    rights=Right.LISTEN,
    primary_key=Secret("p"),
    secondary_key=Secret("s"),
    created_ms=7,
    updated_ms=8,
)
HUB_RULE = msgspec.structs.replace(RULE, hub=HUB, rights=Right.SEND)


@pytest.fixture(params=["memory", "sqlite"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalog]:
    made: Catalog
    made = Catalog() if request.param == "memory" else SqliteCatalog(tmp_path / "catalog.db")
    yield made
    made.close()


@pytest.fixture
def full(catalog: Catalog) -> Catalog:
    """One namespace, one hub, one group and one rule on each level."""
    catalog.put_namespace(NAMESPACE)
    catalog.put_hub(EVENTS)
    catalog.put_group(GROUP)
    catalog.put_rule(RULE)
    catalog.put_rule(HUB_RULE)
    return catalog


def content(catalog: Catalog) -> list[object]:
    """Everything that can be read, in the order in which it is listed."""
    seen: list[object] = []
    for namespace in catalog.namespaces():
        seen += [namespace, *catalog.rules(namespace.name)]
        for hub in catalog.hubs(namespace.name):
            seen += [hub, *catalog.groups(namespace.name, hub.name)]
            seen += catalog.rules(namespace.name, hub.name)
    return seen


def test_catalog_is_empty_at_first(catalog: Catalog) -> None:
    assert content(catalog) == []
    assert catalog.namespace("contoso") is None
    assert catalog.hub("contoso", "events") is None
    assert catalog.hubs("contoso") == []
    assert catalog.groups("contoso", "events") == []
    assert catalog.group("contoso", "events", "$Default") is None
    assert catalog.rules("contoso") == []
    assert catalog.rule("contoso", None, "reader") is None


def test_records_read_back_as_they_were_put(full: Catalog) -> None:
    assert full.namespaces() == [NAMESPACE]
    assert full.hubs(NS) == [EVENTS]
    assert full.group(NS, HUB, "Audit") == GROUP
    assert full.rules(NS) == [RULE]
    assert full.rules(NS, HUB) == [HUB_RULE]


def test_metadata_is_kept_with_its_entity(full: Catalog) -> None:
    kept = {"tags": {"a": "é"}, "capture": {"enabled": True, "intervalInSeconds": 300}}
    full.put_namespace(msgspec.structs.replace(NAMESPACE, metadata=kept))
    full.put_hub(msgspec.structs.replace(EVENTS, metadata=kept))
    namespace, hub = full.namespace(NS), full.hub(NS, HUB)
    assert namespace is not None
    assert namespace.metadata == kept
    assert hub is not None
    assert hub.metadata == kept


@pytest.mark.parametrize(
    "metadata",
    [
        {"a": "x" * limits.METADATA_BYTES_MAX},
        {"a": {1, 2}},
        {"a": object()},
        {"a": float("nan")},
        {"a": "\ud800"},
    ],
    ids=["large", "set", "object", "nan", "surrogate"],
)
def test_metadata_that_is_no_small_json_is_refused(
    full: Catalog, metadata: dict[str, object]
) -> None:
    with pytest.raises((ArgumentError, ArgumentOutOfRange)):
        full.put_namespace(msgspec.structs.replace(NAMESPACE, metadata=metadata))
    with pytest.raises((ArgumentError, ArgumentOutOfRange)):
        full.put_hub(msgspec.structs.replace(EVENTS, metadata=metadata))
    assert full.namespaces() == [NAMESPACE]
    assert full.hubs(NS) == [EVENTS]


def test_names_are_found_in_any_case(full: Catalog) -> None:
    assert full.namespace("CONTOSO") == NAMESPACE
    assert full.hub("contoso", "EVENTS") == EVENTS
    assert full.group("contoso", "eVents", "AUDIT") == GROUP
    assert full.rule("contoso", None, "READER") == RULE
    assert full.rule("contoso", "events", "reader") == HUB_RULE


def test_new_hub_gets_its_default_group(full: Catalog) -> None:
    group = full.group(NS, HUB, "$default")
    assert group is not None
    assert group.name == DEFAULT_GROUP
    assert (group.created_ms, group.hub) == (EVENTS.created_ms, HUB)


def test_lists_are_sorted_by_name(catalog: Catalog) -> None:
    catalog.put_namespace(NAMESPACE)
    for number, name in enumerate(("zeta", "Alpha", "beta")):
        hub = msgspec.structs.replace(EVENTS, name=HubName(name), id=f"id{number}")
        catalog.put_hub(hub)
    assert [hub.name for hub in catalog.hubs(NS)] == ["Alpha", "beta", "zeta"]


def test_put_replaces_values_and_keeps_the_first_spelling(full: Catalog) -> None:
    full.put_namespace(
        msgspec.structs.replace(
            NAMESPACE, name=NamespaceName("CONTOSO"), tier=Tier.DEDICATED, throughput_units=3
        )
    )
    full.put_hub(
        msgspec.structs.replace(
            EVENTS,
            namespace=NamespaceName("contoso"),
            name=HubName("EVENTS"),
            retention_hours=48,
            status=HubStatus.SEND_DISABLED,
            user_metadata="x",
            updated_ms=99,
        )
    )
    full.put_group(msgspec.structs.replace(GROUP, name=GroupName("AUDIT"), user_metadata="new"))
    rotated = msgspec.structs.replace(RULE, name=RuleName("READER"), primary_key=Secret("p2"))
    full.put_rule(rotated)
    assert full.namespaces() == [
        msgspec.structs.replace(NAMESPACE, tier=Tier.DEDICATED, throughput_units=3)
    ]
    assert full.hubs(NS) == [
        msgspec.structs.replace(
            EVENTS,
            retention_hours=48,
            status=HubStatus.SEND_DISABLED,
            user_metadata="x",
            updated_ms=99,
        )
    ]
    assert full.group(NS, HUB, "audit") == msgspec.structs.replace(GROUP, user_metadata="new")
    assert full.rules(NS) == [msgspec.structs.replace(RULE, primary_key=Secret("p2"))]
    assert full.rules(NS, HUB) == [HUB_RULE]
    assert len(full.groups(NS, HUB)) == 2


def test_children_follow_their_parents_spelling(full: Catalog) -> None:
    full.put_group(
        msgspec.structs.replace(
            GROUP, namespace=NamespaceName("CONTOSO"), hub=HubName("events"), name=GroupName("g2")
        )
    )
    group = full.group(NS, HUB, "g2")
    assert group is not None
    assert (group.namespace, group.hub) == (NS, HUB)


def test_deleting_a_hub_removes_what_is_below_it_alone(full: Catalog) -> None:
    other = msgspec.structs.replace(EVENTS, name=HubName("other"), id="a2")
    full.put_hub(other)
    full.delete_hub("contoso", "events")
    assert full.hubs(NS) == [other]
    assert full.groups(NS, HUB) == []
    assert full.rules(NS, HUB) == []
    assert full.rules(NS) == [RULE]


def test_hub_made_again_is_a_new_one(full: Catalog) -> None:
    full.delete_hub(NS, HUB)
    again = msgspec.structs.replace(EVENTS, id="a9", partition_count=8)
    full.put_hub(again)
    assert full.hub(NS, HUB) == again
    assert [group.name for group in full.groups(NS, HUB)] == [DEFAULT_GROUP]
    assert full.rules(NS, HUB) == []


def test_deleted_hubs_id_is_free_again(full: Catalog) -> None:
    full.delete_hub(NS, HUB)
    full.put_hub(msgspec.structs.replace(EVENTS, name=HubName("second")))
    assert [hub.name for hub in full.hubs(NS)] == ["second"]


def test_deleting_a_namespace_removes_everything_in_it(full: Catalog) -> None:
    other = msgspec.structs.replace(NAMESPACE, name=NamespaceName("fabrikam"))
    full.put_namespace(other)
    full.delete_namespace("contoso")
    assert content(full) == [other]
    full.put_namespace(NAMESPACE)
    assert content(full) == [NAMESPACE, other]
    full.put_hub(EVENTS)  # its id is free as well


def test_deleting_groups_and_rules_removes_only_them(full: Catalog) -> None:
    full.delete_group("contoso", "events", "AUDIT")
    full.delete_rule("contoso", "events", "READER")
    assert [group.name for group in full.groups(NS, HUB)] == [DEFAULT_GROUP]
    assert full.rules(NS, HUB) == []
    assert full.rules(NS) == [RULE]
    full.delete_rule("contoso", None, "reader")
    assert full.rules(NS) == []


MISSING: list[tuple[str, Callable[[Catalog], None]]] = [
    ("namespace to delete", lambda c: c.delete_namespace("nobody")),
    ("hub to delete", lambda c: c.delete_hub(NS, "nothing")),
    ("hub's namespace", lambda c: c.delete_hub("nobody", HUB)),
    ("group to delete", lambda c: c.delete_group(NS, HUB, "nothing")),
    ("group's hub", lambda c: c.delete_group(NS, "nothing", "Audit")),
    ("group's namespace", lambda c: c.delete_group("nobody", HUB, "Audit")),
    ("rule to delete", lambda c: c.delete_rule(NS, None, "nothing")),
    ("hub rule to delete", lambda c: c.delete_rule(NS, HUB, "nothing")),
    ("rule's hub", lambda c: c.delete_rule(NS, "nothing", "Reader")),
    ("rule's namespace", lambda c: c.delete_rule("nobody", None, "Reader")),
    (
        "new hub's namespace",
        lambda c: c.put_hub(msgspec.structs.replace(EVENTS, namespace=NamespaceName("nobody"))),
    ),
    (
        "new group's hub",
        lambda c: c.put_group(msgspec.structs.replace(GROUP, hub=HubName("nothing"))),
    ),
    (
        "new rule's namespace",
        lambda c: c.put_rule(msgspec.structs.replace(RULE, namespace=NamespaceName("nobody"))),
    ),
    (
        "new rule's hub",
        lambda c: c.put_rule(msgspec.structs.replace(HUB_RULE, hub=HubName("nothing"))),
    ),
]


@pytest.mark.parametrize("act", [act for _, act in MISSING], ids=[what for what, _ in MISSING])
def test_write_is_not_found_when_its_entity_is_not_there(
    full: Catalog, act: Callable[[Catalog], None]
) -> None:
    before = content(full)
    with pytest.raises(NotFound, match="does not exist"):
        act(full)
    assert content(full) == before


def _namespace(**changes: object) -> Callable[[Catalog], None]:
    return lambda c: c.put_namespace(msgspec.structs.replace(NAMESPACE, **changes))


def _hub(**changes: object) -> Callable[[Catalog], None]:
    changes = {"name": "fresh", "id": "f1", **changes}
    return lambda c: c.put_hub(msgspec.structs.replace(EVENTS, **changes))


def _old_hub(**changes: object) -> Callable[[Catalog], None]:
    return lambda c: c.put_hub(msgspec.structs.replace(EVENTS, **changes))


def _group(**changes: object) -> Callable[[Catalog], None]:
    return lambda c: c.put_group(msgspec.structs.replace(GROUP, **changes))


def _rule(**changes: object) -> Callable[[Catalog], None]:
    return lambda c: c.put_rule(msgspec.structs.replace(RULE, **changes))


REFUSED: list[tuple[str, type[PenstockError], Callable[[Catalog], None]]] = [
    ("namespace name short", ArgumentError, _namespace(name="short")),
    ("namespace name form", ArgumentError, _namespace(name="1contoso")),
    ("units zero", ArgumentOutOfRange, _namespace(throughput_units=0)),
    ("units between blocks", ArgumentOutOfRange, _namespace(throughput_units=21)),
    ("units that need a grant", QuotaExceeded, _namespace(throughput_units=40)),
    ("units above", ArgumentOutOfRange, _namespace(throughput_units=10_100)),
    ("maximum units zero", ArgumentOutOfRange, _namespace(maximum_throughput_units=0)),
    ("maximum units that need a grant", QuotaExceeded, _namespace(maximum_throughput_units=60)),
    ("hosts too many", QuotaExceeded, _namespace(hosts=("h",) * 65)),
    ("host empty", ArgumentOutOfRange, _namespace(hosts=("",))),
    ("host long", ArgumentOutOfRange, _namespace(hosts=("h" * 254,))),
    ("host upper case", ArgumentError, _namespace(hosts=("Localhost",))),
    ("host with slash", ArgumentError, _namespace(hosts=("localhost/x",))),
    ("namespace time negative", ArgumentOutOfRange, _namespace(created_ms=-1)),
    ("namespace time beyond 64 bits", ArgumentOutOfRange, _namespace(updated_ms=2**63)),
    ("hub name empty", ArgumentError, _hub(name="")),
    ("hub name long", ArgumentError, _hub(name="h" * 257)),
    ("hub name form", ArgumentError, _hub(name="$hub")),
    ("hub name climbs", ArgumentError, _hub(name="a/../b")),
    ("hub name has a dot segment", ArgumentError, _hub(name="a/./b")),
    ("hub name has an empty segment", ArgumentError, _hub(name="a//b")),
    ("hub name goes on with Partitions", ArgumentError, _hub(name="a/Partitions")),
    ("hub name goes on with ConsumerGroups", ArgumentError, _hub(name="a/ConsumerGroups/b")),
    ("hub name goes on with publishers", ArgumentError, _hub(name="a/b/publishers/c")),
    ("hub name goes on with publisher", ArgumentError, _hub(name="a/Publisher/c")),
    ("hub name goes on with messages", ArgumentError, _hub(name="a/Messages")),
    ("hub name goes on with revoked", ArgumentError, _hub(name="a/RevokedPublishers")),
    ("hub id climbs", ArgumentError, _hub(id="../x")),
    ("hub id empty", ArgumentError, _hub(id="")),
    ("hub id long", ArgumentError, _hub(id="a" * 65)),
    ("hub id of another hub", AlreadyExists, _hub(id="a1")),
    ("partitions none", ArgumentOutOfRange, _hub(partition_count=0)),
    ("partitions one", ArgumentOutOfRange, _hub(partition_count=1)),
    ("partitions that need a grant", QuotaExceeded, _hub(partition_count=33)),
    ("partitions many", ArgumentOutOfRange, _hub(partition_count=1025)),
    ("retention zero", ArgumentOutOfRange, _hub(retention_hours=0)),
    ("retention long", ArgumentOutOfRange, _hub(retention_hours=169)),
    ("hub metadata long", ArgumentOutOfRange, _hub(user_metadata="m" * 1025)),
    ("hub metadata with NUL", ArgumentError, _hub(user_metadata="a\0b")),
    ("hub metadata not Unicode", ArgumentError, _hub(user_metadata="\ud800")),
    ("hub time negative", ArgumentOutOfRange, _hub(created_ms=-1)),
    ("partition count grown", NotAllowed, _old_hub(partition_count=8)),
    ("partition count shrunk", NotAllowed, _old_hub(partition_count=2)),
    ("hub id changed", NotAllowed, _old_hub(id="b2")),
    ("retention of an old hub", ArgumentOutOfRange, _old_hub(retention_hours=0)),
    ("group name empty", ArgumentError, _group(name="")),
    ("group name long", ArgumentError, _group(name="g" * 51)),
    ("group name dollar", ArgumentError, _group(name="$other")),
    ("group metadata long", ArgumentOutOfRange, _group(user_metadata="m" * 1025)),
    ("default group deleted", NotAllowed, lambda c: c.delete_group(NS, HUB, "$default")),
    ("rule name empty", ArgumentError, _rule(name="")),
    ("rule name form", ArgumentError, _rule(name="a/b")),
    ("rule name long", ArgumentError, _rule(name="r" * 51)),
    ("no rights", ArgumentError, _rule(rights=Right.NONE)),
    ("unknown rights", ArgumentError, _rule(rights=Right(8))),
    ("manage alone", ArgumentError, _rule(rights=Right.MANAGE)),
    ("manage without listen", ArgumentError, _rule(rights=Right.MANAGE | Right.SEND)),
    ("primary key empty", ArgumentOutOfRange, _rule(primary_key=Secret(""))),
    ("primary key long", ArgumentOutOfRange, _rule(primary_key=Secret("k" * 257))),
    ("secondary key empty", ArgumentOutOfRange, _rule(secondary_key=Secret(""))),
    ("secondary key unprintable", ArgumentError, _rule(secondary_key=Secret("a\nb"))),
]


@pytest.mark.parametrize(
    ("error", "act"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_write_beyond_a_limit_is_refused_and_changes_nothing(
    full: Catalog, error: type[PenstockError], act: Callable[[Catalog], None]
) -> None:
    calls: list[int] = []
    full.subscribe(lambda _: calls.append(1))
    before = content(full)
    with pytest.raises(error) as caught:
        act(full)
    assert type(caught.value) is error
    assert content(full) == before
    assert calls == []


ACCEPTED: list[tuple[str, Callable[[Catalog], None]]] = [
    ("two partitions", _hub(partition_count=2)),
    ("most partitions", _hub(partition_count=32)),
    ("least retention", _hub(retention_hours=1)),
    ("longest retention", _hub(retention_hours=168)),
    ("longest metadata", _hub(user_metadata="m" * 1024)),
    ("longest hub name", _hub(name="h" * 256)),
    ("slash in a hub name", _hub(name="plant/line-1")),
    ("reserved word first", _hub(name="Partitions")),
    ("longest key", _rule(primary_key=Secret("k" * 256))),
    ("all rights", _rule(rights=Right.ALL)),
    ("send and listen", _rule(rights=Right.SEND | Right.LISTEN)),
    ("most hosts", _namespace(hosts=("h" * 253,) * 64)),
    ("most units", _namespace(throughput_units=20)),
    ("most units by auto-inflate", _namespace(maximum_throughput_units=20)),
    ("default group described", _group(name="$Default", user_metadata="the first")),
]


@pytest.mark.parametrize("act", [act for _, act in ACCEPTED], ids=[what for what, _ in ACCEPTED])
def test_write_at_a_limit_is_accepted(full: Catalog, act: Callable[[Catalog], None]) -> None:
    before = content(full)
    act(full)
    assert content(full) != before


def test_one_partition_is_accepted_with_the_current_limits(catalog: Catalog) -> None:
    one = msgspec.structs.replace(EVENTS, partition_count=1)
    current = msgspec.structs.replace(NAMESPACE, limits=LimitSet.CURRENT)
    catalog.put_namespace(current)
    catalog.put_hub(one)
    assert catalog.namespace(NS) == current
    catalog.put_namespace(NAMESPACE)  # the hub stays, and may be changed
    disabled = msgspec.structs.replace(one, status=HubStatus.DISABLED)
    catalog.put_hub(disabled)
    assert catalog.hub(NS, HUB) == disabled


@pytest.mark.parametrize(
    ("limit_set", "granted", "count", "sentence"),
    [
        ("specification", None, 1, '2 to 32 are allowed. A namespace with limits = "current" '),
        ("specification", None, 0, "is 0: 2 to 32 are allowed, and up to 1024 with a grant."),
        ("specification", None, 1025, "is 1025: 2 to 32 are allowed, and up to 1024 with a "),
        ("specification", 64, 1025, "is 1025: 2 to 64 are allowed, and up to 1024 with a grant."),
        ("specification", 1024, 1025, "is 1025: 2 to 1024 are allowed."),
        ("current", None, 0, "is 0: 1 to 32 are allowed, and up to 1024 with a grant."),
        ("current", None, 33, "may have 32 partitions without a grant: 33 need a grant of 33."),
    ],
)
def test_refused_partition_count_names_the_true_bounds(
    catalog: Catalog, limit_set: str, granted: int | None, count: int, sentence: str
) -> None:
    catalog.put_namespace(msgspec.structs.replace(NAMESPACE, limits=LimitSet(limit_set)))
    if granted is not None:
        catalog.put_quota_grant(
            QuotaGrant(
                namespace=NS,
                kind=QuotaKind.PARTITIONS,
                value=granted,
                granted_by="Ada",
                granted_ms=1,
            )
        )
    with pytest.raises((ArgumentOutOfRange, QuotaExceeded), match=re.escape(sentence)):
        catalog.put_hub(msgspec.structs.replace(EVENTS, partition_count=count))
    assert catalog.hubs(NS) == []


def test_groups_are_limited_beside_the_default_one(full: Catalog) -> None:
    for number in range(1, limits.CONSUMER_GROUPS_MAX):
        full.put_group(msgspec.structs.replace(GROUP, name=GroupName(f"g{number}")))
    before = content(full)
    with pytest.raises(QuotaExceeded, match="20"):
        full.put_group(msgspec.structs.replace(GROUP, name=GroupName("more")))
    assert content(full) == before
    full.put_group(msgspec.structs.replace(GROUP, user_metadata="an old one may change"))
    assert len(full.groups(NS, HUB)) == limits.CONSUMER_GROUPS_MAX + 1


@pytest.mark.parametrize("level", [None, HUB])
def test_rules_are_limited_on_each_level(full: Catalog, level: HubName | None) -> None:
    rule = msgspec.structs.replace(RULE, hub=level)
    for number in range(1, limits.AUTHORIZATION_RULES_MAX):
        full.put_rule(msgspec.structs.replace(rule, name=RuleName(f"r{number}")))
    before = content(full)
    with pytest.raises(QuotaExceeded, match="12"):
        full.put_rule(msgspec.structs.replace(rule, name=RuleName("more")))
    assert content(full) == before
    full.put_rule(msgspec.structs.replace(rule, rights=Right.ALL))


def test_subscriber_hears_each_committed_write_until_it_leaves(catalog: Catalog) -> None:
    seen: list[int] = []
    leave = catalog.subscribe(lambda _: seen.append(len(content(catalog))))
    catalog.put_namespace(NAMESPACE)
    catalog.put_hub(EVENTS)  # with its $Default group
    catalog.put_group(GROUP)
    catalog.put_rule(RULE)
    assert seen == [1, 3, 4, 5]
    catalog.delete_rule(NS, None, "Reader")
    catalog.delete_group(NS, HUB, "Audit")
    catalog.delete_hub(NS, HUB)
    catalog.delete_namespace(NS)
    assert seen == [1, 3, 4, 5, 4, 3, 1, 0]
    leave()
    leave()
    catalog.put_namespace(NAMESPACE)
    assert len(seen) == 8


def test_subscriber_may_leave_and_another_come_while_being_called(catalog: Catalog) -> None:
    calls: list[str] = []

    def once(change: CatalogChange) -> None:
        calls.append("once")
        leave()
        catalog.subscribe(lambda _: calls.append("later"))

    leave = catalog.subscribe(once)
    catalog.put_namespace(NAMESPACE)
    assert calls == ["once"]
    catalog.put_hub(EVENTS)
    assert calls == ["once", "later"]


def test_lists_are_copies(full: Catalog) -> None:
    full.hubs(NS).clear()
    full.rules(NS).clear()
    assert full.hubs(NS) == [EVENTS]
    assert full.rules(NS) == [RULE]


def test_change_carries_the_entity_before_and_after(catalog: Catalog) -> None:
    changes: list[CatalogChange] = []
    catalog.subscribe(changes.append)
    catalog.put_namespace(NAMESPACE)
    catalog.put_hub(EVENTS)
    shorter = msgspec.structs.replace(EVENTS, retention_hours=2)
    catalog.put_hub(shorter)
    catalog.put_rule(RULE)
    catalog.delete_rule(NS, None, RULE.name)
    catalog.delete_hub(NS, HUB)
    catalog.delete_namespace(NS)
    assert changes == [
        CatalogChange(None, NAMESPACE),
        CatalogChange(None, EVENTS),
        CatalogChange(EVENTS, shorter),
        CatalogChange(None, RULE),
        CatalogChange(RULE, None),
        CatalogChange(shorter, None),
        CatalogChange(NAMESPACE, None),
    ]


@pytest.mark.parametrize(
    ("before", "after", "affects_links"),
    [
        (None, RULE, True),
        (RULE, None, True),
        (NAMESPACE, msgspec.structs.replace(NAMESPACE, hosts=("other",)), True),
        (NAMESPACE, msgspec.structs.replace(NAMESPACE, throughput_units=4), False),
        (NAMESPACE, None, True),
        (EVENTS, msgspec.structs.replace(EVENTS, status=HubStatus.DISABLED), True),
        (EVENTS, msgspec.structs.replace(EVENTS, metadata={"captureRuns": []}), False),
        (EVENTS, None, True),
        (None, GROUP, False),
        (GROUP, None, False),
    ],
)
def test_links_are_judged_again_only_after_changes_of_rules_keys_and_status(
    before: Entity | None, after: Entity | None, affects_links: bool
) -> None:
    """Every write of the catalog had every link judged again before, the progress
    of Capture and a step of auto-inflate too."""
    assert CatalogChange(before, after).affects_links is affects_links
