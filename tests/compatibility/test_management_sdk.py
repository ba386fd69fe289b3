"""The official management SDK, unmodified but for `base_url` and a static credential, against a
real `penstock serve` over HTTPS; what it makes is used by azure-eventhub at once."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("azure.mgmt.eventhub", reason="the management SDK is not installed")

from azure.core.credentials import AccessToken
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.eventhub import EventData, EventHubConsumerClient, EventHubProducerClient
from azure.eventhub.exceptions import EventHubError
from azure.mgmt.eventhub import EventHubManagementClient

if TYPE_CHECKING:
    from tests.conftest import Server, ServerFactory

SUBSCRIPTION = "8f3f1b52-0c4b-4c43-8c0a-3f8f6f4a2d11"
GROUP = "a-resource-group"
FORMAT = "{Namespace}/{EventHub}/{PartitionId}/{Year}/{Month}/{Day}/{Hour}/{Minute}/{Second}"
CAPTURE = {
    "enabled": True,
    "encoding": "Avro",
    "intervalInSeconds": 120,
    "sizeLimitInBytes": 10_485_763,
    "skipEmptyArchives": True,
    "destination": {
        "name": "EventHubArchive.AzureBlockBlob",
        "properties": {
            "storageAccountResourceId": "local",
            "blobContainer": "events",
            "archiveNameFormat": FORMAT,
        },
    },
}
DEADLINE_S = 30.0


class StaticCredential:
    """The admin token that `serve` prints, and nothing else."""

    def __init__(self, token: str) -> None:
        self._token = token

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        return AccessToken(self._token, int(time.time()) + 3600)


@pytest.fixture(scope="module")
def managed(start_session_server: ServerFactory) -> Server:
    return start_session_server()


@pytest.fixture(scope="module")
def client(managed: Server) -> Iterator[Any]:
    made = EventHubManagementClient(
        StaticCredential(managed["admin_token"]),
        SUBSCRIPTION,
        base_url=managed["https"],
        connection_verify=managed["ca_file"],
    )
    yield made
    made.close()


@pytest.fixture(scope="module")
def namespace(client: Any) -> str:
    made = client.namespaces.begin_create_or_update(
        GROUP,
        "contoso",
        {
            "location": "westeurope",
            "tags": {"team": "blue"},
            "sku": {"name": "Standard", "capacity": 2},
        },
    ).result(DEADLINE_S)
    assert made.sku.capacity == 2
    return str(made.name)


def code_of(error: HttpResponseError) -> str | None:
    assert error.error is not None
    return error.error.code


def sdk_options(server: Server) -> dict[str, Any]:
    return {
        "retry_total": 0,
        "connection_verify": server["ca_file"],
        "custom_endpoint_address": f"sb://{server['amqps']}",
    }


def publish(server: Server, connection_string: str, hub: str, text: str) -> None:
    producer = EventHubProducerClient.from_connection_string(
        connection_string, eventhub_name=hub, **sdk_options(server)
    )
    with producer:
        producer.send_batch([EventData(text)], partition_id="0")


def test_namespace_is_created_as_asked_and_listed_where_it_lies(
    client: Any, namespace: str
) -> None:
    shown = client.namespaces.get(GROUP, namespace)
    assert (shown.location, shown.tags, shown.sku.name) == (
        "westeurope",
        {"team": "blue"},
        "Standard",
    )
    assert shown.provisioning_state == "Succeeded"
    assert shown.id.lower().split("/")[4] == GROUP
    assert shown.created_at.tzinfo is not None
    listed = [each.name for each in client.namespaces.list()]
    assert {"contoso", "penstock"} <= set(listed)
    assert "contoso" not in [each.name for each in client.namespaces.list_by_resource_group("else")]
    default = next(each for each in client.namespaces.list() if each.name == "penstock")
    assert client.namespaces.get(default.id.split("/")[4], "penstock").name == "penstock"


def test_namespace_takes_other_units_and_tags(client: Any, namespace: str) -> None:
    changed = client.namespaces.update(
        GROUP, namespace, {"sku": {"name": "Standard", "capacity": 4}}
    )
    assert changed.sku.capacity == 4
    again = client.namespaces.update(GROUP, namespace, {"tags": {"team": "green"}})
    assert (again.sku.capacity, again.tags) == (4, {"team": "green"})
    with pytest.raises(HttpResponseError) as refused:
        client.namespaces.update(GROUP, namespace, {"sku": {"name": "Standard", "capacity": 21}})
    assert refused.value.status_code == 400


def test_hub_keeps_its_settings(client: Any, namespace: str) -> None:
    made = client.event_hubs.create_or_update(
        GROUP,
        namespace,
        "settings",
        {
            "properties": {
                "partitionCount": 8,
                "messageRetentionInDays": 3,
                "userMetadata": "about it",
                "captureDescription": CAPTURE,
            }
        },
    )
    assert made.partition_ids == [str(index) for index in range(8)]
    shown = client.event_hubs.get(GROUP, namespace, "settings")
    assert (shown.message_retention_in_days, shown.status) == (3, "Active")
    assert shown.user_metadata == "about it"
    assert shown.capture_description.interval_in_seconds == 120
    assert shown.capture_description.destination.archive_name_format == FORMAT
    shown.status = "SendDisabled"
    shown.message_retention_in_days = 2
    changed = client.event_hubs.create_or_update(GROUP, namespace, "settings", shown)
    assert (changed.status, changed.message_retention_in_days) == ("SendDisabled", 2)
    assert changed.capture_description.size_limit_in_bytes == 10_485_763


@pytest.mark.parametrize(
    "properties",
    [
        {"partitionCount": 1},
        {"partitionCount": 33},
        {"messageRetentionInDays": 8},
        {"captureDescription": CAPTURE | {"intervalInSeconds": 59}},
        {"captureDescription": CAPTURE | {"sizeLimitInBytes": 524_288_001}},
        {"status": "Nonsense"},
    ],
    ids=str,
)
def test_hub_out_of_bounds_is_refused(client: Any, namespace: str, properties: Any) -> None:
    with pytest.raises(HttpResponseError) as refused:
        client.event_hubs.create_or_update(GROUP, namespace, "bounds", {"properties": properties})
    assert refused.value.status_code in (400, 403)
    assert refused.value.error is not None
    with pytest.raises(ResourceNotFoundError):
        client.event_hubs.get(GROUP, namespace, "bounds")


def test_hub_with_a_slash_in_its_name(client: Any, namespace: str) -> None:
    client.event_hubs.create_or_update(GROUP, namespace, "a/b", {"properties": {}})
    assert client.event_hubs.get(GROUP, namespace, "a/b").name == "a/b"
    assert "a/b" in [each.name for each in client.event_hubs.list_by_namespace(GROUP, namespace)]
    client.event_hubs.delete(GROUP, namespace, "a/b")
    client.event_hubs.delete(GROUP, namespace, "a/b")  # again is no error
    with pytest.raises(ResourceNotFoundError):
        client.event_hubs.get(GROUP, namespace, "a/b")


def test_consumer_groups_come_and_go(client: Any, namespace: str) -> None:
    hub = "with-groups"
    client.event_hubs.create_or_update(GROUP, namespace, hub, {"properties": {}})
    for number in range(20):
        client.consumer_groups.create_or_update(
            GROUP, namespace, hub, f"g{number}", {"properties": {"userMetadata": "x"}}
        )
    with pytest.raises(HttpResponseError) as refused:
        client.consumer_groups.create_or_update(GROUP, namespace, hub, "g20", {})
    assert code_of(refused.value) == "QuotaExceeded"
    assert client.consumer_groups.get(GROUP, namespace, hub, "$Default").name == "$Default"
    listed = list(client.consumer_groups.list_by_event_hub(GROUP, namespace, hub))
    assert len(listed) == 21
    some = client.consumer_groups.list_by_event_hub(GROUP, namespace, hub, skip=1, top=2)
    assert len(list(some)) == 2
    client.consumer_groups.delete(GROUP, namespace, hub, "g1")
    with pytest.raises(ResourceNotFoundError):
        client.consumer_groups.get(GROUP, namespace, hub, "g1")


def test_rules_give_keys_that_work_at_once(client: Any, managed: Server, namespace: str) -> None:
    hub = "with-keys"
    client.event_hubs.create_or_update(GROUP, namespace, hub, {"properties": {}})
    rights = {"properties": {"rights": ["Send", "Listen"]}}
    client.namespaces.create_or_update_authorization_rule(GROUP, namespace, "both", rights)
    client.event_hubs.create_or_update_authorization_rule(GROUP, namespace, hub, "own", rights)
    of_namespace = client.namespaces.list_keys(GROUP, namespace, "both")
    of_hub = client.event_hubs.list_keys(GROUP, namespace, hub, "own")
    assert f"EntityPath={hub}" in of_hub.primary_connection_string
    assert f"Endpoint=sb://{managed['amqps']}/" in of_namespace.primary_connection_string
    for number, text in enumerate(
        (
            of_namespace.primary_connection_string,
            of_namespace.secondary_connection_string,
            of_hub.primary_connection_string,
            of_hub.secondary_connection_string,
        )
    ):
        publish(managed, text, hub, f"event {number}")
    root = client.namespaces.list_keys(GROUP, namespace, "RootManageSharedAccessKey")
    consumer = EventHubConsumerClient.from_connection_string(
        root.primary_connection_string, "$Default", eventhub_name=hub, **sdk_options(managed)
    )
    with consumer:
        assert consumer.get_partition_properties("0")["last_enqueued_sequence_number"] == 3


def test_regenerated_key_cuts_the_old_one_off_on_open_links_too(
    client: Any, managed: Server, namespace: str
) -> None:
    hub = "rotating"
    client.event_hubs.create_or_update(GROUP, namespace, hub, {"properties": {}})
    rights = {"properties": {"rights": ["Send", "Listen"]}}
    client.event_hubs.create_or_update_authorization_rule(GROUP, namespace, hub, "own", rights)
    keys = client.event_hubs.list_keys(GROUP, namespace, hub, "own")
    cut_off, received = threading.Event(), threading.Event()
    consumer = EventHubConsumerClient.from_connection_string(
        keys.primary_connection_string, "$Default", **sdk_options(managed)
    )
    reading = threading.Thread(
        target=consumer.receive,
        kwargs={
            "partition_id": "0",
            "on_event": lambda *_: received.set(),
            "on_error": lambda *_: cut_off.set(),
            "starting_position": "-1",
        },
    )
    reading.start()
    producer = EventHubProducerClient.from_connection_string(
        keys.primary_connection_string, **sdk_options(managed)
    )
    try:
        producer.send_batch([EventData("before")], partition_id="0")
        assert received.wait(DEADLINE_S)
        new = client.event_hubs.regenerate_keys(
            GROUP, namespace, hub, "own", {"keyType": "PrimaryKey"}
        )
        assert new.primary_key != keys.primary_key
        assert new.secondary_key == keys.secondary_key
        with pytest.raises(EventHubError):
            producer.send_batch([EventData("with the old key")], partition_id="0")
        assert cut_off.wait(DEADLINE_S), "the open receiver was not told"
    finally:
        producer.close()
        consumer.close()
        reading.join(DEADLINE_S)
    publish(managed, keys.secondary_connection_string, hub, "the other key goes on")
    publish(managed, new.primary_connection_string, hub, "the new one works")
    with pytest.raises(EventHubError):
        publish(managed, keys.primary_connection_string, hub, "never")


def test_names_errors_and_reads_around_it(client: Any, namespace: str) -> None:
    assert not client.namespaces.check_name_availability({"name": namespace}).name_available
    assert client.namespaces.check_name_availability({"name": "fresh-name"}).name_available
    assert client.namespaces.get_network_rule_set(GROUP, namespace).default_action == "Allow"
    assert list(client.operations.list())
    with pytest.raises(ResourceNotFoundError) as missing:
        client.event_hubs.get(GROUP, namespace, "missing")
    assert code_of(missing.value) == "ResourceNotFound"


def test_namespace_is_deleted_with_its_keys(client: Any, managed: Server) -> None:
    client.namespaces.begin_create_or_update(GROUP, "fleeting", {"location": "x"}).result(
        DEADLINE_S
    )
    client.event_hubs.create_or_update(GROUP, "fleeting", "events", {"properties": {}})
    root = client.namespaces.list_keys(GROUP, "fleeting", "RootManageSharedAccessKey")
    publish(managed, root.primary_connection_string, "events", "one")
    client.namespaces.begin_delete(GROUP, "fleeting").result(DEADLINE_S)
    with pytest.raises(ResourceNotFoundError):
        client.namespaces.get(GROUP, "fleeting")
    with pytest.raises(EventHubError):
        publish(managed, root.primary_connection_string, "events", "two")


def test_token_is_needed(managed: Server) -> None:
    wrong = EventHubManagementClient(
        StaticCredential("not.a.token"),
        SUBSCRIPTION,
        base_url=managed["https"],
        connection_verify=managed["ca_file"],
    )
    with contextlib.closing(wrong), pytest.raises(HttpResponseError) as refused:
        list(wrong.namespaces.list())
    assert refused.value.status_code == 401


def test_what_was_made_survives_a_restart(
    start_session_server: ServerFactory, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    for first in (True, False):
        server = start_session_server(data=data)
        client = EventHubManagementClient(
            StaticCredential(server["admin_token"]),
            SUBSCRIPTION,
            base_url=server["https"],
            connection_verify=server["ca_file"],
        )
        with contextlib.closing(client):
            if first:
                body: Any = {"location": "north", "tags": {"a": "b"}, "sku": {"name": "Standard"}}
                client.namespaces.begin_create_or_update(GROUP, "lasting", body).result(DEADLINE_S)
                hub: Any = {"properties": {"captureDescription": CAPTURE}}
                client.event_hubs.create_or_update(GROUP, "lasting", "events", hub)
            shown = client.namespaces.get(GROUP, "lasting")
            assert (shown.location, shown.tags) == ("north", {"a": "b"})
            captured = client.event_hubs.get(GROUP, "lasting", "events").capture_description
            assert captured is not None
            assert captured.enabled
        server.stop()


# --- the SDK before the last rewrite of its generator ---------------------------------------------

OLDER = "11.2.0"
OLDER_SCRIPT = """
import json, sys, time
from azure.core.credentials import AccessToken
from azure.mgmt.eventhub import EventHubManagementClient, __version__
from azure.mgmt.eventhub.models import (
    AuthorizationRule, CaptureDescription, ConsumerGroup, Destination, EHNamespace, Eventhub,
    RegenerateAccessKeyParameters, Sku,
)

