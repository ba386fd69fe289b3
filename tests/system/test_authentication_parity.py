"""One table of tokens and targets through both doors, AMQP and HTTP, over real sockets: what one
lets in the other does, and no token reaches further than it was signed for."""

from __future__ import annotations

import asyncio
import hmac
import itertools
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import msgspec
import pytest

from penstock.amqp.message import DataBody, Message, ValueBody, encode_message
from penstock.broker.broker import Broker
from penstock.catalog.api import Catalog
from penstock.client import ClientError, connect, parse_connection_string
from penstock.client.links import RequestResponseClient
from penstock.gateway.amqp.context import AmqpContext
from penstock.gateway.amqp.server import AmqpServer
from penstock.gateway.guard import AuthDelay, Guard
from penstock.gateway.http.publish import PublishEndpoint
from penstock.gateway.http.server import HttpServer
from penstock.log.memory import MemoryLogStore
from penstock.model.clock import ManualClock
from penstock.model.entities import AuthorizationRule, Hub, Namespace, Right, Secret
from penstock.model.names import HubName, NamespaceName, RuleName
from penstock.service.authorities import CatalogAuthorities

HOST = "contoso.example.net"
OTHER_HOST = "fabrikam.example.net"
HUBS = {"contoso": ("events", "events1", "plant", "plant/line"), "fabrikam": ("events", "own")}
LOOPBACK = ("localhost", "127.0.0.1", "127.0.0.2")
SHARED_HOST = "events.example.net"
DEADLINE_S = 30.0
AT_ONCE = 8
YES, NO = True, False

