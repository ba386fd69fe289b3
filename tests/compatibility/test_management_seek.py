"""Moving a consumer group's checkpoints, with the official SDK's processor on the service's store;
lag as it goes; numbers over time that outlive the process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from azure.eventhub import EventData, EventHubConsumerClient, EventHubProducerClient

from penstock.checkpoints import ServiceCheckpointStore
from penstock.management.client import ManagementClient
from penstock.management.errors import GroupInUse

if TYPE_CHECKING:
    from tests.conftest import Server, ServerFactory

DEADLINE_S = 30.0
PARTITION = "0"
COUNT = 20


@pytest.fixture(scope="module")
def server(start_session_server: ServerFactory) -> Server:
    return start_session_server("--hub=orders:2")


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[ManagementClient]:
    with ManagementClient(server["admin"], server["admin_token"]) as made:
        yield made


def send(server: Server, count: int) -> None:
    producer = EventHubProducerClient.from_connection_string(
        server["emulator_connection_string"], eventhub_name="orders"
    )
    with producer:
        producer.send_batch([EventData(f"event {n}") for n in range(count)], partition_id=PARTITION)


class Processor:
    """The official client on the service's store: processes and checkpoints until it is closed."""

    def __init__(self, server: Server, group: str, wanted: int) -> None:
        self.seen: dict[int, bytes] = {}  # once or, when a link breaks, again
        self.has_all = threading.Event()
        self._wanted = wanted
        self._store = ServiceCheckpointStore(
            server["connection_string"], https_url=server["https"], ca_file=server["ca_file"]
        )
        self._client = EventHubConsumerClient.from_connection_string(
            server["emulator_connection_string"],
            group,
            eventhub_name="orders",
            checkpoint_store=self._store,
            load_balancing_interval=1,
        )
        self._thread = threading.Thread(
            target=self._client.receive,
            kwargs={"on_event": self._on_event, "starting_position": "-1"},
        )
        self._thread.start()

    def _on_event(self, context: Any, event: Any) -> None:
        self.seen[event.sequence_number] = b"".join(event.body)
        context.update_checkpoint(event)
        if len(self.seen) >= self._wanted:
            self.has_all.set()

    def close(self) -> None:
        self._client.close()
        self._thread.join(DEADLINE_S)
        self._store.close()
        assert not self._thread.is_alive()


def process(server: Server, group: str, wanted: int) -> dict[int, bytes]:
    processor = Processor(server, group, wanted)
    with contextlib.closing(processor):
        assert processor.has_all.wait(DEADLINE_S), processor.seen
    return processor.seen


def test_processor_goes_on_where_the_checkpoint_was_put(
    server: Server, client: ManagementClient
) -> None:
    namespace = server["namespace"]
    client.put_group(namespace, "orders", "readers")
    send(server, COUNT)
    processor = Processor(server, "readers", COUNT)
    with contextlib.closing(processor):
        assert processor.has_all.wait(DEADLINE_S)
        with pytest.raises(GroupInUse, match=f"holds partition {PARTITION}"):
            client.seek(namespace, "orders", "readers", "5", partition=PARTITION)
        dry = client.seek(
            namespace, "orders", "readers", "5", partition=PARTITION, dry_run=True, force=True
        )
        assert dry[0]["to_sequence_number"] == 5
        (row,) = lag_of(client, namespace)
        assert (row["owner"] is None, row["readers"]) == (False, 1)
    first = processor.seen
    assert list(first) == list(range(COUNT))
    (row,) = lag_of(client, namespace)
    assert (row["checkpoint_sequence_number"], row["lag_events"]) == (COUNT - 1, 0)
    # Forced: that a lease was given up when the SDK closed is the SDK's affair.
    (moved,) = client.seek(namespace, "orders", "readers", "5", partition=PARTITION, force=True)
    assert (moved["from_sequence_number"], moved["to_sequence_number"]) == (COUNT, 5)
    assert moved["delta"] == 5 - COUNT
    (row,) = lag_of(client, namespace)
    assert (row["lag_events"], row["lag_bytes"] > 0, row["lag_seconds"] >= 0) == (15, True, True)
    again = process(server, "readers", COUNT - 5)
    assert again == {number: first[number] for number in range(5, COUNT)}  # byte for byte
    assert client.audit(newest=1)[0]["what"] == "consumergroups/seek"


def lag_of(client: ManagementClient, namespace: str) -> list[dict[str, Any]]:
    rows = client.lag(namespace, "orders", "readers")
    assert [row["partition"] for row in rows] == ["0", "1"]
    return [row for row in rows if row["partition"] == PARTITION]


def test_metric_history_outlives_the_process(
    start_session_server: ServerFactory, tmp_path: Path
) -> None:
    data = tmp_path / "kept"
    first = start_session_server("--hub=orders:2", data=data)
    send(first, COUNT)
    first.stop()  # notes the last seconds
    second = start_session_server("--hub=orders:2", data=data)
    with ManagementClient(second["admin"], second["admin_token"]) as client:
        found = client.metric_history(
            second["namespace"], "orders", names=["incoming_messages", "size_bytes"], points=100
        )
        counted = [number for number in found["values"]["incoming_messages"] if number]
        assert sum(counted) == COUNT
        assert max(number or 0 for number in found["values"]["size_bytes"]) > 0
        assert len(found["at_ms"]) <= 100
        whole = client.metric_history(second["namespace"], names=["incoming_messages"])
        assert sum(number or 0 for number in whole["values"]["incoming_messages"]) == COUNT
