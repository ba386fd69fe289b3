"""`az eventhubs` by the recipe of docs/management.md, where the Azure command line is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import Server, ServerFactory

DEADLINE_S = 90


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

    def __call__(self, command: str) -> Any:
        done = subprocess.run(
            ["az", *command.split(), "-o", "json"],
            env=self._environ,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, f"az {command}: {done.stderr[-2000:]}"
        return json.loads(done.stdout) if done.stdout.strip() else None


@pytest.mark.timeout(400)
@pytest.mark.skipif(shutil.which("az") is None, reason="the Azure command line is not installed")
def test_az_manages_without_signing_in_anywhere(
    start_session_server: ServerFactory, tmp_path: Path
) -> None:
    server = start_session_server()
    az = Az(server, tmp_path)
    az(f"cloud register -n penstock --endpoint-resource-manager {server['https']}")
    az("cloud set -n penstock")
    az("login --identity")
    namespace = "-g demo --namespace-name contoso"
    made = az("eventhubs namespace create -g demo -n contoso --sku Standard --capacity 2 -l local")
    assert made["sku"]["capacity"] == 2
    hub = az(f"eventhubs eventhub create {namespace} -n orders --partition-count 4")
    assert hub["partitionIds"] == ["0", "1", "2", "3"]
    az(f"eventhubs eventhub consumer-group create {namespace} --eventhub-name orders -n readers")
    rule = "--name RootManageSharedAccessKey"
    keys = az(f"eventhubs namespace authorization-rule keys list {namespace} {rule}")
    assert server["amqps"] in keys["primaryConnectionString"]
    renewed = az(
        f"eventhubs namespace authorization-rule keys renew {namespace} {rule} --key PrimaryKey"
    )
    assert renewed["primaryKey"] != keys["primaryKey"]
    listed = az("eventhubs namespace list")
    assert {each["name"] for each in listed} == {"contoso", "penstock"}
    az("eventhubs namespace delete -g demo -n contoso")
