"""Every refusal that azure-eventhub can provoke, by the SDK's own exception and the condition.

A refused attach of a reader reaches on_error in the blocking client only, so readers here are sync.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from azure.eventhub import EventData
from azure.eventhub.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType
from azure.eventhub.exceptions import (
    AuthenticationError,
    ConnectError,
    ConnectionLostError,
    EventDataSendError,
    EventHubError,
)

if TYPE_CHECKING:
    from tests.compatibility.conftest import Case, Outcomes, PythonSdk, Sdks

NOT_FOUND = "The messaging entity .* could not be found"


async def refused_read(
    sdk: PythonSdk, hub: str, partition: str, kind: type[EventHubError], **options: Any
) -> EventHubError:
    with pytest.raises(kind) as raised:
        await sdk.read(hub, partition, 1, max_wait_time=20, **options)
    assert type(raised.value) is kind
    return raised.value


# --- what does not exist ------------------------------------------------------------------------


async def unknown_hub_is_refused_at_the_token(sdk: PythonSdk) -> None:
    # protocol.md 13: 404 at put-token, and every failed token is an authentication error here.
    async with sdk.producing("no-such-hub") as producer:
        with pytest.raises(AuthenticationError, match="CBS Token authentication failed"):
            await sdk.call(producer.send_event, EventData("x"))


async def unknown_hub_has_no_properties(sdk: PythonSdk) -> None:
    async with sdk.producing("no-such-hub") as producer:
        with pytest.raises(ConnectError):
            await sdk.call(producer.get_eventhub_properties)


async def unknown_group_is_not_found(sdk: PythonSdk) -> None:
    hub, partition = sdk.spot()
    error = await refused_read(sdk, hub, partition, ConnectionLostError, group="nobody")
    assert error.error == "not-found"
    assert "could not be found" in error.message
    assert f"{hub}/ConsumerGroups/nobody" in error.message
    for part in ("TrackingId:", "SystemTracker:", "Timestamp:"):
        assert part in error.message


async def unknown_partition_is_known_to_the_sdk_itself(sdk: PythonSdk) -> None:
    # It asks the hub for its partitions first; test_proton.py sends such an attach.
    hub = sdk.hub()
    with pytest.raises(ValueError, match=r"Wrong partition id:4. .* \['0', '1', '2', '3'\]"):
        await sdk.read(hub, "4", 1)


async def unknown_partition_has_no_properties(sdk: PythonSdk) -> None:
    hub = sdk.hub()
    async with sdk.producing(hub) as producer:
        for partition in ("4", "XYZ"):
            with pytest.raises(ConnectError, match="Status code: 400"):
                await sdk.call(producer.get_partition_properties, partition)


async def unknown_partition_is_refused_for_a_sender(sdk: PythonSdk) -> None:
    hub = sdk.hub()
    async with sdk.producing(hub) as producer:
        with pytest.raises(ConnectError, match="Invalid partition"):  # the SDK knows them already
            await sdk.call(producer.send_event, EventData("x"), partition_id="9")


# --- positions ----------------------------------------------------------------------------------


async def offset_beyond_the_end_is_an_argument_error(sdk: PythonSdk) -> None:
    hub, partition = sdk.spot()
    await sdk.send(hub, "x", partition_id=partition)
    position = {"starting_position": "123456789"}
    error = await refused_read(sdk, hub, partition, ConnectError, **position)
    assert error.error == "argument-error"
    assert "The supplied offset '123456789' is invalid" in error.message


async def malformed_offset_is_an_argument_error(sdk: PythonSdk) -> None:
    hub, partition = sdk.spot()
    await sdk.send(hub, "x", partition_id=partition)
    for offset in ("twelve", "1.5", "' or 1=1 --", "-2"):
        position = {"starting_position": offset}
        error = await refused_read(sdk, hub, partition, ConnectError, **position)
        assert error.error == "argument-error"


async def sequence_number_beyond_the_end_is_an_argument_error(sdk: PythonSdk) -> None:
    hub, partition = sdk.spot()
    await sdk.send(hub, "x", partition_id=partition)
    error = await refused_read(sdk, hub, partition, ConnectError, starting_position=77)
    assert error.error == "argument-error"
    assert "The supplied sequence number '77' is invalid" in error.message
    assert "The last sequence number in the system is '0'" in error.message


async def start_at_zero_of_an_empty_partition_is_an_argument_error(sdk: PythonSdk) -> None:
    hub, partition = sdk.spot()
    at = {"starting_position": 0, "starting_position_inclusive": True}
    error = await refused_read(sdk, hub, partition, ConnectError, **at)
    assert error.error == "argument-error"
    assert "The last sequence number in the system is '-1'" in error.message


async def time_in_the_future_waits_instead(sdk: PythonSdk) -> None:
    hub, partition = sdk.spot()
    future = datetime.now(UTC) + timedelta(hours=1)
    assert await sdk.read(hub, partition, 1, starting_position=future, max_wait_time=2) == []


# --- what is sent -------------------------------------------------------------------------------


async def long_partition_key_is_refused(sdk: PythonSdk) -> None:
    hub = sdk.hub()
    async with sdk.producing(hub) as producer:
        await sdk.call(producer.send_event, EventData("x"), partition_key="k" * 128)
        with pytest.raises(EventDataSendError, match="128") as raised:
            await sdk.call(producer.send_event, EventData("x"), partition_key="k" * 129)
        assert raised.value.error == "argument-error"
        await sdk.call(producer.send_event, EventData("x"), partition_key="k")  # still attached


async def too_large_event_is_refused_and_the_link_lives(sdk: PythonSdk) -> None:
    hub, partition = sdk.spot()
    async with sdk.producing(hub) as producer:
        for size in (262_145, 1_000_000):
            with pytest.raises(EventDataSendError) as raised:
                event = EventData(b"x" * size)
                await sdk.call(producer.send_event, event, partition_id=partition)
            assert raised.value.error == "link:message-size-exceeded"
            assert "(262144 bytes) currently allowed on the link" in raised.value.message
        await sdk.call(producer.send_event, EventData("ok"), partition_id=partition)


async def partition_wins_over_a_key_that_comes_along(sdk: PythonSdk) -> None:
    hub = sdk.hub()
    async with sdk.producing(hub) as producer:
        batch = await sdk.call(producer.create_batch, partition_id="0", partition_key="key1")
        batch.add(EventData("x"))
        await sdk.call(producer.send_batch, batch)
    [received] = await sdk.read(hub, "0", 1)  # the key's own place is 3
    assert received.partition_key == b"key1"


async def key_that_is_no_string_does_not_route(sdk: PythonSdk) -> None:
    # protocol.md 4.5: the service then distributes round-robin.
    hub = sdk.hub()
    message = AmqpAnnotatedMessage(data_body=[b"x"])
    message.annotations = {b"x-opt-partition-key": 7}
    assert message.body_type == AmqpMessageBodyType.DATA
    async with sdk.producing(hub) as producer:
        for _ in range(4):
            await sdk.call(producer.send_event, message)
        for partition in "0123":
            properties = await sdk.call(producer.get_partition_properties, partition)
            assert properties["last_enqueued_sequence_number"] == 0


# --- who may ------------------------------------------------------------------------------------


async def wrong_key_is_an_authentication_error(sdk: PythonSdk) -> None:
    hub, partition = sdk.spot()
    wrong = {"conn_str": sdk.connection_string(key="wrong")}
    async with sdk.producing(hub, **wrong) as producer:
        with pytest.raises(AuthenticationError):
            await sdk.call(producer.send_event, EventData("x"))
        with pytest.raises(AuthenticationError):
            await sdk.call(producer.get_eventhub_properties)
    error = await refused_read(sdk, hub, partition, AuthenticationError, client=wrong)
    assert "CBS Token authentication failed" in error.message


async def unknown_policy_is_an_authentication_error(sdk: PythonSdk) -> None:
    hub, _ = sdk.spot()
    unknown = sdk.connection_string(policy="nobody", key="x")
    async with sdk.producing(hub, conn_str=unknown) as producer:
        with pytest.raises(AuthenticationError):
            await sdk.call(producer.send_event, EventData("x"))


async def listener_may_not_send(sdk: PythonSdk) -> None:
    hub, _ = sdk.spot()
    listener = sdk.connection_string(policy="listener", key="key-that-only-listens")
    async with sdk.producing(hub, conn_str=listener) as producer:
        with pytest.raises(ConnectionLostError, match="'Send' claim") as raised:
            await sdk.call(producer.send_event, EventData("x"))
    assert raised.value.error == "unauthorized-access"


async def sender_may_not_listen(sdk: PythonSdk) -> None:
    hub, partition = sdk.spot()
    sender = {"conn_str": sdk.connection_string(policy="sender", key="key-that-only-sends")}
    error = await refused_read(sdk, hub, partition, ConnectionLostError, client=sender)
    assert error.error == "unauthorized-access"
    assert "'Listen' claim(s) are required" in error.message


async def policy_of_one_hub_opens_no_other(sdk: PythonSdk) -> None:
    own, other = sdk.hub(), sdk.spot().hub
    of_hub = sdk.connection_string(policy="of-this-hub", key="key-of-one-hub-alone")
    async with sdk.producing(own, conn_str=of_hub) as producer:
        await sdk.call(producer.send_event, EventData("x"), partition_id="0")
    async with sdk.producing(other, conn_str=of_hub) as producer:
        with pytest.raises(AuthenticationError):
            await sdk.call(producer.send_event, EventData("x"))
    assert len(await sdk.read(own, "0", 1, client={"conn_str": of_hub})) == 1


CASES: list[Case] = [
    unknown_hub_is_refused_at_the_token,
    unknown_hub_has_no_properties,
    unknown_group_is_not_found,
    unknown_partition_is_known_to_the_sdk_itself,
    unknown_partition_has_no_properties,
    unknown_partition_is_refused_for_a_sender,
    offset_beyond_the_end_is_an_argument_error,
    malformed_offset_is_an_argument_error,
    sequence_number_beyond_the_end_is_an_argument_error,
    start_at_zero_of_an_empty_partition_is_an_argument_error,
    time_in_the_future_waits_instead,
    long_partition_key_is_refused,
    too_large_event_is_refused_and_the_link_lives,
    partition_wins_over_a_key_that_comes_along,
    key_that_is_no_string_does_not_route,
    wrong_key_is_an_authentication_error,
    unknown_policy_is_an_authentication_error,
    listener_may_not_send,
    sender_may_not_listen,
    policy_of_one_hub_opens_no_other,
]


@pytest.fixture(scope="module")
def outcomes(sdks: Sdks) -> Outcomes:
    return sdks.run((CASES, [("sync", "tcp")]))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_refusal(outcomes: Outcomes, case: Case) -> None:
    outcomes.check(case, "sync")
