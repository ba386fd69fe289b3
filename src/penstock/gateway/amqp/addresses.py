"""Link addresses (protocol.md 4.1, 5.1): the entity that a target or a source names."""

from __future__ import annotations

from enum import IntEnum
from urllib.parse import unquote

import msgspec

from penstock.auth.resource import canonical_path, fold_case
from penstock.model import limits, names
from penstock.model.errors import ArgumentError, NotAllowed

_ADDRESS_MAX = 1024
_SCHEMES = ("sb", "amqp", "amqps", "http", "https", "ws", "wss")


class NodeKind(IntEnum):
    CBS = 0
    MANAGEMENT = 1
    HUB = 2
    PARTITION = 3
    PUBLISHER = 4
    CONSUMER_GROUP = 5


class LinkAddress(msgspec.Struct, frozen=True):
    """Tokens are compared with `path`: lower-case segments below the namespace."""

    kind: NodeKind
    path: tuple[str, ...] = ()
    hub: str = ""
    partition: str | None = None
    publisher: str | None = None
    group: str | None = None


def parse_address(text: str | None) -> LinkAddress:
    """Parse any spelling that clients use. Raises ArgumentError or NotAllowed."""
    if not text:
        raise NotAllowed("The link has no address: an event hub, $cbs or $management is needed.")
    if len(text) > _ADDRESS_MAX:
        raise ArgumentError(
            f"The address has {len(text)} characters: at most {_ADDRESS_MAX} are allowed."
        )
    segments = [unquote(segment) for segment in _without_authority(text).strip("/").split("/")]
    if not all(segments):
        raise ArgumentError(f"The address '{names.quote_text(text)}' has an empty segment.")
    words = [fold_case(segment) for segment in segments]
    if words == ["$cbs"]:
        return LinkAddress(NodeKind.CBS)
    if words[-1] == "$management":
        hub = "/".join(segments[:-1])
        return LinkAddress(NodeKind.MANAGEMENT, path=_path(segments), hub=hub)
    return _entity(segments, words)


def _without_authority(text: str) -> str:
    scheme, separator, remaining = text.partition("://")
    if separator and fold_case(scheme) in _SCHEMES:
        _, _, path = remaining.partition("/")
        return path
    return text


def _entity(segments: list[str], words: list[str]) -> LinkAddress:
    """Hub names may contain slashes, so the fixed words are searched from the right."""
    path = _path(segments)
    if len(words) >= 3 and words[-2] == "partitions":
        before, partition = words[:-2], segments[-1]
        if "consumergroups" in before[1:]:
            at = len(before) - 1 - before[::-1].index("consumergroups")
            group = "/".join(segments[at + 1 : -2])
            hub = "/".join(segments[:at])
            if hub and group:
                return LinkAddress(
                    NodeKind.CONSUMER_GROUP, path=path, hub=hub, partition=partition, group=group
                )
        hub = "/".join(segments[:-2])
        return LinkAddress(NodeKind.PARTITION, path=path, hub=hub, partition=partition)
    if len(words) >= 3 and words[-2] in ("publishers", "publisher"):
        publisher = names.publisher_name(segments[-1])
        hub = "/".join(segments[:-2])
        path = _path([*segments[:-2], "publishers", publisher])
        return LinkAddress(NodeKind.PUBLISHER, path=path, hub=hub, publisher=publisher)
    hub = "/".join(segments)
    if len(hub) > limits.HUB_NAME_MAX:
        raise ArgumentError(
            f"The event hub name has {len(hub)} characters: at most {limits.HUB_NAME_MAX}."
        )
    return LinkAddress(NodeKind.HUB, path=path, hub=hub)


def _path(segments: list[str]) -> tuple[str, ...]:
    # Tokens are compared segment by segment; a segment that contains a slash counts as several.
    # Folded like tokens: Unicode folding would make different publishers equal.
    return canonical_path(tuple(segments))
