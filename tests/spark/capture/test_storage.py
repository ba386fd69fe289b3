"""Storage of every kind: Data Lake and Blob with each credential, S3, and what is told of them."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.spark.capture import storing
from tests.spark.capture.conftest import RunCapture, bodies, drained, settings, verified
from tests.spark.capture.storages import SECRET_KEY, S3Server, TlsAzurite, identity

import penstock.capture
from penstock.capture.destinations import Destination

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.spark.conftest import MakeHub

CONTAINERS = ("by-key", "by-sas", "by-own-sas", "by-string", "by-sas-string", "lake", "by-identity")


def azure_sas(azurite: TlsAzurite, container: str | None = None) -> str:
    """For the account, or for one container of it."""
    from azure.storage.blob import (
        AccountSasPermissions,
        ContainerSasPermissions,
        ResourceTypes,
        generate_account_sas,
        generate_container_sas,
    )

    rights = {"read": True, "write": True, "list": True, "create": True}
    ends = datetime.now(UTC) + timedelta(hours=1)
    if container is not None:
        permission = ContainerSasPermissions(**rights)
        return str(
            generate_container_sas(
                azurite.ACCOUNT, container, azurite.KEY, permission=permission, expiry=ends
            )
        )
    kinds = ResourceTypes(service=True, container=True, object=True)
    permissions = AccountSasPermissions(**rights)
    return str(generate_account_sas(azurite.ACCOUNT, azurite.KEY, kinds, permissions, ends))


def stored(asked: list[tuple[Destination, str]], **environ: str) -> list[dict[str, Any]]:
    """What `storing.py` says of each."""
    done = subprocess.run(
        [sys.executable, storing.__file__],
        input=msgspec.json.encode(asked),
        capture_output=True,
        env={"PATH": os.environ["PATH"], **environ},
        timeout=200,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return msgspec.json.decode(done.stdout, type=list[dict[str, Any]])


@pytest.fixture(scope="module")
def azure(tls_azurite: TlsAzurite) -> Iterator[dict[str, dict[str, Any]]]:
    """One file put with each credential, by container."""
    account = {"account_name": tls_azurite.ACCOUNT, "account_host": tls_azurite.host}
    key, sas = tls_azurite.KEY, azure_sas(tls_azurite)
    string = f"BlobEndpoint=https://{tls_azurite.host};SharedAccessSignature={sas}"
    # As Azure's tools write Data Lake; that the account is on this machine is said beside it.
    lake = f"abfss://lake@{tls_azurite.ACCOUNT}.dfs.core.windows.net/below/it"
    asked: dict[str, tuple[str, dict[str, str]]] = {
        "by-key": ("abfs://", account | {"account_key": key}),
        "by-sas": ("az://by-sas", account | {"sas_token": sas}),
        # Of a container that is there: such a token makes none.
        "by-own-sas": (
            "abfs://by-key/own",
            account | {"sas_token": "?" + azure_sas(tls_azurite, "by-key")},
        ),
        "by-string": ("abfs://", {"connection_string": tls_azurite.connection_string}),
        "by-sas-string": ("abfs://", {"connection_string": string}),
        "lake": (lake, {"account_host": tls_azurite.host, "account_key": key}),
        "by-identity": ("abfss://by-identity", account),
    }
    destinations = [
        (
            Destination(name=name, url=url, options=options),
            name if name != "by-own-sas" else "by-key",
        )
        for name, (url, options) in asked.items()
    ]
    with identity() as environ:
        # What adlfs would take from its environment instead of what it is given.
        environ["AZURE_STORAGE_CONNECTION_STRING"] = "AccountName=another;AccountKey=AAAA"
        found = stored(destinations, SSL_CERT_FILE=tls_azurite.ca_file, **environ)
    yield dict(zip(asked, found, strict=True))


@pytest.mark.parametrize("name", CONTAINERS)
def test_azure_storage_takes_files_with_each_credential(
    azure: dict[str, dict[str, Any]], tls_azurite: TlsAzurite, name: str
) -> None:
    told = azure[name]
    root = {"lake": "lake/below/it", "by-own-sas": "by-key/own"}.get(name, name)
    assert told.get("error") is None
    assert (told["root"], told["content"], told["size"]) == (root, "second", 6)
    assert told["below"] == told["files"] == [[storing.PATH, 6]]
    assert told["nothing"] is None
    # An address that Azure's own clients open, as Event Grid tells it.
    assert told["url"] == f"https://{tls_azurite.host}/{root}/{storing.PATH}"
    assert [text for text in told["shown"] if tls_azurite.KEY in text or "sig=" in text] == []


def test_storage_that_refuses_says_why_and_shows_no_secret(tls_azurite: TlsAzurite) -> None:
    account = {"account_name": tls_azurite.ACCOUNT, "account_host": tls_azurite.host}
    wrong = base64.b64encode(b"another key of the account").decode()
    sas = azure_sas(tls_azurite).replace("sp=", "sp=x")
    asked = [
        (Destination(name="k", url="abfs://", options=account | {"account_key": wrong}), "boxes"),
        (Destination(name="s", url="abfs://", options=account | {"sas_token": sas}), "boxes"),
        (Destination(name="n", url="abfs://", options={"account_key": wrong}), "boxes"),
        (Destination(name="u", url="abfs://", options=account | {"account_key": wrong}), "../x"),
    ]
    found = stored(asked, SSL_CERT_FILE=tls_azurite.ca_file)
    for answer in found:
        assert wrong not in str(answer) and sas not in str(answer) and "sig=" not in str(answer)
    refused, unsigned, nameless, outside = [answer["error"] for answer in found]
    assert "abfs://boxes did not take or give" in refused and "Authenticat" in refused
    assert "abfs://boxes did not take or give" in unsigned
    assert "names no storage account: give it account_name" in nameless
    assert "leads out of its destination" in outside


def test_s3_takes_whole_files_and_refuses_a_stranger(s3: S3Server) -> None:
    asked = [
        (Destination(name="a", url="s3://bucket/dir", options=s3.options()), "box"),
        (Destination(name="b", url="s3://", options=s3.options(region="eu-west-1")), "other"),
        (Destination(name="c", url="s3://bucket", options=s3.options(access_key="nobody")), "box"),
    ]
    one, other, stranger = stored(asked)
    assert (one["root"], one["content"], one["size"]) == ("bucket/dir/box", "second", 6)
    assert one["files"] == one["below"] == [[storing.PATH, 6]] and one["nothing"] is None
    assert one["url"] == f"s3://bucket/dir/box/{storing.PATH}"
    assert other["root"] == "other" and other["content"] == "second"
    assert "s3://bucket/box did not take or give" in stranger["error"]
    assert SECRET_KEY not in str([one, other, stranger])


def test_a_hub_is_captured_to_s3_and_read_from_it(
    spark: SparkSession, make_hub: MakeHub, run_capture: RunCapture, tmp_path: Path, s3: S3Server
) -> None:
    hub = make_hub(2)
    sent = hub.spread(400, size=4000)
    destination = Destination(name="minio", url="s3://captured", options=s3.options())
    given = settings(account="minio", container="orders", encoding="AvroDeflate")
    plan = drained(hub, tmp_path, destinations=[destination], settings=given)
    run_capture(plan)
    found = verified(plan)
    assert found.is_fine and found.compared == 400 and found.files == 2
    frame = penstock.capture.read(
        spark,
        hub.name,
        url=destination.url,
        options=destination.options,
        container="orders",
        namespace=hub.server["namespace"],
    )
    assert sorted(bodies(frame)) == sorted(sent)
    plans = frame._jdf.queryExecution().toString()
    assert SECRET_KEY not in plans
