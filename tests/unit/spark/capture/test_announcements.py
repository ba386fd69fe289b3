"""After the file: manifests, word to others, and the end of a run."""

from __future__ import annotations

import http.server
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.certificates import certificates_in
from tests.unit.spark.capture.conftest import Stage

from penstock.capture.captured_file import CapturedFile
from penstock.capture.state import CaptureStateFile, ClosedWindow
from penstock.capture.windows import WindowStart
from penstock.model.capture import RunProgress
from penstock.model.errors import ArgumentError, NotFound
from penstock.spark.capture import announcements
from penstock.spark.capture.announcements import (
    NotificationFailed,
    NotificationTarget,
    announce_files,
    post_events,
    write_manifests,
)
from penstock.spark.capture.plan import CapturePlan, open_run_state


def captured(number: int, partition: str) -> CapturedFile:
    return CapturedFile(
        path=f"ns/h/{partition}/{number}.avro",
        url=f"file:///x/{partition}/{number}.avro",
        partition=partition,
        window=number,
        first_sequence=number,
        last_sequence=number,
        count=1,
        bytes=600,
        sha256="00",
        named_s=60 * number + 30,
    )


def closed(file: CapturedFile) -> ClosedWindow:
    return ClosedWindow(file.named_s, 60, file)


def over(plan: CapturePlan) -> CapturePlan:
    """All of it is captured."""
    return msgspec.structs.replace(plan, stops=plan.starts)


@pytest.fixture
def plan(stage: Stage) -> CapturePlan:
    stage.service.want()
    stage.round()
    return stage.queries[0].plan


@pytest.fixture
def ledger(plan: CapturePlan) -> Iterator[CaptureStateFile]:
    made = plan.open_state()
    yield made
    made.close()


def test_a_manifest_comes_when_its_slot_is_complete(
    plan: CapturePlan, ledger: CaptureStateFile, tmp_path: Path
) -> None:
    for number, partition in ((1, "0"), (1, "1"), (2, "0")):
        file = tmp_path / "files/box" / captured(number, partition).path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(600))
    ledger.record([closed(captured(1, "0"))], {"0": WindowStart(2, named_s=90, window=1)})
    assert write_manifests(plan, ledger) == 0  # partition 1 is not there
    ledger.record([closed(captured(1, "1"))], {"1": WindowStart(6, named_s=100, window=1)})
    assert write_manifests(plan, ledger) == 0  # more may close in the slot
    ledger.record([closed(captured(2, "0"))], {"0": WindowStart(3, named_s=150, window=2)})
    assert write_manifests(plan, ledger) == 0
    # An empty one that was skipped.
    ledger.record([ClosedWindow(160, 60)], {"1": WindowStart(6, named_s=160, window=2)})
    assert write_manifests(plan, ledger) == 1
    (file,) = (tmp_path / "files/box/_manifests/h").iterdir()
    assert file.name == "1970-01-01T00-01-00Z.json"
    assert [each["partitionId"] for each in json.loads(file.read_text())["files"]] == ["0", "1"]
    assert write_manifests(over(plan), ledger) == 1
    # A run of events from before has a ledger of its own, and a file that comes late to the slot.
    late = CaptureStateFile(tmp_path / "late.sqlite", "late")
    other = msgspec.structs.replace(captured(1, "1"), path="ns/h/1/late.avro", named_s=70)
    (tmp_path / "files/box" / other.path).write_bytes(bytes(600))
    late.record([closed(other)], {})
    assert write_manifests(over(plan), late) == 1
    late.close()
    listed = json.loads(file.read_text())
    assert [each["path"] for each in listed["files"]] == [
        "ns/h/0/1.avro",
        "ns/h/1/late.avro",
        "ns/h/1/1.avro",
    ]
    assert listed["eventCount"] == 3


def test_a_manifest_lies_where_its_files_lie_whatever_settings_say_now(
    plan: CapturePlan, ledger: CaptureStateFile, tmp_path: Path
) -> None:
    old = msgspec.structs.replace(
        captured(1, "0"), account="here", container="old", encoding="AvroDeflate"
    )
    new = msgspec.structs.replace(
        captured(2, "0"), account="here", container="box", named_s=old.named_s + 1
    )
    for file, container in ((old, "old"), (new, "box")):
        path = tmp_path / "files" / container / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(600))
    ledger.record([closed(old), closed(new)], {})
    assert write_manifests(over(plan), ledger) == 1
    for file, container in ((old, "old"), (new, "box")):
        (manifest,) = (tmp_path / "files" / container / "_manifests/h").iterdir()
        assert [each["path"] for each in json.loads(manifest.read_text())["files"]] == [file.path]
    assert len([*(tmp_path / "files").rglob("*.avro")]) == 2  # nothing was written again


