"""`$cbs` and `$management`: every request gets its answer, on the right link, rightly typed."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.gateway.amqp.conftest import Answer

from penstock.amqp.encoder import encode
from penstock.amqp.link import Link, LinkRole
from penstock.amqp.message import (
    DataBody,
    Message,
    Properties,
    SequenceBody,
    ValueBody,
    decode_message,
    encode_message,
)
from penstock.amqp.performatives import Accepted, Transfer
from penstock.amqp.types import Array, Int, Long, Raw, Symbol, Timestamp, Ulong
from penstock.gateway.amqp.authentication import CbsRequestLink
from penstock.gateway.amqp.request_response import NodeResponse
from penstock.model import limits
from penstock.model.entities import Right

if TYPE_CHECKING:
    from tests.unit.gateway.amqp.conftest import Peer, World

NEVER = -62_135_596_800_000


def read_hub(world: World, **changes: Any) -> dict[str, Any]:
    asked = {
        "operation": "READ",
        "type": "com.microsoft:eventhub",
        "name": "eh1",
        "security_token": world.token("eh1"),
        **changes,
    }
    return {key: value for key, value in asked.items() if value is not None}


def read_partition(world: World, **changes: Any) -> dict[str, Any]:
    return read_hub(world, **{"type": "com.microsoft:partition", "partition": "0", **changes})


def facts(answer: Answer) -> dict[str, Any]:
    assert answer.status == 200, answer.text
    assert isinstance(answer.message.body, ValueBody)
    value = answer.message.body.value
    assert isinstance(value, dict)
    return value


@pytest.fixture
def stranger(world: World) -> Peer:
    """Opened, but nobody yet."""
    return world.peer().opened()


# --- put-token ----------------------------------------------------------------------------------


def test_good_token_is_accepted_with_202(stranger: Peer) -> None:
    answer = stranger.put_token("eh1")
    assert (answer.status, answer.text, answer.condition) == (202, "Accepted", None)
    given = answer.message.application_properties
    assert given is not None
    assert type(given["status-code"]) is Int  # E17
    assert isinstance(stranger.outcomes()[0].state, Accepted)  # E13
    reply = stranger.said(Transfer)[-1]
    assert (reply.settled, reply.message_format) == (True, 0)  # E8


@pytest.mark.parametrize(
    "message_id",
    ["text", Ulong(7), Ulong(2**64 - 1), uuid.UUID(int=5), b"\x01\x02", "", Ulong(0)],
)
def test_reply_has_the_requests_id_in_its_type(stranger: Peer, message_id: Any) -> None:
    properties = stranger.put_token("eh1", message_id=message_id).message.properties
    assert properties is not None
    assert type(properties.correlation_id) is type(message_id)  # E16
    assert properties.correlation_id == message_id
    assert properties.to == "reply-here"


def test_wrong_key_is_an_invalid_signature(stranger: Peer) -> None:
    answer = stranger.put_token("eh1", key="wrong")
    assert answer.status == 401
    assert answer.condition == "com.microsoft:auth-failed"
    assert isinstance(answer.condition, Symbol)
    assert answer.text.startswith(
        "InvalidSignature: The token has an invalid signature. TrackingId:"
    )
    assert not stranger.connection.links.is_authenticated


@pytest.mark.parametrize("hub", ["eh1", "nothing"])
def test_wrong_key_does_not_tell_whether_a_hub_exists(stranger: Peer, hub: str) -> None:
    answer = stranger.put_token(hub, key="wrong")
    assert (answer.status, answer.text.partition(" Tracking")[0]) == (
        401,
        "InvalidSignature: The token has an invalid signature.",
    )


def test_expired_token_is_refused(stranger: Peer) -> None:
    answer = stranger.put_token("eh1", lasts_s=0)
    assert answer.status == 401
    assert answer.text.startswith("ExpiredToken:")


def test_unknown_hub_is_404_at_put_token(stranger: Peer) -> None:
    answer = stranger.put_token("nothing")
    assert (answer.status, answer.condition) == (404, "amqp:not-found")
    assert answer.text.startswith(
        "The messaging entity 'sb://contoso.example.net/nothing' could not be found. "
        "To know more visit https://aka.ms/sbResourceMgrExceptions. TrackingId:"
    )


def test_unknown_namespace_is_404_at_put_token(world: World, stranger: Peer) -> None:
    answer = stranger.request(
        "$cbs",
        {
            "operation": "put-token",
            "type": "servicebus.windows.net:sastoken",
            "name": "sb://elsewhere.example.net/eh1",
        },
        body=ValueBody(world.token("eh1")),
    )
    assert (answer.status, answer.condition) == (404, "amqp:not-found")
    assert "Invalid audience: Namespace cannot be resolved" in answer.text


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"operation": "delete-token"}, 400),
        ({"operation": 5}, 400),
        ({"operation": None}, 400),
        ({"name": None}, 401),
        ({"name": 5}, 401),
        ({"name": "sb://" + "x" * 9000}, 401),
        ({"type": "jwt"}, 401),
        ({"type": None}, 401),
    ],
)
def test_put_token_of_a_wrong_form_is_answered(
    world: World, stranger: Peer, change: dict[str, Any], status: int
) -> None:
    asked = {
        "operation": "put-token",
        "type": "servicebus.windows.net:sastoken",
        "name": "sb://contoso.example.net/eh1",
        **change,
    }
    asked = {key: value for key, value in asked.items() if value is not None}
    answer = stranger.request("$cbs", asked, body=ValueBody(world.token("eh1")))
    assert answer.status == status
    assert answer.condition is not None


def test_token_type_that_is_not_supported_is_named_with_what_is(
    world: World, stranger: Peer
) -> None:
    asked = {"operation": "put-token", "type": "jwt", "name": "sb://contoso.example.net/eh1"}
    answer = stranger.request("$cbs", asked, body=ValueBody("eyJ0eXAi.e30.c2ln"))
    assert "the token type 'jwt' is not supported: servicebus.windows.net:sastoken" in answer.text
    assert "connection string" in answer.text


@pytest.mark.parametrize(
    "body",
    [
        None,
        ValueBody(None),
        ValueBody(5),
        ValueBody(b"token"),
        ValueBody("SharedAccessSignature"),
        ValueBody("x" * 9000),
        DataBody([b"token"]),
        SequenceBody([["token"]]),
    ],
)
def test_body_that_is_no_token_is_401(stranger: Peer, body: Any) -> None:
    asked = {
        "operation": "put-token",
        "type": "servicebus.windows.net:sastoken",
        "name": "sb://contoso.example.net/eh1",
    }
    answer = stranger.request("$cbs", asked, body=body)
    assert answer.status == 401
    assert answer.text.startswith("MalformedToken")


def test_no_token_and_no_signature_is_ever_repeated(world: World, stranger: Peer) -> None:
    token = world.token("eh1", key="wrong")
    answer = stranger.put_token("eh1", token=token)
    assert "sig=" not in answer.text
    assert "sig" not in repr(stranger.connection)


def test_tokens_of_one_connection_are_bounded(
    stranger: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "GRANTS_PER_CONNECTION_MAX", 3)
    for n in range(3):
        assert stranger.put_token(f"eh1/publishers/p{n}").status == 202
    answer = stranger.put_token("eh1/publishers/p3")
    assert (answer.status, answer.condition) == (403, "amqp:resource-limit-exceeded")
    assert stranger.put_token("eh1/publishers/p0").status == 202  # a renewal takes no more room


# --- requests and replies -----------------------------------------------------------------------


def ask(message_id: str, reply_to: str | None = None) -> bytes:
    """A put-token that fails; only where its reply goes matters."""
    return encode_message(
        Message(
            properties=Properties(message_id=message_id, reply_to=reply_to),
            application_properties={"operation": "nothing"},
        )
    )


def replied(peer: Peer, link: Link) -> list[object]:
    answers = [decode_message(payload).properties for payload in peer.received(link)]
    return [properties.correlation_id for properties in answers if properties is not None]


def test_reply_goes_to_the_link_whose_target_or_name_is_reply_to(stranger: Peer) -> None:
    by_target = stranger.attach("$cbs", LinkRole.RECEIVER, other="target-a", name="name-a")
    by_name = stranger.attach("$cbs", LinkRole.RECEIVER, other=None, name="name-b")
    last = stranger.attach("$cbs", LinkRole.RECEIVER, other="target-c", name="name-c")
    for link in (by_target, by_name, last):
        stranger.grant(link, 10)
    sender = stranger.attach("$cbs", LinkRole.SENDER)
    stranger.publish(sender, ask("1", "target-a"), ask("2", "name-b"), ask("3", "neither"))
    stranger.publish(sender, ask("4"))
    assert replied(stranger, by_target) == ["1"]
    assert replied(stranger, by_name) == ["2"]
    assert replied(stranger, last) == ["3", "4"]


def test_reply_stays_in_its_session_and_at_its_node(stranger: Peer) -> None:
    other_session = stranger.engine.begin()
    stranger.run()
    elsewhere = stranger.attach("$cbs", LinkRole.RECEIVER, session=other_session)
    other_node = stranger.attach("$management", LinkRole.RECEIVER)
    here = stranger.attach("$cbs", LinkRole.RECEIVER)
    for link in (elsewhere, other_node, here):
        stranger.grant(link, 10)
    stranger.publish(stranger.attach("$cbs", LinkRole.SENDER), ask("1"))
    counts = [len(stranger.received(link)) for link in (elsewhere, other_node, here)]
    assert counts == [0, 0, 1]


def test_request_without_a_reply_link_is_accepted_and_carried_out(
    world: World, stranger: Peer
) -> None:
    sender = stranger.attach("$cbs", LinkRole.SENDER)
    request = Message(
        application_properties={
            "operation": "put-token",
            "type": "servicebus.windows.net:sastoken",
            "name": "sb://contoso.example.net/eh1",
        },
        body=ValueBody(world.token("eh1")),
    )
    stranger.publish(sender, encode_message(request))
    assert isinstance(stranger.outcomes()[0].state, Accepted)
    assert stranger.sender("eh1").is_attached


def test_replies_wait_for_credit_one_at_a_time_and_in_order(stranger: Peer) -> None:
    receiver = stranger.attach("$cbs", LinkRole.RECEIVER)
    sender = stranger.attach("$cbs", LinkRole.SENDER)
    stranger.publish(sender, *[ask(str(n)) for n in range(3)])
    assert replied(stranger, receiver) == []
    for n in range(3):
        stranger.grant(receiver, 1)
        assert replied(stranger, receiver) == [str(each) for each in range(n + 1)]


def test_reply_link_that_is_drained_says_so(stranger: Peer) -> None:
    receiver = stranger.attach("$cbs", LinkRole.RECEIVER)
    sender = stranger.attach("$cbs", LinkRole.SENDER)
    stranger.publish(sender, ask("1"))
    stranger.grant(receiver, 5, drain=True)
    assert replied(stranger, receiver) == ["1"]
    app = next(
        a for link, a in stranger.connection.links.handlers.items() if link.name == receiver.name
    )
    assert app.link.credit == 0


@pytest.mark.parametrize("payload", [b"", b"\xff", b"\x00\x53\x73\xc0", b"\x00\x53\x77" * 2000])
@pytest.mark.parametrize("node", ["$cbs", "$management"])
def test_malformed_request_is_accepted_and_answered_400(
    stranger: Peer, node: str, payload: bytes
) -> None:
    sender, receiver = stranger.node(node)
    stranger.publish(sender, payload)
    assert isinstance(stranger.outcomes()[-1].state, Accepted)  # E13
    message = decode_message(stranger.received(receiver)[-1])
    assert message.application_properties is not None
    assert message.application_properties["status-code"] == 400


# Each cost up to 113 ms of the event loop before: 65,535 lists in ten bytes, thousands of
# sections, a tree of described values, integer keys whose hashes collide.
_ARRAY = bytes.fromhex("f0 00000005 0000ffff 45")
_TREE = b"\x00" * 31 + b"\x40" * 32
COSTLY = {
    "zero-width": b"\x00\x53\x77\xd0"
    + (24).to_bytes(4, "big")
    + (2).to_bytes(4, "big")
    + 2 * _ARRAY,
    "sections": b"\x00\x53\x75\xa0\x00" * 600,
    "described": b"\x00\x53\x77" + encode([Raw(_TREE)] * 20),
    "keys": b"\x00\x53\x77"
    + encode(
        {Long(i * 2**56): None for i in range(-127, 128)} | {Long(i): None for i in range(1, 9)}
    ),
}


@pytest.mark.parametrize("payload", COSTLY.values(), ids=COSTLY)
@pytest.mark.parametrize("node", ["$cbs", "$management"])
def test_costly_request_is_refused_before_it_is_built(
    stranger: Peer, node: str, payload: bytes
) -> None:
    sender, receiver = stranger.node(node)
    stranger.publish(sender, payload)
    answer = Answer.of(stranger.received(receiver)[-1])
    assert (answer.status, answer.condition) == (400, "amqp:decode-error")
    assert "elements" in answer.text


@pytest.mark.parametrize("node", ["$cbs", "$management"])
def test_request_above_the_limit_ends_its_link(peer: Peer, node: str) -> None:
    sender, receiver = peer.node(node)
    before = len(peer.received(receiver))
    peer.publish(sender, b"x" * (limits.NODE_MESSAGE_BYTES_MAX + 1))
    error = peer.detach_error(sender)
    assert error is not None
    assert error.condition == "amqp:link:message-size-exceeded"
    assert "size:65537 bytes) exceeds the limit (65536 bytes)" in str(error.description)
    assert len(peer.received(receiver)) == before
    assert peer.close_error is None
    again = peer.attach(node, LinkRole.SENDER)
    peer.publish(again, ask("next"))
    assert len(peer.received(receiver)) == before + 1


def test_answer_may_come_in_a_later_turn(stranger: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    responses: list[Callable[[NodeResponse], None]] = []
    monkeypatch.setattr(
        CbsRequestLink, "answer", lambda self, request, respond: responses.append(respond)
    )
    sender, receiver = stranger.node("$cbs")
    stranger.publish(sender, ask("1"), ask("2"))
    assert replied(stranger, receiver) == []
    for respond in reversed(responses):
        respond(NodeResponse(status=202, description="Accepted"))
    stranger.run()
    assert replied(stranger, receiver) == ["2", "1"]


def test_requests_without_an_answer_are_bounded(
    stranger: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CbsRequestLink, "answer", lambda self, request, respond: None)
    sender, _ = stranger.node("$cbs")
    for number in range(limits.NODE_CREDIT):
        stranger.publish(sender, ask(str(number)))
        stranger.world.loop.advance(10)
    assert stranger.close_error is None
    stranger.publish(sender, ask("more"))
    assert stranger.close_error is not None
    assert stranger.close_error.condition == "amqp:resource-limit-exceeded"


def test_settled_requests_are_answered_without_a_disposition(stranger: Peer) -> None:
    sender, receiver = stranger.node("$cbs")
    stranger.publish(sender, ask("1"), settled=True)
    assert stranger.outcomes() == []
    assert replied(stranger, receiver) == ["1"]


def test_credit_of_a_node_is_topped_up(stranger: Peer) -> None:
    sender, _ = stranger.node("$cbs")
    for _ in range(limits.NODE_CREDIT * 2):
        assert stranger.publish(sender, ask("1"))[0] is not None
        stranger.world.loop.advance(10)


# --- $management --------------------------------------------------------------------------------


def test_hub_facts_have_the_services_keys_order_and_types(world: World, stranger: Peer) -> None:
    answer = stranger.request("$management", read_hub(world))
    told = facts(answer)
    assert list(told) == [
        "name",
        "type",
        "created_at",
        "partition_count",
        "partition_ids",
        "georeplication_factor",
    ]
    assert type(told["created_at"]) is Timestamp
    assert type(told["partition_count"]) is Int
    assert type(told["partition_ids"]) is Array  # E18
    assert told["partition_ids"].code == 0xB1
    assert list(told["partition_ids"]) == ["0", "1"]
    assert type(told["georeplication_factor"]) is Int
    given = answer.message.application_properties
    assert given is not None
    assert type(given["status-code"]) is Int
    assert given["operation"] == "READ"
    assert given["status-description"] == "OK"


def test_partition_facts_of_an_empty_partition(world: World, stranger: Peer) -> None:
    told = facts(stranger.request("$management", read_partition(world)))
    assert told["name"] == "eh1"
    assert told["partition"] == "0"
    assert (told["begin_sequence_number"], told["last_enqueued_sequence_number"]) == (-1, -1)
    assert told["last_enqueued_offset"] == "-1"
    assert told["last_enqueued_time_utc"] == NEVER
    assert told["is_partition_empty"] is True


def test_partition_facts_after_publishing(world: World, stranger: Peer) -> None:
    world.fill([b"a", b"b"])
    told = facts(stranger.request("$management", read_partition(world)))
    assert told["begin_sequence_number"] == 0
    assert told["last_enqueued_sequence_number"] == 1
    types = {key: type(told[key]) for key in ("begin_sequence_number", "last_enqueued_time_utc")}
    assert types == {"begin_sequence_number": Long, "last_enqueued_time_utc": Timestamp}
    assert isinstance(told["last_enqueued_offset"], str)
    assert int(told["last_enqueued_offset"]) > 0
    assert told["last_enqueued_time_utc"] == world.clock.now_ms()
    assert told["is_partition_empty"] is False


@pytest.mark.parametrize(
    "body", [None, ValueBody(b"[]"), ValueBody(None), DataBody([b"x", b"y"]), SequenceBody([[1]])]
)
def test_body_of_a_management_request_is_ignored(world: World, stranger: Peer, body: Any) -> None:
    assert facts(stranger.request("$management", read_hub(world), body=body))["name"] == "eh1"


@pytest.mark.parametrize("scope", ["", "eh1", "eh1/$management", "EH1"])
def test_management_takes_a_token_of_any_level(world: World, stranger: Peer, scope: str) -> None:
    asked = read_hub(world, security_token=world.token(scope))
    assert stranger.request("$management", asked).status == 200


@pytest.mark.parametrize("rule", ["sender", "listener"])
def test_any_right_will_do_for_reading_facts(world: World, stranger: Peer, rule: str) -> None:
    asked = read_hub(world, security_token=world.token("eh1", rule=rule))
    assert stranger.request("$management", asked).status == 200


def test_management_falls_back_on_the_connections_tokens(world: World, stranger: Peer) -> None:
    asked = read_hub(world, security_token=None)
    assert stranger.request("$management", asked).status == 401
    stranger.put_token("eh1/$management")
    assert stranger.request("$management", asked).status == 200


@pytest.mark.parametrize(
    ("change", "status", "condition"),
    [
        ({"name": "nothing", "security_token": "root"}, 404, "amqp:not-found"),
        ({"security_token": "bad"}, 401, "amqp:unauthorized-access"),
        ({"security_token": "x" * 9000}, 401, "amqp:unauthorized-access"),
        ({"security_token": 5}, 401, "amqp:unauthorized-access"),
        ({"operation": "DELETE"}, 400, "com.microsoft:argument-error"),
        ({"operation": None}, 400, "com.microsoft:argument-error"),
        ({"type": "com.microsoft:queue"}, 400, "com.microsoft:argument-error"),
        ({"type": Array(["com.microsoft:eventhub"])}, 400, "com.microsoft:argument-error"),
        ({"name": None}, 400, "com.microsoft:argument-error"),
        ({"name": b"eh1"}, 400, "com.microsoft:argument-error"),
        ({"name": "x" * 2000}, 400, "com.microsoft:argument-error"),
        ({"partition": "9"}, 400, "com.microsoft:argument-out-of-range"),
        ({"partition": "XYZ"}, 400, "com.microsoft:argument-out-of-range"),
        ({"partition": 0}, 400, "com.microsoft:argument-error"),
        ({"partition": None}, 400, "com.microsoft:argument-error"),
    ],
)
def test_management_errors_carry_status_and_condition(
    world: World, stranger: Peer, change: dict[str, Any], status: int, condition: str
) -> None:
    if change.get("security_token") == "root":
        change = {**change, "security_token": world.token("")}
    answer = stranger.request("$management", read_partition(world, **change))
    assert (answer.status, answer.condition) == (status, condition)
    assert "TrackingId:" in answer.text
    if status == 404:
        assert "The messaging entity 'sb://contoso.example.net/nothing' could not be found" in (
            answer.text
        )


def test_management_does_not_tell_strangers_what_exists(world: World, stranger: Peer) -> None:
    texts = {
        stranger.request("$management", read_hub(world, name=name, security_token=token))
        .text.partition(" Tracking")[0]
        .replace(name, "?")
        for name in ("eh1", "nothing")
        for token in (None, world.token("eh1", key="wrong"))
    }
    assert texts == {
        "Unauthorized access. No valid token was given for '?'.",
        "InvalidSignature: The token has an invalid signature.",
    }


def test_hub_may_be_named_by_the_nodes_address(world: World, stranger: Peer) -> None:
    asked = read_hub(world, name=None)
    assert facts(stranger.request("eh1/$management", asked))["name"] == "eh1"


def test_a_rule_of_one_hub_is_no_key_to_another(world: World, stranger: Peer) -> None:
    world.put_hub("eh2")
    asked = read_hub(world, name="eh2", security_token=world.token("eh1"))
    answer = stranger.request("$management", asked)
    assert answer.status == 401
    world.put_rule("spare", Right.LISTEN, "spare-key")
    spare = world.token("eh2", rule="spare", key="spare-key")
    assert stranger.request("$management", {**asked, "security_token": spare}).status == 200
