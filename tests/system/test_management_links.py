"""What an act of the management does to links that are open: over real sockets, with a bare AMQP
peer, so that the condition of the detach is seen as it is on the wire (protocol.md 13)."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from penstock.amqp.connection import ConnectionConfig, ConnectionEngine
from penstock.amqp.events import DetachReceived, DispositionReceived, Event, SaslMechanismsReceived
from penstock.amqp.link import Link, LinkRole
from penstock.amqp.message import DataBody, Message, encode_message
from penstock.amqp.performatives import Accepted, Source, Target
from penstock.management.client import ManagementClient

if TYPE_CHECKING:
    from tests.conftest import Server, ServerFactory

DEADLINE_S = 30.0
NAMESPACE = "penstock"
STAYS = "stays"
DISABLED = "com.microsoft:entity-disabled"
UPDATED = "com.microsoft:entity-updated"
NOT_FOUND = "amqp:not-found"
UNAUTHORIZED = "amqp:unauthorized-access"
REVOKED = "com.microsoft:publisher-revoked"


class Peer:
    """A client with one sender and one receiver, let in by SASL PLAIN."""

    def __init__(self, port: int, policy: str, key: str) -> None:
        self.raw = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        self._response = f"\0{policy}\0{key}".encode()
        self._accepted = 0
        self._ended: dict[Link, str] = {}
        self.engine = ConnectionEngine(
            ConnectionConfig(container_id="a-peer", hostname="localhost", server=False), now_ms=0
        )
        self.engine.start()
        self._until(lambda: self.engine.sasl_state.name == "DONE")
        self.engine.send_open()
        self._session = self.engine.begin()
        self._until(lambda: self._session.is_mapped)

    def attach(self, address: str, role: LinkRole) -> Link:
        link = self._session.new_link(f"{role.name}-{address}", role)
        link.request(source=Source(address=address), target=Target(address=address))
        self._until(lambda: link.is_attached)
        return link

    def publish(self, link: Link) -> None:
        """One event, acknowledged."""
        before = self._accepted
        self._until(lambda: link.credit > 0 or link in self._ended)
        event = encode_message(Message(body=DataBody([b"an event"])))
        assert link.send(event, settled=False) is not None
        self._until(lambda: self._accepted > before or link in self._ended)
        assert link not in self._ended, self._ended[link]

    def end_of(self, link: Link) -> str:
        """The condition that the service ends the link with."""
        self._until(lambda: link in self._ended)
        return self._ended[link]

    def is_attached(self, link: Link) -> bool:
        return link.is_attached and link not in self._ended

    def close(self) -> None:
        self.raw.close()

    def _until(self, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            outgoing = self.engine.bytes_to_send(now_ms=0)
            if outgoing:
                self.raw.sendall(outgoing)
            if reached():
                return
            self.raw.settimeout(max(0.1, deadline - time.monotonic()))
            incoming = self.raw.recv(65_536)
            assert incoming, "the service hung up"
            for event in self.engine.receive_data(incoming, now_ms=0):
                self._heard(event)

    def _heard(self, event: Event) -> None:
        if isinstance(event, SaslMechanismsReceived):
            self.engine.init_sasl("PLAIN", self._response)
        elif isinstance(event, DispositionReceived):
            self._accepted += isinstance(event.disposition.state, Accepted)
        elif isinstance(event, DetachReceived):
            self._ended[event.link] = "" if event.error is None else str(event.error.condition)


class Scene:
    """A hub of its own with a group, a policy, and a peer that sends and receives by it."""

    def __init__(self, client: ManagementClient, port: int, hub: str) -> None:
        self.client = client
        self.hub = hub
        client.put_hub(NAMESPACE, hub, partition_count=2)
        client.put_group(NAMESPACE, hub, "readers")
        client.put_rule(NAMESPACE, hub, "both", ["Send", "Listen"])
        client.put_rule(NAMESPACE, None, hub, ["Send", "Listen"])  # the peer's own
        key = client.keys(NAMESPACE, None, hub).primary_key
        self.peer = Peer(port, hub, key)
        self.sender = self.peer.attach(f"{hub}/Partitions/0", LinkRole.SENDER)
        self.publisher = self.peer.attach(f"{hub}/Publishers/device", LinkRole.SENDER)
        self.receiver = self.peer.attach(
            f"{hub}/ConsumerGroups/readers/Partitions/1", LinkRole.RECEIVER
        )
        self.peer.publish(self.sender)

    def close(self) -> None:
        self.peer.close()
        self.client.delete_rule(NAMESPACE, None, self.hub)  # there may be twelve


@pytest.fixture(scope="module")
def server(start_session_server: ServerFactory) -> Server:
    return start_session_server()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[ManagementClient]:
    with ManagementClient(server["admin"], server["admin_token"]) as made:
        yield made


numbers = itertools.count(1)


@pytest.fixture
def scene(server: Server, client: ManagementClient) -> Iterator[Scene]:
    made = Scene(client, server.port("amqp"), f"hub-{next(numbers)}")
    yield made
    made.close()


Act = Callable[[ManagementClient, str], object]


def status(word: str) -> Act:
    return lambda client, hub: client.put_hub(NAMESPACE, hub, status=word)


# what is done -> what the sender, the publisher's sender and the receiver hear
ACTS: dict[str, tuple[Act, str, str, str]] = {
    "hub is disabled": (status("Disabled"), DISABLED, DISABLED, DISABLED),
    "sending is disabled": (status("SendDisabled"), DISABLED, DISABLED, UPDATED),
    "receiving is disabled": (status("ReceiveDisabled"), UPDATED, UPDATED, DISABLED),
    "hub is deleted": (
        lambda client, hub: client.delete_hub(NAMESPACE, hub),
        NOT_FOUND,
        NOT_FOUND,
        NOT_FOUND,
    ),
    "group is deleted": (
        lambda client, hub: client.delete_group(NAMESPACE, hub, "readers"),
        STAYS,
        STAYS,
        NOT_FOUND,
    ),
    "key is regenerated": (
        lambda client, hub: client.regenerate(NAMESPACE, None, hub, "PrimaryKey"),
        UNAUTHORIZED,
        UNAUTHORIZED,
        UNAUTHORIZED,
    ),
    "other key is regenerated": (
        lambda client, hub: client.regenerate(NAMESPACE, None, hub, "SecondaryKey"),
        STAYS,
        STAYS,
        STAYS,
    ),
    "right to send is taken": (
        lambda client, hub: client.put_rule(NAMESPACE, None, hub, ["Listen"]),
        UNAUTHORIZED,
        UNAUTHORIZED,
        STAYS,
    ),
    "right to listen is taken": (
        lambda client, hub: client.put_rule(NAMESPACE, None, hub, ["Send"]),
        STAYS,
        STAYS,
        UNAUTHORIZED,
    ),
    "publisher is revoked": (
        lambda client, hub: client.revoke_publisher(NAMESPACE, hub, "device"),
        STAYS,
        REVOKED,
        STAYS,
    ),
    "settings are changed": (
        lambda client, hub: client.put_hub(
            NAMESPACE, hub, retention_hours=48, user_metadata="x", capture={"enabled": False}
        ),
        STAYS,
        STAYS,
        STAYS,
    ),
    "another policy is deleted": (
        lambda client, hub: client.delete_rule(NAMESPACE, hub, "both"),
        STAYS,
        STAYS,
        STAYS,
    ),
}


@pytest.mark.parametrize("what", ACTS)
def test_open_links_hear_of_it(scene: Scene, what: str) -> None:
    act, *expected = ACTS[what]
    act(scene.client, scene.hub)
    links = (scene.sender, scene.publisher, scene.receiver)
    for link, condition in zip(links, expected, strict=True):
        if condition != STAYS:
            assert scene.peer.end_of(link) == condition
    # Who stays goes on: what was said before this answer has been heard by now.
    for link, condition in zip(links, expected, strict=True):
        if condition == STAYS and link is not scene.receiver:
            scene.peer.publish(link)
        if condition == STAYS:
            assert scene.peer.is_attached(link)


def test_hub_that_is_enabled_again_says_so_to_who_stayed(scene: Scene) -> None:
    status("SendDisabled")(scene.client, scene.hub)
    assert scene.peer.end_of(scene.receiver) == UPDATED
    again = scene.peer.attach(
        f"{scene.hub}/ConsumerGroups/$Default/Partitions/0", LinkRole.RECEIVER
    )
    status("Active")(scene.client, scene.hub)
    assert scene.peer.end_of(again) == UPDATED
    scene.peer.publish(scene.peer.attach(f"{scene.hub}/Partitions/1", LinkRole.SENDER))


def test_deleted_policy_ends_every_link_of_its_own(
    server: Server, client: ManagementClient
) -> None:
    client.put_hub(NAMESPACE, "policies", partition_count=2)
    client.put_rule(NAMESPACE, None, "fleeting", ["Send", "Listen"])
    key = client.keys(NAMESPACE, None, "fleeting").secondary_key
    peer = Peer(server.port("amqp"), "fleeting", key)
    sender = peer.attach("policies/Partitions/0", LinkRole.SENDER)
    receiver = peer.attach("policies/ConsumerGroups/$Default/Partitions/0", LinkRole.RECEIVER)
    client.delete_rule(NAMESPACE, None, "fleeting")
    assert [peer.end_of(sender), peer.end_of(receiver)] == [UNAUTHORIZED, UNAUTHORIZED]
    peer.close()


def test_deleted_namespace_ends_its_links_alone(
    server: Server, client: ManagementClient, scene: Scene
) -> None:
    client.put_namespace("fleeting-one", unlimited=True)
    client.put_hub("fleeting-one", "events", partition_count=2)
    client.put_rule("fleeting-one", None, "theirs", ["Send", "Listen"])
    key = client.keys("fleeting-one", None, "theirs").primary_key
    peer = Peer(server.port("amqp"), "theirs", key)
    sender = peer.attach("events/Partitions/0", LinkRole.SENDER)
    receiver = peer.attach("events/ConsumerGroups/$Default/Partitions/0", LinkRole.RECEIVER)
    peer.publish(sender)
    client.delete_namespace("fleeting-one")
    assert {peer.end_of(sender), peer.end_of(receiver)} <= {NOT_FOUND, UNAUTHORIZED}
    scene.peer.publish(scene.sender)
    assert scene.peer.is_attached(scene.receiver)
    peer.close()
