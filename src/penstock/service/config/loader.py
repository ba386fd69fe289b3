"""Settings from flags, environment and file: flags win over environment, environment over file.

`SETTINGS` is the list of all settings; docs/configuration.md is checked against it. The file is
TOML, or the official emulator's Config.json, recognised by its content.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from penstock.model import limits, names
from penstock.model.entities import LimitSet, Right, Secret, Tier
from penstock.model.errors import ConfigurationError
from penstock.model.usage import PRICE_FIELDS, PriceList
from penstock.service.config import document as values
from penstock.service.config.capture import CaptureConfigReader
from penstock.service.config.document import ConfigDocument, ConfigTable, ConfigValue
from penstock.service.config.emulator import EMULATOR_KEY, is_emulator_config, read_namespaces
from penstock.service.config.namespaces import NamespaceConfigReader
from penstock.service.config.settings import (
    DEFAULT_HUB,
    DEFAULT_NAMESPACE,
    CaptureJobConfig,
    HubSettings,
    NamespaceSettings,
    RuleSettings,
    Settings,
)

__all__ = [
    "DEFAULT_HUB",
    "DEFAULT_NAMESPACE",
    "SETTINGS",
    "HubSettings",
    "NamespaceSettings",
    "RuleSettings",
    "Setting",
    "Settings",
    "load_settings",
    "read_price_list",
]

_FILE_BYTES_MAX = limits.MB
_CURRENCY_MAX = 16
_PORTS = ("amqp_port", "amqps_port", "https_port", "admin_port")


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting: its key in the file (dotted: in a table), and what else it can be given by."""

    key: str
    read: Callable[[ConfigValue], Any]
    meaning: str
    flag: str | None = None
    in_file: bool = True

    @property
    def field(self) -> str:
        """Its name in `flags` and, where it is one, in `Settings`."""
        return self.key.replace(".", "_")

    @property
    def variable(self) -> str:
        return f"PENSTOCK_{self.field.upper()}"


def _hub_specs(
    value: ConfigValue, limit_set: LimitSet = LimitSet.CURRENT
) -> tuple[HubSettings, ...]:
    """NAME[:PARTITIONS], several; a variable separates them by commas."""
    raw = value.raw
    specs = raw.split(",") if isinstance(raw, str) and not value.typed else raw
    if not isinstance(specs, list | tuple):
        value.refuse("a list of NAME or NAME:PARTITIONS is allowed")
    hubs = [_hub_spec(ConfigValue(raw=spec, where=value.where), limit_set) for spec in specs]
    return values.unique(hubs, lambda hub: hub.name, "event hub", value.where)


def _hub_spec(value: ConfigValue, limit_set: LimitSet) -> HubSettings:
    spec = value.text("NAME or NAME:PARTITIONS is allowed").strip()
    name, colon, count = spec.partition(":")
    partitions = msgspec.structs.replace(value, raw=count, whole=spec)
    return HubSettings(
        name=values.name(names.hub_name)(msgspec.structs.replace(value, raw=name)),
        partition_count=values.partition_count(limit_set)(partitions) if colon else None,
    )


_flush = values.choice({"disk": "disk", "os": "os"})
_log_level = values.choice({word: word for word in ("debug", "info", "warning", "error")})

