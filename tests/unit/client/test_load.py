"""The load generator's parts that need no service: pace, stamps, shares."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from penstock.amqp.connection import ConnectionConfig, ConnectionEngine
from penstock.amqp.events import TransfersReceived
from penstock.amqp.link import Link, LinkRole
from penstock.amqp.performatives import Error
from penstock.amqp.session import Session
from penstock.client import ClientError, parse_connection_string
from penstock.client.errors import (
    ClientDenied,
    ClientNotFound,
    ClientThrottled,
    ClientTimedOut,
    condition_error,
)
from penstock.client.load.consumer import LatencyConsumer
from penstock.client.load.measurements import LoadResult
from penstock.client.load.producer import LoadProfile, LoadRate, TimestampedRun
from penstock.client.transfer_frames import BATCH_FORMAT, TransferFraming
from penstock.model.errors import ArgumentError, NotFound, OperationTimedOut, ServerBusy


def test_pace_makes_deliveries_due_at_its_rate() -> None:
    pace = LoadRate(1000, 10.0)
    assert pace.due(10.0) == 1
    assert pace.take(1, 10.0) == (1, 10.0)
    assert pace.due(10.0004) == 0
    assert pace.due(10.0105) == 10


def test_pace_counts_from_when_it_was_due_only_what_was_kept_waiting() -> None:
    pace = LoadRate(10_000, 0.0)
    assert pace.take(10, 0.001) == (10, 0.001)  # a timer's own lateness is not the service's
    count, at_s = pace.take(990, 0.1)
    assert count == 10  # a millisecond's worth: each burst with its own time
    assert at_s == pytest.approx(0.001)
    count, at_s = pace.take(980, 0.1)
    assert count == 10
    assert at_s == pytest.approx(0.002)


def test_pace_below_a_thousand_a_second_ticks_once_per_delivery() -> None:
    assert LoadRate(10, 0.0).tick_s == pytest.approx(0.1)
    assert LoadRate(50_000, 0.0).tick_s == pytest.approx(0.001)


def stamped(size: int, batch: int, mark: bytes) -> TimestampedRun:
    message_format = 0 if batch == 1 else BATCH_FORMAT
    session = SimpleNamespace(channel=0, frame_bytes_max=65536)
    link = SimpleNamespace(session=session, handle=0)
    framing = TransferFraming(cast(Link, link), message_format)
    return TimestampedRun(framing, size=size, batch=batch, mark=mark)


def receiving_link() -> Link:
    engine = ConnectionEngine(ConnectionConfig(container_id="c", server=False), now_ms=0)
    return Link(Session(engine, 0), "r", LinkRole.RECEIVER, 0)


@pytest.mark.parametrize(("size", "batch"), [(16, 1), (100, 1), (1024, 1)])
async def test_stamps_that_were_sent_are_read_and_others_passed_over(size: int, batch: int) -> None:
    link = receiving_link()
    mine, other = b"mine....", b"another."
    data = stamped(size, batch, mine).take(0, 3, 1.0)
    stranger = stamped(size, batch, other).take(3, 1, 1.0)
    step = len(data) // 3
    bounds = [edge for i in range(3) for edge in (i * step + 45, (i + 1) * step)]
    result = LoadResult()
    reader = LatencyConsumer(result, size=size, mark=mine)
    reader.on_transfers(TransfersReceived(link, data, bounds, 0, 3, True, 0))
    reader.on_transfers(TransfersReceived(link, stranger, [45, len(stranger)], 3, 1, True, 0))
    reader.on_transfers(TransfersReceived(link, b"tiny", [0, 4], 4, 1, True, 0))
    assert result.events_read == result.deliveries.total() == 3
    assert not reader.finished.done()
    reader.expect(3)
    await asyncio.wait_for(reader.finished, 1)


def test_load_addresses_hub_or_partition() -> None:
    assert LoadProfile(hub="h").address == "h"
    assert LoadProfile(hub="h", partition="3").address == "h/Partitions/3"


def test_refusals_keep_their_kind_so_that_exit_codes_fit() -> None:
    kinds = {
        "amqp:not-found": ClientNotFound,
        "amqp:unauthorized-access": ClientDenied,
        "com.microsoft:auth-failed": ClientDenied,
        "com.microsoft:server-busy": ClientThrottled,
        "com.microsoft:timeout": ClientTimedOut,
    }
    for condition, kind in kinds.items():
        error = condition_error("text", Error(condition=condition))
        assert type(error) is kind
        assert isinstance(error, ClientError)
        assert str(error) == "text"
    assert type(condition_error("x", Error(condition="amqp:internal-error"))) is ClientError
    assert type(condition_error("x", None)) is ClientError
    assert issubclass(ClientNotFound, NotFound)
    assert issubclass(ClientThrottled, ServerBusy)
    assert issubclass(ClientTimedOut, OperationTimedOut)


def test_connection_string_is_read_as_the_sdks_read_it() -> None:
    endpoint = parse_connection_string(
        "Endpoint=sb://ns.example.com/;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0;EntityPath=h"
    )
    assert (endpoint.host, endpoint.port, endpoint.tls) == ("ns.example.com", 5671, True)
    assert (endpoint.key_name, endpoint.hub) == ("k", "h")
    assert "c2VjcmV0" not in repr(endpoint)
    local = parse_connection_string(
        "Endpoint=sb://[::1]:999;SharedAccessSignature=s;UseDevelopmentEmulator=true;"
    )
    assert (local.host, local.port, local.tls) == ("::1", 999, False)
    plain = parse_connection_string(
        "Endpoint=sb://localhost;SharedAccessSignature=x;UseDevelopmentEmulator=TRUE"
    )
    assert (plain.port, plain.tls) == (5672, False)


@pytest.mark.parametrize(
    "text",
    ["", "Endpoint", "Endpoint=sb:///", "Endpoint=sb://h:0", "Endpoint=sb://h:x", "Secret=abc"],
)
def test_connection_string_that_cannot_be_used_is_refused_without_quoting_it(text: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        parse_connection_string(text)
    assert "abc" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "Endpoint=sb://localhost",
        "Endpoint=sb://localhost;SharedAccessKeyName=root",
        "Endpoint=sb://localhost;SharedAccessKey=k",
        "Endpoint=sb://localhost;SharedAccessKeyName=root;SharedAccessKey=",
    ],
)
def test_connection_string_without_a_key_is_refused_at_once(text: str) -> None:
    with pytest.raises(ArgumentError, match="SharedAccessKeyName and SharedAccessKey, or"):
        parse_connection_string(text)
