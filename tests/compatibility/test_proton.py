"""Qpid Proton, a plain AMQP 1.0 client: PLAIN and CBS, filters, drain, settlement, addresses."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

import pytest

# By name, not by import: the package is built from source and may be missing.
proton: Any = pytest.importorskip("proton", reason="python-qpid-proton is not installed")
reactor: Any = pytest.importorskip("proton.reactor")
utils: Any = pytest.importorskip("proton.utils")
Described, Message, symbol, ulong = proton.Described, proton.Message, proton.symbol, proton.ulong
LinkDetached, SendException = utils.LinkDetached, utils.SendException

if TYPE_CHECKING:
    from tests.compatibility.conftest import Spot, Takings
    from tests.conftest import Server

ROOT = "RootManageSharedAccessKey"
WAIT_S = 20
SELECTOR = "apache.org:selector-filter:string"

Connect = Callable[..., Any]


@pytest.fixture
def connect(server: Server) -> Iterator[Connect]:
    """A connection with SASL PLAIN (policy and key), or ANONYMOUS for CBS."""
    with ExitStack() as stack:

        def open_connection(
            user: str | None = ROOT, key: str | None = None, *, tls: bool = False, **options: Any
        ) -> Any:
            if user is not None:
                options |= {"user": user, "password": key or server.key, "allowed_mechs": "PLAIN"}
            else:
                options |= {"allowed_mechs": "ANONYMOUS"}
            if tls:
                domain = proton.SSLDomain(proton.SSLDomain.MODE_CLIENT)
                domain.set_trusted_ca_db(server["ca_file"])
                domain.set_peer_authentication(proton.SSLDomain.VERIFY_PEER_NAME)
                options["ssl_domain"] = domain
            url = f"amqps://{server['amqps']}" if tls else f"amqp://{server['amqp']}"
            connection = utils.BlockingConnection(
                url, timeout=WAIT_S, allow_insecure_mechs=True, **options
            )
            stack.callback(_close, connection)
            return connection

        yield open_connection


def _close(connection: Any) -> None:
    try:
        connection.close()
    except Exception:  # noqa: BLE001 - it may be gone: some tests lose it on purpose
        return


def source(spot: Spot, group: str = "$Default") -> str:
    return f"{spot.hub}/ConsumerGroups/{group}/Partitions/{spot.partition}"


def target(spot: Spot) -> str:
    return f"{spot.hub}/Partitions/{spot.partition}"


def publish(connection: Any, address: str, *bodies: Any) -> None:
    sender = connection.create_sender(address)
    for body in bodies:
        sender.send(body if isinstance(body, Message) else Message(body=body))
    sender.close()


def read(connection: Any, address: str, count: int, *options: Any) -> list[Any]:
    receiver = connection.create_receiver(address, credit=count, options=list(options))
    messages = [receiver.receive(WAIT_S) for _ in range(count)]
    receiver.close()
    return messages


def bodies(messages: list[Any]) -> list[Any]:
    return [message.body for message in messages]


@pytest.mark.parametrize("tls", [False, True], ids=["tcp", "tls"])
def test_plain_publishes_and_reads(connect: Connect, spot: Spot, tls: bool) -> None:
    connection = connect(tls=tls)
    publish(connection, target(spot), "one", b"two", {"three": 3})
    received = read(connection, source(spot), 3)
    assert bodies(received) == ["one", b"two", {"three": 3}]
    numbers = [message.annotations["x-opt-sequence-number"] for message in received]
    assert numbers == [0, 1, 2]
    assert all(isinstance(m.annotations["x-opt-offset"], str) for m in received)


def test_plain_with_a_wrong_key_is_refused(connect: Connect) -> None:
    with pytest.raises(proton.ConnectionException, match=r"[Aa]uthentication failed"):
        connect(key="wrong")
    with pytest.raises(proton.ConnectionException, match=r"[Aa]uthentication failed"):
        connect("nobody", "wrong")


def test_plain_has_the_rights_of_its_policy(connect: Connect, spot: Spot) -> None:
    sender = connect("sender", "key-that-only-sends")
    publish(sender, target(spot), "one")
    refusal = refused(lambda: read(sender, source(spot), 1))
    assert refusal == "amqp:unauthorized-access"
    listener = connect("listener", "key-that-only-listens")
    assert bodies(read(listener, source(spot), 1)) == ["one"]
    assert refused(lambda: publish(listener, target(spot), "x")) == "amqp:unauthorized-access"


def refused(act: Callable[[], object]) -> str:
    """The condition with which the link was refused."""
    with pytest.raises(LinkDetached) as raised:
        act()
    condition = raised.value.condition
    assert raised.value.link.is_sender or raised.value.link.remote_source.address is None
    return str(condition)


@pytest.mark.parametrize(
    ("address", "condition"),
    [
        ("no-such-hub/Partitions/0", "amqp:not-found"),
        ("{hub}/Partitions/32", "com.microsoft:argument-out-of-range"),
        ("{hub}/Partitions/XYZ", "com.microsoft:argument-out-of-range"),
        ("{hub}/Partitions/-1", "com.microsoft:argument-out-of-range"),
        ("{hub}/Partitions/00", "com.microsoft:argument-out-of-range"),
        ("{hub}/ConsumerGroups/$Default/Partitions/0", "amqp:not-allowed"),
    ],
)
def test_senders_to_nowhere_are_refused(
    connect: Connect, spot: Spot, address: str, condition: str
) -> None:
    connection = connect()
    assert refused(lambda: connection.create_sender(address.format(hub=spot.hub))) == condition
    publish(connection, target(spot), "the connection lives")


@pytest.mark.parametrize(
    ("address", "condition"),
    [
        ("no-such-hub/ConsumerGroups/$Default/Partitions/0", "amqp:not-found"),
        ("{hub}/ConsumerGroups/nobody/Partitions/0", "amqp:not-found"),
        ("{hub}/ConsumerGroups/$Default/Partitions/32", "com.microsoft:argument-out-of-range"),
        ("{hub}/ConsumerGroups/$Default/Partitions/-", "com.microsoft:argument-out-of-range"),
        ("{hub}", "amqp:not-allowed"),
        ("{hub}/Partitions/0", "amqp:not-allowed"),
    ],
)
def test_readers_of_nothing_are_refused(
    connect: Connect, spot: Spot, address: str, condition: str
) -> None:
    connection = connect()
    assert refused(lambda: connection.create_receiver(address.format(hub=spot.hub))) == condition


@pytest.mark.parametrize(
    "form",
    [
        "{hub}/ConsumerGroups/$Default/Partitions/{partition}",
        "/{hub}/ConsumerGroups/$Default/Partitions/{partition}",
        "amqps://localhost:1234/{hub}/ConsumerGroups/$Default/Partitions/{partition}",
        "{hub}/consumergroups/$default/partitions/{partition}",
        "{hub}/ConsumerGroups/%24Default/Partitions/{partition}",
    ],
)
def test_addresses_are_read_in_every_form(connect: Connect, spot: Spot, form: str) -> None:
    connection = connect()
    publish(connection, "/" + target(spot), "one")
    publish(connection, "amqps://localhost/" + target(spot).replace("Parti", "parti"), "two")
    address = form.format(hub=spot.hub, partition=spot.partition)
    assert bodies(read(connection, address, 2)) == ["one", "two"]


def expression(text: str, key: str = SELECTOR, descriptor: object = None) -> Any:
    described = Described(symbol(SELECTOR) if descriptor is None else descriptor, text)
    return reactor.Filter({symbol(key): described})


OFFSET = "amqp.annotation.x-opt-offset"
SEQUENCE = "amqp.annotation.x-opt-sequence-number"


@pytest.mark.parametrize(
    ("option", "first"),
    [
        (None, 0),
        (reactor.Selector(f"{SEQUENCE} > '1'"), 2),
        (expression(f"{SEQUENCE} >= '1'"), 1),
        (expression(f"{SEQUENCE} > 1"), 2),
        (expression(f"{OFFSET} > '-1'"), 0),
        (expression(f"{OFFSET} > -1"), 0),
        (expression(f"{SEQUENCE} >= '2'", descriptor=ulong(0x468C00000004)), 2),
        (expression(f"{SEQUENCE} >= 2", descriptor=ulong(0x137000000A)), 2),
        (expression("amqp.annotation.x-opt-enqueued-time > '0'"), 0),
    ],
    ids=["none", "selector", "inclusive", "bare", "start", "bare start", "js", "net", "time"],
)
def test_filters_are_read_in_every_form(
    connect: Connect, spot: Spot, option: Any, first: int
) -> None:
    connection = connect()
    publish(connection, target(spot), 0, 1, 2)
    options = () if option is None else (option,)
    assert bodies(read(connection, source(spot), 1, *options)) == [first]


@pytest.mark.parametrize(
    "text",
    ["nonsense", f"{OFFSET} < '1'", f"{SEQUENCE} > 'x'", "x" * 5000],
    ids=["nonsense", "less", "no number", "long"],
)
def test_filters_that_say_nothing_are_argument_errors(
    connect: Connect, spot: Spot, text: str
) -> None:
    connection = connect()
    publish(connection, target(spot), 0)
    condition = refused(lambda: read(connection, source(spot), 1, expression(text)))
    assert condition == "com.microsoft:argument-error"


def test_latest_begins_at_the_attach_not_at_the_first_credit(connect: Connect, spot: Spot) -> None:
    connection = connect()
    publish(connection, target(spot), "before")
    latest = expression(f"{OFFSET} > '@latest'")
    receiver = connection.create_receiver(source(spot), credit=0, options=[latest])
    publish(connection, target(spot), "after")
    receiver.link.flow(10)
    assert receiver.receive(WAIT_S).body == "after"


def test_credit_bounds_what_is_sent(connect: Connect, spot: Spot) -> None:
    connection = connect()
    publish(connection, target(spot), *range(10))
    receiver = connection.create_receiver(source(spot), credit=0)  # else Proton tops it up itself
    receiver.link.flow(3)
    connection.wait(lambda: len(receiver.fetcher.incoming) == 3, timeout=WAIT_S)
    nothing_comes(connection, receiver, waiting=3)
    assert [receiver.receive(WAIT_S).body for _ in range(3)] == [0, 1, 2]


def nothing_comes(connection: Any, receiver: Any, *, waiting: int) -> None:
    """`receive` would grant credit by itself, so the queue behind it is watched instead."""
    with pytest.raises(proton.Timeout):
        connection.wait(lambda: len(receiver.fetcher.incoming) > waiting, timeout=0.3)
    assert receiver.link.credit == 0


def test_drain_gives_back_the_credit(connect: Connect, spot: Spot) -> None:
    connection = connect()
    publish(connection, target(spot), "one", "two")
    receiver = connection.create_receiver(source(spot), credit=0)
    receiver.link.drain(10)
    connection.wait(lambda: receiver.link.credit == 0, timeout=WAIT_S, msg="drain")
    publish(connection, target(spot), "three")  # not sent: the credit is used up
    nothing_comes(connection, receiver, waiting=2)
    assert [receiver.receive(WAIT_S).body for _ in range(3)] == ["one", "two", "three"]


def test_settled_sends_are_stored(connect: Connect, spot: Spot) -> None:
    connection = connect()
    sender = connection.create_sender(target(spot), options=reactor.AtMostOnce())
    for number in range(50):
        sender.send(Message(body=number))
    assert bodies(read(connection, source(spot), 50)) == list(range(50))


def test_settlement_modes_are_echoed(connect: Connect, spot: Spot) -> None:
    class Modes(reactor.LinkOption):  # type: ignore[misc]  # it is Any here
        def apply(self, link: Any) -> None:
            link.snd_settle_mode = link.SND_UNSETTLED
            link.rcv_settle_mode = link.RCV_SECOND

    connection = connect()
    for link in (
        connection.create_sender(target(spot), options=Modes()).link,
        connection.create_receiver(source(spot), options=Modes()).link,
    ):
        assert link.remote_snd_settle_mode == link.SND_UNSETTLED
        assert link.remote_rcv_settle_mode == link.RCV_SECOND


def test_large_messages_cross_in_many_frames(connect: Connect, spot: Spot) -> None:
    connection = connect()
    body = bytes(range(256)) * 1020
    publish(connection, target(spot), "before", body, "after")
    assert bodies(read(connection, source(spot), 3)) == ["before", body, "after"]


def test_message_over_the_limit_is_rejected_and_the_link_lives(
    connect: Connect, spot: Spot
) -> None:
    connection = connect()
    sender = connection.create_sender(target(spot))
    assert sender.link.remote_max_message_size == 262_144
    with pytest.raises(SendException) as raised:
        sender.send(Message(body=b"x" * 262_144))
    assert raised.value.state == proton.Disposition.REJECTED
    delivery = sender.send(Message(body="small"))
    assert delivery.remote_state == proton.Disposition.ACCEPTED
    assert bodies(read(connection, source(spot), 1)) == ["small"]


def test_publisher_is_its_partition_key(connect: Connect, takings: Takings) -> None:
    hub, connection = takings.hub(), connect()
    publish(connection, f"{hub}/Publishers/key1", "one")
    publish(connection, f"{hub}/publishers/key1", Message(body="two", annotations=key("key1")))
    received = read(connection, f"{hub}/ConsumerGroups/$Default/Partitions/3", 2)
    assert bodies(received) == ["one", "two"]
    for message in received:
        assert message.annotations["x-opt-partition-key"] == "key1"
        assert message.annotations["x-opt-publisher"] == "key1"
    with pytest.raises(SendException):
        other = Message(body="three", annotations=key("other"))
        publish(connection, f"{hub}/Publishers/key1", other)


def key(text: str) -> dict[Any, str]:
    return {symbol("x-opt-partition-key"): text}


def test_idle_connection_lives_through_its_heartbeats(connect: Connect, spot: Spot) -> None:
    connection = connect(heartbeat=1)
    receiver = connection.create_receiver(source(spot), credit=1)
    with pytest.raises(proton.Timeout):
        receiver.receive(3.5)  # Proton ends a connection that is silent for its idle time-out
    publish(connection, target(spot), "still here")
    assert receiver.receive(WAIT_S).body == "still here"


# --- CBS ----------------------------------------------------------------------------------------


def sas(server: Server, path: str, *, lifetime_s: int = 600, signing_key: str | None = None) -> str:
    encoded, expires = quote_plus(f"sb://localhost/{path}"), int(time.time()) + lifetime_s
    signing = (signing_key or server.key).encode()
    digest = hmac.new(signing, f"{encoded}\n{expires}".encode(), hashlib.sha256).digest()
    signature = quote_plus(base64.b64encode(digest))
    return f"SharedAccessSignature sr={encoded}&sig={signature}&se={expires}&skn={ROOT}"


class Node:
    """A request and response pair of links on `$cbs` or `$management`."""

    def __init__(self, connection: Any, address: str) -> None:
        self._receiver = connection.create_receiver(address, credit=10)
        self._sender = connection.create_sender(address)

    def ask(self, body: object = None, *, message_id: object = None, **properties: object) -> Any:
        self._sender.send(
            Message(
                body=body,
                id="request" if message_id is None else message_id,
                reply_to="me",
                properties=properties,
            )
        )
        return self._receiver.receive(WAIT_S)


def put_token(node: Node, path: str, token: object, **changes: object) -> Any:
    request: dict[str, object] = {
        "operation": "put-token",
        "type": "servicebus.windows.net:sastoken",
        "name": f"sb://localhost/{path}",
    }
    return node.ask(token, **(request | changes))


def test_cbs_lets_a_connection_in(connect: Connect, server: Server, spot: Spot) -> None:
    connection = connect(None)
    assert refused(lambda: publish(connection, target(spot), "x")) == "amqp:unauthorized-access"
    answer = put_token(Node(connection, "$cbs"), spot.hub, sas(server, spot.hub))
    assert answer.properties == {"status-code": 202, "status-description": "Accepted"}
    assert isinstance(answer.properties["status-code"], proton.int32)
    publish(connection, target(spot), "one")
    assert bodies(read(connection, source(spot), 1)) == ["one"]


@pytest.mark.parametrize(
    "message_id",
    ["text", ulong(7), uuid.UUID(int=5), b"bytes"],
    ids=["str", "ulong", "uuid", "bin"],
)
def test_answer_names_its_request_by_the_same_type(
    connect: Connect, server: Server, spot: Spot, message_id: object
) -> None:
    node = Node(connect(None), "$cbs")
    answer = put_token(node, spot.hub, sas(server, spot.hub), message_id=message_id)
    got = answer.correlation_id
    if isinstance(message_id, bytes):
        assert isinstance(got, memoryview)  # how Proton hands out binary ids
        got = bytes(got)
    assert got == message_id
    assert isinstance(got, int) == isinstance(message_id, int)


def test_cbs_says_why_a_token_is_refused(connect: Connect, server: Server, spot: Spot) -> None:
    node = Node(connect(None), "$cbs")
    good = sas(server, spot.hub)
    refusals = [
        (put_token(node, spot.hub, sas(server, spot.hub, signing_key="wrong")), 401),
        (put_token(node, spot.hub, sas(server, spot.hub, lifetime_s=-5)), 401),
        (put_token(node, spot.hub, "SharedAccessSignature nonsense"), 401),
        (put_token(node, spot.hub, ""), 401),
        (put_token(node, spot.hub, 7), 401),
        (put_token(node, spot.hub, good, type="jwt"), 401),
        (put_token(node, "no-such-hub", sas(server, "no-such-hub")), 404),
    ]
    for answer, status in refusals:
        assert answer.properties["status-code"] == status
        assert isinstance(answer.properties["error-condition"], symbol)
        assert answer.properties["status-description"]
    texts = [answer.properties["status-description"] for answer, _ in refusals]
    assert "InvalidSignature: The token has an invalid signature." in texts[0]
    assert "ExpiredToken" in texts[1]
    assert "MalformedToken" in texts[2]
    assert "could not be found" in texts[6]
    assert put_token(node, spot.hub, good).properties["status-code"] == 202


def test_renewed_token_keeps_the_link_and_expiry_ends_it(
    connect: Connect, server: Server, spot: Spot
) -> None:
    connection = connect(None)
    cbs = Node(connection, "$cbs")
    put_token(cbs, spot.hub, sas(server, spot.hub, lifetime_s=3))
    sender = connection.create_sender(target(spot))
    receiver = connection.create_receiver(source(spot), credit=10)
    put_token(cbs, spot.hub, sas(server, spot.hub, lifetime_s=7))
    with pytest.raises(proton.Timeout):
        receiver.receive(4.2)  # the first token is over, the second holds
    sender.send(Message(body="alive"))
    assert receiver.receive(WAIT_S).body == "alive"
    with pytest.raises(LinkDetached) as raised:
        receiver.receive(10)
    assert raised.value.condition == "amqp:unauthorized-access"
    with pytest.raises((LinkDetached, proton.ProtonException)):
        sender.send(Message(body="too late"))


# --- $management --------------------------------------------------------------------------------


def test_management_answers_in_the_types_that_the_sdks_cast_to(
    connect: Connect, takings: Takings
) -> None:
    hub, connection = takings.hub(), connect()
    publish(connection, f"{hub}/Partitions/1", "one")
    node = Node(connection, "$management")
    read_hub = {"operation": "READ", "type": "com.microsoft:eventhub", "name": hub}
    answer = node.ask(**read_hub)
    assert answer.properties["status-code"] == 200
    properties = answer.body
    assert {name: type(value).__name__ for name, value in properties.items()} == {
        "name": "str",
        "type": "str",
        "created_at": "timestamp",
        "partition_count": "int32",
        "partition_ids": "Array",
        "georeplication_factor": "int32",
    }
    assert properties["partition_ids"].elements == ("0", "1", "2", "3")
    read_partition = read_hub | {"type": "com.microsoft:partition", "partition": "1"}
    partition = node.ask(**read_partition).body
    kinds = {name: type(value).__name__ for name, value in partition.items()}
    assert kinds["begin_sequence_number"] == kinds["last_enqueued_sequence_number"] == "int"
    assert kinds["last_enqueued_offset"] == "str"
    assert kinds["last_enqueued_time_utc"] == "timestamp"
    assert kinds["is_partition_empty"] == "bool"
    assert partition["last_enqueued_sequence_number"] == 0
    empty = node.ask(**(read_partition | {"partition": "0"})).body
    assert (empty["begin_sequence_number"], empty["last_enqueued_sequence_number"]) == (-1, -1)
    assert (empty["last_enqueued_offset"], empty["is_partition_empty"]) == ("-1", True)
    assert int(empty["last_enqueued_time_utc"]) == -62_135_596_800_000


@pytest.mark.parametrize(
    ("change", "status", "condition"),
    [
        ({"name": "no-such-hub"}, 404, "amqp:not-found"),
        (
            {"type": "com.microsoft:partition", "partition": "XYZ"},
            400,
            "com.microsoft:argument-out-of-range",
        ),
        ({"operation": "DELETE"}, 400, None),
        ({"type": "com.microsoft:nonsense"}, 400, None),
        ({"security_token": "SharedAccessSignature nonsense"}, 401, None),
    ],
)
def test_management_refuses_with_a_status(
    connect: Connect,
    takings: Takings,
    change: dict[str, object],
    status: int,
    condition: str | None,
) -> None:
    node = Node(connect(), "$management")
    good: dict[str, object] = {
        "operation": "READ",
        "type": "com.microsoft:eventhub",
        "name": takings.hub(),
    }
    answer = node.ask(**(good | change))
    assert answer.properties["status-code"] == status
    assert isinstance(answer.properties["error-condition"], symbol)
    if condition is not None:
        assert answer.properties["error-condition"] == condition


def test_management_needs_a_token_where_nobody_signed_in(
    connect: Connect, server: Server, takings: Takings
) -> None:
    hub = takings.hub()
    node = Node(connect(None), "$management")
    read_hub: dict[str, object] = {
        "operation": "READ",
        "type": "com.microsoft:eventhub",
        "name": hub,
    }
    assert node.ask(**read_hub).properties["status-code"] == 401
    answer = node.ask(**(read_hub | {"security_token": sas(server, hub)}))
    assert answer.properties["status-code"] == 200