SETTINGS: tuple[Setting, ...] = (
    Setting(
        key="config",
        read=values.path,
        flag="--config",
        in_file=False,
        meaning="the configuration file: TOML, or the official emulator's `Config.json`",
    ),
    Setting(key="data", read=values.path, flag="--data", meaning="the data directory"),
    Setting(
        key="host",
        read=values.host_name,
        flag="--host",
        meaning="the address that all doors are bound to",
    ),
    Setting(
        key="public_hosts",
        read=values.host_names,
        flag="--public-host",
        meaning="host names or addresses that clients reach every namespace by, beside those of "
        "this machine; the development certificate covers them",
    ),
    Setting(
        key="amqp_port",
        read=values.port,
        flag="--amqp-port",
        meaning="AMQP over plain TCP; beyond loopback it opens only when this is given",
    ),
    Setting(key="amqps_port", read=values.port, flag="--amqps-port", meaning="AMQP over TLS"),
    Setting(
        key="https_port",
        read=values.port,
        flag="--https-port",
        meaning="HTTPS, and AMQP over WebSocket",
    ),
    Setting(
        key="admin_port",
        read=values.port,
        flag="--admin-port",
        meaning="health and administration; HTTP on loopback, HTTPS elsewhere",
    ),
    Setting(
        key="hubs",
        read=_hub_specs,
        flag="--hub",
        meaning="event hubs of the default namespace, `NAME` or `NAME:PARTITIONS`, made if absent",
    ),
    Setting(
        key="throughput_units",
        read=values.throughput_units,
        flag="--throughput-units",
        meaning="of the default namespace: 1 to 20, more with a grant, or `unlimited` (counted, "
        "not enforced)",
    ),
    Setting(
        key="limits",
        read=values.limit_set,
        flag="--limits",
        meaning="limits of a standard namespace: `specification` (256 KB publications, 2 to 32 "
        "partitions) or `current` (Azure's of today: 1 MB, 1 to 32)",
    ),
    Setting(
        key="flush",
        read=_flush,
        flag="--flush",
        meaning="when an event is acknowledged: on `disk`, or handed to the `os`",
    ),
    Setting(
        key="json",
        read=values.yes_or_no,
        flag="--json",
        meaning="one JSON object on standard output when ready, with keys and the admin token",
    ),
    Setting(
        key="log_level",
        read=_log_level,
        flag="--log-level",
        meaning="what is logged to standard error: `debug`, `info`, `warning` or `error`",
    ),
    Setting(
        key="slow_operation_ms",
        read=values.whole_number(1, limits.SLOW_OPERATION_MS_MAX),
        meaning="a commit, flush, disk read, attach or management call that takes longer is logged",
    ),
    Setting(
        key="portal",
        read=values.yes_or_no,
        flag="--no-portal",
        meaning="whether the web portal runs beside the service",
    ),
    Setting(
        key="portal_port",
        read=values.port,
        flag="--portal-port",
        meaning="the web portal; HTTP on loopback, HTTPS elsewhere",
    ),
    Setting(
        key="portal_environment",
        read=values.short_text(64),
        meaning="the name that every page of the portal shows; red when it says `prod` or `live`",
    ),
    Setting(
        key="portal_read_only",
        read=values.yes_or_no,
        meaning="whether the portal only shows, and changes nothing",
    ),
    Setting(
        key="portal_users_file",
        read=values.path,
        meaning="who may sign in without the admin token: names, roles, hashed passwords",
    ),
    Setting(
        key="portal_mask",
        read=values.fields,
        meaning="fields of events that the portal shows to administrators alone, such as "
        "`json.card.number, properties.email, key`",
    ),
    Setting(
        key="portal_trusted_proxies",
        read=values.whole_number(0, 10),
        meaning="how many reverse proxies before the portal append to `X-Forwarded-For`: the "
        "client's address is that many entries from the right",
    ),
    Setting(
        key="root_key",
        read=values.secret,
        in_file=False,
        meaning="key of the default namespace's `RootManageSharedAccessKey`",
    ),
    Setting(key="root_key_file", read=values.secret_file, meaning="a file that holds that key"),
    Setting(
        key="auth.expiry_grace_seconds",
        read=values.whole_number(0, limits.EXPIRY_GRACE_S_MAX),
        meaning="how long an AMQP link outlives its token, 0 to 600 seconds; an expired token "
        "opens nothing new",
    ),
    Setting(
        key="tls.certificate_file",
        read=values.path,
        meaning="your own certificate chain (PEM); without it a development certificate is made",
    ),
    Setting(key="tls.key_file", read=values.path, meaning="its private key (PEM, not encrypted)"),
    Setting(
        key="tls.ca_file",
        read=values.path,
        meaning="what clients verify it with, named in the banner",
    ),
)
_BY_FIELD = {setting.field: setting for setting in SETTINGS}
# What the settings fold into the default namespace instead of into a field of their own.
_OF_NAMESPACE = ("hubs", "throughput_units", "root_key", "root_key_file")


