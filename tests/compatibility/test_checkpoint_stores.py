"""The official SDK's event processors over our stores and the official one, killed and paused.

Three processors share 8 partitions. One is killed, one stands still for longer than its lease and
comes back: every event is processed, no etag is ever followed by two, and after each blow the
partitions are balanced again within two lease times.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from azure.eventhub import EventData, EventHubProducerClient
from azure.eventhub.extensions.checkpointstoreblob import BlobCheckpointStore

from penstock import checkpoints
from penstock.checkpoints import aio

if TYPE_CHECKING:
    from tests.compatibility.conftest import PythonSdk, Sdks
    from tests.conftest import Azurite, Server, ServerFactory

PROGRAM = Path(__file__).parent / "checkpoint_processor.py"
PARTITIONS = 8
INTERVAL_S = 0.7
LEASE_S = 6.0
BALANCED_WITHIN_S = 2 * LEASE_S
DEADLINE_S = 60.0
WAYS = [
    ("sqlite", "sync"),
    ("service", "aio"),
    ("sqlite", "aio"),
    ("service", "sync"),
    ("blob", "sync"),
]
WAYS_AT_ONCE = 2  # two cores


@pytest.fixture(scope="module")
def service(start_session_server: ServerFactory) -> Server:
    return start_session_server(*(f"--hub={'-'.join(way)}:{PARTITIONS}" for way in WAYS))


class Processor:
    """One process, and what it said."""

    def __init__(self, given: dict[str, Any]) -> None:
        command = [sys.executable, str(PROGRAM), json.dumps(given)]
        self.said: list[str] = []
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.append(line.rstrip("\n"))

    @property
    def owner_ids(self) -> set[str]:
        return {line.split()[4] for line in list(self.said) if line.startswith("claimed")} - {"-"}

    def signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(20)
        self._reader.join(20)
        assert self._process.stdout is not None
        self._process.stdout.close()


class Scene:
    """Processors over one store, a sender that does not stop, and the store to look into."""

    def __init__(
        self, service: Server, way: tuple[str, str], folder: Path, azurite: Azurite
    ) -> None:
        self.hub = "-".join(way)
        self._namespace = service["amqp"]
        text = service["emulator_connection_string"]
        self._given: dict[str, Any] = {
            "store": way[0],
            "flavour": way[1],
            "file": str(folder / f"{self.hub}.sqlite"),
            "connection_string": text,
            "https": service["https"],
            "ca_file": service["ca_file"],
            "blobs": azurite.connection_string,
            "hub": self.hub,
            "interval_s": INTERVAL_S,
            "lease_s": LEASE_S,
        }
        self.processors: list[Processor] = []
        self.sent: set[str] = set()
        self._stop = threading.Event()
        self._looks = threading.Event()  # never set: what is waited on between two looks
        self._sender = threading.Thread(target=self._send, args=(text,), daemon=True)
        self.store: Any
        if way[0] == "sqlite":
            self.store = checkpoints.SqliteCheckpointStore(self._given["file"])
        elif way[0] == "blob":
            self.store = BlobCheckpointStore.from_connection_string(
                azurite.connection_string, self.hub
            )
        else:
            self.store = checkpoints.ServiceCheckpointStore(
                text, https_url=service["https"], ca_file=service["ca_file"]
            )
        self.generations: dict[tuple[str, str], str] = {}  # (partition, etag) -> owner

    def start(self) -> None:
        if isinstance(self.store, BlobCheckpointStore):
            self.store._container_client.create_container()
        self.processors = [Processor(self._given) for _ in range(3)]
        self._sender.start()

    def _send(self, text: str) -> None:
        with EventHubProducerClient.from_connection_string(
            text, eventhub_name=self.hub
        ) as producer:
            number = 0
            while not self._stop.wait(0.2):
                for partition in range(PARTITIONS):
                    body = f"event-{number}-{uuid.uuid4()}"
                    producer.send_batch([EventData(body)], partition_id=str(partition))
                    self.sent.add(body)
                    number += 1

    def shares(self) -> list[int]:
        """How many partitions each has whose lease has not run out."""
        now = time.time()
        owners: Counter[str] = Counter()
        for record in self.store.list_ownership(self._namespace, self.hub, "$Default"):
            place = (record["partition_id"], record["etag"])
            assert self.generations.setdefault(place, record["owner_id"]) == record["owner_id"]
            if record["owner_id"] and record["last_modified_time"] + LEASE_S >= now:
                owners[record["owner_id"]] += 1
        return sorted(owners.values())

    def wait_for_shares(self, *wanted: list[int]) -> float:
        """How long it took."""
        begin = time.monotonic()
        while (shares := self.shares()) not in wanted:
            waited = time.monotonic() - begin
            assert waited < DEADLINE_S, f"after {waited:.0f} s the shares are {shares}"
            self._looks.wait(0.1)
        return time.monotonic() - begin

    def processed(self) -> list[str]:
        return [
            line.split()[3]
            for processor in self.processors
            for line in list(processor.said)
            if line.startswith("done")
        ]

    def finish(self) -> None:
        """No more is sent; everything that was is processed."""
        self._stop.set()
        self._sender.join(DEADLINE_S)
        begin = time.monotonic()
        while missing := self.sent - set(self.processed()):
            assert time.monotonic() - begin < DEADLINE_S, f"{len(missing)} events are missing"
            self._looks.wait(0.1)

    def claims(self) -> list[tuple[str, str, str]]:
        """(partition, etag it had, etag it got) of every claim that somebody won."""
        return [
            (words[1], words[2], words[3])
            for processor in self.processors
            for line in processor.said
            if (words := line.split())[0] == "claimed"
        ]

    def close(self) -> None:
        self._stop.set()
        for processor in self.processors:
            processor.kill()
        self.store.close()


def play(scene: Scene) -> dict[str, float]:
    """The whole scene; how long each balancing took."""
    try:
        scene.start()
        # The SDK steals only while it has less than 8 // 3: both are balanced for it.
        scene.wait_for_shares([2, 3, 3], [2, 2, 4])
        victim, sleeper, _ = scene.processors
        victim.kill()
        after_kill = scene.wait_for_shares([4, 4])
        sleeper.signal(signal.SIGUSR1)  # it stops itself, in no call of the store
        after_pause = scene.wait_for_shares([8])
        sleeper.signal(signal.SIGCONT)
        after_return = scene.wait_for_shares([4, 4])
        scene.finish()
    finally:
        scene.close()
    return {"kill": after_kill, "pause": after_pause, "return": after_return}


Played = Callable[[tuple[str, str]], tuple[Scene, dict[str, float]]]


@pytest.fixture(scope="module")
def played(
    service: Server, azurite: Azurite, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Played]:
    """Every way's scene, begun at once and waited for by its tests."""
    folder = tmp_path_factory.mktemp("leases")
    scenes = {way: Scene(service, way, folder, azurite) for way in WAYS}
    with ThreadPoolExecutor(WAYS_AT_ONCE) as threads:
        outcomes: dict[tuple[str, str], Future[dict[str, float]]] = {
            way: threads.submit(play, scene) for way, scene in scenes.items()
        }

        def wait(way: tuple[str, str]) -> tuple[Scene, dict[str, float]]:
            return scenes[way], outcomes[way].result(240)

        yield wait


