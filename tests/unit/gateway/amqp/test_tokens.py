"""Tokens while links live: renewal, expiry, rotated and deleted policies, SASL PLAIN."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.amqp.link import Link, LinkRole
from penstock.amqp.performatives import Detach, SaslOutcome
from penstock.model import limits
from penstock.model.entities import Right

if TYPE_CHECKING:
    from tests.unit.gateway.amqp.conftest import Peer, World

READER = "eh1/ConsumerGroups/$Default/Partitions/0"
MINUTE_MS = 60_000
GRACE_MS = 1000 * limits.EXPIRY_GRACE_S


def condition(peer: Peer, link: Link) -> str | None:
    peer.run()
    error = peer.detach_error(link)
    return None if error is None else error.condition


def live(peer: Peer, milliseconds: int) -> None:
    """Time passes, with a heartbeat of the peer's every minute."""
    while milliseconds > 0:
        step = min(milliseconds, MINUTE_MS)
        peer.connection.data_received(bytes.fromhex("0000000802000000"))
        peer.world.loop.advance(step)
        milliseconds -= step


# --- expiry -------------------------------------------------------------------------------------


def test_link_ends_after_the_grace_period_and_says_why(world: World) -> None:
    peer = world.peer().authorised(audience="eh1", lasts_s=600)
    link = peer.sender("eh1")
    live(peer, 10 * MINUTE_MS + GRACE_MS - 1)
    assert condition(peer, link) is None
    world.loop.advance(1)
    assert condition(peer, link) == "amqp:unauthorized-access"
    error = peer.detach_error(link)
    assert error is not None
    assert str(error.description).startswith(
        "Unauthorized access. 'Send' claim(s) are required to perform this operation. Resource: "
        "'sb://contoso.example.net/eh1'. TrackingId:"
    )
    assert peer.said(Detach)[-1].closed


@pytest.mark.parametrize("grace_s", [0, 600])
def test_grace_period_can_be_set(world: World, grace_s: int) -> None:
    world.context.expiry_grace_ms = 1000 * grace_s
    peer = world.peer().authorised(audience="eh1", lasts_s=60)
    link = peer.sender("eh1")
    live(peer, 60_000 + 1000 * grace_s - 1)
    assert condition(peer, link) is None
    world.loop.advance(1)
    assert condition(peer, link) == "amqp:unauthorized-access"


def test_token_renewed_within_the_grace_period_keeps_the_link(world: World) -> None:
    """Microsoft.Azure.EventHubs renews ten seconds after the expiry."""
    peer = world.peer().authorised(audience="eh1", lasts_s=60)
    sender, reader = peer.sender("eh1/Partitions/0"), peer.receiver(0, credit=10)
    for _ in range(3):
        live(peer, 70_000)
        assert peer.put_token("eh1", lasts_s=60).status == 202
        peer.publish(sender, world.event(b"x"))
    assert peer.bodies(reader) == [b"x"] * 3
    assert (condition(peer, sender), condition(peer, reader)) == (None, None)


def test_expired_token_opens_nothing_new_within_the_grace_period(world: World) -> None:
    peer = world.peer().authorised(audience="eh1", lasts_s=60)
    link = peer.sender("eh1")
    world.loop.advance(MINUTE_MS)
    assert peer.refusal("eh1", LinkRole.SENDER).condition == "amqp:unauthorized-access"
    assert peer.refusal(READER, LinkRole.RECEIVER).condition == "amqp:unauthorized-access"
    asked = {"operation": "READ", "type": "com.microsoft:eventhub", "name": "eh1"}
    assert peer.request("$management", asked).status == 401
    assert condition(peer, link) is None


@pytest.mark.parametrize("is_rotated", [False, True])
def test_policies_that_change_within_the_grace_period(world: World, is_rotated: bool) -> None:
    """Another policy's change ends nothing early; the rotated key ends its links at once."""
    peer = world.peer().authorised(audience="eh1", lasts_s=60, rule="sender")
    link = peer.sender("eh1")
    world.loop.advance(MINUTE_MS + 1)
    if is_rotated:
        world.put_rule("sender", Right.SEND, "another-key")
    else:
        world.put_rule("listener", Right.LISTEN, "another-key")
    assert condition(peer, link) == ("amqp:unauthorized-access" if is_rotated else None)


