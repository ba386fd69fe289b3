"""Positions, pauses, kinds of errors, places of keys, public names."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import penstock
import penstock.client
from penstock.amqp.performatives import Error
from penstock.client import (
    ClientDenied,
    ClientError,
    ClientNotFound,
    ClientStolen,
    ClientThrottled,
    ClientTimedOut,
    EventHubConsumerClient,
    EventHubProducerClient,
    EventPosition,
    RetryPolicy,
    retry,
)
from penstock.client.errors import condition_error, status_error
from penstock.model.errors import ArgumentError, NotFound, PenstockError, ServerBusy
from penstock.model.partitioner import partition_for_key

WHERE = "amqp.annotation.x-opt-"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("position", "selector"),
    [
        (EventPosition.earliest(), "offset > '-1'"),
        (EventPosition.latest(), "offset > '@latest'"),
        (EventPosition.from_offset("42"), "offset > '42'"),
        (EventPosition.from_offset(42, inclusive=True), "offset >= '42'"),
        (EventPosition.from_offset("@latest"), "offset > '@latest'"),
        (EventPosition.from_sequence_number(7), "sequence-number > '7'"),
        (EventPosition.from_sequence_number(7, True), "sequence-number >= '7'"),
        (EventPosition.from_enqueued_time(NOON), "enqueued-time > '1767268800000'"),
        (
            EventPosition.from_enqueued_time(NOON.astimezone(timezone(timedelta(hours=3)))),
            "enqueued-time > '1767268800000'",
        ),
        (
            EventPosition.from_enqueued_time(NOON.replace(tzinfo=None)),
            "enqueued-time > '1767268800000'",
        ),
    ],
)
def test_position_is_the_selector_of_the_service(position: EventPosition, selector: str) -> None:
    assert position.selector == WHERE + selector


@pytest.mark.parametrize("offset", ["", "1' OR '1'='1", "1\n", "9" * 200])
def test_offsets_that_are_none_are_refused(offset: str) -> None:
    with pytest.raises(ArgumentError):
        EventPosition.from_offset(offset)


def test_pauses_double_up_to_their_bound() -> None:
    policy = RetryPolicy(backoff_s=0.8, backoff_max_s=5)
    lost = ClientError("lost")
    pauses = [policy.pause_s(tries, lost) for tries in range(1, 6)]
    assert pauses == pytest.approx([0.8, 1.6, 3.2, 5, 5])
    assert policy.pause_s(10**9, lost) == pytest.approx(5)
    assert policy.pause_s(1, lost, chance=0) < 0.8 < policy.pause_s(1, lost, chance=1)


def test_pauses_stay_when_they_are_fixed_and_a_busy_service_gets_its_time() -> None:
    policy = RetryPolicy(backoff_s=1, mode="fixed")
    assert policy.pause_s(1, ClientError("lost")) == policy.pause_s(3, ClientError("lost")) == 1
    assert policy.pause_s(1, ClientThrottled("busy")) == 1 + retry.BUSY_S
    assert retry.BUSY_S == 4


@pytest.mark.parametrize(
    "wrong", [{"retry_total": -1}, {"backoff_s": -1.0}, {"backoff_max_s": -1}, {"mode": "x"}]
)
def test_policies_that_make_no_sense_are_refused(wrong: Any) -> None:
    with pytest.raises(ArgumentError):
        RetryPolicy(**wrong)


@pytest.mark.parametrize(
    ("condition", "kind", "is_final"),
    [
        ("com.microsoft:server-busy", ClientThrottled, False),
        ("com.microsoft:timeout", ClientTimedOut, False),
        ("amqp:internal-error", ClientError, False),
        ("amqp:link:detach-forced", ClientError, False),
        ("amqp:connection:forced", ClientError, False),
        ("com.microsoft:entity-updated", ClientError, False),
        ("com.microsoft:operation-cancelled", ClientError, False),
        ("something:new", ClientError, False),
        ("amqp:unauthorized-access", ClientDenied, True),
        ("com.microsoft:auth-failed", ClientDenied, True),
        ("amqp:not-found", ClientNotFound, True),
        ("amqp:link:stolen", ClientStolen, True),
        ("com.microsoft:entity-disabled", ClientError, True),
        ("com.microsoft:argument-error", ClientError, True),
        ("amqp:resource-limit-exceeded", ClientError, True),
        ("com.microsoft:producer-epoch-stolen", ClientError, True),
        ("com.microsoft:out-of-order-sequence", ClientError, True),
    ],
)
def test_conditions_tell_what_it_is_and_whether_to_try_again(
    condition: str, kind: type[ClientError], is_final: bool
) -> None:
    error = condition_error("text", Error(condition=condition))
    assert type(error) is kind
    assert error.is_final is is_final
    assert isinstance(error, PenstockError)


@pytest.mark.parametrize(
    ("status", "kind", "is_final"),
    [
        (401, ClientDenied, True),
        (404, NotFound, True),
        (503, ServerBusy, False),
        (500, ClientError, False),
        (400, ClientError, True),
        (408, ClientTimedOut, False),
    ],
)
def test_statuses_tell_the_same(status: int, kind: type[Exception], is_final: bool) -> None:
    error = status_error(status, "text", None)
    assert isinstance(error, kind)
    assert error.is_final is is_final


@pytest.mark.parametrize(
    ("key", "place"), [("7", 31), ("7149682", 20), ("key1", 27), ("", 0), ("ünïcode", 2)]
)
def test_keys_belong_where_other_sdks_put_them(key: str, place: int) -> None:
    assert partition_for_key(key, 32) == place  # protocol.md 8.2


@pytest.mark.parametrize("client", [EventHubProducerClient, EventHubConsumerClient])
def test_clients_need_a_hub_and_time(client: Any) -> None:
    string = "Endpoint=sb://h;SharedAccessKeyName=n;SharedAccessKey=secret"
    with pytest.raises(ArgumentError, match="eventhub_name"):
        client(string)
    with pytest.raises(ArgumentError, match="timeout_s"):
        client(string, eventhub_name="x", timeout_s=0)
    made = client(f"{string};EntityPath=orders")
    assert (made.eventhub_name, made.fully_qualified_namespace) == ("orders", "h")
    assert "secret" not in repr(vars(made))


def test_public_names_are_there_and_documented() -> None:
    for name in penstock.client.__all__:
        assert getattr(penstock.client, name) is not None
    assert sorted(penstock.client.__all__) == dir(penstock.client)
    with pytest.raises(AttributeError):
        penstock.client.nothing  # noqa: B018  # that it raises is the point


def test_penstock_shows_its_public_packages_and_loads_them_late() -> None:
    assert {"client", "checkpoints", "testing", "__version__"} <= set(dir(penstock))
    assert "broker" not in dir(penstock)
    program = (
        "import sys, penstock, penstock.client\n"
        "heavy = {'asyncio', 'ssl', 'msgspec', 'penstock.amqp', 'websockets'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "penstock.client.EventData(b'x')\n"
        "assert 'websockets' not in sys.modules\n"
        "try:\n    penstock.nothing\nexcept AttributeError:\n    print('fine')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "fine\n"
