"""Links on which a client reads: within credit, window and socket, in order, without waiting."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from penstock.amqp.events import FlowReceived
from penstock.amqp.link import LinkRole
from penstock.amqp.message import decode_message
from penstock.amqp.performatives import Accepted, Detach, Disposition, Flow, Source, Transfer
from penstock.amqp.types import Long, Symbol, Timestamp
from penstock.model import limits
from penstock.model.entities import ConsumerGroup, HubStatus
from penstock.model.errors import LogCorrupt
from penstock.model.events import StoredBatch
from penstock.model.names import GroupName, HubName, NamespaceName

if TYPE_CHECKING:
    from tests.unit.gateway.amqp.conftest import Peer, World

READER = "eh1/ConsumerGroups/$Default/Partitions/0"
FIRST = "amqp.annotation.x-opt-sequence-number >= '0'"  # found by a read of the disk
METRICS = ["com.microsoft:enable-receiver-runtime-metric"]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


# --- credit -------------------------------------------------------------------------------------


def test_reader_without_credit_gets_nothing_and_reads_no_disk(world: World, peer: Peer) -> None:
    world.fill(numbers(3))
    world.loop.reads_held = True
    link = peer.receiver(start=FIRST)
    peer.grant(link, 0)
    assert peer.received(link) == []
    assert not world.loop.reads


def test_reader_gets_as_many_as_its_credit(world: World, peer: Peer) -> None:
    world.fill(numbers(10))
    link = peer.receiver(credit=4)
    assert peer.bodies(link) == numbers(4)
    peer.grant(link, 2)
    assert peer.bodies(link) == numbers(6)


def test_credit_of_all_32_bits_is_taken(world: World, peer: Peer) -> None:
    world.fill(numbers(300))
    link = peer.receiver(credit=2**32 - 1)
    assert peer.bodies(link) == numbers(300)


def test_credit_that_comes_with_the_attach_counts(world: World, peer: Peer) -> None:
    world.fill(numbers(3))
    assert peer.session is not None
    link = peer.session.new_link("hasty", LinkRole.RECEIVER)
    link.request(source=Source(address=READER), target=None)
    link.grant(2)
    peer.run()
    assert peer.bodies(link) == numbers(2)


def test_drain_at_the_end_uses_up_the_credit(world: World, peer: Peer) -> None:
    world.fill(numbers(3))
    link = peer.receiver()
    peer.grant(link, 10, drain=True)
    assert peer.bodies(link) == numbers(3)
    flow = peer.said(Flow)[-1]
    assert (flow.drain, flow.link_credit, flow.delivery_count) == (True, 0, 10)
    world.fill([b"late"])
    peer.run()
    assert peer.bodies(link) == numbers(3)


def test_drain_waits_for_the_disk_and_then_for_the_end(world: World, peer: Peer) -> None:
    world.fill(numbers(3))
    world.loop.reads_held = True
    link = peer.receiver(start=FIRST)
    before = len(peer.heard)
    peer.grant(link, 10, drain=True)
    assert peer.said(Flow, since=before) == []
    world.loop.reads_held = False
    peer.run()
    assert peer.bodies(link) == numbers(3)
    assert [flow.link_credit for flow in peer.said(Flow, since=before)] == [0]


def test_drain_with_too_little_credit_is_answered_once_it_is_used_up(
    world: World, peer: Peer
) -> None:
    world.fill(numbers(5))
    link = peer.receiver()
    peer.grant(link, 2, drain=True)
    assert peer.bodies(link) == numbers(2)
    assert (peer.said(Flow)[-1].drain, peer.said(Flow)[-1].delivery_count) == (True, 2)


def test_echo_is_answered(peer: Peer) -> None:
    link = peer.receiver()
    before = len(peer.events)
    link.grant(5, echo=True)
    peer.run()
    assert any(isinstance(event, FlowReceived) for event in peer.events[before:])


# --- live ---------------------------------------------------------------------------------------


def test_idle_reader_gets_an_event_in_the_turn_after_the_commit(world: World, peer: Peer) -> None:
    reader = world.peer().authorised()
    link = reader.receiver(0, credit=10)
    sender = peer.sender("eh1/Partitions/0")
    sender.send(world.event(b"now"), settled=False)
    peer.connection.data_received(peer.engine.bytes_to_send(now_ms=0))
    assert not reader.socket.sent
    assert world.loop.step()  # the commit
    assert not reader.socket.sent
    assert world.loop.step()
    assert reader.socket.sent
    reader.run()
    assert reader.bodies(link) == [b"now"]


def test_latest_is_the_end_when_the_link_attached_not_when_credit_came(
    world: World, peer: Peer
) -> None:
    world.fill([b"old"])
    link = peer.receiver(start="amqp.annotation.x-opt-offset > '@latest'")
    world.fill([b"between"])
    peer.grant(link, 10)
    assert peer.bodies(link) == [b"between"]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (None, [b"0", b"1", b"2"]),
        ("amqp.annotation.x-opt-offset > '-1'", [b"0", b"1", b"2"]),
        ("amqp.annotation.x-opt-sequence-number > 1", [b"2"]),
        ("amqp.annotation.x-opt-sequence-number >= '1'", [b"1", b"2"]),
        ("amqp.annotation.x-opt-enqueued-time > '1600000000000'", [b"0", b"1", b"2"]),
        ("amqp.annotation.x-opt-enqueued-time > '1900000000000'", []),
    ],
)
def test_reader_starts_where_its_filter_says(
    world: World, peer: Peer, start: str | None, expected: list[bytes]
) -> None:
    world.fill(numbers(3))
    assert peer.bodies(peer.receiver(start=start, credit=10)) == expected


def test_five_shared_readers_each_get_everything(world: World, peer: Peer) -> None:
    links = [peer.receiver(credit=10) for _ in range(5)]
    world.fill(numbers(3))
    peer.run()
    assert [peer.bodies(link) for link in links] == [numbers(3)] * 5


# --- window -------------------------------------------------------------------------------------


def test_delivery_stops_at_the_window_and_goes_on_when_it_opens(world: World) -> None:
    world.fill(numbers(20))
    peer = world.peer(incoming_window=8).authorised()
    link = peer.receiver()
    link.grant(100)
    peer.connection.data_received(peer.engine.bytes_to_send(now_ms=0))
    sent = len([each for each in peer.hear() if isinstance(each.body, Transfer)])
    assert 0 < sent <= 8
    seen = sum(isinstance(each.body, Transfer) for each in peer.heard)
    flow = Flow(
        next_incoming_id=1 + seen, incoming_window=8, next_outgoing_id=0, outgoing_window=100
    )
    assert len([each for each in peer.say(flow) if isinstance(each.body, Transfer)]) == 8


def test_window_frees_every_link_of_the_session_that_waits_for_it(world: World) -> None:
    world.fill(numbers(30), partition=0)
    world.fill(numbers(30), partition=1)
    peer = world.peer(incoming_window=10).authorised()
    links = [peer.receiver(0), peer.receiver(1)]
    for link in links:
        link.grant(100)
    peer.run()
    assert [peer.bodies(link) for link in links] == [numbers(30)] * 2


def test_event_larger_than_the_window_goes_in_pieces(world: World) -> None:
    """512-byte frames and a window of 3: a 5000-byte event needs a dozen frames."""
    bodies = [b"a" * 5000, b"b" * 10, b"c" * 5000]
    world.fill(bodies)
    peer = world.peer(max_frame_size=512, incoming_window=3).authorised()
    link = peer.receiver(credit=10)
    assert peer.bodies(link) == bodies
    assert len(peer.said(Transfer)) > 20


def test_half_sent_event_is_not_mixed_with_other_links_of_its_session(world: World) -> None:
    for partition in (0, 1):
        world.fill([b"%d" % partition * 4000] * 3, partition=partition)
    peer = world.peer(max_frame_size=512, incoming_window=4).authorised()
    links = [peer.receiver(0), peer.receiver(1)]
    cbs, _ = peer.node("$cbs")
    for link in links:
        link.grant(10)
    cbs.send(b"not a request", settled=True)  # its reply must wait as well
    peer.run()
    assert [len(peer.bodies(link)) for link in links] == [3, 3]
    half: int | None = None
    for transfer in peer.said(Transfer):
        assert half in (None, transfer.delivery_id)
        half = transfer.delivery_id if transfer.more else None


def test_link_that_ends_halfway_lets_the_others_go_on(world: World) -> None:
    world.fill([b"0" * 4000], partition=0)
    world.fill(numbers(3), partition=1)
    peer = world.peer(max_frame_size=512, incoming_window=4).authorised()
    first, second = peer.receiver(0), peer.receiver(1)
    first.grant(10)
    peer.connection.data_received(peer.engine.bytes_to_send(now_ms=0))  # four frames of nine
    first.detach()
    second.grant(10)
    peer.run()
    assert peer.bodies(second) == numbers(3)


# --- the socket ---------------------------------------------------------------------------------


def test_slow_socket_stops_delivery_until_it_drains(world: World, peer: Peer) -> None:
    world.fill(numbers(10))
    link = peer.receiver()
    peer.connection.pause_writing()
    link.grant(5)
    peer.connection.data_received(peer.engine.bytes_to_send(now_ms=0))
    world.loop.settle()
    assert not peer.socket.sent
    peer.connection.resume_writing()
    peer.run()
    assert peer.bodies(link) == numbers(5)


def test_slow_socket_holds_back_live_events_too(world: World, peer: Peer) -> None:
    link = peer.receiver(credit=10)
    peer.connection.pause_writing()
    world.fill(numbers(3))
    assert not peer.socket.sent
    peer.connection.resume_writing()
    peer.run()
    assert peer.bodies(link) == numbers(3)


# --- the disk -----------------------------------------------------------------------------------


def test_start_beyond_the_end_detaches_after_the_attach_with_the_recorded_text(
    world: World, peer: Peer
) -> None:
    """Where the answer is a read away, the link is there first (protocol.md 13)."""
    for start, what in (
        ("amqp.annotation.x-opt-sequence-number >= '0'", "sequence number"),
        ("amqp.annotation.x-opt-offset >= '0'", "offset"),
    ):
        link = peer.receiver(start=start)
        peer.grant(link, 1)
        error = peer.detach_error(link)
        assert error is not None
        assert error.condition == "com.microsoft:argument-error"
        assert str(error.description).startswith(
            f"The supplied {what} '0' is invalid. The last {what} in the system is '-1' TrackingId:"
        )
        assert "SystemTracker:contoso:eventhub:eh1~16383|$default, " in str(error.description)
    assert world.readers() == []


def test_damaged_log_ends_the_reader_and_not_the_connection(
    world: World, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.fill(numbers(1))

    def read(sequence: int, *, bytes_max: int) -> list[StoredBatch]:
        raise LogCorrupt("A checksum does not fit.")

    monkeypatch.setattr(world.logs.partition("id-of-eh1", 0), "read", read)
    link = peer.receiver(start=FIRST, credit=1)
    error = peer.detach_error(link)
    assert error is not None
    assert error.condition == "amqp:internal-error"
    assert peer.receiver(1).is_attached


def test_unforeseen_fault_of_a_read_is_told_without_its_inside(
    world: World, peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.fill(numbers(1))

    def read(sequence: int, *, bytes_max: int) -> list[StoredBatch]:
        raise ZeroDivisionError("/secret/path")

    monkeypatch.setattr(world.logs.partition("id-of-eh1", 0), "read", read)
    error = peer.detach_error(peer.receiver(start=FIRST, credit=1))
    assert error is not None
    assert str(error.description).startswith("The service could not read the partition. Tracking")
    assert "ZeroDivisionError" in caplog.text


def test_stored_bytes_that_cannot_be_framed_end_the_reader(
    world: World, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    world.fill(numbers(1))
    log = world.logs.partition("id-of-eh1", 0)
    log._batches[0] = StoredBatch(0, 0, 1, 1, b"\x00\x53\x75\xa0\xff")
    error = peer.detach_error(peer.receiver(credit=1))
    assert error is not None
    assert error.condition == "amqp:internal-error"
    assert "delivery failed entity=contoso:eventhub:eh1" in caplog.text


def test_events_before_those_that_cannot_be_framed_are_delivered(world: World, peer: Peer) -> None:
    for number in range(3):
        world.fill([b"%d" % number])
    log = world.logs.partition("id-of-eh1", 0)
    log._batches[2] = StoredBatch(2, 2000, 1, 1, b"\x00\x53\x75\xa0\xff")
    link = peer.receiver(credit=9)
    assert peer.bodies(link) == [b"0", b"1"]
    assert peer.detach_error(link) is not None


@pytest.mark.parametrize("how", ["detach", "lose", "end", "close"])
def test_reader_closed_while_its_read_is_under_way_leaves_nothing_behind(
    world: World, peer: Peer, how: str
) -> None:
    """Also when that read fails: asyncio must have nothing to complain about."""
    world.loop.reads_held = True
    link = peer.receiver(start=FIRST, credit=1)
    assert len(world.loop.reads) == 1
    if how == "detach":
        link.detach()
    elif how == "end":
        assert peer.session is not None
        peer.session.end()
    elif how == "close":
        peer.engine.close()
    peer.run() if how != "lose" else peer.lose()
    assert world.readers() == []
    world.loop.reads_held = False
    world.loop.settle()
    assert world.loop.complaints == []
    assert not any(isinstance(sent.body, Detach) and sent.body.error for sent in peer.hear())


def test_one_read_at_a_time_whatever_flows_come(world: World, peer: Peer) -> None:
    world.fill(numbers(5))
    world.loop.reads_held = True
    link = peer.receiver(start=FIRST)
    for credit in range(1, 20):
        peer.grant(link, credit)
    assert len(world.loop.reads) == 1


# --- what an event carries ----------------------------------------------------------------------


def test_delivered_event_has_the_services_annotations_and_is_settled(
    world: World, peer: Peer
) -> None:
    world.fill(numbers(2))
    link = peer.receiver(credit=2)
    transfer = [each for each in peer.said(Transfer) if each.handle == link.remote_handle][-1]
    assert (transfer.settled, transfer.delivery_tag, transfer.message_format) == (True, b"", 0)
    message = decode_message(peer.received(link)[1])
    assert message.delivery_annotations is None
    annotations = message.message_annotations
    assert annotations is not None
    assert list(annotations) == [
        "x-opt-sequence-number-epoch",
        "x-opt-sequence-number",
        "x-opt-offset",
        "x-opt-enqueued-time",
    ]
    assert annotations["x-opt-sequence-number"] == 1
    assert isinstance(annotations["x-opt-offset"], str)
    assert isinstance(annotations["x-opt-enqueued-time"], Timestamp)


def test_runtime_metrics_come_as_four_keys_of_their_types(world: World, peer: Peer) -> None:
    world.fill(numbers(3))
    link = peer.receiver(credit=1, desired_capabilities=METRICS)
    metrics = decode_message(peer.received(link)[0]).delivery_annotations
    assert metrics is not None
    assert {str(key): type(value).__name__ for key, value in metrics.items()} == {
        "last_enqueued_sequence_number": "Long",
        "last_enqueued_offset": "str",
        "last_enqueued_time_utc": "Timestamp",
        "runtime_info_retrieval_time_utc": "Timestamp",
    }
    assert metrics[Symbol("last_enqueued_sequence_number")] == 2


def test_delivery_ids_have_no_gap_over_the_links_of_a_session(world: World, peer: Peer) -> None:
    for partition in (0, 1):
        world.fill(numbers(5), partition=partition)
    for link in (peer.receiver(0), peer.receiver(1), peer.receiver(0)):
        peer.grant(link, 3)
    ids = [transfer.delivery_id for transfer in peer.said(Transfer)]
    assert ids == list(range(len(ids)))  # E9


def test_unsettled_disposition_of_a_reader_is_answered_without_walking_its_range(
    peer: Peer,
) -> None:
    peer.receiver(rcv_settle_mode=1)
    before = len(peer.heard)
    peer.say(Disposition(role=True, first=0, last=2**32 - 1, settled=False, state=Accepted()))
    (answer,) = peer.said(Disposition, since=before)
    assert (answer.role, answer.first, answer.last, answer.settled) == (False, 0, 2**32 - 1, True)
    peer.say(Disposition(role=True, first=0, last=2**32 - 1, settled=True, state=Accepted()))
    assert len(peer.said(Disposition, since=before)) == 1


# --- the link's life ----------------------------------------------------------------------------


def test_hub_disabled_for_receiving_ends_its_readers(world: World, peer: Peer) -> None:
    link = peer.receiver(credit=1)
    world.change_hub(status=HubStatus.RECEIVE_DISABLED)
    peer.run()
    error = peer.detach_error(link)
    assert error is not None
    assert error.condition == "com.microsoft:entity-disabled"


def test_group_that_is_deleted_ends_its_readers(world: World, peer: Peer) -> None:
    group = ConsumerGroup(
        namespace=NamespaceName("contoso"),
        hub=HubName("eh1"),
        name=GroupName("g1"),
        created_ms=1,
        updated_ms=1,
    )
    world.catalog.put_group(group)
    link, other = peer.receiver(group="g1"), peer.receiver()
    world.catalog.delete_group("contoso", "eh1", "g1")
    peer.run()
    error = peer.detach_error(link)
    assert error is not None
    assert error.condition == "amqp:not-found"
    assert other.is_attached


def test_stolen_reader_gets_nothing_after_its_detach(world: World, peer: Peer) -> None:
    epoch = {Symbol("com.microsoft:epoch"): Long(0)}
    old = peer.receiver(credit=100, properties=epoch)
    thief = world.peer().authorised().receiver(properties=epoch)
    world.fill(numbers(3))
    peer.run()
    assert thief.is_attached
    assert peer.received(old) == []


def test_reader_that_stalls_gives_its_memory_back_and_goes_on_later(
    world: World, peer: Peer
) -> None:
    world.fill(numbers(50))
    link = peer.receiver(start=FIRST, credit=3)
    app = next(app for app in peer.connection.links.handlers.values() if hasattr(app, "reader"))
    assert app.reader is not None
    assert app.reader.remaining or app.reader._ahead
    world.loop.advance(60_000)
    assert not app.reader.remaining
    assert not app.reader._ahead
    peer.grant(link, 100)
    assert peer.bodies(link) == numbers(50)


def test_large_backlog_yields_after_a_turns_worth(world: World, peer: Peer) -> None:
    """256 KB, then the loop: other connections get their turn in between."""
    world.fill([b"x" * 10_000] * 100)
    link = peer.receiver()
    link.grant(1000)
    peer.connection.data_received(peer.engine.bytes_to_send(now_ms=0))
    turns = [len(peer.socket.sent)]
    while world.loop.step():
        turns.append(len(peer.socket.sent) - sum(turns))
    busy = [size for size in turns if size]
    assert len(busy) >= 4
    assert max(busy) <= 256 * limits.KB + 11_000
    peer.run()
    assert len(peer.received(link)) == 100


def test_links_of_one_connection_take_turns(world: World, peer: Peer) -> None:
    for partition in (0, 1):
        world.fill([b"x" * 10_000] * 60, partition=partition)
    links = [peer.receiver(0), peer.receiver(1)]
    for link in links:
        link.grant(1000)
    peer.run()
    handles = [
        t.handle for t in peer.said(Transfer) if t.handle in {x.remote_handle for x in links}
    ]
    changes = sum(a != b for a, b in pairwise(handles))
    assert changes >= 4
