"""Requests and responses of the management API, for the server, the client and the CLI.

Property names are in camel case on the wire, as in Azure Resource Manager. The reader ignores
unknown fields: clients of every api-version write some that others do not have. In a request None
means "leave it unchanged"; such fields are not written.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Generic, Literal, TypeVar, dataclass_transform

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.management.jobs import JobState

_TIME_MS_MAX = 253_402_300_799_999  # the end of the year 9999
_NUMBER_MAX = 2**53  # the largest integer that every JSON client represents exactly
Number = Annotated[int, Meta(ge=0, le=_NUMBER_MAX)]
Rate = Annotated[float, Meta(ge=0, le=_NUMBER_MAX)]
Units = Number | Literal["unlimited"]  # throughput units; `unlimited` ones are not enforced

T = TypeVar("T")


def format_time(time_ms: int) -> str:
    """ISO 8601 in UTC with milliseconds. A time after the year 9999 becomes its last moment."""
    seconds, milliseconds = divmod(min(time_ms, _TIME_MS_MAX), 1000)
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}Z"


@dataclass_transform(kw_only_default=True, frozen_default=True)
class ArmStruct(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An object of Azure Resource Manager."""


class Page(msgspec.Struct, Generic[T], frozen=True, rename="camel"):
    """A list. All of it is in one page."""

    value: list[T]
    next_link: str | None = None


class ErrorDetail(msgspec.Struct, frozen=True):
    code: str
    message: str


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorDetail


# --- resources, as the service returns them -------------------------------------------------------


class SystemData(ArmStruct):
    created_at: str
    last_modified_at: str


class ArmResource(ArmStruct, kw_only=True):
    name: str
    id: str = ""
    type: str = ""
    location: str = ""
    system_data: SystemData = SystemData(created_at="", last_modified_at="")

    @property
    def created_at(self) -> str:
        return self.system_data.created_at

    @property
    def updated_at(self) -> str:
        return self.system_data.last_modified_at


class Sku(ArmStruct):
    name: str | None = None
    tier: str | None = None
    capacity: Number | None = None  # the enforced throughput units, 0 for unlimited ones


class NamespaceProperties(ArmStruct, omit_defaults=False):
    is_auto_inflate_enabled: bool
    maximum_throughput_units: int
    created_at: str
    updated_at: str
    service_bus_endpoint: str
    metric_id: str
    throughput_units: Units  # Penstock's own, as the two below
    throughput_units_needed: int  # by the traffic of the current hour
    limits: str = "specification"  # or "current"; version 0.1 does not report it
    provisioning_state: str = "Succeeded"
    status: str = "Active"
    zone_redundant: bool = False
    kafka_enabled: bool = False
    disable_local_auth: bool = False
    public_network_access: str = "Enabled"
    minimum_tls_version: str = "1.2"
    private_endpoint_connections: list[Any] = []
    cluster_arm_id: str | UnsetType = UNSET
    alternate_name: str | UnsetType = UNSET


class NamespaceResource(ArmResource):
    tags: dict[str, str]
    sku: Sku
    properties: NamespaceProperties

    @property
    def unlimited(self) -> bool:
        """Whether throughput units are counted and not enforced."""
        return self.properties.throughput_units == "unlimited"

    @property
    def capacity(self) -> int:
        """The enforced units; for unlimited ones the units that the current hour needed."""
        units = self.properties.throughput_units
        return self.properties.throughput_units_needed if units == "unlimited" else units

    @property
    def maximum_units(self) -> int:
        return self.properties.maximum_throughput_units


class RetentionDescription(ArmStruct):
    cleanup_policy: str | None = None
    retention_time_in_hours: Number | None = None
    tombstone_retention_time_in_hours: Number | None = None


class HubProperties(ArmStruct):
    message_retention_in_days: int
    partition_count: int
    status: str
    created_at: str
    updated_at: str
    partition_ids: list[str]
    retention_description: RetentionDescription
    user_metadata: str = ""
    capture_description: dict[str, Any] | None = None


class EventHubResource(ArmResource):
    properties: HubProperties

    @property
    def partition_count(self) -> int:
        return self.properties.partition_count

    @property
    def retention_hours(self) -> int:
        return self.properties.retention_description.retention_time_in_hours or 0

    @property
    def status(self) -> str:
        return self.properties.status

    @property
    def user_metadata(self) -> str:
        return self.properties.user_metadata

    @property
    def capture(self) -> dict[str, Any] | None:
        return self.properties.capture_description


class GroupProperties(ArmStruct):
    created_at: str
    updated_at: str
    user_metadata: str = ""


