"""`penstock doctor` names what is right and what is not."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

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


def test_doctor_tells_a_clock_that_was_set_back(tmp_path: Path) -> None:
    segment = tmp_path / "log" / "ab" / "0" / "0.log"
    segment.parent.mkdir(parents=True)
    segment.touch()
    os.utime(segment, (4_000_000_000, 4_000_000_000))
    _, found = doctor(tmp_path)
    assert found["clock"]["state"] == "warn"
    assert "set back" in found["clock"]["seen"]


def test_doctor_names_a_taken_port(tmp_path: Path) -> None:
    try:
        taken = socket.create_server(("127.0.0.1", 5300))
    except OSError:
        taken = socket.socket()  # somebody else has it: just as good
    with taken:
        _, found = doctor(tmp_path)
    assert found["port 5300 (admin)"]["state"] == "warn"
    assert "--admin-port" in found["port 5300 (admin)"]["seen"]
