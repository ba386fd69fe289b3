"""What one peer may cost: memory is bounded, turns are bounded, and a bug costs one connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from penstock.amqp.frames import encode_frame
from penstock.amqp.link import Link, LinkRole
from penstock.amqp.message import Message, Properties, encode_message
from penstock.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    End,
    Flow,
    Source,
    Target,
    Transfer,
    encode_performative,
)
from penstock.amqp.types import Long, Symbol
from penstock.gateway.amqp import read_link
from penstock.model import limits
from penstock.model.entities import Right

if TYPE_CHECKING:
    from tests.unit.gateway.amqp.conftest import Peer, World

READER = "eh1/ConsumerGroups/$Default/Partitions/0"
BEGIN = Begin(next_outgoing_id=0, incoming_window=1000, outgoing_window=1000)


def boom(*args: object, **fields: object) -> NoReturn:
    raise ZeroDivisionError("a bug")


def speak(peer: Peer) -> None:
    """What the peer has to say reaches the gateway; nothing is committed yet."""
    peer.connection.data_received(peer.engine.bytes_to_send(now_ms=0))


# --- unfinished deliveries ----------------------------------------------------------------------


def unfinished(peer: Peer, size: int) -> Link:
    """A link with the first frame of a delivery that never ends."""
    link = peer.sender("eh1")
    piece = Transfer(handle=link.handle, delivery_id=0, delivery_tag=b"1", more=True)
    peer.say(encode_frame(0, encode_performative(piece), bytes(size)))
    return link


def test_unfinished_deliveries_of_all_connections_are_bounded(world: World) -> None:
    """The connection that holds the most is closed; one Send-only token held 529 MB with 30
    connections before (docs/explanation/security.md)."""
    unfinished_bytes = world.context.unfinished
    unfinished_bytes.limit = 100_000
    small, large = world.peer().authorised(), world.peer().authorised()
    unfinished(small, 30_000)
    unfinished(large, 60_000)
    assert unfinished_bytes.total == 90_000
    last = world.peer().authorised()
    link = unfinished(last, 20_000)
    assert unfinished_bytes.total == 50_000
    large.run()
    error = large.close_error
    assert error is not None
    assert error.condition == "amqp:resource-limit-exceeded"
    assert "60000 of them on this connection" in str(error.description)
    assert small.close_error is None
    last.say(
        encode_frame(0, encode_performative(Transfer(handle=link.handle, more=False)), b"\x00")
    )
    assert unfinished_bytes.total == 30_000
    small.lose()
    assert unfinished_bytes.total == 0


def test_deliveries_of_a_connection_that_is_over_keep_no_memory(world: World) -> None:
    """Not even until the garbage collector comes: 60 connections held 430 MB of allowed 256."""
    closed, lost = world.peer().authorised(), world.peer().authorised()
    unfinished(lost, 40_000)
    lost.lose()
    assert lost.connection.engine.held_bytes == 0
    world.context.unfinished.limit = 10_000
    unfinished(closed, 40_000)
    assert closed.connection.engine.held_bytes == 0


# --- reading pauses -----------------------------------------------------------------------------


def test_reading_pauses_while_too_much_waits_for_the_disk(
    world: World, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "UNSETTLED_BYTES_PER_CONNECTION_MAX", 5000)
    link = peer.sender("eh1/Partitions/0")
    for _ in range(4):
        link.send(world.event(b"x" * 1000), settled=False)
        speak(peer)
    assert peer.socket.is_reading
    link.send(world.event(b"x" * 1000), settled=False)
    speak(peer)
    assert not peer.socket.is_reading
    world.loop.settle()
    assert peer.socket.is_reading
    peer.run()
    assert len(world.stored(0)) == 5


def test_settled_publications_are_held_back_as_well(
    world: World, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "UNSETTLED_BYTES_PER_CONNECTION_MAX", 500)
    link = peer.sender("eh1/Partitions/0")
    link.send(world.event(b"x" * 1000), settled=True)
    speak(peer)
    assert not peer.socket.is_reading


def test_all_connections_together_are_bounded(world: World, peer: Peer) -> None:
    world.context.pending_bytes.limit = 3000
    other = world.peer().authorised()
    links = [each.sender("eh1/Partitions/0") for each in (peer, other)]
    for each, link in zip((peer, other), links, strict=True):
        link.send(world.event(b"x" * 2000), settled=False)
        speak(each)
    assert peer.socket.is_reading
    assert not other.socket.is_reading
    world.loop.settle()
    assert other.socket.is_reading
    assert world.context.pending_bytes.total == 0
    assert world.context.pending_bytes.nothing.is_set()


def test_peer_that_does_not_read_our_answers_is_not_read_either(world: World, peer: Peer) -> None:
    peer.connection.pause_writing()
    assert not peer.socket.is_reading
    peer.connection.resume_writing()
    assert peer.socket.is_reading


def test_reading_goes_on_only_when_every_reason_is_gone(
    world: World, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "UNSETTLED_BYTES_PER_CONNECTION_MAX", 500)
    link = peer.sender("eh1/Partitions/0")
    link.send(world.event(b"x" * 1000), settled=False)
    speak(peer)
    peer.connection.pause_writing()
    world.loop.settle()
    assert not peer.socket.is_reading
    peer.connection.resume_writing()
    assert peer.socket.is_reading


def test_our_close_lets_the_peers_own_be_read_whatever_stood_in_the_way(
    world: World, peer: Peer
) -> None:
    peer.connection.pause_writing()
    peer.connection.shut_down()
    assert peer.socket.is_reading


# --- one turn's worth ---------------------------------------------------------------------------


def credit(handle: int, amount: int) -> Flow:
    return Flow(
        next_incoming_id=1,
        incoming_window=2**31,
        next_outgoing_id=0,
        outgoing_window=100,
        handle=handle,
        delivery_count=0,
        link_credit=amount,
    )


def test_flood_of_flows_in_one_read_brings_one_turns_worth(world: World, peer: Peer) -> None:
    world.fill([b"x" * 10_000] * 120)
    link = peer.receiver(0)
    frames = [credit(link.handle, 2**32 - 1 - n) for n in range(500)]
    peer.connection.data_received(
        b"".join(encode_frame(0, encode_performative(each)) for each in frames)
    )
    assert 0 < len(peer.socket.sent) <= 256 * limits.KB + 11_000


def test_many_links_share_one_turns_worth(world: World, peer: Peer) -> None:
    world.fill([b"x" * 10_000] * 30)
    for _ in range(limits.SHARED_READERS_MAX):
        peer.receiver(0).grant(100)
    speak(peer)
    assert 0 < len(peer.socket.sent) <= 256 * limits.KB + 11_000


def test_socket_that_is_full_after_the_first_turn_gets_no_second(world: World, peer: Peer) -> None:
    world.fill([b"x" * 10_000] * 120)
    peer.receiver(0).grant(1000)
    speak(peer)
    sent = len(peer.socket.sent)
    peer.connection.pause_writing()
    world.loop.settle()
    assert len(peer.socket.sent) == sent


# --- nothing piles up ---------------------------------------------------------------------------


def request(message_id: Any = "1") -> bytes:
    return encode_message(Message(properties=Properties(message_id=message_id)))


def test_replies_that_nobody_takes_end_the_connection(world: World) -> None:
    peer = world.peer().opened()
    peer.attach("$cbs", LinkRole.RECEIVER)  # and no credit
    sender = peer.attach("$cbs", LinkRole.SENDER)
    for _ in range(100):
        peer.publish(sender, request())
        world.loop.advance(10)  # asked at a pace that nobody minds
    assert peer.close_error is None
    peer.publish(sender, request())
    assert peer.close_error is not None
    assert peer.close_error.condition == "amqp:resource-limit-exceeded"
    assert "100 replies wait" in str(peer.close_error.description)
    assert peer.connection.links.reply_bytes == 0


def test_replies_are_bounded_in_bytes_over_all_links(world: World) -> None:
    """Each echoes an id of the peer's choosing, and there may be many links."""
    peer = world.peer().opened()
    sessions = [peer.engine.begin() for _ in range(3)]
    peer.run()
    for session in sessions:
        peer.attach("$cbs", LinkRole.RECEIVER, session=session)
        sender = peer.attach("$cbs", LinkRole.SENDER, session=session)
        for _ in range(10):
            if peer.close_error is None:
                peer.publish(sender, request(b"i" * 50_000))
                assert peer.connection.links.reply_bytes <= limits.MB
    assert peer.close_error is not None
    assert peer.close_error.condition == "amqp:resource-limit-exceeded"


