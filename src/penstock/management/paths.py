"""Paths of the management API: words in any case, names with escaped slashes (ARM compares so)."""

from __future__ import annotations

from urllib.parse import quote, unquote, unquote_to_bytes

from penstock.model import limits
from penstock.model.errors import ArgumentError

# Words after which a name of the user's follows.
_BEFORE_NAMES = (
    "subscriptions",
    "resourceGroups",
    "namespaces",
    "eventhubs",
    "consumergroups",
    "authorizationRules",
    "revokedPublishers",
    "quotaGrants",
    "connections",
    "jobs",
    "revokedAdminTokens",
)
_OTHER_WORDS = (
    "providers",
    "Microsoft.EventHub",
    "Penstock",
    "listKeys",
    "regenerateKeys",
    "checkNameAvailability",
    "networkRuleSets",
    "default",
    "operations",
    "register",
    "metadata",
    "endpoints",
    "tenants",
    "locations",
    "partitions",
    "readers",
    "lag",
    "metrics",
    "seek",
    "usage",
    "audit",
    "portal",
    "adminTokens",
    "signIn",
    "signInLink",
    "tokenHolder",
    "privateEndpointConnections",
    "privateLinkResources",
    "disasterRecoveryConfigs",
    "schemagroups",
    "applicationGroups",
    "networkSecurityPerimeterConfigurations",
    "clusters",
    "availableClusterRegions",
    "fabricShortcuts",
    "failover",
    "deployments",
    "resources",
)
_WORDS = {word.lower(): word for word in (*_BEFORE_NAMES, *_OTHER_WORDS)}


def canonical_arm_path(raw_path: bytes) -> str:
    """The path as routes are written. Names stay escaped, so that a slash within one divides
    nothing; `name` undoes it. Empty segments are dropped, as Resource Manager does: `az` writes
    `Microsoft.EventHub//namespaces` and appends to an endpoint with a trailing slash."""
    if len(raw_path) > limits.HTTP_PATH_BYTES_MAX:
        raise ArgumentError(
            f"The path has {len(raw_path)} bytes: at most {limits.HTTP_PATH_BYTES_MAX} are allowed."
        )
    parts = [part for part in raw_path.split(b"/") if part]
    try:
        segments = [unquote_to_bytes(part).decode() for part in parts]
    except UnicodeDecodeError:
        raise ArgumentError("The path is not escaped UTF-8.") from None
    made: list[str] = []
    is_name = False
    for segment in segments:
        word = None if is_name else _WORDS.get(segment.lower())
        made.append(quote(segment, safe="$") if word is None else word)
        is_name = not is_name and word in _BEFORE_NAMES
    return "/" + "/".join(made)


def decode_name(parameter: str) -> str:
    """A name as the user wrote it, from a route's parameter."""
    return unquote(parameter)
