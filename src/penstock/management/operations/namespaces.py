"""Namespaces and their throughput units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.management import resources as arm
from penstock.management.operations.base import OperationGroup
from penstock.management.permissions import Action
from penstock.model import errors, limits, names, quotas
from penstock.model.entities import Namespace, Right, Tier

DEFAULT_SUBSCRIPTION = "00000000-0000-0000-0000-000000000000"
DEFAULT_RESOURCE_GROUP = "penstock"
DEFAULT_LOCATION = "local"
SKUS = {"basic": "Basic", "standard": "Standard", "premium": "Premium"}
_TAGS_MAX = 50
_TAG_NAME_MAX = 512
_TAG_VALUE_MAX = 256
_LOCATION_MAX = 64
# Stored and reported, without an effect.
_STORED_PROPERTIES = ("kafkaEnabled", "clusterArmId", "alternateName")
# Properties of a namespace that the service does not implement: name, values that ask for nothing,
# and the text of the refusal. A client would rely on a setting that is stored and reported.
_REFUSED_PROPERTIES = (
    ("disableLocalAuth", (), "is not supported: shared access policies are the only credentials."),
    ("publicNetworkAccess", ("Enabled",), "can only be Enabled; see --host of serve."),
    ("encryption", (), "with own keys is not supported; encrypt the data directory."),
    ("minimumTlsVersion", ("1.0", "1.1", "1.2"), "is always 1.2, and 1.3 cannot be demanded."),
    ("geoDataReplication", (), "is not supported: the data is in one directory."),
    ("zoneRedundant", (), "can only be false: the data is in one directory."),
    ("ipAddressType", ("IPv4",), "can only be IPv4; see --host of serve."),
    ("privateEndpointConnections", (), "are not supported; see --host of serve."),
    ("status", ("Active",), "of a namespace cannot change. Disable its event hubs."),
)


class ResourceScope(msgspec.Struct, frozen=True):
    """The scope of a resource: subscription and resource group. Any scope is accepted. A namespace
    keeps the scope that it is created at through the API. A namespace that `serve` creates has no
    scope: it is found at every one, and no later update gives it one."""

    subscription: str = DEFAULT_SUBSCRIPTION
    resource_group: str = DEFAULT_RESOURCE_GROUP


class NamespaceOperations(OperationGroup):
    def list(self, scope: ResourceScope | None = None) -> list[Namespace]:
        """All namespaces, or those in `scope`. An empty resource group means all of its
        subscription."""
        self._permit(Action.NAMESPACE_READ)
        namespaces = self._catalog.namespaces()
        return [entity for entity in namespaces if scope is None or is_at(entity, scope)]

    def show(self, name: str, scope: ResourceScope | None = None) -> Namespace:
        """Raises NotFound, also for a namespace outside `scope`."""
        self._permit(Action.NAMESPACE_READ, name)
        namespace = self._namespace(name)
        if scope is not None and not is_at(namespace, scope):
            raise errors.NotFound(
                f"The namespace '{names.quote_text(name)}' does not exist in the resource group "
                f"'{names.quote_text(scope.resource_group)}'."
            )
        return namespace

    def check_name(self, name: str) -> arm.NameAvailability:
        """Whether a namespace of this name can be created, with Azure's reason."""
        self._permit(Action.NAMESPACE_READ)
        try:
            names.namespace_name(name)
        except errors.PenstockError as error:
            return arm.NameAvailability(
                name_available=False, reason="InvalidName", message=str(error)
            )
        if self._catalog.namespace(name) is not None:
            text = f"The namespace '{names.quote_text(name)}' exists already."
            return arm.NameAvailability(name_available=False, reason="NameInUse", message=text)
        return arm.NameAvailability(name_available=True)

    def put(
        self, name: str, body: arm.NamespaceBody, scope: ResourceScope | None = None
    ) -> tuple[Namespace, bool]:
        """Create or change the namespace. Returns it, and True when it is new. A new namespace gets
        its root policy.

        `sku.capacity` may repeat what the API reports (0 for unlimited units), which changes
        nothing. `throughputUnits` is a number, or 'unlimited': units are counted and not enforced.
        A new number wins over 'unlimited'. `limits` may only repeat those of the namespace. Raises
        NotAllowed for what the service does not do.
        """
        old = self._catalog.namespace(name)
        action = Action.NAMESPACE_CREATE if old is None else Action.NAMESPACE_UPDATE
        self._permit(action, name)
        if old is None:
            new = self._create(name, body, scope or ResourceScope())
        else:
            if scope is not None and not is_at(old, scope):
                raise errors.AlreadyExists(
                    f"The namespace '{names.quote_text(name)}' exists already in another resource "
                    "group: its name is a host name, which exists only once."
                )
            new = self._apply_request(old, body)
        if old is None or msgspec.structs.replace(new, updated_ms=old.updated_ms) != old:
            units = "unlimited" if new.throughput_units is None else new.throughput_units
            text = f"{new.name}: {sku_of(new)}, {units} throughput units"
            self._catalog.put_namespace(new, audit=self._entry(action, text))
        if old is None:
            self._catalog.put_rule(self._new_rule(new.name, None, names.ROOT_RULE, Right.ALL))
        return self._namespace(name), old is None

    def delete(self, name: str, scope: ResourceScope | None = None) -> None:
        """Delete the namespace with its hubs and their logs. Raises NotFound."""
        self._permit(Action.NAMESPACE_DELETE, name)
        namespace = self.show(name, scope)
        hubs = len(self._catalog.hubs(name))
        self._catalog.delete_namespace(name)
        self._record(Action.NAMESPACE_DELETE, f"{namespace.name} with {hubs} event hubs")

    def needed_units(self, namespace: Namespace) -> int:
        """The units that the traffic of the current hour needed, at least 1."""
        return max(1, self._context.units_needed(namespace.name))

    def _create(self, name: str, body: arm.NamespaceBody, scope: ResourceScope) -> Namespace:
        now_ms = self._now_ms()
        is_unlimited = body.properties is not None and body.properties.is_unlimited
        blank = Namespace(
            name=names.namespace_name(name),
            created_ms=now_ms,
            updated_ms=now_ms,
            # Azure's default. Only `serve` creates unlimited namespaces by default.
            throughput_units=None if is_unlimited else limits.THROUGHPUT_UNITS_MIN,
            limits=self._context.limit_set,
            metadata={
                "subscription": _check_part("subscription id", scope.subscription),
                "resourceGroup": _check_part("resource group", scope.resource_group),
            },
        )
        return self._apply_request(blank, body)

    def _apply_request(self, old: Namespace, body: arm.NamespaceBody) -> Namespace:
        sku, properties = body.sku or arm.Sku(), body.properties or arm.NamespaceBodyProperties()
        values = msgspec.to_builtins(properties)
        _check_supported(body, values)
        metadata = dict(old.metadata)
        tier = old.tier
        sku_name = sku.name or sku.tier
        if sku_name is not None:
            metadata["sku"] = _check_sku(sku_name)
            tier = Tier.DEDICATED if metadata["sku"] == "Premium" else Tier.STANDARD
        if body.location is not None:
            metadata["location"] = _check_location(old, body.location)
        if body.tags is not None:
            metadata["tags"] = _check_tags(body.tags)
        stored = {name: values[name] for name in _STORED_PROPERTIES if name in values}
        if stored:
            metadata["properties"] = old.metadata.get("properties", {}) | stored
        if properties.limits not in (None, old.limits.value):
            raise errors.NotAllowed(
                f"limits is '{names.quote_text(properties.limits)}': the namespace has the limits "
                f"'{old.limits.value}'. They are set in the configuration of the service."
            )
        units = _units(old, sku.capacity, properties)
        return msgspec.structs.replace(
            old,
            updated_ms=self._now_ms(),
            tier=tier,
            throughput_units=units,
            maximum_throughput_units=_maximum_units(old, properties, units),
            metadata=metadata,
        )


