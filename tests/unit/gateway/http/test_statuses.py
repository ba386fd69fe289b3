"""Every status that the door answers with, its headers and its text."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

from penstock.broker.error_messages import server_busy_error
from penstock.gateway.http.responses import xml_text
from penstock.model import limits
from penstock.model.entities import HubStatus, LimitSet, Tier
from penstock.model.errors import (
    DiskFull,
    LogFailed,
    OperationCancelled,
    PenstockError,
    QuotaExceeded,
)

if TYPE_CHECKING:
    from tests.unit.gateway.http.conftest import Response, World


def refused(response: Response, status: int, text: str) -> None:
    assert response.status == status
    assert text in response.detail


async def test_created_has_an_empty_body(world: World) -> None:
    response = await world.call()
    assert response.status == 201
    assert response.body == b""
    assert response.headers == {
        "content-length": "0",
        "server": "Penstock",
        "date": "Tue, 14 Nov 2023 22:13:20 GMT",
    }


async def test_error_says_what_when_and_under_which_number(world: World) -> None:
    response = await world.call("/nothing/messages", token=world.token("https://localhost"))
    assert response.status == 404
    assert response.detail == (
        "The messaging entity 'sb://contoso.example.net/nothing' could not be found. "
        "To know more visit https://aka.ms/sbResourceMgrExceptions. "
        "TrackingId:00000000000000000000000000000001, "
        "SystemTracker:contoso.example.net:nothing/messages, Timestamp:2023-11-14T22:13:20"
    )


async def test_date_moves_with_the_clock(world: World) -> None:
    await world.call()
    world.clock.advance(61_000)
    assert (await world.call()).headers["date"] == "Tue, 14 Nov 2023 22:14:21 GMT"


# --- 400 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", ["4", "-1", "00", "x", "%20"])
async def test_unknown_partition_is_a_bad_request(world: World, partition: str) -> None:
    response = await world.call(f"/events/partitions/{partition}/messages")
    refused(response, 400, "It should be between 0 and 3")


@pytest.mark.parametrize(
    "query", ["timeout=x", "timeout=-1", "timeout=0", "timeout=", "timeout=1.5", "Timeout=%00"]
)
async def test_timeout_that_is_none_is_a_bad_request(world: World, query: str) -> None:
    refused(await world.call(query=query), 400, "is not a whole number of seconds")
    assert world.stored() == []


async def test_query_without_an_end_is_a_bad_request(world: World) -> None:
    refused(await world.call(query="a=1&" * 40), 400, "too many parameters")
    refused(await world.call(query="a=1&" * 400), 400, "too many parameters")


@pytest.mark.parametrize(
    "query",
    ["timeout=60&api-version=2014-01", "api-version=2014-05", "timeout=999999", "other", "&&=&"],
)
async def test_query_of_the_documents_is_accepted(world: World, query: str) -> None:
    assert (await world.call(query=query)).status == 201


@pytest.mark.parametrize("host", [None, "", "a b", "host/path", "user@host", "h:x", "[::1"])
async def test_host_that_is_none_is_a_bad_request(world: World, host: str | None) -> None:
    refused(await world.call(host=host), 400, "needs a Host header")


@pytest.mark.parametrize("length", ["x", "-1", "1_0", "9" * 30, "+5", " "])
async def test_length_that_is_none_is_a_bad_request(world: World, length: str) -> None:
    refused(await world.call(length=length), 400, "is not a length")


async def test_impossible_name_is_a_bad_request(world: World) -> None:
    refused(await world.call("/events/publishers/a%00/messages"), 400, "publisher name")


# --- 403, 404, 405, 411 -------------------------------------------------------------------------


@pytest.mark.parametrize("status", [HubStatus.DISABLED, HubStatus.SEND_DISABLED])
async def test_disabled_hub_is_forbidden(world: World, status: HubStatus) -> None:
    world.change_hub(status=status)
    refused(await world.call(), 403, "is currently disabled for sending")


async def test_hub_that_only_delivers_nothing_still_takes(world: World) -> None:
    world.change_hub(status=HubStatus.RECEIVE_DISABLED)
    assert (await world.call()).status == 201


@pytest.mark.parametrize("name", ["dev", "DEV"])
async def test_revoked_publisher_is_forbidden(world: World, name: str) -> None:
    world.revoke("Dev")
    refused(await world.call(f"/events/publishers/{name}/messages"), 403, "was revoked")
    assert (await world.call("/events/publishers/other/messages")).status == 201


async def test_publisher_revoked_while_its_body_came_is_forbidden(world: World) -> None:
    pieces = [b"first", b"second"]
    path = "/events/publishers/dev/messages"
    response = await world.call(path, pieces, meanwhile=lambda: world.revoke("dev"))
    refused(response, 403, "was revoked")
    assert response.messages[0]["asked"] == 2
    assert world.stored() == []


@pytest.mark.parametrize("path", ["/", "/events", "/events/x", "/messages", "/$servicebus/x"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_path_that_means_nothing_is_not_found(world: World, path: str, method: str) -> None:
    refused(await world.call(path, method=method), 404, "nothing at this path")


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
async def test_messages_are_only_posted(world: World, method: str) -> None:
    response = await world.call(method=method)
    refused(response, 405, f"The method {method} is not supported")
    assert response.headers["allow"] == "POST"


async def test_length_is_required(world: World) -> None:
    refused(await world.call(length=None), 411, "needs a Content-Length")


# --- 413 ----------------------------------------------------------------------------------------


async def test_body_at_the_limit_leaves_room_for_its_section(world: World) -> None:
    most = limits.PUBLICATION_BYTES_STANDARD
    assert (await world.call(body=b"x" * (most - 8))).status == 201
    refused(await world.call(body=b"x" * (most - 7)), 413, f"has {most + 1} bytes as an AMQP")
    assert len(world.stored()) == 1


async def test_properties_count_too(world: World) -> None:
    body = b"x" * (limits.PUBLICATION_BYTES_STANDARD - 8)
    assert (await world.call(body=body, headers={"Own": "1"})).status == 413


@pytest.mark.parametrize("fields", [{"tier": Tier.DEDICATED}, {"limits": LimitSet.CURRENT}])
async def test_dedicated_or_current_namespace_takes_a_megabyte(
    world: World, fields: dict[str, Any]
) -> None:
    world.change_namespace(**fields)
    most = limits.PUBLICATION_BYTES_DEDICATED
    assert (await world.call(body=b"x" * (most - 8))).status == 201
    assert (await world.call(body=b"x" * (most + 1))).status == 413


# --- 408, 500, 503 ------------------------------------------------------------------------------


async def test_throttled_publication_is_told_when_to_come_again(world: World) -> None:
    world.change_namespace(throughput_units=1)
    answers = [await world.call(body=b"x" * 100_000) for _ in range(4)]
    assert [answer.status for answer in answers] == [201, 201, 503, 503]
    refused(answers[-1], 503, str(server_busy_error()))
    assert answers[-1].headers["retry-after"] == "4"
    world.clock.advance(1000)
    assert (await world.call(body=b"x" * 100_000)).status == 201
    assert len(world.stored()) == 3


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (LogFailed("the log stopped"), 500, None),
        (DiskFull("no room"), 500, None),
        (OperationCancelled("going down"), 503, "1"),
        (QuotaExceeded("enough"), 403, None),
    ],
)
async def test_log_that_fails_is_answered_with_its_error(
    world: World, error: PenstockError, status: int, retry_after: str | None
) -> None:
    world.logs.outcome = error
    response = await world.call("/events/partitions/0/messages")
    refused(response, status, str(error))
    assert response.headers.get("retry-after") == retry_after
    assert world.stored() == []


async def test_nothing_is_created_before_it_is_on_disk(world: World) -> None:
    world.logs.stands_still = True
    calling = asyncio.create_task(world.call())
    await _turns()
    assert not calling.done()
    world.release()
    assert (await calling).status == 201
    assert len(world.stored()) == 1


async def test_disk_that_takes_too_long_is_a_timeout(make_world: Any) -> None:
    world: World = make_world(deadline_s=0.01)
    world.logs.stands_still = True
    refused(await world.call(), 408, "were not on disk within 0.01 seconds")
    world.release()  # the answer is out; nobody is harmed by the late receipt
    await _turns()
    assert len(world.stored()) == 1
    assert (await world.call()).status == 201


async def test_too_much_waiting_for_the_disk_makes_the_server_busy(
    make_world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HTTP_HELD_BYTES_MAX", 2500)
    world: World = make_world()
    world.logs.stands_still = True
    waiting = [asyncio.create_task(world.call(body=b"x" * 1000)) for _ in range(2)]
    await _turns()
    response = await world.call(body=b"x" * 1000)
    refused(response, 503, "waits for the disk")
    assert response.headers["retry-after"] == "4"
    world.release()
    assert [(await each).status for each in waiting] == [201, 201]
    assert (await world.call(body=b"x" * 2500)).status == 201


async def test_what_timed_out_is_held_until_the_disk_has_it(
    make_world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HTTP_HELD_BYTES_MAX", 1500)
    world: World = make_world(deadline_s=0.01)
    world.logs.stands_still = True
    assert (await world.call(body=b"x" * 1000)).status == 408
    assert (await world.call(body=b"x" * 1000)).status == 503
    world.release()
    await _turns()
    assert (await world.call(body=b"x" * 1000)).status == 201


async def test_refused_publication_is_held_no_longer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HTTP_HELD_BYTES_MAX", 1500)
    headers = {"BrokerProperties": '{"PartitionKey":"' + "k" * 200 + '"}'}
    for _ in range(3):
        assert (await world.call(body=b"x" * 1000, headers=headers)).status == 400


async def test_our_own_fault_costs_one_request_and_is_logged(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: object, **options: object) -> None:
        raise ZeroDivisionError("a secret of ours")

    with monkeypatch.context() as patch:
        patch.setattr(world.broker, "hub", broken)
        response = await world.call()
    refused(response, 500, "unable to process the request")
    assert b"secret" not in response.body
    (record,) = (each for each in caplog.records if each.name == "penstock.http")
    assert record.levelno == logging.ERROR
    assert "id=00000000000000000000000000000001" in record.getMessage()
    assert record.exc_info is not None
    assert (await world.call()).status == 201


async def test_complaints_are_one_a_second(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.logs.outcome = LogFailed("the log stopped")
    for _ in range(5):
        assert (await world.call("/events/partitions/0/messages")).status == 500
    world.clock.advance(1000)
    assert (await world.call("/events/partitions/0/messages")).status == 500
    first, second = (each.getMessage() for each in caplog.records if each.name == "penstock.http")
    assert "left_out=0" in first
    assert "left_out=4" in second


async def test_request_is_given_up_when_the_service_stops(world: World) -> None:
    world.logs.stands_still = True
    calling = asyncio.create_task(world.call())
    await _turns()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    world.release()
    await _turns()
    assert len(world.stored()) == 1


# --- hostile texts ------------------------------------------------------------------------------


async def test_error_escapes_what_the_client_sent(world: World) -> None:
    response = await world.call("/%3Cscript%3E&\"'/messages", token=world.token("sb://localhost"))
    assert response.status == 404
    assert b"<script>" not in response.body
    assert "<script>" in response.detail


async def test_error_of_a_long_path_is_short(world: World) -> None:
    response = await world.call("/" + "x" * 7000)
    assert len(response.body) < 600


@pytest.mark.parametrize("text", ["\x00", "\x1b[31m", "\ud800", "\ufffe", "]]>", '<&>"'])
def test_any_text_is_well_formed_xml(text: str) -> None:
    element = ElementTree.fromstring(f'<a b="{xml_text(text)}">{xml_text(text)}</a>'.encode())
    assert element.text is not None


@pytest.mark.parametrize("what", ["refused", "unexpected"])
async def test_token_stands_in_no_answer_and_no_log(
    world: World,
    what: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    token = world.token(key="wrong" if what == "refused" else None)
    if what == "unexpected":
        monkeypatch.setattr(world.broker, "hub", None)
    response = await world.call(token=token)
    assert response.status == (401 if what == "refused" else 500)
    signature = token.partition("sig=")[2].partition("&")[0]
    assert signature not in response.body.decode()
    assert signature not in caplog.text


async def _turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# --- the log --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "policy", "expected"),
    [
        ("/nope/messages", "Root", "condition=amqp:not-found hub=nope group=- policy=Root"),
        ("/events/partitions/9/messages", "Sender", "hub=events group=- partition=9 policy=Sender"),
        ("/events/messages", "Listener", "condition=amqp:unauthorized-access hub=events"),
        ("/events/publishers/device-7/messages", "Listener", "publisher=device-7 policy=Listener"),
    ],
)
async def test_refusal_is_logged_once_with_the_clients_id(
    world: World, caplog: pytest.LogCaptureFixture, path: str, policy: str, expected: str
) -> None:
    response = await world.call(path, token=world.token("https://contoso.example.net/", policy))
    assert 400 <= response.status < 500
    (line,) = [each.getMessage() for each in caplog.records if each.name == "penstock.refusals"]
    assert line.startswith("refused operation=post ")
    assert expected in line
    assert "id=00000000000000000000000000000001 " in line
    assert "TrackingId:00000000000000000000000000000001," in response.detail
    assert "sig=" not in line
