"""`[[namespaces]]` of a configuration file: hosts, tier, policies and event hubs."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.model import limits, names
from penstock.model.entities import LimitSet, Right, Secret, Tier
from penstock.model.errors import ConfigurationError
from penstock.model.quotas import QuotaKind
from penstock.service.config import document as values
from penstock.service.config.document import ConfigTable, ConfigValue
from penstock.service.config.settings import (
    GrantSettings,
    HubSettings,
    NamespaceSettings,
    RuleSettings,
)

RETENTION_HOURS = values.whole_number(limits.RETENTION_HOURS_MIN, limits.RETENTION_HOURS_MAX)
TIER = values.choice({"standard": Tier.STANDARD, "dedicated": Tier.DEDICATED})
# Manage includes the other two (protocol.md 7.3).
RIGHT = values.choice({"listen": Right.LISTEN, "send": Right.SEND, "manage": Right.ALL})
_NAMESPACE_KEYS = (
    *("name", "hosts", "tier", "limits", "throughput_units", "maximum_throughput_units"),
    *("grants", "rules", "hubs"),
)
_GRANTED = {
    QuotaKind.THROUGHPUT_UNITS: ("throughput_units", values.granted_units),
    QuotaKind.PARTITIONS: ("partitions", values.granted_partitions),
}


class NamespaceConfigReader:
    """`environ` is where `key_env` finds its key. `stated_limits` come from a flag or the
    environment and win over the file."""

    def __init__(self, environ: Mapping[str, str], stated_limits: LimitSet | None = None) -> None:
        self._environ = environ
        self._stated_limits = stated_limits

    def read(self, root: ConfigTable) -> tuple[NamespaceSettings, ...]:
        where = root.where
        common = root.read("limits", values.limit_set, None)
        namespaces = [self._namespace(table, common) for table in root.tables("namespaces")]
        found = values.unique(namespaces, lambda n: n.name, "namespace", where)
        hosts = [host for namespace in found for host in namespace.hosts]
        values.unique(hosts, lambda host: host, "host", where)
        return found

    def _namespace(self, table: ConfigTable, common_limits: LimitSet | None) -> NamespaceSettings:
        table.refuse_unknown(_NAMESPACE_KEYS)
        own_limits = table.read("limits", values.limit_set, common_limits)
        limit_set = self._stated_limits or own_limits
        name = table.read_required("name", values.name(names.namespace_name))
        tier = table.read("tier", TIER, Tier.STANDARD)
        units, maximum = table.value("throughput_units"), table.value("maximum_throughput_units")
        for value in (units, maximum):
            if value is not None and tier is Tier.DEDICATED:
                value.refuse("a dedicated namespace has no throughput units, so none are allowed")
        held = None if units is None else values.throughput_units(units)
        most = None if maximum is None else values.maximum_throughput_units(maximum)
        if held and most and maximum is not None and most < held:
            maximum.refuse(f"at least the {held} of throughput_units, or 0, is allowed")
        return NamespaceSettings(
            name=name,
            hosts=self._hosts(table),
            tier=tier,
            throughput_units=held,
            throughput_units_given=units is not None,
            maximum_throughput_units=most,
            grants=tuple(grant for each in table.tables("grants") for grant in _grants(each)),
            rules=self._rules(table),
            hubs=values.unique(
                (self._hub(hub, limit_set) for hub in table.tables("hubs")),
                lambda hub: hub.name,
                "hub",
                table.where,
            ),
            limits=limit_set,
        )

    def _hosts(self, table: ConfigTable) -> tuple[str, ...]:
        hosts = [values.host_name(each) for each in table.values("hosts")]
        _refuse_too_many(table, "hosts", len(hosts), limits.HOSTS_PER_NAMESPACE_MAX)
        return values.unique(hosts, lambda host: host, "host", table.where)

    def _hub(self, table: ConfigTable, limit_set: LimitSet | None) -> HubSettings:
        count = values.partition_count(limit_set or LimitSet.SPECIFICATION)
        table.refuse_unknown(("name", "partition_count", "retention_hours", "groups", "rules"))
        groups = [values.name(names.group_name)(each) for each in table.values("groups")]
        groups = [group for group in groups if group != names.DEFAULT_GROUP]
        _refuse_too_many(table, "groups", len(groups), limits.CONSUMER_GROUPS_MAX)
        return HubSettings(
            name=table.read_required("name", values.name(names.hub_name)),
            partition_count=table.read("partition_count", count, None),
            retention_hours=table.read("retention_hours", RETENTION_HOURS, None),
            groups=values.unique(groups, lambda group: group, "consumer group", table.where),
            rules=self._rules(table),
        )

    def _rules(self, table: ConfigTable) -> tuple[RuleSettings, ...]:
        rules = [self._rule(each) for each in table.tables("rules")]
        _refuse_too_many(table, "rules", len(rules), limits.AUTHORIZATION_RULES_MAX)
        return values.unique(rules, lambda rule: rule.name, "rule", table.where)

    def _rule(self, table: ConfigTable) -> RuleSettings:
        sources = ("key", "key_file", "key_env")
        secondary = tuple(f"secondary_{source}" for source in sources)
        table.refuse_unknown(("name", "rights", *sources, *secondary))
        rights = Right.NONE
        for each in table.values("rights"):
            rights |= RIGHT(each)
        if rights is Right.NONE:
            raise ConfigurationError(
                f"{table.where}.rights is empty: a list of listen, send, manage is allowed."
            )
        return RuleSettings(
            name=table.read_required("name", values.name(names.rule_name)),
            rights=rights,
            primary_key=self._key(table, sources),
            secondary_key=self._key(table, secondary),
        )

    def _key(self, table: ConfigTable, sources: tuple[str, ...]) -> Secret | None:
        given = [source for source in sources if source in table]
        if len(given) > 1:
            raise ConfigurationError(
                f"{table.where} has {' and '.join(given)}: one of them is allowed."
            )
        readers = dict(
            zip(sources, (values.secret, values.secret_file, self._variable), strict=True)
        )
        return table.read_required(given[0], readers[given[0]]) if given else None

    def _variable(self, value: ConfigValue) -> Secret:
        """A key that stands in the environment variable named here."""
        name = value.text("the name of an environment variable is allowed")
        if name not in self._environ:
            value.refuse("that environment variable is not set")
        return values.secret(ConfigValue(raw=self._environ[name], where=f"{value.where}: ${name}"))


def _grants(table: ConfigTable) -> list[GrantSettings]:
    """One table may grant both."""
    keys = [key for key, _ in _GRANTED.values()]
    table.refuse_unknown((*keys, "by", "note"))
    by = table.read_required("by", values.short_text(limits.AUDIT_WHO_MAX))
    note = table.read("note", values.short_text(limits.GRANT_NOTE_MAX), "")
    found = [
        GrantSettings(kind=kind, value=table.read_required(key, reader), by=by, note=note)
        for kind, (key, reader) in _GRANTED.items()
        if key in table
    ]
    if not found:
        raise ConfigurationError(f"{table.where} grants nothing: {' or '.join(keys)} is needed.")
    return found


def _refuse_too_many(table: ConfigTable, key: str, count: int, most: int) -> None:
    if count > most:
        raise ConfigurationError(
            f"{table.where}.{key} has {count} entries: at most {most} are allowed."
        )