def _check_supported(body: arm.NamespaceBody, values: Mapping[str, Any]) -> None:
    """Raises NotAllowed for properties, by their names on the wire, that are not implemented."""
    for name, allowed, text in _REFUSED_PROPERTIES:
        if values.get(name) and values[name] not in allowed:
            raise errors.NotAllowed(f"{name} {text}")
    if (body.identity or {}).get("type") not in (None, "None"):
        raise errors.NotAllowed(
            "identity is not supported: a namespace has no managed identity. The credentials of "
            "Capture's destinations are in the configuration of the service."
        )


def scope_of(namespace: Namespace, requested: ResourceScope | None = None) -> ResourceScope:
    """The scope of the namespace; for one without a scope, that of the request."""
    metadata = namespace.metadata
    if "resourceGroup" in metadata:
        return ResourceScope(metadata["subscription"], metadata["resourceGroup"])
    if requested is None:
        return ResourceScope()
    return ResourceScope(requested.subscription, requested.resource_group or DEFAULT_RESOURCE_GROUP)


def is_at(namespace: Namespace, scope: ResourceScope) -> bool:
    own = scope_of(namespace, scope)
    return names.fold_name(own.subscription) == names.fold_name(scope.subscription) and (
        not scope.resource_group
        or names.fold_name(own.resource_group) == names.fold_name(scope.resource_group)
    )


