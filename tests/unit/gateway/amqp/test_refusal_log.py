"""Every refusal is one line in the log, with the id that the client sees; floods are bounded."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import pytest

from penstock.amqp.link import LinkRole
from penstock.amqp.message import ValueBody
from penstock.gateway import refusal_log
from penstock.gateway.refusal_log import RefusalLog
from penstock.model import limits
from penstock.model.clock import ManualClock
from penstock.model.entities import Right
from penstock.model.errors import NotFound
from penstock.service.logging_setup import BURST, RepeatLimit

if TYPE_CHECKING:
    from tests.unit.gateway.amqp.conftest import Peer, World

ROOT = "RootManageSharedAccessKey"
FIELD = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)')


def refusals(caplog: pytest.LogCaptureFixture) -> list[dict[str, str]]:
    lines = [each.getMessage() for each in caplog.records if each.name == "penstock.refusals"]
    assert all(line.startswith("refused operation=") for line in lines)
    return [dict(FIELD.findall(line)) for line in lines]


def tracking_id(text: str | None) -> str:
    match = re.search(r"TrackingId:([^,]+),", text or "")
    assert match is not None
    return match[1]


@pytest.mark.parametrize(
    ("address", "role", "expected"),
    [
        ("nope", LinkRole.SENDER, {"hub": "nope", "condition": "amqp:not-found"}),
        (
            "eh1/ConsumerGroups/nobody/Partitions/0",
            LinkRole.RECEIVER,
            {"hub": "eh1", "group": "nobody", "partition": "0", "condition": "amqp:not-found"},
        ),
        (
            "eh1/ConsumerGroups/$Default/Partitions/99",
            LinkRole.RECEIVER,
            {"partition": "99", "condition": "com.microsoft:argument-out-of-range"},
        ),
        ("eh1", LinkRole.RECEIVER, {"hub": "eh1", "condition": "amqp:not-allowed"}),
        (None, LinkRole.SENDER, {"hub": "-", "condition": "amqp:not-allowed"}),
    ],
)
def test_refused_attach_is_one_line_with_the_clients_id(
    peer: Peer,
    caplog: pytest.LogCaptureFixture,
    address: str | None,
    role: LinkRole,
    expected: dict[str, str],
) -> None:
    error = peer.refusal(address, role)
    (line,) = refusals(caplog)
    assert line.items() >= expected.items()
    assert line["operation"] == "attach"
    assert (line["policy"], line["peer"]) == (ROOT, "192.0.2.1:50000")
    assert line["id"] == tracking_id(error.description) == peer.connection.id


def test_missing_right_names_the_policy_that_lacks_it(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    peer = world.peer().authorised(rule="listener")
    peer.refusal("eh1", LinkRole.SENDER)
    (line,) = refusals(caplog)
    assert (line["condition"], line["policy"]) == ("amqp:unauthorized-access", "listener")
    assert "'Send' claim(s) are required" in line["text"]


def test_quota_of_readers_is_logged(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(5):
        peer.receiver()
    peer.refusal("eh1/ConsumerGroups/$Default/Partitions/0", LinkRole.RECEIVER)
    (line,) = refusals(caplog)
    assert line["condition"] == "amqp:resource-limit-exceeded"


@pytest.mark.parametrize(
    ("path", "token", "kind", "expected"),
    [
        ("nope", {}, "sas", {"hub": "nope", "condition": "amqp:not-found", "policy": ROOT}),
        (
            "eh1/ConsumerGroups/readers",
            {"rule": "listener", "key": "wrong"},
            "sas",
            {"hub": "eh1", "group": "readers", "policy": "listener"},
        ),
        ("eh1", {}, "jwt", {"hub": "eh1", "condition": "com.microsoft:auth-failed"}),
    ],
)
def test_refused_token_is_one_line_without_the_token(
    world: World,
    caplog: pytest.LogCaptureFixture,
    path: str,
    token: dict[str, Any],
    kind: str,
    expected: dict[str, str],
) -> None:
    peer = world.peer().opened()
    types = {"sas": "servicebus.windows.net:sastoken", "jwt": "jwt"}
    asked = {
        "operation": "put-token",
        "type": types[kind],
        "name": f"sb://contoso.example.net/{path}",
    }
    answer = peer.request("$cbs", asked, body=ValueBody(world.token(path, **token)))
    (line,) = refusals(caplog)
    assert line.items() >= expected.items()
    assert (line["operation"], line["id"]) == ("put-token", tracking_id(answer.text))
    assert "sig=" not in caplog.text
    assert "SharedAccessSignature sr" not in caplog.text


def test_refused_management_request_is_one_line(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    asked = {
        "operation": "READ",
        "type": "com.microsoft:partition",
        "name": "eh1",
        "partition": "99",
    }
    answer = peer.request("$management", asked)
    (line,) = refusals(caplog)
    assert (line["operation"], line["hub"], line["partition"]) == ("read", "eh1", "99")
    assert line["id"] == tracking_id(answer.text)


def test_wrong_password_of_sasl_plain_is_one_line(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    peer = world.peer()
    peer.mechanism, peer.response = "PLAIN", b"\0listener\0guessed-key"
    peer.engine.start()
    peer.run()
    (line,) = refusals(caplog)
    assert (line["operation"], line["policy"]) == ("sasl", "listener")
    assert "guessed-key" not in caplog.text


def test_link_that_the_service_ends_is_one_line(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    peer = world.peer().authorised(rule="listener")
    link = peer.receiver()
    world.put_rule("listener", Right.LISTEN, "another-key")
    peer.run()
    error = peer.detach_error(link)
    (line,) = refusals(caplog)
    assert (line["operation"], line["group"]) == ("detach", "$default")
    assert error is not None
    assert line["id"] == tracking_id(error.description)


@pytest.mark.parametrize("settled", [False, True])
def test_refused_publication_is_one_line(
    peer: Peer, caplog: pytest.LogCaptureFixture, settled: bool
) -> None:
    """A settled publication has no answer: its sender learns of the refusal nowhere else."""
    link = peer.sender("eh1/Partitions/1")
    assert link.send(b"no message", settled=settled) is not None
    peer.run()
    (line,) = refusals(caplog)
    assert (line["operation"], line["condition"]) == ("publish", "amqp:decode-error")
    assert (line["hub"], line["partition"], line["policy"]) == ("eh1", "1", ROOT)
    assert (line["peer"], line["id"]) == (peer.connection.transport.peer, peer.connection.id)


def test_end_of_a_connection_names_its_id(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    peer.lose()
    (line,) = [each.getMessage() for each in caplog.records if "connection ended" in each.msg]
    assert f"connection ended id={peer.connection.id} peer=192.0.2.1:50000 " in line


def test_what_a_peer_writes_stays_within_its_field(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    peer.refusal('x id=1\nrefused operation="a', LinkRole.SENDER)
    (line,) = refusals(caplog)
    assert line["id"] == peer.connection.id
    assert line["hub"] == r'"x id=1\\x0arefused operation=\"a"'
    assert "\n" not in caplog.messages[-1]


# --- bounds -------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def record(log: RefusalLog, address: str, number: int = 0) -> None:
    error = NotFound("There is no such hub.")
    peer = f"{address}:{number}"
    log.record("attach", error, address=address, peer=peer, tracking_id="i", path=("nope",))


def test_flood_of_one_address_is_bounded_and_hides_no_other(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    log = RefusalLog(clock.monotonic_ms)
    for number in range(1_000):
        record(log, "192.0.2.1", number)
    assert len(refusals(caplog)) == refusal_log.LINES_PER_ADDRESS_MAX
    record(log, "192.0.2.2")
    assert refusals(caplog)[-1]["peer"] == "192.0.2.2:0"
    clock.advance(refusal_log.PERIOD_MS)
    record(log, "192.0.2.1")
    assert refusals(caplog)[-1]["left_out"] == str(1_000 - refusal_log.LINES_PER_ADDRESS_MAX)


def test_flood_of_many_addresses_is_bounded(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    log = RefusalLog(clock.monotonic_ms)
    for number in range(2 * refusal_log.LINES_MAX):
        record(log, f"192.0.2.{number}")
    assert len(refusals(caplog)) == refusal_log.LINES_MAX
    clock.advance(refusal_log.PERIOD_MS)
    record(log, "198.51.100.1")
    assert refusals(caplog)[-1]["left_out_of_all"] == str(refusal_log.LINES_MAX)


def test_memory_of_addresses_is_bounded(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ADDRESSES_REMEMBERED_MAX", 10)
    log = RefusalLog(clock.monotonic_ms)
    for number in range(100):
        record(log, f"192.0.2.{number}")
    assert len(log._by_address) == 10


def test_lines_pass_the_filter_for_repeated_warnings(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    thinning = RepeatLimit(clock.monotonic_ms)
    log = RefusalLog(clock.monotonic_ms)
    for number in range(BURST + 10):
        record(log, f"192.0.2.{number}")
    assert all(thinning.filter(each) for each in caplog.records)
    assert len(caplog.records) == BURST + 10
