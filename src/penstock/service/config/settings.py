"""What a configuration comes down to, whatever it was written in: frozen, checked records."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Literal

import msgspec

from penstock.capture.destinations import Destination
from penstock.model import limits, names
from penstock.model.entities import LimitSet, Right, Secret, Tier
from penstock.model.names import GroupName, HubName, NamespaceName, RuleName
from penstock.model.quotas import QuotaKind
from penstock.model.usage import PriceList

DEFAULT_NAMESPACE = NamespaceName("penstock")
DEFAULT_HUB = HubName("events")
PORTAL_PORT = 5380

Flush = Literal["disk", "os"]
LogLevel = Literal["debug", "info", "warning", "error"]


class RuleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A shared access policy. A key that is None is drawn when the rule is first made."""

    name: RuleName
    rights: Right
    primary_key: Secret | None = None
    secondary_key: Secret | None = None


class HubSettings(msgspec.Struct, frozen=True, kw_only=True):
    """None: not said. A new hub gets the default, an existing one keeps what it has."""

    name: HubName
    partition_count: int | None = None
    retention_hours: int | None = None
    groups: tuple[GroupName, ...] = ()
    rules: tuple[RuleSettings, ...] = ()


class GrantSettings(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's grant, given by way of the configuration."""

    kind: QuotaKind
    value: int
    by: str
    note: str = ""


class NamespaceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`throughput_units` None: unlimited, that is counted but not enforced (protocol.md 10.4);
    `throughput_units_given` tells whether anybody said so."""

    name: NamespaceName
    hosts: tuple[str, ...] = ()
    tier: Tier = Tier.STANDARD
    throughput_units: int | None = None
    throughput_units_given: bool = False
    maximum_throughput_units: int | None = None  # 0: no auto-inflate; None: not said
    grants: tuple[GrantSettings, ...] = ()
    rules: tuple[RuleSettings, ...] = ()
    hubs: tuple[HubSettings, ...] = ()
    limits: LimitSet | None = None  # None: not said; an existing namespace keeps what it has

    def rule(self, name: str) -> RuleSettings | None:
        """The namespace's own policy of that name."""
        found = (rule for rule in self.rules if names.fold_name(rule.name) == names.fold_name(name))
        return next(found, None)


class NotificationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Who hears of captured files: an HTTPS hook, or a hub of the same namespace. A hook's address
    may hold its key."""

    url: str = ""
    hub: str = ""
    format: str = "eventgrid"

    def __repr__(self) -> str:
        return f"NotifySettings(hub={self.hub!r}, format={self.format!r})"


class CaptureJobConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[capture]`. Without destinations the service has one of its own, a directory."""

    run: bool = True  # False: `penstock capture run` runs elsewhere
    destinations: tuple[Destination, ...] = ()
    master: str = "local[2,4]"  # two cores; a task that fails is tried again
    spark: dict[str, str] = {}
    notify: NotificationSettings | None = None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `penstock serve` is told. The first namespace is the default one."""

    config: Path | None = None
    data: Path = Path("penstock-data")
    host: str = "127.0.0.1"
    public_hosts: tuple[str, ...] = ()
    amqp_port: int | None = 5672  # None: no plain TCP (beyond loopback, unless asked for)
    amqps_port: int = 5671
    https_port: int = 8443
    admin_port: int = 5300
    portal: bool = True
    portal_port: int = PORTAL_PORT
    portal_environment: str | None = None
    portal_read_only: bool = False
    portal_users_file: Path | None = None
    portal_mask: str | None = None
    portal_trusted_proxies: int = 0
    flush: Flush = "disk"
    json: bool = False
    log_level: LogLevel = "info"
    slow_operation_ms: int = limits.SLOW_OPERATION_MS
    auth_expiry_grace_seconds: int = limits.EXPIRY_GRACE_S
    tls_certificate_file: Path | None = None
    tls_key_file: Path | None = None
    tls_ca_file: Path | None = None
    namespaces: tuple[NamespaceSettings, ...] = (
        NamespaceSettings(name=DEFAULT_NAMESPACE, hubs=(HubSettings(name=DEFAULT_HUB),)),
    )
    namespaces_given: bool = False  # whether a configuration file named them
    prices: PriceList | None = None
    capture: CaptureJobConfig = CaptureJobConfig()
    limits: LimitSet = LimitSet.SPECIFICATION  # of a namespace that does not say

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the doors."""
        return is_loopback(self.host)

    @property
    def throughput_units(self) -> int | None:
        """Of the default namespace; None: unlimited."""
        return self.namespaces[0].throughput_units


def is_loopback(host: str) -> bool:
    if host.casefold() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