def test_expiry_ends_exactly_the_links_it_covers(world: World) -> None:
    peer = world.peer().opened()
    peer.put_token("eh1/partitions/0", lasts_s=60)
    peer.put_token("eh1/partitions/1", lasts_s=600)
    peer.put_token("eh1/consumergroups/$default", lasts_s=120)
    short = peer.sender("eh1/Partitions/0")
    long = peer.sender("eh1/Partitions/1")
    reader = peer.receiver(0, credit=1)
    world.loop.advance(MINUTE_MS + GRACE_MS)
    assert condition(peer, short) == "amqp:unauthorized-access"
    assert (condition(peer, long), condition(peer, reader)) == (None, None)
    world.loop.advance(MINUTE_MS)
    assert condition(peer, reader) == "amqp:unauthorized-access"
    assert condition(peer, long) is None
    assert peer.put_token("eh1").status == 202  # $cbs itself lives by no token


def test_expired_reader_gets_nothing_any_more_and_frees_its_place(world: World) -> None:
    peer = world.peer().authorised(audience="eh1", lasts_s=60)
    link = peer.receiver(0, credit=100)
    world.loop.advance(MINUTE_MS + GRACE_MS)
    assert world.readers() == []
    world.fill([b"secret"])
    peer.run()
    assert peer.received(link) == []


def test_renewal_replaces_the_token_and_the_link_lives_on(world: World) -> None:
    peer = world.peer().authorised(audience="eh1", lasts_s=600)
    link = peer.sender("eh1")
    for _ in range(5):
        live(peer, 9 * MINUTE_MS)
        assert peer.put_token("eh1", lasts_s=600).status == 202
    peer.publish(link, world.event(b"late"))
    assert world.stored(0) + world.stored(1) == [b"late"]
    live(peer, 10 * MINUTE_MS + GRACE_MS)
    assert condition(peer, link) == "amqp:unauthorized-access"


def test_failed_renewal_leaves_the_old_token_as_it_was(world: World) -> None:
    peer = world.peer().authorised(audience="eh1", lasts_s=600)
    link = peer.sender("eh1")
    assert peer.put_token("eh1", key="wrong").status == 401
    assert condition(peer, link) is None
    live(peer, 10 * MINUTE_MS + GRACE_MS)
    assert condition(peer, link) == "amqp:unauthorized-access"


def test_link_moves_to_another_token_that_covers_it(world: World) -> None:
    peer = world.peer().authorised(audience="eh1/partitions/0", lasts_s=60)
    link = peer.sender("eh1/Partitions/0")
    peer.put_token("eh1", lasts_s=600)
    world.loop.advance(2 * MINUTE_MS)
    assert condition(peer, link) is None
    live(peer, 10 * MINUTE_MS + GRACE_MS)
    assert condition(peer, link) == "amqp:unauthorized-access"


def test_expired_token_attaches_nothing(world: World) -> None:
    peer = world.peer().authorised(audience="eh1", lasts_s=60)
    world.loop.advance(MINUTE_MS)
    assert peer.refusal("eh1", LinkRole.SENDER).condition == "amqp:unauthorized-access"


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000])
def test_wall_clock_that_is_set_is_noticed_in_time(world: World, jump_ms: int) -> None:
    """Expiry is by the wall clock: half a minute after it was set at the latest (H.2)."""
    peer = world.peer().authorised(audience="eh1", lasts_s=1800)
    link = peer.sender("eh1")
    world.clock.jump(jump_ms)
    world.loop.advance(30_000)
    assert (condition(peer, link) is not None) == (jump_ms > 0)


# --- policies that change -----------------------------------------------------------------------


def test_rotated_key_ends_the_links_that_lived_by_it(world: World) -> None:
    sender = world.peer().authorised(rule="sender")
    root = world.peer().authorised()
    cut, kept = sender.sender("eh1"), root.sender("eh1")
    world.put_rule("sender", Right.SEND, "another-key")
    assert condition(sender, cut) == "amqp:unauthorized-access"
    assert condition(root, kept) is None
    assert sender.put_token("eh1", rule="sender").status == 401
    assert sender.put_token("eh1", rule="sender", key="another-key").status == 202
    assert sender.sender("eh1").is_attached


def test_other_key_of_a_rule_is_not_cut_off(world: World) -> None:
    peer = world.peer().authorised(rule="sender", key="sender-key-2")
    link = peer.sender("eh1")
    rule = world.catalog.rule("contoso", None, "sender")
    assert rule is not None
    world.put_rule("listener", Right.LISTEN, "whatever")  # some other change
    assert condition(peer, link) is None


def test_deleted_policy_ends_its_links(world: World) -> None:
    peer = world.peer().authorised(rule="listener")
    link = peer.receiver(0, credit=5)
    world.catalog.delete_rule("contoso", None, "listener")
    assert condition(peer, link) == "amqp:unauthorized-access"
    assert world.readers() == []


