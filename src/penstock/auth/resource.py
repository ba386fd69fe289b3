"""The resource that a token or an audience names: normalized host and path.

Every spelling that clients use (protocol.md 2.2, 2.5) gives the same `Resource`. Ambiguous
spellings (`..`, empty segments, invalid escapes, user names in the host) are refused.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

import msgspec

from penstock.model import limits
from penstock.model.errors import AuthFailed
from penstock.model.names import quote_text

Path = tuple[str, ...]

SCHEMES = frozenset({"sb", "amqp", "amqps", "http", "https", "ws", "wss"})
PUBLISHERS = "publishers"
MESSAGES = "messages"
# What may follow the hub name in a path (protocol.md 4.1, 5.1, 2.2, 7.1). The catalog forbids these
# words in hub names, so the first of them ends the hub name.
WORDS_BELOW_HUB = frozenset({"partitions", "consumergroups", PUBLISHERS, "$management", MESSAGES})
_PUBLISHER = "publisher"  # spelling of one of Azure's examples (protocol.md 7.1)

_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_AUTHORITY = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")
_ASCII_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


class Resource(msgspec.Struct, frozen=True):
    """`host` lower-case without port, None when the text has none; `path` folded segments."""

    host: str | None
    path: Path

    @property
    def uri(self) -> str:
        return f"sb://{self.host or ''}/{'/'.join(self.path)}"


def parse_resource(uri: str, *, fault: str = "InvalidAudience") -> Resource:
    """Parse `scheme://host[:port]/path`, `//host/path`, `host/path` or `/path`.

    Percent escapes are decoded once, one trailing slash is dropped. Raises AuthFailed with a text
    that begins with `fault`.
    """
    # A token contains its resource, so it cannot cover a longer one.
    if len(uri) > limits.SAS_TOKEN_BYTES_MAX:
        raise AuthFailed(
            f"{fault}: The resource has {len(uri)} characters, "
            f"{limits.SAS_TOKEN_BYTES_MAX} are allowed."
        )
    text = percent_decode(uri)
    if not text or not text.isprintable():  # NUL, control characters, lone surrogates, bad escapes
        raise AuthFailed(f"{fault}: The resource '{quote_text(uri)}' cannot be read.")
    authority, path = _split_authority(text)
    host = None if authority is None else _parse_host(authority)
    segments = _parse_segments(path)
    if host == "" or segments is None:
        raise AuthFailed(f"{fault}: The resource '{quote_text(uri)}' cannot be read.")
    return Resource(host, segments)


def path_covers(prefix: Path, path: Path) -> bool:
    """Whether `path` is `prefix` or below it, by whole segments: hub1 does not cover hub10."""
    return path[: len(prefix)] == prefix


def scope_covers(scope: Path, path: Path) -> bool:
    """`path_covers`, except that the scope of a publisher is that publisher only (protocol.md 2.5).

    A publisher name may contain a slash, so a path below `publishers/a` is another publisher. A
    token for the URI of a publish request covers the entity that the request sends to.
    """
    if path == scope or path == sends_to(scope):
        return True
    return path_covers(scope, path) and not names_publisher(scope)


def sends_to(path: Path) -> Path | None:
    """The entity of the URI of a publish request, `entity/messages` (protocol.md 7.1); None for
    any other path. No hub and no publisher may have such a name (catalog, model.names)."""
    if not path or path[-1] != MESSAGES:
        return None
    length = hub_length(path)
    if length == len(path) - 1:
        return path[:-1]
    # `publishers/messages` is the publisher of that name, `partitions/messages` is nothing.
    named = length + 2 < len(path) and path[length] in ("partitions", PUBLISHERS)
    return path[:-1] if named else None


def names_publisher(path: Path) -> bool:
    """Whether the path ends in one publisher: `hub/publishers/name`."""
    length = hub_length(path)
    return length + 1 < len(path) and path[length] == PUBLISHERS


def hub_length(path: Path) -> int:
    """The maximum number of segments of the hub name: those before the first word below it."""
    for index in range(1, len(path)):
        if path[index] in WORDS_BELOW_HUB:
            return index
    return len(path)


def within_hub(hub: str, path: Path) -> bool:
    """Whether the path is the hub or a part of it; hub `a/b` is no part of hub `a`."""
    own = canonical_path((hub,))
    return path_covers(own, path) and (len(path) == len(own) or path[len(own)] in WORDS_BELOW_HUB)


def canonical_path(path: Path) -> Path:
    """The path of a gateway in the form of `Resource.path`: a slash in a segment divides it."""
    return tuple(fold_case("/".join(path)).split("/")) if path else ()


def fold_case(text: str) -> str:
    """Lower-case in ASCII alone: entity names are ASCII, and Unicode folding would make different
    publishers equal (KELVIN SIGN and k)."""
    return text.lower() if text.isascii() else text.translate(_ASCII_LOWER)


def percent_decode(text: str) -> str:
    """Percent-decoded once; empty when an escape is broken or its bytes are not UTF-8."""
    if "%" not in text:
        return text
    if _BROKEN_ESCAPE.search(text) is not None:
        return ""
    try:
        return unquote_to_bytes(text).decode("utf-8")
    except UnicodeError:
        return ""


def _split_authority(text: str) -> tuple[str | None, str]:
    scheme, separator, remainder = text.partition("://")
    if separator and "/" not in scheme:
        if scheme.lower() not in SCHEMES:
            return "", ""
    elif text.startswith("//"):
        remainder = text[2:]
    elif text.startswith("/"):
        return None, text[1:]
    else:
        remainder = text
    authority, _, path = remainder.partition("/")
    return authority, path


def _parse_host(authority: str) -> str:
    """The host without port and brackets; empty if it is not a host name or address."""
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        return ""
    host: str = match[1] or match[2]
    return host.lower() if len(host) <= limits.HOST_NAME_MAX else ""


def _parse_segments(path: str) -> Path | None:
    if not path:
        return ()
    segments = tuple(fold_case(path.removesuffix("/")).split("/"))
    if "" in segments or "." in segments or ".." in segments:
        return None
    return _with_publishers(segments)


def _with_publishers(path: Path) -> Path:
    """`publisher` read as `publishers` where it is the word that follows the hub's name."""
    for index in range(1, len(path)):
        if path[index] == _PUBLISHER:
            return (*path[:index], PUBLISHERS, *path[index + 1 :])
        if path[index] in WORDS_BELOW_HUB:
            break
    return path
