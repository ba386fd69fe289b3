"""Tokens that fail: their answers wait, good ones never do (protocol.md 2.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.amqp.link import Link
from penstock.amqp.message import Message, Properties, ValueBody, decode_message, encode_message
from penstock.amqp.performatives import SaslOutcome
from penstock.model import limits

if TYPE_CHECKING:
    from tests.unit.gateway.amqp.conftest import Peer, World

ROOT = "RootManageSharedAccessKey"
FREE = limits.BACKOFF_FREE_FAILURES


def put(
    world: World,
    peer: Peer,
    number: int,
    *,
    rule: str = ROOT,
    key: str | None = None,
    kind: str = "servicebus.windows.net:sastoken",
) -> None:
    """A token is put; nobody waits for the answer. The policy is root unless told."""
    sender, _ = peer.node("$cbs")
    message = Message(
        properties=Properties(message_id=str(number), reply_to="reply-here"),
        application_properties={
            "operation": "put-token",
            "type": kind,
            "name": "sb://contoso.example.net/",
        },
        body=ValueBody(world.token("", rule=rule, key=key)),
    )
    peer.publish(sender, encode_message(message), settled=True)


def ask(
    world: World, peer: Peer, number: int, *, key: str | None = None, token: str | None = None
) -> None:
    sender, _ = peer.node("$management")
    message = Message(
        properties=Properties(message_id=str(number), reply_to="reply-here"),
        application_properties={
            "operation": "READ",
            "type": "com.microsoft:eventhub",
            "name": "eh1",
            "security_token": token or world.token("eh1", key=key),
        },
    )
    peer.publish(sender, encode_message(message), settled=True)


def answered(peer: Peer, link: Link | None = None) -> list[tuple[str, int]]:
    """(message id, status) of the answers so far, in their order."""
    peer.run()
    answers = [decode_message(payload) for payload in peer.received(link or peer.node("$cbs")[1])]
    return [
        (
            str(answer.properties.correlation_id if answer.properties else None),
            int(str((answer.application_properties or {})["status-code"])),
        )
        for answer in answers
    ]


@pytest.fixture
def guesser(world: World) -> Peer:
    """Whoever tries keys; the first tries are behind it."""
    peer = world.peer().opened()
    for number in range(FREE):
        put(world, peer, number, key="guess")
        world.loop.advance(100)
    assert answered(peer) == [(str(number), 401) for number in range(FREE)]
    return peer


def new(peer: Peer) -> list[tuple[str, int]]:
    return answered(peer)[FREE:]


# --- waiting ------------------------------------------------------------------------------------


def test_bad_tokens_wait_and_a_good_one_is_answered_in_the_same_turn(
    world: World, guesser: Peer
) -> None:
    for number in (10, 11, 12):
        put(world, guesser, number, key="guess")
    put(world, guesser, 13)
    assert new(guesser) == [("13", 202)]
    assert world.context.guard.auth_delay.waiting == 3
    world.loop.advance(50)
    assert new(guesser) == [("13", 202), ("10", 401)]
    world.loop.advance(150)
    assert new(guesser) == [("13", 202), ("10", 401), ("11", 401), ("12", 401)]
    assert world.context.guard.auth_delay.waiting == 0


def test_token_type_that_is_not_supported_is_no_guess(world: World) -> None:
    """DefaultAzureCredential sends a JWT; its user is told at once, however often it tries."""
    peer = world.peer().opened()
    count = limits.FAILED_TOKENS_PER_CONNECTION_MAX + FREE
    for number in range(count):
        put(world, peer, number, kind="jwt")
        world.loop.advance(10)
    assert answered(peer) == [(str(number), 401) for number in range(count)]
    assert world.context.guard.auth_delay.waiting == 0
    for number in range(FREE):
        put(world, peer, count + number, key="guess")
    assert len(answered(peer)) == count + FREE  # nothing was counted before: all answered at once
    assert peer.close_error is None


def test_jwt_as_security_token_is_no_guess(world: World) -> None:
    peer = world.peer().opened()
    link = peer.node("$management")[1]
    for number in range(4 * FREE):
        ask(world, peer, number, token="aaa.bbb.ccc")
    assert answered(peer, link) == [(str(number), 401) for number in range(4 * FREE)]
    assert world.context.guard.auth_delay.waiting == 0


def test_wait_grows_to_a_few_seconds_and_no_further(world: World, guesser: Peer) -> None:
    for number in range(10, 17):
        put(world, guesser, number, key="guess")
        world.loop.advance(1)
    world.loop.advance(limits.BACKOFF_MS_MAX)
    for number in (20, 21):
        put(world, guesser, number, key="guess")
        before = len(answered(guesser))
        world.loop.advance(limits.BACKOFF_MS_MAX - 1)
        assert len(answered(guesser)) == before
        world.loop.advance(1)
        assert answered(guesser)[before:] == [(str(number), 401)]


def test_good_token_of_another_connection_from_the_same_address_never_waits(
    world: World, guesser: Peer
) -> None:
    for number in range(10, 40):
        put(world, guesser, number, key="guess")
        world.loop.advance(100)
    client = world.peer().opened()
    put(world, client, 1)
    assert answered(client) == [("1", 202)]
    put(world, client, 2, key="guess")  # but a bad one does, whoever puts it
    assert answered(client) == [("1", 202)]


def test_good_token_does_not_help_who_guesses(world: World, guesser: Peer) -> None:
    client = world.peer().authorised()
    put(world, guesser, 10, key="guess")
    put(world, client, 1)
    put(world, guesser, 11, key="guess")
    assert new(guesser) == []


def test_other_policies_are_answered_at_once(world: World, guesser: Peer) -> None:
    put(world, guesser, 10, rule="sender", key="guess")
    assert new(guesser) == [("10", 401)]


def test_security_tokens_wait_as_well(world: World) -> None:
    peer = world.peer().opened()
    for number in range(FREE + 1):
        ask(world, peer, number, key="guess")
        world.loop.advance(20)
    ask(world, peer, 9)
    link = peer.node("$management")[1]
    assert answered(peer, link) == [("0", 401), ("1", 401), ("2", 401), ("9", 200)]
    world.loop.advance(50)
    assert answered(peer, link)[-1] == ("3", 401)


def test_failures_at_one_node_count_at_the_other(world: World, guesser: Peer) -> None:
    ask(world, guesser, 10, key="guess")
    assert answered(guesser, guesser.node("$management")[1]) == []


# --- SASL PLAIN ---------------------------------------------------------------------------------


def plain(world: World, key: str) -> Peer:
    peer = world.peer()
    peer.mechanism, peer.response = "PLAIN", f"\0sender\0{key}".encode()
    peer.engine.start()
    peer.run()
    return peer


def test_outcome_of_a_bad_password_waits_and_a_good_one_passes(world: World) -> None:
    for _ in range(FREE):
        assert [each.code for each in plain(world, "guess").said(SaslOutcome)] == [1]
    late = plain(world, "guess")
    assert late.said(SaslOutcome) == []
    assert not late.socket.is_closed
    assert [each.code for each in plain(world, "sender-key").said(SaslOutcome)] == [0]
    world.loop.advance(50)
    late.run()
    assert [each.code for each in late.said(SaslOutcome)] == [1]
    assert late.socket.is_closed


def test_peer_that_leaves_before_its_outcome_leaves_nothing_behind(world: World) -> None:
    for _ in range(FREE):
        plain(world, "guess").lose()
    plain(world, "guess").lose()
    assert world.context.guard.auth_delay.waiting == 0
    world.loop.advance(10_000)


# --- bounds -------------------------------------------------------------------------------------


def test_so_many_tokens_fail_on_one_connection_and_then_it_ends(
    world: World, guesser: Peer
) -> None:
    for number in range(FREE, limits.FAILED_TOKENS_PER_CONNECTION_MAX - 1):
        put(world, guesser, number, key="guess")
        world.loop.advance(100)
    assert guesser.close_error is None
    put(world, guesser, 99, key="guess")
    guesser.run()
    assert guesser.close_error is not None
    assert guesser.close_error.condition == "amqp:resource-limit-exceeded"
    assert "64 tokens have failed" in str(guesser.close_error.description)
    assert world.context.guard.auth_delay.waiting == 0
    assert guesser.connection.links.reply_bytes == 0


def test_answers_that_wait_are_bounded_over_all_connections(world: World, guesser: Peer) -> None:
    world.context.guard.auth_delay.waiting_max = 2
    for number in (10, 11):
        put(world, guesser, number, key="guess")
    assert guesser.close_error is None
    client = world.peer().opened()
    put(world, client, 1)
    put(world, client, 2, key="guess")
    client.run()
    assert answered(client) == [("1", 202)]  # a good one is never refused
    assert client.close_error is not None
    assert "waiting" in str(client.close_error.description)
    assert world.context.guard.auth_delay.waiting == 2


def test_answers_that_wait_count_as_replies(world: World, guesser: Peer) -> None:
    for number in range(5):
        put(world, guesser, 10**9 + number, key="guess")
    assert guesser.connection.links.reply_bytes > 0
    guesser.node("$cbs")[1].detach()
    guesser.run()
    assert guesser.connection.links.reply_bytes == 0
    world.loop.advance(10_000)  # nobody is there to be answered
    assert world.context.guard.auth_delay.waiting == 0
    assert guesser.connection.links.reply_bytes == 0


def test_each_failure_is_written_down_without_the_token(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    peer = world.peer().opened()
    put(world, peer, 1, key="guess")
    put(world, peer, 2)
    (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
    text = record.getMessage()
    assert "policy=RootManageSharedAccessKey peer=192.0.2.1:50000 id=" in text
    assert 'text="InvalidSignature: ' in text
    assert "sig=" not in caplog.text


def test_requests_behind_the_one_that_ended_the_connection_are_not_judged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read may bring thousands."""
    monkeypatch.setattr(limits, "FAILED_TOKENS_PER_CONNECTION_MAX", 2)
    peer = world.peer().opened()
    sender, _ = peer.node("$cbs")
    message = Message(
        application_properties={"operation": "put-token", "name": "sb://contoso.example.net/"},
        body=ValueBody("nothing"),
    )
    for _ in range(50):
        sender.send(encode_message(message), settled=True)
    peer.run()
    assert peer.connection.links._failed_tokens == 2
