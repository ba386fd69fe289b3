"""What the typed client gives back, and how it is read from Resource Manager's shapes."""

from __future__ import annotations

from typing import Any

import msgspec


class NamespaceResource(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    location: str
    tags: dict[str, str]
    sku: str
    limits: str  # "specification" or "current"
    capacity: int  # the enforced units; for unlimited ones what the current hour needed
    unlimited: bool  # units are counted, not enforced
    maximum_units: int
    created_at: str
    updated_at: str


class EventHubResource(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    partition_count: int
    retention_hours: int
    status: str
    user_metadata: str
    capture: dict[str, Any] | None
    created_at: str
    updated_at: str


class ConsumerGroupResource(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    user_metadata: str
    created_at: str
    updated_at: str


class AuthorizationRuleResource(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    rights: list[str]


class AccessKeys(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    key_name: str
    primary_key: str
    secondary_key: str
    primary_connection_string: str
    secondary_connection_string: str

    def __repr__(self) -> str:  # it is nothing but keys
        return f"KeysInfo(key_name={self.key_name!r})"


def namespace_info(shape: dict[str, Any]) -> NamespaceResource:
    properties = shape["properties"]
    unlimited = properties["throughputUnits"] == "unlimited"
    return NamespaceResource(
        id=shape["id"],
        name=shape["name"],
        location=shape["location"],
        tags=shape["tags"],
        sku=shape["sku"]["name"],
        limits=properties.get("limits", "specification"),  # version 0.1 does not report them
        capacity=properties["throughputUnitsNeeded"] if unlimited else shape["sku"]["capacity"],
        unlimited=unlimited,
        maximum_units=properties["maximumThroughputUnits"],
        created_at=properties["createdAt"],
        updated_at=properties["updatedAt"],
    )


def hub_info(shape: dict[str, Any]) -> EventHubResource:
    properties = shape["properties"]
    return EventHubResource(
        name=shape["name"],
        partition_count=properties["partitionCount"],
        retention_hours=properties["retentionDescription"]["retentionTimeInHours"],
        status=properties["status"],
        user_metadata=properties.get("userMetadata", ""),
        capture=properties.get("captureDescription"),
        created_at=properties["createdAt"],
        updated_at=properties["updatedAt"],
    )


def group_info(shape: dict[str, Any]) -> ConsumerGroupResource:
    properties = shape["properties"]
    return ConsumerGroupResource(
        name=shape["name"],
        user_metadata=properties.get("userMetadata", ""),
        created_at=properties["createdAt"],
        updated_at=properties["updatedAt"],
    )


def rule_info(shape: dict[str, Any]) -> AuthorizationRuleResource:
    return AuthorizationRuleResource(name=shape["name"], rights=shape["properties"]["rights"])