class Credential:
    def get_token(self, *scopes, **options):
        return AccessToken(sys.argv[2], int(time.time()) + 3600)

client = EventHubManagementClient(
    Credential(), "a-subscription", base_url=sys.argv[1], connection_verify=sys.argv[3]
)
made = client.namespaces.begin_create_or_update(
    "g", "older-sdk", EHNamespace(location="x", sku=Sku(name="Standard", capacity=2))
).result()
hub = client.event_hubs.create_or_update("g", "older-sdk", "events", Eventhub(
    partition_count=4, message_retention_in_days=2,
    capture_description=CaptureDescription(enabled=True, encoding="Avro", destination=Destination(
        name="EventHubArchive.AzureBlockBlob", storage_account_resource_id="local",
        blob_container="c", archive_name_format="FORMAT"))))
group = client.consumer_groups.create_or_update(
    "g", "older-sdk", "events", "readers", ConsumerGroup())
rule = client.namespaces.create_or_update_authorization_rule(
    "g", "older-sdk", "both", AuthorizationRule(rights=["Send", "Listen"]))
keys = client.namespaces.list_keys("g", "older-sdk", "both")
new = client.namespaces.regenerate_keys(
    "g", "older-sdk", "both", RegenerateAccessKeyParameters(key_type="PrimaryKey"))