def load_settings(*, flags: Mapping[str, object], environ: Mapping[str, str]) -> Settings:
    """`flags` by field name (`amqp_port`, `hubs`, ...), None meaning not given. Raises
    ConfigurationError, one sentence that a person can act on."""
    assert all(field in _BY_FIELD for field in flags), "a flag that is no setting"
    given = _collect_given(flags, environ)
    namespaces: tuple[NamespaceSettings, ...] = ()
    prices: PriceList | None = None
    capture = CaptureJobConfig()
    if "config" in given:
        stated = given.get("limits")
        of_file, namespaces, prices, capture = _read_file(
            given["config"], environ, None if stated is None else values.limit_set(stated)
        )
        given = of_file | given
    # `hubs` are read last: their partition counts depend on the limits.
    read = {f: _BY_FIELD[f].read(value) for f, value in given.items() if f != "hubs"}
    fields = {field: value for field, value in read.items() if field not in _OF_NAMESPACE}
    settings = Settings(**fields, prices=prices, capture=capture)
    if namespaces:
        settings = msgspec.structs.replace(settings, namespaces=namespaces, namespaces_given=True)
    first = _with_overrides(settings.namespaces[0], given, read)
    settings = msgspec.structs.replace(settings, namespaces=(first, *settings.namespaces[1:]))
    if not settings.is_loopback and "amqp_port" not in given:
        settings = msgspec.structs.replace(settings, amqp_port=None)
    _refuse_contradictions(settings, given)
    return settings


def read_price_list(file: Path) -> tuple[PriceList | None, Path | None]:
    """The prices of a configuration file, and its data directory; the rest of it is not looked at:
    whoever reads the bill need not have the keys. Raises ConfigurationError."""
    value = ConfigValue(raw=file, where="--config")
    text = _content(value)
    if is_emulator_config(text):
        return None, None
    root = _document(file, text).root
    return _prices(root.table("prices")), root.read("data", values.path, None)


def _collect_given(
    flags: Mapping[str, object], environ: Mapping[str, str]
) -> dict[str, ConfigValue]:
    given: dict[str, ConfigValue] = {}
    for setting in SETTINGS:
        flag = flags.get(setting.field)
        if flag is not None and flag != [] and flag != ():
            where = setting.flag or setting.field
            given[setting.field] = ConfigValue(raw=flag, where=where)
        elif environ.get(setting.variable):
            given[setting.field] = ConfigValue(
                raw=environ[setting.variable], where=setting.variable
            )
    return given


def _from_file(root: ConfigTable) -> dict[str, ConfigValue]:
    """The file's own settings; `namespaces` and `prices` are read apart."""
    sections = ("auth", "tls")
    tables: dict[str, ConfigTable | None] = {
        "": root,
        **{name: root.table(name) for name in sections},
    }
    known: dict[str, set[str]] = {
        "": {"namespaces", "prices", "capture", *sections},
        **{name: set() for name in sections},
    }
    found: dict[str, ConfigValue] = {}
    for setting in SETTINGS:
        if not setting.in_file:
            continue
        section, _, key = setting.key.rpartition(".")
        known[section].add(key)
        table = tables[section]
        if table is not None and (value := table.value(key)) is not None:
            found[setting.field] = value
    for section, table in tables.items():
        if table is not None:
            table.refuse_unknown(known[section])
    return found


def _read_file(
    value: ConfigValue, environ: Mapping[str, str], stated_limits: LimitSet | None
) -> tuple[
    dict[str, ConfigValue], tuple[NamespaceSettings, ...], PriceList | None, CaptureJobConfig
]:
    file, text = values.path(value), _content(value)
    if is_emulator_config(text):
        implied = {"limits": ConfigValue(raw=LimitSet.CURRENT.value, where=str(file))}
        namespaces = read_namespaces(file, text, stated_limits or LimitSet.CURRENT)
        return implied, namespaces, None, CaptureJobConfig()
    root = _document(file, text).root
    return (
        _from_file(root),
        NamespaceConfigReader(environ, stated_limits).read(root),
        _prices(root.table("prices")),
        CaptureConfigReader(environ).read(root),
    )


def _content(value: ConfigValue) -> str:
    file = values.path(value)
    try:
        with file.open("rb") as opened:
            content = opened.read(_FILE_BYTES_MAX + 1)
        if len(content) > _FILE_BYTES_MAX:
            value.refuse(f"a file of at most {_FILE_BYTES_MAX} bytes is allowed")
        return content.decode()
    except OSError as error:
        value.refuse(f"the file cannot be read ({error.strerror})")
    except UnicodeDecodeError:
        value.refuse("a text file in UTF-8 is allowed")