def test_who_is_to_hear_hears_of_each_file_once_it_took_it(
    plan: CapturePlan, ledger: CaptureStateFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.record([closed(captured(n, "0")) for n in range(3)], {})
    heard: list[Any] = []

    def away(plan: CapturePlan, target: NotificationTarget, events: Any) -> None:
        raise NotificationFailed("away")

    monkeypatch.setattr(announcements, "send_events", away)
    with pytest.raises(NotificationFailed):
        announce_files(plan, ledger, NotificationTarget(hub="x"))
    monkeypatch.setattr(
        announcements, "send_events", lambda plan, target, events: heard.extend(events)
    )
    assert announce_files(plan, ledger, NotificationTarget(hub="x")) == 3
    assert announce_files(plan, ledger, NotificationTarget(hub="x")) == 0
    assert [each["data"]["firstSequenceNumber"] for each in heard] == [0, 1, 2]
    ledger.record([closed(captured(9, "0"))], {})
    assert announce_files(plan, ledger, None) == 1  # nobody wants to know


class Hook(http.server.BaseHTTPRequestHandler):
    status = 200
    got: list[tuple[str, Any]] = []  # noqa: RUF012

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Hook.got.append((self.headers["Content-Type"], body))
        self.send_response(Hook.status)
        if Hook.status == 302:
            self.send_header("Location", "http://127.0.0.1:1/")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def test_a_hook_is_posted_to_and_not_followed_elsewhere() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Hook) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/?code=secret"
        try:
            post_events(url, [{"id": "1"}], content_type="application/json")
            assert Hook.got == [("application/json", [{"id": "1"}])]
            for Hook.status in (500, 302, 404):
                with pytest.raises(NotificationFailed) as refused:
                    post_events(url, [], content_type="application/json")
                assert "secret" not in str(refused.value)
        finally:
            server.shutdown()
            thread.join()
    with pytest.raises(NotificationFailed) as refused:
        post_events(url, [], content_type="application/json")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("format", "content_type", "kind", "time"),
    [
        ("eventgrid", "application/json; charset=utf-8", "eventType", "eventTime"),
        ("cloudevents", "application/cloudevents-batch+json; charset=utf-8", "type", "time"),
    ],
)
def test_a_hook_hears_of_files_over_https(
    plan: CapturePlan,
    ledger: CaptureStateFile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    format: str,
    content_type: str,
    kind: str,
    time: str,
) -> None:
    made = certificates_in(tmp_path / "tls")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(made.certificate_file, made.key_file)
    ledger.record([closed(captured(n, "0")) for n in range(3)], {})
    with http.server.HTTPServer(("127.0.0.1", 0), Hook) as server:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        notify = NotificationTarget(
            url=f"https://localhost:{server.server_port}/?code=key", format=format
        )
        Hook.status, Hook.got = 200, []
        try:
            with pytest.raises(
                NotificationFailed, match="certificate"
            ) as refused:  # of nobody we know
                announce_files(plan, ledger, notify)
            assert "code=key" not in str(refused.value) and Hook.got == []
            monkeypatch.setenv("SSL_CERT_FILE", str(made.ca_file))
            assert announce_files(plan, ledger, notify) == 3
            assert announce_files(plan, ledger, notify) == 0
        finally:
            server.shutdown()
            thread.join()
    ((told_type, told),) = Hook.got
    assert told_type == content_type
    assert [each["data"]["fileUrl"] for each in told] == [captured(n, "0").url for n in range(3)]
    assert {each[kind] for each in told} == {"Microsoft.EventHub.CaptureFileCreated"}
    assert told[0][time] == "1970-01-01T00:00:30.000Z"


def put_files(folder: Path, *files: CapturedFile) -> None:
    for file in files:
        path = folder / "files" / "box" / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(file.bytes))


def test_a_slot_that_cannot_be_written_holds_up_no_other(
    plan: CapturePlan, ledger: CaptureStateFile, tmp_path: Path
) -> None:
    put_files(tmp_path, captured(2, "0"))
    lost = msgspec.structs.replace(captured(1, "0"), account="of-the-past", container="box")
    ledger.record([closed(lost), closed(captured(2, "0"))], {})
    with pytest.raises(ArgumentError, match="of-the-past"):
        write_manifests(over(plan), ledger)
    (file,) = (tmp_path / "files/box/_manifests/h").iterdir()
    assert file.name == "1970-01-01T00-02-00Z.json"
    assert [slot.begin_s for slot in ledger.slots(2**40)] == [60], "tried again"


@pytest.mark.parametrize("text", ["[]", '{"namespace": "ns"}', '{"files": [7]}', "nonsense"])
def test_what_is_no_manifest_is_written_over(
    plan: CapturePlan, ledger: CaptureStateFile, tmp_path: Path, text: str
) -> None:
    put_files(tmp_path, captured(1, "0"))
    there = tmp_path / "files/box/_manifests/h/1970-01-01T00-01-00Z.json"
    there.parent.mkdir(parents=True)
    there.write_text(text)
    ledger.record([closed(captured(1, "0"))], {})
    assert write_manifests(over(plan), ledger) == 1
    assert len(json.loads(there.read_text())["files"]) == 1