# name of a policy -> namespace, hub, rights, primary key; the secondary one has "-2" behind it
RULES = {
    "Root": ("contoso", None, Right.ALL, "root"),
    "Sender": ("contoso", None, Right.SEND, "send"),
    "Listener": ("contoso", None, Right.LISTEN, "listen"),
    "HubSend": ("contoso", "events", Right.SEND, "hub-send"),
    "HubListen": ("contoso", "events", Right.LISTEN, "hub-listen"),
    "PlantSend": ("contoso", "plant", Right.SEND, "plant-send"),
    "LineSend": ("contoso", "plant/line", Right.SEND, "line-send"),
    "Fabrikam": ("fabrikam", None, Right.ALL, "fabrikam"),
}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A token, and where it is used to send: `target` is escaped, as both doors take it."""

    sr: str  # before it is escaped
    target: str = "events"
    host: str = HOST
    policy: str = "Root"
    key: str | None = None
    se: str | int = 3600  # an int: seconds from now on
    escaping: str = "upper"
    reaches: bool

    def token(self, now_s: int) -> str:
        raw = quote(self.sr, safe="", errors="surrogatepass")
        if self.escaping == "lower":  # as Go does it (protocol.md 2.5)
            raw = raw.lower()
        key = RULES[self.policy][3] if self.key is None else self.key
        se = now_s + self.se if isinstance(self.se, int) else self.se
        digest = hmac.digest(key.encode(), f"{raw}\n{se}".encode(), "sha256")
        sig = quote(b64encode(digest), safe="")
        return f"SharedAccessSignature sr={raw}&sig={sig}&se={se}&skn={self.policy}"


# --- the table ----------------------------------------------------------------------------------

PARTITION, PUBLISHER = "events/partitions/0", "events/publishers/dev"

# what a token is signed for, below the host; where it is used; whether it is good there
SCOPES = [
    ("", "events", YES),
    ("", PARTITION, YES),
    ("", PUBLISHER, YES),
    ("", "plant/line", YES),
    ("events", "events", YES),
    ("events/", "events", YES),
    ("EVENTS", "events", YES),
    ("events", "Events", YES),
    ("%65vents", "events", YES),
    ("events", "%65vents", YES),
    ("events", PARTITION, YES),
    ("events", PUBLISHER, YES),
    ("events", "events1", NO),
    ("events", "plant/line", NO),
    ("event", "events", NO),
    ("events1", "events", NO),
    ("e", "events", NO),
    ("events/messages", "events", YES),
    ("events/messages", PARTITION, NO),
    ("events/messages", PUBLISHER, NO),
    ("events/messages/messages", "events", NO),
    (PARTITION, PARTITION, YES),
    (f"{PARTITION}/messages", PARTITION, YES),
    (PARTITION, "events/Partitions/1", NO),
    (PARTITION, "events", NO),
    (PARTITION, PUBLISHER, NO),
    (PARTITION, "plant/partitions/0", NO),
    ("events/partitions", PARTITION, YES),
    (PUBLISHER, PUBLISHER, YES),
    (f"{PUBLISHER}/messages", PUBLISHER, YES),
    ("events/publisher/dev", PUBLISHER, YES),
    (PUBLISHER, "events/publisher/dev", YES),
    (PUBLISHER, "events/Publishers/DEV", YES),
    (PUBLISHER, "events/publishers/dev1", NO),
    (PUBLISHER, "events/publishers/de", NO),
    (PUBLISHER, "events/publishers/dev%2F1", NO),
    (PUBLISHER, "events/publishers/dev%20", NO),
    (PUBLISHER, "events1/publishers/dev", NO),
    (PUBLISHER, "events", NO),
    (PUBLISHER, PARTITION, NO),
    ("events/publishers", PUBLISHER, YES),
    ("events/publishers/messages", PUBLISHER, NO),
    ("events/publishers/messages", "events/publishers/messages", YES),
    ("events/publishers/a/b", "events/publishers/a%2Fb", YES),
    ("events/publishers/a b", "events/publishers/a%20b", YES),
    ("events/publishers/a%20b", "events/publishers/a%20b", YES),
    ("events/publishers/%2541", "events/publishers/A", NO),
    ("events/publishers/%61lice", "events/publishers/alice", NO),
    ("events/publisher/dev/%2D1", "events/publishers/dev%2F-1", NO),
    ("events/publishers/%2561lice", "events/publishers/%2561lice", YES),
    ("events/publishers/\u212a", "events/publishers/k", NO),
    ("events/publishers/stra\u00dfe", "events/publishers/strasse", NO),
    ("events/consumergroups/$default", "events", NO),
    ("plant", "plant", YES),
    ("plant", "plant/line", YES),
    ("plant/line", "plant/line", YES),
    ("plant/line/messages", "plant/line", YES),
    ("plant/messages", "plant/line", NO),
    ("plant/lin", "plant/line", NO),
    ("plant/line", "plant", NO),
    ("messages", "events", NO),
]
HONEST_HOSTS = [
    *(f"{scheme}://{HOST}" for scheme in ("sb", "amqp", "amqps", "http", "https", "wss", "SB")),
    *(f"sb://{HOST}:{port}" for port in (5671, 443, 1, 65535)),
    *(f"sb://{host}" for host in (*LOOPBACK, "[::1]", "LOCALHOST:8443", SHARED_HOST)),
    *(f"sb://{HOST.upper()}", "sb://contoso", "//contoso", "contoso", f"//{HOST}", HOST),
]
OTHER_HOSTS = [
    *(f"sb://{HOST}.evil.net", f"sb://evil.{HOST}", "sb://evil.net", "sb://contoso.evil.net"),
    *("sb://contos", "sb://contoso1", f"sb://{HOST}.", "sb://example.net", "sb://0.0.0.0"),
    *("sb://128.0.0.1", "sb://[::2]", f"sb://x{SHARED_HOST}", f"sb://{OTHER_HOST}"),
    *(f"sb://user@{HOST}", f"sb://{HOST}@evil.net", f"sb://{HOST}:", f"sb://{HOST}:abc"),
    *(f"sb://{HOST}:123456", f"sb://{HOST} ", f"sb://{HOST}\\evil", f"sb://{HOST}#evil"),
    *(f"ftp://{HOST}", f"://{HOST}", "sb://", ""),
]
WRONG_PATHS = [
    *("/events", "events//", "events1//events", "events1/../events", "..", "../events"),
    *("events/..", "./events", "events/.", "events1/%2e%2e/events", "events1%2F..%2Fevents"),
    *("events%00", "events\0", "events%0a", "events%", "events%zz", "events%ff", "\u202eevents"),
]
POLICIES = [
    ("Root", "root", "events", YES),
    ("Root", "root-2", "events", YES),
    ("Root", "root-0", "events", NO),
    ("Root", "Root", "events", NO),
    ("Root", "send", "events", NO),
    ("Root", "", "events", NO),
    ("ROOT", "root", "events", YES),
    ("%52oot", "root", "events", YES),
    ("Nobody", "root", "events", NO),
    ("Root%20", "root", "events", NO),
    ("Root%00", "root", "events", NO),
    ("Sender", "send", "events", YES),
    ("Sender", "send-2", PUBLISHER, YES),
    ("Sender", "root", "events", NO),
    ("Listener", "listen", "events", NO),
    ("Listener", "listen", PUBLISHER, NO),
    ("HubSend", "hub-send", "events", YES),
    ("HubSend", "hub-send", PARTITION, YES),
    ("HubSend", "hub-send", PUBLISHER, YES),
    ("HubSend", "hub-send", "events1", NO),
    ("HubSend", "hub-send", "plant", NO),
    ("HubListen", "hub-listen", "events", NO),
    ("PlantSend", "plant-send", "plant", YES),
    ("PlantSend", "plant-send", "plant/line", NO),
    ("LineSend", "line-send", "plant/line", YES),
    ("LineSend", "line-send", "plant", NO),
    ("Fabrikam", "fabrikam", "events", NO),
]
EXPIRIES: list[tuple[str | int, bool]] = [
    *((seconds, YES) for seconds in (1, 2, 300, 10**9)),
    *((seconds, NO) for seconds in (0, -1, -300, -(10**6))),  # no grace for skewed clocks
    *((text, NO) for text in ("0", "-1", "+4102444800", "4102444800.0", "1e12", "0x7fffffff")),
    *((text, NO) for text in ("", "4102444800%20", "9" * 17, "4_102_444_800", "never")),
    *((text, YES) for text in ("4102444800", "004102444800")),
]


def _table() -> list[Row]:
    rows = [
        Row(sr=f"{host}/{scope}", target=target, escaping=escaping, reaches=reaches)
        for host, escaping in ((f"sb://{HOST}", "upper"), ("https://localhost:8443", "lower"))
        for scope, target, reaches in SCOPES
    ]
    for host in HONEST_HOSTS:
        rows += [
            Row(sr=f"{host}/events", reaches=YES),
            Row(sr=f"{host}/events", target="events1", reaches=NO),
        ]
    rows += [Row(sr=f"{host}/events", reaches=NO) for host in OTHER_HOSTS]
    rows += [Row(sr=f"sb://{HOST}/{path}", reaches=NO) for path in WRONG_PATHS]
    rows += [
        Row(sr=f"sb://{HOST}/{target}", target=target, policy=policy, key=key, reaches=reaches)
        for policy, key, target, reaches in POLICIES
    ]
    rows += [Row(sr=f"sb://{HOST}/events", se=se, reaches=reaches) for se, reaches in EXPIRIES]
    namespaces = [
        (f"sb://{OTHER_HOST}/own", "own", OTHER_HOST, "Fabrikam", YES),
        (f"sb://{OTHER_HOST}/events", "events", OTHER_HOST, "Fabrikam", YES),
        (f"sb://{OTHER_HOST}/events", "events", OTHER_HOST, "Root", NO),
        (f"sb://{OTHER_HOST}/events", "events", HOST, "Fabrikam", NO),
        (f"sb://{HOST}/events", "events", OTHER_HOST, "Fabrikam", NO),
        (f"sb://{HOST}/events", "events", OTHER_HOST, "Root", NO),
        ("sb://localhost/events", "events", OTHER_HOST, "Root", NO),
        ("sb://localhost/events", "events", HOST, "Fabrikam", NO),
        ("sb://localhost/events", "events", "localhost", "Root", YES),
        ("sb://localhost/own", "own", "localhost", "Fabrikam", YES),
        (f"sb://{SHARED_HOST}/events", "events", SHARED_HOST, "Root", YES),
        (f"sb://{SHARED_HOST}/events", "events", SHARED_HOST, "Fabrikam", YES),
        (f"sb://{SHARED_HOST}/own", "own", "127.0.0.2", "Fabrikam", YES),
        (f"sb://{SHARED_HOST}/own", "own", SHARED_HOST, "Root", NO),
        ("sb://localhost/events", "events", "evil.net", "Root", NO),
    ]
    rows += [
        Row(sr=sr, target=target, host=host, policy=policy, reaches=reaches)
        for sr, target, host, policy, reaches in namespaces
    ]
    return rows


TABLE = _table()


# --- the doors ----------------------------------------------------------------------------------


class _NeverSlow(AuthDelay):
    """What slows guessers is tested elsewhere. Counts who is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, str]] = []

    def fail(self, policy: str, address: str, *, now_ms: int) -> int:
        self.told.append((policy, address))
        return 0