def _document(file: Path, text: str) -> ConfigDocument:
    try:
        return ConfigDocument(file, text, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{file}: this is not valid TOML ({error}).") from error


def _prices(table: ConfigTable | None) -> PriceList | None:
    if table is None:
        return None
    table.refuse_unknown(("currency", *PRICE_FIELDS))
    return PriceList(
        currency=table.read("currency", values.short_text(_CURRENCY_MAX), ""),
        **{name: table.read(name, values.price, Decimal(0)) for name in PRICE_FIELDS},
    )


def _with_overrides(
    namespace: NamespaceSettings, given: Mapping[str, ConfigValue], read: Mapping[str, Any]
) -> NamespaceSettings:
    """The default namespace with what flags, environment and the file's top level say of it."""
    limit_set = namespace.limits or read.get("limits")
    namespace = msgspec.structs.replace(namespace, limits=limit_set)
    if units := given.get("throughput_units"):
        if namespace.tier is Tier.DEDICATED:
            units.refuse("a dedicated namespace has no throughput units, so none are allowed")
        # The file's top level is less special than the namespace's own line; flags are not.
        if not (units.typed and namespace.throughput_units_given):
            namespace = msgspec.structs.replace(
                namespace,
                throughput_units=read["throughput_units"],
                throughput_units_given=True,
            )
    if "root_key" in given or "root_key_file" in given:
        key: Secret = read["root_key"] if "root_key" in given else read["root_key_file"]
        namespace = _with_root_key(namespace, key)
    if "hubs" in given:
        hubs = _hub_specs(given["hubs"], limit_set or LimitSet.SPECIFICATION)
        namespace = msgspec.structs.replace(namespace, hubs=_merge_hubs(namespace.hubs, hubs))
    return namespace


def _with_root_key(namespace: NamespaceSettings, key: Secret) -> NamespaceSettings:
    found = namespace.rule(names.ROOT_RULE)
    root = RuleSettings(
        name=names.ROOT_RULE,
        rights=Right.ALL,
        primary_key=key,
        secondary_key=found.secondary_key if found else None,
    )
    others = tuple(rule for rule in namespace.rules if rule is not found)
    return msgspec.structs.replace(namespace, rules=(root, *others))


def _merge_hubs(
    hubs: tuple[HubSettings, ...], more: tuple[HubSettings, ...]
) -> tuple[HubSettings, ...]:
    """A hub named twice is one hub; what `--hub` says of its partitions wins."""
    merged = {names.fold_name(hub.name): hub for hub in hubs}
    for hub in more:
        key = names.fold_name(hub.name)
        old = merged.get(key, hub)
        count = hub.partition_count or old.partition_count
        merged[key] = msgspec.structs.replace(old, partition_count=count)
    return tuple(merged.values())


def _refuse_contradictions(settings: Settings, given: Mapping[str, ConfigValue]) -> None:
    _refuse_shared_ports(settings, given)
    if (settings.tls_certificate_file is None) != (settings.tls_key_file is None):
        have, lack = ("certificate_file", "key_file")
        if settings.tls_certificate_file is None:
            have, lack = lack, have
        where = given[f"tls_{have}"].where
        raise ConfigurationError(f"{where} is given without tls.{lack}: both are needed.")
    if not settings.is_loopback and _uses_published_key(settings):
        raise ConfigurationError(
            f"{given['host'].where} is '{settings.host}', beyond this machine, while the key is "
            "the emulator's published one: set PENSTOCK_ROOT_KEY or PENSTOCK_ROOT_KEY_FILE."
        )


def _refuse_shared_ports(settings: Settings, given: Mapping[str, ConfigValue]) -> None:
    taken: dict[int, str] = {}
    # What was given comes last, so that it is blamed, and not a default.
    for field in sorted(_PORTS, key=lambda field: field in given):
        port = getattr(settings, field)
        if port and port in taken:
            raise ConfigurationError(
                f"{given[field].where} is {port}, and so is {taken[port]}: "
                "each door needs a port of its own."
            )
        taken[port] = field


def _uses_published_key(settings: Settings) -> bool:
    rules = [
        rule
        for namespace in settings.namespaces
        for group in (namespace.rules, *(hub.rules for hub in namespace.hubs))
        for rule in group
    ]
    return any(EMULATOR_KEY in (rule.primary_key, rule.secondary_key) for rule in rules)
