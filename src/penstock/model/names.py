"""Names and their rules (protocol.md 10.3). Case is ignored: compare names with `fold_name`."""

from __future__ import annotations

import re
from typing import NewType

from penstock.model import limits
from penstock.model.errors import ArgumentError

NamespaceName = NewType("NamespaceName", str)
HubName = NewType("HubName", str)
GroupName = NewType("GroupName", str)
RuleName = NewType("RuleName", str)
PublisherName = NewType("PublisherName", str)

PRODUCT = "Penstock"  # the product name that the service sends to clients
DEFAULT_GROUP = GroupName("$Default")
CAPTURE_GROUP = GroupName("$Capture")  # of hubs with Capture, only for the capture job
ROOT_RULE = RuleName("RootManageSharedAccessKey")
# Key of the ASGI scope: a function that the application calls when it has verified a token.
AUTHENTICATE = "penstock.authenticate"

_NAMESPACE = re.compile(r"[A-Za-z][A-Za-z0-9-]*[A-Za-z0-9]")
_ENTITY = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_./-]*[A-Za-z0-9])?")
_RULE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_QUOTED_MAX = 80


def fold_name(name: str) -> str:
    """The key of a name: equal for all spellings of the same entity name."""
    return name.casefold()


def quote_text(text: str, *, most: int = _QUOTED_MAX) -> str:
    """Text of a client, truncated and escaped for error messages and log lines."""
    cut = text if len(text) <= most else text[:most] + "…"
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in cut)


def namespace_name(text: str) -> NamespaceName:
    return NamespaceName(
        _check_name(
            text, _NAMESPACE, "namespace", limits.NAMESPACE_NAME_MIN, limits.NAMESPACE_NAME_MAX
        )
    )


def hub_name(text: str) -> HubName:
    return HubName(_check_name(text, _ENTITY, "event hub", 1, limits.HUB_NAME_MAX))


def group_name(text: str) -> GroupName:
    if fold_name(text) == fold_name(DEFAULT_GROUP):
        return DEFAULT_GROUP
    return GroupName(_check_name(text, _ENTITY, "consumer group", 1, limits.GROUP_NAME_MAX))


def rule_name(text: str) -> RuleName:
    return RuleName(_check_name(text, _RULE, "authorization rule", 1, limits.RULE_NAME_MAX))


def publisher_name(text: str) -> PublisherName:
    """Publishers are not created; any printable name is valid. It must not end in `/messages`: a
    token for that name would be valid for requests of another publisher (protocol.md 7.1)."""
    if not 1 <= len(text) <= limits.PUBLISHER_NAME_MAX or not text.isprintable():
        raise ArgumentError(
            f"The publisher name '{quote_text(text)}' is invalid: "
            f"1 to {limits.PUBLISHER_NAME_MAX} printable characters are allowed."
        )
    if fold_name(text).endswith("/messages"):
        raise ArgumentError(
            f"The publisher name '{quote_text(text)}' is invalid: it must not end in '/messages', "
            "which is how the URI of a publish request ends."
        )
    return PublisherName(text)


def _check_name(text: str, pattern: re.Pattern[str], what: str, least: int, most: int) -> str:
    if not least <= len(text) <= most:
        raise ArgumentError(
            f"The {what} name '{quote_text(text)}' has {len(text)} characters: "
            f"{least} to {most} are allowed."
        )
    if pattern.fullmatch(text) is None:
        raise ArgumentError(
            f"The {what} name '{quote_text(text)}' is invalid: it starts with a letter"
            f"{'' if what == 'namespace' else ' or digit'}, ends with a letter or digit, and holds "
            f"only letters, digits and {'hyphens' if what == 'namespace' else '_ - . /'} between."
        )
    return text
