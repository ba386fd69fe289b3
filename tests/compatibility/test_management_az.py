"""`az eventhubs` by the recipe of docs/reference/management.md, where the Azure command line is
installed."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from azure.eventhub import EventData, EventHubProducerClient

from penstock.capture.description import TOKENS

if TYPE_CHECKING:
    from tests.conftest import Server, ServerFactory

DEADLINE_S = 90
pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        shutil.which("az") is None, reason="the Azure command line is not installed"
    ),
]


class Az:
    """The command line with a configuration of its own."""

    def __init__(self, server: Server, folder: Path) -> None:
        self._environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "AZURE_CONFIG_DIR": str(folder / "azure"),
            "AZURE_CORE_COLLECT_TELEMETRY": "false",
            "REQUESTS_CA_BUNDLE": server["ca_file"],
            "IDENTITY_ENDPOINT": f"{server['https']}/metadata/identity/oauth2/token",
            "IDENTITY_HEADER": server["admin_token"],
        }
        self.server = server

    def run(self, command: str, **changed: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["az", *shlex.split(command), "-o", "json"],
            env=self._environ | changed,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    def __call__(self, command: str) -> Any:
        done = self.run(command)
        assert done.returncode == 0, f"az {command}: {done.stderr[-2000:]}"
        return json.loads(done.stdout) if done.stdout.strip() else None

    def refused(self, command: str, text: str) -> None:
        """With exit code 1: `az` exits with 3 for what is not found."""
        done = self.run(command)
        assert done.returncode == 1, f"az {command}: {done.returncode} {done.stdout}"
        assert text in done.stderr


@pytest.fixture(scope="module")
def az(start_session_server: ServerFactory, tmp_path_factory: pytest.TempPathFactory) -> Az:
    """Signed in by the recipe of docs/reference/management.md."""
    az = Az(start_session_server(), tmp_path_factory.mktemp("az"))
    # With a trailing slash, as Azure's own endpoint is written.
    az(f"cloud register -n penstock --endpoint-resource-manager {az.server['https']}/")
    az("cloud set -n penstock")
    az("login --identity")
    return az


def test_namespace_hub_and_keys(az: Az) -> None:
    namespace = "-g demo --namespace-name contoso"
    made = az("eventhubs namespace create -g demo -n contoso --sku Standard --capacity 2 -l local")
    assert made["sku"]["capacity"] == 2
    hub = az(f"eventhubs eventhub create {namespace} -n orders --partition-count 4")
    assert hub["partitionIds"] == ["0", "1", "2", "3"]
    az(f"eventhubs eventhub consumer-group create {namespace} --eventhub-name orders -n readers")
    rule = "--name RootManageSharedAccessKey"
    keys = az(f"eventhubs namespace authorization-rule keys list {namespace} {rule}")
    assert az.server["amqps"] in keys["primaryConnectionString"]
    renew = f"eventhubs namespace authorization-rule keys renew {namespace} {rule} --key PrimaryKey"
    assert az(renew)["primaryKey"] != keys["primaryKey"]
    for key in ("short", "sixteen;letters!"):
        az.refused(f"{renew} --key-value '{key}'", "16 to 256 printable ASCII")
    listed = az("eventhubs namespace list")
    assert {each["name"] for each in listed} == {"contoso", "penstock"}
    rules = (
        f"eventhubs eventhub authorization-rule {{}} {namespace} --eventhub-name orders --name send"
    )
    az(rules.format("create") + " --rights Send")
    sender = az(rules.format("keys list"))
    assert sender["primaryConnectionString"].endswith(";EntityPath=orders")
    found = az("resource show -g demo -n contoso --resource-type Microsoft.EventHub/namespaces")
    assert found["name"] == "contoso"
    az("eventhubs namespace delete -g demo -n contoso")


def test_tag_changes_neither_units_nor_scope(az: Az) -> None:
    """The namespace of `serve` is unlimited; `az` reads it, changes a tag and writes all back."""
    update = "eventhubs namespace update -g {} -n penstock --tags k={} --query tags.k"
    assert az(update.format("one-group", "idle")) == "idle"
    assert _units(az)["throughputUnits"] == "unlimited"
    _burst(az)
    assert az(update.format("another-group", "busy")) == "busy"
    assert _units(az)["throughputUnits"] == "unlimited"
    for group in ("penstock", "one-group", "a-third-group"):
        assert az(f"eventhubs namespace show -g {group} -n penstock --query name") == "penstock"


def _units(az: Az) -> Any:
    path = "/subscriptions/any/resourceGroups/any/providers/Microsoft.EventHub/namespaces/penstock"
    url = f"{az.server['https']}{path}?api-version=2024-01-01"
    return az(f"rest --method get --url {url} --query properties")


def _burst(az: Az) -> None:
    """Publish until the hour needed more than one unit."""
    deadline = time.monotonic() + DEADLINE_S
    with EventHubProducerClient.from_connection_string(
        az.server["connection_string"],
        eventhub_name="events",
        custom_endpoint_address=f"sb://{az.server['amqps']}",
        connection_verify=az.server["ca_file"],
    ) as producer:
        while _units(az)["throughputUnitsNeeded"] < 2:
            assert time.monotonic() < deadline
            for _ in range(20):
                producer.send_batch([EventData(b"x" * 200_000)])


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("namespace create -g demo -n refused -l local --zone-redundant true", "zoneRedundant"),
        ("namespace create -g demo -n refused -l local --mi-system-assigned true", "identity"),
        ("namespace create -g demo -n refused -l local --ip-address-type DualStack", "ipAddress"),
        (
            "namespace create -g demo -n refused -l local --sku Premium "
            "--geo-data-replication-config role-type=Secondary location-name=west",
            "geoDataReplication is not supported",
        ),
        (
            "namespace create -g demo -n refused -l local --enable-auto-inflate true",
            "without maximumThroughputUnits",
        ),
        (
            "namespace create -g demo -n refused -l local --capacity 10 "
            "--enable-auto-inflate true --maximum-throughput-units 5",
            "below the 10 units",
        ),
        (
            "namespace network-rule-set create -g demo --namespace-name penstock "
            "--default-action Deny",
            "Network rules are not supported",
        ),
        (
            "eventhub create -g demo --namespace-name penstock -n stamps --timestamp-type Create",
            "only LogAppend is supported",
        ),
    ],
)
def test_what_is_not_supported_is_refused(az: Az, command: str, text: str) -> None:
    az.refused(f"eventhubs {command}", text)


def test_capture_is_switched_on_and_off(az: Az) -> None:
    hub = "eventhubs eventhub {} -g demo --namespace-name penstock -n captured"
    capture = (
        "--enable-capture true --capture-interval 60 --capture-size-limit 10485760 "
        "--destination-name EventHubArchive.AzureBlockBlob --blob-container files "
        "--archive-name-format " + "/".join(f"{{{token}}}" for token in TOKENS)
    )
    az.refused(f"{hub.format('create')} {capture} --storage-account nosuch", "is not configured")
    made = az(f"{hub.format('create')} {capture} --storage-account local")
    assert made["captureDescription"]["enabled"] is True
    off = az(f"{hub.format('update')} --enable-capture false")
    assert off["captureDescription"]["enabled"] is False
    az(hub.format("delete"))


def test_wrong_token_says_what_to_set(az: Az) -> None:
    done = az.run("login --identity", IDENTITY_HEADER="wrong")
    assert done.returncode == 1
    assert "Set IDENTITY_HEADER to the admin token of this service" in done.stderr
