"""Who may attach to what, in which order that is asked, and what a refusal tells."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from penstock.amqp.link import UNLIMITED, LinkRole
from penstock.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Coordinator,
    Detach,
    Flow,
    Rejected,
    Source,
    Target,
)
from penstock.amqp.types import Int, Long, Short, Symbol, Ulong
from penstock.model import limits
from penstock.model.entities import HubStatus, LimitSet, Tier
from penstock.model.names import fold_name

if TYPE_CHECKING:
    from tests.unit.gateway.amqp.conftest import Peer, World

READER = "eh1/ConsumerGroups/$Default/Partitions/0"
STAMP = re.compile(
    r" TrackingId:[0-9a-f]{32}_G0, SystemTracker:(\S+), Timestamp:2023-11-14T22:13:20$"
)


def tracker(text: str | None) -> str:
    match = STAMP.search(text or "")
    assert match is not None, text
    return match[1]


def plain(text: str | None) -> str:
    """The text without what is appended for the operator."""
    return STAMP.sub("", text or "")


# --- what a link gets ---------------------------------------------------------------------------


def test_sender_is_answered_with_limit_echo_and_credit(peer: Peer) -> None:
    before = len(peer.heard)
    peer.sender("eh1", snd_settle_mode=0, rcv_settle_mode=1)
    attach, flow = (sent.body for sent in peer.heard[before:])
    assert isinstance(attach, Attach)
    assert isinstance(flow, Flow)  # E10: at once, with everything
    assert attach.max_message_size == limits.PUBLICATION_BYTES_STANDARD  # E6
    assert (attach.snd_settle_mode, attach.rcv_settle_mode) == (0, 1)  # E7
    assert (attach.source, attach.target) != (None, None)
    assert attach.properties is not None
    assert attach.properties["com.microsoft:tracking-id"] == peer.connection.id
    assert flow.link_credit == limits.SENDER_CREDIT
    assert (flow.handle, flow.delivery_count) == (attach.handle, 0)
    assert flow.next_incoming_id is not None


def test_receiver_is_answered_with_its_filter_and_epoch_and_no_flow(peer: Peer) -> None:
    before = len(peer.heard)
    peer.receiver(
        start="amqp.annotation.x-opt-offset > '-1'",
        properties={Symbol("com.microsoft:epoch"): Long(7)},
        snd_settle_mode=1,
        rcv_settle_mode=0,
    )
    (attach,) = (sent.body for sent in peer.heard[before:])
    assert isinstance(attach, Attach)
    assert attach.initial_delivery_count == 0  # E5
    assert (attach.snd_settle_mode, attach.rcv_settle_mode) == (1, 0)  # E7
    assert attach.source is not None
    assert attach.source.filter is not None
    assert attach.properties is not None
    epoch = attach.properties["com.microsoft:epoch"]
    assert (type(epoch), epoch) == (Long, 7)


@pytest.mark.parametrize("tier", list(Tier))
def test_reader_link_announces_no_limit_below_what_it_delivers(world: World, tier: Tier) -> None:
    """The largest publication is delivered with annotations on top; Microsoft.Azure.Amqp refuses a
    delivery above the announced limit, and its reader never gets past that event."""
    world.put_namespace(tier=tier)
    peer = world.peer().authorised()
    link = peer.sender("eh1/Partitions/0")
    size_max = peer.said(Attach)[-1].max_message_size
    assert size_max is not None
    largest = world.event(bytes(size_max - (len(world.event(bytes(300))) - 300)))
    assert len(largest) == size_max
    peer.publish(link, largest)
    reader = peer.receiver(
        credit=1, desired_capabilities=["com.microsoft:enable-receiver-runtime-metric"]
    )
    announced = peer.said(Attach)[-1].max_message_size
    (delivered,) = peer.received(reader)
    assert len(delivered) > len(largest)
    assert announced == UNLIMITED


def test_settle_modes_that_the_client_left_out_stay_out(peer: Peer) -> None:
    before = len(peer.heard)
    peer.sender()
    attach = peer.said(Attach, since=before)[0]
    assert (attach.snd_settle_mode, attach.rcv_settle_mode) == (None, None)


@pytest.mark.parametrize("node", ["$cbs", "$management", "eh1/$management", "$CBS"])
@pytest.mark.parametrize("role", list(LinkRole))
def test_nodes_open_to_anybody_with_the_services_numbers(
    world: World, node: str, role: LinkRole
) -> None:
    peer = world.peer().opened()
    before = len(peer.heard)
    link = peer.attach(node, role)
    assert link.is_attached
    attach = peer.said(Attach, since=before)[0]
    assert attach.max_message_size == UNLIMITED
    assert attach.properties is None
    credits = [flow.link_credit for flow in peer.said(Flow, since=before)]
    assert credits == ([limits.NODE_CREDIT] if role is LinkRole.SENDER else [])


@pytest.mark.parametrize("fields", [{"tier": Tier.DEDICATED}, {"limits": LimitSet.CURRENT}])
def test_dedicated_or_current_namespace_takes_a_megabyte(
    world: World, fields: dict[str, Any]
) -> None:
    world.put_namespace(**fields)
    peer = world.peer().authorised()
    peer.sender()
    assert peer.said(Attach)[-1].max_message_size == limits.PUBLICATION_BYTES_DEDICATED


@pytest.mark.parametrize(
    "address",
    [
        "eh1",
        "/eh1",
        "EH1",
        "amqps://contoso.example.net:5671/eh1",
        "eh1/Partitions/1",
        "/eh1/partitions/1",
        "eh1/Publishers/device-1",
    ],
)
def test_sender_attaches_by_every_spelling(peer: Peer, address: str) -> None:
    assert peer.sender(address).is_attached


# --- refusals -----------------------------------------------------------------------------------


def refused(peer: Peer, address: str | None, role: LinkRole, **fields: Any) -> tuple[str, str]:
    """Condition and text, without the tracking; the shape on the wire is checked (E14, E15)."""
    before, links = len(peer.heard), list(peer.connection.links.handlers)
    error = peer.refusal(address, role, **fields)
    attach, detach = (sent.body for sent in peer.heard[before:])
    assert isinstance(attach, Attach)
    assert (attach.source, attach.target) == (None, None)
    assert isinstance(detach, Detach)
    assert detach.closed
    assert list(peer.connection.links.handlers) == links
    return error.condition, plain(error.description)


def test_unauthorised_peer_cannot_tell_what_exists(world: World) -> None:
    """Hub, partition, group, status: the same words for what is there and what is not."""
    world.change_hub(status=HubStatus.DISABLED)
    peer = world.peer().opened()
    for address, claim, role in (
        ("eh1", "Send", LinkRole.SENDER),
        ("nothing", "Send", LinkRole.SENDER),
        ("eh1/Partitions/0", "Send", LinkRole.SENDER),
        ("eh1/Partitions/99", "Send", LinkRole.SENDER),
        ("eh1/Publishers/p", "Send", LinkRole.SENDER),
        (READER, "Listen", LinkRole.RECEIVER),
        ("eh1/ConsumerGroups/nothing/Partitions/99", "Listen", LinkRole.RECEIVER),
    ):
        error = peer.refusal(address, role)
        assert error.condition == "amqp:unauthorized-access"
        assert tracker(error.description) == "-"
        assert plain(error.description) == (
            f"Unauthorized access. '{claim}' claim(s) are required to perform this operation. "
            f"Resource: 'sb://contoso.example.net/{fold_name(address)}'."
        )


def test_right_is_asked_for_before_anything_else(world: World) -> None:
    listener = world.peer().authorised(rule="listener")
    assert refused(listener, "eh1", LinkRole.SENDER)[0] == "amqp:unauthorized-access"
    assert refused(listener, "nothing", LinkRole.SENDER)[0] == "amqp:unauthorized-access"
    sender = world.peer().authorised(rule="sender")
    assert refused(sender, READER, LinkRole.RECEIVER)[0] == "amqp:unauthorized-access"
    assert sender.sender("eh1").is_attached


def test_token_of_one_hub_opens_no_other(world: World) -> None:
    world.put_hub("eh10")
    peer = world.peer().authorised(audience="eh1")
    assert refused(peer, "eh10", LinkRole.SENDER)[0] == "amqp:unauthorized-access"


@pytest.mark.parametrize(
    ("theirs", "mine"), [("k", "\N{KELVIN SIGN}"), ("strasse", "straße"), ("a", "b"), ("a", "a/b")]
)
def test_publishers_token_speaks_for_no_other_publisher(
    world: World, theirs: str, mine: str
) -> None:
    peer = world.peer().authorised(audience=f"eh1/publishers/{theirs}")
    assert peer.sender(f"eh1/Publishers/{theirs}").is_attached
    address = f"eh1/Publishers/{mine.replace('/', '%2F')}"
    assert refused(peer, address, LinkRole.SENDER)[0] == "amqp:unauthorized-access"


def test_unknown_hub_and_group_are_named_in_the_services_words(peer: Peer) -> None:
    assert refused(peer, "nothing", LinkRole.SENDER) == (
        "amqp:not-found",
        "The messaging entity 'sb://contoso.example.net/nothing' could not be found. "
        "To know more visit https://aka.ms/sbResourceMgrExceptions.",
    )
    condition, text = refused(peer, "eh1/ConsumerGroups/nope/Partitions/0", LinkRole.RECEIVER)
    assert condition == "amqp:not-found"
    assert text.startswith(
        "The messaging entity 'sb://contoso.example.net/eh1/ConsumerGroups/nope' could not be "
        "found."
    )


@pytest.mark.parametrize("partition", ["XYZ", "-1", "1000", "-", "2", "00"])
def test_unknown_partition_is_out_of_range_both_ways(peer: Peer, partition: str) -> None:
    for address, role in (
        (f"eh1/Partitions/{partition}", LinkRole.SENDER),
        (f"eh1/ConsumerGroups/$Default/Partitions/{partition}", LinkRole.RECEIVER),
    ):
        assert refused(peer, address, role)[0] == "com.microsoft:argument-out-of-range"


@pytest.mark.parametrize(
    ("status", "sends", "receives"),
    [
        (HubStatus.DISABLED, False, False),
        (HubStatus.SEND_DISABLED, False, True),
        (HubStatus.RECEIVE_DISABLED, True, False),
    ],
)
def test_disabled_hub_refuses_what_is_disabled(
    world: World, peer: Peer, status: HubStatus, sends: bool, receives: bool
) -> None:
    world.change_hub(status=status)
    for address, role, works in (
        ("eh1", LinkRole.SENDER, sends),
        (READER, LinkRole.RECEIVER, receives),
    ):
        if works:
            assert peer.attach(address, role).is_attached
        else:
            assert refused(peer, address, role)[0] == "com.microsoft:entity-disabled"


@pytest.mark.parametrize("address", ["eh1", "eh1/Partitions/0", "eh1/Publishers/p"])
def test_receiving_from_what_is_no_consumer_group_is_not_allowed(peer: Peer, address: str) -> None:
    assert refused(peer, address, LinkRole.RECEIVER)[0] == "amqp:not-allowed"


@pytest.mark.parametrize("address", [None, "", READER])
def test_sending_to_nowhere_or_to_a_group_is_not_allowed(peer: Peer, address: str | None) -> None:
    assert refused(peer, address, LinkRole.SENDER)[0] == "amqp:not-allowed"


def test_transactions_are_not_implemented(peer: Peer) -> None:
    assert peer.session is not None
    link = peer.session.new_link("coordinator", LinkRole.SENDER)
    target: Any = Coordinator()
    link.request(source=Source(), target=target)
    peer.run()
    error = peer.detach_error(link)
    assert error is not None
    assert error.condition == "amqp:not-implemented"


def test_overlong_names_are_refused_and_not_repeated(peer: Peer) -> None:
    name = "n" * (limits.LINK_NAME_MAX + 1)
    condition, text = refused(peer, "eh1", LinkRole.SENDER, name=name)
    assert condition == "com.microsoft:argument-error"
    assert len(text) < 200
    assert refused(peer, "h/" * 600, LinkRole.SENDER)[0] == "com.microsoft:argument-error"


@pytest.mark.parametrize(
    "start",
    [
        "x-opt-offset > '1'",
        "amqp.annotation.x-opt-offset < '1'",
        "amqp.annotation.x-opt-offset > 'abc'",
        "amqp.annotation.x-opt-sequence-number > '99999999999999999999'",
        "amqp.annotation.x-opt-offset > '1' or 1=1",
        "a" * 600,
    ],
)
def test_unreadable_filter_is_refused_before_anybody_is_displaced(
    world: World, peer: Peer, start: str
) -> None:
    epoch = {Symbol("com.microsoft:epoch"): Long(1)}
    reader = peer.receiver(properties=epoch)
    other = world.peer().authorised()
    assert refused(other, READER, LinkRole.RECEIVER, start=start, properties=epoch)[0] == (
        "com.microsoft:argument-error"
    )
    peer.run()
    assert reader.is_attached


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("com.microsoft:epoch", "1"),
        ("com.microsoft:epoch", True),
        ("com.microsoft:epoch", -1),
        ("com.microsoft:epoch", Ulong(2**64 - 1)),
        ("com.microsoft:receiver-name", 5),
        ("com.microsoft:receiver-name", "n" * 65),
    ],
)
def test_reader_property_of_a_wrong_kind_is_an_argument_error(
    world: World, peer: Peer, name: str, value: object
) -> None:
    properties = {Symbol(name): value}
    assert refused(peer, READER, LinkRole.RECEIVER, properties=properties)[0] == (
        "com.microsoft:argument-error"
    )
    assert world.readers() == []
    assert peer.receiver().is_attached  # the connection lives


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("com.microsoft:producer-id", Ulong(2**64 - 1)),
        ("com.microsoft:producer-epoch", Long(2**15)),
        ("com.microsoft:producer-epoch", "0"),
        ("com.microsoft:producer-sequence-number", Long(2**31)),
        ("com.microsoft:producer-sequence-number", -1),
    ],
)
def test_producer_number_that_no_type_holds_is_refused(
    peer: Peer, name: str, value: object
) -> None:
    condition, _ = refused(
        peer,
        "eh1/Partitions/0",
        LinkRole.SENDER,
        desired_capabilities=["com.microsoft:idempotent-producer"],
        properties={Symbol(name): value},
    )
    assert condition.startswith("com.microsoft:argument-")


@pytest.mark.parametrize(
    ("address", "properties"),
    [
        ("eh1", {Symbol("com.microsoft:producer-id"): Long(7)}),
        ("eh1", {Symbol("com.microsoft:producer-sequence-number"): Int(1)}),
        ("eh1/Publishers/p", {}),
    ],
)
def test_idempotent_producer_that_is_named_needs_a_partition(
    peer: Peer, address: str, properties: dict[str, object]
) -> None:
    condition, text = refused(
        peer,
        address,
        LinkRole.SENDER,
        desired_capabilities=["com.microsoft:idempotent-producer"],
        properties=properties,
    )
    assert condition == "amqp:not-allowed"
    assert "HUB/Partitions/ID" in text


def test_idempotent_producer_may_ask_the_hub_for_its_limit_and_publish_on_partitions(
    world: World, peer: Peer
) -> None:
    """As the .NET buffered producer does: its batches are sized by a link to the hub, without the
    producer properties or with null ones, and published on links to partitions."""
    idempotent = {"desired_capabilities": ["com.microsoft:idempotent-producer"]}
    nulls = {Symbol(f"com.microsoft:producer-{n}"): None for n in ("id", "epoch")}
    for properties in (None, nulls):
        link = peer.sender("/eh1", properties=properties, **idempotent)
        assert peer.said(Attach)[-1].max_message_size == limits.PUBLICATION_BYTES_STANDARD
        peer.publish(link, world.event(b"single"))
        peer.publish(link, world.batch(world.event(b"batch")), message_format=0x80013700)
        for outcome in peer.outcomes()[-2:]:
            assert isinstance(outcome.state, Rejected)
            assert outcome.state.error is not None
            assert outcome.state.error.condition == "amqp:not-allowed"
        assert link.is_attached
    assert world.stored(0) == world.stored(1) == []
    world.catalog.delete_hub("contoso", "eh1")
    peer.run()
    assert peer.detach_error(link) is not None


def test_idempotent_producer_is_told_its_three_numbers_in_their_types(peer: Peer) -> None:
    peer.sender("eh1/Partitions/0", desired_capabilities=["com.microsoft:idempotent-producer"])
    given = peer.said(Attach)[-1].properties
    assert given is not None
    numbers = [given[f"com.microsoft:producer-{n}"] for n in ("id", "epoch", "sequence-number")]
    assert [type(number).__name__ for number in numbers] == ["Long", "Short", "Int"]
    assert numbers == [1000, 0, 0]
    assert isinstance(numbers[1], Short)


# --- who reads beside whom ----------------------------------------------------------------------


def test_sixth_shared_reader_is_refused_with_the_others_names(peer: Peer) -> None:
    for n in range(limits.SHARED_READERS_MAX):
        peer.receiver(properties={Symbol("com.microsoft:receiver-name"): f"r{n}"})
    error = peer.refusal(READER, LinkRole.RECEIVER)
    assert error.condition == "amqp:resource-limit-exceeded"
    assert plain(error.description) == (
        "Exceeded the maximum number of allowed receivers per partition in a consumer group which "
        "is 5. List of connected receivers - r0, r1, r2, r3, r4."
    )
    assert tracker(error.description) == "contoso:eventhub:eh1~16383|$default"


def test_equal_epoch_takes_over_and_the_loser_hears_why(world: World, peer: Peer) -> None:
    epoch = {Symbol("com.microsoft:epoch"): Long(0)}
    old = peer.receiver(1, properties=epoch)
    other = world.peer().authorised()
    assert other.receiver(1, properties=epoch).is_attached
    peer.run()
    error = peer.detach_error(old)
    assert error is not None
    assert error.condition == "amqp:link:stolen"
    assert plain(error.description) == (
        "New receiver 'nil' with higher epoch of '0' is created hence current receiver 'nil' with "
        "epoch '0' is getting disconnected. If you are recreating the receiver, make sure a higher "
        "epoch is used."
    )
    assert tracker(error.description) == "contoso:eventhub:eh1~32766|$default"


def test_takeover_on_the_same_connection_detaches_the_older_link(peer: Peer) -> None:
    epoch = {Symbol("com.microsoft:epoch"): Long(0)}
    old = peer.receiver(properties=epoch)
    new = peer.receiver(properties=epoch)
    assert not old.is_attached
    assert new.is_attached
    assert len(peer.world.readers()) == 1


def test_lower_epoch_and_shared_reader_are_refused_beside_an_epoch(peer: Peer) -> None:
    peer.receiver(properties={Symbol("com.microsoft:epoch"): Long(5)})
    lower = {Symbol("com.microsoft:epoch"): Long(4)}
    condition, text = refused(peer, READER, LinkRole.RECEIVER, properties=lower)
    assert condition == "amqp:link:stolen"
    assert text.startswith("Receiver 'nil' with a higher epoch '5' already exists.")
    condition, text = refused(peer, READER, LinkRole.RECEIVER)
    assert condition == "amqp:link:stolen"
    assert "non-epoch receiver is not allowed" in text


def test_begin_after_a_refused_reader_costs_no_other_link_of_the_connection(peer: Peer) -> None:
    """As Microsoft.Azure.EventHubs does it: the refused link's session is never ended."""
    epoch = Symbol("com.microsoft:epoch")
    owner = peer.receiver(properties={epoch: Long(9)})
    lower: dict[str, object] = {epoch: Long(1)}
    for properties in (lower, None):
        peer.say(
            Begin(next_outgoing_id=0, incoming_window=10, outgoing_window=10),
            Attach(
                name="reader",
                handle=0,
                role=True,
                source=Source(address=READER),
                target=Target(address="client"),
                properties=properties,
            ),
            channel=1,
        )
        (detach,) = (sent.body for sent in peer.heard[-1:])
        assert isinstance(detach, Detach)
        assert detach.error is not None
        assert detach.error.condition == "amqp:link:stolen"
    assert peer.said(Close) == []
    assert owner.name in {link.name for link in peer.connection.links.handlers}


