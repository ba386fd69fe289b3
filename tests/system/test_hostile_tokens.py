"""Floods of tokens, bad and good, at every listener that takes them
(docs/explanation/security.md)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.amqp.frames import SASL_HEADER, encode_frame
from penstock.amqp.message import Message, Properties, ValueBody, decode_message, encode_message
from penstock.amqp.performatives import SaslInit, Transfer, encode_performative
from penstock.auth.sas import sign
from penstock.model import limits
from penstock.model.entities import Secret

if TYPE_CHECKING:
    from tests.system.conftest import Attacker, Hostile, Kit, Victim

POLICY = "RootManageSharedAccessKey"
GUESS = "bm90IHRoZSBrZXkgdGhhdCB5b3UgYXJlIGxvb2tpbmcgZm9y"


def token(key: str, resource: str = "sb://localhost/") -> str:
    return sign(resource, POLICY, Secret(key), expires_s=int(time.time()) + 600)


def put(kit: Kit, number: int, key: str, resource: str = "sb://localhost/") -> bytes:
    message = Message(
        properties=Properties(message_id=str(number), reply_to="here"),
        application_properties={
            "operation": "put-token",
            "type": "servicebus.windows.net:sastoken",
            "name": resource,
        },
        body=ValueBody(token(key, resource)),
    )
    tag = b"%d" % number
    transfer = Transfer(handle=0, delivery_id=number, delivery_tag=tag, settled=True)
    return kit.frame(transfer, encode_message(message))


def cbs(kit: Kit) -> bytes:
    return kit.sender(0, "$cbs") + kit.receiver(1, "$cbs") + kit.flow(handle=1, credit=10_000)


def answers(kit: Kit, hostile: Hostile) -> list[tuple[int, int]]:
    """(which, status) of the answers so far, in the order they came."""
    found = []
    for performative, payload in kit.frames(hostile.heard):
        if isinstance(performative, Transfer):
            message = decode_message(payload)
            assert message.properties is not None
            told = message.application_properties or {}
            which, status = message.properties.correlation_id, told["status-code"]
            found.append((int(str(which)), int(str(status))))
    return found


def hear_answers(kit: Kit, hostile: Hostile, count: int) -> list[tuple[int, int]]:
    while len(answers(kit, hostile)) < count:
        assert hostile.hear(), "the connection ended"
    return answers(kit, hostile)


def test_good_token_overtakes_the_bad_ones_of_its_policy_and_address(
    victim: Victim, attacker: Attacker, kit: Kit
) -> None:
    with victim.survives(growth_mb=20):
        guesses = [put(kit, number, GUESS) for number in range(12)]
        hostile = attacker.stranger(cbs(kit), *guesses, put(kit, 99, victim.key))
        while (99, 202) not in (told := answers(kit, hostile)):
            assert hostile.hear(), "the connection ended"
        free = limits.BACKOFF_FREE_FAILURES
        assert told[:free] == [(number, 401) for number in range(free)]
        assert 11 not in [which for which, _ in told]  # it waits for four seconds


def test_connection_ends_after_so_many_bad_tokens(
    victim: Victim, attacker: Attacker, kit: Kit
) -> None:
    with victim.survives(growth_mb=20):
        most = limits.FAILED_TOKENS_PER_CONNECTION_MAX
        guesses = [put(kit, number, GUESS) for number in range(most)]
        hostile = attacker.stranger(cbs(kit), *guesses)
        assert hostile.is_cut_off()
        assert b"amqp:resource-limit-exceeded" in hostile.heard
        assert b"64 tokens have failed" in hostile.heard


def test_flood_of_bad_tokens_from_many_connections_holds_up_nobody(
    victim: Victim, attacker: Attacker, kit: Kit
) -> None:
    """Also not a client that comes with the same policy from the same address."""
    guesses = [put(kit, number, GUESS) for number in range(40)]
    with victim.survives(growth_mb=30):
        crowd = [attacker.stranger(cbs(kit), *guesses) for _ in range(40)]
        friend = attacker.stranger(cbs(kit), put(kit, 7, victim.key))
        assert hear_answers(kit, friend, 1) == [(7, 202)]
        assert not any(status == 202 for each in crowd for _, status in answers(kit, each))


def test_flood_of_good_tokens_is_answered(impatient: Victim, bold: Attacker, kit: Kit) -> None:
    with impatient.survives(growth_mb=20):
        hostile = bold.stranger(cbs(kit), put(kit, 0, impatient.key))
        hear_answers(kit, hostile, 1)
        for start in range(1, 161, 80):  # as credit allows
            hostile.say(b"".join(put(kit, start + n, impatient.key) for n in range(80)))
            told = hear_answers(kit, hostile, start + 80)
        assert [status for _, status in told] == [202] * 161


def test_tokens_for_too_many_audiences_are_refused(
    impatient: Victim, bold: Attacker, kit: Kit
) -> None:
    """Each is remembered: 1024 of them, and no more."""
    with impatient.survives(growth_mb=20):
        hostile = bold.known(cbs(kit))
        most = limits.GRANTS_PER_CONNECTION_MAX
        told: list[tuple[int, int]] = []
        for start in range(0, most + 76, 100):
            hostile.say(
                b"".join(
                    put(
                        kit,
                        start + n,
                        impatient.key,
                        f"sb://localhost/events/Partitions/{start + n}",
                    )
                    for n in range(100)
                )
            )
            told = hear_answers(kit, hostile, start + 100)
        statuses = [status for _, status in sorted(told)]
        assert statuses[:most] == [202] * most
        assert set(statuses[most:]) == {403}


def test_bad_passwords_wait_and_a_good_one_passes(victim: Victim, attacker: Attacker) -> None:
    def sasl(key: str) -> Hostile:
        response = f"\0{POLICY}\0{key}".encode()
        init = SaslInit(mechanism="PLAIN", initial_response=response, hostname="localhost")
        hostile = attacker.dial()
        hostile.say(SASL_HEADER + encode_frame(0, encode_performative(init), frame_type=1))
        return hostile

    outcome, welcome = b"\x00\x53\x44", b"Welcome!"
    with victim.survives(growth_mb=20):
        started = time.monotonic()
        crowd = [sasl(GUESS) for _ in range(8)]
        friend = sasl(victim.key)
        while welcome not in friend.heard:
            assert friend.hear()
        for each in crowd:
            assert each.is_cut_off()
            assert outcome in each.heard
            assert welcome not in each.heard
        assert time.monotonic() - started >= 0.7  # what the fifth has to wait that waits at all


def test_refused_requests_over_https_wait_and_a_good_one_does_not(
    victim: Victim, attacker: Attacker
) -> None:
    def post(key: str) -> bytes:
        return (
            "POST /events/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
            f"Authorization: {token(key, 'https://localhost/events')}\r\n\r\nx"
        ).encode()

    def ask(key: str) -> Hostile:
        hostile = attacker.secure("https")
        hostile.say(post(key))
        return hostile

    with victim.survives(growth_mb=30):
        crowd = [ask(GUESS) for _ in range(8)]
        friend = ask(victim.key)
        assert friend.hear().startswith(b"HTTP/1.1 201 ")
        assert crowd[0].hear().startswith(b"HTTP/1.1 401 ")
        started = time.monotonic()
        friend.say(post(GUESS))  # a connection that was good once is slowed all the same
        assert friend.hear().startswith(b"HTTP/1.1 401 ")
        assert time.monotonic() - started >= 0.4  # it is the ninth failure, or nearly
        assert all(each.hear().startswith(b"HTTP/1.1 401 ") for each in crowd[1:])
