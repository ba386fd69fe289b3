"""Throughput units by a real clock: what they hold, who is refused, who is slowed, who shares.

The figures are taken in one window of ten seconds, all at once: each namespace has units of its
own. A machine that stands still for longer than a bucket lasts (a quarter of a second) loses
tokens, and so would any service on it: such moments are measured, and do not count as asked for.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.amqp.events import TransfersReceived
from penstock.amqp.performatives import Error
from penstock.client import Connection, Sender, connect, parse_connection_string
from penstock.client.load.producer import LoadProfile, publish
from penstock.client.transfer_frames import encode_publication
from penstock.management.client import ManagementClient

if TYPE_CHECKING:
    from tests.conftest import NodeTools, Server, ServerFactory

SECONDS = 10.0
TRIES_MAX = 2  # windows, until there is one in which the machine was there for us
STALL_S = 0.2  # tokens of a longer rest may be lost: a bucket holds a quarter of a second's worth
PRESSED_MIN = 0.97
TICK_S = 0.004
DEADLINE_S = 30.0
MB = 1_048_576
UNITS = 2
PARTITIONS = [str(number) for number in range(4)]
NODE = Path(__file__).parents[1] / "compatibility" / "node"

NAMESPACES = {  # and their units; None: bought later
    "bytes-in": UNITS,
    "events-in": UNITS,
    "one-partition": 4,
    "two-senders": UNITS,
    "going-out": None,
}
CONFIG = "\n".join(
    f'[[namespaces]]\nname = "{name}"\n'
    + ("" if units is None else f"throughput_units = {units}\n")
    + '[[namespaces.rules]]\nname = "RootManageSharedAccessKey"\nrights = ["manage"]\n'
    + f'key = "key-of-{name}"\n'
    + '[[namespaces.hubs]]\nname = "events"\npartition_count = 4\n'
    for name, units in NAMESPACES.items()
)


def rests(moments: list[float]) -> float:
    """Seconds in which nothing was heard for so long that tokens may have been lost."""
    gaps = (after - before for before, after in pairwise(moments))
    return sum(gap - STALL_S for gap in gaps if gap > STALL_S)


class Timed:
    """When something was heard."""

    def __init__(self) -> None:
        self.moments: list[float] = []

    @property
    def elapsed_s(self) -> float:
        return self.moments[-1] - self.moments[0]

    @property
    def pressed_s(self) -> float:
        return self.elapsed_s - rests(self.moments)


class Press(Timed):
    """One sender that asks for more than it may have; what is refused is not sent again."""

    def __init__(self, namespace: str, *, size: int, batch: int = 1, per_s: float) -> None:
        super().__init__()
        self.namespace = namespace
        self.partition: str | None = None
        self.taken = 0  # events acknowledged
        self.refusals: list[Error] = []
        self.size = size
        self._batch = batch
        self._per_s = per_s / batch
        self._payload, self._format = encode_publication(size, batch)
        self._sent = 0
        self._heard = 0
        self._is_over = False
        self._all_heard = asyncio.Event()

    def to(self, partition: str) -> Press:
        self.partition = partition
        return self

    @property
    def bytes_taken(self) -> int:
        return self.taken * self.size

    async def run(self, connection: Connection) -> None:
        address = "events" if self.partition is None else f"events/Partitions/{self.partition}"
        sender = await connection.sender(address)
        await sender.wait_for_credit()
        started_s = time.perf_counter()
        self.moments.append(started_s)
        while (now_s := time.perf_counter()) < started_s + SECONDS:
            self._send_due(sender, int((now_s - started_s) * self._per_s))
            await asyncio.sleep(TICK_S)
        async with asyncio.timeout(DEADLINE_S):
            self._is_over = True
            if self._heard < self._sent:
                await self._all_heard.wait()

    def _send_due(self, sender: Sender, due: int) -> None:
        """What there was no room for is not made good: nobody can press while he waits."""
        for _ in range(min(due - self._sent, 100)):
            if not sender.send(
                self._payload, message_format=self._format, on_settled=self._settled
            ):
                break
            self._sent += 1
        sender.connection.flush()

    def _settled(self, error: Error | None) -> None:
        self.moments.append(time.perf_counter())
        self._heard += 1
        if error is None:
            self.taken += self._batch
        else:
            self.refusals.append(error)
        if self._is_over and self._heard == self._sent:
            self._all_heard.set()


class Reading(Timed):
    """One who wants all that there is, at once, on two connections."""

    SIZE = 10_000

    def __init__(self) -> None:
        super().__init__()
        self.events = 0
        self.errors: list[Exception] = []

    def on_transfers(self, event: TransfersReceived) -> None:
        self.events += event.count
        self.moments.append(time.perf_counter())

    async def run(self, connections: list[Connection]) -> None:
        self.moments.append(time.perf_counter())
        receivers = [
            await connections[number % len(connections)].receiver(
                f"events/ConsumerGroups/$Default/Partitions/{partition}",
                credit=20_000,
                on_transfers=self.on_transfers,
                selector="amqp.annotation.x-opt-offset > '-1'",
            )
            for number, partition in enumerate(PARTITIONS)
        ]
        await asyncio.wait([each.ended for each in receivers], timeout=SECONDS)
        self.errors += [each.error for each in receivers if each.error is not None]


class Window:
    """Everything that was measured at the same time."""

    def __init__(self) -> None:
        self.megabytes = Press("bytes-in", size=20_000, per_s=230)
        self.events = Press("events-in", size=50, batch=10, per_s=5_000)
        self.partition = Press("one-partition", size=50, batch=10, per_s=3_000).to("2")
        # One sends small and often, the other large and seldom, and each more than its half.
        self.small = Press("two-senders", size=8_000, per_s=300)
        self.large = Press("two-senders", size=100_000, per_s=25)
        self.reading = Reading()

    @property
    def presses(self) -> list[Press]:
        return [self.megabytes, self.events, self.partition, self.small, self.large]

    @property
    def was_undisturbed(self) -> bool:
        every: list[Timed] = [*self.presses, self.reading]
        return all(each.pressed_s >= PRESSED_MIN * each.elapsed_s for each in every)

    async def run(self, server: Server) -> None:
        opened: list[Connection] = []

        async def open_for(namespace: str) -> Connection:
            connection = await connect(parse_connection_string(string_of(server, namespace)))
            opened.append(connection)
            await connection.authorise("events")
            return connection

        try:
            works = [press.run(await open_for(press.namespace)) for press in self.presses]
            readers = [await open_for("going-out") for _ in range(2)]
            await asyncio.gather(*works, self.reading.run(readers))
        finally:
            await asyncio.gather(*(connection.close() for connection in opened))


class Figures:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.taken = dict.fromkeys(NAMESPACES, 0)  # in all windows
        for _ in range(TRIES_MAX):
            self.window = Window()
            asyncio.run(self.window.run(server))
            for press in self.window.presses:
                self.taken[press.namespace] += press.taken
            if self.window.was_undisturbed:
                break


def string_of(server: Server, namespace: str) -> str:
    return server.connection_string(key=f"key-of-{namespace}")


def metrics_of(server: Server) -> dict[str, float]:
    with urllib.request.urlopen(server["admin"] + "/metrics", timeout=DEADLINE_S) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def metric(server: Server, name: str) -> float:
    return next(value for each, value in metrics_of(server).items() if each.startswith(name + "{"))


def stored(server: Server, namespace: str = "penstock") -> int:
    """Events in the hub, by the service's own numbers."""
    name = "penstock_partition_last_sequence_number"
    label = f'namespace="{namespace}"'
    found = metrics_of(server).items()
    return sum(int(last) + 1 for each, last in found if each.startswith(name) and label in each)


