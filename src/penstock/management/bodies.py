"""Requests of the management API as FastAPI reads them. Heavy: loaded with `management.api` only.

Unknown fields are let pass: the clients of every api-version write some that others do not know.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr
from pydantic.alias_generators import to_camel

from penstock.management.jobs import Job, JobState
from penstock.management.operations import HubRequest, KeyType, NamespaceRequest
from penstock.model.entities import Right
from penstock.model.errors import ArgumentError, NotAllowed

_NUMBER_MAX = 2**53  # what every client's numbers can hold
Number = Annotated[StrictInt, Field(ge=0, le=_NUMBER_MAX)]
Rate = Annotated[float, Field(ge=0, le=_NUMBER_MAX, allow_inf_nan=False, strict=True)]


class ArmStruct(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="allow")


class Sku(ArmStruct):
    name: StrictStr | None = None
    tier: StrictStr | None = None
    capacity: Number | None = None


class NamespaceProperties(ArmStruct):
    is_auto_inflate_enabled: StrictBool | None = None
    maximum_throughput_units: Number | None = None
    kafka_enabled: StrictBool | None = None
    zone_redundant: StrictBool | None = None
    minimum_tls_version: StrictStr | None = None
    public_network_access: StrictStr | None = None
    disable_local_auth: StrictBool | None = None
    cluster_arm_id: StrictStr | None = None
    alternate_name: StrictStr | None = None
    encryption: dict[str, Any] | None = None
    geo_data_replication: dict[str, Any] | None = None
    ip_address_type: StrictStr | None = None
    private_endpoint_connections: list[Any] | None = None
    status: StrictStr | None = None
    limits: StrictStr | None = None
    throughput_units: Number | Literal["unlimited"] | None = None


class NamespaceResource(ArmStruct):
    location: StrictStr | None = None
    tags: dict[str, StrictStr] | None = None
    sku: Sku | None = None
    identity: dict[str, Any] | None = None
    properties: NamespaceProperties | None = None

    def request(self) -> NamespaceRequest:
        sku, properties = self.sku or Sku(), self.properties or NamespaceProperties()
        _refuse_unsupported(self.identity, properties)
        kept = {
            "kafkaEnabled": properties.kafka_enabled,
            "clusterArmId": properties.cluster_arm_id,
            "alternateName": properties.alternate_name,
        }
        return NamespaceRequest(
            sku=sku.name or sku.tier,
            capacity=sku.capacity,
            units=None
            if properties.throughput_units == "unlimited"
            else properties.throughput_units,
            unlimited=properties.throughput_units == "unlimited" or None,
            auto_inflate=properties.is_auto_inflate_enabled,
            maximum_units=properties.maximum_throughput_units,
            location=self.location,
            tags=self.tags,
            limit_set=properties.limits,
            kept={name: value for name, value in kept.items() if value is not None},
        )


def _refuse_unsupported(identity: dict[str, Any] | None, properties: NamespaceProperties) -> None:
    """Refuse what the service does not do: a stored and reported promise would be believed."""
    if properties.disable_local_auth:
        raise NotAllowed(
            "disableLocalAuth is not supported: shared access policies are the way in."
        )
    if (properties.public_network_access or "Enabled") != "Enabled":
        raise NotAllowed("publicNetworkAccess: only Enabled is supported; see --host of serve.")
    if properties.encryption:
        raise NotAllowed("encryption with own keys is not supported; encrypt the data directory.")
    if (properties.minimum_tls_version or "1.2") not in ("1.0", "1.1", "1.2"):
        raise NotAllowed("minimumTlsVersion: 1.2 is always enforced, and 1.3 cannot be demanded.")
    if properties.geo_data_replication:
        raise NotAllowed("geoDataReplication is not supported: the data is in one directory.")
    if properties.zone_redundant:
        raise NotAllowed("zoneRedundant: only false is supported: the data is in one directory.")
    if (properties.ip_address_type or "IPv4") != "IPv4":
        raise NotAllowed("ipAddressType: only IPv4 is supported; see --host of serve.")
    if properties.private_endpoint_connections:
        raise NotAllowed("privateEndpointConnections are not supported; see --host of serve.")
    if (properties.status or "Active") != "Active":
        raise NotAllowed("status: a namespace cannot be disabled. Disable its event hubs.")
    if identity and identity.get("type") not in (None, "None"):
        raise NotAllowed(
            "identity is not supported: a namespace has no managed identity. The credentials of "
            "Capture's destinations are in the configuration of the service."
        )


class RetentionDescription(ArmStruct):
    cleanup_policy: StrictStr | None = None
    retention_time_in_hours: Number | None = None
    tombstone_retention_time_in_hours: Number | None = None


class TimestampDescription(ArmStruct):
    timestamp_type: StrictStr | None = None


class HubProperties(ArmStruct):
    message_retention_in_days: Number | None = None
    partition_count: Number | None = None
    status: StrictStr | None = None
    user_metadata: StrictStr | None = None
    capture_description: dict[str, Any] | None = None
    retention_description: RetentionDescription | None = None
    message_timestamp_description: TimestampDescription | None = None


class EventHubResource(ArmStruct):
    properties: HubProperties | None = None

    def request(self) -> HubRequest:
        properties = self.properties or HubProperties()
        retention = properties.retention_description or RetentionDescription()
        timestamp = properties.message_timestamp_description or TimestampDescription()
        if (timestamp.timestamp_type or "LogAppend") != "LogAppend":
            raise NotAllowed(
                "messageTimestampDescription.timestampType: only LogAppend is supported: events "
                "have the time at which they were stored."
            )
        if retention.tombstone_retention_time_in_hours:
            raise NotAllowed(
                "retentionDescription.tombstoneRetentionTimeInHours belongs to log compaction, "
                "which is not supported."
            )
        return HubRequest(
            partition_count=properties.partition_count,
            retention_days=properties.message_retention_in_days,
            retention_hours=retention.retention_time_in_hours,
            cleanup_policy=retention.cleanup_policy,
            status=properties.status,
            user_metadata=properties.user_metadata,
            capture=properties.capture_description,
        )


class ResourceGroupBody(ArmStruct):
    tags: dict[str, StrictStr] | None = None

    def check(self) -> None:
        """Resource groups are names only; nothing stores their tags."""
        if self.tags:
            raise NotAllowed(
                "tags of a resource group are not supported: a resource group is only a name "
                "here. Tag the namespaces in it."
            )


class GroupProperties(ArmStruct):
    user_metadata: StrictStr | None = None


class ConsumerGroupResource(ArmStruct):
    properties: GroupProperties | None = None

    @property
    def user_metadata(self) -> str | None:
        return None if self.properties is None else self.properties.user_metadata


class RuleProperties(ArmStruct):
    rights: list[StrictStr] = Field(max_length=16)


class AuthorizationRuleResource(ArmStruct):
    properties: RuleProperties

    def rights(self) -> Right:
        rights = Right.NONE
        for word in self.properties.rights:
            if word.upper() not in ("LISTEN", "SEND", "MANAGE"):
                raise ArgumentError("rights: only Listen, Send and Manage are allowed.")
            rights |= Right[word.upper()]
        return rights


class RegenerateBody(ArmStruct):
    key_type: KeyType
    key: StrictStr | None = None


class NameRequest(ArmStruct):
    name: StrictStr


class SignInBody(ArmStruct):
    address: Annotated[StrictStr, Field(max_length=64, examples=["192.0.2.7"])]
    refused_name: Annotated[StrictStr, Field(max_length=256)] | None = None


class SignInLink(ArmStruct):
    """`url` signs in once, for ten minutes."""

    url: str


class TokenBody(ArmStruct):
    token: Annotated[StrictStr, Field(max_length=8192)]


class TokenHolder(ArmStruct):
    """`active` is false for a token that is not valid; the rest is then empty."""

    active: bool
    subject: str
    roles: list[str]


class AdminTokenBody(ArmStruct):
    role: Annotated[StrictStr, Field(max_length=64, examples=["Reader"])]
    name: Annotated[StrictStr, Field(max_length=256)]
    lifetime_seconds: Number


class SeekBody(ArmStruct):
    to: Annotated[StrictStr, Field(max_length=64, examples=["earliest"])]
    partition: StrictStr | None = None
    dry_run: StrictBool = False
    force: StrictBool = False


class JobBody(ArmStruct):
    kind: StrictStr = ""
    state: JobState = JobState.RUNNING
    pid: Number | None = None
    master: StrictStr = ""
    ui_url: StrictStr = ""
    rows_per_second: Rate | None = None
    batch_seconds: Rate | None = None
    lag_events: Number | None = None
    last_error: StrictStr = ""

    def job(self, name: str) -> Job:
        known = {field: getattr(self, field) for field in type(self).model_fields}
        return Job(name=name, **known)


class GrantBody(ArmStruct):
    value: Number
    note: StrictStr = ""
    by: StrictStr = ""  # the person, where a token is several persons'


# --- answers, for the OpenAPI document ----------------------------------------------------------


class ErrorDetail(BaseModel):
    code: str
    message: str


class ErrorBody(BaseModel):
    error: ErrorDetail


class ArmResource(ArmStruct):
    id: str
    name: str
    type: str
    properties: dict[str, Any]


class ArmResourceList(ArmStruct):
    value: list[dict[str, Any]]
    next_link: str | None = None


class AccessKeys(ArmStruct):
    primary_connection_string: str
    secondary_connection_string: str
    primary_key: str
    secondary_key: str
    key_name: str


class NameAvailability(ArmStruct):
    name_available: bool
    reason: str | None = None
    message: str | None = None


class MetricSeriesResponse(BaseModel):
    step_ms: int
    at_ms: list[int]
    values: dict[str, list[int | None]]
    lag_by_group: dict[str, list[int | None]]
