"""Every spelling of a path, and those that mean nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.http.routes import HttpOperation, RequestTarget, parse_target
from penstock.model.errors import ArgumentError, NotFound, PenstockError

PUBLISH, LIST, ONE = (
    HttpOperation.PUBLISH,
    HttpOperation.REVOKED_PUBLISHERS,
    HttpOperation.REVOKED_PUBLISHER,
)


@pytest.mark.parametrize(
    ("path", "hub", "partition", "publisher"),
    [
        ("/events/messages", "events", None, None),
        ("/events/messages/", "events", None, None),
        ("/Events/MESSAGES", "Events", None, None),
        ("/plant/line/messages", "plant/line", None, None),
        ("/plant%2Fline/messages", "plant/line", None, None),
        ("/events/partitions/3/messages", "events", "3", None),
        ("/events/Partitions/3/Messages/", "events", "3", None),
        ("/events/publishers/device-1/messages", "events", None, "device-1"),
        ("/events/publisher/device-1/messages", "events", None, "device-1"),
        ("/events/PUBLISHERS/Device-1/messages", "events", None, "Device-1"),
        ("/events/publishers/a%2Fb/messages", "events", None, "a/b"),
        ("/events/publishers/Ger%C3%A4t%201/messages", "events", None, "Gerät 1"),
        ("/events/publishers/100%25/messages", "events", None, "100%"),
        ("/events/publishers/messages/messages", "events", None, "messages"),
        ("/plant/line/publishers/a/messages", "plant/line", None, "a"),
        ("/messages/messages", "messages", None, None),
        ("/partitions/messages", "partitions", None, None),  # a hub of that name
        ("/partitions/0/messages", "partitions/0", None, None),
        ("/publishers/a/messages", "publishers/a", None, None),
        ("/a/b/partitions/0/messages", "a/b", "0", None),
    ],
)
def test_publish_path_is_understood_in_every_spelling(
    path: str, hub: str, partition: str | None, publisher: str | None
) -> None:
    target = parse_target(path.encode())
    assert target.operation is PUBLISH
    assert (target.hub, target.partition, target.publisher) == (hub, partition, publisher)


def test_target_says_what_tokens_are_compared_with() -> None:
    assert parse_target(b"/a/b/publisher/x%2Fy%20z/messages") == RequestTarget(
        PUBLISH,
        hub="a/b",
        path=("a", "b", "publishers", "x/y z"),
        uri="/a/b/publishers/x%2Fy%20z",
        publisher="x/y z",
    )
    assert parse_target(b"/hub/partitions/7/messages").uri == "/hub/partitions/7"
    assert parse_target(b"/hub/messages").path == ("hub",)


@pytest.mark.parametrize(
    ("path", "operation", "publisher"),
    [
        ("/events/revokedpublishers", LIST, None),
        ("/events/RevokedPublishers/", LIST, None),
        ("/events/revokedpublishers/dev", ONE, "dev"),
        ("/events/revokedPublishers/a%2Fb", ONE, "a/b"),
        ("/events/revokedpublishers/messages", ONE, "messages"),
        ("/events/revokedpublishers/revokedpublishers", LIST, None),
    ],
)
def test_revoked_publishers_have_paths_of_the_hub(
    path: str, operation: HttpOperation, publisher: str | None
) -> None:
    target = parse_target(path.encode())
    assert (target.operation, target.publisher) == (operation, publisher)
    assert target.uri.startswith("/events")


def test_revoked_publishers_are_managed_by_a_token_for_the_hub() -> None:
    assert parse_target(b"/events/revokedpublishers/dev").path == ("events",)


@pytest.mark.parametrize(
    "path", ["/", "", "/messages", "/events", "/events/message", "/events/messages/x", "//"]
)
def test_path_that_means_nothing_is_not_found(path: str) -> None:
    with pytest.raises(NotFound, match="nothing at this path"):
        parse_target(path.encode())


@pytest.mark.parametrize(
    "path",
    [
        "//messages",
        "/a//b/messages",
        "/a%2F%2Fb/messages",
        "/" + "h" * 257 + "/messages",
        "/events/publishers//messages",
        "/events/publishers/" + "p" * 257 + "/messages",
        "/events/publishers/a%00b/messages",
        "/events/publishers/a%2Fmessages/messages",
        "/events/revokedpublishers/a%2FMessages",
        "/events/publishers/%ff/messages",
        "/%C3/messages",
        "/" + "h/" * 5000 + "messages",
    ],
)
def test_path_with_an_impossible_name_is_refused(path: str) -> None:
    with pytest.raises(ArgumentError):
        parse_target(path.encode())


PIECES = ["a", "/", "messages", "publishers", "%", "%2F", "%zz", "é", "revokedpublishers"]


@given(st.lists(st.sampled_from(PIECES)))
def test_any_path_is_read_or_refused_by_name(parts: list[str]) -> None:
    try:
        target = parse_target("/".join(parts).encode())
    except PenstockError:
        return
    assert target.hub
    assert target.uri.startswith("/")


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused_by_name(path: bytes) -> None:
    try:
        target = parse_target(b"/a/" + path + b"/messages")
    except PenstockError:
        return
    assert target.hub
    assert target.uri.startswith("/a/")