@pytest.mark.full("clients")
@pytest.mark.timeout(260)
@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_every_event_is_processed_though_processors_die_and_stand_still(
    played: Played, way: tuple[str, str]
) -> None:
    scene, _ = played(way)
    assert len(scene.sent) > 100
    assert scene.sent <= set(scene.processed())


@pytest.mark.full("clients")
@pytest.mark.timeout(260)
@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_no_generation_of_a_lease_has_two_owners(played: Played, way: tuple[str, str]) -> None:
    scene, _ = played(way)
    claims = scene.claims()
    assert len(claims) > 50
    if way[0] == "blob":
        # The official store over Azurite lets a claim without an etag through although there is a
        # record: tried one after the other, both won. So its first claims are not judged here;
        # ours are. What Azure's own storage does was not tried.
        claims = [claim for claim in claims if claim[1] != "None"]
    before = Counter((partition, had) for partition, had, _ in claims)
    assert [place for place, count in before.items() if count > 1] == []
    after = Counter((partition, got) for partition, _, got in claims)
    assert [place for place, count in after.items() if count > 1] == []


@pytest.mark.full("clients")
@pytest.mark.timeout(260)
@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_partitions_are_balanced_again_within_two_lease_times(
    played: Played, way: tuple[str, str]
) -> None:
    _, took_s = played(way)
    late = {what: seconds for what, seconds in took_s.items() if seconds > BALANCED_WITHIN_S}
    assert late == {}, took_s


@pytest.mark.parametrize("kind", ["sqlite", "service"])
@pytest.mark.parametrize("flavour", ["sync", "aio"])
async def test_replay_from_an_older_checkpoint_reads_the_same_events(
    sdks: Sdks, server: Server, tmp_path: Path, kind: str, flavour: str
) -> None:
    sdk = sdks.of(flavour)
    hub = sdk.hub()
    room: Any = checkpoints if flavour == "sync" else aio
    store: Any
    if kind == "sqlite":
        store = room.SqliteCheckpointStore(tmp_path / "replay.sqlite")
    else:
        store = room.ServiceCheckpointStore(
            server["connection_string"], https_url=server["https"], ca_file=server["ca_file"]
        )
    bodies = [os.urandom(size) for size in (0, 1, 255, 256, 5000, 70_000)]
    events = [EventData(body) for body in bodies]
    for number, event in enumerate(events):
        event.properties = {"number": number, "text": "ü"}
        event.content_type = "application/octet-stream"
    await sdk.send(hub, *events[:4], partition_id="1")
    await sdk.send(hub, *events[4:], partition_id="1")
    first = await read_all(sdk, hub, store, len(events))
    assert [each["body"] for each in first] == bodies
    (saved,) = await sdk.call(store.list_checkpoints, server["amqp"], hub, "$Default")
    assert saved["sequence_number"] == len(events) - 1
    older = {name: first[1][name] for name in ("offset", "sequence_number")}
    await sdk.call(store.update_checkpoint, saved | older)
    assert await read_all(sdk, hub, store, len(events) - 2) == first[2:]
    await sdk.call(store.close)


async def read_all(sdk: PythonSdk, hub: str, store: Any, count: int) -> list[dict[str, Any]]:
    """What a processor over the store gets, with everything that an event has."""
    found: list[dict[str, Any]] = []
    client = {"checkpoint_store": store, "load_balancing_interval": 0.5}
    async with AsyncExitStack() as stack:
        options: dict[str, Any] = {"client": client, "checkpoint": True, "max_wait_time": 0.5}
        reading = await stack.enter_async_context(sdk.reading(hub, None, **options))
        while len(found) < count:
            event = await reading.next(within_s=30)
            if event is None:
                continue
            found.append(
                {
                    "body": sdk.body(event),
                    "sequence_number": event.sequence_number,
                    "offset": event.offset,
                    "enqueued_time": event.enqueued_time,
                    "properties": event.properties,
                    "content_type": event.content_type,
                    "system_properties": event.system_properties,
                }
            )
        await reading.done(found[-1]["sequence_number"])
    return found