def flood(server: Server, seconds: float) -> None:
    """As much as two units may read in so many seconds, while none are held."""
    load = LoadProfile(
        hub="events",
        size=Reading.SIZE,
        batch=20,
        in_flight=16,
        events_max=int(UNITS * 2 * MB * seconds / Reading.SIZE),
        duration_s=DEADLINE_S,
    )
    endpoint = parse_connection_string(string_of(server, "going-out"))
    assert asyncio.run(publish(endpoint, load, tls=None)).errors == 0


@pytest.fixture(scope="module")
def figures(start_session_server: ServerFactory) -> Iterator[Figures]:
    server = start_session_server("--flush", "os", config=CONFIG)  # the disk is not what is asked
    flood(server, SECONDS + 2)
    with ManagementClient(server["admin"], server["admin_token"]) as management:
        management.put_namespace("going-out", units=UNITS)  # holds at once
    yield Figures(server)
    server.stop()


def assert_within(taken: float, per_s: float, found: Timed) -> None:
    """Five percent, of the time that was measured."""
    assert found.elapsed_s >= SECONDS * 0.95
    assert taken <= 1.05 * per_s * found.elapsed_s
    assert taken >= 0.95 * per_s * found.pressed_s


def assert_refused_as_busy(press: Press) -> None:
    assert {error.condition for error in press.refusals} == {"com.microsoft:server-busy"}
    assert all("Error code : 50002" in (error.description or "") for error in press.refusals)


def test_two_units_hold_two_megabytes_a_second(figures: Figures) -> None:
    press = figures.window.megabytes
    assert_within(press.bytes_taken, UNITS * MB, press)
    assert_refused_as_busy(press)


def test_two_units_hold_two_thousand_events_a_second(figures: Figures) -> None:
    press = figures.window.events
    assert_within(press.taken, UNITS * 1000, press)
    assert_refused_as_busy(press)