def test_partitions_that_are_done_hold_up_no_manifest(
    plan: CapturePlan, ledger: CaptureStateFile, tmp_path: Path
) -> None:
    """Of events from before: one partition has none, another is done early."""
    put_files(tmp_path, captured(1, "0"))
    plan = msgspec.structs.replace(plan, starts={"0": 0, "1": 5}, stops={"0": 9, "1": 5})
    ledger.record([closed(captured(1, "0"))], {"0": WindowStart(4, named_s=130, window=1)})
    assert write_manifests(plan, ledger) == 1


def captured_all(stage: Stage, folder: Path) -> None:
    """A run that is over, all of it in files; its job was killed then, before any manifest."""
    stage.service.want(stops={"0": 2, "1": 5}, off_ms=2_000)
    put_files(folder, captured(1, "0"))
    directory = folder / "state" / "id-r1"
    directory.mkdir(parents=True)
    with closing(open_run_state(directory, "id")) as state:
        state.record([closed(captured(1, "0"))], {"0": WindowStart(2, named_s=90, window=1)})


def test_a_job_started_anew_writes_the_manifests_that_are_left(
    stage: Stage, tmp_path: Path
) -> None:
    captured_all(stage, tmp_path)
    stage.round()
    assert stage.queries == [], "nothing is left to capture"
    assert [report.is_finished for report in stage.service.reports] == [True]
    assert len([*(tmp_path / "files/box/_manifests/h").iterdir()]) == 1
    stage.service.runs = []
    stage.round()
    assert not (tmp_path / "state" / "id-r1").exists()


def test_a_run_is_not_done_before_others_have_heard_of_its_files(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed_again:
        port = closed_again.getsockname()[1]
    notify = NotificationTarget(url=f"http://127.0.0.1:{port}/")
    stage = Stage(tmp_path, amqp="localhost:5672", notify=notify)
    captured_all(stage, tmp_path)
    stage.round()
    (report,) = stage.service.reports
    assert (report.is_finished, report.state) == (False, "Waiting")
    assert "cannot be reached" in report.last_error
    assert len([*(tmp_path / "files/box/_manifests/h").iterdir()]) == 1, "the rest goes on"


def test_state_of_a_run_that_the_service_does_not_name_is_kept(
    stage: Stage, tmp_path: Path
) -> None:
    """It may be a service that was started with the wrong directory."""
    stage.service.want()
    stage.round()
    before, stage.service.runs = stage.service.runs, []
    stage.round()
    assert not stage.queries[0].isActive
    assert (tmp_path / "state" / "id-r1" / "plan.json").exists()
    assert (tmp_path / "state" / "id.sqlite").exists()
    stage.service.runs = before
    stage.round()
    assert stage.queries[-1].isActive


def test_what_runs_of_deleted_hubs_left_is_removed_after_a_week(
    stage: Stage, tmp_path: Path
) -> None:
    for name, age_s in (("old-gone", 9 * 86_400), ("new-gone", 86_400), ("id-r1", 9 * 86_400)):
        folder = tmp_path / "state" / name
        folder.mkdir(parents=True)
        (folder / "plan.json").write_text("{}")
        open_run_state(folder, name.partition("-")[0]).close()
        for file in (folder / "plan.json", folder.parent / f"{name.partition('-')[0]}.sqlite"):
            os.utime(file, (time.time() - age_s,) * 2)
    stage.service.want()
    stage.round()
    left = {path.name for path in (tmp_path / "state").iterdir()} - {"job-id"}
    assert {name for name in left if "sqlite-" not in name} == {
        *("new-gone", "id-r1", "new.sqlite", "id.sqlite")
    }


def test_how_far_it_is_does_not_start_a_query_anew(stage: Stage) -> None:
    stage.service.want()
    stage.round()
    stage.service.want(reached={"0": [3, 1_000, 2, 1]})
    stage.round()
    assert len(stage.queries) == 1
    assert stage.service.reports[-1].captured == {"0": 3, "1": 5}
    assert stage.service.reports[-1].reached == {"0": RunProgress(3, 1_000, 2, 1)}


def test_notes_that_are_damaged_stop_one_run_and_say_so(stage: Stage, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir(parents=True)
    (folder / "id.sqlite").write_bytes(b"no database" * 1000)
    stage.service.want()
    stage.round()
    stage.round()
    assert stage.queries == []


def test_a_hub_that_is_gone_is_no_trouble(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.service.want()

    def gone(*_: Any) -> None:
        raise NotFound("gone")

    monkeypatch.setattr(stage.service, "report_capture", gone)
    stage.round()
    assert stage.job.last_error == ""
