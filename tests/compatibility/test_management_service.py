"""Management of a running service without an SDK: the typed client, OpenAPI on the administration
port, connections that are killed, several namespaces on one service."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from azure.eventhub import EventData, EventHubConsumerClient, EventHubProducerClient
from azure.eventhub.exceptions import EventHubError

from penstock.management.client import ManagementClient
from penstock.model.errors import Unauthorized

if TYPE_CHECKING:
    from tests.conftest import Server, ServerFactory

DEADLINE_S = 30.0
FAR_S = 4_000_000_000


@pytest.fixture(scope="module")
def managed(start_session_server: ServerFactory) -> Server:
    return start_session_server()


@pytest.fixture(scope="module", params=["admin", "https"])
def client(request: pytest.FixtureRequest, managed: Server) -> Iterator[ManagementClient]:
    """On both ports that the API answers on."""
    url = managed[request.param]
    with ManagementClient(url, managed["admin_token"], ca_file=managed["ca_file"]) as made:
        yield made


def sdk_options(server: Server) -> dict[str, Any]:
    return {
        "retry_total": 0,
        "connection_verify": server["ca_file"],
        "custom_endpoint_address": f"sb://{server['amqps']}",
    }


def root_string(client: ManagementClient, namespace: str) -> str:
    return client.keys(namespace, None, "RootManageSharedAccessKey").primary_connection_string


def last_sequence(server: Server, connection_string: str, hub: str) -> int:
    consumer = EventHubConsumerClient.from_connection_string(
        connection_string, "$Default", eventhub_name=hub, **sdk_options(server)
    )
    with consumer:
        found: int = consumer.get_partition_properties("0")["last_enqueued_sequence_number"]
        return found


def send(server: Server, connection_string: str, hub: str, count: int) -> None:
    producer = EventHubProducerClient.from_connection_string(
        connection_string, eventhub_name=hub, **sdk_options(server)
    )
    with producer:
        producer.send_batch([EventData(str(n)) for n in range(count)], partition_id="0")


def test_namespaces_of_one_service_do_not_see_each_other(
    managed: Server, client: ManagementClient
) -> None:
    name = f"second-{client.url[:5].strip(':')}"
    client.put_namespace(name, units=2)
    client.put_hub(name, "events", partition_count=2)  # the default one has a hub of this name
    own, default = root_string(client, name), root_string(client, "penstock")
    before = last_sequence(managed, default, "events")
    send(managed, own, "events", 3)
    assert last_sequence(managed, own, "events") == 2
    assert last_sequence(managed, default, "events") == before
    client.put_hub(name, "theirs-alone")
    with pytest.raises(EventHubError):
        send(managed, default, "theirs-alone", 1)
    client.delete_namespace(name)
    with pytest.raises(EventHubError):
        send(managed, own, "events", 1)


def test_service_is_found_by_its_data_directory(managed: Server) -> None:
    with ManagementClient.find({"PENSTOCK_DATA": str(managed.data)}) as found:
        assert "penstock" in [each.name for each in found.namespaces()]
        assert found.namespace("penstock").unlimited


def wait_until_gone(client: ManagementClient, connection_id: str) -> None:
    """The peer may answer our close for a moment."""
    end = time.monotonic() + DEADLINE_S
    while connection_id in [each["id"] for each in client.connections()]:
        assert time.monotonic() < end
        threading.Event().wait(0.1)


def test_killed_connection_is_gone_and_its_client_hears_so(
    managed: Server, client: ManagementClient
) -> None:
    ended = threading.Event()
    consumer = EventHubConsumerClient.from_connection_string(
        root_string(client, "penstock"), "$Default", eventhub_name="events", **sdk_options(managed)
    )
    reading, initialized = threading.Event(), threading.Event()
    thread = threading.Thread(
        target=consumer.receive,
        kwargs={
            "partition_id": "1",
            "on_event": lambda *_: reading.set(),
            "on_partition_initialize": lambda *_: initialized.set(),
            "on_error": lambda *_: ended.set(),
            "starting_position": "-1",
        },
    )
    thread.start()
    try:
        producer = EventHubProducerClient.from_connection_string(
            root_string(client, "penstock"), eventhub_name="events", **sdk_options(managed)
        )
        with producer:
            producer.send_batch([EventData("x")], partition_id="1")
        assert reading.wait(DEADLINE_S)
        readers = client.readers("penstock", "events")
        assert [each["partition"] for each in readers] == [1]
        (connection,) = [each for each in client.connections() if each["events_out"]]
        assert connection["namespace"] == "penstock"
        assert connection["hub_links"] == [
            {
                "hub": "events",
                "role": "receive",
                "group": "$Default",
                "partition": "1",
                "publisher": None,
            }
        ]
        assert "azsdk-python-eventhubs" in connection["user_agent"]
        assert connection["bytes_out"] > connection["events_out"] > 0
        assert connection["bytes_in"] > 0
        assert connection["opened_ms"] > 0 <= connection["age_seconds"]
        client.kill_connection(connection["id"])
        assert ended.wait(DEADLINE_S)
        wait_until_gone(client, connection["id"])
    finally:
        consumer.close()
        thread.join(DEADLINE_S)


def test_openapi_is_published_on_the_administration_port(managed: Server) -> None:
    request = urllib.request.Request(
        f"{managed['admin']}/openapi.json",
        headers={"Authorization": f"Bearer {managed['admin_token']}"},
    )
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        document = json.load(answer)
    assert document["openapi"].startswith("3.")
    assert "/subscriptions" in document["paths"]


def test_health_and_management_live_side_by_side(managed: Server) -> None:
    with urllib.request.urlopen(f"{managed['admin']}/health", timeout=DEADLINE_S) as answer:
        assert json.load(answer)["status"] == "healthy"
    with ManagementClient(managed["admin"], "x") as stranger, pytest.raises(Unauthorized):
        stranger.namespaces()


def test_acts_are_in_the_audit_log(client: ManagementClient) -> None:
    client.put_group("penstock", "events", "audited")
    client.delete_group("penstock", "events", "audited")
    whats = [each["what"] for each in client.audit(newest=2)]
    assert whats == ["consumergroups/delete", "consumergroups/write"]
    assert {each["who"] for each in client.audit(newest=2)} == {"admin"}