print(json.dumps({
    "version": __version__, "capacity": made.sku.capacity, "partitions": hub.partition_count,
    "interval": hub.capture_description.interval_in_seconds, "group": group.name,
    "rights": rule.rights, "rotated": keys.primary_key != new.primary_key,
    "kept": keys.secondary_key == new.secondary_key,
    "listed": [each.name for each in client.namespaces.list_by_resource_group("g")],
}))
client.namespaces.begin_delete("g", "older-sdk").result()
"""


@pytest.fixture(scope="module")
def older_sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Beside the newest one, in a directory of its own."""
    folder = tmp_path_factory.mktemp("older-sdk")
    uv = Path(sys.executable).parent / "uv"
    command = [str(uv), "pip", "install", "-q", "--target", str(folder)]
    try:
        done = subprocess.run(
            [*command, f"azure-mgmt-eventhub=={OLDER}"],
            capture_output=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        pytest.skip(f"azure-mgmt-eventhub {OLDER} cannot be installed here")
    if done.returncode != 0:
        pytest.skip(f"azure-mgmt-eventhub {OLDER} cannot be installed here")
    return folder


def test_the_older_sdk_manages_too(managed: Server, older_sdk: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            OLDER_SCRIPT.replace("FORMAT", FORMAT),
            managed["https"],
            managed["admin_token"],
            managed["ca_file"],
        ],
        env={"PYTHONPATH": str(older_sdk)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    assert told["version"] == OLDER
    assert (told["capacity"], told["partitions"], told["interval"]) == (2, 4, 300)
    assert (told["rotated"], told["kept"]) == (True, True)
    assert "older-sdk" in told["listed"]