def test_one_partition_takes_one_units_worth(figures: Figures) -> None:
    press = figures.window.partition
    assert_within(press.taken, 1000, press)
    assert_refused_as_busy(press)


def test_two_senders_share_within_ten_percent(figures: Figures) -> None:
    small, large = figures.window.small, figures.window.large
    total = small.bytes_taken + large.bytes_taken
    assert total <= 1.05 * UNITS * MB * max(small.elapsed_s, large.elapsed_s)
    assert total >= 0.95 * UNITS * MB * min(small.pressed_s, large.pressed_s)
    assert small.bytes_taken / total == pytest.approx(0.5, abs=0.05)
    assert_refused_as_busy(small)
    assert_refused_as_busy(large)


@pytest.mark.parametrize("namespace", ["bytes-in", "events-in", "one-partition", "two-senders"])
def test_what_was_acknowledged_is_stored_and_nothing_else(figures: Figures, namespace: str) -> None:
    assert stored(figures.server, namespace) == figures.taken[namespace]


def test_egress_holds_two_megabytes_a_second_for_each_unit_without_an_error(
    figures: Figures,
) -> None:
    """Units were bought while the service ran: they hold at once."""
    reading = figures.window.reading
    assert reading.errors == []
    assert_within(reading.events * Reading.SIZE, UNITS * 2 * MB, reading)


# --- one at a time ------------------------------------------------------------------------------


def metered(start_server: ServerFactory, units: int = UNITS) -> Server:
    return start_server("--throughput-units", str(units), "--hub", "events:4")


def test_refusal_comes_at_once_and_the_same_send_is_taken_a_moment_later(
    start_server: ServerFactory,
) -> None:
    """A publication of 5000 events is taken by a full bucket, and leaves it in debt for almost
    five seconds: what comes next is refused, not kept until there is room."""
    server = metered(start_server, 1)

    async def run() -> tuple[int, float]:
        connection = await connect(parse_connection_string(server.connection_string()))
        await connection.authorise("events")
        sender = await connection.sender("events/Partitions/0")
        refused = 0
        async with asyncio.timeout(DEADLINE_S):
            payload, message_format = encode_publication(10, 5_000)
            assert await sender.deliver(payload, message_format=message_format) is None
            started_s = time.perf_counter()
            payload, message_format = encode_publication(10, 1)
            while error := await sender.deliver(payload, message_format=message_format):
                assert error.condition == "com.microsoft:server-busy"
                if refused == 0:
                    first_s = time.perf_counter() - started_s
                refused += 1
                await asyncio.sleep(0.02)
        await connection.close()
        return refused, first_s

    refused, first_s = asyncio.run(run())
    assert refused > 0
    assert first_s < 4.0
    assert stored(server) == 5_001


def test_more_units_than_partitions_are_warned_of(start_server: ServerFactory) -> None:
    server = metered(start_server, 5)
    with urllib.request.urlopen(server["admin"] + "/ready", timeout=DEADLINE_S) as answer:
        assert answer.status == 200
        (warning,) = json.load(answer)["warnings"]
    assert "holds 5 throughput units, but its event hubs have 4 partitions" in warning
    assert "holds 5 throughput units" in server.log.read_text()


AUTO_INFLATE = """
[[namespaces]]
name = "inflating"
throughput_units = 1
maximum_throughput_units = 3
[[namespaces.hubs]]
name = "events"
partition_count = 4
"""


def test_auto_inflate_raises_units_under_load_and_keeps_them(start_server: ServerFactory) -> None:
    server = start_server("--flush", "os", config=AUTO_INFLATE)
    limit = "penstock_throughput_units_limit"

    async def press() -> None:
        """Until there are no more to be had; each refusal asks for one."""
        connection = await connect(parse_connection_string(server.connection_string()))
        await connection.authorise("events")
        sender = await connection.sender("events")
        payload, message_format = encode_publication(10, 1_000)
        async with asyncio.timeout(DEADLINE_S):
            while await asyncio.to_thread(metric, server, limit) < 3:
                for _ in range(20):
                    await sender.deliver(payload, message_format=message_format)
        await connection.close()

    asyncio.run(press())
    server.stop()
    again = start_server(config=AUTO_INFLATE, data=server.data)
    assert metric(again, limit) == 3


@pytest.mark.sdk
def test_javascript_sdks_own_retries_succeed(start_server: ServerFactory, node: NodeTools) -> None:
    server = metered(start_server, 1)
    # The first leaves the bucket in debt for almost four seconds; the others come at once.
    asked = {
        "connectionString": server.connection_string(),
        "hub": "events",
        "first": 4_000,
        "sends": 8,
    }
    ended = subprocess.run(
        [node.node, str(NODE / "units.mjs")],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=90,
        env=node.environ,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told["failed"] is None
    assert told["sent"] == 8
    assert metric(server, "penstock_throttled_requests_total") > 0
    assert stored(server) == 4_000 + 8