def test_right_that_is_taken_away_ends_what_needed_it(world: World) -> None:
    world.put_rule("both", Right.SEND | Right.LISTEN, "both-key")
    peer = world.peer().authorised(rule="both", key="both-key")
    sender, reader = peer.sender("eh1"), peer.receiver(0)
    world.put_rule("both", Right.LISTEN, "both-key")
    assert condition(peer, sender) == "amqp:unauthorized-access"
    assert condition(peer, reader) is None


def test_wider_right_is_usable_at_once(world: World) -> None:
    peer = world.peer().authorised(rule="listener")
    assert peer.refusal("eh1", LinkRole.SENDER).condition == "amqp:unauthorized-access"
    world.put_rule("listener", Right.ALL, "listener-key")
    assert peer.sender("eh1").is_attached


# --- SASL ---------------------------------------------------------------------------------------


def plain(world: World, user: str, key: str) -> Peer:
    peer = world.peer()
    peer.mechanism = "PLAIN"
    peer.response = b"\0%s\0%s" % (user.encode(), key.encode())
    return peer


def test_plain_authorises_the_whole_connection_without_cbs(world: World) -> None:
    peer = plain(world, "sender", "sender-key").opened()
    assert peer.sender("eh1").is_attached
    assert peer.refusal(READER, LinkRole.RECEIVER).condition == "amqp:unauthorized-access"
    world.loop.advance(31_000)
    peer.run()
    assert peer.close_error is None  # no token is waited for


def test_plain_ends_when_its_key_does(world: World) -> None:
    peer = plain(world, "sender", "sender-key").opened()
    link = peer.sender("eh1")
    world.put_rule("sender", Right.SEND, "another-key")
    assert condition(peer, link) == "amqp:unauthorized-access"


@pytest.mark.parametrize(
    "response",
    [
        b"\0sender\0wrong",
        b"\0nobody\0sender-key",
        b"sender\0sender-key",
        b"",
        b"\0a\0b\0c",
        b"\0\xff\0\xff",
        b"\0sender\0" + b"k" * 9000,
    ],
)
def test_plain_that_does_not_fit_ends_in_the_outcome(world: World, response: bytes) -> None:
    peer = world.peer()
    peer.mechanism, peer.response = "PLAIN", response
    peer.engine.start()
    peer.run()
    outcomes = peer.said(SaslOutcome)
    assert [outcome.code for outcome in outcomes] in ([1], [])  # [] above the SASL frame limit
    assert peer.socket.is_closed
    assert not peer.connection.links.is_authenticated


@pytest.mark.parametrize("mechanism", ["ANONYMOUS", "MSSBCBS", "EXTERNAL", "mssbcbs"])
def test_anonymous_kinds_reach_cbs_and_nothing_else(world: World, mechanism: str) -> None:
    peer = world.peer()
    peer.mechanism = mechanism
    peer.opened()
    assert peer.said(SaslOutcome)[0].additional_data == b"Welcome!"
    assert peer.refusal("eh1", LinkRole.SENDER).condition == "amqp:unauthorized-access"
    assert peer.put_token("eh1").status == 202


def test_mechanism_that_was_not_offered_is_refused(world: World) -> None:
    peer = world.peer()
    peer.mechanism = "SCRAM-SHA-256"
    peer.engine.start()
    peer.run()
    assert [outcome.code for outcome in peer.said(SaslOutcome)] == [1]
    assert peer.socket.is_closed


def test_peer_without_sasl_is_nobody(world: World) -> None:
    peer = world.peer(sasl=False).opened()
    assert peer.refusal("eh1", LinkRole.SENDER).condition == "amqp:unauthorized-access"
    assert peer.put_token("eh1").status == 202


def test_key_never_reaches_the_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    plain(world, "sender", "sender-key").opened().lose()
    wrong = plain(world, "sender", "wrong-key")
    wrong.engine.start()
    wrong.run()
    wrong.lose()
    assert "connection ended" in caplog.text
    assert "-key" not in caplog.text


def test_capture_reader_ends_when_its_policy_no_longer_manages(world: World) -> None:
    world.change_hub(metadata={"captureRuns": [{"id": "r", "on_ms": 1, "starts": {}}]})
    world.put_rule("manager", Right.ALL, "manager-key")
    peer = world.peer().authorised(rule="manager", key="manager-key")
    capture, plain = peer.receiver(group="$Capture"), peer.receiver()
    world.put_rule("manager", Right.LISTEN, "manager-key")
    peer.run()
    error = peer.detach_error(capture)
    assert error is not None
    assert error.condition == "amqp:unauthorized-access"
    assert "'Manage' claim(s) are required" in (error.description or "")
    assert peer.detach_error(plain) is None
    assert plain.is_attached