def _soon(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    loop.call_soon(work)


class World:
    """Two namespaces and both doors, over memory and a clock that is turned by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.catalog = Catalog()
        self._fill_catalog()
        self._loop = asyncio.get_running_loop()
        self._reads = ThreadPoolExecutor(1)
        logs = MemoryLogStore(lambda work: _soon(self._loop, work))
        self.broker = Broker(self.catalog, logs, self.clock, producer_ids=lambda: 1)
        authorities = CatalogAuthorities(self.catalog, shared_hosts=[SHARED_HOST])
        ids = itertools.count(1)
        self.backoff = _NeverSlow()
        guard = Guard(self._loop, auth_delay=self.backoff)
        self._amqp = AmqpServer(
            AmqpContext(
                broker=self.broker,
                clock=self.clock,
                authorities=authorities,
                reads=self._reads,
                new_id=lambda: f"{next(ids):032x}",
                loop=self._loop,
                guard=guard,
            )
        )
        self.catalog.subscribe(lambda change: self._amqp.revalidate_grants())
        publishing = PublishEndpoint(
            broker=self.broker,
            catalog=self.catalog,
            clock=self.clock,
            authorities=authorities,
            new_id=lambda: f"{next(ids):032x}",
        )
        self._http = HttpServer(publishing, self._loop, guard=guard)

    async def open(self) -> None:
        self._amqp_port = await self._amqp.listen("127.0.0.1", 0)
        self._http_port = await self._http.listen("127.0.0.1", 0)

    async def close(self) -> None:
        await self._amqp.close(grace_s=DEADLINE_S)
        await self._http.close(grace_s=DEADLINE_S)
        self._reads.shutdown()
        self.broker.close()

    @property
    def stored(self) -> int:
        return sum(
            hub.status(index).last_sequence + 1
            for hub in self.broker.hubs()
            for index in range(hub.partition_count)
        )

    def put_rule(self, name: str, *, key: str, rights: Right | None = None) -> None:
        namespace, hub, given, _ = RULES[name]
        self.catalog.put_rule(
            AuthorizationRule(
                namespace=NamespaceName(namespace),
                hub=None if hub is None else HubName(hub),
                name=RuleName(name),
                rights=given if rights is None else rights,
                primary_key=Secret(key),
                secondary_key=Secret(f"{key}-2"),
                created_ms=0,
                updated_ms=0,
            )
        )

    def _fill_catalog(self) -> None:
        for namespace, host in (("contoso", HOST), ("fabrikam", OTHER_HOST)):
            name = NamespaceName(namespace)
            self.catalog.put_namespace(
                Namespace(name=name, created_ms=0, updated_ms=0, hosts=(host, namespace))
            )
            for hub in HUBS[namespace]:
                self.catalog.put_hub(
                    Hub(
                        id=f"{namespace}-{hub.replace('/', '-')}",
                        namespace=name,
                        name=HubName(hub),
                        partition_count=2,
                        created_ms=0,
                        updated_ms=0,
                    )
                )
        for rule, (_, _, _, key) in RULES.items():
            self.put_rule(rule, key=key)

    async def over_http(self, row: Row) -> bool:
        """Whether the event was taken."""
        head = (
            f"POST /{row.target}/messages HTTP/1.1\r\nHost: {row.host}\r\n"
            f"Authorization: {row.token(self._now_s)}\r\nContent-Length: 1\r\n"
            "Connection: close\r\n\r\nx"
        )
        async with asyncio.timeout(DEADLINE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._http_port)
            writer.write(head.encode())
            status = int((await reader.readline()).split()[1])
            await reader.read()
            writer.close()
        assert status in (201, 400, 401, 404), status
        return status == 201

    async def over_amqp(self, row: Row, *, audience: str | None = None) -> bool:
        """The same: the token is put for the target, or for another `audience`, and an event is
        sent to the target."""
        endpoint = parse_connection_string(
            f"Endpoint=sb://127.0.0.1:{self._amqp_port};SharedAccessKeyName=x;SharedAccessKey=x;"
            "UseDevelopmentEmulator=true"
        )
        connection = await connect(endpoint, timeout_s=DEADLINE_S)
        node = RequestResponseClient(connection, "$cbs")
        asked: dict[str, object] = {
            "operation": "put-token",
            "type": "servicebus.windows.net:sastoken",
            "name": f"amqps://{row.host}/{row.target}" if audience is None else audience,
        }
        try:
            await node.attach()
            token = ValueBody(row.token(self._now_s))
            await node.request(asked, token, timeout_s=DEADLINE_S)
            sender = await connection.sender(row.target)
            async with asyncio.timeout(DEADLINE_S):
                event = encode_message(Message(body=DataBody([b"x"])))
                assert await sender.deliver(event, message_format=0) is None
        except ClientError:
            return False
        finally:
            await connection.close()
        return True

    @property
    def _now_s(self) -> int:
        return self.clock.now_ms() // 1000


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    await world.open()
    yield world
    await world.close()


async def wrong(rows: list[Row], go: Callable[[Row], Awaitable[bool]]) -> list[Row]:
    """Those that came out otherwise than the table says, some at a time."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(row: Row) -> bool:
        async with places:
            return await go(row) != row.reaches

    found = await asyncio.gather(*(one(row) for row in rows))
    return [row for row, is_wrong in zip(rows, found, strict=True) if is_wrong]


# --- tests --------------------------------------------------------------------------------------


def test_table_has_the_promised_size() -> None:
    assert len(TABLE) >= 200
    assert min(Counter(row.reaches for row in TABLE).values()) >= 80


async def test_every_token_reaches_over_http_what_it_was_signed_for_and_nothing_else(
    world: World,
) -> None:
    assert await wrong(TABLE, world.over_http) == []
    assert world.stored == sum(row.reaches for row in TABLE)


async def test_every_token_reaches_over_amqp_what_it_was_signed_for_and_nothing_else(
    world: World,
) -> None:
    assert await wrong(TABLE, world.over_amqp) == []
    assert world.stored == sum(row.reaches for row in TABLE)


@pytest.mark.parametrize("door", ["amqp", "http"])
async def test_single_namespace_is_reached_by_any_host_name(world: World, door: str) -> None:
    """As in a container network: eventhubs-emulator, host.docker.internal, 192.168.0.7."""
    go = world.over_amqp if door == "amqp" else world.over_http
    hosts = ["eventhubs-emulator", "host.docker.internal", "192.168.0.7", "[fd00::7]", OTHER_HOST]
    rows = [Row(sr=f"sb://{host}/events", host=host, reaches=NO) for host in hosts]
    rows.append(Row(sr=f"sb://{HOST}/events", host="another.example.net", reaches=NO))
    assert await wrong(rows, go) == []
    world.catalog.delete_namespace("fabrikam")
    assert await wrong([msgspec.structs.replace(row, reaches=YES) for row in rows], go) == []
    guess = Row(sr=f"sb://{hosts[0]}/events", host=hosts[0], key="guessed", reaches=NO)
    no_host = Row(sr="sb://user@evil.net/events", host=hosts[0], reaches=NO)
    assert await wrong([guess, no_host], go) == []


async def test_no_token_put_for_its_own_resource_reaches_further(world: World) -> None:
    """Over AMQP a client says what a token is for: put for what it is good for, it must not open a
    link to anything else. A link's address names no host, it is of the token's own namespace: so
    rows that speak of the other namespace's are left out."""
    refused = [
        row for row in TABLE if not row.reaches and row.host == HOST and row.policy != "Fabrikam"
    ]
    assert await wrong(refused, lambda row: world.over_amqp(row, audience=row.sr)) == []
    assert world.stored == 0


async def test_doors_slow_guessers_together(world: World) -> None:
    """Trying at the other one does not help."""
    row = Row(sr=f"sb://{HOST}/events", key="guessed", reaches=NO)
    assert not await world.over_amqp(row)
    assert not await world.over_http(row)
    assert world.backoff.told == [("Root", "127.0.0.1")] * 2


@pytest.mark.parametrize("door", ["amqp", "http"])
async def test_token_dies_with_its_second_and_lives_again_when_the_clock_is_set_back(
    world: World, door: str
) -> None:
    go = world.over_amqp if door == "amqp" else world.over_http
    now_s = world.clock.now_ms() // 1000
    row = Row(sr=f"sb://{HOST}/events", se=str(now_s + 10), reaches=YES)
    outcomes = []
    for step_ms in (0, 9_999, 1, 3_600_000, -3_600_001):
        world.clock.jump(step_ms)
        outcomes.append(await go(row))
    assert outcomes == [YES, YES, NO, NO, YES]


@pytest.mark.parametrize("door", ["amqp", "http"])
async def test_token_dies_with_its_key_and_the_other_key_does_not(world: World, door: str) -> None:
    go = world.over_amqp if door == "amqp" else world.over_http

    async def reach(*keys: str) -> list[bool]:
        rows = [
            Row(sr=f"sb://{HOST}/events", policy="Sender", key=key, reaches=YES) for key in keys
        ]
        return [await go(row) for row in rows]

    assert await reach("send", "send-2", "new", "new-2") == [YES, YES, NO, NO]
    world.put_rule("Sender", key="new")
    assert await reach("send", "send-2", "new", "new-2") == [NO, NO, YES, YES]
    world.put_rule("Sender", key="new", rights=Right.LISTEN)
    assert await reach("new", "new-2") == [NO, NO]
    world.put_rule("Sender", key="new")
    assert await reach("new") == [YES]
    world.catalog.delete_rule("contoso", None, "Sender")
    assert await reach("new", "new-2") == [NO, NO]
