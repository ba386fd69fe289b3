"""Every setting of the service, stated once: key, type, range, default, flag and description.

`loader.py` reads them from flags, environment and file by these types; the JSON Schema
(`schema.py`) and `penstock config schema` are generated from them, and
docs/reference/configuration.md is checked against them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field, inspect

from penstock.capture.destinations import (
    AZURE_OPTIONS,
    LOCAL,
    S3_OPTIONS,
    SECRETS,
    Destination,
    check_destination,
    option_variable,
)
from penstock.model import limits, names
from penstock.model.entities import LimitSet, Right, Secret, Tier
from penstock.model.errors import ConfigurationError
from penstock.model.host_names import parse_address
from penstock.model.names import GroupName, HubName, NamespaceName, RuleName
from penstock.model.usage import PriceList
from penstock.service.config import value_readers as readers
from penstock.service.config.document import ConfigValue, refuse_duplicates
from penstock.service.config.struct_reader import (
    ReadContext,
    read_struct,
    refuse_too_many,
    struct_fields,
    unwrap_type,
)

DEFAULT_NAMESPACE = NamespaceName("penstock")
DEFAULT_HUB = HubName("events")
PORTAL_PORT = 5380
_DESTINATIONS_MAX = 256
_DESTINATION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

Flush = Literal["disk", "os"]
LogLevel = Literal["debug", "info", "warning", "error"]
NotificationFormat = Literal["eventgrid", "cloudevents"]

# --- types: what is allowed ---------------------------------------------------------------------

_UNITS_SCHEMA = {
    "oneOf": [
        {"type": "integer", "minimum": limits.THROUGHPUT_UNITS_MIN},
        {"const": readers.UNLIMITED},
    ]
}
_TEXTS_SCHEMA = {"type": "array", "items": {"type": "string"}}
_RIGHTS_SCHEMA = {"type": "array", "items": {"enum": ["listen", "send", "manage"]}}

Port = Annotated[int, Meta(ge=0, le=65535)]
Host = Annotated[str, Meta(extra={"read": readers.read_host_name})]
Units = Annotated[
    int | Literal["unlimited"],
    Meta(extra={"read": readers.read_units}, extra_json_schema=_UNITS_SCHEMA),
]
MaximumUnits = Annotated[int, Meta(ge=0, extra={"read": readers.read_maximum_units})]
GrantedUnits = Annotated[int, Meta(ge=40, extra={"read": readers.read_granted_units})]
GrantedPartitions = Annotated[
    int, Meta(ge=limits.PARTITION_COUNT_MAX + 1, le=limits.PARTITION_COUNT_GRANTED_MAX)
]
PartitionCount = Annotated[
    int,
    Meta(
        ge=limits.PARTITION_COUNT_MIN_CURRENT,
        le=limits.PARTITION_COUNT_GRANTED_MAX,
        extra={"read": readers.read_partition_count},
    ),
]
RetentionHours = Annotated[int, Meta(ge=limits.RETENTION_HOURS_MIN, le=limits.RETENTION_HOURS_MAX)]
Groups = Annotated[
    tuple[GroupName, ...],
    Meta(extra={"read": readers.read_groups}, extra_json_schema=_TEXTS_SCHEMA),
]
Rights = Annotated[
    Right, Meta(extra={"read": readers.read_rights}, extra_json_schema=_RIGHTS_SCHEMA)
]
Key = Annotated[Secret, Meta(extra={"read": readers.read_key, "secret": True})]
SecretText = Annotated[str, Meta(extra={"read": readers.read_secret_text, "secret": True})]
HubNameText = Annotated[HubName, Meta(extra={"read": readers.name_reader(names.hub_name)})]


# --- namespaces ---------------------------------------------------------------------------------


class RuleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A shared access policy. A key that is None stays as stored; that of a new rule is random."""

    name: Annotated[RuleName, Meta(extra={"read": readers.name_reader(names.rule_name)})]
    rights: Rights
    primary_key: Key | None = field(default=None, name="key")
    secondary_key: Key | None = None


Rules = Annotated[tuple[RuleSettings, ...], Meta(max_length=limits.AUTHORIZATION_RULES_MAX)]


class HubSettings(msgspec.Struct, frozen=True, kw_only=True):
    """None: not stated. A new hub gets the default, an existing one keeps its value."""

    name: HubNameText
    partition_count: PartitionCount | None = None
    retention_hours: RetentionHours | None = None
    groups: Groups = ()
    rules: Rules = ()


class GrantSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Quota grants of an operator; at least one of the two numbers is stated."""

    throughput_units: GrantedUnits | None = None
    partitions: GrantedPartitions | None = None
    by: Annotated[str, Meta(max_length=limits.AUDIT_WHO_MAX)]
    note: Annotated[str, Meta(max_length=limits.GRANT_NOTE_MAX)] = ""


def _read_grant(value: ConfigValue, context: ReadContext) -> GrantSettings:
    grant = read_struct(GrantSettings, value, context)
    if grant.throughput_units is None and grant.partitions is None:
        raise ConfigurationError(
            f"{value.where} grants nothing: throughput_units or partitions is needed."
        )
    return grant


class NamespaceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`throughput_units` "unlimited": counted but not enforced (protocol.md 10.4). None: not
    stated, which means unlimited for a new namespace."""

    name: Annotated[NamespaceName, Meta(extra={"read": readers.name_reader(names.namespace_name)})]
    hosts: Annotated[tuple[Host, ...], Meta(max_length=limits.HOSTS_PER_NAMESPACE_MAX)] = ()
    tier: Tier = Tier.STANDARD
    limits: LimitSet | None = None  # None: not stated; an existing namespace keeps its own
    throughput_units: Units | None = None
    maximum_throughput_units: MaximumUnits | None = None  # 0: no auto-inflate; None: not stated
    grants: tuple[Annotated[GrantSettings, Meta(extra={"read": _read_grant})], ...] = ()
    rules: Rules = ()
    hubs: tuple[HubSettings, ...] = ()

    def rule(self, name: str) -> RuleSettings | None:
        """The namespace's own policy of that name."""
        folded = names.fold_name(name)
        return next((rule for rule in self.rules if names.fold_name(rule.name) == folded), None)


# --- Capture ------------------------------------------------------------------------------------


class DestinationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`[capture.destinations.NAME]`; the fields after `iso_time` are options of a `Destination`."""

    url: str
    iso_time: bool = False
    account_name: str = ""
    account_host: str = ""
    account_key: SecretText = ""
    sas_token: SecretText = ""
    connection_string: SecretText = ""
    endpoint_url: str = ""
    region: str = ""
    access_key: SecretText = ""
    secret_key: SecretText = ""


class NotificationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is notified of captured files: a webhook, or a hub of the same namespace. A webhook's
    address may hold its key."""

    url: SecretText = ""
    hub: str = ""
    format: NotificationFormat = "eventgrid"

    def __repr__(self) -> str:
        return f"NotificationSettings(hub={self.hub!r}, format={self.format!r})"


def _read_notification(value: ConfigValue, context: ReadContext) -> NotificationSettings:
    notify = read_struct(NotificationSettings, value, context)
    if bool(notify.url) == bool(notify.hub):
        raise ConfigurationError(f"{value.where} needs a url or a hub, one of the two.")
    if notify.url:
        readers.check_webhook(value.where, notify.url)
    return notify


def _read_destinations(value: ConfigValue, context: ReadContext) -> tuple[Destination, ...]:
    tables = [value.required_child(name) for name in value.table()]
    destinations = tuple(_read_destination(str(table.path[-1]), table, context) for table in tables)
    refuse_too_many(value, len(destinations), _DESTINATIONS_MAX)
    refuse_duplicates(tables, [destination.name for destination in destinations])
    return destinations


def _read_destination(name: str, table: ConfigValue, context: ReadContext) -> Destination:
    """A secret that the table leaves out may be in a variable: PENSTOCK_CAPTURE_NAME_OPTION."""
    if _DESTINATION_NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"{table.where}: a destination's name is 1 to 64 letters, digits, _ . and -."
        )
    stated = read_struct(DestinationSettings, table, context)
    options: dict[str, str] = {}
    for option in (*AZURE_OPTIONS, *S3_OPTIONS):
        text = getattr(stated, option)
        if not text and option in SECRETS:
            text = context.environ.get(option_variable(name, option), "")
        if text:
            options[option] = text
    try:
        check_destination(name, stated.url, options)
    except ConfigurationError as error:
        raise ConfigurationError(f"{table.where}: {error}") from None
    return Destination(name=name, url=stated.url, options=options, iso_time=stated.iso_time)


class CaptureJobConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[capture]`. Without destinations the service has one of its own, a directory."""

    run: bool = True  # False: `penstock capture run` runs elsewhere
    master: str = "local[2,4]"  # two cores; a task that fails is tried again
    spark: Annotated[
        dict[str, str],
        Meta(extra={"read": readers.read_spark_conf}, extra_json_schema={"type": "object"}),
    ] = {}
    notify: Annotated[NotificationSettings | None, Meta(extra={"read": _read_notification})] = None
    destinations: Annotated[tuple[Destination, ...], Meta(extra={"read": _read_destinations})] = ()


def destinations_of(config: CaptureJobConfig, data: Path) -> tuple[Destination, ...]:
    """The configured destinations, or else a directory of the service's own."""
    if config.destinations:
        return config.destinations
    return (Destination(name=LOCAL, url=(data.resolve() / "captured").as_uri()),)


# --- the service --------------------------------------------------------------------------------


def setting(meaning: str, flag: str | None = None, *, in_file: bool = True) -> Meta:
    """Marks a field that a flag or an environment variable can set, and describes it."""
    return Meta(description=meaning, extra={"setting": True, "flag": flag, "in_file": in_file})


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `penstock serve` is configured with. The first namespace is the default
    one."""

    config: Annotated[
        Path | None,
        setting(
            "configuration file: TOML, or the emulator's `Config.json`",
            "--config",
            in_file=False,
        ),
    ] = None
    data: Annotated[Path, setting("data directory", "--data")] = Path("penstock-data")
    host: Annotated[Host, setting("address to bind", "--host")] = "127.0.0.1"
    public_hosts: Annotated[
        tuple[Host, ...],
        Meta(max_length=limits.HOSTS_PER_NAMESPACE_MAX, extra={"unique": False}),
        setting("more host names or addresses by which clients reach the service", "--public-host"),
    ] = ()
    emulator: Annotated[
        bool,
        setting("open the emulator's key and ports beyond loopback", in_file=False),
    ] = False
    amqp_port: Annotated[
        Port | None,  # None: no plain TCP (beyond loopback, unless stated)
        setting("AMQP over plain TCP; beyond loopback only if it is set", "--amqp-port"),
    ] = 5672
    amqps_port: Annotated[Port, setting("AMQP over TLS", "--amqps-port")] = 5671
    https_port: Annotated[Port, setting("HTTPS, and AMQP over WebSocket", "--https-port")] = 8443
    admin_port: Annotated[
        Port,
        setting("health and administration; HTTP on loopback, HTTPS elsewhere", "--admin-port"),
    ] = 5300
    flush: Annotated[
        Flush,
        setting("what an acknowledgement waits for: `disk`, or a write to the `os`", "--flush"),
    ] = "disk"
    json: Annotated[
        bool,
        setting("when ready, print one JSON object with keys and the admin token", "--json"),
    ] = False
    log_level: Annotated[
        LogLevel,
        setting("lowest level of log lines: `debug`, `info`, `warning` or `error`", "--log-level"),
    ] = "info"
    slow_operation_ms: Annotated[
        int,
        Meta(ge=1, le=limits.SLOW_OPERATION_MS_MAX),
        setting("operations that take longer are logged"),
    ] = limits.SLOW_OPERATION_MS
    portal: Annotated[bool, setting("run the web portal", "--no-portal")] = True
    portal_port: Annotated[
        Port, setting("web portal; HTTP on loopback, HTTPS elsewhere", "--portal-port")
    ] = PORTAL_PORT
    portal_environment: Annotated[
        Annotated[str, Meta(max_length=64)] | None,
        setting("name on every page of the portal; red if it contains `prod` or `live`"),
    ] = None
    portal_read_only: Annotated[bool, setting("the portal permits no changes")] = False
    portal_users_file: Annotated[
        Path | None,
        setting("file of users who sign in without the admin token"),
    ] = None
    portal_mask: Annotated[
        str | None,
        Meta(extra={"read": readers.read_mask}),
        setting("fields of events that the portal shows only to administrators"),
    ] = None
    portal_trusted_proxies: Annotated[
        int,
        Meta(ge=0, le=10),
        setting("number of reverse proxies that append to `X-Forwarded-For`"),
    ] = 0
    auth_expiry_grace_seconds: Annotated[
        int,
        Meta(ge=0, le=limits.EXPIRY_GRACE_S_MAX),
        setting("seconds for which a link outlives its token: 0 to 600"),
    ] = field(default=limits.EXPIRY_GRACE_S, name="auth.expiry_grace_seconds")
    tls_certificate_file: Annotated[
        Path | None,
        setting("certificate chain (PEM); by default one is created"),
    ] = field(default=None, name="tls.certificate_file")
    tls_key_file: Annotated[
        Path | None, setting("private key of the certificate (PEM, not encrypted)")
    ] = field(default=None, name="tls.key_file")
    tls_ca_file: Annotated[
        Path | None, setting("CA file with which clients verify the certificate")
    ] = field(default=None, name="tls.ca_file")
    # Last: the name hides the module `limits` for the defaults after it.
    limits: Annotated[
        LimitSet,  # of a namespace that states none
        setting("limits of standard namespaces: `specification` or `current`", "--limits"),
    ] = LimitSet.SPECIFICATION
    namespaces: tuple[NamespaceSettings, ...] = (
        NamespaceSettings(name=DEFAULT_NAMESPACE, hubs=(HubSettings(name=DEFAULT_HUB),)),
    )
    namespaces_given: bool = False  # whether a configuration file names them
    prices: PriceList | None = None
    capture: CaptureJobConfig = CaptureJobConfig()

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the listeners."""
        return is_loopback(self.host)

    @property
    def is_plain(self) -> bool:
        """Whether the ports of plain AMQP and administration are open without TLS by default."""
        return self.is_loopback or self.emulator

    @property
    def throughput_units(self) -> int | None:
        """Of the default namespace; None: unlimited."""
        units = self.namespaces[0].throughput_units
        return units if isinstance(units, int) else None


def is_loopback(host: str) -> bool:
    address = parse_address(host)
    return host.casefold() == "localhost" or (address is not None and address.is_loopback)


def _read_hub_specs(value: ConfigValue, context: ReadContext) -> tuple[HubSettings, ...]:
    items = value.items()
    hubs = tuple(_read_hub_spec(item, context) for item in items)
    refuse_duplicates(items, [hub.name for hub in hubs])
    return hubs


def _read_hub_spec(value: ConfigValue, context: ReadContext) -> HubSettings:
    spec = value.text("NAME or NAME:PARTITIONS is allowed").strip()
    name, colon, count = spec.partition(":")
    # Part of a text: the count is a text in a file too.
    source = msgspec.structs.replace(value.source, is_strict=False)
    partitions = ConfigValue(raw=count, source=source, path=value.path, whole=spec)
    read_name = readers.name_reader(names.hub_name)
    return HubSettings(
        name=read_name(msgspec.structs.replace(value, raw=name), context),
        partition_count=readers.read_partition_count(partitions, context) if colon else None,
    )


class DefaultNamespaceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that change the default namespace. They win over its table in the file, but for
    `throughput_units` at the top of the file."""

    hubs: Annotated[
        tuple[HubSettings, ...],
        Meta(extra={"read": _read_hub_specs}, extra_json_schema=_TEXTS_SCHEMA),
        setting("event hubs to create if absent: `NAME` or `NAME:PARTITIONS`", "--hub"),
    ] = ()
    throughput_units: Annotated[
        Units | None,
        setting(
            "units to enforce: 1 to 20, more with a grant, or `unlimited`", "--throughput-units"
        ),
    ] = None
    root_key: Annotated[
        Secret | None,
        Meta(extra={"read": readers.read_key}),
        setting("key of the policy `RootManageSharedAccessKey`", in_file=False),
    ] = None
    root_key_file: Annotated[
        Secret | None,
        Meta(extra={"read": readers.read_key_file}, extra_json_schema={"type": "string"}),
        setting("file with that key"),
    ] = None


class Setting(msgspec.Struct, frozen=True):
    """One setting that a flag or an environment variable can change."""

    field: str
    key: str  # in the file; dotted: in a table
    type: inspect.Type
    meaning: str
    flag: str | None
    in_file: bool

    @property
    def variable(self) -> str:
        return f"PENSTOCK_{self.field.upper()}"


def _list_settings() -> Iterator[Setting]:
    for entry in (*struct_fields(Settings), *struct_fields(DefaultNamespaceOptions)):
        _, extra, json_schema = unwrap_type(entry.type)
        if "setting" in extra:
            yield Setting(
                field=entry.name,
                key=entry.encode_name,
                type=entry.type,
                meaning=json_schema["description"],
                flag=extra["flag"],
                in_file=extra["in_file"],
            )


SETTINGS = tuple(_list_settings())
