"""Every spelling of an address that a client uses, and those that mean nothing."""

from __future__ import annotations

import pytest

from penstock.gateway.amqp.addresses import LinkAddress, NodeKind, parse_address
from penstock.model.errors import ArgumentError, NotAllowed

HUB, PARTITION, PUBLISHER, GROUP = (
    NodeKind.HUB,
    NodeKind.PARTITION,
    NodeKind.PUBLISHER,
    NodeKind.CONSUMER_GROUP,
)


@pytest.mark.parametrize(
    ("text", "kind", "hub"),
    [
        ("eh1", HUB, "eh1"),
        ("/eh1", HUB, "eh1"),
        ("amqps://localhost:5691/eh1", HUB, "eh1"),
        ("sb://ns.servicebus.windows.net/eh1/", HUB, "eh1"),
        ("team/orders", HUB, "team/orders"),
        ("team%2Forders", HUB, "team/orders"),
        ("eh1/Partitions/3", PARTITION, "eh1"),
        ("amqps://h/eh1/partitions/3", PARTITION, "eh1"),
        ("/team/orders/Partitions/0", PARTITION, "team/orders"),
        ("eh1/Publishers/device-1", PUBLISHER, "eh1"),
        ("eh1/publisher/device-1", PUBLISHER, "eh1"),
        ("eh1/ConsumerGroups/$Default/Partitions/0", GROUP, "eh1"),
        ("/eh1/consumergroups/$default/partitions/0", GROUP, "eh1"),
        ("team/orders/ConsumerGroups/g/Partitions/0", GROUP, "team/orders"),
    ],
)
def test_address_is_understood_in_every_spelling(text: str, kind: NodeKind, hub: str) -> None:
    address = parse_address(text)
    assert (address.kind, address.hub) == (kind, hub)


def test_consumer_group_address_has_all_its_parts() -> None:
    address = parse_address("amqps://localhost:1/Orders/ConsumerGroups/Team%20A/Partitions/7")
    assert address == LinkAddress(
        GROUP,
        path=("orders", "consumergroups", "team a", "partitions", "7"),
        hub="Orders",
        partition="7",
        group="Team A",
    )


def test_publisher_address_has_the_canonical_path_whatever_was_written() -> None:
    address = parse_address("eh1/publisher/Device%2F1")
    assert address.publisher == "Device/1"
    assert address.path == ("eh1", "publishers", "device", "1")


@pytest.mark.parametrize("text", ["$cbs", "/$cbs", "amqps://localhost/$CBS"])
def test_cbs_is_a_node_of_its_own(text: str) -> None:
    assert parse_address(text).kind is NodeKind.CBS


@pytest.mark.parametrize(("text", "hub"), [("$management", ""), ("eh1/$management", "eh1")])
def test_management_may_name_a_hub(text: str, hub: str) -> None:
    address = parse_address(text)
    assert (address.kind, address.hub) == (NodeKind.MANAGEMENT, hub)


@pytest.mark.parametrize("text", ["eh1//x", "a" * 1025, "a" * 257])
def test_address_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError):
        parse_address(text)


@pytest.mark.parametrize("text", [None, ""])
def test_link_without_address_is_refused(text: str | None) -> None:
    with pytest.raises(NotAllowed):
        parse_address(text)
