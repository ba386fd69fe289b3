"""Settings from flags, environment and file: flags win over environment, environment over file.

The file is TOML, or the official emulator's Config.json, recognized by its content.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from penstock.model import limits, names
from penstock.model.entities import LimitSet, Right, Secret, Tier
from penstock.model.errors import ConfigurationError
from penstock.model.usage import PriceList
from penstock.service.config.document import (
    ConfigSource,
    ConfigValue,
    refuse_duplicates,
    toml_lines,
)
from penstock.service.config.emulator import EMULATOR_KEY, is_emulator_config, read_namespaces
from penstock.service.config.settings import (
    SETTINGS,
    CaptureJobConfig,
    HubSettings,
    NamespaceSettings,
    RuleSettings,
    Settings,
)
from penstock.service.config.struct_reader import ReadContext, read_path, read_struct, read_value

_FILE_BYTES_MAX = limits.MB
_PORTS = ("amqp_port", "amqps_port", "https_port", "admin_port")
_NO_UNITS = "a dedicated namespace has no throughput units, so none are allowed"
_TYPES = {setting.field: setting.type for setting in SETTINGS}


def load_settings(*, flags: Mapping[str, object], environ: Mapping[str, str]) -> Settings:
    """`flags` by field name (`amqp_port`, `hubs`, ...), None meaning not given. Raises
    ConfigurationError, one sentence that tells what to change."""
    assert all(field in _TYPES for field in flags), "a flag that is no setting"
    stated = _collect_stated(flags, environ)
    context = ReadContext(environ=environ)
    tables: dict[str, Any] = {}
    if config := stated.get("config"):
        in_file, tables = _read_file(config, context, stated.get("limits"))
        stated = in_file | stated
    values = {
        field: read_value(value, _TYPES[field], context)
        for field, value in stated.items()
        if field != "hubs"  # their partition counts depend on the limits
    }
    fields = {name: values[name] for name in Settings.__struct_fields__ if name in values}
    settings = Settings(**fields, **tables)
    first = _with_overrides(settings.namespaces[0], stated, values, context)
    settings = msgspec.structs.replace(settings, namespaces=(first, *settings.namespaces[1:]))
    if not settings.is_plain and "amqp_port" not in stated:
        settings = msgspec.structs.replace(settings, amqp_port=None)
    if settings.emulator and not settings.public_hosts:
        settings = msgspec.structs.replace(settings, public_hosts=("localhost",))
    _refuse_contradictions(settings, stated)
    return settings


def read_price_list(file: Path) -> tuple[PriceList | None, Path | None]:
    """The prices of a configuration file, and its data directory. Everything else is ignored: a
    user who reads the bill need not have the keys. Raises ConfigurationError."""
    text = _read_text(ConfigValue.of(file, "--config"))
    if is_emulator_config(text):
        return None, None
    root = _parse_toml(file, text)
    prices, data = root.child("prices"), root.child("data")
    return (
        None if prices is None else read_struct(PriceList, prices, ReadContext()),
        None if data is None else read_path(data),
    )


def _collect_stated(
    flags: Mapping[str, object], environ: Mapping[str, str]
) -> dict[str, ConfigValue]:
    stated: dict[str, ConfigValue] = {}
    for setting in SETTINGS:
        flag = flags.get(setting.field)
        if flag not in (None, [], ()):
            stated[setting.field] = ConfigValue.of(flag, setting.flag or setting.field)
        elif text := environ.get(setting.variable):
            stated[setting.field] = ConfigValue.of(text, setting.variable)
    return stated


def _read_file(
    config: ConfigValue, context: ReadContext, stated_limits: ConfigValue | None
) -> tuple[dict[str, ConfigValue], dict[str, Any]]:
    """The settings of the file, and its tables `namespaces`, `prices` and `capture` as fields of
    `Settings`. `stated_limits` are of a flag or a variable, and win over the file."""
    file, text = read_path(config), _read_text(config)
    if is_emulator_config(text):
        limit_set = _read_limits(stated_limits) or LimitSet.CURRENT
        namespaces = read_namespaces(file, text, limit_set)
        implied = ConfigValue.of(LimitSet.CURRENT.value, str(file))
        return {"limits": implied}, {"namespaces": namespaces, "namespaces_given": True}
    root = _parse_toml(file, text)
    tables: dict[str, Any] = {}
    in_file = _find_settings(root)
    if namespaces := _read_namespaces(root, context, stated_limits):
        tables = {"namespaces": namespaces, "namespaces_given": True}
    for name, struct in (("prices", PriceList), ("capture", CaptureJobConfig)):
        if table := root.child(name):
            tables[name] = read_struct(struct, table, context)
    return in_file, tables


def _find_settings(root: ConfigValue) -> dict[str, ConfigValue]:
    """The settings that the file states; an unknown key is refused."""
    known: dict[str, set[str]] = {"": {"namespaces", "prices", "capture"}}
    found: dict[str, ConfigValue] = {}
    for setting in SETTINGS:
        if not setting.in_file:
            continue
        section, _, key = setting.key.rpartition(".")
        known.setdefault(section, set()).add(key)
        known[""].add(section or key)
        table = root.child(section) if section else root
        if table is not None and (value := table.child(key)) is not None:
            found[setting.field] = value
    for section, keys in known.items():
        table = root.child(section) if section else root
        if table is not None:
            table.refuse_unknown(keys)
    return found


def _read_text(config: ConfigValue) -> str:
    file = read_path(config)
    try:
        with file.open("rb") as opened:
            content = opened.read(_FILE_BYTES_MAX + 1)
        if len(content) > _FILE_BYTES_MAX:
            config.refuse(f"a file of at most {_FILE_BYTES_MAX} bytes is allowed")
        return content.decode()
    except OSError as error:
        config.refuse(f"the file cannot be read ({error.strerror})")
    except UnicodeDecodeError:
        config.refuse("a text file in UTF-8 is allowed")


def _parse_toml(file: Path, text: str) -> ConfigValue:
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{file}: this is not valid TOML ({error}).") from error
    lines = dict(toml_lines(text))
    source = ConfigSource(name=str(file), folder=file.parent, lines=lines, is_strict=True)
    return ConfigValue(raw=content, source=source)


def _read_limits(*values: ConfigValue | None) -> LimitSet | None:
    """Of the first value that is there."""
    for value in values:
        if value is not None:
            limit_set: LimitSet = read_value(value, _TYPES["limits"], ReadContext())
            return limit_set
    return None


def _read_namespaces(
    root: ConfigValue, context: ReadContext, stated_limits: ConfigValue | None
) -> tuple[NamespaceSettings, ...]:
    listed = root.child("namespaces")
    tables = [] if listed is None else listed.items()
    namespaces = []
    for table in tables:
        limit_set = _read_limits(stated_limits, table.child("limits"), root.child("limits"))
        namespaces.append(_read_namespace(table, context, limit_set))
    refuse_duplicates(tables, [namespace.name for namespace in namespaces])
    hosts = [(t, host) for t, n in zip(tables, namespaces, strict=True) for host in n.hosts]
    refuse_duplicates([table for table, _ in hosts], [host for _, host in hosts])
    return tuple(namespaces)


def _read_namespace(
    table: ConfigValue, context: ReadContext, limit_set: LimitSet | None
) -> NamespaceSettings:
    context = msgspec.structs.replace(context, limit_set=limit_set or LimitSet.SPECIFICATION)
    namespace = read_struct(NamespaceSettings, table, context)
    units, maximum = namespace.throughput_units, namespace.maximum_throughput_units
    for key in ("throughput_units", "maximum_throughput_units"):
        if namespace.tier is Tier.DEDICATED and (value := table.child(key)):
            value.refuse(_NO_UNITS)
    if isinstance(units, int) and 0 < (maximum or 0) < units:
        allowed = f"at least the {units} of throughput_units, or 0, is allowed"
        table.required_child("maximum_throughput_units").refuse(allowed)
    return msgspec.structs.replace(namespace, limits=limit_set)


def _with_overrides(
    namespace: NamespaceSettings,
    stated: Mapping[str, ConfigValue],
    values: Mapping[str, Any],
    context: ReadContext,
) -> NamespaceSettings:
    """The default namespace, changed by `DefaultNamespaceOptions`."""
    limit_set = namespace.limits or values.get("limits")
    changes: dict[str, Any] = {"limits": limit_set}
    if units := stated.get("throughput_units"):
        if namespace.tier is Tier.DEDICATED:
            units.refuse(_NO_UNITS)
        # The namespace's own line wins over the top of the file, but not over flags.
        if not (units.source.is_file and namespace.throughput_units is not None):
            changes["throughput_units"] = values["throughput_units"]
    if key := values.get("root_key") or values.get("root_key_file"):
        changes["rules"] = _with_root_key(namespace, key)
    if "hubs" in stated:
        context = msgspec.structs.replace(context, limit_set=limit_set or LimitSet.SPECIFICATION)
        hubs = read_value(stated["hubs"], _TYPES["hubs"], context)
        changes["hubs"] = _merge_hubs(namespace.hubs, hubs)
    return msgspec.structs.replace(namespace, **changes)


def _with_root_key(namespace: NamespaceSettings, key: Secret) -> tuple[RuleSettings, ...]:
    stated = namespace.rule(names.ROOT_RULE)
    root = RuleSettings(
        name=names.ROOT_RULE,
        rights=Right.ALL,
        primary_key=key,
        secondary_key=stated.secondary_key if stated else None,
    )
    return (root, *(rule for rule in namespace.rules if rule is not stated))


def _merge_hubs(
    hubs: tuple[HubSettings, ...], more: tuple[HubSettings, ...]
) -> tuple[HubSettings, ...]:
    """A hub named twice is one hub; the partition count of `more` wins."""
    merged = {names.fold_name(hub.name): hub for hub in hubs}
    for hub in more:
        key = names.fold_name(hub.name)
        old = merged.get(key, hub)
        count = hub.partition_count or old.partition_count
        merged[key] = msgspec.structs.replace(old, partition_count=count)
    return tuple(merged.values())


def _refuse_contradictions(settings: Settings, stated: Mapping[str, ConfigValue]) -> None:
    _refuse_shared_ports(settings, stated)
    for one, other in (("certificate_file", "key_file"), ("key_file", "certificate_file")):
        if f"tls_{one}" in stated and f"tls_{other}" not in stated:
            where = stated[f"tls_{one}"].where
            raise ConfigurationError(f"{where} is given without tls.{other}: both are needed.")
    if not settings.is_plain and _uses_published_key(settings):
        raise ConfigurationError(
            f"{stated['host'].where} is '{settings.host}', beyond this machine, while the key is "
            "the emulator's published one: set PENSTOCK_ROOT_KEY or PENSTOCK_ROOT_KEY_FILE, or "
            "PENSTOCK_EMULATOR=1 to accept the published key from every address."
        )


def _refuse_shared_ports(settings: Settings, stated: Mapping[str, ConfigValue]) -> None:
    fields: dict[int, str] = {}
    # A stated port comes last, so that the error names it and not a default.
    for field in sorted(_PORTS, key=lambda field: field in stated):
        port = getattr(settings, field)
        if port and port in fields:
            raise ConfigurationError(
                f"{stated[field].where} is {port}, and so is {fields[port]}: "
                "each listener needs a port of its own."
            )
        fields[port] = field


def _uses_published_key(settings: Settings) -> bool:
    return any(
        EMULATOR_KEY in (rule.primary_key, rule.secondary_key)
        for namespace in settings.namespaces
        for rules in (namespace.rules, *(hub.rules for hub in namespace.hubs))
        for rule in rules
    )