def test_reply_link_that_goes_gives_its_bytes_back(world: World) -> None:
    peer = world.peer().opened()
    receiver = peer.attach("$cbs", LinkRole.RECEIVER)
    peer.publish(peer.attach("$cbs", LinkRole.SENDER), request())
    assert peer.connection.links.reply_bytes > 0
    receiver.detach()
    peer.run()
    assert peer.connection.links.reply_bytes == 0


def test_links_and_sessions_that_come_and_go_leave_nothing_behind(world: World, peer: Peer) -> None:
    world.fill([b"x"] * 5)
    for n in range(50):
        session = peer.engine.begin()
        peer.run()
        reader = peer.attach(READER, LinkRole.RECEIVER, session=session)
        reader.grant(3)
        sender = peer.attach("eh1", LinkRole.SENDER, session=session)
        sender.send(world.event(), settled=False)
        if n % 2:
            reader.detach()
            sender.detach()
        session.end()
        peer.run()
        world.loop.advance(50)  # at a pace that nobody minds
    connection = peer.connection
    assert len(connection.links.handlers) == 2  # the $cbs pair
    assert not connection.links.scheduler
    assert not connection.links.scheduler._sessions
    assert not connection.links._dirty
    assert world.readers() == []


def test_refused_attaches_leave_nothing_behind(peer: Peer) -> None:
    for n in range(300):
        attach = Attach(
            name=f"n{n}",
            handle=200,
            role=False,
            source=Source(),
            target=Target(address="nothing"),
            initial_delivery_count=0,
        )
        heard = peer.say(attach, Detach(handle=200, closed=True))
        peer.world.loop.advance(20)  # asked at a pace that nobody minds
        assert [type(sent.body) for sent in heard] == [Attach, Detach]
    assert len(peer.connection.links.handlers) == 2
    assert peer.connection.engine.allowance.link_count == 2


