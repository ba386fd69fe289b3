"""One spelling for every resource URI."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.auth.resource import (
    Resource,
    canonical_path,
    names_publisher,
    parse_resource,
    path_covers,
    sends_to,
    within_hub,
)
from penstock.model.errors import AuthFailed


@pytest.mark.parametrize(
    ("uri", "host", "path"),
    [
        ("sb://ns.example/hub", "ns.example", ("hub",)),
        ("AMQPS://NS.Example:5671/Hub/", "ns.example", ("hub",)),
        ("sb://ns.example", "ns.example", ()),
        ("sb://ns.example/", "ns.example", ()),
        ("ns.example", "ns.example", ()),
        ("ns.example/hub", "ns.example", ("hub",)),
        ("localhost:5672/a/b", "localhost", ("a", "b")),
        ("//ns/hub", "ns", ("hub",)),
        ("/hub/Partitions/0", None, ("hub", "partitions", "0")),
        ("/", None, ()),
        ("sb://[::1]:5671/hub", "::1", ("hub",)),
        ("sb://[2001:DB8::1]/hub", "2001:db8::1", ("hub",)),
        ("sb://127.0.0.1:5672/hub", "127.0.0.1", ("hub",)),
        (
            "sb://h/hub/ConsumerGroups/$Default/Partitions/0",
            "h",
            ("hub", "consumergroups", "$default", "partitions", "0"),
        ),
        ("sb%3A%2F%2Fh%2Fhub", "h", ("hub",)),
        ("sb://h/a%2Fb", "h", ("a", "b")),
        ("sb://h/publishers/%C3%89t%C3%A9", "h", ("publishers", "Été")),
        ("sb://h/100%25", "h", ("100%",)),
        ("sb://h/a%2541", "h", ("a%41",)),
        ("sb://h/a+b", "h", ("a+b",)),
        ("sb://h/x://y", None, None),  # an empty segment
        ("h/x:y", "h", ("x:y",)),
        ("my_host/hub", "my_host", ("hub",)),
        ("h/hub/publisher/a/messages", "h", ("hub", "publishers", "a", "messages")),
        ("h/hub/publishers/publisher", "h", ("hub", "publishers", "publisher")),
        ("h/hub/partitions/0/publisher", "h", ("hub", "partitions", "0", "publisher")),
        ("h/publisher/a", "h", ("publisher", "a")),  # a hub of that name
    ],
)
def test_resource_is_read_in_each_spelling(
    uri: str, host: str | None, path: tuple[str, ...] | None
) -> None:
    if path is None:
        with pytest.raises(AuthFailed):
            parse_resource(uri)
        return
    assert parse_resource(uri) == Resource(host, path)


def test_resource_shows_itself_as_one_uri() -> None:
    assert parse_resource("AMQPS://H:5671/Hub/").uri == "sb://h/hub"
    assert parse_resource("/Hub").uri == "sb:///hub"


@pytest.mark.parametrize(
    "uri",
    ["", "sb://", "sb:///hub", "//", "///", "http:/h/hub:", "ftp://h/x", "sb://h:/x", "sb://h:x/y"],
)
def test_resource_that_cannot_be_read_is_refused(uri: str) -> None:
    with pytest.raises(AuthFailed, match=r"^InvalidAudience: "):
        parse_resource(uri)


def test_error_shows_hostile_text_cut_and_escaped() -> None:
    with pytest.raises(AuthFailed) as caught:
        parse_resource("sb://h/\x1b[31m" + "x" * 5000)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 200


@given(st.one_of(st.text(), st.text("%/.:[]@abAB012 sb\0é")))
@example("\ud800")
@example("sb://h/%ed%a0%80")
def test_resource_parser_raises_auth_failed_and_nothing_else(uri: str) -> None:
    try:
        resource = parse_resource(uri)
    except AuthFailed:
        return
    assert not {"", ".", ".."} & set(resource.path)
    assert all("/" not in segment for segment in resource.path)
    assert resource.host is None or resource.host == resource.host.lower()
    assert canonical_path(resource.path) == resource.path


@pytest.mark.parametrize(
    ("prefix", "path", "covered"),
    [
        ((), (), True),
        ((), ("a",), True),
        (("a",), ("a",), True),
        (("a",), ("a", "b"), True),
        (("a",), ("ab",), False),
        (("a", "b"), ("a",), False),
        (("a",), (), False),
    ],
)
def test_path_covers_whole_segments(
    prefix: tuple[str, ...], path: tuple[str, ...], covered: bool
) -> None:
    assert path_covers(prefix, path) is covered


@pytest.mark.parametrize(
    ("path", "names_one"),
    [
        ("hub/publishers/a", True),
        ("a/b/publishers/c/d", True),
        ("publishers/publishers/a", True),
        ("hub/publishers", False),
        ("publishers/a", False),  # a hub of that name
        ("hub/consumergroups/publishers/x", False),
        ("hub", False),
    ],
)
def test_publisher_is_recognised_behind_its_hub_alone(path: str, names_one: bool) -> None:
    assert names_publisher(tuple(path.split("/"))) is names_one


@pytest.mark.parametrize(
    ("path", "entity"),
    [
        ("hub/messages", "hub"),
        ("plant/line/messages", "plant/line"),
        ("hub/partitions/0/messages", "hub/partitions/0"),
        ("hub/publishers/a/messages", "hub/publishers/a"),
        ("hub/publishers/a/b/messages", "hub/publishers/a/b"),
        ("hub/publishers/messages/messages", "hub/publishers/messages"),
        ("messages/messages", "messages"),
        ("messages", None),  # a hub of that name
        ("hub/publishers/messages", None),  # a publisher of that name
        ("hub/partitions/messages", None),
        ("hub/consumergroups/g/messages", None),
        ("hub/messages/messages", None),
        ("hub", None),
        ("", None),
    ],
)
def test_publish_uri_names_the_entity_it_sends_to(path: str, entity: str | None) -> None:
    expected = None if entity is None else tuple(entity.split("/"))
    assert sends_to(tuple(path.split("/")) if path else ()) == expected


@pytest.mark.parametrize(
    ("hub", "path", "within"),
    [
        ("Plant", "plant", True),
        ("plant", "plant/partitions/0", True),
        ("plant", "plant/consumergroups/$default/partitions/0", True),
        ("plant", "plant/$management", True),
        ("plant", "plant/line", False),
        ("plant/Line", "plant/line/publishers/a", True),
        ("plant/line", "plant", False),
        ("plant", "plants", False),
    ],
)
def test_hub_with_a_longer_name_is_no_part_of_a_hub(hub: str, path: str, within: bool) -> None:
    assert within_hub(hub, tuple(path.split("/"))) is within


def test_doors_path_is_folded_and_divided() -> None:
    assert canonical_path(("Plant/Line", "Publishers", "Ä/B")) == (
        *("plant", "line", "publishers"),
        *("Ä", "b"),
    )
    assert canonical_path(()) == ()