def sku_of(namespace: Namespace) -> str:
    if namespace.tier is Tier.DEDICATED:
        return "Premium"
    return str(namespace.metadata.get("sku", "Standard"))


def capacity_of(namespace: Namespace) -> int:
    """`sku.capacity`: the enforced units, or 0 for unlimited ones.

    A constant, because clients such as `az` read the resource, change one field and write all of it
    back: a number that follows the traffic would be enforced, or refused, by a changed tag.
    """
    return namespace.throughput_units or 0


def _units(
    old: Namespace, capacity: int | None, properties: arm.NamespaceBodyProperties
) -> int | None:
    units = properties.throughput_units
    number = None if capacity == capacity_of(old) else capacity
    if number is None and isinstance(units, int) and units != old.throughput_units:
        number = units
    if number == 0:
        raise errors.ArgumentOutOfRange(
            f"sku.capacity is 0: {quotas.UNITS_TEXT} are allowed. 0 is reported for unlimited "
            "throughput units; to request them, set properties.throughputUnits to 'unlimited'."
        )
    if number is not None:
        return number
    return None if properties.is_unlimited else old.throughput_units


def _maximum_units(
    old: Namespace, properties: arm.NamespaceBodyProperties, units: int | None
) -> int | None:
    """The maximum of auto-inflate, None when it is off; `units` is the new number of units. Azure's
    clients write 0 and off together. Stored values that a request repeats are not checked again."""
    requested = properties.maximum_throughput_units
    auto_inflate = properties.is_auto_inflate_enabled
    if auto_inflate is False:
        if requested and requested != old.maximum_throughput_units:
            raise errors.ArgumentError(
                f"maximumThroughputUnits is {requested} and isAutoInflateEnabled is "
                "false: set isAutoInflateEnabled to true, or leave the maximum out."
            )
        return None
    maximum = old.maximum_throughput_units
    if requested is not None:
        maximum = requested or None
    if maximum is None:
        if auto_inflate:
            raise errors.ArgumentError(
                "isAutoInflateEnabled is true without maximumThroughputUnits: name the number of "
                "units up to which they may be raised."
            )
        return None
    if old.maximum_throughput_units is None and not auto_inflate:
        raise errors.ArgumentError(
            f"maximumThroughputUnits is {maximum} and auto-inflate is off: set "
            "isAutoInflateEnabled to true as well."
        )
    is_repeated = (maximum, units) == (old.maximum_throughput_units, old.throughput_units)
    if units is not None and maximum < units and not is_repeated:
        raise errors.ArgumentError(
            f"The auto-inflate maximum is {maximum}, below the {units} units of the "
            f"namespace: give a maximum of at least {units}, or switch auto-inflate off."
        )
    return maximum


def _check_sku(text: str) -> str:
    sku = SKUS.get(text.lower())
    if sku is None:
        raise errors.ArgumentError(
            f"sku.name is '{names.quote_text(text)}': {', '.join(SKUS.values())} are allowed."
        )
    return sku


def _check_part(what: str, text: str, most: int = 90) -> str:
    if not 1 <= len(text) <= most or not text.isprintable() or "/" in text:
        raise errors.ArgumentError(
            f"The {what} '{names.quote_text(text)}' is invalid: "
            f"1 to {most} printable characters without a slash are allowed."
        )
    return text


def _check_location(old: Namespace, text: str) -> str:
    """Raises AlreadyExists for another location than the stored one, as in Azure. 'West Europe' and
    'westeurope' are the same."""
    location = _check_part("location", text, _LOCATION_MAX)
    stored = old.metadata.get("location", location)
    if names.fold_name(stored.replace(" ", "")) != names.fold_name(location.replace(" ", "")):
        raise errors.AlreadyExists(
            f"The namespace '{old.name}' exists already in the location "
            f"'{names.quote_text(stored)}': it cannot move to '{names.quote_text(location)}'."
        )
    return str(stored)


def _check_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """The limits are those of Resource Manager."""
    if len(tags) > _TAGS_MAX:
        raise errors.ArgumentError(f"There are {len(tags)} tags: at most {_TAGS_MAX} are allowed.")
    for name, value in tags.items():
        if not 1 <= len(name) <= _TAG_NAME_MAX or len(value) > _TAG_VALUE_MAX:
            raise errors.ArgumentError(
                f"The tag '{names.quote_text(name)}' is invalid: a name of 1 to {_TAG_NAME_MAX} "
                f"and a value of at most {_TAG_VALUE_MAX} characters are allowed."
            )
    return dict(tags)
