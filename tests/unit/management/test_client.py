"""The typed client against the real application, over a socket, in one process."""

from __future__ import annotations

import asyncio
import fcntl
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import uvicorn

from penstock.management.client import ManagementClient
from penstock.management.errors import GroupInUse, error_from_response, status_and_code
from penstock.management.permissions import Forbidden
from penstock.model.checkpoints import Ownership
from penstock.model.errors import (
    AlreadyExists,
    ArgumentError,
    ConfigurationError,
    DataDirectoryError,
    InternalError,
    NotFound,
    OperationTimedOut,
    PenstockError,
    QuotaExceeded,
    ServerBusy,
    Unauthorized,
)

if TYPE_CHECKING:
    from tests.unit.management.conftest import Caller


@pytest.fixture
def url(call: Caller) -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(call.app, lifespan="off", log_config=None, ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(20)
    listener.close()


@pytest.fixture
def client(url: str) -> Iterator[ManagementClient]:
    with ManagementClient(url, "admin-token") as made:
        yield made


def test_client_runs_a_namespace_from_beginning_to_end(client: ManagementClient) -> None:
    made = client.put_namespace("fabrikam", units=3, tags={"a": "b"}, location="here")
    assert (made.capacity, made.unlimited, made.tags) == (3, False, {"a": "b"})
    assert [each.name for each in client.namespaces()] == ["contoso", "fabrikam"]
    assert client.put_namespace("fabrikam", unlimited=True, maximum_units=5).unlimited
    assert client.namespace("FABRIKAM").maximum_units == 5
    hub = client.put_hub(
        "fabrikam", "a/b", partition_count=2, retention_hours=30, capture={"enabled": False}
    )
    assert (hub.name, hub.partition_count, hub.retention_hours) == ("a/b", 2, 30)
    assert hub.capture is not None
    assert client.put_hub("fabrikam", "a/b", status="Disabled").status == "Disabled"
    assert [each.name for each in client.hubs("fabrikam")] == ["a/b"]
    assert client.put_group("fabrikam", "a/b", "g", user_metadata="x").user_metadata == "x"
    assert [each.name for each in client.groups("fabrikam", "a/b")] == ["$Default", "g"]
    client.delete_group("fabrikam", "a/b", "g")
    assert [each["id"] for each in client.partitions("fabrikam", "a/b")] == ["0", "1"]
    assert client.readers("fabrikam", "a/b") == []
    client.delete_hub("fabrikam", "a/b")
    client.delete_namespace("fabrikam")
    with pytest.raises(NotFound):
        client.namespace("fabrikam")


@pytest.mark.parametrize("hub", [None, "orders"])
def test_client_handles_rules_and_keys(client: ManagementClient, hub: str | None) -> None:
    assert client.put_rule("contoso", hub, "new", ["Send"]).rights == ["Send"]
    keys = client.keys("contoso", hub, "new")
    assert keys.primary_key in keys.primary_connection_string
    assert keys.primary_key not in repr(keys)
    again = client.regenerate("contoso", hub, "new", "PrimaryKey")
    assert again.primary_key != keys.primary_key
    assert "new" in [each.name for each in client.rules("contoso", hub)]
    client.delete_rule("contoso", hub, "new")
    with pytest.raises(NotFound):
        client.delete_rule("contoso", hub, "new")


def test_client_sees_what_runs(client: ManagementClient) -> None:
    assert [each["id"] for each in client.connections()] == ["first", "second"]
    client.kill_connection("first")
    client.revoke_publisher("contoso", "orders", "a/b")
    assert [each["name"] for each in client.revoked_publishers("contoso", "orders")] == ["a/b"]
    client.resume_publisher("contoso", "orders", "a/b")
    assert client.usage(since_ms=0) == []
    client.grant("contoso", "throughput-units", 40, note="n")
    assert [each["value"] for each in client.grants("contoso")] == [40]
    client.withdraw("contoso", "throughput-units")
    assert len(client.audit(newest=2)) == 2


def test_client_tells_lag_and_moves_checkpoints(client: ManagementClient, call: Caller) -> None:
    call.plane.publish(b"a", b"b", b"c")
    moved = client.seek("contoso", "orders", "readers", "2", partition="0")
    assert moved[0]["to_sequence_number"] == 2
    rows = client.lag("contoso", "orders", "readers")
    assert (rows[0]["lag_events"], rows[0]["checkpoint_sequence_number"]) == (1, 1)
    assert len(client.lag("contoso")) == 8
    lease = Ownership(
        partition_id="0", owner_id="me", etag="e", modified_ms=call.plane.clock.now_ms()
    )
    call.plane.kept.owned[call.plane.hub_id, "readers"] = [lease]
    with pytest.raises(GroupInUse, match="'me' holds partition 0"):
        client.seek("contoso", "orders", "readers", "earliest")
    assert client.seek("contoso", "orders", "readers", "earliest", dry_run=True)[0]["delta"] == -2
    client.seek("contoso", "orders", "readers", "earliest", force=True)
    assert client.lag("contoso", "orders", "readers")[0]["lag_events"] == 3


def test_client_reads_metrics_and_reports_jobs(client: ManagementClient) -> None:
    found = client.metric_history("contoso", "orders", names=["incoming_bytes"], points=7)
    assert found["values"] == {"incoming_bytes": [1, None]}
    assert set(client.metric_history("contoso", since_ms=1, until_ms=2)) >= {"step_ms", "at_ms"}
    client.put_job("my job", kind="capture", pid=7, rows_per_second=1.5, ui_url="http://h:4040")
    (job,) = client.jobs()
    assert (job["name"], job["state"], job["pid"], job["ui_url"]) == (
        "my job",
        "Running",
        7,
        "http://h:4040",
    )
    client.put_job("my job", state="Failed", last_error="no disk")
    assert client.jobs()[0]["last_error"] == "no disk"
    client.delete_job("my job")
    assert client.jobs() == []


def test_client_raises_our_own_errors(client: ManagementClient, url: str) -> None:
    with pytest.raises(NotFound, match="missing"):
        client.hub("contoso", "missing")
    with pytest.raises(NotFound):
        client.delete_hub("contoso", "missing")
    with pytest.raises(PenstockError, match="fixed at creation"):
        client.put_hub("contoso", "orders", partition_count=8)
    with pytest.raises(QuotaExceeded):
        client.put_namespace("contoso", units=40)
    with ManagementClient(url, "viewer-token") as viewer, pytest.raises(Forbidden):
        viewer.delete_hub("contoso", "orders")
    with ManagementClient(url, "wrong") as stranger, pytest.raises(Unauthorized):
        stranger.namespaces()


def test_connection_is_kept_and_opened_again(client: ManagementClient) -> None:
    client.namespaces()
    (first,) = client._http._idle
    client.namespaces()
    assert client._http._idle == [first]
    assert first.sock is not None
    first.sock.shutdown(socket.SHUT_RDWR)  # the service closed it meanwhile
    assert client.namespaces()


def test_nobody_there_is_said_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(InternalError, match="cannot be reached"):
        ManagementClient(f"http://127.0.0.1:{port}", "t").namespaces()
    with pytest.raises(ConfigurationError):
        ManagementClient("localhost:5300", "t")


def test_silence_has_a_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(OperationTimedOut):
            ManagementClient(url, "t", timeout_s=0.05).namespaces()


def test_service_is_found_by_environment_or_runtime_file(tmp_path: Path) -> None:
    environ = {"PENSTOCK_ADMIN_URL": "http://h:1", "PENSTOCK_ADMIN_TOKEN": "t"}
    assert ManagementClient.find(environ).url == "http://h:1"
    with pytest.raises(NotFound, match="penstock serve"):
        ManagementClient.find({"PENSTOCK_DATA": str(tmp_path)})
    file = tmp_path / "runtime.json"
    file.write_text(json.dumps({"admin": "http://h:2", "admin_token": "t", "ca_file": "ca"}))
    with pytest.raises(NotFound):  # nobody holds it: left by a service that was killed
        ManagementClient.find({}, data=tmp_path)
    with file.open("rb") as held:
        fcntl.flock(held.fileno(), fcntl.LOCK_EX)
        assert ManagementClient.find({}, data=tmp_path).url == "http://h:2"
        assert "t" not in repr(ManagementClient.find({}, data=tmp_path)).partition("(")[2][10:]


def test_token_of_a_file_is_read_again_for_each_request(url: str, tmp_path: Path) -> None:
    file = tmp_path / "capture.token"
    environ = {"PENSTOCK_ADMIN_URL": url, "PENSTOCK_ADMIN_TOKEN_FILE": str(file)}
    with ManagementClient.find(environ) as client:
        with pytest.raises(
            ConfigurationError, match=r"capture\.token cannot be read: No such file"
        ):
            client.capture_runs("job")
        file.write_text("expired\n")
        with pytest.raises(Unauthorized):
            client.capture_runs("job")
        file.write_text("capture-token\n")
        assert client.capture_runs("job") == []
        file.write_text("viewer-token\n")
        with pytest.raises(Forbidden, match="viewer"):
            client.capture_runs("job")
        for content in (b"", b"\xff", b"a\nb"):
            file.write_bytes(content)
            with pytest.raises(ConfigurationError, match=r"capture\.token cannot be read"):
                client.capture_runs("job")
    both = ManagementClient.find(environ | {"PENSTOCK_ADMIN_TOKEN": "admin-token"})
    with both as client:
        assert client.capture_runs("job") == []


def test_broken_runtime_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "runtime.json"
    file.write_text("{}")
    with file.open("rb") as held:
        fcntl.flock(held.fileno(), fcntl.LOCK_EX)
        with pytest.raises(ConfigurationError, match=r"runtime\.json lacks 'admin'"):
            ManagementClient.find({}, data=tmp_path)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "", NotFound),
        (401, "", Unauthorized),
        (403, "", Unauthorized),
        (409, "", AlreadyExists),
        (429, "", ServerBusy),
        (503, "", ServerBusy),
        (403, "QuotaExceeded", QuotaExceeded),
        (400, "whatever", ArgumentError),
        (418, "", ArgumentError),
        (500, "", InternalError),
        (502, "x", InternalError),
    ],
)
def test_statuses_become_errors(status: int, code: str, kind: type[PenstockError]) -> None:
    assert isinstance(error_from_response(status, code, "why"), kind)


def test_errors_without_a_code_of_their_own_keep_their_status() -> None:
    assert status_and_code(OperationTimedOut("x")) == (408, "OperationTimedOut")
    assert status_and_code(DataDirectoryError("x")) == (500, "InternalServerError")
