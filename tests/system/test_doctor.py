"""`penstock doctor` names what is right and what is not."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.checkpoints import ServiceCheckpointStore
from penstock.client import EventData, EventHubProducerClient
from penstock.service.certificates import development_certificates

if TYPE_CHECKING:
    from tests.conftest import Server, ServerFactory

GROUP = {
    "fully_qualified_namespace": "localhost",
    "eventhub_name": "orders",
    "consumer_group": "$Default",
}
PENSTOCK = str(Path(sys.executable).with_name("penstock"))


def doctor(data: Path) -> tuple[int, dict[str, dict[str, str]]]:
    done = subprocess.run(
        [PENSTOCK, "doctor", f"--data={data}", "-o", "json"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, {row["check"]: row for row in json.loads(done.stdout)}


def test_doctor_of_a_new_machine_finds_nothing_wrong(tmp_path: Path) -> None:
    code, found = doctor(tmp_path / "data")
    assert code == 0
    assert found["flush to disk"]["state"] in ("ok", "warn")
    assert found["kernel"]["seen"].split(":")[0] in ("compiled", "pure")
    assert found["service"]["seen"] == "none runs on this data directory"


def test_doctor_names_an_old_certificate(tmp_path: Path) -> None:
    (tmp_path / "tls").mkdir()
    (tmp_path / "tls" / "server.json").write_text('{"not_after_ms": 1000, "names": []}')
    code, found = doctor(tmp_path)
    assert code == 1
    assert found["certificate"]["state"] == "fail"


def test_doctor_names_an_own_certificate_that_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Doctor and `config validate` said before that all was well."""
    made = development_certificates(tmp_path / "own", ["localhost"], now_ms=1_600_000_000_000)
    monkeypatch.setenv("PENSTOCK_TLS_CERTIFICATE_FILE", str(made.certificate_file))
    monkeypatch.setenv("PENSTOCK_TLS_KEY_FILE", str(made.key_file))
    code, found = doctor(tmp_path / "data")
    assert code == 1
    assert found["certificate"]["state"] == "fail"
    assert "expired on 2021-10" in found["certificate"]["seen"]
    done = subprocess.run(
        [PENSTOCK, "config", "validate"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "expired on 2021-10" in done.stderr


def test_doctor_shows_the_checks_of_a_running_service(
    start_server: ServerFactory, tmp_path: Path
) -> None:
    server = start_server(data=tmp_path / "data")
    code, found = doctor(tmp_path / "data")
    assert code == 0
    assert found["ready"] == {"check": "ready", "state": "ok", "seen": "ready"}
    assert found["log"]["seen"] == "ok"
    assert found["certificate"]["seen"] == "ok"
    assert "retention" in found["last passes"]["seen"]
    limits = Path(f"/proc/{server['pid']}/limits").read_text()
    (line,) = (each for each in limits.splitlines() if each.startswith("Max open files"))
    soft, hard = (int(word) for word in line.split()[3:5])
    assert soft == hard  # raised at the start
    assert f"soft limit {soft:,}, hard limit {hard:,}" in found["open files"]["seen"]


def test_doctor_tells_a_clock_that_was_set_back(tmp_path: Path) -> None:
    segment = tmp_path / "log" / "ab" / "0" / "0.log"
    segment.parent.mkdir(parents=True)
    segment.touch()
    os.utime(segment, (4_000_000_000, 4_000_000_000))
    _, found = doctor(tmp_path)
    assert found["clock"]["state"] == "warn"
    assert "set back" in found["clock"]["seen"]


def test_doctor_names_a_checkpoint_beyond_the_end_of_its_log(
    start_server: ServerFactory, tmp_path: Path
) -> None:
    """While the service runs and when it has stopped; nothing is written."""
    data = tmp_path / "data"
    server = start_server("--hub=orders", data=data)
    text = server["connection_string"]
    with ServiceCheckpointStore(text, https_url=server["https"], ca_file=server["ca_file"]) as kept:
        asyncio.run(publish(server, events=5))
        kept.update_checkpoint({**GROUP, "partition_id": "0", "offset": "0", "sequence_number": 4})
        _, found = doctor(data)
        assert found["checkpoints"]["state"] == "ok"
        assert found["checkpoints"]["seen"].startswith("1, none beyond")
        kept.update_checkpoint({**GROUP, "partition_id": "0", "offset": "0", "sequence_number": 5})
        kept.update_checkpoint({**GROUP, "partition_id": "1", "offset": "0", "sequence_number": 0})
    for running in (True, False):
        if not running:
            server.stop()
        before = sorted(data.iterdir())
        code, found = doctor(data)
        assert code == 1
        assert (
            "at 5, beyond the log's last event (4)" in found["checkpoint orders $default/0"]["seen"]
        )
        assert (
            "at 0, beyond the log's last event (-1)"
            in found["checkpoint orders $default/1"]["seen"]
        )
        assert sorted(data.iterdir()) == before


async def publish(server: Server, *, events: int) -> None:
    async with EventHubProducerClient(server.connection_string(), eventhub_name="orders") as sender:
        batch = await sender.create_batch(partition_id="0")
        for number in range(events):
            batch.add(EventData(str(number)))
        await sender.send_batch(batch)


def test_doctor_says_when_checkpoints_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "checkpoints.sqlite").write_bytes(b"nonsense" * 1000)
    code, found = doctor(tmp_path)
    assert code == 0
    assert found["checkpoints"]["state"] == "warn"


def test_doctor_names_a_taken_port(tmp_path: Path) -> None:
    try:
        taken = socket.create_server(("127.0.0.1", 5300))
    except OSError:
        taken = socket.socket()  # somebody else has it: just as good
    with taken:
        _, found = doctor(tmp_path)
    assert found["port 5300 (admin)"]["state"] == "warn"
    assert "--admin-port" in found["port 5300 (admin)"]["seen"]
