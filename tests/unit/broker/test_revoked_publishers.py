"""Revoked publishers: refused at publishing and attaching, their open links ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.model.entities import HubStatus, RevokedPublisher
from penstock.model.errors import EntityDisabled, PenstockError, PublisherRevoked
from penstock.model.events import Receipt
from penstock.model.names import HubName, NamespaceName, PublisherName

if TYPE_CHECKING:
    from tests.unit.broker.conftest import World


def revoke(world: World, name: str) -> None:
    world.catalog.put_revoked_publisher(
        RevokedPublisher(
            namespace=NamespaceName("unit-test"),
            hub=HubName("events"),
            name=PublisherName(name),
            revoked_ms=world.clock.now_ms(),
        )
    )


def publish(world: World, publisher: str | None) -> list[Receipt | PenstockError]:
    outcomes: list[Receipt | PenstockError] = []
    batch = world.batch(b"x", key=publisher)
    world.hub.publish(
        batch, size_bytes=1, partition=None, done=outcomes.append, publisher=publisher
    )
    world.turn()
    return outcomes


def test_publisher_needs_no_creation(world: World) -> None:
    assert not world.hub.is_revoked("device-1")
    assert isinstance(publish(world, "device-1")[0], Receipt)


@pytest.mark.parametrize("spelling", ["Device-1", "device-1", "DEVICE-1"])
def test_revoked_publisher_is_refused_in_every_spelling(world: World, spelling: str) -> None:
    revoke(world, "Device-1")
    assert world.hub.is_revoked(spelling)
    with pytest.raises(PublisherRevoked, match=f"The publisher '{spelling}' of .* 'events'"):
        publish(world, spelling)
    with pytest.raises(PublisherRevoked):
        world.hub.open_sender(on_end=lambda error: None, publisher=spelling)
    assert world.hub.status(0).last_sequence == -1


def test_others_are_not_touched_by_a_revocation(world: World) -> None:
    revoke(world, "device-1")
    assert isinstance(publish(world, "device-10")[0], Receipt)
    assert isinstance(publish(world, None)[0], Receipt)
    world.hub.open_sender(on_end=lambda error: None, publisher="device-2").close()


def test_revocation_ends_the_publishers_open_links_alone(world: World) -> None:
    heard: dict[str, list[PenstockError]] = {"revoked": [], "other": [], "plain": []}
    world.hub.open_sender(on_end=heard["revoked"].append, publisher="Device-1")
    world.hub.open_sender(on_end=heard["other"].append, publisher="device-2")
    world.hub.open_sender(on_end=heard["plain"].append)
    revoke(world, "device-1")
    assert [type(error) for error in heard["revoked"]] == [PublisherRevoked]
    assert heard["other"] == heard["plain"] == []
    revoke(world, "device-3")
    assert len(heard["revoked"]) == 1  # it is gone


def test_resumed_publisher_sends_again(world: World) -> None:
    revoke(world, "device-1")
    world.catalog.delete_revoked_publisher("unit-test", "events", "device-1")
    assert isinstance(publish(world, "device-1")[0], Receipt)
    world.hub.open_sender(on_end=lambda error: None, publisher="device-1")


def test_hostile_publisher_name_is_shown_cut_and_escaped(world: World) -> None:
    revoke(world, "ü" * 256)
    with pytest.raises(PublisherRevoked) as caught:
        world.hub.check_publisher("ü" * 256)
    assert len(str(caught.value)) < 300


def test_disabled_hub_says_so_to_a_publisher_that_is_not_revoked(world: World) -> None:
    world.set_status(HubStatus.SEND_DISABLED)
    with pytest.raises(EntityDisabled):
        world.hub.open_sender(on_end=lambda error: None, publisher="device-1")