def test_refused_entity_is_named_in_the_tracker(peer: Peer) -> None:
    """6.1: SystemTracker tells the hub, and the partition and group where there are some."""
    for address, role, expected in (
        ("eh1/Partitions/9", LinkRole.SENDER, "contoso:eventhub:eh1"),
        ("nothing", LinkRole.SENDER, "contoso:eventhub:nothing"),
        ("eh1/ConsumerGroups/nope/Partitions/0", LinkRole.RECEIVER, "contoso:eventhub:eh1|nope"),
    ):
        assert tracker(peer.refusal(address, role).description) == expected


# --- awkward attaches ---------------------------------------------------------------------------


def test_attach_whose_answer_the_peer_cannot_take_leaves_nothing_behind(world: World) -> None:
    """A peer of 512-byte frames asks with a source that fills more: echoing it is impossible."""
    peer = world.peer(max_frame_size=512).authorised()
    assert peer.session is not None
    link = peer.session.new_link("reader", LinkRole.RECEIVER)
    target = Target(address="a" * 400)
    link.request(source=Source(address=READER), target=target)
    peer.connection.data_received(peer.engine.bytes_to_send(now_ms=0))
    assert world.readers() == []  # before the peer has answered anything
    peer.run()
    assert peer.detach_error(link) is not None
    assert peer.receiver().is_attached


def test_links_that_come_and_go_in_one_read_leave_nothing_behind(world: World, peer: Peer) -> None:
    assert peer.session is not None
    for n in range(3):
        link = peer.session.new_link(f"hasty-{n}", LinkRole.RECEIVER)
        link.request(source=Source(address=READER), target=None)
        link.detach()
    peer.session.end()
    peer.run()
    assert world.readers() == []
    assert peer.connection.links.handlers == {}


def test_capture_s_own_group_is_there_for_managers_of_captured_hubs(world: World) -> None:
    address = READER.replace("$Default", "$Capture")
    manager = world.peer().authorised()
    assert refused(manager, address, LinkRole.RECEIVER)[0] == "amqp:not-found"
    world.change_hub(metadata={"captureRuns": [{"id": "r", "on_ms": 1, "starts": {}}]})
    link = manager.attach(address, LinkRole.RECEIVER)
    assert link.is_attached
    listener = world.peer().authorised(rule="listener")
    assert refused(listener, address, LinkRole.RECEIVER)[0] == "amqp:unauthorized-access"
    world.change_hub(metadata={"captureRuns": []})
    manager.run()
    assert manager.detach_error(link) is not None
