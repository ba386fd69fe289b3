"""What the path of a request names (protocol.md 7.1): an operation on a hub or a part of it."""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from urllib.parse import quote, unquote_to_bytes

import msgspec

from penstock.model import limits, names
from penstock.model.errors import ArgumentError, NotFound

# Devices repeat the same few paths. Only short ones are cached, so that the memory for paths of
# unauthenticated clients is bounded.
_TARGETS_CACHED = 1024
_CACHED_BYTES_MAX = 512


class HttpOperation(IntEnum):
    PUBLISH = 0
    REVOKED_PUBLISHERS = 1  # the list
    REVOKED_PUBLISHER = 2  # one of them
    CHECKPOINTS = 3  # of a consumer group (checkpoints.py)


class RequestTarget(msgspec.Struct, frozen=True):
    """Tokens are compared with `path`; `uri` is the same as escaped text with a leading slash.
    `partition` and `publisher` are as the client wrote them."""

    operation: HttpOperation
    hub: str
    path: tuple[str, ...]
    uri: str
    partition: str | None = None
    publisher: str | None = None


def parse_target(raw_path: bytes) -> RequestTarget:
    """Words in any case; a slash at the end is ignored. A name may contain escaped slashes, a hub's
    name plain ones too. Raises NotFound for other paths, ArgumentError."""
    parse = _parse_cached if len(raw_path) <= _CACHED_BYTES_MAX else _parse
    return parse(raw_path)


def split_path(raw_path: bytes, segments_max: int = -1) -> list[str]:
    """The unescaped segments of a path. Split before unescaping: an escaped slash belongs to a
    name. Raises ArgumentError."""
    if len(raw_path) > limits.HTTP_PATH_BYTES_MAX:
        raise ArgumentError(
            f"The path has {len(raw_path)} bytes: at most {limits.HTTP_PATH_BYTES_MAX} are allowed."
        )
    parts = raw_path.removeprefix(b"/").removesuffix(b"/").split(b"/", segments_max)
    try:
        return [unquote_to_bytes(part).decode() for part in parts]
    except UnicodeDecodeError:
        raise ArgumentError("The path is not escaped UTF-8.") from None


def _parse(raw_path: bytes) -> RequestTarget:
    segments = split_path(raw_path)
    words = [segment.casefold() for segment in segments]
    if len(words) >= 2 and words[-1] == "revokedpublishers":
        return build_target(HttpOperation.REVOKED_PUBLISHERS, segments[:-1])
    if len(words) >= 3 and words[-2] == "revokedpublishers":
        return build_target(HttpOperation.REVOKED_PUBLISHER, segments[:-2], publisher=segments[-1])
    if len(words) >= 2 and words[-1] == "messages":
        return _publish_target(segments[:-1], words[:-1])
    raise NotFound(
        "There is nothing at this path. Events are published to '/HUB/messages', "
        "'/HUB/partitions/ID/messages' and '/HUB/publishers/NAME/messages'."
    )


def _publish_target(segments: list[str], words: list[str]) -> RequestTarget:
    """No hub name contains these words (catalog.validation), so there is one interpretation."""
    if len(words) >= 3 and words[-2] == "partitions":
        return build_target(HttpOperation.PUBLISH, segments[:-2], partition=segments[-1])
    if len(words) >= 3 and words[-2] in ("publishers", "publisher"):
        return build_target(HttpOperation.PUBLISH, segments[:-2], publisher=segments[-1])
    return build_target(HttpOperation.PUBLISH, segments)


_parse_cached = lru_cache(maxsize=_TARGETS_CACHED)(_parse)


def build_target(
    operation: HttpOperation,
    hub_segments: list[str],
    *,
    partition: str | None = None,
    publisher: str | None = None,
) -> RequestTarget:
    hub = "/".join(hub_segments)
    path = tuple(hub.split("/"))
    if not all(path) or len(hub) > limits.HUB_NAME_MAX:
        raise ArgumentError(
            f"'{names.quote_text(hub)}' cannot be the name of an event hub: 1 to "
            f"{limits.HUB_NAME_MAX} characters are allowed, and no empty part between slashes."
        )
    if publisher is not None:
        names.publisher_name(publisher)
    if operation is HttpOperation.PUBLISH and publisher is not None:
        path = (*path, "publishers", publisher)
    elif partition is not None:
        path = (*path, "partitions", partition)
    uri = "/" + "/".join(quote(segment, safe="") for segment in path)
    return RequestTarget(operation, hub, path, uri, partition, publisher)
