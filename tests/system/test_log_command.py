"""`penstock log verify|dump` on a directory that a real service wrote."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from azure.eventhub import EventData, EventHubProducerClient

from penstock.log.embedded.store import EmbeddedLogStore
from penstock.model.events import EventBatch
from penstock.testing import broker

PENSTOCK = str(Path(sys.executable).with_name("penstock"))
HELLO = b"\x00\x53\x75\xa0\x0a\x00\x53\x75\xa0\x05hello"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Three batches of two events in one partition."""
    waiting: list[object] = []
    store = EmbeddedLogStore(tmp_path / "data" / "log", wake=lambda work: work())
    partition = store.partition("ab" * 16, 0)
    for number in range(3):
        batch = EventBatch(HELLO * 2, 2)
        partition.append(batch, now_ms=1_700_000_000_000 + number, done=waiting.append)
    store.close()
    assert len(waiting) == 3
    return tmp_path / "data"


def penstock(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PENSTOCK, *arguments], capture_output=True, text=True, timeout=60)


def test_verify_counts_every_event(directory: Path) -> None:
    done = penstock("log", "verify", str(directory), "-o", "json")
    assert done.returncode == 0, done.stderr
    (summary,) = json.loads(done.stdout)
    assert (summary["partition"], summary["records"], summary["events"]) == (0, 3, 6)
    assert "Every stored event can be read." in done.stderr


def test_verify_finds_a_flipped_bit_and_says_so_by_its_exit_code(directory: Path) -> None:
    (segment,) = directory.glob("log/*/0/*.log")
    content = bytearray(segment.read_bytes())
    place = content.index(b"hello")
    content[place] ^= 1
    segment.write_bytes(content)
    done = penstock("log", "verify", str(directory))
    assert done.returncode == 1
    assert "LOST" in done.stderr
    assert "Traceback" not in done.stderr


def test_verify_names_hubs_as_the_catalog_does(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with (
        broker(data=data, hubs=["orders"], partitions=1) as running,
        EventHubProducerClient.from_connection_string(
            running.emulator_connection_string, eventhub_name="orders"
        ) as producer,
    ):
        producer.send_event(EventData("hello"), partition_id="0")
    (folder,) = data.glob("log/*/0")
    done = penstock("log", "verify", str(data))
    assert done.returncode == 0, done.stderr
    assert "penstock/orders" in done.stdout
    assert folder.parent.name not in done.stdout
    (segment,) = folder.glob("*.log")
    content = bytearray(segment.read_bytes())
    content[content.index(b"hello")] ^= 1
    segment.write_bytes(content)
    done = penstock("log", "verify", str(data / "log"))
    assert "LOST: penstock/orders, partition 0: " in done.stderr
    done = penstock("log", "verify", str(data), "-o", "json")
    summary = json.loads(done.stdout)[0]
    assert (summary["hub"], summary["hub_id"]) == ("penstock/orders", folder.parent.name)
    (data / "catalog.sqlite").rename(tmp_path / "catalog.sqlite")
    done = penstock("log", "verify", str(data), "-o", "json")
    summary = json.loads(done.stdout)[0]
    assert (summary["hub"], summary["hub_id"]) == (None, folder.parent.name)


def test_dump_lists_records_with_their_numbers(directory: Path) -> None:
    (segment,) = directory.glob("log/*/0/*.log")
    done = penstock("log", "dump", str(segment), "-o", "jsonl")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["first_sequence"], row["count"]) for row in rows] == [(0, 2), (2, 2), (4, 2)]
    assert rows[0]["enqueued"] == "2023-11-14T22:13:20.000Z"


@pytest.mark.parametrize("arguments", [("verify", "nowhere"), ("dump", "nowhere.log")])
def test_what_is_not_there_is_one_sentence(tmp_path: Path, arguments: tuple[str, str]) -> None:
    done = penstock("log", arguments[0], str(tmp_path / arguments[1]))
    assert done.returncode == 3
    assert len(done.stderr.strip().splitlines()) == 1
    assert "nowhere" in done.stderr
