"""The contract of a checkpoint store (protocol.md 11.1), over every store in both flavours."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import checkpoints
from penstock.checkpoints import aio
from penstock.model.errors import ArgumentError, PenstockError

if TYPE_CHECKING:
    from tests.conftest import Server, ServerFactory

Record = dict[str, Any]
HUBS = 70
NAMESPACE = "localhost:5671"
_numbers = itertools.count()

# Claims the partition as fast as it can, and says each win: the etag it had, the one it got.
RACER = """
import sys
from penstock.checkpoints import ServiceCheckpointStore, SqliteCheckpointStore
kind, where, https, ca, hub, owner, rounds = sys.argv[1:]
store = (
    SqliteCheckpointStore(where) if kind == "sqlite"
    else ServiceCheckpointStore(where, https_url=https, ca_file=ca)
)
names = ("localhost", hub, "$Default")
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(rounds)):
    found = store.list_ownership(*names)
    record = found[0] if found else dict(
        fully_qualified_namespace=names[0], eventhub_name=hub, consumer_group=names[2],
        partition_id="0",
    )
    for won in store.claim_ownership([record | {"owner_id": owner}]):
        print(record.get("etag"), won["etag"], won["owner_id"], flush=True)
"""


class Face:
    """A store of either flavour behind one asynchronous face; a group of its own per test."""

    def __init__(self, make: Callable[[], Any], kind: str, hub: str) -> None:
        self.make = make
        self.kind = kind
        self.store = make()
        self.hub = hub
        self.group = "$Default"

    async def call(self, name: str, *args: Any, **options: Any) -> Any:
        act = getattr(self.store, name)
        if inspect.iscoroutinefunction(act):
            return await act(*args, **options)
        return await asyncio.to_thread(act, *args, **options)

    def record(self, partition: str = "0", owner: str = "a", **more: Any) -> Record:
        return {
            "fully_qualified_namespace": NAMESPACE,
            "eventhub_name": self.hub,
            "consumer_group": self.group,
            "partition_id": partition,
            "owner_id": owner,
            **more,
        }

    def checkpoint(self, partition: str, offset: Any, number: Any) -> Record:
        record = self.record(partition, offset=offset, sequence_number=number)
        del record["owner_id"]
        return record

    async def claim(self, *records: Record) -> list[Record]:
        won: list[Record] = await self.call("claim_ownership", records)
        return won

    async def owned(self, **names: str) -> list[Record]:
        found: list[Record] = await self.call("list_ownership", *self._names(**names))
        return found

    async def saved(self, **names: str) -> list[Record]:
        found: list[Record] = await self.call("list_checkpoints", *self._names(**names))
        return found

    def _names(
        self, namespace: str = NAMESPACE, hub: str | None = None, group: str | None = None
    ) -> tuple[str, str, str]:
        return namespace, hub or self.hub, group or self.group


@pytest.fixture(scope="session")
def server(start_session_server: ServerFactory) -> Server:
    """A service that keeps checkpoints."""
    lines = ["[[namespaces]]", 'name = "contract"']
    for name in ("race", *(f"contract-{index}" for index in range(HUBS))):
        lines += ["[[namespaces.hubs]]", f'name = "{name}"', "partition_count = 8"]
        lines += ['groups = ["readers"]']
    return start_session_server(config="\n".join(lines))


def new_hub(kind: str) -> str:
    if kind == "sqlite":
        return "contract"  # each test has a file of its own
    number = next(_numbers)
    assert number < HUBS, "declare more hubs"
    return f"contract-{number}"


WAYS = [("sqlite", "sync"), ("sqlite", "aio"), ("service", "sync"), ("service", "aio")]


@pytest.fixture(params=WAYS, ids="-".join)
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, server: Server
) -> AsyncIterator[Face]:
    kind, flavour = request.param
    room: Any = checkpoints if flavour == "sync" else aio

    def make() -> Any:
        if kind == "sqlite":
            return room.SqliteCheckpointStore(tmp_path / "leases.sqlite")
        return room.ServiceCheckpointStore(
            server["connection_string"], https_url=server["https"], ca_file=server["ca_file"]
        )

    face = Face(make, kind, new_hub(kind))
    yield face
    await face.call("close")


# --- ownership ------------------------------------------------------------------------------------


async def test_nothing_is_owned_at_first(store: Face) -> None:
    assert list(await store.owned()) == []
    assert list(await store.saved()) == []


async def test_a_claim_without_etag_creates_the_record(store: Face) -> None:
    before = time.time()
    (won,) = await store.claim(store.record("3", "a"))
    assert won == store.record(
        "3", "a", etag=won["etag"], last_modified_time=won["last_modified_time"]
    )
    assert won["etag"]
    assert before - 1 <= won["last_modified_time"] <= time.time() + 1
    assert await store.owned() == [won]


async def test_a_claim_without_etag_loses_when_there_is_a_record(store: Face) -> None:
    (first,) = await store.claim(store.record("0", "a"))
    assert await store.claim(store.record("0", "b")) == []
    assert await store.owned() == [first]


async def test_a_renewal_changes_the_etag_and_the_time(store: Face) -> None:
    (first,) = await store.claim(store.record("0", "a"))
    (second,) = await store.claim(dict(first))
    (third,) = await store.claim(dict(second))
    assert len({first["etag"], second["etag"], third["etag"]}) == 3
    assert first["last_modified_time"] <= second["last_modified_time"]
    assert third["owner_id"] == "a"
    assert await store.owned() == [third]


async def test_a_claim_with_an_old_etag_loses(store: Face) -> None:
    (first,) = await store.claim(store.record("0", "a"))
    (second,) = await store.claim(first)
    assert await store.claim(first | {"owner_id": "b"}) == []
    assert await store.owned() == [second]


async def test_a_claim_with_an_etag_loses_when_there_is_no_record(store: Face) -> None:
    assert await store.claim(store.record("0", "a", etag="made-up")) == []
    assert await store.owned() == []


async def test_a_partition_is_stolen_with_its_current_etag(store: Face) -> None:
    await store.claim(store.record("0", "a"))
    (listed,) = await store.owned()
    listed["owner_id"] = "b"  # as the SDK does it: in the dict that it was given
    (stolen,) = await store.claim(listed)
    assert stolen["owner_id"] == "b"
    assert await store.owned() == [stolen]


async def test_a_lost_race_leaves_out_that_partition_alone(store: Face) -> None:
    (taken,) = await store.claim(store.record("1", "b"))
    won = await store.claim(*(store.record(partition, "a") for partition in "012"))
    assert [each["partition_id"] for each in won] == ["0", "2"]
    owners = {each["partition_id"]: each["owner_id"] for each in await store.owned()}
    assert owners == {"0": "a", "1": "b", "2": "a"}
    assert taken in await store.owned()


async def test_a_released_partition_is_listed_with_an_empty_owner(store: Face) -> None:
    (mine,) = await store.claim(store.record("0", "a"))
    (released,) = await store.claim(mine | {"owner_id": ""})
    assert released["owner_id"] == ""
    assert await store.owned() == [released]
    (taken,) = await store.claim(released | {"owner_id": "b"})
    assert taken["owner_id"] == "b"


async def test_what_a_caller_does_with_its_dicts_changes_nothing(store: Face) -> None:
    wanted = store.record("0", "a")
    (won,) = await store.claim(wanted)
    assert "etag" not in wanted
    won["owner_id"] = "changed"
    (listed,) = await store.owned()
    assert listed["owner_id"] == "a"


async def test_an_empty_list_of_claims_wins_nothing(store: Face) -> None:
    assert await store.claim() == []


# --- checkpoints ----------------------------------------------------------------------------------


async def test_the_last_checkpoint_written_counts(store: Face) -> None:
    for offset, number in (("100", 5), ("900", 50), ("300", 20)):
        await store.call("update_checkpoint", store.checkpoint("2", offset, number))
    assert await store.saved() == [store.checkpoint("2", "300", 20)]


async def test_checkpoints_of_partitions_lie_side_by_side(store: Face) -> None:
    for partition in ("1", "0", "7"):
        await store.call("update_checkpoint", store.checkpoint(partition, "9" + partition, 1))
    saved = {each["partition_id"]: each["offset"] for each in await store.saved()}
    assert saved == {"0": "90", "1": "91", "7": "97"}
    assert await store.owned() == []


async def test_an_offset_may_be_a_number_and_is_kept_as_text(store: Face) -> None:
    await store.call("update_checkpoint", store.checkpoint("0", 12345, 2**62))
    assert await store.saved() == [store.checkpoint("0", "12345", 2**62)]


async def test_options_of_other_stores_are_passed_over(store: Face) -> None:
    await store.call("update_checkpoint", store.checkpoint("0", "1", 1), retention=3)
    assert len(await store.call("list_checkpoints", *store._names(), retention=3)) == 1


# --- names and time -------------------------------------------------------------------------------


async def test_names_compare_without_case_and_namespaces_without_port(store: Face) -> None:
    await store.claim(store.record("0", "a"))
    await store.call("update_checkpoint", store.checkpoint("0", "1", 1))
    other = {"namespace": "LOCALHOST:9999", "hub": store.hub.upper(), "group": "$DEFAULT"}
    (owned,) = await store.owned(**other)
    (saved,) = await store.saved(**other)
    assert owned["fully_qualified_namespace"] == saved["fully_qualified_namespace"]
    assert owned["fully_qualified_namespace"] == "LOCALHOST:9999"  # as the caller spells it
    record = store.record("0", "b", consumer_group="$default")
    assert await store.claim(record) == []


async def test_groups_do_not_see_each_other(store: Face) -> None:
    await store.claim(store.record("0", "a"))
    await store.claim(store.record("0", "b", consumer_group="readers"))
    assert [each["owner_id"] for each in await store.owned()] == ["a"]
    assert [each["owner_id"] for each in await store.owned(group="readers")] == ["b"]
    both = [store.record("1", "c"), store.record("1", "c", consumer_group="readers")]
    assert len(await store.claim(*both)) == 2


async def test_another_store_of_the_same_place_sees_everything(store: Face) -> None:
    (won,) = await store.claim(store.record("0", "a"))
    await store.call("update_checkpoint", store.checkpoint("0", "1", 1))
    other = Face(store.make, store.kind, store.hub)
    assert await other.owned() == [won]
    assert len(await other.saved()) == 1
    await other.call("close")


async def test_a_closed_store_opens_again(store: Face) -> None:
    (won,) = await store.claim(store.record("0", "a"))
    await store.call("close")
    assert await store.owned() == [won]


# --- refusals -------------------------------------------------------------------------------------

NO_CHECKPOINTS = [
    ("0", None, 1),
    ("0", "", 1),
    ("0", "1", None),
    ("0", "1", "1"),
    ("0", "1", 2**63),
    ("0", "1" * 600, 1),
    ("", "1", 1),
]


@pytest.mark.parametrize(("partition", "offset", "number"), NO_CHECKPOINTS)
async def test_what_is_no_checkpoint_is_refused(
    store: Face, partition: str, offset: Any, number: Any
) -> None:
    with pytest.raises(ArgumentError):
        await store.call("update_checkpoint", store.checkpoint(partition, offset, number))
    assert await store.saved() == []


@pytest.mark.parametrize(
    "change", [{"owner_id": None}, {"partition_id": 0}, {"etag": ""}, {"owner_id": "x" * 600}]
)
async def test_what_is_no_claim_is_refused(store: Face, change: Record) -> None:
    with pytest.raises(ArgumentError):
        await store.claim(store.record("0", "a") | change)
    assert await store.owned() == []


# --- races ----------------------------------------------------------------------------------------


def assert_one_line_of_owners(wins: list[tuple[str | None, str, str]]) -> None:
    """Each etag was followed by one other at most, so that no two ever owned in one generation."""
    followed = {had: got for had, got, _ in wins}
    assert len(followed) == len(wins), "two claims won with one etag"
    assert len({got for _, got, _ in wins}) == len(wins), "an etag came twice"
    length, etag = 0, followed.get(None)
    while etag is not None:
        length, etag = length + 1, followed.get(etag)
    assert length == len(wins)


@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(rounds=st.lists(st.integers(1, 6), min_size=2, max_size=4), data=st.data())
@pytest.mark.parametrize("kind", ["sqlite", "service"])
def test_of_claims_that_race_one_wins_each_time(
    kind: str, rounds: list[int], data: st.DataObject, tmp_path: Path, server: Server
) -> None:
    shared = data.draw(st.booleans(), label="threads share one store")
    hub = "race"

    def make() -> Any:
        if kind == "sqlite":
            return checkpoints.SqliteCheckpointStore(tmp_path / "race.sqlite")
        return checkpoints.ServiceCheckpointStore(
            server["connection_string"], https_url=server["https"], ca_file=server["ca_file"]
        )

    stores = [make()] * len(rounds) if shared else [make() for _ in rounds]
    start = threading.Barrier(len(rounds))
    known = stores[0].list_ownership(NAMESPACE, hub, "readers")
    first = known[0]["etag"] if known else None
    wins: list[tuple[str | None, str, str]] = []

    def race(store: Any, owner: str, count: int) -> None:
        start.wait(30)
        for _ in range(count):
            listed = store.list_ownership(NAMESPACE, hub, "readers")
            names = (NAMESPACE, hub, "readers", "0")
            keys = ("fully_qualified_namespace", "eventhub_name", "consumer_group", "partition_id")
            record = listed[0] if listed else dict(zip(keys, names, strict=True))
            had = record.get("etag")
            for won in store.claim_ownership([record | {"owner_id": owner}]):
                wins.append((None if had == first else had, won["etag"], won["owner_id"]))

    threads = [
        threading.Thread(target=race, args=(store, f"owner-{index}", count))
        for index, (store, count) in enumerate(zip(stores, rounds, strict=True))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    (last,) = stores[0].list_ownership(NAMESPACE, hub, "readers")
    assert_one_line_of_owners(wins)
    assert (last["etag"], last["owner_id"]) in {(got, owner) for _, got, owner in wins}
    for store in stores:
        store.close()


@pytest.mark.parametrize("kind", ["sqlite", "service"])
def test_of_processes_that_race_one_wins_each_time(
    kind: str, tmp_path: Path, server: Server
) -> None:
    hub = new_hub(kind)
    where = str(tmp_path / "race.sqlite") if kind == "sqlite" else server["connection_string"]
    arguments = (kind, where, server["https"], server["ca_file"], hub)
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, *arguments, f"process-{index}", "40"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(3)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    wins: list[tuple[str | None, str, str]] = []
    for racer in racers:
        said, _ = racer.communicate(timeout=60)
        assert racer.returncode == 0
        for line in said.splitlines():
            had, got, owner = line.split()
            wins.append((None if had == "None" else had, got, owner))
    assert len(wins) >= 40
    assert_one_line_of_owners(wins)


async def test_many_tasks_may_use_one_store_at_once(store: Face) -> None:
    async def save(number: int) -> None:
        record = store.checkpoint(str(number % 8), str(number), number)
        await store.call("update_checkpoint", record)

    await asyncio.gather(*(save(number) for number in range(40)))
    assert {each["sequence_number"] % 8 for each in await store.saved()} == set(range(8))


def test_the_stores_are_the_official_interface_where_it_is_installed(tmp_path: Path) -> None:
    official = pytest.importorskip("azure.eventhub")
    official_aio = pytest.importorskip("azure.eventhub.aio")
    with checkpoints.SqliteCheckpointStore(tmp_path / "a.sqlite") as store:
        assert isinstance(store, official.CheckpointStore)
    assert issubclass(aio.ServiceCheckpointStore, official_aio.CheckpointStore)


def test_the_stores_need_no_azure_sdk(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['azure.eventhub'] = sys.modules['azure.eventhub.aio'] = None\n"
        "from penstock.checkpoints import SqliteCheckpointStore\n"
        "from penstock.checkpoints import aio\n"
        f"print(SqliteCheckpointStore({str(tmp_path / 'a.sqlite')!r}).list_ownership('n','h','g'))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError):
        _ = checkpoints.NoSuchStore
    assert issubclass(checkpoints.CheckpointStoreUnavailable, PenstockError)