class ConsumerGroupResource(ArmResource):
    properties: GroupProperties

    @property
    def user_metadata(self) -> str:
        return self.properties.user_metadata


class RuleProperties(ArmStruct):
    rights: Annotated[list[str], Meta(max_length=16)]  # Listen, Send, Manage


class AuthorizationRuleResource(ArmResource):
    properties: RuleProperties

    @property
    def rights(self) -> list[str]:
        return self.properties.rights


class AccessKeys(ArmStruct):
    key_name: str
    primary_key: str
    secondary_key: str
    primary_connection_string: str
    secondary_connection_string: str

    def __repr__(self) -> str:
        """Without the keys, so that they reach no log line."""
        return f"AccessKeys(key_name={self.key_name!r})"


class NameAvailability(ArmStruct, omit_defaults=False):
    name_available: bool
    reason: str = "None"
    message: str = ""


# --- requests -------------------------------------------------------------------------------------


class NamespaceBodyProperties(ArmStruct):
    is_auto_inflate_enabled: bool | None = None
    maximum_throughput_units: Number | None = None
    throughput_units: Units | None = None
    limits: str | None = None
    kafka_enabled: bool | None = None
    cluster_arm_id: str | None = None
    alternate_name: str | None = None
    # A request for more than the service does is refused, see `operations/namespaces.py`.
    zone_redundant: bool | None = None
    minimum_tls_version: str | None = None
    public_network_access: str | None = None
    disable_local_auth: bool | None = None
    encryption: dict[str, Any] | None = None
    geo_data_replication: dict[str, Any] | None = None
    ip_address_type: str | None = None
    private_endpoint_connections: list[Any] | None = None
    status: str | None = None

    @property
    def is_unlimited(self) -> bool:
        return self.throughput_units == "unlimited"


class NamespaceBody(ArmStruct):
    location: str | None = None
    tags: dict[str, str] | None = None
    sku: Sku | None = None
    identity: dict[str, Any] | None = None
    properties: NamespaceBodyProperties | None = None


class TimestampDescription(ArmStruct):
    timestamp_type: str | None = None


class HubBodyProperties(ArmStruct):
    message_retention_in_days: Number | None = None
    partition_count: Number | None = None
    status: str | None = None
    user_metadata: str | None = None
    capture_description: dict[str, Any] | None = None
    retention_description: RetentionDescription | None = None
    message_timestamp_description: TimestampDescription | None = None


class HubBody(ArmStruct):
    properties: HubBodyProperties | None = None


class GroupBodyProperties(ArmStruct):
    user_metadata: str | None = None


class GroupBody(ArmStruct):
    properties: GroupBodyProperties | None = None


class RuleBody(ArmStruct):
    properties: RuleProperties


class KeyType(StrEnum):
    PRIMARY = "PrimaryKey"
    SECONDARY = "SecondaryKey"


class RegenerateBody(ArmStruct):
    key_type: KeyType
    key: str | None = None


class ResourceGroupBody(ArmStruct):
    tags: dict[str, str] | None = None


class NameRequest(ArmStruct):
    name: str


class SignInBody(ArmStruct):
    address: Annotated[str, Meta(max_length=64, examples=["192.0.2.7"])]
    refused_name: Annotated[str, Meta(max_length=256)] | None = None


class SignInLink(ArmStruct):
    """`url` signs in once, within ten minutes."""

    url: str


class TokenBody(ArmStruct):
    token: Annotated[str, Meta(max_length=8192)]


class TokenHolder(ArmStruct):
    """`active` is false for an invalid token; the other fields are then empty."""

    active: bool
    subject: str
    roles: list[str]


class AdminTokenBody(ArmStruct):
    role: Annotated[str, Meta(max_length=64, examples=["Reader"])]
    name: Annotated[str, Meta(max_length=256)]
    lifetime_seconds: Number


class AdminToken(ArmStruct):
    id: str  # for revoking it
    token: str
    name: str
    role: str
    expires_at: str

    def __repr__(self) -> str:
        """Without the token, so that it reaches no log line."""
        return f"AdminToken(id={self.id!r})"


class SeekBody(ArmStruct):
    to: Annotated[str, Meta(max_length=64, examples=["earliest"])]
    partition: str | None = None
    dry_run: bool = False
    force: bool = False


class JobBody(ArmStruct):
    kind: str = ""
    state: JobState = JobState.RUNNING
    pid: Number | None = None
    master: str = ""
    ui_url: str = ""
    rows_per_second: Rate | None = None
    batch_seconds: Rate | None = None
    lag_events: Number | None = None
    last_error: str = ""


class GrantBody(ArmStruct):
    value: Number
    note: str = ""
    by: str = ""  # the person, where several persons use one token