def test_more_sessions_than_allowed_close_the_connection(peer: Peer) -> None:
    heard = []
    for channel in range(1, limits.SESSIONS_PER_CONNECTION_MAX + 1):
        heard = peer.say(BEGIN, channel=channel)
    assert type(heard[-1].body) is Close
    assert peer.connection.links.handlers == {}


def test_attach_on_a_session_that_ended_in_the_same_read_is_undone(
    world: World, peer: Peer
) -> None:
    attach = Attach(name="late", handle=9, role=True, source=Source(address=READER))
    peer.say(attach, credit(9, 5), End())
    assert world.readers() == []
    assert peer.connection.links.handlers == {}


# --- a bug costs one connection -----------------------------------------------------------------


def crashed(world: World, peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    """The peer hears so, its places are free, the log has the reason, others go on."""
    peer.run()
    assert peer.close_error is not None
    assert peer.close_error.condition == "amqp:internal-error"
    text = str(peer.close_error.description)
    assert text.startswith("The service met an internal error; the operator finds it by the")
    assert peer.connection.id in text
    assert "ZeroDivisionError" in caplog.text
    assert peer.connection.id in caplog.text
    assert peer.connection.links.handlers == {}
    assert world.context.pending_bytes.total == 0
    peer.lose()
    assert world.readers() == []
    other = world.peer().authorised()
    assert other.receiver(0).is_attached
    other.publish(other.sender("eh1"), world.event())


def app_of(peer: Peer, link: Link) -> Any:
    handlers = peer.connection.links.handlers.items()
    return next(handler for each, handler in handlers if each.name == link.name)


def test_bug_while_publishing(
    world: World, peer: Peer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = peer.sender("eh1/Partitions/0")
    with monkeypatch.context() as patch:
        patch.setattr(world.broker.hub("contoso", "eh1"), "publish", boom)
        peer.publish(link, world.event())
    crashed(world, peer, caplog)


def test_bug_while_answering_a_request(
    world: World, peer: Peer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, _ = peer.node("$cbs")
    monkeypatch.setattr(app_of(peer, sender), "answer", boom)
    peer.publish(sender, request())
    crashed(world, peer, caplog)


def test_bug_while_attaching_frees_the_place_that_was_taken(
    world: World, peer: Peer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Link, "accept", boom)
        peer.attach(READER, LinkRole.RECEIVER)
    crashed(world, peer, caplog)


def test_bug_while_delivering_what_another_connection_published(
    world: World, peer: Peer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer.receiver(0, credit=5)
    other = world.peer().authorised()
    link = other.sender("eh1/Partitions/0")
    with monkeypatch.context() as patch:
        patch.setattr(read_link, "frame_run", boom)
        other.publish(link, world.event(b"fine"))
    assert other.outcomes()[-1].last is not None
    assert world.stored(0) == [b"fine"]
    crashed(world, peer, caplog)


def test_bug_while_a_read_comes_back(
    world: World, peer: Peer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.fill([b"x"])
    world.loop.reads_held = True
    link = peer.receiver(0, start="amqp.annotation.x-opt-sequence-number >= '0'", credit=1)
    app = app_of(peer, link)
    monkeypatch.setattr(type(app.reader), "accept_fetch", boom)
    world.loop.reads_held = False
    crashed(world, peer, caplog)


def test_bug_in_a_timer(
    world: World, peer: Peer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = peer.receiver(0)
    monkeypatch.setattr(app_of(peer, link), "release_memory", boom)
    world.loop.advance(20_000)
    crashed(world, peer, caplog)


def test_bug_while_policies_are_judged_again(
    world: World, peer: Peer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = world.peer().authorised()
    monkeypatch.setattr(peer.connection.links.grants, "renew", boom)
    world.put_rule("another", Right.SEND, "another-key-of-no-one")
    assert other.sender("eh1").is_attached
    crashed(world, peer, caplog)


def test_bug_in_the_loser_does_not_keep_the_winner_out(
    world: World, peer: Peer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = {Symbol("com.microsoft:epoch"): Long(0)}
    peer.receiver(0, properties=epoch)
    monkeypatch.setattr(peer.connection.links, "detach", boom)
    winner = world.peer().authorised()
    link = winner.receiver(0, properties=epoch, credit=1)
    winner.lose()
    assert link.name
    crashed(world, peer, caplog)


def test_bug_while_one_link_is_closed_keeps_no_other_place_taken(
    world: World, peer: Peer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = [peer.receiver(partition) for partition in (0, 1)]
    monkeypatch.setattr(app_of(peer, links[0]), "close", boom)
    peer.lose()
    assert [view.partition for view in world.readers()] == [0]  # the broken one's
    assert "closing a link failed" in caplog.text
    assert world.door.connections == set()


def test_bug_while_closing_after_a_bug_cuts_the_socket(
    world: World, peer: Peer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, _ = peer.node("$cbs")
    monkeypatch.setattr(app_of(peer, sender), "answer", boom)
    monkeypatch.setattr(type(peer.connection.links), "wire_error", boom)
    sender.send(request(), settled=False)
    speak(peer)
    assert peer.socket.is_aborted
    assert "closing failed too" in caplog.text
