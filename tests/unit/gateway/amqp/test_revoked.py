"""Revoked publishers at the AMQP door: refused at attaching, and their open links end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.amqp.link import LinkRole
from penstock.model.entities import RevokedPublisher
from penstock.model.names import HubName, NamespaceName, PublisherName

if TYPE_CHECKING:
    from tests.unit.gateway.amqp.conftest import Peer, World

REVOKED = "com.microsoft:publisher-revoked"


def revoke(world: World, name: str) -> None:
    world.catalog.put_revoked_publisher(
        RevokedPublisher(
            namespace=NamespaceName("contoso"),
            hub=HubName("eh1"),
            name=PublisherName(name),
            revoked_ms=0,
        )
    )


def test_revoked_publisher_may_not_attach_until_it_is_resumed(world: World, peer: Peer) -> None:
    revoke(world, "device-1")
    assert peer.refusal("eh1/Publishers/Device-1", LinkRole.SENDER).condition == REVOKED
    assert peer.sender("eh1/Publishers/device-2").is_attached
    world.catalog.delete_revoked_publisher("contoso", "eh1", "device-1")
    assert peer.sender("eh1/Publishers/device-1").is_attached


def test_revocation_ends_open_links_of_that_publisher_alone(world: World, peer: Peer) -> None:
    revoked, other, plain = (
        peer.sender(address)
        for address in ("eh1/Publishers/device-1", "eh1/Publishers/device-2", "eh1")
    )
    revoke(world, "Device-1")
    peer.run()
    error = peer.detach_error(revoked)
    assert error is not None
    assert error.condition == REVOKED
    assert "'device-1' of the event hub 'eh1' was revoked" in (error.description or "")
    assert other.is_attached
    assert plain.is_attached
