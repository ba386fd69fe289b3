"""Capture as users have it: `penstock serve`, switched on by the command line and by the official
SDK, into a directory and into Blob; what is told of it, and who hears of files."""

from __future__ import annotations

import io
import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import polars
import pytest
from azure.core.credentials import AccessToken
from tests.spark.conftest import TestHub, new_hub

from penstock.capture.container import EMPTY_BYTES_MAX
from penstock.capture.hub_files import list_hub_files
from penstock.capture.storage import FileStore
from penstock.client.ranges import HubReader, RangeSettings
from penstock.management.client import ManagementClient
from penstock.spark.capture.history import locate_history

if TYPE_CHECKING:
    from tests.conftest import Server, ServerFactory
    from tests.spark.capture.storages import TlsAzurite

pytestmark = pytest.mark.timeout(700)
PENSTOCK = Path(__file__).resolve().parents[3] / ".venv" / "bin" / "penstock"
DEADLINE_S = 300.0  # of one wait: it only bounds a hang
SIZE = 10 * 1024 * 1024
HOOKED = "notices"
FRAGILE = "fragile"


class Captured:
    """A service that captures, with a directory and a blob account to capture to."""

    def __init__(self, server: Server, folder: Path, environ: dict[str, str]) -> None:
        self.server = server
        self.environ = environ
        self.folder = folder
        self.client = ManagementClient(server["admin"], server["admin_token"])

    def cli(self, *words: str, code: int = 0) -> str:
        environ = {name: os.environ[name] for name in ("PATH", "SPARK_SUBMIT_OPTS")}
        environ["PENSTOCK_DATA"] = str(self.server.data)
        environ |= self.environ
        config = sorted(self.server.data.parent.glob("penstock-*.toml"))[-1]
        environ["PENSTOCK_CONFIG"] = str(config)
        done = subprocess.run(
            [str(PENSTOCK), *words], capture_output=True, text=True, env=environ, timeout=240
        )
        assert done.returncode == code, done.stderr
        return done.stdout

    def enable(self, hub: str, destination: str) -> None:
        place = {"storageAccountResourceId": destination, "blobContainer": hub}
        description = {
            "enabled": True,
            "encoding": "AvroDeflate",
            "intervalInSeconds": 900,
            "sizeLimitInBytes": SIZE,
            "destination": {"name": "EventHubArchive.AzureBlockBlob", "properties": place},
        }
        self.client.put_hub(self.server["namespace"], hub, capture=description)

    def disable(self, *hubs: str) -> None:
        """And wait until all that was published before is in files."""
        for hub in hubs:
            self.client.put_hub(self.server["namespace"], hub, capture={"enabled": False})
        self.wait("the end", lambda: all(self.status(hub).state == "Off" for hub in hubs))

    def verify(self, hub: str) -> dict[str, int]:
        (proof,) = json.loads(self.cli("capture", "verify", hub, "-o", "json"))
        return proof  # type: ignore[no-any-return]

    def text(self, path: str) -> str:
        with urllib.request.urlopen(f"{self.server['admin']}{path}", timeout=10) as answer:
            found: str = answer.read().decode()
        return found

    def status(self, hub: str) -> Any:
        (found,) = [each for each in self.client.capture_status() if each.hub == hub]
        return found

    def wait(self, what: str, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not is_so():
            assert time.monotonic() < deadline, f"{what}: {self.client.capture_status()}"
            time.sleep(0.04)


@pytest.fixture(scope="module")
def captured(
    start_session_server: ServerFactory,
    tls_azurite: TlsAzurite,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Captured]:
    folder = tmp_path_factory.mktemp("captured")
    config = f"""
    [capture]
    master = "local[2,2]"  # storage that is away is told of after two tries, not after four
    [capture.notify]
    hub = "{HOOKED}"
    format = "cloudevents"
    [capture.destinations.here]
    url = "{folder.as_uri()}"
    [capture.destinations.fragile]
    url = "{(folder / FRAGILE).as_uri()}"
    [capture.destinations.coldstore]
    url = "abfs://"
    account_name = "{tls_azurite.ACCOUNT}"
    account_host = "{tls_azurite.host}"
    account_key_env = "COLD"
    """
    environ = {"COLD": tls_azurite.KEY, "SSL_CERT_FILE": tls_azurite.ca_file}
    server = start_session_server("--hub", f"{HOOKED}:2", config=config, environ=environ)
    made = Captured(server, folder, environ)
    yield made
    made.client.close()


def fill(hub: TestHub, count: int = 1150) -> None:
    """More than a window of the smallest size, in partition 0."""
    hub.send([f"{n:06}".encode().ljust(10_000, b".") for n in range(count)], partition_id="0")


def test_switched_on_by_the_command_line_the_first_file_appears(captured: Captured) -> None:
    hub = new_hub(captured.server, 2, name="by-cli")
    captured.cli(
        *("capture", "enable", "by-cli", "--destination", "here", "--container", "box"),
        *("--interval", "15m", "--size", "10MB", "--encoding", "avro-deflate", "--skip-empty"),
    )
    fill(hub)
    captured.wait("a file", lambda: captured.status("by-cli").files > 0)
    # Spark reports the progress of a batch some time after its files.
    captured.wait("its batch", lambda: captured.status("by-cli").state == "Running")
    root = captured.folder / "box"
    (file,) = root.rglob("*.avro")
    assert file.relative_to(root).parts[:3] == (captured.server["namespace"], "by-cli", "0")
    with file.open("rb") as opened:
        bodies = [each["Body"] for each in fastavro.reader(opened)]  # type: ignore[index,call-overload]
    assert bodies == hub.read()["0"][: len(bodies)]
    assert len(bodies) * 10_000 >= SIZE * 0.95
    (shown,) = json.loads(captured.cli("capture", "status", "by-cli", "-o", "json"))
    assert (shown["state"], shown["last_file"]) == ("Running", file.as_uri())
    assert shown["backlog_events"] == 1150 - len(bodies)
    proof = captured.verify("by-cli")
    assert (proof["missing"], proof["double"], proof["compared"]) == (0, 0, len(bodies))
    assert proof["waiting"] == 1150 - len(bodies)


def test_health_metrics_and_jobs_tell_of_it(captured: Captured) -> None:
    assert json.loads(captured.text("/ready"))["checks"]["capture"] == "ok"
    metrics = captured.text("/metrics")
    where = f'hub="by-cli",namespace="{captured.server["namespace"]}"'
    assert f"penstock_capture_files_total{{{where}}}" in metrics
    assert f'penstock_capture_state{{{where},state="Running"}} 1' in metrics
    (job,) = [each for each in captured.client.jobs() if each["name"] == "capture"]
    assert (job["kind"], job["state"]) == ("capture", "Running")


class Token:
    def __init__(self, text: str) -> None:
        self._text = text

    def get_token(self, *_: str, **__: Any) -> AccessToken:
        return AccessToken(self._text, int(time.time()) + 3600)


def test_switched_on_by_the_official_sdk_blobs_appear_and_off_finishes_them(
    captured: Captured, tls_azurite: TlsAzurite
) -> None:
    from azure.mgmt.eventhub import EventHubManagementClient
    from azure.storage.blob import ContainerClient

    server = captured.server
    hub = new_hub(server, 2, name="by-sdk")
    sdk: Any = EventHubManagementClient(
        Token(server["admin_token"]),
        "00000000-0000-0000-0000-000000000000",
        base_url=server["https"],
        connection_verify=server["ca_file"],
    )
    account = "/subscriptions/0/resourceGroups/g/providers/Microsoft.Storage/storageAccounts/"
    description = {
        "enabled": True,
        "encoding": "Avro",
        "intervalInSeconds": 60,
        "sizeLimitInBytes": SIZE,
        "destination": {
            "name": "EventHubArchive.AzureBlockBlob",
            "properties": {
                "storageAccountResourceId": f"{account}coldstore",
                "blobContainer": "sdk-box",
            },
        },
    }
    group = next(iter(sdk.namespaces.list())).id.split("/")[4]

    def put(enabled: bool) -> None:
        changed = {"properties": {"captureDescription": description | {"enabled": enabled}}}
        sdk.event_hubs.create_or_update(group, server["namespace"], hub.name, changed)

    put(True)
    fill(hub)
    captured.wait("a blob", lambda: captured.status(hub.name).files > 0)
    put(False)
    captured.wait("the rest", lambda: captured.status(hub.name).state == "Off")
    sdk.close()
    container = ContainerClient.from_connection_string(
        tls_azurite.connection_string, "sdk-box", connection_verify=tls_azurite.ca_file
    )
    with container:
        blobs = {blob.name: blob.size for blob in container.list_blobs()}
        found = []
        for name in sorted(name for name in blobs if name.endswith(".avro")):
            # As the official sample does it: what has 508 bytes or less holds no event.
            if blobs[name] > EMPTY_BYTES_MAX:
                content = io.BytesIO(container.download_blob(name).readall())
                found += [each["Body"] for each in fastavro.reader(content)]  # type: ignore[index,call-overload]
        manifests = [name for name in blobs if name.startswith(f"_manifests/{hub.name}/")]
        listed = [
            file
            for name in manifests
            for file in json.loads(container.download_blob(name).readall())["files"]
        ]
    assert found == hub.read()["0"]
    assert {file["path"]: file["sizeInBytes"] for file in listed} == {
        name: size for name, size in blobs.items() if name.endswith(".avro")
    }
    notices = TestHub(server, HOOKED, 2)
    told = [json.loads(body) for bodies in notices.read().values() for body in bodies]
    mine = [each["data"] for each in told if each["subject"] == f"eventhubs/{hub.name}"]
    assert sum(each["eventCount"] for each in mine) == len(found)
    assert all(each["fileUrl"].startswith(f"https://{tls_azurite.host}/sdk-box/") for each in mine)


def test_events_from_before_are_captured_too_and_once(captured: Captured) -> None:
    hub = new_hub(captured.server, 2, name="before")
    hub.send([b"%d" % number for number in range(60)], partition_id="0")
    captured.enable("before", "here")
    hub.send([b"later"] * 30, partition_id="1")
    for since, events in (("20", 40), ("earliest", 20), ("earliest", 0)):
        told = captured.cli("capture", "backfill", "before", "--from", since, "-o", "json")
        assert sum(each["events"] for each in json.loads(told)) == events
    captured.disable("before")
    proof = captured.verify("before")
    assert (proof["compared"], proof["events"], proof["manifests"] > 0) == (90, 90, True)
    # What it was goes on to be told when it is off, and again when it is on.
    found = captured.status("before")
    assert (found.events, found.files >= 3, bool(found.last_file)) == (90, True, True)
    root = captured.folder / "before"
    files = [str(file.relative_to(root)) for file in root.rglob("*.avro")]
    listed = [
        file["path"]
        for manifest in (root / "_manifests" / "before").iterdir()
        for file in json.loads(manifest.read_text())["files"]
    ]
    assert sorted(listed) == sorted(files)
    hub.send([b"never captured"] * 5, partition_id="0")
    captured.enable("before", "here")
    told = captured.cli("capture", "backfill", "before", "-o", "json")
    assert sum(each["events"] for each in json.loads(told)) == 5
    captured.disable("before")
    assert captured.verify("before")["compared"] == 95


def test_a_file_that_is_gone_is_found_by_verify(captured: Captured) -> None:
    file = max((captured.folder / "before").rglob("*.avro"))
    kept = file.read_bytes()
    file.unlink()
    captured.cli("capture", "verify", "before", code=1)
    file.write_bytes(kept)
    captured.cli("capture", "verify", "before")


def test_files_are_joined_by_hour_at_a_destination_that_is_named(captured: Captured) -> None:
    words = ("capture", "compact", "before", "--to", "here/joined", "--master", "local[2]")
    # A part of an hour is the whole of it.
    since = time.strftime("%Y-%m-%dT%H:59:59Z", time.gmtime(time.time() - 3600))
    rows = json.loads(captured.cli(*words, "--from", since, "-o", "json"))
    assert sum(row["events"] for row in rows) == 95
    files = sorted((captured.folder / "joined").rglob("*.parquet"))
    assert [str(file.relative_to(captured.folder / "joined")) for file in files] == [
        row["path"] for row in rows
    ]
    frame = polars.concat([polars.read_parquet(file) for file in files])
    wanted = [b"%d" % number for number in range(60)] + [b"later"] * 30 + [b"never captured"] * 5
    assert sorted(frame["body"].to_list()) == sorted(wanted)


def test_the_service_is_asked_where_history_is_and_how_the_hub_is_read(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_DATA", str(captured.server.data))
    where = locate_history("BEFORE", None, {})
    stores = [FileStore(shelf.target) for shelf in where.locations]
    files = list_hub_files(where.locations, stores, where.namespace, where.hub)
    assert {stores[0].url(file.path) for file in files} == {
        file.as_uri() for file in (captured.folder / "before").rglob("*.avro")
    }
    assert captured.server.key not in repr(where)
    text, ca_file = (where.live[f"eventhubs.{name}"] for name in ("connectionString", "tls.caFile"))
    with HubReader(RangeSettings(text, where.hub, ca_file=ca_file)) as reader:
        told = reader.partitions().values()
        assert sum(each["last_enqueued_sequence_number"] + 1 for each in told) == 95


def test_a_hub_that_is_made_anew_has_files_of_its_own(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the very container where those of the one before lie, whose numbers were the same."""
    server = captured.server
    for body, events in ((b"before", 7), (b"since", 4)):
        hub = new_hub(server, 2, name="anew")
        captured.enable("anew", "here")
        hub.send([body] * events, partition_id="0")
        captured.disable("anew")
        proof = captured.verify("anew")
        told = [proof[name] for name in ("events", "compared", "waiting", "empty_files")]
        assert told == [events, events, 0, 0]
        if body == b"before":
            captured.client.delete_hub(server["namespace"], "anew")
            _next_second()
    assert len(list((captured.folder / "anew").rglob("*.avro"))) == 2
    monkeypatch.setenv("PENSTOCK_DATA", str(server.data))
    where = locate_history("anew", None, {})
    stores = [FileStore(shelf.target) for shelf in where.locations]
    assert len(list_hub_files(where.locations, stores, where.namespace, where.hub)) == 1


def _next_second() -> None:
    """Names are told apart by the second."""
    now = time.time()
    while int(time.time()) == int(now):
        time.sleep(0.01)


@pytest.mark.full("spark")  # unit/management/test_captures.py has the states
def test_storage_that_is_away_is_told_waited_for_and_caught_up_with(
    captured: Captured, tls_azurite: TlsAzurite
) -> None:
    hubs = {"away-blob": "coldstore", "away-dir": "fragile"}
    for name in hubs:
        new_hub(captured.server, 2, name=name)
    fragile = captured.folder / FRAGILE
    tls_azurite.stop()
    try:
        fragile.write_bytes(b"a file where the directory should be")
        for name, destination in hubs.items():
            captured.enable(name, destination)
            fill(TestHub(captured.server, name, 2))

        def are(state: str) -> bool:
            return all(captured.status(name).state == state for name in hubs)

        def miss_storage() -> bool:  # Spark itself may be late on a loaded machine
            return all("did not take or give" in captured.status(n).last_error for n in hubs)

        captured.wait("both to wait", lambda: are("Waiting") and miss_storage())
        warned = json.loads(captured.text("/ready"))["warnings"]
        metrics = captured.text("/metrics")
        shown = captured.cli("capture", "status")
        for name in hubs:
            found = captured.status(name)
            assert (found.files, found.backlog_events, found.lost_events) == (0, 1150, 0)
            assert any(f"/{name} is waiting" in each for each in warned), warned
            where = f'hub="{name}",namespace="{captured.server["namespace"]}"'
            assert f'penstock_capture_state{{{where},state="Waiting"}} 1' in metrics
            assert f"penstock_capture_backlog_events{{{where}}} 1150" in metrics
            assert name in shown and "Waiting" in shown
    finally:
        fragile.unlink(missing_ok=True)
        tls_azurite.start()
    captured.wait("files", lambda: all(captured.status(name).files > 0 for name in hubs))
    captured.wait("both to run", lambda: are("Running"))
    assert [captured.status(name).last_error for name in hubs] == ["", ""]
    captured.disable(*hubs)
    assert [captured.verify(name)["compared"] for name in hubs] == [1150, 1150]
    warned = json.loads(captured.text("/ready"))["warnings"]
    assert not any("away" in each for each in warned)


def test_no_secret_stands_where_others_can_read(
    captured: Captured, tls_azurite: TlsAzurite
) -> None:
    server = captured.server
    secrets = (server.key, server["admin_token"], tls_azurite.KEY)
    texts = [server.log.read_text(), (server.data / "capture" / "spark.log").read_text()]
    (job,) = [each for each in captured.client.jobs() if each["name"] == "capture"]
    texts.append(Path(f"/proc/{job['pid']}/cmdline").read_text())
    environ = Path(f"/proc/{job['pid']}/environ").read_text()
    assert "eyJ" not in environ  # how every admin token begins
    assert f"PENSTOCK_ADMIN_TOKEN_FILE={server.data / 'capture.token'}" in environ
    assert (server.data / "capture.token").stat().st_mode & 0o777 == 0o600
    texts += [repr(run) for run in captured.client.capture_runs()]
    texts += [repr(captured.client.capture_status()), repr(captured.client.capture_destinations())]
    assert [secret for secret in secrets for text in texts if secret in text] == []
    plans = list((server.data / "capture").rglob("plan.json"))
    assert plans and all(plan.stat().st_mode & 0o077 == 0 for plan in plans)


def test_switched_off_everywhere_the_process_ends(captured: Captured) -> None:
    captured.cli("capture", "disable", "by-cli")
    captured.wait("the end", lambda: captured.status("by-cli").state == "Off")
    captured.wait("no process", lambda: "capture_stopped" in captured.server.log.read_text())
    log = captured.server.log.read_text()
    assert log.count("capture_started") == 1, log
